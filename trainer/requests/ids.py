"""Which request each row belongs to, as a 64-bit number."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from model_store.cells import addresses, column_text
from model_store.kernels import digest_columns
from trainer.requests.kernels import name_single_rows
from trainer.sources import RowBatch

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
