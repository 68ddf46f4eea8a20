"""Kernels over a block of CSV or TSV: its rows, where each cell ends, its digest, and its bytes.

A block is a uint8 array of whole lines, with at least BLOCK more bytes after them. Of a block without quotes, the
separators' places are int32, `ends[0]` = -1: cell k begins at ends[k] + 1 and stops at ends[k + 1].

`find_rows` takes any block. Line ends are LF, CR LF and a lone CR. Quotes are read as by Arrow's CSV parser: a quote
opens only at the start of a cell, a doubled quote is a quote, and text after the closing quote belongs to the cell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types

from model_store.features.values_kernels import is_spelling
from model_store.hash_kernels import (
    IS_DIGEST,
    digest,
    digest_eight,
    digest_padded,
    hash_bytes,
    load_i32,
    load_u8,
    load_u64,
    not_ascii_in_64,
    special_in_64,
)
from model_store.jit import bare_inline, bare_kernel, inline, intrinsic, kernel

BLOCK = 64
"""Bytes that are looked at together."""
LF, CR = 10, 13
WRONG_ARITY = -1
SPARE = 8
"""Places that are written at once, so that up to seven may be written after the last."""
STRING, WHOLE, FLOAT, BOOLEAN, NOT_CANONICAL, ESCAPED, LONG, LIST = 1, 2, 4, 8, 16, 32, 64, 128
"""Kinds of JSON values, a bit each, and more that is known of them. NOT_CANONICAL: a number is not written as
`values.text_of` does; ESCAPED: a string has backslashes; LONG: a whole number may not fit an int64."""

_ZERO, _ONE, _ALL = np.uint64(0), np.uint64(1), np.uint64(0xFFFFFFFFFFFFFFFF)
_LAST = np.uint64(BLOCK - 1)
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
def places_of_one(typing_context: Any, address: Any, a: Any) -> Any:
    """Which of 64 bytes are a: a bit each, the first byte's the lowest."""
    return _any_of(1)()


@intrinsic
def places_of_two(typing_context: Any, address: Any, a: Any, b: Any) -> Any:
    """Which of 64 bytes are a or b: a bit each, the first byte's the lowest."""
    return _any_of(2)()


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
    """The number of the lowest bit that is set; 64 if there is none."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(64), [ir.IntType(64), ir.IntType(1)])
        function = builder.module.declare_intrinsic("llvm.cttz", [ir.IntType(64)], kind)
        return builder.call(function, [arguments[0], ir.IntType(1)(0)])

    return types.uint64(types.uint64), codegen


@intrinsic
def count_bits(typing_context: Any, bits: Any) -> Any:
    """How many bits are set."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.call(builder.module.declare_intrinsic("llvm.ctpop", [ir.IntType(64)]), arguments)

    return types.int64(types.uint64), codegen


@bare_inline
def begins_spelling(address: Any, delimiter: Any) -> Any:
    """Whether the cell at an address is -0, or has the first two bytes and the length of True or False."""
    first, second = load_u8(address), load_u8(address + 1) | 32
    if first == 45:
        size = 2 if second == 48 else 0
    elif first == 84:
        size = 4 if second == 114 else 0
    else:
        size = 5 if second == 97 else 0
    after = load_u8(address + size)
    return size > 0 and after in (delimiter, LF)


class Survey(NamedTuple):
    """rows: WRONG_ARITY if a line has not `columns` cells, or the block has a quote or a carriage return.

    special: a byte must be escaped in a key; not_ascii: one is not ASCII; longest: bytes of the longest cell.
    """

    rows: Any
    special: bool
    not_ascii: bool
    longest: Any


@bare_kernel
def find_cells(
    data: Any, size: Any, delimiter: Any, quote: Any, columns: Any, ends: Any, spelled: Any
) -> Any:
    """Find the separators of the first `size` bytes, which end with a line feed: a `Survey`, and ends int32 out.

    data: uint8 with at least BLOCK bytes after `size`; quote: CR again if nothing is quoted; ends: with room for SPARE
    places after those of the separators; spelled: uint8[columns] out, 1 where `values.category_text` may change a text.
    """
    base = data.ctypes.data
    after_cell, after_point, in_zeros = _ONE, _ZERO, _ZERO
    special, high, wrong = _ZERO, _ZERO, _ZERO
    count, rows = np.int64(0), np.int64(0)
    ends[0] = -1
    for at in range(0, size, BLOCK):
        # What follows the last line feed is not looked at.
        inside = _ALL >> np.uint64(max(at + BLOCK - size, 0))
        special |= np.uint64(special_in_64(base + at)) & inside
        high |= np.uint64(not_ascii_in_64(base + at)) & inside
        wrong |= places_of_two(base + at, np.uint8(CR), np.uint8(quote)) & inside
        line_feeds = places_of_one(base + at, np.uint8(LF)) & inside
        found = (places_of_one(base + at, np.uint8(delimiter)) & inside) | line_feeds
        rows += count_bits(line_feeds)
        # Cells that end with a point and zeros: the zero after a point, added to the zeros, is carried past them.
        points, zeros = places_of_one(base + at, np.uint8(46)), places_of_one(base + at, np.uint8(48))
        first = ((points << _ONE) | after_point | in_zeros) & zeros
        total = zeros + first
        odd = ((total & ~zeros) | (in_zeros & ~zeros)) & found
        in_zeros = np.uint64(total < first)
        after_point = points >> _LAST
        # And cells that begin with T, F or -.
        odd |= (
            ((found << _ONE) | after_cell)
            & places_of_four(base + at, np.uint8(84), np.uint8(70), np.uint8(45), np.uint8(45))
            & inside
        )
        after_cell = found >> _LAST
        while odd != _ZERO:
            bit = odd & (~odd + _ONE)
            here = base + at + np.int64(lowest(odd))
            if (bit & found) != _ZERO or begins_spelling(here, delimiter):
                spelled[(count + count_bits(found & (bit - _ONE))) % columns] = 1
            odd &= odd - _ONE
        place = count + 1
        count += count_bits(found)
        while found != _ZERO:
            # More of them than there are, without a branch for each.
            for _ in range(SPARE):
                ends[place] = at + np.int64(lowest(found))
                found &= found - _ONE
                place += 1
        if wrong != _ZERO:
            return Survey(WRONG_ARITY, False, False, 0)
    if count != rows * columns:
        return Survey(WRONG_ARITY, False, False, 0)
    is_other = False
    for row in range(1, rows + 1):
        is_other |= data[ends[row * columns]] != LF
    if is_other:
        return Survey(WRONG_ARITY, False, False, 0)
    longest = np.int32(0)
    for cell in range(count):
        longest = max(longest, ends[cell + 1] - ends[cell])
    return Survey(rows, special != _ZERO, high != _ZERO, np.int64(longest) - 1)


@bare_kernel
def digest_texts(
    texts: Any, whole_keys: Any, runs: Any, found: Any, words: Any, lengths: Any, out: Any
) -> None:
    """Digest columns of texts into out, uint64[rows, columns], 0 where a text is empty.

    texts: `TextPlaces`; whole_keys: uint8[columns], 1 where values are raw keys, to be hashed as whole keys. Scratch:
    runs, int64[columns + 1]; found, uint64, room for all columns' distinct texts; words, lengths: uint64 and int32, of
    one size, a multiple of 8, and at least the columns.
    """
    rows, columns = out.shape
    last = 0
    for column in range(columns):
        for text in range(texts.counts[column]):
            found[last] = text_digest(texts, column, text, whole_keys[column])
            last += 1
    count = find_runs(texts, whole_keys, runs)
    flat, tile = out.reshape(out.size), words.size // columns
    for first in range(0, rows, tile):
        after, have_codes = min(first + tile, rows), 0
        for run in range(count):
            begin, end = runs[run], runs[run + 1]
            if texts.is_padded[begin] == 1 and whole_keys[begin] == 0:
                read_words(texts, begin, end, first, after, words, lengths)
                continue
            for column in range(begin, end):
                if texts.codes[column] == 0:
                    digest_column(texts, column, whole_keys[column], first, after, words, lengths)
                else:
                    have_codes += 1
        part = flat[first * columns : after * columns]
        if have_codes < columns:
            for eight in range(0, part.size, 8):
                digest_eight(words.ctypes.data + 8 * eight, lengths.ctypes.data + 4 * eight)
            for cell in range(part.size):
                part[cell] = words[cell]
        if have_codes > 0:
            take_digests(texts, first, after, found, part)


@bare_inline
def take_digests(texts: Any, first: Any, after: Any, found: Any, out: Any) -> None:
    """The digests of columns with codes in some rows; found: those of their distinct texts."""
    step, last = np.uint64(texts.data.size), 0
    for column in range(texts.data.size):
        codes = texts.codes[column]
        if codes == 0:
            continue
        mine, cell = found[last : last + texts.counts[column]], np.uint64(column)
        for place in range(codes + 4 * first, codes + 4 * after, 4):
            out[cell] = mine[np.uint64(load_i32(place))]
            cell += step
        last += texts.counts[column]


@bare_inline
def find_runs(texts: Any, whole_keys: Any, runs: Any) -> Any:
    """Divide the columns into runs of those that stand alike; return how many.

    runs: int64 out, the first column of each run, and the number of columns.
    """
    count, columns = 0, texts.data.size
    for column in range(columns):
        if (
            column == 0
            or texts.data[column] != texts.data[column - 1]
            or texts.strides[column] != texts.strides[column - 1]
            or texts.gaps[column] != texts.gaps[column - 1]
            or texts.is_padded[column] != texts.is_padded[column - 1]
            or whole_keys[column] != whole_keys[column - 1]
        ):
            runs[count] = column
            count += 1
    runs[count] = columns
    return count


@bare_inline
def read_words(texts: Any, begin: Any, end: Any, first: Any, after: Any, words: Any, lengths: Any) -> None:
    """Words and lengths of the texts of a run of columns in some rows, as `digest_eight` takes them."""
    columns, offsets = texts.data.size, texts.offsets[begin:end]
    stride, gap = texts.strides[begin], texts.gaps[begin]
    data = texts.data[begin] + gap
    for row in range(first, after):
        at = (row - first) * columns
        row_words, row_lengths = words[at + begin : at + end], lengths[at + begin : at + end]
        for column in range(offsets.size):
            place = offsets[column] + stride * row
            start = np.int64(load_i32(place))
            length = np.int64(load_i32(place + 4)) - start - gap
            if length <= 8:
                row_words[column], row_lengths[column] = load_u64(data + start), length
            else:
                row_words[column] = digest_padded(data + start, length)
                row_lengths[column] = IS_DIGEST


@bare_inline
def digest_column(
    texts: Any, column: Any, whole_key: Any, first: Any, after: Any, words: Any, lengths: Any
) -> None:
    """The digests of any column's texts in some rows, without codes."""
    cell, step = np.uint64(column), np.uint64(texts.data.size)
    for row in range(first, after):
        words[cell], lengths[cell] = text_digest(texts, column, row, whole_key), IS_DIGEST
        cell += step


@bare_inline
def text_digest(texts: Any, column: Any, index: Any, whole_key: Any) -> Any:
    """The digest of a text, 0 if it is empty."""
    place = texts.offsets[column] + texts.strides[column] * index
    start = np.int64(load_i32(place)) + texts.gaps[column]
    address, length = texts.data[column] + start, np.int64(load_i32(place + 4)) - start
    if length == 0:
        return _ZERO
    return hash_bytes(address, length) if whole_key == 1 else digest(address, length)


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
def find_spellings(data: Any, offsets: Any, stride: Any, gap: Any, rows: Any, found: Any) -> None:
    """Which columns have a text that `values.category_text` may change: uint8[columns] out, 1 where one has.

    The arguments are those of `survey_cells`. Of nearly all texts the first and the last two bytes are compared, which
    takes no branch for each.
    """
    for row in range(rows):
        for column in range(offsets.size):
            place = offsets[column] + stride * row
            start, stop = np.int64(load_i32(place)) + gap, np.int64(load_i32(place + 4))
            if stop == start:
                continue
            first, last = load_u8(data + start), load_u8(data + stop - 1)
            before = load_u8(data + max(stop - 2, start))
            is_number = (last == 48) & ((before == 46) | (before == 48) | (before == 45))
            if is_number | (((first == 84) | (first == 70)) & ((last | 32) == 101)):
                found[column] |= np.uint8(is_spelling(data + start, stop - start))


@bare_kernel
def flags_of(data: Any, place: Any, stride: Any, gap: Any, out: Any) -> Any:
    """The texts 0 and 1 as float64, out; False if there is another one. The others as for `copy_column`."""
    for index in range(out.size):
        start, stop = np.int64(load_i32(place)) + gap, np.int64(load_i32(place + 4))
        byte = load_u8(data + start)
        if stop != start + 1 or (byte != 48 and byte != 49):
            return False
        out[index] = byte - 48
        place += stride
    return True


Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Spans = npt.NDArray[np.int32]


@inline
def _ends_line(data: Bytes, at: int) -> bool:
    """True if the byte at `at` is the last of a line end."""
    if data[at] == CR:
        return at + 1 == len(data) or data[at + 1] != LF
    return bool(data[at] == LF)


@inline
def _skip_quoted(data: Bytes, at: int, quote: int) -> tuple[int, int]:
    """From after an opening quote: the offset after the closing one (-1 if none), and the line ends between."""
    lines = 0
    while at < len(data):
        byte = data[at]
        if byte == quote:
            at += 1
            if at == len(data) or data[at] != quote:
                return at, lines
        elif byte <= CR and _ends_line(data, at):
            lines += 1
        at += 1
    return -1, lines


@inline
def _row(
    data: Bytes, at: int, delimiter: int, quote: int, columns: int, spans: Spans, into: int
) -> tuple[int, int, int, bool]:
    """Read the row at `at`: offset after its line end (-1 if none), line ends, cells, whether a quote is left open.

    Where its first `columns` cells begin and end is written to `spans` from `into` on.
    """
    size = len(data)
    lines, cells = 0, 1
    while True:
        begin = at
        if at < size and data[at] == quote:
            at, inside = _skip_quoted(data, at + 1, quote)
            lines += inside
            if at < 0:
                return -1, lines, cells, True
        while at < size and data[at] != delimiter and data[at] != LF and data[at] != CR:
            at += 1
        if cells <= columns:
            spans[into + 2 * cells - 2], spans[into + 2 * cells - 1] = begin, at
        if at == size or (data[at] == CR and at + 1 == size):
            return -1, lines, cells, False
        if data[at] != delimiter:
            pair = data[at] == CR and data[at + 1] == LF
            return at + (2 if pair else 1), lines + 1, cells, False
        cells += 1
        at += 1


@inline
def _is_blank(data: Bytes, start: int, stop: int) -> bool:
    """True if the row consists of its line end alone."""
    return stop - start <= 2 and (data[start] == LF or data[start] == CR)


@kernel
def find_rows(
    data: Bytes,
    delimiter: int,
    quote: int,
    final: bool,
    columns: int,
    starts: Ints,
    lines: Ints,
    cells: Ints,
    spans: Spans,
) -> tuple[int, int, int, bool]:
    """Write the start, line (from 0) and number of cells of every whole row of `data` that is not blank.

    starts, lines, cells: int64, one element more than `data` has line ends. final: the end of `data` ends the last
    row. quote: -1 without quoting. spans: where the cells of the rows with `columns` cells begin and end, row by row.
    Returns (rows, bytes and line ends in them and in blank lines, whether the bytes left over are a row with an open
    quote).
    """
    rows = good = at = line = 0
    while at < len(data):
        stop, ends, count, quoted = _row(data, at, delimiter, quote, columns, spans, 2 * columns * good)
        if stop < 0 and (quoted or not final):
            return rows, at, line, quoted
        if stop < 0:
            stop = len(data)
            ends += data[stop - 1] == CR
        if not _is_blank(data, at, stop):
            starts[rows], lines[rows], cells[rows] = at, line, count
            rows += 1
            good += count == columns
        at = stop
        line += ends
    return rows, at, line, False


@kernel
def undo_quotes(data: Bytes, quote: int, spans: Spans) -> None:
    """Replace each cell in quotes by its text, in place: it begins where the cell does, and is shorter."""
    for cell in range(0, len(spans), 2):
        start, stop = spans[cell], spans[cell + 1]
        if start < stop and data[start] == quote:
            is_inside, at, to = True, start + 1, start
            while at < stop:
                if is_inside and data[at] == quote:
                    at += 1
                    if at == stop or data[at] != quote:
                        is_inside = False
                        continue
                data[to] = data[at]
                to += 1
                at += 1
            spans[cell + 1] = to
