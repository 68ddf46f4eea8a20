"""ftrie as a Python library: `import ftrie`, then `ftrie.train(spec, data)`. docs/library.md describes each part.

Everything in `__all__`, `ftrie.aio`, `ftrie.sklearn` and `ftrie.torch` is stable by semantic versioning; all other
modules are internal. A name is imported on first use, so that `import ftrie` is fast.
"""

from __future__ import annotations

from importlib import import_module
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

_NAMES = {
    "ftrie.client.access": "Access",
    "ftrie.client.client": "Client",
    "ftrie.client.feedback": "Feedback",
    "ftrie.client.messages": "AnyOf Between NoneOf Thompson UpperConfidenceBound",
    "ftrie.library.doctor": "Diagnosis doctor",
    "ftrie.library.learner": "Learner",
    "ftrie.library.model": "Evaluation Explanation Model",
    "ftrie.library.output": "FtrieWarning",
    "ftrie.library.ranker": "Ranker",
    "ftrie.library.run": "Run train",
    "ftrie.library.spec": "Spec",
    "ftrie.library.store": "Store load",
    "ftrie.library.weights": "ModelDiff",
    "model_store.errors": "FtrieError",
}
"""The names of each module."""

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


def __getattr__(name: str) -> Any:
    # importlib.metadata takes half the time of `import ftrie`, and few ask for the version.
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("ftrie")
        except PackageNotFoundError:  # run from a checkout that was never installed
            return "0+unknown"
    if name == "aio":
        return import_module("ftrie.aio")
    module = next((module for module, names in _NAMES.items() if name in names.split()), None)
    if module is None:
        from model_store.errors import listed

        raise AttributeError(f"module 'ftrie' has no attribute {name!r}; it has: {listed(__all__, name)}")
    # Kept in the module: __getattr__ is called once for a name.
    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    return __all__
