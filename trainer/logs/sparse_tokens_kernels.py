"""What lines are read into, and the small kernels by which a grammar writes it.

A token is a feature of a row: the number of its column, the bytes of its name, its value, and the number of the scale
that its namespace has. A grammar reads a line piece by piece; each piece returns the place behind it, or FAILED, with
what is wrong in `Counts`. Nothing here knows what a line looks like.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types

from model_store.hash_kernels import digest, load_u8
from model_store.jit import bare_inline, bare_kernel, intrinsic

NO_SCALE = 0  # the number of the scale 1
UNWANTED, UNKNOWN = -1, -2
VALUE_OF, SCALE_OF, IMPORTANCE_OF = 0, 1, 2  # where a long number belongs
FAILED = -1
(
    GOOD,
    BLANK,
    NO_LABEL,
    BAD_LABEL,
    NO_BAR,
    EXTRA_WORDS,
    BAD_NUMBER,
    BAD_BASE,
    NO_NAME,
    BAD_FEATURE,
    BAD_TEXT,
) = range(11)

# The places in `counts`: how many there are so far; then of the present line: the last name, and what is wrong with it.
ROWS, TOKENS, SCALES, LONGS, NEWS, FAULTS, LINES, NAME, FAULT, FAULT_START, FAULT_STOP, COUNTS = range(12)


class Names(NamedTuple):
    """The names of columns as they stand in the text: uint8 text, int64[n + 1] starts.

    column: int32[n], the number of each one's column, or UNWANTED; table: int32[2^k], an open-addressing table of
    names + 1, 0 where free; follows: int32[n + 1], the name last seen after each (after a line's begin: the last).
    """

    text: Any
    starts: Any
    column: Any
    table: Any
    follows: Any


class Tokens(NamedTuple):
    """column, start, stop int32[t]; value float64[t]; scale int32[t] into scales float64[s], whose first is 1."""

    column: Any
    start: Any
    stop: Any
    value: Any
    scale: Any
    scales: Any


class Rows(NamedTuple):
    """line int64[r], from 0; end int64[r], of its tokens; label int64[r]; importance float64[r], NaN where it has none.

    tag int32[r, 2], from and to: the tag, or the query's id; equal where there is none.
    """

    line: Any
    end: Any
    label: Any
    importance: Any
    tag: Any


class Notes(NamedTuple):
    """faults int64[f, 4]: line, what, from, to. longs int64[l, 4]: where a long number belongs, index, from, to.

    news int64[n, 3]: line, from, to of names that `Names` does not hold; those that find no room are not noted.
    """

    faults: Any
    longs: Any
    news: Any


class Output(NamedTuple):
    """All of it. counts: int64[COUNTS].

    Invariant between two lines: the rows so far have all tokens, scales, longs and news that are counted.
    """

    names: Names
    tokens: Tokens
    rows: Rows
    notes: Notes
    counts: Any


@bare_inline
def fail(out: Any, what: Any, start: Any, stop: Any) -> Any:
    """Say what is wrong with this line, and with which of its bytes; return FAILED."""
    out.counts[FAULT], out.counts[FAULT_START], out.counts[FAULT_STOP] = what, start, stop
    return np.int64(FAILED)


@bare_inline
def put_token(out: Any, column: Any, start: Any, stop: Any, value: Any, scale: Any) -> None:
    """Add a token to the present row."""
    token = out.counts[TOKENS]
    out.tokens.column[token] = column
    out.tokens.start[token], out.tokens.stop[token] = start, stop
    out.tokens.value[token], out.tokens.scale[token] = value, scale
    out.counts[TOKENS] = token + 1


@bare_inline
def note_long(out: Any, what: Any, index: Any, start: Any, stop: Any) -> None:
    """Leave a number to be converted elsewhere."""
    long = out.counts[LONGS]
    out.notes.longs[long, 0], out.notes.longs[long, 1] = what, index
    out.notes.longs[long, 2], out.notes.longs[long, 3] = start, stop
    out.counts[LONGS] = long + 1


@bare_inline
def column_of(data: Any, start: Any, stop: Any, out: Any) -> Any:
    """The column of the name from `start` to `stop`; UNWANTED for a name not known, of which a note is left.

    Lines name their namespaces in one order, mostly, so what followed the name before last time is tried first.
    """
    names, before = out.names, out.counts[NAME]
    place = before if before >= 0 else names.follows.size - 1
    name = np.int64(names.follows[place])
    if name < 0 or not _is_name(data, start, stop, names, name):
        name = _look_up(data, start, stop, names)
        names.follows[place] = name
    out.counts[NAME] = name
    if name >= 0:
        return np.int64(names.column[name])
    new = out.counts[NEWS]
    if new < out.notes.news.shape[0]:
        out.notes.news[new, 0] = out.counts[LINES]
        out.notes.news[new, 1], out.notes.news[new, 2] = start, stop
        out.counts[NEWS] = new + 1
    return np.int64(UNWANTED)


@bare_inline
def _look_up(data: Any, start: Any, stop: Any, names: Any) -> Any:
    mask = np.uint64(names.table.size - 1)
    slot = digest(data + start, stop - start) & mask
    while names.table[slot] != 0:
        name = np.int64(names.table[slot]) - 1
        if _is_name(data, start, stop, names, name):
            return name
        slot = (slot + np.uint64(1)) & mask
    return np.int64(UNKNOWN)


@bare_inline
def _is_name(data: Any, start: Any, stop: Any, names: Any, name: Any) -> Any:
    first = names.starts[name]
    if names.starts[name + 1] - first != stop - start:
        return False
    for i in range(stop - start):
        if load_u8(data + start + i) != names.text[first + i]:
            return False
    return True


@bare_kernel
def enter_names(names: Any) -> None:
    """Fill the empty table of the names."""
    mask = np.uint64(names.table.size - 1)
    for name in range(names.column.size):
        start, stop = names.starts[name], names.starts[name + 1]
        slot = digest(names.text.ctypes.data + start, stop - start) & mask
        while names.table[slot] != 0:
            slot = (slot + np.uint64(1)) & mask
        names.table[slot] = name + 1


# --- Kernels that put tokens, which stand row by row, into buffers that stand column by column ---


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
