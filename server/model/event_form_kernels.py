"""The member `items` of a line, put together from what a catalogue has as JSON, without the interpreter's lock."""

from __future__ import annotations

from typing import Any

from model_store.jit import bare_inline, bare_kernel
from server.model.byte_kernels import copied

SKIPPED = -(1 << 31)
AROUND_AN_ITEM = 112
"""Bytes of an item besides its own texts, at most."""
AROUND_A_MEMBER = 3
# Columns of `members`: the field's column in the catalogue's values, where its name begins and ends in `names`, and, 1
# for true, whether it is the last column of its member, and whether the member is written if it has no value.
COLUMN, NAME, NAME_END, IS_LAST, IS_REQUIRED = 0, 1, 2, 3, 4
MEMBER_COLUMNS = 5
_DIGITS = 15
_ONE = 10**_DIGITS
_OPEN, _CLOSE, _COMMA = b"{", b"}", b","
_ID, _FEATURES, _NO_TEXT = b'"id":', b',"features":{', b'""'
_POSITION, _CTR, _PROPENSITY = b',"position":', b',"ctr":', b',"propensity":'
_NULL, _FRACTION = b"null", b"0."
_ZERO, _QUOTE, _BACKSLASH = 48, 34, 92


@bare_kernel
def room_for(
    values: Any, json: Any, json_offsets: Any, own: Any, own_offsets: Any, names: Any, members: Any,
    more_offsets: Any, rows: Any,
) -> Any:  # fmt: skip
    """How many bytes `write_items` needs at most. Arguments as there."""
    size = 0
    for place in range(rows.size):
        row = rows[place]
        if row >= 0:
            size += own_offsets[row + 1] - own_offsets[row] + names.size + AROUND_A_MEMBER * members.shape[0]
            for m in range(members.shape[0]):
                value = values[row, members[m, COLUMN]]
                if value >= 0:
                    size += json_offsets[value + 1] - json_offsets[value]
        elif row != SKIPPED:
            size += more_offsets[-row] - more_offsets[-row - 1]
    return size + rows.size * AROUND_AN_ITEM


@bare_kernel
def write_items(
    values: Any, json: Any, json_offsets: Any, own: Any, own_offsets: Any, names: Any, members: Any,
    more: Any, more_offsets: Any, rows: Any, ctrs: Any, chances: Any, tails: Any, tail_offsets: Any, out: Any,
) -> Any:  # fmt: skip
    """Write the items, commas between them. Returns how many bytes were written.

    Row r ≥ 0 is an item of the catalogue: the first seven arguments, `Fragments._arrays`, have its id and its
    features. -n is the n-th text of `more`, from 1 on, more[more_offsets[n - 1] : more_offsets[n]]; SKIPPED is left
    out, and its position not given to another. more uint8; more_offsets int64; rows int32[k]; ctrs float64[k]; chances
    float64[k], or empty where no propensity is known; tails uint8 and tail_offsets int64[k + 1], the last members of
    each, or empty; out uint8 with `room_for` them.
    """
    catalogue = (values, json, json_offsets, own, own_offsets, names, members)
    used = 0
    for place in range(rows.size):
        row = rows[place]
        if row == SKIPPED:
            continue
        if used:
            used = _put(out, used, _COMMA)
        used = _put(out, used, _OPEN)
        if row >= 0:
            used = _put_item(out, used, catalogue, row)
        else:
            used = copied(more, more_offsets[-row - 1], more_offsets[-row], out, used)
        used = _put_whole(out, _put(out, used, _POSITION), place + 1)
        used = _put_fraction(out, _put(out, used, _CTR), ctrs[place])
        if chances.size:
            used = _put_fraction(out, _put(out, used, _PROPENSITY), chances[place])
        if tails.size:
            used = copied(tails, tail_offsets[place], tail_offsets[place + 1], out, used)
        used = _put(out, used, _CLOSE)
    return used


@bare_inline
def _put_item(out: Any, used: Any, catalogue: Any, row: Any) -> Any:
    """`id` and `features` of an item of the catalogue."""
    values, json, json_offsets, own, own_offsets, names, members = catalogue
    begin, end = own_offsets[row], own_offsets[row + 1]
    id_end = (
        begin + 1
    )  # `own` begins with the id, a JSON text: its end is the first quote without a backslash
    while own[id_end] != _QUOTE:
        id_end += 2 if own[id_end] == _BACKSLASH else 1
    id_end += 1
    used = copied(own, begin, id_end, out, _put(out, used, _ID))
    used = _put(out, used, _FEATURES)
    first, has_value = used, False
    for m in range(members.shape[0]):
        value = values[row, members[m, COLUMN]]
        has_json = value >= 0 and json_offsets[value] < json_offsets[value + 1]
        is_missing = not has_value and not has_json and members[m, IS_LAST] and members[m, IS_REQUIRED]
        if (has_json and not has_value) or is_missing:
            if used > first:
                used = _put(out, used, _COMMA)
            used = copied(names, members[m, NAME], members[m, NAME_END], out, used)
            if is_missing:
                used = _put(out, used, _NO_TEXT)
            else:
                used = copied(json, json_offsets[value], json_offsets[value + 1], out, used)
        has_value = (has_value or has_json) and not members[m, IS_LAST]
    if id_end < end and used > first:
        used = _put(out, used, _COMMA)
    return _put(out, copied(own, id_end, end, out, used), _CLOSE)


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
