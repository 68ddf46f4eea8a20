"""Kernels of sparse text: each line becomes a row, a fault, or is blank; then columns are made from tokens.

A token is one feature of a row: its column's number, the bytes of its name, its value, and the number of its
namespace's scale. A grammar reads a line piece by piece; each piece returns the offset after it, or FAILED with the
fault in `ParsedLines.counts`.

Grammars: Vowpal Wabbit (the "Input format" page of its wiki, and `parse_example.cc` where the page is silent), libsvm
(Joachims, SVMlight, "How to use": qid and comments; libsvm's README) and libffm (its README).

Of a number that `read_number` calls LONG only the form is checked; Python converts it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from model_store.hash_kernels import digest, load_u8
from model_store.jit import bare_inline, bare_kernel, kernel
from trainer.formats.cells_kernels import BLOCK, lowest, places_of_five, places_of_one
from trainer.formats.numbers_kernels import EXACT, LONG, MALFORMED, NINE, ZERO, read_number

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


class ParsedLines(NamedTuple):
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


VW, LIBSVM, LIBFFM = 0, 1, 2
_COLON, _BAR, _QUOTE, _HASH = 58, 124, 39, 35
_PERCENT, _STAR, _EQUALS = 37, 42, 61
_ONE, _NINE, _EXPONENT, _LOWER_CASE = 49, 57, 101, 32
_QUERY = np.frombuffer(b"qid:", np.uint8).copy()


@kernel
def survey_lines(data: Any) -> tuple[int, int, int, bool, bool]:
    """Line feeds, blanks, bars, whether a byte must be escaped, and whether one is NUL or not ASCII; one pass."""
    feeds = blanks = bars = escapes = odd = 0
    for i in range(len(data)):
        byte = data[i]
        feeds += byte == LF
        blanks += (byte == SPACE) | (byte == TAB) | (byte == CR)
        bars += byte == _BAR
        escapes += (byte == _PERCENT) | (byte == _STAR) | (byte == _EQUALS)
        odd += (byte == NUL) | (byte >= 0x80)
    return feeds, blanks, bars, escapes > 0, odd > 0


@bare_kernel
def read_lines(text: Any, grammar: Any, odd: Any, out: Any) -> None:
    """Read every line of `text` (uint8), after which BLOCK more bytes may be read.

    grammar: VW, LIBSVM or LIBFFM; odd: a byte is NUL or not ASCII; out: `ParsedLines`, its counts as they begin.
    """
    data, size, start, counts = text.ctypes.data, text.size, 0, out.counts
    out.tokens.scales[NO_SCALE] = 1.0
    counts[SCALES] = NO_SCALE + 1
    while start < size:
        stop = _line_end(data, start, size)
        kept = (counts[TOKENS], counts[SCALES], counts[LONGS], counts[NEWS])
        if _read_line(data, start, stop, grammar, odd, out) == FAILED:
            counts[TOKENS], counts[SCALES], counts[LONGS], counts[NEWS] = kept
            _note_fault(out)
        else:
            row = counts[ROWS]
            out.rows.line[row], out.rows.end[row] = counts[LINES], counts[TOKENS]
            counts[ROWS] = row + 1
        counts[LINES] += 1
        start = stop + 1


@bare_inline
def _line_end(data: Any, at: Any, size: Any) -> Any:
    """The first line feed from `at`, or `size`."""
    found = places_of_one(data + at, np.uint8(LF))
    while found == 0 and at < size:
        at += BLOCK
        found = places_of_one(data + at, np.uint8(LF)) if at < size else found
    return min(at + np.int64(lowest(found)), size) if at < size else np.int64(size)


@bare_inline
def _read_line(data: Any, start: Any, stop: Any, grammar: Any, odd: Any, out: Any) -> Any:
    row = out.counts[ROWS]
    out.counts[NAME] = UNKNOWN
    out.rows.importance[row] = np.nan
    out.rows.tag[row, 0] = out.rows.tag[row, 1] = start
    at = first_fault(data, start, stop) if odd else np.int64(GOOD_TEXT)
    if at != GOOD_TEXT:
        return fail(out, BAD_TEXT, at, at)
    if grammar == VW:
        return read_vw_line(data, start, stop, out)
    if grammar == LIBSVM:
        return read_libsvm_line(data, start, stop, out)
    return read_libffm_line(data, start, stop, out)


@bare_inline
def _note_fault(out: Any) -> None:
    counts, fault = out.counts, out.counts[FAULTS]
    if counts[FAULT] != BLANK:
        out.notes.faults[fault, 0], out.notes.faults[fault, 1] = counts[LINES], counts[FAULT]
        out.notes.faults[fault, 2], out.notes.faults[fault, 3] = counts[FAULT_START], counts[FAULT_STOP]
        counts[FAULTS] = fault + 1


@bare_inline
def read_vw_line(data: Any, start: Any, stop: Any, out: Any) -> Any:
    """Read `label [importance [base]] ['tag]|namespace[:scale] feature[:value] … |…`; return `stop`, or FAILED."""
    bar = start
    while bar < stop and load_u8(data + bar) != _BAR:
        bar += 1
    at = _read_head(data, start, bar, stop, out)
    while at != FAILED and at < stop:
        at = _read_namespace(data, at + 1, stop, out)
    return at


@bare_inline
def _read_head(data: Any, start: Any, bar: Any, stop: Any, out: Any) -> Any:
    """The words before the first bar. The last one is a tag if it touches the bar or begins with a quote."""
    row, words = out.counts[ROWS], 0
    at = skip_blanks(data, start, bar)
    if bar == stop:
        return fail(out, BLANK if at == bar else NO_BAR, start, stop)
    while at < bar:
        first, at = at, skip_word(data, at, bar)
        last, at = at, skip_blanks(data, at, bar)
        quoted = load_u8(data + first) == _QUOTE
        if at == bar and (last == bar or quoted):
            out.rows.tag[row, 0], out.rows.tag[row, 1] = first + quoted, last
            break
        if _read_word(data, first, last, words, row, out) == FAILED:
            return np.int64(FAILED)
        words += 1
    return bar if words else fail(out, NO_LABEL, start, bar)


@bare_inline
def _read_word(data: Any, first: Any, last: Any, word: Any, row: Any, out: Any) -> Any:
    """The label, the importance or the initial prediction, by the number of the word."""
    value, kind, end = read_number(data, first, last)
    if word == 0:
        return _take_label(data, first, last, out)
    if kind == MALFORMED or end != last:
        return fail(out, BAD_NUMBER, first, last)
    elif word == 1:
        out.rows.importance[row] = value
        if kind == LONG:
            note_long(out, IMPORTANCE_OF, row, first, last)
    elif word == 2 and not _is_written_as_zero(data, first, last):
        return fail(out, BAD_BASE, first, last)
    elif word == 3:
        return fail(out, EXTRA_WORDS, first, last)
    return last


@bare_inline
def _is_written_as_zero(data: Any, first: Any, last: Any) -> Any:
    """True if all digits before the exponent are 0: 1e-400, which reads as 0, is not meant as 0."""
    for at in range(first, last):
        byte = load_u8(data + at) | _LOWER_CASE
        if byte == _EXPONENT:
            break
        if _ONE <= byte <= _NINE:
            return False
    return True


@bare_inline
def _read_namespace(data: Any, first: Any, stop: Any, out: Any) -> Any:
    """A namespace from after its bar to the next bar: a name, unless a blank follows; a scale; features."""
    at = _skip_name(data, first, stop)
    column = column_of(data, first, at, out)
    scale = np.int64(NO_SCALE)
    if at < stop and load_u8(data + at) == _COLON:
        value, kind, end = read_number(data, at + 1, stop)
        if at == first or kind == MALFORMED or not _ends_feature(data, end, stop):
            return fail(out, BAD_NUMBER, first, _skip_feature(data, at, stop))
        scale = out.counts[SCALES]
        out.tokens.scales[scale] = value
        out.counts[SCALES] = scale + 1
        if kind == LONG:
            note_long(out, SCALE_OF, scale, at + 1, end)
        at = end
    at = skip_blanks(data, at, stop)
    while at < stop and load_u8(data + at) != _BAR:
        at = _read_feature(data, at, stop, column, scale, out)
        if at == FAILED:
            break
        at = skip_blanks(data, at, stop)
    return at


@bare_inline
def _read_feature(data: Any, first: Any, stop: Any, column: Any, scale: Any, out: Any) -> Any:
    last = at = _skip_name(data, first, stop)
    value = 1.0
    if at < stop and load_u8(data + at) == _COLON:
        value, kind, end = read_number(data, at + 1, stop)
        if kind == MALFORMED or not _ends_feature(data, end, stop):
            return fail(out, BAD_NUMBER, first, _skip_feature(data, at, stop))
        if kind == LONG and column >= 0:
            note_long(out, VALUE_OF, out.counts[TOKENS], at + 1, end)
        at = end
    if first == last:
        return fail(out, NO_NAME, first, at)
    if column >= 0:
        put_token(out, column, first, last, value, scale)
    return at


@bare_inline
def _skip_name(data: Any, at: Any, stop: Any) -> Any:
    """The first blank, colon or bar from `at`, or `stop`."""
    while at < stop:
        found = places_of_five(
            data + at, np.uint8(SPACE), np.uint8(TAB), np.uint8(CR), np.uint8(_COLON), np.uint8(_BAR)
        )
        if found != 0:
            return min(at + np.int64(lowest(found)), stop)
        at += BLOCK
    return stop


@bare_inline
def _ends_feature(data: Any, at: Any, stop: Any) -> Any:
    return at == stop or is_blank(load_u8(data + at)) or load_u8(data + at) == _BAR


@bare_inline
def _skip_feature(data: Any, at: Any, stop: Any) -> Any:
    while not _ends_feature(data, at, stop):
        at += 1
    return at


@bare_inline
def read_libsvm_line(data: Any, start: Any, stop: Any, out: Any) -> Any:
    """Read `label [qid:query] index:value … [# comment]`; return the end, or FAILED."""
    end = start
    while end < stop and load_u8(data + end) != _HASH:
        end += 1
    at = _read_label(data, start, end, out)
    # libsvm has one namespace
    column = np.int64(out.names.column[0]) if out.names.column.size else np.int64(UNWANTED)
    while at != FAILED:
        at = skip_blanks(data, at, end)
        if at == end:
            break
        if _is_query(data, at, end):
            row, first = out.counts[ROWS], at + _QUERY.size
            at = skip_word(data, first, end)
            out.rows.tag[row, 0], out.rows.tag[row, 1] = first, at
        else:
            at = _read_feature_indexed(data, at, at, end, column, out)
    return at


@bare_inline
def read_libffm_line(data: Any, start: Any, stop: Any, out: Any) -> Any:
    """Read `label field:index:value …`; return the end, or FAILED."""
    at = _read_label(data, start, stop, out)
    while at != FAILED:
        first = skip_blanks(data, at, stop)
        if first == stop:
            break
        at = skip_digits(data, first, stop)
        if at in (first, stop) or load_u8(data + at) != _COLON:
            at = fail(out, BAD_FEATURE, first, skip_word(data, first, stop))
        else:
            column = column_of(data, skip_zeros(data, first, at), at, out)
            at = _read_feature_indexed(data, first, at + 1, stop, column, out)
    return at


@bare_inline
def _read_label(data: Any, start: Any, stop: Any, out: Any) -> Any:
    first = skip_blanks(data, start, stop)
    if first == stop:
        return fail(out, BLANK, start, stop)
    return _take_label(data, first, skip_word(data, first, stop), out)


@bare_inline
def _take_label(data: Any, first: Any, last: Any, out: Any) -> Any:
    """1, 0 or -1; with ANY_LABEL any word that is no feature."""
    row = out.counts[ROWS]
    if out.counts[ANY_LABEL]:
        for at in range(first, last):
            if load_u8(data + at) == _COLON:
                return fail(out, BAD_LABEL, first, last)
        out.rows.word[row, 0], out.rows.word[row, 1] = first, last
        return last
    value, kind, end = read_number(data, first, last)
    if kind != EXACT or end != last or not (value == 1.0 or value == 0.0 or value == -1.0):
        return fail(out, BAD_LABEL, first, last)
    out.rows.label[row] = value == 1.0
    return last


@bare_inline
def _read_feature_indexed(data: Any, word: Any, first: Any, stop: Any, column: Any, out: Any) -> Any:
    """`index:value`, the last part of the word that starts at `word`."""
    last = skip_digits(data, first, stop)
    if last in (first, stop) or load_u8(data + last) != _COLON:
        return fail(out, BAD_FEATURE, word, skip_word(data, word, stop))
    value, kind, at = read_number(data, last + 1, stop)
    if kind == MALFORMED or (at < stop and not is_blank(load_u8(data + at))):
        return fail(out, BAD_NUMBER, word, skip_word(data, word, stop))
    if column >= 0:
        if kind == LONG:
            note_long(out, VALUE_OF, out.counts[TOKENS], last + 1, at)
        put_token(out, column, skip_zeros(data, first, last), last, value, NO_SCALE)
    return at


@bare_inline
def _is_query(data: Any, at: Any, stop: Any) -> Any:
    """True for `qid:` followed by something."""
    size = _QUERY.size
    if at + size >= stop or is_blank(load_u8(data + at + size)):
        return False
    for i in range(size):
        if load_u8(data + at + i) != _QUERY[i]:
            return False
    return True
