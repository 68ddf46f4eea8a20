"""The passes of a training run: which one is next, how far it is, what each one's log-loss was, and when to stop.

The first pass learns the log in order; its metrics are the run's, as each row is predicted before it is learned for the
first time. Later passes learn the same examples again, block by block, in an order shuffled by the spec's seed and the
pass's number. Their log-loss is a training loss: it tells whether another pass still changes the model, nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy.typing as npt

from model_store.errors import CheckpointError, SpecError
from model_store.spec.spec import ModelSpec
from trainer.checkpoint import Checkpoint
from trainer.examples.blocks import Blocks, shuffled
from trainer.formats.batch import RowBatch
from trainer.learn.metrics.metrics import ProgressiveMetrics
from trainer.learn.table import part_of

BLOCKS_FILE = "blocks"
_INDEX, _METRICS = "passes.index", "passes.metrics."


@dataclass(frozen=True)
class PassOptions:
    """most: the number of passes; tolerance: stop after a pass that lowers no variant's log-loss by this share."""

    most: int = 1
    tolerance: float = 1e-4

    def check(self, spec: ModelSpec) -> None:
        """Raise SpecError where the spec cannot be learned in several passes."""
        if self.most > 1 and spec.learner.ttl_seconds is not None:
            raise SpecError(
                f"learner.ttl: got {spec.learner.ttl!r}, with --passes {self.most}; later passes learn the log out of "
                "the order of time, so keys cannot expire by time: expected a number of rows, or --passes 1"
            )


@dataclass(frozen=True)
class PassFigures:
    """A pass that has ended. logloss: by variant, the mean of its examples, each predicted before it is learned."""

    rows: int
    seconds: float
    logloss: dict[str, float | None]

    @classmethod
    def of(cls, metrics: ProgressiveMetrics, seconds: float) -> Self:
        """The figures of a pass with these metrics."""
        logloss = {name: metrics.logloss(index) for index, name in enumerate(metrics.variants)}
        return cls(metrics.rows, seconds, logloss)

    def change(self, before: PassFigures | None) -> dict[str, float | None]:
        """The log-loss of each variant relative to that of the pass before, minus 1; None where there is none."""
        if before is None:
            return dict.fromkeys(self.logloss)
        pairs = {name: (loss, before.logloss[name]) for name, loss in self.logloss.items()}
        return {
            name: loss / old - 1.0 if loss is not None and old else None
            for name, (loss, old) in pairs.items()
        }


@dataclass(frozen=True)
class PassesReport:
    """The passes of a run that has ended. converged: the last one changed too little for another."""

    figures: tuple[PassFigures, ...] = ()
    converged: bool = False

    def as_dict(self) -> dict[str, object]:
        """The JSON form."""
        before = (None, *self.figures)
        return {
            "converged": self.converged,
            "passes": [
                {"pass": number, **asdict(each), "change": each.change(last)}
                for number, (each, last) in enumerate(zip(self.figures, before, strict=False), 1)
            ],
        }


class Passes:
    """Several passes over one log. `figures`: of the passes that have ended.

    `metrics`: of the present pass, from the second on; `done`: how many pieces of its blocks were learned.
    """

    def __init__(self, options: PassOptions, spec: ModelSpec, blocks: Blocks) -> None:
        self.blocks = blocks
        self.figures: list[PassFigures] = []
        self.done = 0
        self._options, self._seed, self._variants = options, spec.learner.seed, tuple(spec.variants)
        self.metrics = ProgressiveMetrics(self._variants)

    @property
    def number(self) -> int:
        """The number of the present pass, from 1."""
        return len(self.figures) + 1

    @property
    def again(self) -> bool:
        """True in later passes than the first."""
        return bool(self.figures)

    @property
    def title(self) -> str:
        """The present pass and their number, such as "pass 2/5"."""
        return f"pass {self.number}/{self._options.most}"

    @property
    def goes_on(self) -> bool:
        """True if there is a pass to begin, or to resume, after the first."""
        left = len(self.figures) < self._options.most and not self.converged
        return self.again and (left or self.done > 0)

    @property
    def converged(self) -> bool:
        """True if the last pass that ended has lowered no variant's log-loss by the tolerance."""
        if len(self.figures) < 2:
            return False
        changes = self.figures[-1].change(self.figures[-2]).values()
        return all(change is None or change > -self._options.tolerance for change in changes)

    def batches(self) -> Iterator[RowBatch]:
        """The rows that the present pass, not the first, has still to learn."""
        return self.blocks.read(shuffled(len(self.blocks), self._seed, self.number), self.done)

    def finish(self, metrics: ProgressiveMetrics, seconds: float) -> None:
        """The present pass has ended, with these metrics, when all of the run had taken `seconds`."""
        before = sum(each.seconds for each in self.figures)
        self.figures.append(PassFigures.of(metrics, seconds - before))
        self.metrics, self.done = ProgressiveMetrics(self._variants), 0

    def report(self) -> PassesReport:
        """What the passes did."""
        return PassesReport(tuple(self.figures), self.converged)

    def description(self) -> dict[str, Any]:
        """The part of a checkpoint's description, as JSON."""
        return {"ended": [asdict(each) for each in self.figures], "done": self.done}

    def state(self, rows_read: int) -> dict[str, npt.NDArray[Any]]:
        """The arrays of a checkpoint: the pieces of the log's first `rows_read` rows, and this pass's metrics."""
        metrics = self.metrics.state() if self.again else {}
        return {_INDEX: self.blocks.index(rows_read)} | {
            _METRICS + name: array for name, array in metrics.items()
        }

    def restore(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint. Raises CheckpointError if its run has begun more passes than there shall be."""
        written = checkpoint.description.passes or {}
        self.figures = [PassFigures(**each) for each in written["ended"]]
        self.done = written["done"]
        if self.again:
            self.metrics.restore(part_of(checkpoint.arrays, _METRICS))
        begun = self.number if self.done else len(self.figures)
        if begun > self._options.most:
            raise CheckpointError(
                f"{checkpoint.path} is of a run in pass {begun}, but --passes is {self._options.most}; "
                f"expected {begun} or more"
            )


@contextmanager
def open_passes(
    options: PassOptions, spec: ModelSpec, folder: Path | None, checkpoint: Checkpoint | None
) -> Iterator[Passes | None]:
    """The passes of a run, None if it makes only one. folder: the checkpoints', None without.

    Raises SpecError as `PassOptions.check` does, CheckpointError where the checkpoint's run was started without them
    or this one is.
    """
    if checkpoint is not None and (checkpoint.description.passes is None) == (options.most > 1):
        before, now = ("without", "with") if options.most > 1 else ("with", "without")
        raise CheckpointError(
            f"{checkpoint.path} is of a run {before} --passes, which is resumed {now} it; pass the same flags, or "
            "start a new run with another folder"
        )
    if options.most == 1:
        yield None
        return
    options.check(spec)
    path = folder / BLOCKS_FILE if folder is not None else None
    index = checkpoint.arrays[_INDEX] if checkpoint is not None else None
    with Blocks(path, index) as blocks:
        passes = Passes(options, spec, blocks)
        if checkpoint is not None:
            passes.restore(checkpoint)
        yield passes
