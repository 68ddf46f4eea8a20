"""A line of Vowpal Wabbit text: `label [importance [base]] ['tag]|namespace[:scale] feature[:value] … |…`.

Source: the "Input format" page of Vowpal Wabbit's wiki, and its parser (`parse_example.cc`) where the page is silent.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.jit import bare_inline
from model_store.kernels import load_u8
from trainer.sources.sparse.rows.kernels import (
    BAD_BASE,
    BAD_LABEL,
    BAD_NUMBER,
    BLANK,
    EXTRA_WORDS,
    FAILED,
    IMPORTANCE_OF,
    NO_BAR,
    NO_LABEL,
    NO_NAME,
    NO_SCALE,
    ROWS,
    SCALE_OF,
    SCALES,
    TOKENS,
    VALUE_OF,
    column_of,
    fail,
    note_long,
    put_token,
)
from trainer.sources.sparse.text.kernels import (
    EXACT,
    LONG,
    MALFORMED,
    behind_blanks,
    behind_word,
    is_blank,
    read_number,
)

_COLON, _BAR, _QUOTE = 58, 124, 39
_ONE, _NINE, _EXPONENT, _LOWER_CASE = 49, 57, 101, 32


@bare_inline
def read_vw_line(data: Any, start: Any, stop: Any, out: Any) -> Any:
    """Read the line from `start` to `stop` as one row; return `stop`, or FAILED."""
    bar = start
    while bar < stop and load_u8(data + bar) != _BAR:
        bar += 1
    at = _read_head(data, start, bar, stop, out)
    while at != FAILED and at < stop:
        at = _read_namespace(data, at + 1, stop, out)
    return at


@bare_inline
def _read_head(data: Any, start: Any, bar: Any, stop: Any, out: Any) -> Any:
    """What stands before the first bar. Its last word is a tag if it touches the bar, or begins with a quote."""
    row, words = out.counts[ROWS], 0
    at = behind_blanks(data, start, bar)
    if bar == stop:
        return fail(out, BLANK if at == bar else NO_BAR, start, stop)
    while at < bar:
        first, at = at, behind_word(data, at, bar)
        last, at = at, behind_blanks(data, at, bar)
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
        if kind != EXACT or end != last or not (value == 1.0 or value == 0.0 or value == -1.0):
            return fail(out, BAD_LABEL, first, last)
        out.rows.label[row] = value == 1.0
    elif kind == MALFORMED or end != last:
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
    """True for a number all of whose digits before an exponent are 0: 1e-400 is not meant as 0, though it reads so."""
    for at in range(first, last):
        byte = load_u8(data + at) | _LOWER_CASE
        if byte == _EXPONENT:
            break
        if _ONE <= byte <= _NINE:
            return False
    return True


@bare_inline
def _read_namespace(data: Any, first: Any, stop: Any, out: Any) -> Any:
    """A namespace from behind its bar up to the next bar: a name, unless a blank follows; a scale; features."""
    at = _behind_name(data, first, stop)
    column = column_of(data, first, at, out)
    scale = np.int64(NO_SCALE)
    if at < stop and load_u8(data + at) == _COLON:
        value, kind, end = read_number(data, at + 1, stop)
        if at == first or kind == MALFORMED or not _ends_feature(data, end, stop):
            return fail(out, BAD_NUMBER, first, _behind_feature(data, at, stop))
        scale = out.counts[SCALES]
        out.tokens.scales[scale] = value
        out.counts[SCALES] = scale + 1
        if kind == LONG:
            note_long(out, SCALE_OF, scale, at + 1, end)
        at = end
    at = behind_blanks(data, at, stop)
    while at < stop and load_u8(data + at) != _BAR:
        at = _read_feature(data, at, stop, column, scale, out)
        if at == FAILED:
            break
        at = behind_blanks(data, at, stop)
    return at


@bare_inline
def _read_feature(data: Any, first: Any, stop: Any, column: Any, scale: Any, out: Any) -> Any:
    last = at = _behind_name(data, first, stop)
    value = 1.0
    if at < stop and load_u8(data + at) == _COLON:
        value, kind, end = read_number(data, at + 1, stop)
        if kind == MALFORMED or not _ends_feature(data, end, stop):
            return fail(out, BAD_NUMBER, first, _behind_feature(data, at, stop))
        if kind == LONG and column >= 0:
            note_long(out, VALUE_OF, out.counts[TOKENS], at + 1, end)
        at = end
    if first == last:
        return fail(out, NO_NAME, first, at)
    if column >= 0:
        put_token(out, column, first, last, value, scale)
    return at


@bare_inline
def _behind_name(data: Any, at: Any, stop: Any) -> Any:
    while at < stop:
        byte = load_u8(data + at)
        if is_blank(byte) or byte in (_COLON, _BAR):
            break
        at += 1
    return at


@bare_inline
def _ends_feature(data: Any, at: Any, stop: Any) -> Any:
    return at == stop or is_blank(load_u8(data + at)) or load_u8(data + at) == _BAR


@bare_inline
def _behind_feature(data: Any, at: Any, stop: Any) -> Any:
    while not _ends_feature(data, at, stop):
        at += 1
    return at
