"""Training speed of every learner, value structure and saving, beside FTRL with everything at its default.

Each run is `ftrie train` in a process of its own, on TSV from a warm page cache; time runs from opening the file to the
last row learned. The stream is that of the benchmark `train`. A second table has the CPU time of the links for one
example, and of learning one row: it depends less on what else the machine does.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import ROUNDS, Spread, alternate, ratio, report
from benchmarks.streams import Stream
from benchmarks.train import run_ftrie
from model_store.hash_kernels import sigmoid
from model_store.jit import bare_kernel
from model_store.normal_kernels import normal_cdf, truncated_mean, truncated_shrinkage
from model_store.spec.spec import ModelSpec, load_spec
from trainer.examples.hashing import ExampleMaker
from trainer.examples.open_log import Log, open_log
from trainer.learn.model import LearningModel

LATENTS, BATCHES = 1_000_000, 5
TIMED_ALONE = ("ftrl", "adpredictor", "adpredictor, forgetting")
BASE = "ftrl"
LEARNERS = {
    BASE: "",
    "ogd": 'algorithm = "ogd"',
    "ogd, one rate for all keys": 'algorithm = "ogd"\nrate = "global"',
    "ogd, l1": 'algorithm = "ogd"\nl1 = 1e-6',
    "ogd, l1 and l2": 'algorithm = "ogd"\nl1 = 1e-6\nl2 = 1e-6',
    "ogd, one rate for all keys, l2": 'algorithm = "ogd"\nrate = "global"\nl2 = 1e-6',
    "truncation": 'algorithm = "truncation"\nk = 1000\ntheta = 0.01',
    "truncated_gradient": 'algorithm = "truncated_gradient"\nk = 10\ntheta = 0.2\nl1 = 1e-6',
    "truncated_gradient, fixed": 'algorithm = "truncated_gradient"\nk = 10\ntheta = 0.2\nl1 = 1e-6\nshrink = "fixed"',
    "fobos": 'algorithm = "fobos"\nl1 = 1e-6',
    "fobos, l1 and l2": 'algorithm = "fobos"\nl1 = 1e-6\nl2 = 1e-6',
    "rda": 'algorithm = "rda"\nl1 = 1e-6',
    "rda, a rate for each key": 'algorithm = "rda"\nrate = "gradients"\nl1 = 1e-6',
    "rda, a constant rate": 'algorithm = "rda"\nrate = "constant"\nbeta = 100\nl1 = 1e-6',
    "adpredictor": 'algorithm = "adpredictor"',
    "adpredictor, forgetting": 'algorithm = "adpredictor"\nforgetting = 0.001',
    "ftrl, counts": 'rate = "counts"',
    "ftrl, q2.13": 'precision = "q2.13"',
    "ftrl, q2.13 and counts": 'precision = "q2.13"\nrate = "counts"',
    "ftrl, poisson(0.1)": 'inclusion = { kind = "poisson", p = 0.1 }',
    "ftrl, bloom(2)": 'inclusion = { kind = "bloom", count = 2 }',
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    stream = Stream(arguments.rows)
    losses: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = folder / "log.tsv"
        stream.write_tsv(log)
        specs = {
            title: write_spec(folder, index, lines) for index, (title, lines) in enumerate(LEARNERS.items())
        }

        def speed(title: str) -> float:
            outcome = run_ftrie(log, specs[title])
            losses[title] = outcome.logloss
            return outcome.rows_per_second

        for title in specs:
            speed(title)  # compiles its kernels
        measures = alternate({title: lambda title=title: speed(title) for title in specs}, arguments.rounds)
        report_cpu(log, specs, arguments.rounds)
    rows = []
    for title in LEARNERS:
        here = Spread.of(measures[title])
        against = ratio(measures, title, BASE)
        rows.append([title, here.median, here.low, here.high, against.median, losses[title]])
    columns = ["learner", "rows/s", "min", "max", "ratio to ftrl", "progressive log-loss"]
    report("learners", f"Training speed, {stream.rows:,} rows x {stream.columns} columns", columns, rows)


def report_cpu(log: Path, specs: Mapping[str, Path], rounds: int) -> None:
    """The second table."""
    spent = links() | {f"learning a row, {title}": timed for title, timed in learning(log, specs).items()}
    spreads = {what: Spread.of(each) for what, each in alternate(spent, rounds).items()}
    rows = [
        [what, *(round(ns, 1) for ns in (each.median, each.low, each.high))] for what, each in spreads.items()
    ]
    report("learners_links", "CPU time of one thread", ["what", "ns", "min", "max"], rows)


def links() -> dict[str, Callable[[], float]]:
    """What measures each function in ns."""
    scores = np.random.default_rng(1).normal(-1.0, 0.7, LATENTS)
    kernels = {"sigmoid": _sigmoids, "Φ": _probits, "v and w of AdPredictor": _corrections}
    return {what: _timed(LATENTS, partial(kernel, scores)) for what, kernel in kernels.items()}


def learning(log: Path, specs: Mapping[str, Path]) -> dict[str, Callable[[], float]]:
    """What measures learning of one row in ns: reading and hashing are no part of it, metrics are."""
    timed = {title: load_spec(specs[title]) for title in TIMED_ALONE}
    with open_log(Log([str(log)]), *timed.values()) as opened, opened.examples(1) as stream:
        examples = list(itertools.islice(stream, BATCHES))
    rows = sum(int(each.hashed.labels.size) for each in examples)

    def learn(spec: ModelSpec) -> None:
        model = LearningModel(ExampleMaker(spec))
        for each in examples:
            model.learn(each)

    return {
        title: _timed(rows, partial(learn, spec)) for title, spec in zip(timed, opened.specs, strict=True)
    }


def _timed(count: int, call: Callable[[], object]) -> Callable[[], float]:
    """What measures the CPU time of a call in ns, divided by count."""

    def ns() -> float:
        began = time.thread_time_ns()
        call()
        return (time.thread_time_ns() - began) / count

    call()  # compiles it
    return ns


@bare_kernel
def _sigmoids(scores: Any) -> Any:
    total = 0.0
    for score in scores:
        total += sigmoid(score)
    return total


@bare_kernel
def _probits(scores: Any) -> Any:
    total = 0.0
    for score in scores:
        total += normal_cdf(score)
    return total


@bare_kernel
def _corrections(scores: Any) -> Any:
    total = 0.0
    for score in scores:
        v = truncated_mean(score)
        total += v + truncated_shrinkage(score, v)
    return total


def write_spec(folder: Path, index: int, learner: str) -> Path:
    """A spec with one variant, and these lines in `[learner]`."""
    path = folder / f"{index}.toml"
    path.write_text(
        f'[model]\nname = "bench"\n[input]\nlabel = "click"\n[learner]\n{learner}\n', encoding="utf-8"
    )
    return path


if __name__ == "__main__":
    main()
