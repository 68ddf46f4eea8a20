"""ftrie as a Python library: `import ftrie`, then `ftrie.train(spec, data)`. docs/library.md describes each part.

Everything in `__all__`, `ftrie.aio`, `ftrie.sklearn` and `ftrie.torch` is stable by semantic versioning; all other
modules are internal. A name is imported on first use, so that `import ftrie` is fast.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ftrie.client.access import Access
    from ftrie.client.client import Client
    from ftrie.client.feedback import Feedback
    from ftrie.client.messages import AnyOf, Between, NoneOf, Thompson, UpperConfidenceBound
    from ftrie.library.doctor import Diagnosis, doctor
    from ftrie.library.learner import Learner
    from ftrie.library.model import Evaluation, Explanation, Model
    from ftrie.library.output import FtrieWarning
    from ftrie.library.ranker import Ranker
    from ftrie.library.run import Run, train
    from ftrie.library.spec import Spec
    from ftrie.library.store import Store, load
    from ftrie.library.weights import ModelDiff
    from model_store.errors import FtrieError

_HOMES = {
    "Access": "ftrie.client.access",
    "AnyOf": "ftrie.client.messages",
    "Between": "ftrie.client.messages",
    "Client": "ftrie.client.client",
    "Diagnosis": "ftrie.library.doctor",
    "Evaluation": "ftrie.library.model",
    "Explanation": "ftrie.library.model",
    "Feedback": "ftrie.client.feedback",
    "FtrieError": "model_store.errors",
    "FtrieWarning": "ftrie.library.output",
    "Learner": "ftrie.library.learner",
    "Model": "ftrie.library.model",
    "ModelDiff": "ftrie.library.weights",
    "NoneOf": "ftrie.client.messages",
    "Ranker": "ftrie.library.ranker",
    "Run": "ftrie.library.run",
    "Spec": "ftrie.library.spec",
    "Store": "ftrie.library.store",
    "Thompson": "ftrie.client.messages",
    "UpperConfidenceBound": "ftrie.client.messages",
    "doctor": "ftrie.library.doctor",
    "load": "ftrie.library.store",
    "train": "ftrie.library.run",
}

__all__ = [
    "Access",
    "AnyOf",
    "Between",
    "Client",
    "Diagnosis",
    "Evaluation",
    "Explanation",
    "Feedback",
    "FtrieError",
    "FtrieWarning",
    "Learner",
    "Model",
    "ModelDiff",
    "NoneOf",
    "Ranker",
    "Run",
    "Spec",
    "Store",
    "Thompson",
    "UpperConfidenceBound",
    "doctor",
    "load",
    "train",
]

try:
    __version__ = version("ftrie")
except PackageNotFoundError:  # run from a checkout that was never installed
    __version__ = "0+unknown"


def __getattr__(name: str) -> Any:
    if name == "aio":
        return import_module("ftrie.aio")
    home = _HOMES.get(name)
    if home is None:
        from model_store.errors import listed

        raise AttributeError(f"module 'ftrie' has no attribute {name!r}; it has: {listed(__all__, name)}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
