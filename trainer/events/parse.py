"""Parses chunks of raw events into columns and validates them.

In: the lines of a Chunk. Out: Events. A block of lines is read in one scan (`block_parser`); lines that the scan cannot
decide on are read one by one (`line_parser`). Parsing never fails: an event that cannot be joined is BAD, with a
reason.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trainer.events.block_parser import BlockReader
from trainer.events.columns import BUCKET, UNKNOWN, Wanted, buckets, digests, together
from trainer.events.derived_columns import derive
from trainer.events.events import (
    BAD,
    CLICK,
    CONVERSION,
    FEEDBACK,
    IMPRESSION,
    MAX_ITEMS,
    MAX_LINE_BYTES,
    NEVER_US,
    Events,
    Int64s,
    Raw,
)
from trainer.events.line_parser import read_lines
from trainer.events.parse_kernels import find_twice
from trainer.events.share import PartitionShare, among_others
from trainer.formats.cells import padded_lines
from trainer.formats.times import NO_TIME, parse_times

Ints = npt.NDArray[np.int64]
Range = tuple[int, int]

_BLOCK_BYTES = 4 << 20


def parse(data: bytes, starts: Ints, wanted: Wanted, arrived_us: Ints | None = None) -> Events:
    """The events on the lines of `data`, as `Parser.parse` for one block alone."""
    return Parser(wanted).parse(data, starts, arrived_us)


class Parser:
    """Parses the chunks of one source; with a `share`, only the events of that partition."""

    def __init__(self, wanted: Wanted, share: PartitionShare | None = None) -> None:
        self._wanted = wanted
        self._share = share
        self._blocks = BlockReader(wanted)

    def parse(self, data: bytes, starts: Ints, arrived_us: Ints | None = None) -> Events:
        """data, starts, arrived_us: as in Chunk. Without arrived_us the present time bounds the events' times."""
        # With it, the join takes an event of a clock that is ahead at its arrival: none is lost.
        latest_us = NEVER_US if arrived_us is not None else time.time_ns() // 1000 + AHEAD_US
        if self._share is None:
            return self._parse(data, starts, latest_us)
        mine = self._share.mine(data, starts)
        lines = np.flatnonzero(mine)
        own = b"".join([data[starts[line] : starts[line + 1]] for line in lines.tolist()])
        own_starts = np.concatenate([[0], np.cumsum(np.diff(starts)[lines])])
        return among_others(self._parse(own, own_starts, latest_us), mine)

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


_OF_EVENTS = ("kind", "time_us", "request", "item", "what")


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
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in _OF_EVENTS},
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
    members: dict[str, Any] = {name: getattr(both, name)[order] for name in _OF_EVENTS}
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
_WHAT = {"click": CLICK, "conversion": CONVERSION}
Reasons = Iterator[tuple[int, str]]


def validated(raw: Raw, latest_us: int) -> Events:
    """The events of a block, validated. latest_us: an event with a later time is bad."""
    items = digests(raw.ids)
    lengths = np.maximum(raw.lengths, 0)
    first = np.concatenate([[0], np.cumsum(lengths)])
    times, untimely = parse_times(raw.ts, None)
    what, unknown = _what(raw)
    bad = dict(raw.bad)  # of each event the first reason
    for reasons in (
        _kinds(raw),
        _without_request(raw),
        ((event, f"ts: {reason}") for event, reason in untimely),
        _times(times, latest_us),
        _items(raw, lengths, first, items),
        _feedback(raw, unknown),
    ):
        for event, reason in reasons:
            bad.setdefault(event, reason)
    # The good events keep their values; the bad ones have neither values nor rows.
    kind = np.where(raw.lengths >= 0, IMPRESSION, FEEDBACK).astype(np.uint8)
    columns, numbers = dict(raw.columns), np.array(sorted(bad), np.int64)
    unknown = columns[UNKNOWN]
    if unknown.null_count == len(unknown):  # nearly always: a null array takes no memory
        columns[UNKNOWN] = pa.nulls(len(unknown))
    request = digests(raw.request)
    columns[BUCKET] = buckets(columns[BUCKET], np.repeat(request, np.diff(first)))
    kind[numbers] = BAD
    if numbers.size and (raw.lengths[numbers] > 0).any():
        kept = np.repeat(kind != BAD, np.diff(first))
        items, mask = items[kept], pa.array(kept)
        columns = {name: column.filter(mask) for name, column in columns.items()}
    feedback = kind == FEEDBACK
    lengths = np.where(kind == IMPRESSION, raw.lengths, 0)
    return Events(
        kind=kind,
        time_us=np.where(kind == BAD, 0, times),
        request=np.where(kind == BAD, np.uint64(0), request),
        item=np.where(feedback, digests(raw.item), np.uint64(0)),
        what=np.where(feedback, what, 0).astype(np.uint8),
        first=np.concatenate([[0], np.cumsum(lengths)]),
        items=items,
        columns=columns,
        bad={int(number): bad[number] for number in numbers.tolist()},
    )


def _kinds(raw: Raw) -> Reasons:
    has_items, has_item = raw.lengths >= 0, np.asarray(raw.item.is_valid())
    for event in np.flatnonzero(has_items & has_item).tolist():
        yield event, "got both items and item, expected items (an impression) or item (feedback)"
    for event in np.flatnonzero(~has_items & ~has_item).tolist():
        yield event, "got neither items nor item, expected items (an impression) or item (feedback)"


def _without_request(raw: Raw) -> Reasons:
    empty = pc.equal(pc.binary_length(raw.request), 0).fill_null(True)
    for event in np.flatnonzero(np.asarray(empty)).tolist():
        what = "empty" if raw.request[event].is_valid else "missing"
        yield event, f"request_id: {what}, expected text or a whole number"


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
        if raw.lengths[event] < 0:
            yield event, f'event: got {_text(raw.what, event)}, expected "click" or "conversion"'


def _what(raw: Raw) -> tuple[npt.NDArray[np.uint8], list[int]]:
    """CLICK or CONVERSION for each event, and the numbers of events whose `event` is neither."""
    encoded = raw.what.cast(pa.string()).fill_null("click").dictionary_encode()
    known = np.array([_WHAT.get(text, 0) for text in encoded.dictionary.to_pylist()], np.uint8)
    what = known[encoded.indices.to_numpy()] if known.size else np.zeros(0, np.uint8)
    return what, np.flatnonzero(what == 0).tolist()


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
