"""The member `items` of a line, put together from fragments that are there, without the interpreter's lock."""

from __future__ import annotations

from typing import Any

from model_store.jit import bare_inline, bare_kernel

SKIPPED = -(1 << 31)
AROUND_AN_ITEM = 88
"""Bytes of an item besides its fragment, at most."""
_DIGITS = 15
_ONE = 10**_DIGITS
_OPEN, _CLOSE, _COMMA = b"{", b"}", b","
_POSITION, _CTR, _PROPENSITY = b',"position":', b',"ctr":', b',"propensity":'
_NULL, _FRACTION = b"null", b"0."
_ZERO = 48


@bare_kernel
def room_for(rows: Any, offsets: Any, more_offsets: Any) -> Any:
    """How many bytes `write_items` needs at most. Arguments as there."""
    size = 0
    for place in range(rows.size):
        row = rows[place]
        if row >= 0:
            size += offsets[row + 1] - offsets[row]
        elif row != SKIPPED:
            size += more_offsets[-row] - more_offsets[-row - 1]
    return size + rows.size * AROUND_AN_ITEM


@bare_kernel
def write_items(
    data: Any, offsets: Any, more: Any, more_offsets: Any, rows: Any, ctrs: Any, chances: Any, out: Any
) -> Any:
    """Write the items, commas between them. Returns how many bytes were written.

    Row r ≥ 0 has the fragment data[offsets[r] : offsets[r + 1]], -n the n-th of `more`, from 1 on; SKIPPED is left out,
    and its position not given to another. data, more uint8; offsets, more_offsets int64; rows int32[k]; ctrs
    float64[k]; chances float64[k], or empty where no propensity is known; out uint8 with `room_for` them.
    """
    used = 0
    for place in range(rows.size):
        row = rows[place]
        if row == SKIPPED:
            continue
        if used:
            used = _put(out, used, _COMMA)
        used = _put(out, used, _OPEN)
        if row >= 0:
            used = _copy(out, used, data, offsets[row], offsets[row + 1])
        else:
            used = _copy(out, used, more, more_offsets[-row - 1], more_offsets[-row])
        used = _put_whole(out, _put(out, used, _POSITION), place + 1)
        used = _put_fraction(out, _put(out, used, _CTR), ctrs[place])
        if chances.size:
            used = _put_fraction(out, _put(out, used, _PROPENSITY), chances[place])
        used = _put(out, used, _CLOSE)
    return used


@bare_inline
def _copy(out: Any, used: Any, data: Any, begin: Any, end: Any) -> Any:
    for at in range(begin, end):
        out[used] = data[at]
        used += 1
    return used


@bare_inline
def _put(out: Any, used: Any, text: Any) -> Any:
    for at in range(len(text)):
        out[used] = text[at]
        used += 1
    return used


@bare_inline
def _put_whole(out: Any, used: Any, number: Any) -> Any:
    """A whole number from 1 on."""
    power = 1
    while power * 10 <= number:
        power *= 10
    while power:
        out[used] = _ZERO + number // power % 10
        used += 1
        power //= 10
    return used


@bare_inline
def _put_fraction(out: Any, used: Any, number: Any) -> Any:
    """A number from 0 to 1, to _DIGITS decimals, without zeros at the end; null for any other."""
    if not 0.0 <= number <= 1.0:
        return _put(out, used, _NULL)
    digits = int(number * _ONE + 0.5)
    if digits == 0 or digits >= _ONE:
        out[used] = _ZERO + (digits >= _ONE)
        return used + 1
    used = _put(out, used, _FRACTION)
    power = _ONE // 10
    while digits:
        out[used] = _ZERO + digits // power
        used += 1
        digits %= power
        power //= 10
    return used
