"""Training speed of every learner, value structure and saving, beside FTRL with everything at its default.

Each run is `ftrie train` in a process of its own, on TSV from a warm page cache; time runs from opening the file to the
last row learned. The stream is that of the benchmark `train`. A second table has what the links cost for one example.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import ROUNDS, Spread, alternate, ratio, report
from benchmarks.streams import Stream
from benchmarks.train import run_ftrie
from model_store.hash_kernels import sigmoid
from model_store.jit import bare_kernel
from model_store.normal_kernels import normal_cdf, truncated_mean, truncated_shrinkage

LATENTS = 1_000_000
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
    rows = []
    for title in LEARNERS:
        here = Spread.of(measures[title])
        against = ratio(measures, title, BASE)
        rows.append([title, here.median, here.low, here.high, against.median, losses[title]])
    columns = ["learner", "rows/s", "min", "max", "ratio to ftrl", "progressive log-loss"]
    report("learners", f"Training speed, {stream.rows:,} rows x {stream.columns} columns", columns, rows)
    report(
        "learners_links",
        f"One of {LATENTS:,} scores",
        ["function", "ns", "min", "max"],
        links(arguments.rounds),
    )


def links(rounds: int) -> list[list[Any]]:
    """The CPU time of each function, in ns."""
    scores = np.random.default_rng(1).normal(-1.0, 0.7, LATENTS)
    kernels = {"sigmoid": _sigmoids, "Φ": _probits, "v and w of AdPredictor": _corrections}

    def ns(kernel: Callable[[Any], float]) -> float:
        began = time.thread_time_ns()
        kernel(scores)
        return (time.thread_time_ns() - began) / LATENTS

    for kernel in kernels.values():
        kernel(scores)  # compiles it
    measures = alternate({name: lambda kernel=kernel: ns(kernel) for name, kernel in kernels.items()}, rounds)
    spreads = {name: Spread.of(each) for name, each in measures.items()}
    return [
        [name, *(round(value, 1) for value in (each.median, each.low, each.high))]
        for name, each in spreads.items()
    ]


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
