"""The few forms in which columns of joined rows come, whatever blocks they were read in, and tables put together.

A value has one form for all that learning can see: where a column's type differs from block to block, because a text
stands among numbers or lists among maps, both types give the same keys and numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model_store.cells import addresses, number_column, plain, text_column
from model_store.kernels import digest_columns
from trainer.events.wanted import Form

TEXT, SET, MAP = pa.binary(), pa.list_(pa.binary()), pa.map_(pa.binary(), pa.float64())


def shaped(array: pa.Array, form: Form) -> pa.Array:
    """An array of a plain kind (`trainer.sources.plain`) as the form's type, as `wanted.Column` has it."""
    if form == "number":
        return _numbers(array)
    return _sets(array) if form == "set" else text_column(plain(array))


def nullable_text(array: pa.Array) -> pa.Array:
    """Canonical texts, null where the value is."""
    text = text_column(plain(array))
    return pc.if_else(array.is_valid(), text, pa.scalar(None, TEXT)) if array.null_count else text


def digests(text: pa.Array) -> npt.NDArray[np.uint64]:
    """64-bit hashes of texts, 0 of "" and of null alone."""
    out = np.zeros((1, len(text)), np.uint64)
    text = text.fill_null(b"") if text.null_count else text
    if len(text):
        digest_columns(*addresses([text]), len(text), np.zeros(1, np.uint8), out)
    hashes: npt.NDArray[np.uint64] = out[0]
    return hashes


def together(tables: Sequence[Mapping[str, pa.Array]]) -> Mapping[str, pa.Array]:
    """The rows of all, one after the other; a column's type is one that all its values fit."""
    if len(tables) == 1:
        return tables[0]
    return {name: _one([table[name] for table in tables]) for name in (tables[0] if tables else ())}


def _one(arrays: Sequence[pa.Array]) -> pa.Array:
    kinds = {array.type for array in arrays if array.null_count < len(array)} or {arrays[0].type}
    if len(kinds) == 1:
        kind = kinds.pop()
        return pa.concat_arrays([a if a.type == kind else pa.nulls(len(a), kind) for a in arrays])
    return pa.concat_arrays([_as_text(array) for array in arrays])


def _numbers(array: pa.Array) -> pa.Array:
    array = plain(array)
    numbers, bad = number_column(array)
    if bad:
        return text_column(array)
    return pa.array(numbers + 0.0, mask=np.isnan(numbers))  # + 0.0: -0.0 and 0.0 are one number


def _sets(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_null(kind):
        return pa.nulls(len(array), SET)
    if pa.types.is_list(kind):
        return _listed(array, text_column(plain(array.flatten())))
    return array.cast(MAP) if pa.types.is_map(kind) else text_column(plain(array))


def _listed(lists: pa.Array, members: pa.Array) -> pa.Array:
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    mask = lists.is_null() if lists.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets), members, mask=mask)


def _as_text(array: pa.Array) -> pa.Array:
    """Of any form's type: lists and maps as JSON, from which a field of kind "set" reads the same members."""
    if pa.types.is_binary(array.type):
        return array.fill_null(b"")
    if not (pa.types.is_list(array.type) or pa.types.is_map(array.type)):
        return text_column(array)
    return pa.array([b"" if value is None else _json(value) for value in array.to_pylist()], TEXT)


def _json(value: Sequence[Any]) -> bytes:
    if value and isinstance(value[0], tuple):
        return json.dumps({member.decode(): x for member, x in value}).encode()
    return json.dumps([member.decode() for member in value]).encode()
