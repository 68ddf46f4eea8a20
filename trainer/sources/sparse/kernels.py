"""Kernels that read lines of Vowpal Wabbit, libsvm and libffm text: from a block of bytes to rows of tokens.

A token is a feature of a row: the number of its column, the bytes of its name, its value, and the number of the scale
that its namespace has. A line that does not fit its grammar leaves a fault instead of a row. What columns there are is
told by `Names`; nothing here knows of keys or labels beyond 0 and 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from model_store.jit import bare_inline, bare_kernel, kernel
from model_store.kernels import digest, load_u8
from trainer.sources.sparse.text.kernels import (
    CR,
    EXACT,
    GOOD_TEXT,
    LF,
    LONG,
    MALFORMED,
    NUL,
    SPACE,
    TAB,
    behind_blanks,
    behind_digits,
    behind_word,
    first_fault,
    is_blank,
    read_number,
    without_zeros,
)

VW, LIBSVM, LIBFFM = 0, 1, 2
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
NO_SCALE = 0  # the number of the scale 1
UNWANTED, UNKNOWN = -1, -2
VALUE_OF, SCALE_OF, IMPORTANCE_OF = 0, 1, 2  # where a long number belongs
_COLON, _BAR, _QUOTE, _HASH, _Q, _I, _D = 58, 124, 39, 35, 113, 105, 100
_WORDS = 4


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

    news int64[16, 3]: line, from, to of names that `Names` does not hold.
    """

    faults: Any
    longs: Any
    news: Any


class Line(NamedTuple):
    """What one line came to. stop: behind its last token; fault: what is wrong, or GOOD, with the bytes it is about."""

    tokens: Any
    scales: Any
    longs: Any
    fault: Any
    start: Any
    stop: Any


@kernel
def survey_lines(data: Any) -> tuple[int, int, int, bool]:
    """Count line feeds, blanks and bars, and say if a byte is NUL or not ASCII, in one vectorised pass."""
    feeds = blanks = bars = odd = 0
    for i in range(len(data)):
        byte = data[i]
        feeds += byte == LF
        blanks += (byte == SPACE) | (byte == TAB) | (byte == CR)
        bars += byte == _BAR
        odd += (byte == NUL) | (byte >= 0x80)
    return feeds, blanks, bars, odd > 0


@bare_kernel
def read_lines(
    text: Any, grammar: Any, odd: Any, names: Any, tokens: Any, rows: Any, notes: Any, counts: Any
) -> None:
    """Read every line of `text` (uint8) into tokens, rows and notes.

    grammar: VW, LIBSVM or LIBFFM; odd: a byte is NUL or not ASCII. counts int64[4], all 0, out: rows, faults, longs,
    news.
    Invariant: the rows so far have all tokens, scales and longs that are counted; those of a bad line are overwritten.
    """
    token, scale, long, row, fault, line, start = 0, 1, 0, 0, 0, 0, 0
    tokens.scales[NO_SCALE] = 1.0
    data, size = text.ctypes.data, text.size
    while start < size:
        stop = start
        while stop < size and load_u8(data + stop) != LF:
            stop += 1
        news = counts[3]
        rows.importance[row] = np.nan
        rows.tag[row, 0] = rows.tag[row, 1] = start
        at = first_fault(data, start, stop) if odd else np.int64(GOOD_TEXT)
        if at != GOOD_TEXT:
            read = Line(token, scale, long, np.int64(BAD_TEXT), at, at)
        elif grammar == VW:
            read = _vw_line(
                data, start, stop, names, tokens, rows, row, notes, token, scale, long, line, counts
            )
        else:
            read = _index_line(
                data, start, stop, grammar, names, tokens, rows, row, notes, token, scale, long, line, counts
            )
        if read.fault == GOOD:
            token, scale, long = read.tokens, read.scales, read.longs
            rows.line[row], rows.end[row] = line, token
            row += 1
        elif read.fault != BLANK:
            notes.faults[fault, 0], notes.faults[fault, 1] = line, read.fault
            notes.faults[fault, 2], notes.faults[fault, 3] = read.start, read.stop
            counts[3] = news
            fault += 1
        line += 1
        start = stop + 1
    counts[0], counts[1], counts[2] = row, fault, long


@bare_inline
def _vw_line(
    data: Any, start: Any, stop: Any, names: Any, tokens: Any, rows: Any, row: Any, notes: Any,
    token: Any, scale: Any, long: Any, line: Any, counts: Any,
) -> Any:  # fmt: skip
    """`label [importance [base]] ['tag]|namespace[:scale] feature[:value] … |…`."""
    bar = start
    while bar < stop and load_u8(data + bar) != _BAR:
        bar += 1
    long, fault, first, last = _vw_head(data, start, bar, stop, rows, row, notes, long)
    at, name = bar, np.int64(-1)
    while fault == GOOD and at < stop:
        # A namespace: behind its bar a name, unless a blank follows, and a scale.
        first = at = at + 1
        while (
            at < stop
            and not is_blank(load_u8(data + at))
            and load_u8(data + at) != _COLON
            and load_u8(data + at) != _BAR
        ):
            at += 1
        name = _look_up(data, first, at, names, name)
        column = _column_of(names, name, line, first, at, notes, counts)
        in_scale = np.int64(NO_SCALE)
        if at < stop and load_u8(data + at) == _COLON:
            value, kind, end = read_number(data, at + 1, stop)
            if at == first or kind == MALFORMED or not _ends_feature(data, end, stop):
                fault, last = BAD_NUMBER, _behind_feature(data, at, stop)
                break
            in_scale = scale
            tokens.scales[scale] = value
            scale += 1
            if kind == LONG:
                long = _note_long(notes, long, SCALE_OF, in_scale, at + 1, end)
            at = end
        # Its features.
        while True:
            at = behind_blanks(data, at, stop)
            if at == stop or load_u8(data + at) == _BAR:
                break
            first = at
            while (
                at < stop
                and not is_blank(load_u8(data + at))
                and load_u8(data + at) != _COLON
                and load_u8(data + at) != _BAR
            ):
                at += 1
            last = at
            value = 1.0
            if at < stop and load_u8(data + at) == _COLON:
                value, kind, end = read_number(data, at + 1, stop)
                if kind == MALFORMED or not _ends_feature(data, end, stop):
                    fault, last = BAD_NUMBER, _behind_feature(data, at, stop)
                    break
                if kind == LONG and column >= 0:
                    long = _note_long(notes, long, VALUE_OF, token, at + 1, end)
                at = end
            if first == last:
                fault, last = NO_NAME, at
                break
            if column >= 0:
                _put(tokens, token, column, first, last, value, in_scale)
                token += 1
    return Line(token, scale, long, np.int64(fault), np.int64(first), np.int64(last))


@bare_inline
def _vw_head(data: Any, start: Any, bar: Any, stop: Any, rows: Any, row: Any, notes: Any, long: Any) -> Any:
    """What stands before the first bar; return (longs, fault, from, to).

    The last word is a tag if it touches the bar, or begins with a quote.
    """
    at = behind_blanks(data, start, bar)
    if bar == stop:
        return long, (BLANK if at == bar else NO_BAR), start, stop
    words = 0
    while at < bar:
        first, at = at, behind_word(data, at, bar)
        last, at = at, behind_blanks(data, at, bar)
        if at == bar and (last == bar or load_u8(data + first) == _QUOTE):
            rows.tag[row, 0], rows.tag[row, 1] = first + (load_u8(data + first) == _QUOTE), last
            break
        value, kind, end = read_number(data, first, last)
        if words == 0:
            if kind != EXACT or end != last or not (value == 1.0 or value == 0.0 or value == -1.0):
                return long, BAD_LABEL, first, last
            rows.label[row] = value == 1.0
        elif kind == MALFORMED or end != last:
            return long, BAD_NUMBER, first, last
        elif words == 1:
            rows.importance[row] = value
            if kind == LONG:
                long = _note_long(notes, long, IMPORTANCE_OF, row, first, last)
        elif words == 2 and (value != 0.0 or kind == LONG):
            return long, BAD_BASE, first, last
        elif words == 3:
            return long, EXTRA_WORDS, first, last
        words += 1
    return long, (GOOD if words else NO_LABEL), start, bar


@bare_inline
def _index_line(
    data: Any, start: Any, stop: Any, grammar: Any, names: Any, tokens: Any, rows: Any, row: Any, notes: Any,
    token: Any, scale: Any, long: Any, line: Any, counts: Any,
) -> Any:  # fmt: skip
    """libsvm: `label [qid:query] index:value … [# comment]`; libffm: `label field:index:value …`."""
    if grammar == LIBSVM:
        end = start
        while end < stop and load_u8(data + end) != _HASH:
            end += 1
        stop = end
    first = behind_blanks(data, start, stop)
    if first == stop:
        return Line(token, scale, long, np.int64(BLANK), start, stop)
    last = behind_word(data, first, stop)
    value, kind, end = read_number(data, first, last)
    fault, name = GOOD, np.int64(-1)
    only = np.int64(names.column[0]) if names.column.size else np.int64(UNWANTED)  # libsvm has no other
    if kind != EXACT or end != last or not (value == 1.0 or value == 0.0 or value == -1.0):
        fault = BAD_LABEL
    rows.label[row] = value == 1.0
    at = last
    while fault == GOOD:
        first = behind_blanks(data, at, stop)
        if first == stop:
            break
        end = behind_digits(data, first, stop)
        last = end
        if grammar == LIBSVM and end == first and _is_query(data, first, stop):
            at = behind_word(data, first, stop)
            rows.tag[row, 0], rows.tag[row, 1] = first + 4, at
            continue
        column = only
        begin = without_zeros(data, first, end)
        if grammar == LIBFFM and end > first and end < stop and load_u8(data + end) == _COLON:
            name = _look_up(data, begin, end, names, name)
            column = _column_of(names, name, line, begin, end, notes, counts)
            begin, end = end + 1, behind_digits(data, end + 1, stop)
            last = end
            begin = without_zeros(data, begin, end)
        elif grammar == LIBFFM:
            fault = BAD_FEATURE
        if fault != GOOD or begin == end or end == stop or load_u8(data + end) != _COLON:
            fault, last = BAD_FEATURE, behind_word(data, first, stop)
            break
        value, kind, at = read_number(data, end + 1, stop)
        if kind == MALFORMED or (at < stop and not is_blank(load_u8(data + at))):
            fault, last = BAD_NUMBER, behind_word(data, first, stop)
            break
        if column >= 0:
            if kind == LONG:
                long = _note_long(notes, long, VALUE_OF, token, end + 1, at)
            _put(tokens, token, column, begin, last, value, NO_SCALE)
            token += 1
    return Line(token, scale, long, np.int64(fault), np.int64(first), np.int64(last))


@bare_inline
def _is_query(data: Any, at: Any, stop: Any) -> Any:
    """True for `qid:` with something behind it."""
    return (
        at + 4 < stop
        and load_u8(data + at) == _Q
        and load_u8(data + at + 1) == _I
        and load_u8(data + at + 2) == _D
        and load_u8(data + at + 3) == _COLON
        and not is_blank(load_u8(data + at + 4))
    )


@bare_inline
def _ends_feature(data: Any, at: Any, stop: Any) -> Any:
    return at == stop or is_blank(load_u8(data + at)) or load_u8(data + at) == _BAR


@bare_inline
def _behind_feature(data: Any, at: Any, stop: Any) -> Any:
    while not _ends_feature(data, at, stop):
        at += 1
    return at


@bare_inline
def _put(tokens: Any, token: Any, column: Any, start: Any, stop: Any, value: Any, scale: Any) -> None:
    tokens.column[token] = column
    tokens.start[token], tokens.stop[token] = start, stop
    tokens.value[token], tokens.scale[token] = value, scale


@bare_inline
def _note_long(notes: Any, long: Any, what: Any, index: Any, start: Any, stop: Any) -> Any:
    notes.longs[long, 0], notes.longs[long, 1] = what, index
    notes.longs[long, 2], notes.longs[long, 3] = start, stop
    return long + 1


@bare_inline
def _column_of(names: Any, name: Any, line: Any, start: Any, stop: Any, notes: Any, counts: Any) -> Any:
    """The column of a name; UNWANTED for a name not known, of which a note is left."""
    if name >= 0:
        return np.int64(names.column[name])
    if counts[3] < notes.news.shape[0]:
        notes.news[counts[3], 0] = line
        notes.news[counts[3], 1], notes.news[counts[3], 2] = start, stop
        counts[3] += 1
    return np.int64(UNWANTED)


@bare_inline
def _look_up(data: Any, start: Any, stop: Any, names: Any, before: Any) -> Any:
    """The number of the name from `start` to `stop`, UNKNOWN if it has none; `before` is the one that it follows.

    Lines name their namespaces in one order, mostly, so what followed last time is tried first.
    """
    place = before if before >= 0 else names.follows.size - 1
    name = np.int64(names.follows[place])
    if name >= 0 and _is_name(data, start, stop, names, name):
        return name
    mask = np.uint64(names.table.size - 1)
    slot = digest(data + start, stop - start) & mask
    while names.table[slot] != 0:
        name = np.int64(names.table[slot]) - 1
        if _is_name(data, start, stop, names, name):
            names.follows[place] = name
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
