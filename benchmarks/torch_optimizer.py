"""FTRLProximal beside torch's own optimizers: training steps on an embedding of a million rows.

A step is what a user runs: forward, backward and `optimizer.step()`, of bags of 20 ids, mean squared error. Ids are
drawn evenly, which touches the most rows, or by Zipf's law, as categories in click logs are. The dense rows time
`optimizer.step()` alone, of every number of the embedding. Contestants take turns within a round. Each has one thread,
and its CPU time counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.common import ROUNDS, Spread, alternate, ratio, report
from ftrie.torch import FTRLProximal

NEEDS = ("torch",)
ROWS, SIZE, IDS = 1_000_000, 16, 20
BATCHES = 8
BASE = "FTRLProximal"
SPARSE: dict[str, Callable[[Any], Any]] = {
    BASE: lambda p: FTRLProximal(p, alpha=0.1, l1=1e-4),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "SparseAdam": lambda p: torch.optim.SparseAdam(p, lr=0.001),
}
DENSE: dict[str, Callable[[Any], Any]] = {
    BASE: SPARSE[BASE],
    "Adagrad": SPARSE["Adagrad"],
    "Adam": lambda p: torch.optim.Adam(p, lr=0.001),
}


class SparseTraining:
    """One optimizer and its embedding."""

    def __init__(self, make: Callable[[Any], Any], ids: list[Any]) -> None:
        self._bag = torch.nn.EmbeddingBag(ROWS, SIZE, mode="sum", sparse=True)
        self._optimizer = make(list(self._bag.parameters()))
        self._ids = ids

    def steps_per_second(self, seconds: float) -> float:
        steps, began = 0, time.process_time()
        while (passed := time.process_time() - began) < seconds:
            ids = self._ids[steps % BATCHES]
            self._optimizer.zero_grad()
            (self._bag(ids).sum(1) - 1.0).square().mean().backward()
            self._optimizer.step()
            steps += 1
        return steps / passed


class DenseUpdates:
    """One optimizer, an embedding and a gradient of all of it; compiled: its step by torch.compile."""

    def __init__(self, make: Callable[[Any], Any], *, compiled: bool) -> None:
        weight = torch.nn.Parameter(torch.randn(ROWS, SIZE))
        weight.grad = torch.randn(ROWS, SIZE)
        step = make([weight]).step
        self._step = torch.compile(step) if compiled else step
        self._step()

    def steps_per_second(self, seconds: float) -> float:
        steps, began = 0, time.process_time()
        while (passed := time.process_time() - began) < seconds:
            self._step()
            steps += 1
        return steps / passed


def ids_of(bags: int, zipf: bool) -> list[Any]:
    """Some batches of ids."""
    random = np.random.default_rng(1)
    shape = (BATCHES, bags, IDS)
    ids = random.zipf(1.2, shape) % ROWS if zipf else random.integers(0, ROWS, shape)
    return list(torch.from_numpy(ids.astype(np.int64)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each contestant in each round")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    table = []

    def measure(title: str, contestants: dict[str, Any]) -> None:
        for each in contestants.values():
            each.steps_per_second(arguments.seconds / 4)  # warms up
        measures = alternate(
            {
                name: lambda each=each: each.steps_per_second(arguments.seconds)
                for name, each in contestants.items()
            },
            arguments.rounds,
        )
        for name, found in measures.items():
            here, times = Spread.of(found), ratio(measures, BASE, name).median
            table.append(
                [
                    title,
                    name,
                    *(round(value) for value in (here.median, here.low, here.high)),
                    "—" if name == BASE else f"{times:.2f} ×",
                ]
            )

    for bags, zipf in ((4096, True), (4096, False), (512, False)):
        ids = ids_of(bags, zipf)
        rows = len(ids[0].unique())
        title = f"{bags:,} bags of {IDS} {'Zipf' if zipf else 'even'} ids, {rows:,} rows"
        measure(title, {name: SparseTraining(make, ids) for name, make in SPARSE.items()})
    for compiled in (False, True):
        title = "all rows, dense" + (", torch.compile" if compiled else "")
        measure(title, {name: DenseUpdates(make, compiled=compiled) for name, make in DENSE.items()})
    columns = ["a step", "optimizer", "steps/s", "min", "max", "ftrie is faster by"]
    title = (
        f"Steps a second of CPU, one thread, of an embedding of {ROWS:,} x {SIZE} float32, torch {torch.__version__}; "
        f"medians of {arguments.rounds} alternating rounds"
    )
    report("torch_optimizer", title, columns, table)


if __name__ == "__main__":
    main()
