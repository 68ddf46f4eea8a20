"""Kernels that put tokens, which stand row by row, into buffers that stand column by column."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from model_store.jit import bare_inline, bare_kernel, intrinsic

AT_ONCE = 16  # bytes; texts are mostly shorter, and are copied without a loop


@bare_kernel
def measure_columns(tokens: Any, size: Any, members: Any, text_bytes: Any) -> None:
    """Add up each column's members and the bytes of their texts, int64[columns], over the first `size` tokens."""
    for token in range(size):
        column = tokens.column[token]
        members[column] += 1
        text_bytes[column] += tokens.stop[token] - tokens.start[token]


@bare_kernel
def fill_columns(
    data: Any,
    tokens: Any,
    ends: Any,
    member_from: Any,
    byte_from: Any,
    starts: Any,
    offsets: Any,
    text: Any,
    x: Any,
) -> None:
    """Copy the tokens of every row to their columns; a token's x is its value times its scale.

    ends: int64[rows], the tokens before each row's end. Column c gets its members from member_from[c] on in x
    (float64); their int32 offsets, one more than members, from member_from[c] + c on in offsets, counted from its
    first byte, which is byte_from[c] of text (uint8), where AT_ONCE bytes are to spare behind each column; and in
    starts[c] (int32[rows + 1]) its members before each row.
    Invariant: starts[c, row + 1] is the number of members that column c has so far.
    """
    columns, token = starts.shape[0], 0
    for each in range(columns):
        starts[each, 0] = 0
        offsets[member_from[each] + each] = 0
    for row in range(ends.size):
        for each in range(columns):
            starts[each, row + 1] = starts[each, row]
        while token < ends[row]:
            column = np.int64(tokens.column[token])
            member = member_from[column] + starts[column, row + 1]
            begin, size = np.int64(offsets[member + column]), tokens.stop[token] - tokens.start[token]
            _copy(data, tokens.start[token], text, byte_from[column] + begin, size)
            offsets[member + column + 1] = begin + size
            x[member] = tokens.value[token] * tokens.scales[tokens.scale[token]]
            starts[column, row + 1] += 1
            token += 1


@bare_kernel
def gather(data: Any, spans: Any, offsets: Any, text: Any) -> None:
    """Copy the bytes from spans[i, 0] to spans[i, 1] end to end into text (uint8), and their int32 offsets.

    Behind the texts, text has AT_ONCE bytes to spare.
    """
    at = np.int64(0)
    offsets[0] = 0
    for index in range(spans.shape[0]):
        size = spans[index, 1] - spans[index, 0]
        _copy(data, spans[index, 0], text, at, size)
        at += size
        offsets[index + 1] = at


@bare_inline
def _copy(data: Any, start: Any, text: Any, at: Any, size: Any) -> None:
    """Copy `size` bytes; what stands in text behind them, up to AT_ONCE bytes, is overwritten."""
    stop = start + size
    source, target = data.ctypes.data, text.ctypes.data
    while start < stop and start + AT_ONCE <= data.size:
        _copy_at_once(source + start, target + at)
        start += AT_ONCE
        at += AT_ONCE
    while start < stop:
        text[at] = data[start]
        start += 1
        at += 1


@intrinsic
def _copy_at_once(typing_context: Any, source: Any, target: Any) -> Any:
    """Copy AT_ONCE bytes from one address to another."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = ir.VectorType(ir.IntType(8), AT_ONCE).as_pointer()
        block = builder.load(builder.inttoptr(arguments[0], pointer))
        block.align = 1
        builder.store(block, builder.inttoptr(arguments[1], pointer)).align = 1
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), codegen
