"""Progressive validation: each example is predicted before it is learned (KDD 2013, section 5.1).

Input: batches of predictions in order. Output: metrics of every variant over all rows, per window and per slice, and
the lines of a metrics file. Sums run over all rows; a window is the difference of the sums at its two ends, which are
fixed row numbers. Memory does not grow with the log.
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
from trainer.formats.times import NO_TIME
from trainer.learn.buckets import Collisions
from trainer.learn.metrics.metrics_kernels import (
    CLICKED,
    CLICKS,
    LOSS,
    PREDICTED,
    ROWS,
    WEIGHT,
    add_all,
    close_cluster,
)
from trainer.learn.metrics.records import (
    Bin,
    Detail,
    End,
    GroupMetrics,
    MetricsFile,
    MetricsHeader,
    MetricsLines,
    MetricsWindow,
    Regret,
    SliceMetrics,
    VariantMetrics,
)
from trainer.learn.metrics.tally import GroupSums, Slice, SlicedMetrics, new_tally, reliability
from trainer.learn.predictions_kernels import Predictions
from trainer.learn.table import part_of

AUC_BUCKETS = 8192
FIRST_WINDOW = 1_000
WINDOWS_PER_SIZE = 100


@dataclass(frozen=True)
class MetricsOptions:
    """A run's training metrics: the window in rows (None: it grows), the slices by name, the file to write; regret."""

    window: int | None = None
    slices: tuple[str, ...] = ()
    file: MetricsFile | MetricsLines | None = None
    regret: bool = False

    def metrics(self, spec: ModelSpec, plan: FeaturePlan) -> ProgressiveMetrics:
        """Create the metrics of a run of a resolved spec. Raises SpecError for an unknown slice."""
        slices = [Slice.of(name, plan) for name in dict.fromkeys(self.slices)]
        metrics = ProgressiveMetrics(plan.variants, window=self.window, slices=slices, file=self.file)
        metrics.begin(spec)
        return metrics


@dataclass(frozen=True)
class Windows:
    """Where windows end: every `size` rows; with None, windows grow with the log.

    Growing windows start at 1,000 rows and double whenever 100 windows of the present size would cover all rows so far.
    So each of the last windows is 1 to 2 % of a long log, and the number of windows grows with the log's logarithm:
    10,000 rows have 10, 500 million rows 712.
    """

    size: int | None = None

    def end(self, begin: int) -> int:
        """The end of the window that begins after row `begin`."""
        if self.size is not None:
            return begin + self.size
        rows = FIRST_WINDOW
        while begin >= rows * WINDOWS_PER_SIZE:
            rows *= 2
        return begin + rows

    def doubles(self, end: int) -> bool:
        """Whether the rows up to the end of a window are 1, 2, 4, 8, … times those of the first window."""
        times = end // (self.size or FIRST_WINDOW)
        return times & (times - 1) == 0

    def __str__(self) -> str:
        return "no --window" if self.size is None else f"--window {self.size}"


class Sums(NamedTuple):
    """The sums of the rows so far; the difference of two has the sums of the rows between."""

    rows: float
    clicked: float
    weight: float
    clicks: float
    loss: npt.NDArray[np.float64]

    def __sub__(self, earlier: Sums) -> Sums:
        pairs: Any = zip(self, earlier, strict=True)
        return Sums(*(now - before for now, before in pairs))


class ProgressiveMetrics:
    """Running metrics of every variant, weighted by the examples' importance: in all, per window and per slice.

    With a `file`, a line is written at the end of each window. The figures depend on the rows and on `window` alone,
    not on batch boundaries. Where examples have requests, the paired intervals treat the rows of a request as one
    cluster; a request that spans two windows counts as two.
    """

    def __init__(
        self,
        variants: Sequence[str],
        *,
        window: int | None = None,
        slices: Sequence[Slice] = (),
        file: MetricsFile | MetricsLines | None = None,
    ) -> None:
        self.variants = tuple(variants)
        self._windows = Windows(window)
        self.file = file
        self._tally = new_tally(1, len(variants), AUC_BUCKETS)
        self._slices = SlicedMetrics(slices, variants) if slices else None
        self._before = GroupSums.of(self._tally)
        self._opened = np.zeros(3)  # rows, weight and the base's loss when the open window began
        self._recent_loss = np.full(1, np.nan)
        self._last_time_us = np.full(1, NO_TIME)

    def begin(self, spec: ModelSpec) -> None:
        """Write the header, unless the file continues that of a resumed run."""
        if self.file is not None and self.file.offset == 0:
            self.file.write(self._header(spec))

    def update(self, predictions: Predictions, examples: Examples) -> None:
        """Add a batch of predictions, made before the examples were learned."""
        first, rows = 0, int(predictions.labels.size)
        while first < rows:
            window_end = self._windows.end(int(self._opened[0]))
            last = min(rows, first + window_end - self.rows)
            add_all(predictions, first, last, self._tally)
            if self._slices is not None:
                self._slices.update(predictions, examples, first, last)
            if examples.times.size:
                self._last_time_us[0] = examples.times[last - 1]
            if self.rows == window_end:
                self._end_window()
            first = last

    def finish(self, collisions: Collisions | None = None, regret: Regret | None = None) -> None:
        """Write the open window and the last lines. A resumed run removes them."""
        if self.file is None:
            return
        if self.rows > self._before.rows:
            self.file.write(self._window_line(GroupSums.of(self._tally)), keep=False)
        self.file.write(self._detail(), keep=False)
        if regret is not None:
            self.file.write(regret, keep=False)
        self.file.write(End(rows=self.rows, collisions=collisions), keep=False)

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
        """Pairs (one, other): variant `other` predicted the same as `one`, the first such variant, for every row.

        Compares sums and histograms of the predictions, which are never bit-identical for different predictions.
        """
        histograms = (self._tally.positives[0], self._tally.negatives[0])
        pairs = list[tuple[int, int]]()
        with_sums: dict[tuple[float, ...], list[int]] = {}
        for other, sums in enumerate(self._tally.sums[0, [LOSS, PREDICTED]].T.tolist()):
            earlier = with_sums.setdefault(tuple(sums), [])
            for one in earlier:
                if all(np.array_equal(each[one], each[other]) for each in histograms):
                    pairs.append((one, other))
                    break
            earlier.append(other)
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
        return self.group().metrics(self.variants)

    def group(self) -> GroupSums:
        """The sums of all rows so far, to be added to those of other rows."""
        return GroupSums.of(self._tally)

    def reliability(self) -> dict[str, list[Bin]]:
        """Of each variant, rows with similar predictions, the lowest first."""
        histograms = zip(self.variants, self._tally.positives[0], self._tally.negatives[0], strict=True)
        return {name: reliability(clicked, other) for name, clicked, other in histograms}

    def slices(self) -> dict[str, list[SliceMetrics]]:
        """The metrics of each value of each slice, by the slice's name."""
        return self._slices.metrics() if self._slices is not None else {}

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Everything as arrays, the open window included, for a checkpoint."""
        state = {f"tally.{name}": array.copy() for name, array in self._tally._asdict().items()}
        state |= {
            f"before.{each.name}": np.array(getattr(self._before, each.name)) for each in fields(GroupSums)
        }
        state |= {"opened": self._opened.copy(), "recent": self._recent_loss.copy()}
        state |= {"last_time_us": self._last_time_us.copy()}
        state["watched"] = np.frombuffer(self._flags().encode(), np.uint8).copy()
        if self._slices is not None:
            state |= {f"slices.{name}": array for name, array in self._slices.state().items()}
        return state

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore a `state`. Raises CheckpointError where the window or the slices differ."""
        flags = state["watched"].tobytes().decode()
        if flags != self._flags():
            raise CheckpointError(
                f"the run was started with {flags} and is resumed with {self._flags()}; pass the same flags, "
                "or start a new run with another folder"
            )
        for name, array in self._tally._asdict().items():
            array[...] = state[f"tally.{name}"]
        before: dict[str, Any] = part_of(state, "before.")
        self._before = GroupSums(
            **{name: each.copy() if each.ndim else each.item() for name, each in before.items()}
        )
        self._opened[...] = state["opened"]
        self._recent_loss[...] = state["recent"]
        self._last_time_us[...] = state["last_time_us"]
        if self._slices is not None:
            self._slices.restore(part_of(state, "slices."))

    def _flags(self) -> str:
        names = [each.name for each in self._slices.slices] if self._slices is not None else []
        return " ".join([str(self._windows), *(f"--slice {name}" for name in names)])

    def _end_window(self) -> None:
        present = np.array(
            [self.rows, self._tally.counts[0, WEIGHT], self._tally.sums[0, LOSS, 0]], dtype=np.float64
        )
        _, weight, loss = present - self._opened
        self._recent_loss[0] = loss / weight if weight else np.nan
        if self.file is not None:
            total = GroupSums.of(
                self._tally
            )  # copies histograms, which are large where there are many variants
            self.file.write(self._window_line(total))
            if self._windows.doubles(self.rows):
                self.file.write(self._detail())
            self._before = total
        close_cluster(self._tally, 0)
        self._opened = present

    def _header(self, spec: ModelSpec) -> MetricsHeader:
        return MetricsHeader(
            model=spec.model.name,
            spec_sha256=spec.sha256,
            variants=list(self.variants),
            window=self._windows.size,
            clustered_by=spec.input.request,
            slices=[each.name for each in self._slices.slices] if self._slices else [],
            slice_values=self._slices.limit if self._slices else 0,
            chosen=spec.chosen,
        )

    def _window_line(self, total: GroupSums) -> MetricsWindow:
        return MetricsWindow(
            rows=round(total.rows),
            time=_iso_time(int(self._last_time_us[0])),
            window=(total - self._before).metrics(self.variants),
            total=total.metrics(self.variants),
        )

    def _detail(self) -> Detail:
        return Detail(rows=self.rows, reliability=self.reliability(), slices=self.slices())


def group_of(predictions: Predictions, variants: int) -> GroupSums:
    """The sums of a batch of predictions by some variants."""
    tally = new_tally(1, variants, AUC_BUCKETS)
    add_all(predictions, 0, int(predictions.labels.size), tally)
    return GroupSums.of(tally)


def _iso_time(time_us: int) -> str | None:
    """A time as ISO 8601 in UTC; None for NO_TIME."""
    return None if time_us == NO_TIME else datetime.fromtimestamp(time_us / 1e6, UTC).isoformat()
