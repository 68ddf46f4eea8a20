"""Where a string, a number or a word of JSON ends, and of which kind it is: as strict as Python's json."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.jit import bare_inline

ABSENT, STRING, ESCAPED, WHOLE, FRACTION, TRUE, FALSE, LIST = range(8)
"""What stands at a place. ESCAPED: a string with backslashes; FRACTION: a number that is not written as an integer's
canonical text is; null is ABSENT."""

HALF, BROKEN = 8, -1
"""A string that may hold half of a surrogate pair; what is no JSON, or may be no double."""

QUOTE = 34
_LONGEST_NUMBER, _LONGEST_WITH_EXPONENT = 300, 20
_BACKSLASH, _MINUS, _PLUS, _DOT, _ZERO, _NINE = 92, 45, 43, 46, 48, 57
_SPACE, _TAB, _LF, _CR, _T, _F, _N, _U, _E, _CAPITAL_E, _D = 32, 9, 10, 13, 116, 102, 110, 117, 101, 69, 100


@bare_inline
def skip(data: Any, at: Any, end: Any) -> Any:
    """Behind the blanks that begin at `at`."""
    while at < end and (data[at] == _SPACE or data[at] == _LF or data[at] == _CR or data[at] == _TAB):
        at += 1
    return at


@bare_inline
def string(data: Any, at: Any, end: Any) -> Any:
    """From behind an opening quote: behind the closing one, and STRING, ESCAPED, HALF or BROKEN."""
    kind = np.int64(STRING)
    while at < end:
        byte = data[at]
        at += 1
        if byte == QUOTE:
            return at, kind
        if byte < _SPACE:
            return at, np.int64(BROKEN)
        if byte == _BACKSLASH:
            escape = data[at] if at < end else np.uint8(0)
            at += 1
            if escape == _U:
                if at + 4 > end or not _are_hex(data, at):
                    return at, np.int64(BROKEN)
                if not _is_surrogate(data, at):
                    kind = max(kind, np.int64(ESCAPED))
                    at += 4
                elif _is_high(data, at) and at + 10 <= end and _is_low_behind(data, at + 4):
                    kind = max(kind, np.int64(ESCAPED))
                    at += 10
                else:
                    kind = np.int64(HALF)
                    at += 4
            elif _is_short_escape(escape):
                kind = max(kind, np.int64(ESCAPED))
            else:
                return at, np.int64(BROKEN)
    return at, np.int64(BROKEN)


@bare_inline
def _is_surrogate(data: Any, at: Any) -> Any:
    """D800 to DFFF, of four hexadecimal digits."""
    return data[at] | 32 == _D and data[at + 1] >= 56


@bare_inline
def _is_high(data: Any, at: Any) -> Any:
    """D800 to DBFF, of a surrogate."""
    return data[at + 1] in (56, 57, 65, 66, 97, 98)


@bare_inline
def _is_low_behind(data: Any, at: Any) -> Any:
    """A whole escape from DC00 to DFFF."""
    escape = data[at] == _BACKSLASH and data[at + 1] == _U and _are_hex(data, at + 2)
    return escape and data[at + 2] | 32 == _D and data[at + 3] | 32 >= 99


@bare_inline
def _is_short_escape(byte: Any) -> Any:
    return byte in (QUOTE, _BACKSLASH, 47, 98, _F, _N, 114, _T)  # / b r


@bare_inline
def _are_hex(data: Any, at: Any) -> Any:
    for place in range(at, at + 4):
        byte = data[place]
        if not (_ZERO <= byte <= _NINE or 97 <= byte | 32 <= 102):
            return False
    return True


@bare_inline
def scalar(data: Any, at: Any, end: Any) -> Any:
    """Behind the scalar that begins at `at`, and its kind; ABSENT is null."""
    byte = data[at]
    if byte == QUOTE:
        return string(data, at + 1, end)
    if byte == _T:
        good = at + 4 <= end and data[at + 1] == 114 and data[at + 2] == _U and data[at + 3] == _E
        return at + 4, np.int64(TRUE if good else BROKEN)
    if byte == _F:
        good = at + 5 <= end and data[at + 1] == 97 and data[at + 2] == 108
        good = good and data[at + 3] == 115 and data[at + 4] == _E
        return at + 5, np.int64(FALSE if good else BROKEN)
    if byte == _N:
        good = at + 4 <= end and data[at + 1] == _U and data[at + 2] == 108 and data[at + 3] == 108
        return at + 4, np.int64(ABSENT if good else BROKEN)
    return _number(data, at, end)


@bare_inline
def _number(data: Any, at: Any, end: Any) -> Any:
    """A number as JSON writes it. One so long that it may be no double is taken for broken: line_by_line knows."""
    begin, negative = at, data[at] == _MINUS
    at += negative
    first = at
    at = _digits(data, at, end)
    if at == first or (data[first] == _ZERO and at > first + 1) or at - begin > _LONGEST_NUMBER:
        return at, np.int64(BROKEN)
    kind = np.int64(FRACTION if negative and data[first] == _ZERO else WHOLE)  # -0 is 0
    if at < end and data[at] == _DOT:
        first = at + 1
        at = _digits(data, first, end)
        if at == first or at - begin > _LONGEST_NUMBER:
            return at, np.int64(BROKEN)
        kind = np.int64(FRACTION)
    if at < end and (data[at] == _E or data[at] == _CAPITAL_E):
        short = at - begin <= _LONGEST_WITH_EXPONENT
        at += 1
        if at < end and (data[at] == _PLUS or data[at] == _MINUS):
            at += 1
        first = at
        at = _digits(data, at, end)
        if not short or at == first or at > first + 2:
            return at, np.int64(BROKEN)
        kind = np.int64(FRACTION)
    return at, kind


@bare_inline
def _digits(data: Any, at: Any, end: Any) -> Any:
    while at < end and _ZERO <= data[at] <= _NINE:
        at += 1
    return at
