"""ftrie as a Python library: `import ftrie`, then `ftrie.train(spec, data)`. docs/library.md describes each part.

Everything in `__all__`, `ftrie.aio`, `ftrie.sklearn` and `ftrie.torch` is stable by semantic versioning; all other
modules are internal. A name is imported on first use, so that `import ftrie` is fast.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ftrie.client.client import Client
    from ftrie.library.doctor import Diagnosis, doctor
    from ftrie.library.output import FtrieWarning
    from ftrie.library.run import Run, train
    from ftrie.library.spec import Spec
    from model_store.errors import FtrieError

_HOMES = {
    "Client": "ftrie.client.client",
    "Diagnosis": "ftrie.library.doctor",
    "FtrieError": "model_store.errors",
    "FtrieWarning": "ftrie.library.output",
    "Run": "ftrie.library.run",
    "Spec": "ftrie.library.spec",
    "doctor": "ftrie.library.doctor",
    "train": "ftrie.library.run",
}

__all__ = [
    "Client",
    "Diagnosis",
    "FtrieError",
    "FtrieWarning",
    "Run",
    "Spec",
    "doctor",
    "train",
]

try:
    __version__ = version("ftrie")
except PackageNotFoundError:  # run from a checkout that was never installed
    __version__ = "0+unknown"


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ftrie' has no attribute {name!r}; it has: {', '.join(__all__)}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
