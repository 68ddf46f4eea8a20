"""Kernels that scan lines of JSON and note where the wanted values are.

A line is checked in full, as strictly as Python's json checks it. It is set aside, for a careful parser, if it is
broken or needs judgement: a member that comes twice, a value of a kind not allowed for its member, an escape in a name,
a number that may be beyond a double. Nothing is noted of such a line.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from model_store.hash_kernels import control_in_64, load_u8, load_u64, not_ascii_in_64, special_in_64
from model_store.jit import bare_inline, bare_kernel
from trainer.formats.cells_kernels import (
    BLOCK,
    BOOLEAN,
    CR,
    ESCAPED,
    FLOAT,
    LF,
    LIST,
    LONG,
    NOT_CANONICAL,
    STRING,
    WHOLE,
    lowest,
    places_of_one,
    places_of_two,
)

ABSENT = 0
"""The kind of null, and where there is no value; the others are in `cells_kernels`."""
_HALF, _BROKEN = 256, -1
"""A string that may hold half of a surrogate pair, which is allowed nowhere; invalid JSON, or a number that may be
beyond a double."""

OBJECT_OR_NULL, ROWS_OR_NULL = 1, 2
DEEPEST = 64

_QUOTE, _BACKSLASH, _COMMA, _COLON, _MINUS, _PLUS, _DOT, _ZERO, _NINE = 34, 92, 44, 58, 45, 43, 46, 48, 57
_SPACE, _TAB, _T, _F, _N, _U, _E, _D = 32, 9, 116, 102, 110, 117, 101, 100
_OPEN_BRACE, _CLOSE_BRACE, _OPEN_BRACKET, _CLOSE_BRACKET = 123, 125, 91, 93
_NULL, _TRUE, _FALS = np.uint64(0x6C6C756E), np.uint64(0x65757274), np.uint64(0x736C6166)
_TO_LOWER = 32
_IN_OBJECT, _IN_LIST = 0, 1
_MOST_DIGITS = 18  # fit an int64
_SURE_DIGITS = 15  # so many digits are those of the double that they stand for
_SURE_ZEROS = 3  # with more after the point a number is written with an exponent
_LONGEST_NUMBER, _LONGEST_WITH_EXPONENT = 300, 20  # these are within the range of a double


class Tree(NamedTuple):
    """The wanted members, as numbered names under numbered objects; object 0 is the line.

    first: int32[objects + 1], an object's first name; names: uint8 with 8 bytes after them, name_at int32[names + 1]:
    their bytes. For each name: leaf, the wanted value's number, or -1; under: the number of the object it holds, or -1;
    must: 0, OBJECT_OR_NULL, or ROWS_OR_NULL, a list of objects, each a row. For each leaf: allowed,
    uint8, the bits of the allowed kinds; in_row: 1 for a value of each row. most: rows that a line may have.
    """

    first: Any
    names: Any
    name_at: Any
    leaf: Any
    under: Any
    must: Any
    allowed: Any
    in_row: Any
    most: Any


class Spans(NamedTuple):
    """Where values are: that of leaf l and line or row r at index base[l] + r step[l].

    kinds: uint8; pairs: int32[size, 2], where each starts and stops, both 0 where there is no value. All 0 at first.
    """

    base: Any
    step: Any
    kinds: Any
    pairs: Any


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
def find_lines(data: Any, size: Any, starts: Any) -> Any:
    """Where the lines of the first `size` bytes start: (how many, whether a byte must be escaped in a key, not ASCII).

    data: uint8 with at least BLOCK bytes after `size`; starts: int64 out, with room for `size` + 2; the last is `size`.
    """
    base, count = data.ctypes.data, 0
    special, high = np.uint64(0), np.uint64(0)
    starts[0] = 0
    for at in range(0, size, BLOCK):
        inside = np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(max(at + BLOCK - size, 0))
        special |= np.uint64(special_in_64(base + at)) & inside
        high |= np.uint64(not_ascii_in_64(base + at)) & inside
        found = places_of_one(base + at, np.uint8(LF)) & inside
        while found != np.uint64(0):
            count += 1
            starts[count] = at + np.int64(lowest(found)) + 1
            found &= found - np.uint64(1)
    if starts[count] < size:
        count += 1
        starts[count] = size
    return count, special != np.uint64(0), high != np.uint64(0)


@bare_kernel
def scan(data: Any, starts: Any, tree: Any, spans: Any, scratch: Any, lengths: Any, aside: Any) -> Any:
    """Note all values of the lines that are not set aside; returns how many rows they have.

    data: uint8; starts: int64[lines + 1]; lengths: int64[lines + 1] out, the number of rows of each line that is not
    set aside, without gaps, -1 without a list of rows; aside: bool[lines], in and out.
    """
    count = rows = np.int64(0)
    for line in range(aside.size):
        if aside[line]:
            continue
        stop = _scan_line(data, starts[line], starts[line + 1], count, rows, tree, spans, scratch, lengths)
        if stop < 0:
            aside[line] = True
            _forget(tree, spans, count, rows, -stop)
        else:
            rows = stop
            count += 1
    return rows


@bare_inline
def _forget(tree: Any, spans: Any, line: Any, row: Any, stop: Any) -> None:
    """Clear what was noted of a line, and of its rows from `row` to at most `stop`."""
    for leaf in range(tree.allowed.size):
        first, after = (row, stop) if tree.in_row[leaf] else (line, line + 1)
        for each in range(first, after):
            index = spans.base[leaf] + each * spans.step[leaf]
            spans.kinds[index] = ABSENT
            spans.pairs[index, 0] = spans.pairs[index, 1] = 0


@bare_inline
def _scan_line(
    data: Any, at: Any, end: Any, line: Any, rows: Any, tree: Any, spans: Any, scratch: Any, lengths: Any
) -> Any:
    """The number of rows after the line; for one to be set aside, -(that + 1).

    Invariant: scratch.containers[: depth + 1] are open, the innermost last; for each, objects has the number of the
    object in the Tree, -1 if nothing in it is wanted; for the list of rows, that of each row. fresh: the innermost is
    still empty. list_at: the depth of the wanted list being read, 0 outside of one.
    """
    lengths[line] = -1
    at = skip(data, at, end)
    if at == end or _byte(data, at) != _OPEN_BRACE:
        return -(rows + 1)
    depth, list_at, list_index, fresh = np.int64(0), np.int64(0), np.int64(0), True
    _open(scratch, depth, _IN_OBJECT, 0)
    at += 1
    while True:
        at = skip(data, at, end)
        if at >= end:
            return -(rows + 1)
        is_object = scratch.containers[depth] == _IN_OBJECT
        close = _CLOSE_BRACE if is_object else _CLOSE_BRACKET
        if not (fresh and _byte(data, at) == close):
            name = np.int64(-1)
            if is_object:
                at, name = _member(tree, scratch, depth, data, at, end)
                if at < 0:
                    return -(rows + 1)
            byte, is_row = _byte(data, at), not is_object and scratch.objects[depth] >= 0
            leaf = np.int64(tree.leaf[name]) if name >= 0 else np.int64(-1)
            must = np.int64(tree.must[name]) if name >= 0 else np.int64(0)
            if byte in (_OPEN_BRACE, _OPEN_BRACKET):
                under = _opened(tree, scratch, depth, name, byte, is_row)
                if (
                    under < -1
                    or list_at > 0
                    or depth + 1 == DEEPEST
                    or (is_row and lengths[line] == tree.most)
                ):
                    return -(rows + 1)
                if is_row:
                    rows += 1
                    lengths[line] += 1
                elif must == ROWS_OR_NULL:
                    lengths[line] = 0
                elif leaf >= 0:
                    list_at, list_index = depth + 1, _note(tree, spans, leaf, LIST, line, rows, at, at)
                    if list_index < 0:
                        return -(rows + 1)
                depth += 1
                _open(scratch, depth, _IN_OBJECT if byte == _OPEN_BRACE else _IN_LIST, under)
                fresh = True
                at += 1
                continue
            begin = at
            at, kind = scalar(data, at, end)
            if (
                is_row
                or kind == _BROKEN
                or (kind & _HALF != 0 and list_at > 0)
                or (kind != ABSENT and must != 0)
            ):
                return -(rows + 1)
            if leaf >= 0 and kind != ABSENT:
                quoted = np.int64(_byte(data, begin) == _QUOTE)
                if _note(tree, spans, leaf, kind, line, rows, begin + quoted, at - quoted) < 0:
                    return -(rows + 1)
        while True:
            at = skip(data, at, end)
            if at >= end:
                return -(rows + 1)
            if _byte(data, at) == _COMMA:
                at += 1
                fresh = False
                break
            if _byte(data, at) != (
                _CLOSE_BRACE if scratch.containers[depth] == _IN_OBJECT else _CLOSE_BRACKET
            ):
                return -(rows + 1)
            at += 1
            if list_at > 0 and depth == list_at:
                spans.pairs[list_index, 1] = at
                list_at = np.int64(0)
            depth -= 1
            if depth < 0:
                return rows if skip(data, at, end) == end else -(rows + 1)
            fresh = False


@bare_inline
def _member(tree: Any, scratch: Any, depth: Any, data: Any, at: Any, end: Any) -> Any:
    """From the start of a name: the offset of its value, -1 if broken, escaped or repeated; its number, or -1.

    Members mostly come in one order: the name that last followed the previous one is tried first.
    """
    if _byte(data, at) != _QUOTE:
        return np.int64(-1), np.int64(-1)
    under, begin = scratch.objects[depth], at + 1
    name = scratch.after[scratch.last[depth]] if under >= 0 else np.int64(-1)
    if name >= 0 and _is_name(tree, name, data, begin, end):
        at = begin + tree.name_at[name + 1] - tree.name_at[name] + 1
    else:
        name = np.int64(-1)
        at, kind = string(data, begin, end)
        if kind != STRING:
            return np.int64(-1), np.int64(-1)
        if under >= 0:
            for each in range(tree.first[under], tree.first[under + 1]):
                if begin + tree.name_at[each + 1] - tree.name_at[each] + 1 == at and _is_name(
                    tree, each, data, begin, end
                ):
                    scratch.after[scratch.last[depth]] = name = np.int64(each)
                    break
    if name >= 0:
        scratch.last[depth] = name
        if scratch.seen[name] == scratch.serials[depth] and (tree.leaf[name] >= 0 or tree.under[name] >= 0):
            return np.int64(-1), name
        scratch.seen[name] = scratch.serials[depth]
    at = skip(data, at, end)
    if at >= end or _byte(data, at) != _COLON:
        return np.int64(-1), name
    at = skip(data, at + 1, end)
    return at if at < end else np.int64(-1), name


@bare_inline
def _is_name(tree: Any, name: Any, data: Any, begin: Any, end: Any) -> Any:
    """Whether a name and a quote after it are at `begin`."""
    own = tree.names.ctypes.data + np.int64(tree.name_at[name])
    size, here = np.int64(tree.name_at[name + 1] - tree.name_at[name]), data.ctypes.data + begin
    if begin + size >= end or load_u8(here + size) != _QUOTE:
        return False
    while size > 8:
        if load_u64(own) != load_u64(here):
            return False
        own += 8
        here += 8
        size -= 8
    return size == 0 or (load_u64(own) ^ load_u64(here)) << np.uint64(64 - 8 * size) == np.uint64(0)


@bare_inline
def _opened(tree: Any, scratch: Any, depth: Any, name: Any, byte: Any, is_row: Any) -> Any:
    """The number of the object that a brace opens, or of the rows that a bracket opens.

    -1: nothing in it is wanted; -2: not allowed here.
    """
    must = np.int64(tree.must[name]) if name >= 0 else np.int64(0)
    if byte == _OPEN_BRACKET:
        if is_row or must == OBJECT_OR_NULL:
            return np.int64(-2)
        return np.int64(tree.under[name]) if must == ROWS_OR_NULL else np.int64(-1)
    if is_row:
        return scratch.objects[depth]
    if name < 0:
        return np.int64(-1)
    return np.int64(-2) if tree.leaf[name] >= 0 or must == ROWS_OR_NULL else np.int64(tree.under[name])


@bare_inline
def _open(scratch: Any, depth: Any, container: Any, under: Any) -> None:
    scratch.serial[0] += 1
    scratch.containers[depth], scratch.objects[depth] = container, under
    scratch.serials[depth] = scratch.serial[0]
    scratch.last[depth] = scratch.seen.size + under


@bare_inline
def _note(tree: Any, spans: Any, leaf: Any, kind: Any, line: Any, rows: Any, begin: Any, stop: Any) -> Any:
    """Note a value; returns its index in the spans, or -1 if its kind is not allowed."""
    if kind & ~np.int64(tree.allowed[leaf]) != 0:
        return np.int64(-1)
    index = spans.base[leaf] + spans.step[leaf] * (line if tree.in_row[leaf] == 0 else rows - 1)
    spans.kinds[index] = kind
    spans.pairs[index, 0], spans.pairs[index, 1] = begin, stop
    return index


@bare_inline
def _byte(data: Any, at: Any) -> Any:
    return load_u8(data.ctypes.data + at)  # an index could be negative, which numba would test


@bare_inline
def skip(data: Any, at: Any, end: Any) -> Any:
    """The offset after the blanks at `at`."""
    while at < end and _byte(data, at) in (_SPACE, LF, CR, _TAB):
        at += 1
    return at


@bare_inline
def string(data: Any, at: Any, end: Any) -> Any:
    """From after an opening quote: the offset after the closing one, and STRING, with ESCAPED and _HALF, or _BROKEN."""
    base, kind = data.ctypes.data, np.int64(STRING)
    while at < end:
        found = places_of_two(base + at, np.uint8(_QUOTE), np.uint8(_BACKSLASH)) | np.uint64(
            control_in_64(base + at)
        )
        at += np.int64(lowest(found))
        if found == np.uint64(0) or at >= end:
            continue
        byte = load_u8(base + at)
        at += 1
        if byte == _QUOTE:
            return at, kind
        if byte != _BACKSLASH:
            return at, np.int64(_BROKEN)
        escape = _byte(data, at) if at < end else np.uint8(0)
        at += 1
        if escape == _U:
            if at + 4 > end or not _are_hex(data, at):
                return at, np.int64(_BROKEN)
            if not (_byte(data, at) | _TO_LOWER == _D and _byte(data, at + 1) >= 56):  # no surrogate
                kind |= ESCAPED
                at += 4
            elif _byte(data, at + 1) in (56, 57, 65, 66, 97, 98) and _is_low_escape(data, at + 4, end):
                kind |= ESCAPED
                at += 10
            else:
                kind |= _HALF
                at += 4
        elif escape in (_QUOTE, _BACKSLASH, 47, 98, _F, _N, 114, _T):  # / b r
            kind |= ESCAPED
        else:
            return at, np.int64(_BROKEN)
    return at, np.int64(_BROKEN)


@bare_inline
def _is_low_escape(data: Any, at: Any, end: Any) -> Any:
    """A whole escape from DC00 to DFFF."""
    return (
        at + 6 <= end
        and _byte(data, at) == _BACKSLASH
        and _byte(data, at + 1) == _U
        and _are_hex(data, at + 2)
        and _byte(data, at + 2) | _TO_LOWER == _D
        and _byte(data, at + 3) | _TO_LOWER >= 99
    )


@bare_inline
def _are_hex(data: Any, at: Any) -> Any:
    for index in range(at, at + 4):
        byte = _byte(data, index)
        if not (_ZERO <= byte <= _NINE or 97 <= byte | _TO_LOWER <= 102):
            return False
    return True


@bare_inline
def scalar(data: Any, at: Any, end: Any) -> Any:
    """The offset after the scalar at `at`, and its kind; ABSENT is null."""
    byte = _byte(data, at)
    if byte == _QUOTE:
        return string(data, at + 1, end)
    word = load_u64(data.ctypes.data + at) & np.uint64(0xFFFFFFFF)
    if word in (_NULL, _TRUE):
        return at + 4, np.int64(ABSENT if word == _NULL else BOOLEAN) if at + 4 <= end else np.int64(_BROKEN)
    if word == _FALS and _byte(data, at + 4) == _E:
        return at + 5, np.int64(BOOLEAN) if at + 5 <= end else np.int64(_BROKEN)
    begin, negative = at, byte == _MINUS
    at = _digits(data, begin + negative, end)
    whole, first_is_zero = at - begin - negative, _byte(data, begin + negative) == _ZERO
    if whole == 0 or (whole > 1 and first_is_zero) or whole > _LONGEST_NUMBER:
        return at, np.int64(_BROKEN)
    fraction, zeros, last, kind = np.int64(0), np.int64(0), _NINE, np.int64(WHOLE)
    if at < end and _byte(data, at) == _DOT:
        at += 1
        first = at
        while at < end and _byte(data, at) == _ZERO:
            at += 1
        zeros = at - first
        at = _digits(data, at, end)
        fraction, last, kind = at - first, _byte(data, at - 1), np.int64(FLOAT)
        if fraction == 0 or at - begin > _LONGEST_NUMBER:
            return at, np.int64(_BROKEN)
    exponent = at < end and _byte(data, at) | _TO_LOWER == _E
    if exponent:
        short = at - begin <= _LONGEST_WITH_EXPONENT
        at += 1
        at += at < end and _byte(data, at) in (_PLUS, _MINUS)
        first = at
        at = _digits(data, at, end)
        if not short or at == first or at > first + 2:
            return at, np.int64(_BROKEN)
        kind = np.int64(FLOAT)
    if kind == WHOLE:
        if whole > _MOST_DIGITS:
            kind |= LONG
        elif negative and first_is_zero:
            kind |= NOT_CANONICAL
    elif (
        exponent
        or whole + fraction > _SURE_DIGITS
        or last == _ZERO
        or (first_is_zero and zeros > _SURE_ZEROS)
    ):
        kind |= NOT_CANONICAL
    return at, kind


@bare_inline
def _digits(data: Any, at: Any, end: Any) -> Any:
    while at < end and _ZERO <= _byte(data, at) <= _NINE:
        at += 1
    return at


@bare_kernel
def find_members(
    data: Any, lists: Any, pairs: Any, offsets: Any, member_kinds: Any, member_pairs: Any
) -> None:
    """The kinds and places of all lists' members, in order, as in `Spans`.

    lists: bool[n], which pairs are of lists, which were scanned, so none is broken; offsets, int32[n + 1], out: the
    first member of each.
    """
    index = np.int32(0)
    for i in range(lists.size):
        offsets[i] = index
        if lists[i]:
            at, end = np.int64(pairs[i, 0]) + 1, np.int64(pairs[i, 1]) - 1
            at = skip(data, at, end)
            while at < end:
                begin = at
                at, kind = scalar(data, at, end)
                quoted = np.int64(_byte(data, begin) == _QUOTE)
                member_kinds[index] = kind
                member_pairs[index, 0] = begin + quoted if kind != ABSENT else 0
                member_pairs[index, 1] = at - quoted if kind != ABSENT else 0
                index += np.int32(1)
                at = skip(data, skip(data, at, end) + 1, end)
    offsets[lists.size] = index
