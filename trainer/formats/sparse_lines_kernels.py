"""Kernels that read a block of sparse text line by line: each line becomes a row, a fault, or is blank.

Grammars: Vowpal Wabbit (the "Input format" page of its wiki, and `parse_example.cc` where the page is silent), libsvm
(Joachims, SVMlight, "How to use": qid and comments; libsvm's README) and libffm (its README).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.hash_kernels import load_u8
from model_store.jit import bare_inline, bare_kernel, kernel
from trainer.formats.cells_kernels import BLOCK, lowest, places_of_five, places_of_one
from trainer.formats.numbers_kernels import EXACT, LONG, MALFORMED, read_number
from trainer.formats.sparse_kernels import (
    ANY_LABEL,
    BAD_BASE,
    BAD_FEATURE,
    BAD_LABEL,
    BAD_NUMBER,
    BAD_TEXT,
    BLANK,
    CR,
    EXTRA_WORDS,
    FAILED,
    FAULT,
    FAULT_START,
    FAULT_STOP,
    FAULTS,
    GOOD_TEXT,
    IMPORTANCE_OF,
    LF,
    LINES,
    LONGS,
    NAME,
    NEWS,
    NO_BAR,
    NO_LABEL,
    NO_NAME,
    NO_SCALE,
    NUL,
    ROWS,
    SCALE_OF,
    SCALES,
    SPACE,
    TAB,
    TOKENS,
    UNKNOWN,
    UNWANTED,
    VALUE_OF,
    column_of,
    fail,
    first_fault,
    is_blank,
    note_long,
    put_token,
    skip_blanks,
    skip_digits,
    skip_word,
    skip_zeros,
)

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

    grammar: VW, LIBSVM or LIBFFM; odd: a byte is NUL or not ASCII; out: `Output`, its counts as they begin.
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
