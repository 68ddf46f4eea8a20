"""Kernels of sparse text: what lines are read into, how a piece of a line is read, and columns from tokens.

A token is one feature of a row: its column's number, the bytes of its name, its value, and the number of its
namespace's scale. A grammar (`sparse_lines_kernels`) reads a line piece by piece; each piece returns the offset after
it, or FAILED with the fault in `Output.counts`.

Of a number that `read_number` calls LONG only the form is checked; Python converts it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types

from model_store.hash_kernels import digest, load_u8
from model_store.jit import bare_inline, bare_kernel, intrinsic
from trainer.formats.numbers_kernels import NINE, ZERO

SPACE, TAB, CR, LF, NUL = 32, 9, 13, 10, 0
GOOD_TEXT = -1


@bare_inline
def is_blank(byte: Any) -> Any:
    """True for a byte that separates words, including the carriage return before a line feed."""
    return byte in (SPACE, TAB, CR)


@bare_inline
def skip_blanks(data: Any, at: Any, stop: Any) -> Any:
    """The first offset from `at` that is not blank, or `stop`."""
    while at < stop and is_blank(load_u8(data + at)):
        at += 1
    return at


@bare_inline
def skip_word(data: Any, at: Any, stop: Any) -> Any:
    """The first blank from `at`, or `stop`."""
    while at < stop and not is_blank(load_u8(data + at)):
        at += 1
    return at


@bare_inline
def skip_digits(data: Any, at: Any, stop: Any) -> Any:
    """The first offset from `at` without a digit."""
    while at < stop and ZERO <= load_u8(data + at) <= NINE:
        at += 1
    return at


@bare_inline
def skip_zeros(data: Any, start: Any, stop: Any) -> Any:
    """The offset after leading zeros, so that an index has one spelling; the last digit is kept."""
    while start + 1 < stop and load_u8(data + start) == ZERO:
        start += 1
    return start


@bare_inline
def first_fault(data: Any, start: Any, stop: Any) -> Any:
    """The offset of the first NUL or byte that is not UTF-8 (RFC 3629); GOOD_TEXT if there is neither."""
    at = start
    while at < stop:
        byte = load_u8(data + at)
        if byte == NUL:
            return at
        size = _sequence(byte)
        if size == 0 or at + size > stop:
            return at
        for follower in range(at + 1, at + size):
            if load_u8(data + follower) & 0xC0 != 0x80:
                return at
        if size > 2 and not _is_second(byte, load_u8(data + at + 1)):
            return at
        at += size
    return np.int64(GOOD_TEXT)


@bare_inline
def _sequence(first: Any) -> Any:
    """The length in bytes of a character that begins with this byte; 0 for an invalid first byte."""
    if first < 0x80:
        return 1
    if 0xC2 <= first <= 0xDF:
        return 2
    if 0xE0 <= first <= 0xEF:
        return 3
    return 4 if 0xF0 <= first <= 0xF4 else 0


@bare_inline
def _is_second(first: Any, second: Any) -> Any:
    """False for an overlong form, half of a surrogate pair, or a code point beyond U+10FFFF."""
    if first == 0xE0:
        return second >= 0xA0
    if first == 0xED:
        return second <= 0x9F
    if first == 0xF0:
        return second >= 0x90
    return first != 0xF4 or second <= 0x8F


NO_SCALE = 0  # the number of the scale 1
UNWANTED, UNKNOWN = -1, -2
VALUE_OF, SCALE_OF, IMPORTANCE_OF = 0, 1, 2  # what a LONG number is
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

# Indices of `counts`: totals so far; then of the current line: the last name, and its fault; then whether any word is a
# label.
ROWS, TOKENS, SCALES, LONGS, NEWS, FAULTS, LINES, NAME, FAULT, FAULT_START, FAULT_STOP, ANY_LABEL = range(12)
COUNTS = ANY_LABEL + 1


class Names(NamedTuple):
    """The names of columns as written in the text: uint8 text, int64[n + 1] starts.

    column: int32[n], each name's column number, or UNWANTED; table: int32[2^k], an open-addressing table of names + 1,
    0 where free; follows: int32[n + 1], the name last seen after each one; its last element: at the start of a line.
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
    """line int64[r], from 0; end int64[r], of its tokens; label int64[r]; importance float64[r], NaN where absent.

    tag int32[r, 2], from and to: the tag, or the query's id; equal where absent. word int32[r, 2]: the label's text,
    with ANY_LABEL, and `label` is not set then.
    """

    line: Any
    end: Any
    label: Any
    importance: Any
    tag: Any
    word: Any


class Notes(NamedTuple):
    """faults int64[f, 4]: line, fault, from, to. longs int64[l, 4]: what the LONG number is, index, from, to.

    news int64[n, 3]: line, from, to of names that are not in `Names`; names beyond its length are not noted.
    """

    faults: Any
    longs: Any
    news: Any


class Output(NamedTuple):
    """What lines are read into. counts: int64[COUNTS], all 0 before but ANY_LABEL.

    Invariant between two lines: all counted tokens, scales, longs and news belong to the rows so far.
    """

    names: Names
    tokens: Tokens
    rows: Rows
    notes: Notes
    counts: Any


@bare_inline
def fail(out: Any, what: Any, start: Any, stop: Any) -> Any:
    """Note the fault of this line and the bytes at fault; return FAILED."""
    out.counts[FAULT], out.counts[FAULT_START], out.counts[FAULT_STOP] = what, start, stop
    return np.int64(FAILED)


@bare_inline
def put_token(out: Any, column: Any, start: Any, stop: Any, value: Any, scale: Any) -> None:
    """Add a token to the current row."""
    token = out.counts[TOKENS]
    out.tokens.column[token] = column
    out.tokens.start[token], out.tokens.stop[token] = start, stop
    out.tokens.value[token], out.tokens.scale[token] = value, scale
    out.counts[TOKENS] = token + 1


@bare_inline
def note_long(out: Any, what: Any, index: Any, start: Any, stop: Any) -> None:
    """Note a LONG number, which Python converts."""
    long = out.counts[LONGS]
    out.notes.longs[long, 0], out.notes.longs[long, 1] = what, index
    out.notes.longs[long, 2], out.notes.longs[long, 3] = start, stop
    out.counts[LONGS] = long + 1


@bare_inline
def column_of(data: Any, start: Any, stop: Any, out: Any) -> Any:
    """The column of the name from `start` to `stop`; an unknown name is noted, and UNWANTED.

    Lines mostly name their namespaces in one order, so the name that last followed the previous one is tried first.
    """
    names, before = out.names, out.counts[NAME]
    previous = before if before >= 0 else names.follows.size - 1
    name = np.int64(names.follows[previous])
    if name < 0 or not _is_name(data, start, stop, names, name):
        name = _lookup(data, start, stop, names)
        names.follows[previous] = name
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
def _lookup(data: Any, start: Any, stop: Any, names: Any) -> Any:
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


AT_ONCE = 16  # bytes; most texts are shorter and are copied without a loop


@bare_kernel
def measure_columns(tokens: Any, size: Any, members: Any) -> Any:
    """Count each column's members, int64[columns], over the first `size` tokens; return the bytes of the longest."""
    longest = np.int64(0)
    for token in range(size):
        members[tokens.column[token]] += 1
        longest = max(longest, np.int64(tokens.stop[token] - tokens.start[token]))
    return longest


@bare_kernel
def fill_columns(tokens: Any, ends: Any, member_from: Any, starts: Any, spans: Any, x: Any) -> None:
    """Put the tokens, ordered by row, into columns; a token's x is its value times its scale.

    ends: int64[rows], the tokens before each row's end. Column c has its members' x (float64) and where their texts
    start and stop (spans int32[members, 2]) from member_from[c] on; and in starts[c] (int32[rows + 1]) its members
    before each row.
    Invariant: starts[c, row + 1] is the number of members that column c has so far.
    """
    columns, token = starts.shape[0], 0
    for each in range(columns):
        starts[each, 0] = 0
    for row in range(ends.size):
        for each in range(columns):
            starts[each, row + 1] = starts[each, row]
        while token < ends[row]:
            column = np.int64(tokens.column[token])
            member = member_from[column] + starts[column, row + 1]
            spans[member, 0], spans[member, 1] = tokens.start[token], tokens.stop[token]
            x[member] = tokens.value[token] * tokens.scales[tokens.scale[token]]
            starts[column, row + 1] += 1
            token += 1


@bare_kernel
def gather(data: Any, spans: Any, offsets: Any, text: Any) -> None:
    """Copy the bytes from spans[i, 0] to spans[i, 1] end to end into text (uint8), and their int32 offsets.

    text has AT_ONCE spare bytes after the texts.
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
    """Copy `size` bytes; up to AT_ONCE bytes after them in text are overwritten."""
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
