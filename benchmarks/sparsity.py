"""The paper's table 1 on a stream of ours: how many weights each learner needs for how good a ranking.

Every learner is swept over its step size and its way to sparsity, by `ftrie tune`'s own search; all are judged by
AucLoss = 1 - AUC, progressive over all rows. A learner's row is its sparsest model whose AucLoss is within SLACK of the
best of all, or, if it has none, of its own best.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import report
from benchmarks.streams import TailStream
from model_store.spec.spec import parse_spec
from trainer.examples.open_log import Log
from trainer.tune.candidates import candidates_of
from trainer.tune.halving import Comparison, tune
from trainer.tune.passes import RepeatedLog

SLACK = 0.0025
SPEC = '[model]\nname = "bench"\n[input]\nlabel = "click"\n'
STEPS = ("alpha=0.1,0.16,0.25", "beta=0.1,0.5")
OF_MEANS = "l1=0,1e-7,3e-7,1e-6,2e-6,3e-6,6e-6,1e-5,2e-5,3e-5"

# What the paper's table 1 has: non-zeros and AucLoss against FTRL-Proximal.
IN_THE_PAPER = {
    "FTRL-Proximal": "baseline",
    "RDA": "+3 %, +0.6 %",
    "FOBOS": "+38 %, +0.0 %",
    "OGD, keys seen n times": "+216 %, +0.0 %",
}


@dataclass(frozen=True)
class Sweep:
    """Values to try, as `--try` takes them, on a spec with these lines in `[learner]`."""

    title: str
    tries: tuple[str, ...]
    learner: str = ""


@dataclass(frozen=True)
class Point:
    """One model: how bad it ranks, how many weights it has, what made it."""

    auc_loss: float
    nonzero: int
    parameters: str


SWEEPS = (
    Sweep("FTRL-Proximal", (*STEPS, "l1=0,0.25,0.5,0.75,1,1.25,1.5,2,3,4")),
    Sweep(
        "RDA", ("alpha=0.16,0.25,0.4,0.6", "beta=0.1,0.5", OF_MEANS), 'algorithm = "rda"\nrate = "gradients"'
    ),
    Sweep("FOBOS", (*STEPS, OF_MEANS), 'algorithm = "fobos"'),
    Sweep(
        "truncated gradient",
        (*STEPS, OF_MEANS),
        'algorithm = "truncated_gradient"\nk = 100\ntheta = 0.2',
    ),
    Sweep(
        "simple truncation",
        (*STEPS, "theta=0.01,0.02,0.03,0.05,0.08,0.12"),
        'algorithm = "truncation"\nk = 10000\ntheta = 0.0',
    ),
    *(
        Sweep(
            "OGD, keys seen n times",
            STEPS,
            f'algorithm = "ogd"\ninclusion = {{ kind = "bloom", count = {count} }}',
        )
        for count in (1, 2, 3, 4, 5, 6, 8, 12)
    ),
    Sweep("OGD, one rate for all keys", ("alpha=0.5,1,1.5,2,3,4,6",), 'algorithm = "ogd"\nrate = "global"'),
)


def points(sweep: Sweep, log: Path) -> Iterator[Point]:
    """Every model of a sweep."""
    spec = parse_spec(f"{SPEC}[learner]\n{sweep.learner}\n")
    found = tune(spec, candidates_of(spec, sweep.tries), RepeatedLog(Log([str(log)])), Comparison(by="auc"))
    for each in found.ranking:
        parameters = {name: value for name, value in each.parameters.items() if name != "algorithm"}
        shown = ", ".join(
            f"{name} {value:g}" for name, value in parameters.items() if not isinstance(value, str)
        )
        if spec.learner.inclusion.count is not None:
            shown += f", n {spec.learner.inclusion.count}"
        assert each.outcome.metrics.auc is not None
        yield Point(1.0 - each.outcome.metrics.auc, each.outcome.nonzero, shown)


def sparsest(found: Sequence[Point], best: float) -> Point:
    """The sparsest model within SLACK of `best`, or of the best there is."""
    limit = max(best, min(each.auc_loss for each in found)) * (1.0 + SLACK)
    return min((each for each in found if each.auc_loss <= limit), key=lambda each: each.nonzero)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    arguments = parser.parse_args()
    stream = TailStream(arguments.rows)
    found: dict[str, list[Point]] = {}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.tsv"
        stream.write_tsv(log)
        for sweep in SWEEPS:
            found.setdefault(sweep.title, []).extend(points(sweep, log))
    best = min(each.auc_loss for each in found["FTRL-Proximal"])
    chosen = {title: sparsest(each, best) for title, each in found.items()}
    base = chosen["FTRL-Proximal"]
    rows = [
        [
            title,
            each.nonzero,
            f"{100 * (each.nonzero / base.nonzero - 1):+.0f} %",
            round(each.auc_loss, 5),
            f"{100 * (each.auc_loss / base.auc_loss - 1):+.2f} %",
            f"{100 * (min(p.auc_loss for p in found[title]) / base.auc_loss - 1):+.2f} %",
            each.parameters,
            IN_THE_PAPER.get(title, "—"),
        ]
        for title, each in chosen.items()
    ]
    columns = [
        "learner",
        "non-zeros",
        "against FTRL",
        "AucLoss",
        "change",
        "best change",
        "with",
        "in the paper",
    ]
    report("sparsity", f"Non-zeros at about equal AucLoss, {stream.rows:,} rows", columns, rows)


if __name__ == "__main__":
    main()
