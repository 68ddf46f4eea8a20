"""FTRLClassifier beside scikit-learn's SGDClassifier: rows/s of partial_fit and predict_proba, and held-out log-loss.

The rows are sparse, 20 of 100,000 columns each by a falling law, in one matrix that both take; an array is dense, 20
columns of normal numbers. The last contestant of partial_fit is the engine's loop alone, over rows that were hashed
before. Contestants take turns within a round. Nothing is set but the loss of SGDClassifier: log_loss.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import sklearn
from scipy import sparse
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss

from benchmarks.common import ROUNDS, Spread, alternate, report
from ftrie.sklearn import FTRLClassifier
from trainer.examples.hashing import ExampleMaker
from trainer.learn.matrix import MatrixModel, pieces
from trainer.learn.model import LearningModel

NEEDS = ("sklearn",)
ROWS, COLUMNS, EACH, DENSE = 500_000, 100_000, 20, 20
OURS, THEIRS, LOOP = "FTRLClassifier", "SGDClassifier", "the engine's loop alone"


def sparse_rows(rows: int) -> tuple[Any, Any]:
    """A matrix in compressed sparse rows, and labels."""
    random = np.random.default_rng(1)
    columns = (random.random((rows, EACH)) ** 3 * COLUMNS).astype(np.int32)
    starts = np.arange(rows + 1, dtype=np.int32) * EACH
    matrix = sparse.csr_matrix((np.ones(rows * EACH), columns.reshape(-1), starts), shape=(rows, COLUMNS))
    matrix.sum_duplicates()
    return matrix, _labels(matrix @ random.normal(0.0, 0.5, COLUMNS) - 1.0, random)


def dense_rows(rows: int) -> tuple[Any, Any]:
    """A dense matrix, and labels."""
    random = np.random.default_rng(1)
    matrix = random.normal(size=(rows, DENSE))
    return matrix, _labels(matrix @ random.normal(0.0, 0.5, DENSE) - 1.0, random)


def _labels(scores: Any, random: Any) -> Any:
    return (random.random(scores.size) < 1.0 / (1.0 + np.exp(-scores))).astype(np.int64)


def made(name: str) -> Any:
    """A new estimator."""
    return (
        FTRLClassifier(alpha=0.1, random_state=1)
        if name == OURS
        else SGDClassifier(loss="log_loss", random_state=1)
    )


def learning(name: str, X: Any, y: Any) -> Callable[[], float]:
    """One call that learns all rows with a new estimator, and returns rows a second."""

    def run() -> float:
        estimator, began = made(name), time.perf_counter()
        estimator.partial_fit(X, y, classes=[0, 1])
        return float(y.size / (time.perf_counter() - began))

    return run


def loop_alone(X: Any, y: Any) -> Callable[[], float]:
    """The learning of rows hashed before, all of whose keys the table has."""
    spec = FTRLClassifier().partial_fit(X[:1000], y[:1000], classes=[0, 1]).model_.artefact.spec
    matrix = MatrixModel(LearningModel(ExampleMaker(spec)), X.shape[1])
    matrix.learn(X, y.astype(np.float64), np.empty(0))
    hashed = [matrix.hashed(X[rows], y[rows].astype(np.float64), np.empty(0)) for rows in pieces(X)]
    coordinates = matrix.model.coordinates

    def run() -> float:
        began = time.perf_counter()
        for rows in hashed:
            coordinates.learn(rows, 0, rows.labels.size, coordinates.predicted(rows.labels.size))
        return float(y.size / (time.perf_counter() - began))

    return run


def predicting(estimator: Any, X: Any) -> Callable[[], float]:
    """One call that predicts all rows, and returns rows a second."""

    def run() -> float:
        began = time.perf_counter()
        estimator.predict_proba(X)
        return float(X.shape[0] / (time.perf_counter() - began))

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    speeds, losses = [], []
    for title, (X, y) in (
        (f"sparse, {EACH} of {COLUMNS:,} columns", sparse_rows(arguments.rows)),
        (f"dense, {DENSE} columns", dense_rows(arguments.rows)),
    ):
        half = y.size // 2
        fitted = {name: made(name).fit(X[:half], y[:half]) for name in (OURS, THEIRS)}
        calls = {
            "partial_fit": {name: learning(name, X, y) for name in fitted} | {LOOP: loop_alone(X, y)},
            "predict_proba": {name: predicting(each, X) for name, each in fitted.items()},
        }
        for call, contestants in calls.items():
            for name, found in alternate(contestants, arguments.rounds).items():
                here = Spread.of(found)
                speeds.append(
                    [call, title, name, *(round(each) for each in (here.median, here.low, here.high))]
                )
        for name, estimator in fitted.items():
            loss = log_loss(y[half:], estimator.predict_proba(X[half:]))
            losses.append([title, name, estimator.n_iter_, round(float(loss), 4)])
    beside = f"scikit-learn {sklearn.__version__}, {arguments.rows:,} rows"
    report(
        "sklearn_classifier",
        f"Rows a second, {beside}; medians of {arguments.rounds} alternating rounds",
        ["call", "rows", "contestant", "rows/s", "min", "max"],
        speeds,
    )
    report(
        "sklearn_losses",
        f"Log-loss of the half that `fit` has not seen, {beside}",
        ["rows", "estimator", "passes", "log-loss"],
        losses,
    )


if __name__ == "__main__":
    main()
