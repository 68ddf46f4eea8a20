"""Averaged variants on held-out rows: polynomial decay, the plain mean and half-lives beside the weights themselves.

The logs and specs are those of `calibration`, with their alpha, 3 and 10 times as much. All variants learn in one pass
over the first four fifths of a log; the published model predicts the rest, without calibration.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.calibration import ROWS, first_variant, logs
from benchmarks.common import report
from model_store.spec.spec import ModelSpec
from trainer.learn.model import LearningModel
from trainer.learn.scorer import Scorer
from trainer.tune.halving import LastPart, measure
from trainer.tune.passes import RepeatedLog

LEARNED = 0.8
ALPHAS = (1, 3, 10)
AVERAGES: dict[str, dict[str, float]] = {
    "polynomial decay": {},
    "plain mean": {"half_life": 1e12},
    **{f"half-life {life}": {"half_life": life} for life in (500, 2000, 8000)},
}


def averaging(spec: ModelSpec, factor: float) -> ModelSpec:
    """The spec with its first variant, `factor` times its alpha, and every average of it."""
    share = 1.0 / (1 + len(AVERAGES))
    document = spec.model_dump(mode="json", exclude_unset=True)
    document["variants"] = {"base": {"share": share, "without": list(first_variant(spec).without)}}
    document["variants"] |= {name: {"share": share, "average": "base"} | of for name, of in AVERAGES.items()}
    document["learner"] |= {"values": "per_variant", "alpha": factor * spec.learner.alpha}
    document["calibration"] = {"kind": "none"}
    return ModelSpec.model_validate(document)


def held_out(spec: ModelSpec, log: RepeatedLog) -> npt.NDArray[np.float64]:
    """The mean log-loss of every variant of the published model on the last rows."""
    first, row = math.floor(LEARNED * measure(log, spec, LastPart()).rows), 0
    model: LearningModel | None = None
    scorer: Scorer | None = None
    losses: list[npt.NDArray[np.float64]] = []
    with log.examples(spec) as (opened, stream):
        for examples in stream:
            model = model or LearningModel(opened.maker)
            size = int(examples.hashed.labels.size)
            if row < first:
                model.learn(examples.part(0, min(size, first - row)))
            if row + size > first:
                scorer = scorer or Scorer(model.artefact())
                predicted = scorer.score(opened.maker, examples).predicted
                right = np.where(examples.hashed.labels[:, None] > 0.5, predicted, 1.0 - predicted)
                losses.append(-np.log(np.maximum(right, 1e-15))[max(first - row, 0) :])
            row += size
    mean: npt.NDArray[np.float64] = np.concatenate(losses).mean(axis=0)
    return mean


def rows_of(folder: Path) -> Iterator[list[object]]:
    """A row for each log and alpha."""
    for name, spec, log in logs(folder, seeds=(1,)):
        for factor in ALPHAS:
            losses = held_out(averaging(spec, factor), log)
            yield [name, f"{factor * spec.learner.alpha:g}", *losses.round(5).tolist()]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        shown = list(rows_of(Path(folder)))
    columns = ["log", "alpha", "the weights themselves", *AVERAGES]
    report("averages", f"Log-loss of the last fifth; generated logs have {ROWS:,} rows", columns, shown)


if __name__ == "__main__":
    main()
