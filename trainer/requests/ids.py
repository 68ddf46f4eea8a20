"""Which request each row belongs to, as a 64-bit number, and which requests' rows do not stand together."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from model_store.cells import addresses, column_text
from model_store.kernels import digest_columns
from trainer.requests.kernels import name_single_rows
from trainer.sources import RowBatch

_REMEMBERED = 1 << 18
"""Places for ids of requests that have begun, 8 bytes each; a later id takes the place of an earlier one."""
_NOT_RAW = np.zeros(1, np.uint8)

Ids = npt.NDArray[np.uint64]


def request_ids(batch: RowBatch, column: str | None) -> Ids:
    """A hash of every row's request id: uint64[rows]. A row without one is a request of its own."""
    if column is None or not batch.rows:
        ids = np.zeros(batch.rows, np.uint64)
    else:
        text = column_text(batch.columns[column])
        ids = np.empty(batch.rows, np.uint64)
        digest_columns(*addresses([text]), batch.rows, _NOT_RAW, ids.reshape(1, -1))
    name_single_rows(ids, batch.first_row)
    return ids


class Runs:
    """Counts runs of rows with one id in one file. Memory: 2 MiB.

    resumed: runs whose id another run had before, as far as ids are remembered: a request's rows do not stand together.
    """

    def __init__(self) -> None:
        self.resumed = 0
        self._begun = np.zeros(_REMEMBERED, np.uint64)
        self._last = (0, -1)

    def add(self, ids: Ids, file: int) -> int:
        """Take the next rows, of the log's file of this number; returns how many runs begin. O(runs log runs)."""
        if not ids.size:
            return 0
        begins = np.concatenate([[(int(ids[0]), file) != self._last], ids[1:] != ids[:-1]])
        self._last = (int(ids[-1]), file)
        begun = ids[begins]
        distinct = np.unique(begun)
        places = (distinct % np.uint64(_REMEMBERED)).astype(np.int64)
        self.resumed += int(begun.size - distinct.size + np.count_nonzero(self._begun[places] == distinct))
        self._begun[places] = distinct
        return int(begun.size)
