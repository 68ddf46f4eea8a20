"""Kernels that read decimal numbers: one from its bytes, and those of a column where its texts stand.

A number is read only where one multiplication or division of doubles gives the correctly rounded result (Clinger 1990,
"How to read floating point numbers accurately", section 4). No libm: all results are exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.hash_kernels import load_i32, load_u8
from model_store.jit import bare_inline, bare_kernel

PLUS, MINUS, DOT, ZERO, NINE, SMALL_E = 43, 45, 46, 48, 57, 101
_TO_LOWER = 0x20

EXACT, LONG, MALFORMED = 0, 1, 2  # the outcome of reading a number
_MOST_DIGITS = 18  # fit an int64
_EXACT_INTEGER = 2**53
_EXACT_POWER = 22  # 10^22 is a double, 10^23 is not
_POWERS = np.array([float(f"1e{power}") for power in range(_EXACT_POWER + 1)])
_FAR, _FAR_BELOW = 309, -400  # beyond these powers of ten every double is infinite, or 0


@bare_kernel
def read_numbers(data: Any, offsets: Any, stride: Any, gap: Any, out: Any, odd: Any) -> Any:
    """Read a column's numbers: float64 out, NaN where the text is empty; return how many texts are odd.

    data, offsets, stride, gap: where the texts are, as in `TextPlaces`; odd: int32[rows] out, the rows of texts that
    are no numbers, or not known exactly here; these are left to a careful parser.
    """
    count = 0
    for row in range(out.size):
        start, stop = np.int64(load_i32(offsets)) + gap, np.int64(load_i32(offsets + 4))
        offsets += stride
        if start == stop:
            out[row] = np.nan
            continue
        value, kind, end = read_number(data, start, stop)
        if (
            kind != EXACT
            or end != stop
            or not np.isfinite(value)
            or (value == 0.0 and _has_digit(data, start, stop))
        ):
            odd[count] = row
            count += 1
        out[row] = value
    return count


@bare_inline
def _has_digit(data: Any, start: Any, stop: Any) -> Any:
    """True if a digit is not 0: the number was too small for a double."""
    for at in range(start, stop):
        if ZERO < load_u8(data + at) <= NINE:
            return True
    return False


@bare_inline
def read_number(data: Any, start: Any, stop: Any) -> Any:
    """Read a decimal number from `start` on: (value, EXACT | LONG | MALFORMED, the offset after it).

    The form is [+-] digits [. digits] [e [+-] digits], with at least one digit before the e. LONG: well formed, but one
    operation cannot give the value (0 is returned). A number beyond the range of doubles is infinite or 0.
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
    """(integer of the digits, significant digits or -1 without a digit, digits after the point, offset after them).

    The integer is made of the first 18 significant digits.
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
    """(exponent, offset after it, False if an e lacks digits); (0, at, True) if there is no exponent."""
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
