"""Kernels that read a piece of a line: a decimal number, digits, a blank, UTF-8. No libm: all of it is exact.

A number is read here only where one multiplication or division of doubles gives the correctly rounded result (Clinger
1990, "How to read floating point numbers accurately", section 4); of others only the form is checked, and the caller
has them converted elsewhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.hash_kernels import load_u8
from model_store.jit import bare_inline

SPACE, TAB, CR, LF, NUL = 32, 9, 13, 10, 0
PLUS, MINUS, DOT, ZERO, NINE, SMALL_E = 43, 45, 46, 48, 57, 101
_TO_LOWER = 0x20

EXACT, LONG, MALFORMED = 0, 1, 2  # what became of a number
_MOST_DIGITS = 18  # so many fit an int64
_EXACT_INTEGER = 2**53
_EXACT_POWER = 22  # 10^22 is a double, 10^23 is none
_POWERS = np.array([float(f"1e{power}") for power in range(_EXACT_POWER + 1)])
_FAR, _FAR_BELOW = 309, -400  # beyond these powers of ten every double is infinite, or 0

GOOD_TEXT = -1


@bare_inline
def is_blank(byte: Any) -> Any:
    """True for what separates the words of a line; the carriage return before a line feed is one too."""
    return byte in (SPACE, TAB, CR)


@bare_inline
def behind_blanks(data: Any, at: Any, stop: Any) -> Any:
    """The first place from `at` that is not blank, or `stop`."""
    while at < stop and is_blank(load_u8(data + at)):
        at += 1
    return at


@bare_inline
def behind_word(data: Any, at: Any, stop: Any) -> Any:
    """The first blank from `at`, or `stop`."""
    while at < stop and not is_blank(load_u8(data + at)):
        at += 1
    return at


@bare_inline
def behind_digits(data: Any, at: Any, stop: Any) -> Any:
    """The first place from `at` without a digit."""
    while at < stop and ZERO <= load_u8(data + at) <= NINE:
        at += 1
    return at


@bare_inline
def without_zeros(data: Any, start: Any, stop: Any) -> Any:
    """Where the digits from `start` to `stop` begin without leading zeros: one spelling for one index."""
    while start + 1 < stop and load_u8(data + start) == ZERO:
        start += 1
    return start


@bare_inline
def read_number(data: Any, start: Any, stop: Any) -> Any:
    """Read a decimal number from `start` on: (value, EXACT | LONG | MALFORMED, the place behind it).

    The form is [+-] digits [. digits] [e [+-] digits], with at least one digit before the e; LONG: of that form, but
    its value (here 0) cannot be told by one operation. What no double can hold is infinite, or 0.
    """
    at = start
    negative = at < stop and load_u8(data + at) == MINUS
    if at < stop and (load_u8(data + at) == MINUS or load_u8(data + at) == PLUS):
        at += 1
    mantissa, digits, point, at = _read_digits(data, at, stop)
    if digits < 0:
        return 0.0, MALFORMED, at
    power, at, well_formed = _read_exponent(data, at, stop)
    if not well_formed:
        return 0.0, MALFORMED, at
    power -= point
    value, kind = 0.0, EXACT
    if digits > _MOST_DIGITS or mantissa > _EXACT_INTEGER or abs(power) > _EXACT_POWER:
        leading = digits + power  # value < 10^leading
        if (mantissa == 0 and digits <= _MOST_DIGITS) or leading < _FAR_BELOW:
            value = 0.0
        elif leading > _FAR:
            value = np.inf
        else:
            kind = LONG
    elif power >= 0:
        value = np.float64(mantissa) * _POWERS[power]
    else:
        value = np.float64(mantissa) / _POWERS[-power]
    return (-value if negative else value), kind, at


@bare_inline
def _read_digits(data: Any, at: Any, stop: Any) -> Any:
    """(their integer, how many from the first that is not 0 on, -1 if there are none; those behind the point; place).

    The integer is that of the first 18 digits that count.
    """
    mantissa, digits, point = np.int64(0), np.int64(0), np.int64(0)
    seen, fraction = False, False
    while at < stop:
        byte = load_u8(data + at)
        if ZERO <= byte <= NINE:
            seen = True
            point += fraction
            if digits > 0 or byte != ZERO:
                digits += 1
                if digits <= _MOST_DIGITS:
                    mantissa = mantissa * 10 + np.int64(byte - ZERO)
        elif byte == DOT and not fraction:
            fraction = True
        else:
            break
        at += 1
    return mantissa, (digits if seen else np.int64(-1)), point, at


@bare_inline
def _read_exponent(data: Any, at: Any, stop: Any) -> Any:
    """(exponent, the place behind it, True unless an e stands there without digits); (0, at, True) if there is none."""
    if at == stop or (load_u8(data + at) | _TO_LOWER) != SMALL_E:
        return np.int64(0), at, True
    at += 1
    negative = at < stop and load_u8(data + at) == MINUS
    if at < stop and (load_u8(data + at) == MINUS or load_u8(data + at) == PLUS):
        at += 1
    first, power = at, np.int64(0)
    while at < stop and ZERO <= load_u8(data + at) <= NINE:
        power = min(power * 10 + np.int64(load_u8(data + at) - ZERO), np.int64(10**9))
        at += 1
    return (-power if negative else power), at, at > first


@bare_inline
def first_fault(data: Any, start: Any, stop: Any) -> Any:
    """The place of the first NUL, or of the first byte that is not UTF-8 (RFC 3629); GOOD_TEXT if there is neither."""
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
    """How many bytes the character has that begins with this one; 0 if none does."""
    if first < 0x80:
        return 1
    if 0xC2 <= first <= 0xDF:
        return 2
    if 0xE0 <= first <= 0xEF:
        return 3
    return 4 if 0xF0 <= first <= 0xF4 else 0


@bare_inline
def _is_second(first: Any, second: Any) -> Any:
    """False for what would be too long a form, half of a surrogate pair, or beyond the last character."""
    if first == 0xE0:
        return second >= 0xA0
    if first == 0xED:
        return second <= 0x9F
    if first == 0xF0:
        return second >= 0x90
    return first != 0xF4 or second <= 0x8F
