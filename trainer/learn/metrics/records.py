"""The figures of training metrics, and the metrics file: JSON lines, appended and flushed while the run goes on.

docs/metrics.md lists every field.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from model_store.errors import OutputError
from model_store.spec.sections import ChosenSection
from trainer.learn.buckets import Collisions
from trainer.learn.metrics.figures import Figures, MetricsRecord

FORMAT: Literal["ftrie-metrics"] = "ftrie-metrics"
FORMAT_VERSION = 1


class DifferenceFromBase(MetricsRecord):
    """A variant's difference from the base, the first variant. None where undefined.

    logloss: mean over the rows of the variant's loss minus the base's; low, high: the 95 % interval of that mean;
    auc_loss_percent: the relative change of 1 - AUC, in percent.
    """

    logloss: float | None
    low: float | None
    high: float | None
    auc_loss_percent: float | None


class VariantMetrics(Figures):
    """One variant's metrics; difference: None for the base."""

    difference: DifferenceFromBase | None = None

    def as_dict(self) -> dict[str, object]:
        """The metrics by name; the base has no difference."""
        return self.model_dump(exclude=set() if self.difference else {"difference"})

    def numbers(self) -> dict[str, float]:
        """The defined metrics of the variant itself, as an artefact stores them."""
        own = self.model_dump(exclude={"difference"})
        return {name: value for name, value in own.items() if value is not None}


class GroupMetrics(MetricsRecord):
    """The metrics of a group of rows; weight, clicks: sums of the weights of all rows and of the clicked ones."""

    rows: int
    weight: float
    clicks: float
    click_rate: float | None
    variants: dict[str, VariantMetrics]

    def as_dict(self) -> dict[str, object]:
        """The metrics by name; the base has no difference."""
        own = self.model_dump(exclude={"variants"})
        return {**own, "variants": {name: each.as_dict() for name, each in self.variants.items()}}


class SliceMetrics(GroupMetrics):
    """The rows with one value of a slice, written as in their keys; None for all values beyond the limit."""

    value: str | None


class Bin(MetricsRecord):
    """Rows with similar predictions: weighted sums of the rows, predictions and clicks."""

    weight: float
    predicted: float
    clicks: float


class MetricsHeader(MetricsRecord):
    """The first line: the model and the options of the metrics. chosen: of the spec, absent without that section."""

    kind: Literal["header"] = "header"
    format: Literal["ftrie-metrics"] = FORMAT
    version: int = FORMAT_VERSION
    model: str
    spec_sha256: str
    variants: list[str]
    window: int | None
    clustered_by: str | None
    slices: list[str]
    slice_values: int
    chosen: ChosenSection | None = None


class MetricsWindow(MetricsRecord):
    """A line at the end of each window: the figures of the window, and of all rows so far."""

    kind: Literal["window"] = "window"
    rows: int
    time: str | None
    window: GroupMetrics
    total: GroupMetrics


class Detail(MetricsRecord):
    """A line whenever the rows have doubled and at the end: the longer figures of all rows so far."""

    kind: Literal["detail"] = "detail"
    rows: int
    reliability: dict[str, list[Bin]]
    slices: dict[str, list[SliceMetrics]]


class RegretPoint(MetricsRecord):
    """After so many rows: the summed loss of the learner, and the least that fixed weights reach; `regret.py`.

    regret: their difference; mean: the same by the rows' weight; gradient: the 1-norm of the gradient at the least
    loss; steps: of the solver that found it.
    """

    rows: int
    loss: float
    least: float
    regret: float
    mean: float
    gradient: float
    steps: int


class Regret(MetricsRecord):
    """A line at the end of a run with --regret: every variant's curve.

    tolerance: a minimum is found when its gradient is at most this share of the learner's loss.
    """

    kind: Literal["regret"] = "regret"
    tolerance: float
    variants: dict[str, list[RegretPoint]]

    @property
    def unfinished(self) -> int:
        """How many points have a gradient above the tolerance, so that their regret may be larger still."""
        curves = self.variants.values()
        return sum(each.gradient > self.tolerance * each.loss for curve in curves for each in curve)


class End(MetricsRecord):
    """The last line of a run that reached the end of its inputs. collisions: None in a file of an earlier version."""

    kind: Literal["end"] = "end"
    rows: int
    collisions: Collisions | None = None


Line = Annotated[MetricsHeader | MetricsWindow | Detail | Regret | End, Field(discriminator="kind")]


class MetricsLines:
    """Keeps lines in memory, where `MetricsFile` writes them. `offset`: their number."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    @property
    def offset(self) -> int:
        """Above 0 once the header is there."""
        return len(self.lines)

    def write(self, line: Line, *, keep: bool = True) -> None:
        """Append a line."""
        self.lines.append(line)


class MetricsFile:
    """Appends lines. `offset`: the end of the lines that a resumed run keeps.

    A new file replaces an old one. `resume_at` is the `offset` in a checkpoint: the file is truncated to it, so that
    the result is that of an uninterrupted run. Raises OutputError. Not thread-safe.
    """

    def __init__(self, path: Path, resume_at: int = 0) -> None:
        self.path = path
        self.offset = resume_at
        try:
            self._file = path.open("r+b" if resume_at else "wb")
            if resume_at:
                self._truncate()
        except OSError as error:
            raise OutputError(f"cannot write the metrics to {path}: {error.strerror}") from error

    def write(self, line: Line, *, keep: bool = True) -> None:
        """Append a line; `keep` moves `offset` to its end. The last lines of a run are not kept when it is resumed."""
        data = line.model_dump_json().encode() + b"\n"
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            with contextlib.suppress(OSError):  # closing tries to write the buffer again
                self._file.close()
            raise OutputError(f"cannot write the metrics to {self.path}: {error.strerror}") from error
        if keep:
            self.offset += len(data)

    def sync(self) -> None:
        """Flush the lines to disk, so that a checkpoint may rely on `offset`."""
        with contextlib.suppress(OSError):  # fsync fails for a pipe or a terminal
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._file.close()

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _truncate(self) -> None:
        size = self._file.seek(0, 2)
        if size < self.offset:
            self._file.close()
            raise OutputError(
                f"{self.path} has {size} bytes, fewer than the {self.offset} in the checkpoint: it is not the file of "
                "the resumed run; pass that file, or another name without --resume"
            )
        self._file.seek(self.offset)
        self._file.truncate()
