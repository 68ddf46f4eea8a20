"""Small operations on blocks of bytes and on Arrow columns that more than one format needs."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from trainer.sources.streams import Bytes

_STEP = 64 * 1024


def up_to_last_line_end(data: Bytes) -> Bytes:
    """The front of `data` that ends with its last line feed; empty if there is none."""
    for stop in range(len(data), 0, -_STEP):
        start = max(stop - _STEP, 0)
        found = np.flatnonzero(data[start:stop] == ord("\n"))
        if found.size:
            return data[: start + int(found[-1]) + 1]
    return data[:0]


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """The chunks of a column as one array."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
