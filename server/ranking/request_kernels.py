"""Kernels that read a `ctr.v1.RankRequest` from its bytes and write the items of a `RankResponse` (docs/protocol.md).

`split` locates item ids, user and context, and copies all other fields together. Any two encodings of the same fields,
in any order, are the same message, so the copy parses to the request without those three (protobuf's encoding guide,
"Field Order"). Unusual bytes are left to the protobuf library: IRREGULAR.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.features.values_kernels import is_spelling
from model_store.hash_kernels import load_u8, load_u64
from model_store.jit import bare_inline, bare_kernel
from server.model.byte_kernels import LINE_FEED

# Returned instead of a count: bytes that the protobuf library must parse.
IRREGULAR = -1

# Indices in `found`, of `split`.
REST, USER, CONTEXT, FIELDS = 0, 1, 3, 5
FOUND = 6

_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
# tags of a map's entries and their keys, and of their values
_FIRST, _SECOND = 1 << 3 | _DELIMITED, 2 << 3 | _DELIMITED
_USER, _CONTEXT, _ITEM_IDS = 4 << 3 | _DELIMITED, 5 << 3 | _DELIMITED, 6 << 3 | _DELIMITED
_RESPONSE_ITEMS = 6 << 3 | _DELIMITED
_MORE = 0x80
_LONGEST_LENGTH = 4  # bytes of a varint below 2^28
_LONGEST_VALUE = 1024  # a longer text is left to FieldPlan.tokens, which checks the length of keys
_NOT_ASCII = np.uint64(0x8080808080808080)
_PERCENT, _STAR, _EQUALS = 0x25, 0x2A, 0x3D


@bare_kernel
def split(message: Any, spans: Any, rest: Any, found: Any) -> Any:
    """Fill spans int32[≥ ids, 2] with where each item id begins and ends, and rest uint8[≥ message] with other fields.

    Returns the number of ids. found int64[FOUND]: at REST how much of `rest` is used; at USER and CONTEXT where that
    message begins, and at the next index where it ends, both 0 if it is absent; at FIELDS a bit for the number of each
    other field. IRREGULAR for a malformed message, a
    group, a field number above 15, an id that is not ASCII, and a user or context that comes twice.
    """
    at, count, used = 0, 0, 0
    found[:] = 0
    while at < message.size:
        tag, begin = message[at], at
        if tag == _ITEM_IDS and at + 1 < message.size and message[at + 1] < _MORE:  # nearly every id
            begin, end = at + 2, at + 2 + message[at + 1]
            if end > message.size or not _is_ascii(message, begin, end):
                return IRREGULAR
            spans[count, 0], spans[count, 1] = begin, end
            count += 1
            at = end
            continue
        end = _end_of_value(message, at + 1, tag & 7)
        if tag >= _MORE or end < 0 or end > message.size:
            return IRREGULAR
        at += 1
        if tag == _ITEM_IDS:
            at = _skip_varint(message, at)
            if not _is_ascii(message, at, end):
                return IRREGULAR
            spans[count, 0], spans[count, 1] = at, end
            count += 1
        elif tag in (_USER, _CONTEXT):
            place = USER if tag == _USER else CONTEXT
            if found[place] != 0:
                return IRREGULAR
            found[place], found[place + 1] = _skip_varint(message, at), end
        else:
            found[FIELDS] |= np.int64(1) << (np.int64(tag) >> 3)
            for i in range(begin, end):
                rest[used] = message[i]
                used += 1
        at = end
    found[REST] = used
    return count


@bare_inline
def _skip_varint(message: Any, at: Any) -> Any:
    while message[at] >= _MORE:
        at += 1
    return at + 1


@bare_inline
def _end_of_value(message: Any, at: Any, wire_type: Any) -> Any:
    """Where the value at `at` ends, which may be past the message; -1 if it is malformed or too long."""
    if wire_type == _FIXED64:
        return at + 8
    if wire_type == _FIXED32:
        return at + 4
    if wire_type not in (_VARINT, _DELIMITED):
        return -1
    value, shift = np.int64(0), np.int64(0)
    while at < message.size and shift < 70:
        byte = np.int64(message[at])
        at += 1
        if wire_type == _DELIMITED:
            value |= (byte & 0x7F) << shift
        shift += 7
        if byte < _MORE:
            if wire_type == _VARINT:
                return at
            return at + value if shift <= 7 * _LONGEST_LENGTH else -1
    return -1


@bare_inline
def _is_ascii(message: Any, at: Any, end: Any) -> Any:
    """Whether no byte of message[at:end] is above 127; eight at a time."""
    address, length, seen, i = message.ctypes.data + at, end - at, np.uint64(0), 0
    while i + 8 <= length:
        seen |= load_u64(address + i)
        i += 8
    while i < length:
        seen |= np.uint64(load_u8(address + i))
        i += 1
    return seen & _NOT_ASCII == 0


@bare_kernel
def plain_tokens(
    message: Any, found: Any, names: Any, name_start: Any, plain: Any,
    values: Any, value_start: Any, begin: Any, text: Any,
) -> Any:  # fmt: skip
    """Make the tokens of a request whose features are plain: texts of known fields that keys contain as they are.

    names uint8, name_start int64[fields + 1] and plain bool[fields] say which fields there are, and which of them take
    their text as it is. values int32[fields, 2] is scratch. value_start int64[fields + 1], begin int64[≥ fields + 1]
    and text uint8[≥ message] become those of a `TokenTable`, whose x are all 1. As in `request.read_features`, the last
    text of a name counts, and the context's replaces the user's. Returns a bit for each field that was given, or
    IRREGULAR.
    """
    for field in range(plain.size):
        values[field, 0] = -1
    given = np.int64(0)
    for place in (USER, CONTEXT):
        at, stop = found[place], found[place + 1]
        while at < stop:
            field, start, end = _entry(message, at, stop, names, name_start, plain)
            if field < 0:
                return IRREGULAR
            values[field, 0], values[field, 1] = start, end
            given |= np.int64(1) << field
            at = end
    _write_tokens(message, values, value_start, begin, text)
    return given


@bare_inline
def _write_tokens(message: Any, values: Any, value_start: Any, begin: Any, text: Any) -> None:
    tokens, used = 0, 0
    for field in range(values.shape[0]):
        value_start[field] = tokens
        start, end = np.int64(values[field, 0]), np.int64(values[field, 1])
        if start >= 0 and start < end:  # an empty text has no token
            begin[tokens] = used
            for i in range(start, end):
                text[used] = message[i]
                used += 1
            text[used] = _STAR
            used += 1
            tokens += 1
    value_start[values.shape[0]] = tokens
    begin[tokens] = used


@bare_inline
def _entry(message: Any, at: Any, stop: Any, names: Any, name_start: Any, plain: Any) -> Any:
    """The entry of `Features.values` at `at`: its field, and where its text begins and ends. -1 if it is not plain."""
    name_at, name_end = _text(message, at, stop, _FIRST)  # the entry, then within it a name and a text
    entry_end = name_end
    if name_at < 0:
        return -1, 0, 0
    name_at, name_end = _text(message, name_at, entry_end, _FIRST)
    if name_at < 0:
        return -1, 0, 0
    start, end = _text(message, name_end, entry_end, _SECOND)
    if start < 0 or end != entry_end:
        return -1, 0, 0
    start, end = _text(message, start, entry_end, _FIRST)
    if start < 0 or end != entry_end or end - start > _LONGEST_VALUE or not _is_plain(message, start, end):
        return -1, 0, 0
    field = _field(message, name_at, name_end, names, name_start)
    if field < 0 or not plain[field]:
        return -1, 0, 0
    return field, start, end


@bare_inline
def _text(message: Any, at: Any, stop: Any, tag: Any) -> Any:
    """Where the bytes after `tag` at `at` begin and end; -1 if they are not there, or pass `stop`."""
    if at >= stop or message[at] != tag:
        return -1, 0
    end = _end_of_value(message, at + 1, _DELIMITED)
    if end < 0 or end > stop:
        return -1, 0
    return _skip_varint(message, at + 1), end


@bare_inline
def _field(message: Any, begin: Any, end: Any, names: Any, name_start: Any) -> Any:
    """The field of this name; -1 if there is none."""
    for field in range(name_start.size - 1):
        first = name_start[field]
        if name_start[field + 1] - first == end - begin:
            i = 0
            while i < end - begin and names[first + i] == message[begin + i]:
                i += 1
            if i == end - begin:
                return field
    return -1


@bare_inline
def _is_plain(message: Any, begin: Any, end: Any) -> Any:
    """True for ASCII text that keys contain as it is: nothing to escape, and no other spelling of a value."""
    for i in range(begin, end):
        byte = message[i]
        if byte >= _MORE or byte in (_PERCENT, _STAR, _EQUALS):
            return False
    return not is_spelling(message.ctypes.data + begin, end - begin)


@bare_kernel
def write_items(message: Any, spans: Any, order: Any, ctr: Any, score: Any, out: Any) -> Any:
    """Write the field `items` of a `ctr.v1.RankResponse`: an id, ctr and score for each place in `order`.

    ctr and score f64[order]; out uint8[≥ Σ (id + 30)]. Returns how many bytes were written.
    """
    used = 0
    for place in range(order.size):
        used = _write_item(message, spans, order, ctr, score, place, 0, out, used)
    return used


@bare_kernel
def write_team_items(
    message: Any, spans: Any, order: Any, ctr: Any, score: Any,
    propensity: Any, credit: Any, team: Any, names: Any, name_start: Any, out: Any,
) -> Any:  # fmt: skip
    """`write_items` with propensity and credit, f64[order], and the name of each item's team, int64[order].

    names uint8: the bytes of the field `team` of each, tag and length before the text; name_start int64[teams + 1]. out
    has room for 18 bytes and a name more for each item.
    """
    used = 0
    for place in range(order.size):
        begin, end = name_start[team[place]], name_start[team[place] + 1]
        used = _write_item(message, spans, order, ctr, score, place, 18 + end - begin, out, used)
        used = _write_double(out, used, 6 << 3 | _FIXED64, propensity, place)
        for i in range(begin, end):
            out[used] = names[i]
            used += 1
        used = _write_double(out, used, 9 << 3 | _FIXED64, credit, place)
    return used


@bare_inline
def _write_item(
    message: Any, spans: Any, order: Any, ctr: Any, score: Any, place: Any, more: Any, out: Any, used: Any
) -> Any:
    """Write one item's id, ctr and score, with a length that counts `more` bytes, which the caller adds."""
    begin, end = np.int64(spans[order[place], 0]), np.int64(spans[order[place], 1])
    length = end - begin
    out[used] = _RESPONSE_ITEMS
    used = _write_varint(out, used + 1, 1 + _varint_bytes(length) + length + 18 + more)
    out[used] = _FIRST
    used = _write_varint(out, used + 1, length)
    for i in range(begin, end):
        out[used] = message[i]
        used += 1
    used = _write_double(out, used, 2 << 3 | _FIXED64, ctr, place)
    return _write_double(out, used, 3 << 3 | _FIXED64, score, place)


@bare_inline
def _varint_bytes(number: Any) -> Any:
    count = 1
    while number >= _MORE:
        number >>= 7
        count += 1
    return count


@bare_inline
def _write_varint(out: Any, used: Any, number: Any) -> Any:
    while number >= _MORE:
        out[used] = number & 0x7F | _MORE
        number >>= 7
        used += 1
    out[used] = number
    return used + 1


@bare_inline
def _write_double(out: Any, used: Any, tag: Any, numbers: Any, place: Any) -> Any:
    """The tag and the eight bytes of numbers[place], little-endian as in protobuf and on every supported machine."""
    out[used] = tag
    address = numbers.ctypes.data + place * numbers.itemsize
    for i in range(8):
        out[used + 1 + i] = load_u8(address + i)
    return used + 9


@bare_kernel
def stored_tokens(record: Any, takes: Any, places: Any, text: Any) -> Any:
    """Make the tokens of a user's record whose values are plain: a line of `record` (uint8) each, empty if missing.

    takes bool[fields]: the request fields that have a line, in their order. places int64[≥ fields + 2 + lines] becomes
    value_start, then begin, and text uint8[> record] that of a `TokenTable`, whose x are all 1. Returns how many tokens
    there are, or IRREGULAR.
    """
    fields, tokens, used, at = takes.size, 0, 0, np.int64(0)
    for field in range(fields):
        places[field] = tokens
        if takes[field]:
            end = at
            while end < record.size and record[end] != LINE_FEED:
                end += 1
            if end - at > _LONGEST_VALUE or not _is_plain(record, at, end):
                return IRREGULAR
            if at < end:
                places[fields + 1 + tokens] = used
                used = _copy(record, at, end, text, used)
                text[used] = _STAR
                used += 1
                tokens += 1
            at = end + 1
    places[fields] = tokens
    places[fields + 1 + tokens] = used
    return tokens if at == record.size + 1 else IRREGULAR


@bare_kernel
def overlay(
    given: Any, value_start: Any, begin: Any, x: Any, text: Any,
    stored_places: Any, stored_x: Any, stored_text: Any,
    out_start: Any, out_begin: Any, out_x: Any, out_text: Any,
) -> Any:  # fmt: skip
    """Merge a request's own tokens and a user's: of each field the first table's if its bit of `given` is set.

    Three tables as `TokenTable` lays them out, of one value a field; the second has value_start and begin in one array,
    int64, and the third has room for all tokens of both.
    """
    tokens, used, fields = np.int64(0), np.int64(0), out_start.size - 1
    for field in range(fields):
        out_start[field] = tokens
        if given >> field & 1:
            for token in range(value_start[field], value_start[field + 1]):
                out_begin[tokens], out_x[tokens] = used, x[token]
                used = _copy(text, begin[token], begin[token + 1], out_text, used)
                tokens += 1
        else:
            for token in range(stored_places[field], stored_places[field + 1]):
                out_begin[tokens], out_x[tokens] = used, stored_x[token]
                at = fields + 1 + token
                used = _copy(stored_text, stored_places[at], stored_places[at + 1], out_text, used)
                tokens += 1
    out_start[fields] = tokens
    out_begin[tokens] = used


@bare_inline
def _copy(text: Any, begin: Any, end: Any, out_text: Any, used: Any) -> Any:
    """Append text[begin:end]; return how much is used then."""
    for i in range(begin, end):
        out_text[used] = text[i]
        used += 1
    return used
