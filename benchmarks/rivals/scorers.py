"""The rivals that score in Python: each holds the shared model its own way and gives the ctr of candidates.

Each takes what its users would know to do: the sum by hand adds up an item's own keys beforehand.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp
from pathlib import Path
from typing import Any, Protocol

from benchmarks import rank_model as shop
from benchmarks.rivals import shared_model
from benchmarks.rivals.vowpal_wabbit import VowpalWabbit

REQUEST_FIELDS = {**shop.USER_FIELDS, **shop.CONTEXT_FIELDS}


class Scorer(Protocol):
    def ctr(self, request: dict[str, str], candidates: list[str]) -> list[float]:
        """Every candidate's predicted click-through rate, for a request's user and context."""


class ByHand:
    """A dict of floats and a loop, as one writes it who knows the model: an item's own keys are summed beforehand."""

    def __init__(self, model: Path) -> None:
        self._weights = shared_model.weights(model)
        self._items = {name: self._prepared(fields) for name, fields in shared_model.items().items()}

    def ctr(self, request: dict[str, str], candidates: list[str]) -> list[float]:
        weight = self._weights.get
        own = sum([weight(f"{name}={value}", 0.0) for name, value in request.items()])
        starts = [self._start(cross, request) for cross in shop.CROSSES]
        rates = []
        for candidate in candidates:
            score, ends = self._items[candidate]
            score += own
            for start, end in zip(starts, ends, strict=True):
                score += weight(start + end, 0.0)
            rates.append(1.0 / (1.0 + exp(-score)))
        return rates

    def _prepared(self, fields: dict[str, str]) -> tuple[float, list[str]]:
        """What an item weighs by itself with the bias, and its ends of the crosses' keys."""
        own = [self._weights.get(f"{name}={value}", 0.0) for name, value in fields.items()]
        ends = ["*".join([fields[name] for name in cross if name in fields]) for cross in shop.CROSSES]
        return self._weights["bias"] + sum(own), ends

    @staticmethod
    def _start(cross: tuple[str, ...], request: dict[str, str]) -> str:
        return (
            "*".join(cross) + "=" + "".join([f"{request[name]}*" for name in cross if name in REQUEST_FIELDS])
        )


class ScikitLearn:
    """DictVectorizer and SGDClassifier, the weights put into its coefficients; one call for all candidates."""

    def __init__(self, model: Path) -> None:
        import numpy as np
        from sklearn.feature_extraction import DictVectorizer
        from sklearn.linear_model import SGDClassifier

        weights = shared_model.weights(model)
        bias = weights.pop("bias")
        self._vectorizer: Any = DictVectorizer().fit([dict.fromkeys(weights, 1.0)])
        self._classifier: Any = SGDClassifier(loss="log_loss")
        self._classifier.classes_ = np.array([0, 1])
        self._classifier.coef_ = np.array([[weights[name] for name in self._vectorizer.feature_names_]])
        self._classifier.intercept_ = np.array([bias])
        self._items = shared_model.items()

    def ctr(self, request: dict[str, str], candidates: list[str]) -> list[float]:
        rows = [_with_crosses(request | self._items[candidate]) for candidate in candidates]
        rates: list[float] = self._classifier.predict_proba(self._vectorizer.transform(rows))[:, 1].tolist()
        return rates


class River:
    """linear_model.LogisticRegression, one candidate after the other, which is how it predicts from dicts."""

    def __init__(self, model: Path) -> None:
        from river.linear_model import LogisticRegression
        from river.utils import VectorDict

        weights = shared_model.weights(model)
        self._model: Any = LogisticRegression(intercept_init=weights.pop("bias"))
        self._model._weights = VectorDict(weights)
        self._items = shared_model.items()

    def ctr(self, request: dict[str, str], candidates: list[str]) -> list[float]:
        predict = self._model.predict_proba_one
        rates = []
        for candidate in candidates:
            fields = _with_crosses(request | self._items[candidate])
            rates.append(predict({f"{name}={value}": 1.0 for name, value in fields.items()})[True])
        return rates


def _with_crosses(fields: dict[str, str]) -> dict[str, str]:
    """Fields and crosses by name: `name=value` is then the key that ftrie has."""
    crosses = {"*".join(cross): "*".join([fields[name] for name in cross]) for cross in shop.CROSSES}
    return fields | crosses


SCORERS: dict[str, Callable[[Path], Scorer]] = {
    "by_hand": ByHand,
    "scikit_learn": ScikitLearn,
    "river": River,
    "vowpal_wabbit": VowpalWabbit,
}


def best(candidates: list[str], rates: list[float], top_k: int) -> list[tuple[str, float]]:
    """The likeliest clicks first; equal ones keep the order of the candidates."""
    ranked = sorted(zip(candidates, rates, strict=True), key=lambda pair: -pair[1])
    return ranked[:top_k]
