"""The rivals that score in Python: each holds the shared model its own way and gives the ctr of candidates.

Each takes what its users would know to do: the sum by hand adds up an item's own keys beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


class Hashed:
    """FeatureHasher and LogisticRegression: each candidate's keys as text, hashed to a CSR row; one call for all.

    Keys that share a column share a weight, so that its scores are nearly the model's.
    """

    COLUMNS = 1 << 24

    def __init__(self, model: Path) -> None:
        import numpy as np
        from sklearn.feature_extraction import FeatureHasher
        from sklearn.linear_model import LogisticRegression

        weights = shared_model.weights(model)
        bias = weights.pop("bias")
        self._hasher: Any = FeatureHasher(self.COLUMNS, input_type="string", alternate_sign=False)
        self._classifier: Any = LogisticRegression()
        self._classifier.classes_, self._classifier.intercept_ = np.array([0, 1]), np.array([bias])
        columns = self._hasher.transform([key] for key in weights).indices
        self._classifier.coef_ = np.zeros((1, self.COLUMNS))
        self._classifier.coef_[0, columns] = list(weights.values())
        self._items = shared_model.items()

    def ctr(self, request: dict[str, str], candidates: list[str]) -> list[float]:
        rows = [_with_crosses(request | self._items[candidate]) for candidate in candidates]
        keys = ([f"{name}={value}" for name, value in row.items()] for row in rows)
        rates: list[float] = self._classifier.predict_proba(self._hasher.transform(keys))[:, 1].tolist()
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


class Dense:
    """Dictionaries and numpy, as one writes it for this one spec: a table of weights for each cross, items as numbers.

    A table has a cell for every pair of values, whether it has a key or not: here 3 million cells for 0.85 million
    keys, and for fields of a million values more than any machine has. A value that the tables lack cannot be asked.
    """

    def __init__(self, model: Path) -> None:
        import numpy as np

        weights = shared_model.weights(model)
        items = shared_model.items()
        self._row_of = {item: row for row, item in enumerate(items)}
        self._code = {f"{name}{n}": n for name, size in shop.FIELDS.items() for n in range(size)}
        self._own = {f"{name}={value}": weights.get(f"{name}={value}", 0.0) for name, value in self._values()}
        self._of_items = np.array(
            [
                weights["bias"] + sum(self._own[f"{n}={v}"] for n, v in fields.items())
                for fields in items.values()
            ]
        )
        self._sides, tables, codes, at = [], [], [], 0
        for cross in shop.CROSSES:
            names = tuple(name for name in cross if name in REQUEST_FIELDS)
            others = tuple(name for name in cross if name in shop.ITEM_FIELDS)
            width = int(np.prod([shop.FIELDS[name] for name in others]))
            self._sides.append((at, width, names))
            table = np.zeros(int(np.prod([shop.FIELDS[name] for name in cross])))
            prefix = "*".join(cross) + "="
            for key in (key for key in weights if key.startswith(prefix)):
                values = dict(zip(cross, key.removeprefix(prefix).split("*"), strict=True))
                table[self._number(values, names) * width + self._number(values, others)] = weights[key]
            tables.append(table)
            codes.append([self._number(fields, others) for fields in items.values()])
            at += len(table)
        self._table, self._codes = np.concatenate(tables), np.array(codes).T.copy()

    def ctr(self, request: dict[str, str], candidates: list[str]) -> list[float]:
        rates: list[float] = self._rates(request, candidates).tolist()
        return rates

    def rank(self, request: dict[str, str], candidates: list[str], top_k: int) -> list[tuple[str, float]]:
        """The best, by one partition."""
        import numpy as np

        rates = self._rates(request, candidates)
        order = np.argsort(-rates, kind="stable")[:top_k]
        return [
            (candidates[place], rate)
            for place, rate in zip(order.tolist(), rates[order].tolist(), strict=True)
        ]

    def _rates(self, request: dict[str, str], candidates: list[str]) -> Any:
        import numpy as np

        rows = np.array([self._row_of[candidate] for candidate in candidates])
        own = sum([self._own[f"{name}={value}"] for name, value in request.items()])
        starts = np.array([at + self._number(request, names) * width for at, width, names in self._sides])
        return self._sigmoid(self._sums(rows, starts) + own)

    def _sums(self, rows: Any, starts: Any) -> Any:
        return self._of_items[rows] + self._table[self._codes[rows] + starts].sum(axis=1)

    @staticmethod
    def _sigmoid(scores: Any) -> Any:
        import numpy as np

        return 1.0 / (1.0 + np.exp(-scores))

    def _number(self, fields: dict[str, str], names: tuple[str, ...]) -> int:
        number = 0
        for name in names:
            number = number * shop.FIELDS[name] + self._code[fields[name]]
        return number

    @staticmethod
    def _values() -> Iterator[tuple[str, str]]:
        return ((name, f"{name}{n}") for name, size in shop.FIELDS.items() for n in range(size))


class Compiled(Dense):
    """The same tables read by a loop that is compiled to machine code for this spec, as treelite does for trees."""

    def __init__(self, model: Path) -> None:
        from numba import njit

        super().__init__(model)

        @njit(nogil=True)
        def sums(of_items: Any, table: Any, codes: Any, rows: Any, starts: Any, out: Any) -> None:
            for n in range(len(rows)):
                score = of_items[rows[n]]
                for c in range(len(starts)):
                    score += table[codes[rows[n], c] + starts[c]]
                out[n] = score

        self._kernel = sums

    def _sums(self, rows: Any, starts: Any) -> Any:
        import numpy as np

        out = np.empty(len(rows))
        self._kernel(self._of_items, self._table, self._codes, rows, starts, out)
        return out


def _with_crosses(fields: dict[str, str]) -> dict[str, str]:
    """Fields and crosses by name: `name=value` is then the key that ftrie has."""
    crosses = {"*".join(cross): "*".join([fields[name] for name in cross]) for cross in shop.CROSSES}
    return fields | crosses


SCORERS: dict[str, Callable[[Path], Scorer]] = {
    "by_hand": ByHand,
    "compiled": Compiled,
    "dense": Dense,
    "hashed": Hashed,
    "scikit_learn": ScikitLearn,
    "river": River,
    "vowpal_wabbit": VowpalWabbit,
}


def best(candidates: list[str], rates: list[float], top_k: int) -> list[tuple[str, float]]:
    """The likeliest clicks first; equal ones keep the order of the candidates."""
    ranked = sorted(zip(candidates, rates, strict=True), key=lambda pair: -pair[1])
    return ranked[:top_k]
