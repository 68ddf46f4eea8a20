"""A line of libsvm (`label [qid:query] index:value … [# comment]`) or libffm (`label field:index:value …`).

Sources: Joachims, SVMlight, "How to use" (qid, comments); the READMEs of libsvm and libffm.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.jit import bare_inline
from model_store.kernels import load_u8
from trainer.sources.sparse.rows.kernels import (
    BAD_FEATURE,
    BAD_LABEL,
    BAD_NUMBER,
    BLANK,
    FAILED,
    NO_SCALE,
    ROWS,
    TOKENS,
    UNWANTED,
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
    behind_digits,
    behind_word,
    is_blank,
    read_number,
    without_zeros,
)

_COLON, _HASH = 58, 35
_QUERY = np.frombuffer(b"qid:", np.uint8).copy()


@bare_inline
def read_libsvm_line(data: Any, start: Any, stop: Any, out: Any) -> Any:
    """Read the line from `start` to `stop` as one row; return its end, or FAILED."""
    end = start
    while end < stop and load_u8(data + end) != _HASH:
        end += 1
    at = _read_label(data, start, end, out)
    column = (
        np.int64(out.names.column[0]) if out.names.column.size else np.int64(UNWANTED)
    )  # there is only one
    while at != FAILED:
        at = behind_blanks(data, at, end)
        if at == end:
            break
        if _is_query(data, at, end):
            row, first = out.counts[ROWS], at + _QUERY.size
            at = behind_word(data, first, end)
            out.rows.tag[row, 0], out.rows.tag[row, 1] = first, at
        else:
            at = _read_feature(data, at, at, end, column, out)
    return at


@bare_inline
def read_libffm_line(data: Any, start: Any, stop: Any, out: Any) -> Any:
    """Read the line from `start` to `stop` as one row; return its end, or FAILED."""
    at = _read_label(data, start, stop, out)
    while at != FAILED:
        first = behind_blanks(data, at, stop)
        if first == stop:
            break
        at = behind_digits(data, first, stop)
        if at in (first, stop) or load_u8(data + at) != _COLON:
            at = fail(out, BAD_FEATURE, first, behind_word(data, first, stop))
        else:
            column = column_of(data, without_zeros(data, first, at), at, out)
            at = _read_feature(data, first, at + 1, stop, column, out)
    return at


@bare_inline
def _read_label(data: Any, start: Any, stop: Any, out: Any) -> Any:
    first = behind_blanks(data, start, stop)
    if first == stop:
        return fail(out, BLANK, start, stop)
    last = behind_word(data, first, stop)
    value, kind, end = read_number(data, first, last)
    if kind != EXACT or end != last or not (value == 1.0 or value == 0.0 or value == -1.0):
        return fail(out, BAD_LABEL, first, last)
    out.rows.label[out.counts[ROWS]] = value == 1.0
    return last


@bare_inline
def _read_feature(data: Any, word: Any, first: Any, stop: Any, column: Any, out: Any) -> Any:
    """`index:value`, the last part of the word that begins at `word`."""
    last = behind_digits(data, first, stop)
    if last in (first, stop) or load_u8(data + last) != _COLON:
        return fail(out, BAD_FEATURE, word, behind_word(data, word, stop))
    value, kind, at = read_number(data, last + 1, stop)
    if kind == MALFORMED or (at < stop and not is_blank(load_u8(data + at))):
        return fail(out, BAD_NUMBER, word, behind_word(data, word, stop))
    if column >= 0:
        if kind == LONG:
            note_long(out, VALUE_OF, out.counts[TOKENS], last + 1, at)
        put_token(out, column, without_zeros(data, first, last), last, value, NO_SCALE)
    return at


@bare_inline
def _is_query(data: Any, at: Any, stop: Any) -> Any:
    """True for `qid:` with something behind it."""
    size = _QUERY.size
    if at + size >= stop or is_blank(load_u8(data + at + size)):
        return False
    for i in range(size):
        if load_u8(data + at + i) != _QUERY[i]:
            return False
    return True
