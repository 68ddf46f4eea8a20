"""Real ad impressions (the Avazu challenge): log-loss of the last tenth beside Vowpal Wabbit, 12 points a side.

Both see the same rows once, in order of time, and each row is predicted before it is learned from. Both are judged by
the best of their 12 points on those rows. Vowpal Wabbit's points are its default learner and FTRL-Proximal, each at
three step sizes, on every column as it is (of the hour its hour of day), and with the columns and crosses of our
spec, avazu.toml. Ours are 12 step sizes of that spec's learner, variants of one pass.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.common import click_log, report
from model_store.spec.spec import ModelSpec, load_spec
from trainer.examples.open_log import Log
from trainer.tune.candidates import candidates_of
from trainer.tune.halving import Comparison, tune
from trainer.tune.passes import RepeatedLog

NEEDS = ("vowpalwabbit",)
LOG = "avazu/clicks_2014-10-21_28.csv.gz"
SPEC = Path(__file__).with_name("avazu.toml")
JUDGED = 0.1
OURS = ("alpha=0.04,0.06,0.08,0.11", "beta=0.01,0.03,0.1")
VW_LEARNERS = (
    *(f"-l {rate}" for rate in (0.1, 0.3, 0.5)),
    *(f"--ftrl --ftrl_alpha {alpha} --ftrl_beta 0.03" for alpha in (0.03, 0.06, 0.1)),
)
SHOWN = 3

_VW = "import sys, vowpalwabbit; vowpalwabbit.Workspace(sys.argv[1]).finish()"


@dataclass(frozen=True)
class Point:
    """One point of a grid: who, on what, with what, and how it did on the judged rows."""

    trainer: str
    features: str
    parameters: str
    logloss: float
    auc: float

    @property
    def row(self) -> list[object]:
        return [self.trainer, self.features, self.parameters, round(self.logloss, 5), round(self.auc, 5)]


def ours(log: Path, spec: ModelSpec) -> Iterator[Point]:
    """Our 12 points."""
    found = tune(spec, candidates_of(spec, OURS), RepeatedLog(Log([str(log)])), Comparison(last=JUDGED))
    for each in found.ranking:
        parameters = ", ".join(f"{name} {value}" for name, value in each.parameters.items())
        metrics = each.outcome.metrics
        assert metrics.logloss is not None
        assert metrics.auc is not None
        yield Point("ftrie", "columns and crosses", parameters, metrics.logloss, metrics.auc)


def vowpal_wabbit(log: Path, spec: ModelSpec, folder: Path) -> Iterator[Point]:
    """Vowpal Wabbit's 12 points."""
    with gzip.open(log, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    labels = np.array([row["click"] == "1" for row in rows])
    every = [name for name in rows[0] if name not in ("id", "click")]
    crosses = [cross.fields for cross in spec.crosses]
    for title, columns, interactions in (
        ("every column", every, []),
        ("columns and crosses", list(spec.fields), crosses),
    ):
        text = folder / "log.vw"
        letters = write_vw(text, rows, columns)
        crossed = " ".join(
            f"--interactions {''.join(letters[name] for name in cross)}" for cross in interactions
        )
        for learner in VW_LEARNERS:
            scores = vw_scores(text, f"{learner} {crossed}", folder / "scores")
            yield Point("Vowpal Wabbit", title, learner, *judged(scores, labels))


def write_vw(path: Path, rows: Sequence[dict[str, str]], columns: Sequence[str]) -> dict[str, str]:
    """Write rows as Vowpal Wabbit text, a namespace a column; return the namespaces' letters."""
    letters = {name: chr(ord("a") + index) for index, name in enumerate(columns)}
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            values = row | {"hour": row["hour"][-2:]}
            features = " ".join(f"|{letters[name]} {name}={values[name]}" for name in columns)
            file.write(f"{'1' if row['click'] == '1' else '-1'} {features}\n")
    return letters


def vw_scores(text: Path, flags: str, scores: Path, bits: int = 24) -> npt.NDArray[np.float64]:
    """Every row's score before it was learned from, by 2^bits weights: float64[rows]."""
    command = f"-d {text} --loss_function logistic -b {bits} --quiet -p {scores} {flags}"
    subprocess.run([sys.executable, "-c", _VW, command], check=True, capture_output=True)
    return np.loadtxt(scores)


def judged(scores: npt.NDArray[np.float64], labels: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """(log-loss, AUC) of the last tenth of the rows."""
    begin = labels.size - math.floor(labels.size * JUDGED)
    scores, labels = scores[begin:], labels[begin:]
    wins = (scores[labels][:, None] > scores[~labels]) + 0.5 * (scores[labels][:, None] == scores[~labels])
    return float(np.logaddexp(0, np.where(labels, -scores, scores)).mean()), float(wins.mean())


def main() -> None:
    log = click_log(LOG)
    if log is None:
        print(f"avazu: left out, there is no {LOG} in the folder FTRIE_TEST_DATA")
        return
    spec = load_spec(SPEC)
    with tempfile.TemporaryDirectory() as folder:
        points = [*ours(log, spec), *vowpal_wabbit(log, spec, Path(folder))]
    points.sort(key=lambda point: point.logloss)
    best = itertools.chain.from_iterable(
        [each for each in points if (each.trainer, each.features) == whose][:SHOWN]
        for whose in dict.fromkeys((each.trainer, each.features) for each in points)
    )
    columns = ["trainer", "features", "parameters", "log-loss", "AUC"]
    report(
        "avazu", "Avazu, the last tenth of 16,160 rows, the best points", columns, [each.row for each in best]
    )


if __name__ == "__main__":
    main()
