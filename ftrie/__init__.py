"""ftrie as a Python library: `import ftrie`, then `ftrie.train(spec, data)`. docs/library.md describes each part.

Everything in `__all__`, `ftrie.aio`, `ftrie.sklearn` and `ftrie.torch` is stable by semantic versioning; all other
modules are internal. A name is imported on first use, so that `import ftrie` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ftrie.api.access import Access
    from ftrie.api.client import Client
    from ftrie.api.doctor import Diagnosis, doctor
    from ftrie.api.estimate import estimate
    from ftrie.api.feedback import Feedback
    from ftrie.api.learner import Learner
    from ftrie.api.messages import AnyOf, Between, NoneOf, Thompson, UpperConfidenceBound
    from ftrie.api.model import Evaluation, Explanation, Model
    from ftrie.api.output import FtrieWarning
    from ftrie.api.ranker import Ranker
    from ftrie.api.run import Run, train
    from ftrie.api.spec import Spec
    from ftrie.api.store import Store, load
    from ftrie.api.weights import ModelDiff
    from model_store.errors import FtrieError

_NAMES = {
    "ftrie.api.access": "Access",
    "ftrie.api.client": "Client",
    "ftrie.api.estimate": "estimate",
    "ftrie.api.feedback": "Feedback",
    "ftrie.api.messages": "AnyOf Between NoneOf Thompson UpperConfidenceBound",
    "ftrie.api.doctor": "Diagnosis doctor",
    "ftrie.api.learner": "Learner",
    "ftrie.api.model": "Evaluation Explanation Model",
    "ftrie.api.output": "FtrieWarning",
    "ftrie.api.ranker": "Ranker",
    "ftrie.api.run": "Run train",
    "ftrie.api.spec": "Spec",
    "ftrie.api.store": "Store load",
    "ftrie.api.weights": "ModelDiff",
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
    "estimate",
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
