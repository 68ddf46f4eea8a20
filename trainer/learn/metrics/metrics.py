"""Progressive validation: each example is predicted before it is learned from (the paper, section 5.1).

All rows are summed once, without end; a window is what was added between two of its ends, which stand at fixed row
numbers. Memory does not grow with the log. Nothing here knows how the scores came about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from model_store.errors import CheckpointError
from model_store.features.features import FeaturePlan
from model_store.spec.spec import ModelSpec
from trainer.examples.hashing import Examples
from trainer.learn.metrics.figures import Group, new_tally, reliability, room_for
from trainer.learn.metrics.metrics_kernels import (
    CLICKED,
    CLICKS,
    LOSS,
    PREDICTED,
    ROWS,
    WEIGHT,
    Watched,
    close_cluster,
    watch,
)
from trainer.learn.metrics.records import (
    Detail,
    End,
    GroupMetrics,
    Header,
    MetricsFile,
    SliceMetrics,
    VariantMetrics,
    Window,
)
from trainer.learn.metrics.slices import Slice, SliceWatcher
from trainer.logs.times import NO_TIME

AUC_BUCKETS = 8192


@dataclass(frozen=True)
class Watching:
    """What a run is asked to watch: the window in rows (None: it grows), the slices by name, the file to write."""

    window: int | None = None
    slices: tuple[str, ...] = ()
    file: MetricsFile | None = None

    def metrics(self, spec: ModelSpec, plan: FeaturePlan) -> ProgressiveMetrics:
        """Begin to watch a run of a resolved spec. Raises SpecError for a slice it does not know."""
        slices = [Slice.of(name, plan) for name in dict.fromkeys(self.slices)]
        metrics = ProgressiveMetrics(plan.variants, window=self.window, slices=slices, file=self.file)
        metrics.begin(spec)
        return metrics


class Sums(NamedTuple):
    """The sums of the rows so far; those of a later moment less an earlier one are of the rows between."""

    rows: float
    clicked: float
    weight: float
    clicks: float
    loss: npt.NDArray[np.float64]

    def __sub__(self, earlier: Sums) -> Sums:
        return Sums(
            self.rows - earlier.rows,
            self.clicked - earlier.clicked,
            self.weight - earlier.weight,
            self.clicks - earlier.clicks,
            self.loss - earlier.loss,
        )


class ProgressiveMetrics:
    """Running metrics of every variant, weighted by the examples' importance: in all, per window and per slice.

    With a `file`, a line is written at the end of each window. The figures depend on the rows and on `window` alone,
    not on where batches end. The paired intervals take the rows of one request as one cluster where the examples
    know their requests; a request that a window's end cuts counts as two.
    """

    def __init__(
        self,
        variants: Sequence[str],
        *,
        window: int | None = None,
        slices: Sequence[Slice] = (),
        file: MetricsFile | None = None,
    ) -> None:
        self.variants = tuple(variants)
        self._windows = Windows(window)
        self.file = file
        self._tally = new_tally(1, len(variants), AUC_BUCKETS)
        self._room = room_for(len(variants))
        self._slices = SliceWatcher(slices, variants) if slices else None
        self._before = Group.of(self._tally)
        self._opened = np.zeros(3)  # rows, weight and the base's loss when the open window began
        self._recent_loss = np.full(1, np.nan)
        self._last_time_us = np.full(1, NO_TIME)

    def begin(self, spec: ModelSpec) -> None:
        """Write the header, unless the file goes on where an earlier run stopped."""
        if self.file is not None and self.file.offset == 0:
            self.file.write(self._header(spec))

    def update(self, scores: npt.NDArray[np.float64], examples: Examples) -> None:
        """Add a batch and its scores before it was learned, float64[rows, >= variants]."""
        hashed = examples.hashed
        batch = Watched(scores, hashed.labels, hashed.weights, examples.requests)
        first, rows = 0, int(hashed.labels.size)
        while first < rows:
            window_end = self._windows.end(int(self._opened[0]))
            last = min(rows, first + window_end - self.rows)
            watch(batch, first, last, self._tally, self._room)
            if self._slices is not None:
                self._slices.update(batch, examples, first, last)
            if examples.times.size:
                self._last_time_us[0] = examples.times[last - 1]
            if self.rows == window_end:
                self._end_window()
            first = last

    def finish(self) -> None:
        """Write what the open window holds, and the last lines. A resumed run takes them back."""
        if self.file is None:
            return
        if self.rows > self._before.rows:
            self.file.write(self._window_line(Group.of(self._tally)), keep=False)
        self.file.write(self._detail(), keep=False)
        self.file.write(End(rows=self.rows), keep=False)

    @property
    def rows(self) -> int:
        """Rows so far."""
        return int(self._tally.counts[0, ROWS])

    @property
    def clicked(self) -> int:
        """Rows with a click so far."""
        return int(self._tally.counts[0, CLICKED])

    def sums(self) -> Sums:
        """The sums of all rows so far, loss by variant; cheap."""
        counts = self._tally.counts[0]
        rows, clicked, weight, clicks = counts[[ROWS, CLICKED, WEIGHT, CLICKS]].tolist()
        return Sums(rows, clicked, weight, clicks, self._tally.sums[0, LOSS].copy())

    def equal_variants(self) -> list[tuple[int, int]]:
        """Each variant whose predictions were those of an earlier one, row for row; with the first such one before it.

        Judged by sums and histograms of the predictions, which no two different variants share to the last bit.
        """
        sums, pairs = self._tally.sums[0, [LOSS, PREDICTED]], list[tuple[int, int]]()
        histograms = (self._tally.positives[0], self._tally.negatives[0])
        for other in range(1, len(self.variants)):
            for one in range(other):
                if (sums[:, one] == sums[:, other]).all() and all(
                    np.array_equal(each[one], each[other]) for each in histograms
                ):
                    pairs.append((one, other))
                    break
        return pairs

    def logloss(self, variant: int = 0) -> float | None:
        """Mean log-loss so far of the variant with this index."""
        weight = float(self._tally.counts[0, WEIGHT])
        return float(self._tally.sums[0, LOSS, variant]) / weight if weight else None

    def recent_logloss(self) -> float | None:
        """The base's log-loss in the last whole window; of all rows while there is none."""
        recent = float(self._recent_loss[0])
        return recent if recent == recent else self.logloss()

    def summary(self) -> dict[str, VariantMetrics]:
        """The metrics of every variant by name."""
        return self.total().variants

    def total(self) -> GroupMetrics:
        """All rows so far: how many, their weight and clicks, the metrics of every variant."""
        return Group.of(self._tally).metrics(self.variants)

    def slices(self) -> dict[str, list[SliceMetrics]]:
        """The metrics of each value of each slice, by the slice's name."""
        return self._slices.metrics() if self._slices is not None else {}

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """All of it as arrays, the open window among them, for a checkpoint."""
        state = {f"tally.{name}": array.copy() for name, array in self._tally._asdict().items()}
        state |= {f"before.{each.name}": np.array(getattr(self._before, each.name)) for each in fields(Group)}
        state |= {"opened": self._opened.copy(), "recent": self._recent_loss.copy()}
        state |= {"last_time_us": self._last_time_us.copy()}
        state["watched"] = np.frombuffer(self._watched().encode(), np.uint8).copy()
        if self._slices is not None:
            state |= {f"slices.{name}": array for name, array in self._slices.state().items()}
        return state

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on from what `state` gave. CheckpointError where another window or other slices were watched."""
        self._check(state["watched"].tobytes().decode())
        for name, array in self._tally._asdict().items():
            array[...] = state[f"tally.{name}"]
        before: dict[str, Any] = {each.name: state[f"before.{each.name}"] for each in fields(Group)}
        for name, array in before.items():
            before[name] = array.copy() if array.ndim else float(array)
        self._before = Group(**before)
        self._opened[...] = state["opened"]
        self._recent_loss[...] = state["recent"]
        self._last_time_us[...] = state["last_time_us"]
        if self._slices is not None:
            self._slices.restore(
                {name.removeprefix("slices."): a for name, a in state.items() if name.startswith("slices.")}
            )

    def _watched(self) -> str:
        names = [each.name for each in self._slices.slices] if self._slices is not None else []
        return " ".join([str(self._windows), *(f"--slice {name}" for name in names)])

    def _check(self, before: str) -> None:
        if before != self._watched():
            raise CheckpointError(
                f"the run was begun with {before}, and is to go on with {self._watched()}; watch the same, "
                "or begin anew with another folder"
            )

    def _end_window(self) -> None:
        present = np.array(
            [self.rows, self._tally.counts[0, WEIGHT], self._tally.sums[0, LOSS, 0]], dtype=np.float64
        )
        _, weight, loss = present - self._opened
        self._recent_loss[0] = loss / weight if weight else np.nan
        if self.file is not None:
            self._write_window(self.file)
        close_cluster(self._tally, 0)
        self._opened = present

    def _write_window(self, file: MetricsFile) -> None:
        """The window's line. Histograms of many variants are large, so they are copied for this alone."""
        total = Group.of(self._tally)
        file.write(self._window_line(total))
        if self._windows.doubles(self.rows):
            file.write(self._detail())
        self._before = total

    def _header(self, spec: ModelSpec) -> Header:
        return Header(
            model=spec.model.name,
            spec_sha256=spec.sha256,
            variants=list(self.variants),
            window=self._windows.size,
            clustered_by=spec.input.request,
            slices=[each.name for each in self._slices.slices] if self._slices else [],
            slice_values=self._slices.limit if self._slices else 0,
        )

    def _window_line(self, total: Group) -> Window:
        return Window(
            rows=round(total.rows),
            time=_shown(int(self._last_time_us[0])),
            window=(total - self._before).metrics(self.variants),
            total=total.metrics(self.variants),
        )

    def _detail(self) -> Detail:
        histograms = zip(self.variants, self._tally.positives[0], self._tally.negatives[0], strict=True)
        return Detail(
            rows=self.rows,
            reliability={name: reliability(clicked, other) for name, clicked, other in histograms},
            slices=self.slices(),
        )


def _shown(time_us: int) -> str | None:
    """A time in UTC, or None where the log has none."""
    return None if time_us == NO_TIME else datetime.fromtimestamp(time_us / 1e6, UTC).isoformat()


# --- Where windows of rows end: at row numbers fixed beforehand, wherever batches end. What is summed lives
# elsewhere ---


FIRST = 1_000
PARTS = 100


@dataclass(frozen=True)
class Windows:
    """Windows of `size` rows; where it is None they grow with the log.

    Growing windows have 1,000 rows at first, and twice as many whenever 100 of them would be all rows so far. So the
    last windows are 1 to 2 % of a long log each, and their number grows with its logarithm: 10,000 rows have 10, 500
    million 712.
    """

    size: int | None = None

    def end(self, begin: int) -> int:
        """Where the window ends that begins behind row `begin`."""
        if self.size is not None:
            return begin + self.size
        rows = FIRST
        while begin >= rows * PARTS:
            rows *= 2
        return begin + rows

    def doubles(self, end: int) -> bool:
        """Whether the rows up to the end of a window are 1, 2, 4, 8, … times the first window's."""
        times = end // (self.size or FIRST)
        return times & (times - 1) == 0

    def __str__(self) -> str:
        return "no --window" if self.size is None else f"--window {self.size}"
