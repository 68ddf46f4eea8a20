"""Parses chunks of raw events into columns and validates them.

In: the lines of a Chunk. Out: Events. A block of lines is read in one scan (`BlockReader`), whose values become columns
without Python for each event; lines that need judgement are read one by one (`read_lines`), the slow, exact way, which
gives the same values and says what is wrong with an event and where. Unwanted members are checked and skipped. Parsing
never fails: an event that cannot be joined is BAD, with a reason.

Of a run of several partitions (docs/distributed.md) each parses its own events: a request belongs to one partition by a
hash of its id, so an impression and its clicks are in the same one. A line whose id cannot be read belongs to one
partition by a hash of its bytes: there it becomes a dead letter, once.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model_store.clock import SYSTEM, Clock, NeverBack
from trainer.events.columns import (
    BUCKET,
    CONTEXT,
    FEATURES,
    ITEMS,
    RARE,
    READ,
    RESERVED,
    SET,
    TEXT,
    UNKNOWN,
    USER,
    Column,
    Path,
    Wanted,
    buckets,
    derive,
    digests,
    shaped,
    together,
)
from trainer.events.events import (
    ACTIVATED,
    BAD,
    CLICK,
    CONVERSION,
    DEFERRED,
    FEEDBACK,
    IMPRESSION,
    MAX_ITEMS,
    MAX_LINE_BYTES,
    NEVER_US,
    OTHER,
    SEEN,
    SEEN_TO,
    VIEW,
    VIEWED,
    Events,
    Int64s,
    Raw,
)
from trainer.events.parse_kernels import UNSURE, find_twice, share_of_bytes, shares
from trainer.formats.cells import padded_lines
from trainer.formats.cells_kernels import ESCAPED, FLOAT, LIST, LONG, NOT_CANONICAL, STRING, WHOLE
from trainer.formats.json_kernels import ABSENT, OBJECT_OR_NULL, ROWS_OR_NULL
from trainer.formats.jsonl import SCALAR, BadRow, Bools, Lines, Paths, ValueSpans, canonical, column_of, load
from trainer.formats.times import NO_TIME, parse_times

Ints = npt.NDArray[np.int64]
Range = tuple[int, int]

_BLOCK_BYTES = 4 << 20


def parse(data: bytes, starts: Ints, wanted: Wanted, arrived_us: Ints | None = None) -> Events:
    """The events on the lines of `data`, as `Parser.parse` for one block alone."""
    return Parser(wanted).parse(data, starts, arrived_us)


class Parser:
    """Parses the chunks of one source; with a `share`, only the events of that partition."""

    def __init__(self, wanted: Wanted, share: PartitionShare | None = None, clock: Clock = SYSTEM) -> None:
        self._wanted, self._clock = wanted, NeverBack(clock)
        self._share = share
        self._blocks = BlockReader(wanted)

    def parse(self, data: bytes, starts: Ints, arrived_us: Ints | None = None) -> Events:
        """data, starts, arrived_us: as in Chunk. Without arrived_us the present time bounds the events' times."""
        # With it, the join takes an event of a clock that is ahead at its arrival: none is lost.
        latest_us = NEVER_US if arrived_us is not None else int(self._clock.time() * 1e6) + AHEAD_US
        if self._share is None:
            return self._parse(data, starts, latest_us)
        mine = self._share.mine(data, starts)
        lines = np.flatnonzero(mine)
        own = b"".join([data[starts[line] : starts[line + 1]] for line in lines.tolist()])
        own_starts = np.concatenate([[0], np.cumsum(np.diff(starts)[lines])])
        return _among_others(self._parse(own, own_starts, latest_us), mine)

    def _parse(self, data: bytes, starts: Ints, latest_us: int) -> Events:
        parts = []
        for first, stop in _ranges(starts):
            size = int(starts[stop] - starts[first])
            if first + 1 == stop and size > MAX_LINE_BYTES:
                reason = f"got a line of {size:,} bytes, expected at most {MAX_LINE_BYTES:,}"
                parts.append(validated(replace(read_lines((b"{}",), self._wanted), bad={0: reason}), 0))
            else:
                part, own = data[starts[first] : starts[stop]], starts[first : stop + 1] - starts[first]
                parts.append(self._block(part, own, latest_us))
        events = joined(parts) if parts else validated(read_lines((), self._wanted), latest_us)
        for derived in self._wanted.derived:
            events = replace(events, columns=derive(derived, events.columns, events.first))
        return events

    def _block(self, data: bytes, starts: Ints, latest_us: int) -> Events:
        """The events of a block: by one scan, except the lines that it sets aside."""
        raw, aside = self._blocks.read(padded_lines(np.frombuffer(data, np.uint8))[0], starts)
        events = validated(raw, latest_us)
        if not aside.any():
            return events
        lines = (data[starts[line] : starts[line + 1]].rstrip(b"\r\n") for line in np.flatnonzero(aside))
        return interleaved(events, validated(read_lines(lines, self._wanted), latest_us), aside)


def _ranges(starts: Ints) -> Iterator[Range]:
    """Ranges of lines of about a block each; a line that is too long is a range of its own."""
    count, first = starts.size - 1, 0
    alone = [int(line) for line in np.flatnonzero(np.diff(starts) > MAX_LINE_BYTES)]
    for bound in (*alone, count):
        while first < bound:
            stop = int(np.searchsorted(starts, starts[first] + _BLOCK_BYTES, "right")) - 1
            stop = min(max(stop, first + 1), bound)
            yield first, stop
            first = stop
        if bound < count:
            yield bound, bound + 1
            first = bound + 1


OF_EVENTS = ("kind", "time_us", "request", "item", "what")
"""The arrays of Events with one element an event, but for `first`."""


def joined(parts: Sequence[Events]) -> Events:
    """The events of all parts, concatenated."""
    if len(parts) == 1:
        return parts[0]
    before = np.cumsum([0, *(len(part) for part in parts)]).tolist()
    rows = np.cumsum([0, *(part.items.size for part in parts)]).tolist()
    bad = dict[int, str]()
    for part, first in zip(parts, before, strict=False):
        bad |= {first + number: reason for number, reason in part.bad.items()}
    return Events(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in OF_EVENTS},
        first=np.concatenate([[0], *(part.first[1:] + row for part, row in zip(parts, rows, strict=False))]),
        items=np.concatenate([part.items for part in parts]),
        columns=together([part.columns for part in parts]),
        bad=bad,
    )


def interleaved(kept: Events, aside: Events, is_aside: npt.NDArray[np.bool_]) -> Events:
    """Both in their original order. is_aside: bool[events of both]."""
    order = np.empty(is_aside.size, np.int64)
    order[~is_aside] = np.arange(len(kept))
    order[is_aside] = len(kept) + np.arange(len(aside))
    both = joined([kept, aside])
    lengths = np.diff(both.first)
    rows = gathered(both.first[:-1][order], lengths[order])
    items, columns = both.items, both.columns
    if aside.items.size:
        items, columns = items[rows], {name: column.take(pa.array(rows)) for name, column in columns.items()}
    rank = np.argsort(order)
    members: dict[str, Any] = {name: getattr(both, name)[order] for name in OF_EVENTS}
    return Events(
        **members,
        first=np.concatenate([[0], np.cumsum(lengths[order])]),
        items=items,
        columns=columns,
        bad={
            int(rank[number]): reason for number, reason in sorted(both.bad.items(), key=lambda b: rank[b[0]])
        },
    )


def gathered(first: Int64s, lengths: Int64s) -> Int64s:
    """Row numbers of ranges, concatenated: `lengths[i]` rows from first[i] on."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(first - before, lengths) + np.arange(lengths.sum())


AHEAD_US = 300_000_000
"""How far the time of an event of a source without a clock may be ahead of the present: five minutes."""

_TABLE = 1 << (2 * MAX_ITEMS).bit_length()
_WHAT = {
    "click": CLICK,
    "conversion": CONVERSION,
    "seen": SEEN,
    "activated": ACTIVATED,
    "deferred": DEFERRED,
    "view": VIEWED,
}
Reasons = Iterator[tuple[int, str]]


def validated(raw: Raw, latest_us: int) -> Events:
    """The events of a block, validated. latest_us: an event with a later time is bad."""
    items = digests(raw.ids)
    lengths = np.maximum(raw.lengths, 0)
    first = np.concatenate([[0], np.cumsum(lengths)])
    times, untimely = parse_times(raw.ts, None)
    what, unknown = _what(raw)
    position = _positions(raw, what)
    views = (what == VIEWED) & (raw.lengths >= 0)
    bad = dict(raw.bad)  # of each event the first reason
    for reasons in (
        _kinds(raw, what, position),
        _without_request(raw, views),
        _views(raw, views),
        ((event, f"ts: {reason}") for event, reason in untimely),
        _times(times, latest_us),
        _items(raw, lengths, first, items),
        _feedback(raw, unknown),
    ):
        for event, reason in reasons:
            bad.setdefault(event, reason)
    # The good events keep their values; the bad ones have neither values nor rows.
    kind = np.where(raw.lengths >= 0, IMPRESSION, FEEDBACK).astype(np.uint8)
    kind[views] = VIEW
    columns, numbers = dict(raw.columns), np.array(sorted(bad), np.int64)
    unknown = columns[UNKNOWN]
    if unknown.null_count == len(unknown):  # nearly always: a null array takes no memory
        columns[UNKNOWN] = pa.nulls(len(unknown))
    for name in READ.keys() - RESERVED.keys():
        if name in columns and columns[name].null_count == len(columns[name]):
            del columns[name]
    request = digests(raw.request)
    columns[BUCKET] = buckets(columns[BUCKET], np.repeat(request, np.diff(first)))
    kind[numbers] = BAD
    if numbers.size and (raw.lengths[numbers] > 0).any():
        kept = np.repeat(kind != BAD, np.diff(first))
        items, mask = items[kept], pa.array(kept)
        columns = {name: column.filter(mask) for name, column in columns.items()}
    feedback, deferred = kind == FEEDBACK, (kind == IMPRESSION) & (what == DEFERRED)
    item = digests(raw.item)
    if position.any():
        item = np.where(position > 0, position.astype(np.uint64), item)
        what = np.where(position > 0, SEEN_TO, what)
    lengths = np.where(kind == BAD, 0, np.maximum(raw.lengths, 0))
    return Events(
        kind=kind,
        time_us=np.where(kind == BAD, 0, times),
        request=np.where(kind == BAD, np.uint64(0), request),
        item=np.where(feedback, item, np.uint64(0)),
        what=np.where(feedback | deferred, what, 0).astype(np.uint8),
        first=np.concatenate([[0], np.cumsum(lengths)]),
        items=items,
        columns=columns,
        bad={int(number): bad[number] for number in numbers.tolist()},
    )


def _kinds(raw: Raw, what: npt.NDArray[np.uint8], position: Ints) -> Reasons:
    has_items, has_item = raw.lengths >= 0, np.asarray(raw.item.is_valid())
    of_list = ~has_items & ((what == ACTIVATED) | (position != 0))
    for event in np.flatnonzero(has_items & has_item).tolist():
        yield event, "got both items and item, expected items (an impression) or item (feedback)"
    for event in np.flatnonzero(~has_items & ~has_item & ~of_list).tolist():
        yield event, "got neither items nor item, expected items (an impression) or item (feedback)"
    for event in np.flatnonzero(has_item & of_list).tolist():
        given, instead = (
            ("item", "neither") if what[event] == ACTIVATED else ("item and position", "one of them")
        )
        yield event, f"event {_text(raw.what, event)}: got {given}, expected {instead}"
    for event in np.flatnonzero(position < 0).tolist():
        yield event, f"position: got {_text(raw.position, event)}, expected a whole number of 1 or more"


def _without_request(raw: Raw, views: Bools) -> Reasons:
    empty = pc.equal(pc.binary_length(raw.request), 0).fill_null(True)
    for event in np.flatnonzero(np.asarray(empty) & ~views).tolist():
        what = "empty" if raw.request[event].is_valid else "missing"
        yield event, f"request_id: {what}, expected text or a whole number"


def _views(raw: Raw, views: Bools) -> Reasons:
    for event in np.flatnonzero(views & (raw.lengths != 1)).tolist():
        yield event, f"items: got {raw.lengths[event]:,} of them, expected the one that was viewed"


def _times(times: Ints, latest_us: int) -> Reasons:
    for event in np.flatnonzero(times == NO_TIME).tolist():
        yield event, "ts: missing, expected the time of the event"
    for event in np.flatnonzero(times > latest_us).tolist():
        yield event, f"ts: got {_shown(times[event])}, expected no later than five minutes after the present"


def _items(raw: Raw, lengths: Ints, first: Ints, items: npt.NDArray[np.uint64]) -> Reasons:
    if not items.all():
        for row in np.flatnonzero(items == 0).tolist():
            event, index = _item_of(row, first)
            what = "empty" if raw.ids[row].is_valid else "missing"
            yield event, f"items[{index}].id: {what}, expected text or a whole number"
    twice = np.empty(lengths.size, np.int64)
    table = np.full(_TABLE, -1, np.int64)
    find_twice(first, items, table, twice)
    for row in twice[twice >= 0].tolist():
        event, index = _item_of(row, first)
        yield event, f"items[{index}].id: got {_text(raw.ids, row)} a second time, expected each item once"


def _feedback(raw: Raw, unknown: Iterable[int]) -> Reasons:
    for event in np.flatnonzero(
        np.asarray(pc.equal(pc.binary_length(raw.item), 0).fill_null(False))
    ).tolist():
        yield event, "item: empty, expected text or a whole number"
    for event in unknown:
        yield (
            event,
            f'event: got {_text(raw.what, event)}, expected "click", "conversion", "seen" or "activated"',
        )


def _what(raw: Raw) -> tuple[npt.NDArray[np.uint8], list[int]]:
    """What each event says, by its `event`, and the numbers of events without items where that is not of feedback."""
    encoded = raw.what.cast(pa.string()).fill_null("click").dictionary_encode()
    known = np.array([_WHAT.get(text, 0) for text in encoded.dictionary.to_pylist()], np.uint8)
    what = known[encoded.indices.to_numpy()] if known.size else np.zeros(0, np.uint8)
    if not {0, DEFERRED, VIEWED}.intersection(known.tolist()):  # nearly always
        return what, []
    return what, np.flatnonzero(np.isin(what, (0, DEFERRED, VIEWED)) & (raw.lengths < 0)).tolist()


def _positions(raw: Raw, what: npt.NDArray[np.uint8]) -> Ints:
    """The position up to which a `seen` event says that the list was seen: 0 for none, -1 for one that is wrong."""
    position = np.zeros(what.size, np.int64)
    seen = np.flatnonzero((what == SEEN) & (raw.lengths < 0))
    if seen.size:
        given = raw.position.take(pa.array(seen)).dictionary_encode()
        texts = given.dictionary.to_pylist()
        # isdigit() alone is true of "²", which int() refuses.
        right = (text.isascii() and text.isdigit() and len(text) < 10 and int(text) for text in texts)
        known = np.array([*(number or -1 for number in right), 0])  # the last one for null
        position[seen] = known[given.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
    return position


def _item_of(row: int, first: Ints) -> tuple[int, int]:
    event = int(np.searchsorted(first, row, "right")) - 1
    return event, row - int(first[event])


def _text(texts: pa.Array, index: int) -> str:
    return f'"{texts[index].as_py().decode()[:80]}"'


def _shown(time_us: int) -> str:
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(time_us))).isoformat()
    except OverflowError:
        return f"{time_us} µs since 1970"


_LATEST = 9e18
_ID = STRING | ESCAPED | WHOLE | LONG
_NUMBER = WHOLE | LONG | FLOAT | NOT_CANONICAL
_KINDS = {"text": _ID, "whole": WHOLE, "number": _NUMBER}
_MEMBERS: dict[Path, int] = {
    ("request_id",): _ID,
    ("ts",): SCALAR,
    ("item",): _ID,
    ("event",): _ID,
    ("position",): SCALAR,
    (ITEMS, "id"): _ID,
}
_OBJECTS = {
    (ITEMS,): ROWS_OR_NULL,
    (ITEMS, FEATURES): OBJECT_OR_NULL,
    (CONTEXT,): OBJECT_OR_NULL,
    (USER,): OBJECT_OR_NULL,
}


class BlockReader:
    """Reads blocks for the wanted columns. Keeps no state between blocks."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        # Only the kinds that all readers of a path take are allowed there.
        allowed = dict(_MEMBERS)
        for path, kind in READ.values():
            allowed[path] = allowed.get(path, _KINDS[kind]) & _KINDS[kind]
        for column in wanted.columns:
            kinds = SCALAR | LIST if column.form == "set" else SCALAR
            allowed |= {path: allowed.get(path, kinds) & kinds for path in column.paths}
        self._paths = Paths.of(allowed, _OBJECTS, MAX_ITEMS)

    def read(self, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]) -> tuple[Raw, Bools]:
        """The events of the lines that are not set aside, and bool[lines]: which are.

        data: with at least 64 bytes after the lines, which begin at `starts`.
        """
        aside = np.zeros(starts.size - 1, np.bool_)
        while True:
            block = _Block(Lines(data, starts, self._paths, aside))
            mixed = block.mixed(column for column in self._wanted.columns if column.form == "set")
            if not mixed.any():
                return self._raw(block), aside
            aside[np.flatnonzero(~aside)[mixed]] = True

    def _raw(self, block: _Block) -> Raw:
        values = block.lines.values
        columns = {column.name: _column(block, column) for column in self._wanted.columns}
        for name, (path, kind) in READ.items():
            own = values(path)
            if not own.kind and name not in RESERVED:
                continue
            array = own.canonical_or_null() if kind == "text" else _numbers(own, RESERVED_TYPES[kind])
            columns[name] = array if path[0] == ITEMS else array.take(pa.array(block.event_of))
        return Raw(
            request=values(("request_id",)).canonical_or_null(),
            ts=_times_of(values(("ts",))),
            item=values(("item",)).canonical_or_null(),
            position=values(("position",)).canonical_or_null(),
            what=values(("event",)).canonical_or_null(),
            lengths=block.lines.lengths,
            ids=values((ITEMS, "id")).canonical_or_null(),
            columns=columns,
        )


class _Block:
    """Scanned events. event_of: the number of each item's event."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        numbers = np.arange(lines.count, dtype=np.int32)
        self.event_of = np.repeat(numbers, np.maximum(lines.lengths, 0))

    def first_values(self, column: Column) -> tuple[ValueSpans | None, bool]:
        """The first value of each item, False; or of each event, True, if no item has its own. None: there is none."""
        used = [(path[0] == ITEMS, self.lines.values(path)) for path in column.paths]
        used = [(in_item, values) for in_item, values in used if values.kind]
        of_events = not any(in_item for in_item, _ in used)
        first: ValueSpans | None = None
        for in_item, values in used:
            own = values if in_item or of_events else values.take(self.event_of)
            first = own if first is None else first.or_else(own)
        return first, of_events

    def mixed(self, columns: Iterable[Column]) -> Bools:
        """The events with a scalar where others have a list in the same column: one array cannot hold both."""
        mixed = np.zeros(self.lines.count, np.bool_)
        for column in columns:
            values, of_events = self.first_values(column)
            if values is not None and values.kind & LIST:
                scalars = (values.kinds != LIST) & (values.kinds != ABSENT)
                mixed[np.flatnonzero(scalars) if of_events else self.event_of[scalars]] = True
        return mixed


def _column(block: _Block, column: Column) -> pa.Array:
    values, of_events = block.first_values(column)
    if values is None:
        return shaped(pa.nulls(len(block.event_of)), column.form)
    array = _shaped(values, column)
    return array.take(pa.array(block.event_of)) if of_events else array


def _shaped(values: ValueSpans, column: Column) -> pa.Array:
    if column.form == "set" and not values.kind:
        return pa.nulls(len(values), SET)
    if column.form == "set" and values.kind == LIST:
        return values.lists(ValueSpans.canonical)
    if column.form == "number":
        numbers = shaped(values.written(), "number")
        if pa.types.is_floating(numbers.type):
            return numbers
    return values.canonical()


def _times_of(values: ValueSpans) -> pa.Array:
    """Numbers if all values are numbers in the range of times, which is cheaper than text; else canonical text."""
    if not values.kind & ~_NUMBER:
        numbers = _numbers(values, pa.float64())
        if not (np.abs(numbers.to_numpy(zero_copy_only=False)) > _LATEST).any():
            return numbers
    return values.canonical()


def _numbers(values: ValueSpans, kind: pa.DataType) -> pa.Array:
    return (
        values.or_null(values.written()).cast(pa.string()).cast(kind)
        if values.kind
        else pa.nulls(len(values), kind)
    )


_LARGEST = int(sys.float_info.max)
_INT64 = 2**63


RESERVED_TYPES = {"whole": pa.int64(), "number": pa.float64(), "text": TEXT}


def read_lines(lines: Iterable[bytes], wanted: Wanted) -> Raw:
    """The events on lines of JSON."""
    events, bad = list[_Event](), dict[int, str]()
    for number, line in enumerate(lines):
        try:
            events.append(_Event(load(line), wanted))
        except BadRow as reason:
            bad[number] = str(reason)
            events.append(_Event({}, wanted))
    ids = [each for event in events for each in event.ids]
    rows = [row for event in events for row in event.rows]
    split = len(wanted.columns)
    values = list(zip(*rows, strict=True)) or [()] * (split + len(READ))
    columns = {
        column.name: shaped(column_of(each), column.form)
        for column, each in zip(wanted.columns, values[:split], strict=True)
    }
    for (name, (_, kind)), each in zip(READ.items(), values[split:], strict=True):
        columns[name] = _texts(each) if kind == "text" else pa.array(each, RESERVED_TYPES[kind])
    return Raw(
        request=_texts(event.request for event in events),
        ts=column_of([event.ts for event in events]),
        item=_texts(event.item for event in events),
        position=_texts(event.position for event in events),
        what=_texts(event.what for event in events),
        lengths=np.array([event.length for event in events], np.int64),
        ids=_texts(ids),
        columns=columns,
        bad=bad,
    )


class _Event:
    """One event's members, each checked for its type. Raises BadRow."""

    def __init__(self, event: dict[str, Any], wanted: Wanted) -> None:
        self.request = _member_text(event.get("request_id"), "request_id")
        self.ts = _scalar(event.get("ts"), "ts")
        self.item = _member_text(event.get("item"), "item")
        self.what = _member_text(event.get("event"), "event")
        for name in (CONTEXT, USER):
            _check_object(event.get(name), name)
        items = event.get(ITEMS)
        if items is not None and not isinstance(items, list):
            raise BadRow(f"{ITEMS}: got {_named(items)}, expected a list of objects")
        is_seen = self.what == "seen" and items is None and event.get("position") is not None
        self.position = canonical(_scalar(event["position"], "position")) if is_seen else None
        self.length = -1 if items is None else len(items)
        if self.length > MAX_ITEMS:
            raise BadRow(f"{ITEMS}: got {self.length:,} of them, expected at most {MAX_ITEMS:,}")
        self.ids, self.rows = list[str | None](), list[list[Any]]()
        for index, item in enumerate(items or ()):
            self._add(event, item, f"{ITEMS}[{index}]", wanted)

    def _add(self, event: dict[str, Any], item: Any, where: str, wanted: Wanted) -> None:
        if not isinstance(item, dict):
            raise BadRow(f"{where}: got {_named(item)}, expected an object")
        _check_object(item.get(FEATURES), f"{where}.{FEATURES}")
        self.ids.append(_member_text(item.get("id"), f"{where}.id"))
        row = [_value(event, item, where, column) for column in wanted.columns]
        for name, (path, kind) in READ.items():
            value, at = _at(event, item, where, path)
            try:
                row.append(_READ[kind](value, at))
            except BadRow:
                # Of another log's own member of this name nothing is learned, so that no event is bad for it.
                if name not in RARE:
                    raise
                row.append(None)
        self.rows.append(row)


def _value(event: dict[str, Any], item: dict[str, Any], where: str, column: Column) -> Any:
    for path in column.paths:
        value, at = _at(event, item, where, path)
        if value is not None:
            return _scalar(value, at) if column.form != "set" else _several(value, at)
    return None


def _at(event: dict[str, Any], item: dict[str, Any], where: str, path: Path) -> tuple[Any, str]:
    """The value at a path, None if absent, and the path in words."""
    inside = path[0] == ITEMS
    value: Any = item if inside else event
    for part in path[1:] if inside else path:
        if not isinstance(value, dict):
            return None, ""
        value = value.get(part)
    return value, ".".join((where, *path[1:]) if inside else path)


def _member_text(value: Any, where: str) -> str | None:
    """Text, also of a whole number."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadRow(f"{where}: got {_named(value)}, expected text or a whole number")
    return canonical(_scalar(value, where))


def _whole(value: Any, where: str) -> int | None:
    number = _number(value, where)
    if number is None:
        return None
    if number != int(number) or not -_INT64 <= int(value) < _INT64:
        raise BadRow(f"{where}: got {canonical(value)}, expected a whole number of 64 bits")
    return int(value)


def _number(value: Any, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRow(f"{where}: got {_named(value)}, expected a number")
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise BadRow(f"{where}: got a whole number that no double can hold")
    return float(_scalar(value, where))


_READ = {"text": _member_text, "whole": _whole, "number": _number}


def _scalar(value: Any, where: str) -> Any:
    if isinstance(value, dict | list):
        raise BadRow(f"{where}: got {_named(value)}, expected text, a number or a boolean")
    if isinstance(value, float) and not math.isfinite(value):
        raise BadRow(f"{where}: got {value}, expected a finite number")
    if isinstance(value, str) and not value.isascii():
        _check_unicode(value, where)
    return value


def _several(value: Any, where: str) -> Any:
    """A set: a scalar, a list of scalars, or an object of numbers."""
    if isinstance(value, list):
        for index, each in enumerate(value):
            _scalar(each, f"{where}[{index}]")
    elif isinstance(value, dict):
        for member, x in value.items():
            _check_unicode(member, where)
            _number(x, f"{where}.{member}")
    else:
        _scalar(value, where)
    return value


def _check_unicode(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadRow(f"{where}: got half of a surrogate pair, expected Unicode text") from None


def _check_object(value: Any, where: str) -> None:
    if value is not None and not isinstance(value, dict):
        raise BadRow(f"{where}: got {_named(value)}, expected an object")


def _named(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", type(None): "null", bool: "a boolean"}
    return names.get(type(value), "a number")


def _texts(values: Iterable[str | None]) -> pa.Array:
    return pa.array(list(values), pa.string()).cast(TEXT)


@dataclass(frozen=True)
class PartitionShare:
    """Partition `number` of `count`, numbered from 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def mine(self, data: bytes, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """bool[lines]: which lines are events of this partition. A function of each line's bytes alone."""
        found = np.empty(starts.size - 1, np.int64)
        shares(np.frombuffer(data, np.uint8), starts, self.count, found)
        for number in np.flatnonzero(found == UNSURE).tolist():
            line = data[starts[number] : starts[number + 1]]
            text = line.rstrip(b"\r\n")
            with suppress(ValueError, RecursionError):  # the line is a bad event
                event = json.loads(text) if len(line) <= MAX_LINE_BYTES else None
                request = event.get("request_id") if isinstance(event, dict) else None
                if isinstance(request, str) or (isinstance(request, int) and not isinstance(request, bool)):
                    text = str(request).encode("utf-8", "surrogatepass")
            found[number] = share_of_bytes(np.frombuffer(text, np.uint8), self.count)
        mine: npt.NDArray[np.bool_] = found == self.number - 1
        return mine


def _among_others(events: Events, mine: npt.NDArray[np.bool_]) -> Events:
    """The events of the lines that are `mine`, and an event of kind OTHER for each of the rest."""
    if mine.all():
        return events
    lines, found = np.flatnonzero(mine), {name: getattr(events, name) for name in OF_EVENTS}
    wide = {name: np.zeros(mine.size, values.dtype) for name, values in found.items()}
    wide["kind"][:] = OTHER
    for name, values in found.items():
        wide[name][mine] = values
    lengths = np.zeros(mine.size, np.int64)
    lengths[mine] = np.diff(events.first)
    return Events(
        **wide,
        first=np.concatenate([[0], np.cumsum(lengths)]),
        items=events.items,
        columns=events.columns,
        bad={int(lines[number]): reason for number, reason in events.bad.items()},
    )
