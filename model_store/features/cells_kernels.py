"""Kernels over the cells of a block of CSV or TSV without quotes: where each ends, its digest, and its bytes.

A block is a uint8 array of whole lines, with BLOCK zero bytes after them. The separators' places
are int32, `ends[0]` = -1: cell k begins at ends[k] + 1 and stops at ends[k + 1].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types

from model_store.hash_kernels import (
    digest_padded,
    hash_bytes,
    load_i32,
    load_u8,
    not_ascii_in_64,
    special_in_64,
)
from model_store.jit import bare_inline, bare_kernel, intrinsic

BLOCK = 64
"""Bytes that are looked at together."""
LF, CR = 10, 13
WRONG_ARITY = -1
_TILE = 8
"""Rows that are digested together: their digests of a column are written into one cache line."""
STRING, WHOLE, FLOAT, BOOLEAN, NOT_CANONICAL = 1, 2, 4, 8, 16
"""Kinds of a column's JSON values, a bit each; NOT_CANONICAL: a number is not written as `values.text_of` does."""

_ZERO, _ONE = np.uint64(0), np.uint64(1)
_BYTES = ir.VectorType(ir.IntType(8), BLOCK)


def _any_of(count: int) -> Any:
    """An operation: which of the 64 bytes at an address equal one of `count` bytes, a bit each."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block = builder.load(builder.inttoptr(arguments[0], _BYTES.as_pointer()))
        block.align = 1
        found = None
        for byte in arguments[1:]:
            equal = builder.icmp_unsigned("==", block, _everywhere(builder, byte))
            found = equal if found is None else builder.or_(found, equal)
        return builder.bitcast(found, ir.IntType(64))

    def typed(*arguments: Any) -> tuple[Any, Callable[..., Any]]:
        return types.uint64(types.int64, *[types.uint8] * count), codegen

    return typed


def _everywhere(builder: Any, byte: Any) -> Any:
    empty = ir.Constant(_BYTES, ir.Undefined)
    first = builder.insert_element(empty, byte, ir.IntType(32)(0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), BLOCK), [ir.IntType(32)(0)] * BLOCK)
    return builder.shuffle_vector(first, empty, zeros)


@intrinsic
def places_of_four(typing_context: Any, address: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Which of 64 bytes are a, b, c or d: a bit each, the first byte's the lowest."""
    return _any_of(4)()


@intrinsic
def places_of_five(typing_context: Any, address: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
    """Which of 64 bytes are a, b, c, d or e: a bit each, the first byte's the lowest."""
    return _any_of(5)()


@intrinsic
def lowest(typing_context: Any, bits: Any) -> Any:
    """The number of the lowest bit that is set; bits must not be 0."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(64), [ir.IntType(64), ir.IntType(1)])
        function = builder.module.declare_intrinsic("llvm.cttz", [ir.IntType(64)], kind)
        return builder.call(function, [arguments[0], ir.IntType(1)(1)])

    return types.uint64(types.uint64), codegen


class Survey(NamedTuple):
    """rows: WRONG_ARITY if a line has not `columns` cells, or the block has a quote or a carriage return.

    special: a byte must be escaped in a key; not_ascii: one is not ASCII; longest: bytes of the longest cell.
    """

    rows: int
    special: bool
    not_ascii: bool
    longest: Any


@bare_kernel
def find_cells(data: Any, size: Any, delimiter: Any, quote: Any, columns: Any, ends: Any) -> Any:
    """Find the separators of the first `size` bytes, which end with a line feed: a `Survey`, and ends int32 out.

    data: uint8 with at least BLOCK bytes after `size`, none of them a separator; quote: the delimiter again if nothing
    is quoted.
    """
    base = data.ctypes.data
    special, high, wrong = np.int64(0), np.int64(0), np.int64(0)
    count, longest, before = np.int64(0), np.int64(0), np.int64(-1)
    last = np.int64(columns)  # the number of the separator that ends this line
    ends[0] = -1
    for at in range(0, size, BLOCK):
        special |= special_in_64(base + at)
        high |= not_ascii_in_64(base + at)
        found = places_of_four(base + at, np.uint8(delimiter), np.uint8(LF), np.uint8(CR), np.uint8(quote))
        while found != _ZERO:
            end = at + np.int64(lowest(found))
            found &= found - _ONE
            count += 1
            ends[count] = end
            is_last = count == last
            last += columns if is_last else 0
            wrong |= np.int64(data[end]) ^ (LF if is_last else delimiter)
            longest = max(longest, end - before - 1)
            before = end
        if wrong != 0:
            return Survey(WRONG_ARITY, False, False, 0)
    return Survey(count // columns, special != 0, high != 0, longest)


@bare_kernel
def digest_cells(
    data: Any, offsets: Any, stride: Any, gap: Any, whole_keys: Any, numbers: Any, out: Any
) -> None:
    """Digest the texts of some columns of a block into some rows of out, uint64[n, rows]: 0 where a text is empty.

    data: an address; offsets: int64, of each column's first int32; stride, gap: of all, as in `TextPlaces`; numbers:
    int64, the columns' rows in out; whole_keys: uint8, as for `digest_columns`. After a text 7 more bytes are readable.
    """
    rows = out.shape[1]
    for first in range(0, rows, _TILE):
        after = min(first + _TILE, rows)
        for index in range(offsets.size):
            at, number = offsets[index] + stride * first, numbers[index]
            for row in range(first, after):
                start, stop = np.int64(load_i32(at)) + gap, np.int64(load_i32(at + 4))
                at += stride
                if whole_keys[index] == 1:
                    found = hash_bytes(data + start, stop - start)
                else:
                    found = digest_padded(
                        data + start, max(stop - start, 1)
                    )  # an empty text takes no other branch
                out[number, row] = found if stop > start else _ZERO


@bare_kernel
def survey_cells(
    data: Any, offsets: Any, stride: Any, gap: Any, rows: Any, special: Any, not_ascii: Any
) -> None:
    """Which columns have a byte that must be escaped, or is not ASCII: uint8[columns] out, 1 where one is.

    The others as in `digest_cells`, for all columns.
    """
    for row in range(rows):
        for column in range(offsets.size):
            place = offsets[column] + stride * row
            for at in range(np.int64(load_i32(place)) + gap, np.int64(load_i32(place + 4))):
                byte = load_u8(data + at)
                special[column] |= np.uint8(is_special(byte))
                not_ascii[column] |= np.uint8(byte >= 128)


@bare_inline
def is_special(byte: Any) -> Any:
    """Whether a byte is escaped in a key: %, * or =."""
    return byte == 37 or byte == 42 or byte == 61


@bare_kernel
def copy_column(data: Any, place: Any, stride: Any, gap: Any, offsets: Any, text: Any) -> None:
    """A column as Arrow holds it: offsets int32[rows + 1] and text uint8, both out; text has room for the column.

    data, place, stride, gap: addresses, and as in `TextPlaces`.
    """
    to = np.int64(0)
    for row in range(offsets.size - 1):
        offsets[row] = to
        for at in range(np.int64(load_i32(place)) + gap, np.int64(load_i32(place + 4))):
            text[to] = load_u8(data + at)
            to += 1
        place += stride
    offsets[offsets.size - 1] = to


@bare_kernel
def column_bytes(place: Any, stride: Any, gap: Any, rows: Any) -> Any:
    """The bytes of a column's texts together; the arguments of `copy_column`."""
    total = np.int64(0)
    for _ in range(rows):
        total += np.int64(load_i32(place + 4)) - np.int64(load_i32(place)) - gap
        place += stride
    return total


@bare_kernel
def flags_of(data: Any, offsets: Any, out: Any) -> Any:
    """The texts 0 and 1 as float64, out; False if there is another one. data, offsets: addresses, as of `addresses`."""
    stop = np.int64(load_i32(offsets))
    for index in range(out.size):
        start, stop = stop, np.int64(load_i32(offsets + 4 * (index + 1)))
        byte = load_u8(data + start)
        if stop != start + 1 or (byte != 48 and byte != 49):
            return False
        out[index] = byte - 48
    return True
