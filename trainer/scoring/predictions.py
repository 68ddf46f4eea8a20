"""The file of predictions that `ftrie evaluate --predictions` writes: a line a row, in the log's order."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv

from model_store.errors import OutputError

if TYPE_CHECKING:
    from trainer.scoring.evaluation import ScoredExamples

SCHEMA = pa.schema(
    [
        pa.field("file", pa.utf8()),
        pa.field("line", pa.int64()),
        pa.field("label", pa.int64()),
        pa.field("score", pa.float64()),
        pa.field("ctr", pa.float64()),
        pa.field("uncertainty", pa.float64()),
    ]
)


class PredictionFile:
    """CSV of one variant's predictions. The name appears when all of it is written; an error leaves what was there."""

    def __init__(self, path: Path, variant: int) -> None:
        """Raises OutputError."""
        self._path, self._variant = path, variant
        self._beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            self._writer = csv.CSVWriter(self._beside, SCHEMA)
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror or error}") from error

    def add(self, examples: ScoredExamples) -> None:
        """Write a batch's rows. Raises OutputError."""
        scores, rows = examples.scores, len(examples.lines)
        numbers = (each[:, self._variant] for each in (scores.score, scores.ctr, scores.uncertainty))
        columns = [
            pa.array([examples.file] * rows, pa.utf8()),
            pa.array(examples.lines.astype(np.int64)),
            pa.array(examples.hashed.labels.astype(np.int64)),
            *(pa.array(each, from_pandas=True) for each in numbers),
        ]
        try:
            self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
        except OSError as error:
            raise OutputError(f"cannot write {self._path}: {error.strerror or error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._writer.close()
            if kind is None:
                self._beside.replace(self._path)
        except OSError as failed:
            raise OutputError(f"cannot write {self._path}: {failed.strerror or failed}") from failed
        finally:
            self._beside.unlink(missing_ok=True)
