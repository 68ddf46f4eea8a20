"""What every source delivers: some rows as columns, and the rows lost on the way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trainer.rejects import Reject
from trainer.sources.positions import Position


@dataclass(frozen=True)
class RowBatch:
    """Consecutive rows of one file.

    `columns` holds the wanted columns only, all of length `rows`. From CSV and TSV they are `pa.binary()`, the raw
    bytes as they stand, an empty cell being b"". From other formats they are string, binary, int64, double, bool,
    null, lists of these, or maps from text to double. `lines` is int64[rows]: the 1-based physical line on which each
    row begins in its file (the header of a CSV file is line 1); for Parquet the 1-based row number. `rejects` are the
    rows of this stretch of the file that could not be read, in order. A batch may be all rejects. `stop` is where
    reading goes on behind it; `start`, set by the LogReader, where it began.

    Told by `trainer.requests.whole`, where requests are sampled: `first_row`, how many rows of the stream come before;
    `clicked`, bool[rows], whether each row's request has a click; not `resumable`: the next batch begins inside a
    request whose first rows stand here, so a later run may not begin there.
    """

    columns: dict[str, pa.Array]
    lines: npt.NDArray[np.int64]
    file: str
    rejects: tuple[Reject, ...]
    rows: int
    stop: Position
    start: Position | None = None
    first_row: int = 0
    clicked: npt.NDArray[np.bool_] | None = None
    resumable: bool = True

    def from_line(self, line: int) -> RowBatch:
        """The part of the batch that begins with this line: its rows and its rejects."""
        first = int(np.searchsorted(self.lines, line))
        return RowBatch(
            columns={name: column.slice(first) for name, column in self.columns.items()},
            lines=self.lines[first:],
            file=self.file,
            rejects=tuple(reject for reject in self.rejects if reject.line >= line),
            rows=self.rows - first,
            stop=self.stop,
        )
