"""Kernels that scan lines of JSON and note where the wanted values are; copy those values into columns.

A line is checked in full, as strictly as Python's json checks it. A line is odd, and left to `line_parser`, if it is
broken or needs judgement: a member that comes twice, a value of a kind not allowed for its member, an escape in a name.
Nothing is noted of an odd line.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from model_store.jit import bare_inline, bare_kernel
from trainer.events.events import MAX_ITEMS

ABSENT, STRING, ESCAPED, WHOLE, FRACTION, TRUE, FALSE, LIST = range(8)
"""Kinds of values. ESCAPED: a string with backslashes; FRACTION: a number not written in an integer's canonical form;
null is ABSENT."""

HALF, BROKEN = 8, -1
"""A string that may hold half of a surrogate pair; invalid JSON, or a number that may be beyond a double."""

QUOTE = 34
_LONGEST_NUMBER, _LONGEST_WITH_EXPONENT = 300, 20
_BACKSLASH, _MINUS, _PLUS, _DOT, _ZERO, _NINE = 92, 45, 43, 46, 48, 57
_SPACE, _TAB, _LF, _CR, _T, _F, _N, _U, _E, _CAPITAL_E, _D = 32, 9, 10, 13, 116, 102, 110, 117, 101, 69, 100

OBJECT_OR_NULL, ITEMS_OR_NULL = 1, 2
DEEPEST = 64
_IN_OBJECT, _IN_LIST = 0, 1

_COMMA, _COLON = 44, 58
_OPEN_BRACE, _CLOSE_BRACE, _OPEN_BRACKET, _CLOSE_BRACKET = 123, 125, 91, 93


class Tree(NamedTuple):
    """The wanted members, as numbered names under numbered objects; object 0 is the event.

    first: int32[objects + 1], an object's first name; names uint8, name_at int32[names + 1]: their bytes.
    For each name: leaf, the wanted value's number, or -1; under: the number of the object it holds, or -1; must: 0,
    OBJECT_OR_NULL or ITEMS_OR_NULL. For each leaf: allowed, uint16, a bit for each kind; longest, int32, in bytes;
    in_item: 1 for an item's.
    """

    first: Any
    names: Any
    name_at: Any
    leaf: Any
    under: Any
    must: Any
    allowed: Any
    longest: Any
    in_item: Any


class Spans(NamedTuple):
    """Where values are: that of leaf l and event or row r at index base[l] + r.

    kinds: uint8, all 0 at first; begins, sizes: int32. used: uint16[leaves], all 0 at first: the kinds a leaf has.
    """

    base: Any
    kinds: Any
    begins: Any
    sizes: Any
    used: Any


class Scratch(NamedTuple):
    """Working memory of a scan. All int64, 0 at first except `after`.

    For open containers, [DEEPEST] each: containers, their kinds; objects, their numbers; serials; last, the last name
    met in each, or len(names) + its number. after: [names + objects], -1 at first, the name that followed a `last`.
    seen: [names], the serial of the object in which a name was last met. serial: [1], of the last object.
    """

    containers: Any
    objects: Any
    serials: Any
    last: Any
    after: Any
    seen: Any
    serial: Any


@bare_kernel
def scan(data: Any, starts: Any, tree: Any, spans: Any, scratch: Any, lengths: Any, odd: Any) -> Any:
    """Note all values of the lines that are not odd; returns how many items they have.

    data: uint8; starts: int64[lines + 1]; lengths: int64[lines + 1] out, the number of items of each event
    that is not odd, without gaps, -1 without a list of items; odd: bool[lines], in and out.
    """
    events = rows = np.int64(0)
    for line in range(odd.size):
        if odd[line]:
            continue
        stop = _scan_line(data, starts[line], starts[line + 1], events, rows, tree, spans, scratch, lengths)
        if stop < 0:
            odd[line] = True
            _forget(tree, spans, events, rows, -stop)
        else:
            rows = stop
            events += 1
    return rows


@bare_inline
def _forget(tree: Any, spans: Any, event: Any, row: Any, stop: Any) -> None:
    """Clear what was noted of an event, and of its rows from `row` to at most `stop`."""
    for leaf in range(tree.allowed.size):
        if tree.in_item[leaf] == 0:
            spans.kinds[spans.base[leaf] + event] = ABSENT
        else:
            for each in range(row, stop):
                spans.kinds[spans.base[leaf] + each] = ABSENT


@bare_inline
def _scan_line(
    data: Any, at: Any, end: Any, event: Any, rows: Any, tree: Any, spans: Any, scratch: Any, lengths: Any
) -> Any:
    """The number of rows after the line; for an odd line, -(that + 1).

    Invariant: scratch.containers[: depth + 1] are open, the innermost last; for each, objects has the number of the
    object in the Tree, -1 if nothing in it is wanted; for the list of items, that of each item. fresh: the innermost is
    still empty. set_at: the depth of the wanted list being read, 0 outside of one.
    """
    lengths[event] = -1
    at = skip(data, at, end)
    if at == end or data[at] != _OPEN_BRACE:
        return -(rows + 1)
    depth, set_at, set_index, fresh = np.int64(0), np.int64(0), np.int64(0), True
    _open(scratch, depth, _IN_OBJECT, 0)
    at += 1
    while True:
        at = skip(data, at, end)
        if at >= end:
            return -(rows + 1)
        is_object = scratch.containers[depth] == _IN_OBJECT
        close = _CLOSE_BRACE if is_object else _CLOSE_BRACKET
        if not (fresh and data[at] == close):
            name = np.int64(-1)
            if is_object:
                at, name = _member(tree, scratch, depth, data, at, end)
                if at < 0:
                    return -(rows + 1)
            byte, is_item = data[at], not is_object and scratch.objects[depth] >= 0
            leaf = np.int64(tree.leaf[name]) if name >= 0 else np.int64(-1)
            must = np.int64(tree.must[name]) if name >= 0 else np.int64(0)
            if byte in (_OPEN_BRACE, _OPEN_BRACKET):
                under = _opened(tree, scratch, depth, name, byte, is_item)
                if (
                    under < -1
                    or set_at > 0
                    or depth + 1 == DEEPEST
                    or (is_item and lengths[event] == MAX_ITEMS)
                ):
                    return -(rows + 1)
                if is_item:
                    rows += 1
                    lengths[event] += 1
                elif must == ITEMS_OR_NULL:
                    lengths[event] = 0
                elif leaf >= 0:
                    set_at, set_index = depth + 1, _note(tree, spans, leaf, LIST, event, rows, at, 0)
                    if set_index < 0:
                        return -(rows + 1)
                depth += 1
                _open(scratch, depth, _IN_OBJECT if byte == _OPEN_BRACE else _IN_LIST, under)
                fresh = True
                at += 1
                continue
            begin = at
            at, kind = scalar(data, at, end)
            if is_item or kind == BROKEN or (kind == HALF and set_at > 0) or (kind != ABSENT and must != 0):
                return -(rows + 1)
            if leaf >= 0 and kind != ABSENT:
                quoted = 1 if data[begin] == QUOTE else 0
                if _note(tree, spans, leaf, kind, event, rows, begin + quoted, at - begin - 2 * quoted) < 0:
                    return -(rows + 1)
        while True:
            at = skip(data, at, end)
            if at >= end:
                return -(rows + 1)
            if data[at] == _COMMA:
                at += 1
                fresh = False
                break
            if data[at] != (_CLOSE_BRACE if scratch.containers[depth] == _IN_OBJECT else _CLOSE_BRACKET):
                return -(rows + 1)
            at += 1
            if set_at > 0 and depth == set_at:
                spans.sizes[set_index] = at - spans.begins[set_index]
                set_at = np.int64(0)
            depth -= 1
            if depth < 0:
                return rows if skip(data, at, end) == end else -(rows + 1)
            fresh = False


@bare_inline
def _member(tree: Any, scratch: Any, depth: Any, data: Any, at: Any, end: Any) -> Any:
    """From the start of a name: the offset of its value, -1 if broken or repeated; and the name's number, or -1."""
    if data[at] != QUOTE:
        return np.int64(-1), np.int64(-1)
    at, name = _name(tree, scratch, depth, scratch.objects[depth], data, at + 1, end)
    if at < 0:
        return at, name
    if name >= 0:
        if scratch.seen[name] == scratch.serials[depth]:
            return np.int64(-1), name
        scratch.seen[name] = scratch.serials[depth]
    at = skip(data, at, end)
    if at >= end or data[at] != _COLON:
        return np.int64(-1), name
    at = skip(data, at + 1, end)
    return at if at < end else np.int64(-1), name


@bare_inline
def _opened(tree: Any, scratch: Any, depth: Any, name: Any, byte: Any, is_item: Any) -> Any:
    """The number of the object that a brace opens, or of the items that a bracket opens.

    -1: nothing in it is wanted; -2: not allowed here.
    """
    must = np.int64(tree.must[name]) if name >= 0 else np.int64(0)
    if byte == _OPEN_BRACKET:
        if is_item or must == OBJECT_OR_NULL:
            return np.int64(-2)
        return np.int64(tree.under[name]) if must == ITEMS_OR_NULL else np.int64(-1)
    if is_item:
        return scratch.objects[depth]
    if name < 0:
        return np.int64(-1)
    return np.int64(-2) if tree.leaf[name] >= 0 or must == ITEMS_OR_NULL else np.int64(tree.under[name])


@bare_inline
def _open(scratch: Any, depth: Any, container: Any, under: Any) -> None:
    scratch.serial[0] += 1
    scratch.containers[depth], scratch.objects[depth] = container, under
    scratch.serials[depth] = scratch.serial[0]
    scratch.last[depth] = scratch.seen.size + under


@bare_inline
def _note(tree: Any, spans: Any, leaf: Any, kind: Any, event: Any, rows: Any, begin: Any, size: Any) -> Any:
    """Note a value; returns its index in the spans, or -1 if its kind is not allowed."""
    if (np.int64(tree.allowed[leaf]) >> kind) & 1 == 0 or size > tree.longest[leaf]:
        return np.int64(-1)
    index = spans.base[leaf] + (event if tree.in_item[leaf] == 0 else rows - 1)
    spans.kinds[index], spans.begins[index], spans.sizes[index] = kind, begin, size
    spans.used[leaf] |= np.uint16(1 << kind)
    return index


@bare_inline
def _name(tree: Any, scratch: Any, depth: Any, under: Any, data: Any, begin: Any, end: Any) -> Any:
    """From after a name's opening quote: after the closing one, -1 if broken or escaped; and its number, or -1.

    Members mostly come in one order: the name that last followed the previous one is tried first.
    """
    if under < 0:
        at, kind = string(data, begin, end)
        return at if kind == STRING else np.int64(-1), np.int64(-1)
    name = scratch.after[scratch.last[depth]]
    if name >= 0:
        size = np.int64(tree.name_at[name + 1] - tree.name_at[name])
        if begin + size < end and data[begin + size] == QUOTE and _is_name(tree, name, data, begin):
            scratch.last[depth] = name
            return begin + size + 1, name
    at, kind = string(data, begin, end)
    if kind != STRING:
        return np.int64(-1), np.int64(-1)
    for name in range(tree.first[under], tree.first[under + 1]):
        size = np.int64(tree.name_at[name + 1] - tree.name_at[name])
        if begin + size + 1 == at and _is_name(tree, name, data, begin):
            scratch.after[scratch.last[depth]] = scratch.last[depth] = name
            return at, np.int64(name)
    return at, np.int64(-1)


@bare_inline
def _is_name(tree: Any, name: Any, data: Any, begin: Any) -> Any:
    for index in range(tree.name_at[name], tree.name_at[name + 1]):
        if tree.names[index] != data[begin]:
            return False
        begin += 1
    return True


@bare_inline
def skip(data: Any, at: Any, end: Any) -> Any:
    """The offset after the blanks at `at`."""
    while at < end and (data[at] == _SPACE or data[at] == _LF or data[at] == _CR or data[at] == _TAB):
        at += 1
    return at


@bare_inline
def string(data: Any, at: Any, end: Any) -> Any:
    """From after an opening quote: the offset after the closing one, and STRING, ESCAPED, HALF or BROKEN."""
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
                elif _is_high(data, at) and at + 10 <= end and _is_low_escape(data, at + 4):
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
def _is_low_escape(data: Any, at: Any) -> Any:
    """A whole escape from DC00 to DFFF."""
    escape = data[at] == _BACKSLASH and data[at + 1] == _U and _are_hex(data, at + 2)
    return escape and data[at + 2] | 32 == _D and data[at + 3] | 32 >= 99


@bare_inline
def _is_short_escape(byte: Any) -> Any:
    return byte in (QUOTE, _BACKSLASH, 47, 98, _F, _N, 114, _T)  # / b r


@bare_inline
def _are_hex(data: Any, at: Any) -> Any:
    for index in range(at, at + 4):
        byte = data[index]
        if not (_ZERO <= byte <= _NINE or 97 <= byte | 32 <= 102):
            return False
    return True


@bare_inline
def scalar(data: Any, at: Any, end: Any) -> Any:
    """The offset after the scalar at `at`, and its kind; ABSENT is null."""
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
    """A JSON number. One so long that it may not fit a double is BROKEN, so that `line_parser` decides."""
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


@bare_kernel
def text_offsets(kinds: Any, sizes: Any, offsets: Any) -> None:
    """Where each value's bytes will start: offsets, int32[n + 1], out; ABSENT values have no bytes."""
    total = np.int32(0)
    for i in range(kinds.size):
        offsets[i] = total
        if kinds[i] != ABSENT:
            total += np.int32(sizes[i])
    offsets[kinds.size] = total


@bare_kernel
def copy_text(data: Any, begins: Any, offsets: Any, out: Any) -> None:
    """Copy each value's bytes to its offset."""
    for i in range(begins.size):
        begin = begins[i]
        for index in range(offsets[i], offsets[i + 1]):
            out[index] = data[begin]
            begin += 1


@bare_kernel
def count_members(data: Any, kinds: Any, begins: Any, sizes: Any, offsets: Any) -> None:
    """Running total of the members of lists: offsets, int32[n + 1], out. The lists were scanned, so none is broken."""
    total = np.int32(0)
    for i in range(kinds.size):
        offsets[i] = total
        if kinds[i] == LIST:
            at, end = np.int64(begins[i]) + 1, np.int64(begins[i]) + sizes[i] - 1
            at = skip(data, at, end)
            while at < end:
                at, _ = scalar(data, at, end)
                total += np.int32(1)
                at = skip(data, skip(data, at, end) + 1, end)
    offsets[kinds.size] = total


@bare_kernel
def find_members(data: Any, kinds: Any, begins: Any, sizes: Any, members: Any) -> None:
    """The kinds, begins and sizes of all lists' members, in order; members: Spans without a base."""
    index = 0
    for i in range(kinds.size):
        if kinds[i] == LIST:
            at, end = np.int64(begins[i]) + 1, np.int64(begins[i]) + sizes[i] - 1
            at = skip(data, at, end)
            while at < end:
                begin = at
                at, kind = scalar(data, at, end)
                quoted = 1 if data[begin] == QUOTE else 0
                members.kinds[index] = kind
                members.begins[index], members.sizes[index] = begin + quoted, at - begin - 2 * quoted
                index += 1
                at = skip(data, skip(data, at, end) + 1, end)


@bare_kernel
def find_twice(first: Any, items: Any, table: Any, twice: Any) -> None:
    """For each impression, the row of the first item that it shows a second time, or -1. A hash of 0 is not an item.

    first: int64[n + 1], the first row of each in items, uint64; table: int64, all -1, a power of two above twice the
    longest impression; twice: int64[n], out. Invariant: an entry of the table counts only if it is a row of this
    impression, that is, at least first[i]; so the table is never cleared.
    """
    mask = np.uint64(table.size - 1)
    for i in range(twice.size):
        twice[i] = -1
        for row in range(first[i], first[i + 1]):
            if items[row] == np.uint64(0):
                continue
            at = items[row] & mask
            while table[at] >= first[i] and items[table[at]] != items[row]:
                at = (at + np.uint64(1)) & mask
            if table[at] >= first[i]:
                twice[i] = row
                break
            table[at] = row


REQUEST_ID = np.frombuffer(b'"request_id"', np.uint8)
_FAR = np.full(256, REQUEST_ID.size, np.int64)
for _at, _byte in enumerate(REQUEST_ID[:-1]):
    _FAR[_byte] = REQUEST_ID.size - 1 - _at
UNSURE = -1
_FNV, _FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
_MIX_1, _MIX_2, _33 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53), np.uint64(33)


@bare_kernel
def shares(data: Any, starts: Any, count: Any, found: Any) -> None:
    """Which of `count` partitions each line's request belongs to: int64[lines], out; UNSURE if a parser must tell.

    Looks for the bytes "request_id" alone, without parsing: they must be in the line once, and be a member's name whose
    value is a string without escapes or a whole number.
    """
    last = REQUEST_ID.size - 1
    for line in range(found.size):
        found[line] = UNSURE
        at, stop, name = starts[line] + last, starts[line + 1], np.int64(-1)
        while at < stop:  # Horspool's search
            if data[at] == QUOTE and _names_request(data, at - last):
                if name >= 0:
                    name = np.int64(-1)
                    break
                name = at
            at += _FAR[data[at]]
        if name >= 0:
            begin, end = _plain_id(data, name + 1, stop)
            if begin < end:
                found[line] = share_of(data, begin, end, count)


@bare_inline
def share_of(data: Any, begin: Any, end: Any, count: Any) -> Any:
    """The partition, from 0, of an id's bytes: FNV-1a, mixed as in MurmurHash3, modulo the number of partitions."""
    digest = _FNV
    for at in range(begin, end):
        digest = (digest ^ np.uint64(data[at])) * _FNV_PRIME
    digest = (digest ^ (digest >> _33)) * _MIX_1
    digest = (digest ^ (digest >> _33)) * _MIX_2
    digest ^= digest >> _33
    return np.int64(digest % np.uint64(count))


@bare_kernel
def share_of_bytes(data: Any, count: Any) -> Any:
    """`share_of` all of the bytes."""
    return share_of(data, 0, data.size, count)


@bare_inline
def _names_request(data: Any, begin: Any) -> Any:
    for index in range(REQUEST_ID.size):
        if data[begin + index] != REQUEST_ID[index]:
            return False
    return True


@bare_inline
def _plain_id(data: Any, at: Any, stop: Any) -> Any:
    """The first byte of the id after a member's name and the one behind its last; none if it is not plain."""
    at = skip(data, at, stop)
    if at >= stop or data[at] != _COLON:
        return at, at
    at = skip(data, at + 1, stop)
    begin = at
    if at < stop and data[at] == QUOTE:
        at += 1
        while at < stop and data[at] != QUOTE:
            if data[at] == _BACKSLASH or data[at] < _SPACE:
                return begin, begin
            at += 1
        return (begin + 1, at) if at < stop else (begin, begin)
    while at < stop and _ZERO <= data[at] <= _NINE:
        at += 1
    if at >= stop or not (data[at] == _COMMA or data[at] == _CLOSE_BRACE):
        return begin, begin
    return begin, at
