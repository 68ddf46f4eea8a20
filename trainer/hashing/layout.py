"""The tokens of a batch, laid out as kernels take them: first the fields with one place a row, then the lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.cells import addresses
from model_store.columns import TokenColumn
from model_store.kernels import digest_columns
from trainer.hashing import kernels
from trainer.hashing.kernels import TokenLayout

_NO_NUMBERS = np.empty(0)


def lay_out(columns: Sequence[TokenColumn], rows: int, raw: Any, crosses: Any, owner: Any) -> TokenLayout:
    """Digest every token of a batch. raw: uint8[fields], see `KeyRules`; crosses and owner as in `TokenLayout`."""
    dense = [i for i, column in enumerate(columns) if column.starts is None]
    lists = [i for i, column in enumerate(columns) if column.starts is not None]
    sizes = [len(column.text) for column in columns]
    base, list_of = np.zeros(len(columns), np.int64), np.full(len(columns), -1, np.int64)
    digests = np.empty(sum(sizes), np.uint64)
    _digest(dense, columns, raw, digests[: len(dense) * rows].reshape(len(dense), rows))
    for place, index in enumerate(dense):
        base[index] = place * rows
    at = len(dense) * rows
    for place, index in enumerate(lists):
        base[index], list_of[index] = at, place
        _digest([index], columns, raw, digests[at : at + sizes[index]].reshape(1, -1))
        at += sizes[index]
    starts = np.zeros((max(len(lists), 1), rows + 1), np.int32)
    for place, index in enumerate(lists):
        starts[place] = _starts_of(columns[index])
    values = _values(columns, base, digests)
    return TokenLayout(digests, values, base, list_of, starts, crosses, owner)


def _digest(chosen: Sequence[int], columns: Sequence[TokenColumn], raw: Any, out: Any) -> None:
    if chosen and out.shape[1]:
        data, offsets = addresses([columns[index].text for index in chosen])
        digest_columns(data, offsets, out.shape[1], raw[list(chosen)], out)


def _values(columns: Sequence[TokenColumn], base: Any, digests: Any) -> npt.NDArray[np.float64]:
    """The x of every token where some field has one; a real number's text is empty, but it is there."""
    if all(column.x is None for column in columns):
        return _NO_NUMBERS
    values = np.ones(digests.size)
    empty = np.uint64(kernels.digest_of_nothing())
    for index, column in enumerate(columns):
        if column.x is not None:
            part = slice(int(base[index]), int(base[index]) + column.x.size)
            if column.starts is not None:
                values[part] = column.x
                continue
            absent = np.isnan(column.x)
            values[part] = np.where(absent, 0.0, column.x)
            digests[part] = np.where(absent, np.uint64(0), empty)
    return values


def _starts_of(column: TokenColumn) -> npt.NDArray[np.int32]:
    assert column.starts is not None
    return column.starts
