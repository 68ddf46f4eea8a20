"""The figures of the training metrics, and the lines of a metrics file (docs/training_metrics.md lists the fields).

How figures are computed is in `figures.py`; nothing here computes.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from model_store.errors import OutputError

FORMAT: Literal["ftrie-metrics"] = "ftrie-metrics"
FORMAT_VERSION = 1


class Record(BaseModel):
    """Frozen, and written without a number that is not finite. Unknown fields of later versions are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Difference(Record):
    """A variant's change against the base, the first variant. None where it is not defined.

    logloss: mean of the variant's less the base's loss of each row; low, high: the 95 % interval of that mean;
    auc_loss_percent: the relative change of 1 - AUC, in percent.
    """

    logloss: float | None
    low: float | None
    high: float | None
    auc_loss_percent: float | None


class VariantMetrics(Record):
    """One variant's metrics; None where the rows do not define them (no click at all, or nothing but clicks).

    logloss: mean of -ln p(label), p clipped at 1e-15; auc; calibration: sum of p / sum of y; normalized_entropy:
    logloss divided by the entropy of the click rate (He et al., ADKDD 2014); mean_prediction: mean of p; difference:
    None for the base.
    """

    logloss: float | None
    auc: float | None
    calibration: float | None
    normalized_entropy: float | None
    mean_prediction: float | None
    difference: Difference | None = None

    def as_dict(self) -> dict[str, object]:
        """The metrics by name; the base has no difference."""
        return self.model_dump(exclude=set() if self.difference else {"difference"})

    def numbers(self) -> dict[str, float]:
        """The variant's own metrics that are defined: what an artefact keeps."""
        own = self.model_dump(exclude={"difference"})
        return {name: value for name, value in own.items() if value is not None}


class GroupMetrics(Record):
    """The metrics of a group of rows: how many, the sum of their weights and of the clicked ones', their variants'."""

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
    """The rows with one value of a slice, as it stands in their keys; None for all values that came after the limit."""

    value: str | None


class Bin(Record):
    """Rows of about the same prediction: sums of their weights, predictions and clicks, weighted."""

    weight: float
    predicted: float
    clicks: float


class Header(Record):
    """The first line: what was watched, and how."""

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


class Window(Record):
    """A line at the end of each window: its own figures, and those of all rows so far."""

    kind: Literal["window"] = "window"
    rows: int
    time: str | None
    window: GroupMetrics
    total: GroupMetrics


class Detail(Record):
    """A line where the rows have doubled and at the end: what is too long for each, of all rows so far."""

    kind: Literal["detail"] = "detail"
    rows: int
    reliability: dict[str, list[Bin]]
    slices: dict[str, list[SliceMetrics]]


class End(Record):
    """The last line of a run that reached the end of its inputs."""

    kind: Literal["end"] = "end"
    rows: int


Line = Annotated[Header | Window | Detail | End, Field(discriminator="kind")]


# --- The metrics file: JSON lines, appended and flushed as the run goes on. What stands in them is in
# `records.py` ---


class MetricsFile:
    """Writes lines; knows where the lines end that a resumed run keeps.

    A new file replaces an old one. `resume_at` is the `offset` of a checkpoint: the file is cut back to it, so that it
    ends up as if the run had never stopped. Raises OutputError. One thread only.
    """

    def __init__(self, path: Path, resume_at: int = 0) -> None:
        self.path = path
        self.offset = resume_at
        try:
            self._file = path.open("r+b" if resume_at else "wb")
            if resume_at:
                self._cut_back()
        except OSError as error:
            raise OutputError(f"cannot write the metrics to {path}: {error.strerror}") from error

    def write(self, line: Record, *, keep: bool = True) -> None:
        """Append a line; `keep` moves `offset` behind it. The last lines of a run are not kept when it is resumed."""
        data = line.model_dump_json().encode() + b"\n"
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            with contextlib.suppress(OSError):  # closing tries to write what is left once more
                self._file.close()
            raise OutputError(f"cannot write the metrics to {self.path}: {error.strerror}") from error
        if keep:
            self.offset += len(data)

    def sync(self) -> None:
        """Have the lines on disk, so that a checkpoint may rely on `offset`."""
        with contextlib.suppress(OSError):  # a pipe or a terminal has no disk
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._file.close()

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cut_back(self) -> None:
        size = self._file.seek(0, 2)
        if size < self.offset:
            self._file.close()
            raise OutputError(
                f"{self.path} has {size} bytes, the checkpoint knows {self.offset}: it is not the file that the run "
                "began; give the same one, or another name without --resume"
            )
        self._file.seek(self.offset)
        self._file.truncate()
