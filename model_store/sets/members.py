"""From a column of lists or maps to the members of every row: the rules of `values.set_members` for whole columns."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.cells import addresses, plain, real_column, text_column
from model_store.sets import kernels
from model_store.values import LARGEST_REAL, not_real

_ALL_ONE = np.empty(0)
_READY = pa.map_(pa.binary(), pa.float64())


class Members(NamedTuple):
    """text: binary array, not empty; starts: int32[rows + 1] into it; x: float64 like text, or None where all are 1.

    bad: (row, reason) where a member's x is no number that may become one, or repeats add up to none.
    """

    text: Any
    starts: npt.NDArray[np.int32]
    x: npt.NDArray[np.float64] | None
    bad: list[tuple[int, str]]


def is_list(kind: pa.DataType) -> bool:
    """True for the types of Arrow columns that hold several values a row."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind))


def members_of(array: Any) -> Members:
    """The distinct members of each list or map of a column. Raises pa.ArrowInvalid for maps to anything but numbers.

    A map is a weighted set; the x's of a member that it repeats are added, from left to right.
    """
    if not pa.types.is_map(array.type):
        return _distinct(text_column(plain(array.flatten())), _starts(array), _ALL_ONE, [])
    kind = array.type
    if kind == _READY and not array.null_count and not array.items.null_count:
        starts = array.offsets.to_numpy()
        part = slice(starts[0], starts[-1])
        keys, x, starts = array.keys[part], array.items.to_numpy()[part], starts - starts[0]
        if kernels.are_real(x, LARGEST_REAL):
            return _distinct(keys, starts, x, [])
    if not (pa.types.is_integer(kind.item_type) or pa.types.is_floating(kind.item_type)):
        raise pa.ArrowInvalid(f"a map to {kind.item_type}, expected one to numbers")
    lists = array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
    keys, items = lists.flatten().flatten()
    starts = _starts(lists)
    x, bad_members = real_column(items)
    x[np.isnan(x)] = 0.0  # a null is as good as absent, and so is 0; a bad one costs the row
    bad = [(int(np.searchsorted(starts, place, "right")) - 1, reason) for place, reason in bad_members]
    return _distinct(text_column(plain(keys)), starts, x, bad)


def _distinct(
    text: Any, starts: npt.NDArray[np.int32], x: npt.NDArray[np.float64], bad: list[tuple[int, str]]
) -> Members:
    data, offsets = addresses([text])
    longest, all_one, some_absent = kernels.survey_members(offsets[0], starts, x)
    if longest <= 1 and not some_absent:
        return Members(text, starts, None if all_one else x, bad)
    digests, table = np.empty(longest, np.uint64), np.zeros(1 << (2 * longest + 1).bit_length(), np.int32)
    kept, kept_x = np.empty(len(text), np.int32), np.empty(x.size)
    kept_starts = np.empty(starts.size, np.int32)
    count = kernels.merge_repeats(data[0], offsets[0], starts, x, digests, table, kept, kept_x, kept_starts)
    if count == len(text):
        return Members(text, starts, None if all_one else x, bad)
    text = text.take(pa.array(kept[:count]))
    x = kept_x[:count]
    for place in np.flatnonzero(np.abs(x) > LARGEST_REAL).tolist() if x.size else ():
        bad.append((int(np.searchsorted(kept_starts, place, "right")) - 1, not_real(float(x[place]))))
    return Members(text, kept_starts, x if x.size and not (x == 1.0).all() else None, bad)


def _starts(lists: Any) -> npt.NDArray[np.int32]:
    """Where each row's members begin among those of `lists.flatten()`, which passes over what null rows hold."""
    if not lists.null_count and pa.types.is_list(lists.type):
        offsets: npt.NDArray[np.int32] = lists.offsets.to_numpy()
        from_0: npt.NDArray[np.int32] = offsets - offsets[0]
        return from_0
    lengths = pa.compute.list_value_length(lists).fill_null(0).to_numpy()
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
