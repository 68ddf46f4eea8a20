"""Merges the events of all sources into one order, a function of what they hold and not of when it was read.

Events are ordered by (time of arrival, number of the source, order in the source). An event is released once no other
source can bring one that belongs before it: each source's watermark says that all its events before that time have been
read. A source without a clock (files) uses its events' own times, and holds up nobody once it has brought nothing for
`idle_s` seconds; later events are merged from there on. A source with a clock whose store is unavailable holds up the
others until it answers: nothing is lost and the order stays the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Condition
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trainer.events.columns import MARK, Wanted, together
from trainer.events.events import (
    BAD,
    NEVER_US,
    OTHER,
    BadEvent,
    Chunk,
    Int64s,
    Lag,
    Merged,
    Source,
    SourcePosition,
)
from trainer.events.parse import Parser, gathered
from trainer.events.share import PartitionShare
from trainer.sources.read_ahead import BEFORE_ALL_US, Parsed, Reader

ORDER = "order_us"
"""The key that the merger adds to a source's position: the arrival time of the last event released."""

SORT_BYTES = 256 << 20
"""Of the events of files that are out of order, if they are to be sorted."""
_POLL_BYTES = 8 << 20
_GATHER_S = 0.05
_CLOSE_S = 10.0


class WaitingRows(Protocol):
    """Where the rows of impressions wait for feedback."""

    def add(self, columns: Mapping[str, pa.Array], /) -> int:
        """Keep a table; returns its number."""


class Merger:
    """Reads and parses ahead in one thread per source and releases events in one order. `poll` from one thread.

    positions: those of the checkpoint that the sources were opened with. read_ahead: bytes of events kept in memory.
    share: the partition whose events are released; None for all. on_note: called from any thread. marks: give every row
    a column MARK, the first of the marks of its impression in its chunk. lateness_us: with `once`, a source of files
    whose events are out of order by more is sorted by time if it fits SORT_BYTES; None: files are read as they are.

    `has_stepped_back`: a source's clock has; whoever sets the limit resets it. `limit_us` holds back all events from
    that time on; a run of several partitions sets it to the end of a round.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        wanted: Wanted,
        segments: WaitingRows,
        *,
        positions: Sequence[SourcePosition] = (),
        idle_s: float = 2.0,
        once: bool = False,
        read_ahead: int = 64 << 20,
        share: PartitionShare | None = None,
        on_note: Callable[[str], None] = lambda _: None,
        marks: bool = False,
        lateness_us: int | None = None,
    ) -> None:
        self.limit_us = NEVER_US
        self._marks = marks
        self._sources, self._segments = tuple(sources), segments
        self._starts = [_position_of(source, number, positions) for number, source in enumerate(sources)]
        self._taken: list[tuple[Parsed, int] | None] = [None] * len(self._sources)
        self._changed = Condition()
        self._gathered_at = 0.0
        self._back_to_us: int | None = None
        self.has_stepped_back = False
        self._readers = [
            Reader(
                *(source, Parser(wanted, share), self._changed, on_note),
                order_us=int(position.get(ORDER, BEFORE_ALL_US)),
                idle_s=idle_s,
                once=once,
                limit=read_ahead // len(self._sources),
                sort_bytes=0 if lateness_us is None else SORT_BYTES // len(self._sources),
                lateness_us=lateness_us or 0,
            )
            for source, position in zip(self._sources, self._starts, strict=True)
        ]

    def poll(self, wait_s: float = 0.0) -> Merged | None:
        """The next events that can be released; None if there are none within `wait_s`.

        Gathers events for up to 50 ms, so that a trickle does not arrive one by one. Raises what a source raised,
        except StoreUnavailable, which is retried and reported by on_note.
        """
        until = time.monotonic() + wait_s
        while True:
            with self._changed:
                self._raise_errors()
                parts = self._next_parts()
            if parts:
                return self._release(parts)
            rest = until - time.monotonic()
            if rest <= 0 or self.ended or self.at_limit:
                return None
            with self._changed:
                self._changed.wait(min(rest, _GATHER_S))

    @property
    def next_us(self) -> int | None:
        """The least time of an event that is not released; NEVER_US once all have ended; None while all are idle."""
        with self._changed:
            pairs = zip(self._readers, self._taken, strict=True)
            times = [time_us for reader, taken in pairs if (time_us := reader.next_us(taken)) is not None]
        return min(times, default=None)

    @property
    def at_limit(self) -> bool:
        """True if no event before `limit_us` is left. Never without a limit, nor while all sources are idle."""
        if self.limit_us == NEVER_US:
            return False
        next_us = self.next_us
        return next_us is not None and next_us >= self.limit_us

    def positions(self) -> list[SourcePosition]:
        """Where reading continues in each source after the events released so far."""
        return [
            before if taken is None else _position_after(source, *taken)
            for source, before, taken in zip(self._sources, self._starts, self._taken, strict=True)
        ]

    @property
    def ended(self) -> bool:
        """With `once`: all that the sources hold has been released."""
        with self._changed:
            return all(reader.ended and not reader.queue for reader in self._readers)

    @property
    def has_read(self) -> bool:
        """True once every source was read; before that, `next_us` is what an earlier run knew."""
        with self._changed:
            return all(reader.has_read for reader in self._readers)

    @property
    def has_released(self) -> bool:
        """True if there was any event since it was opened, of whichever partition."""
        return any(taken is not None for taken in self._taken)

    def lags(self) -> list[Lag]:
        """Of each source, including events read ahead and not yet released."""
        return [reader.lag_and_queue() for reader in self._readers]

    def close(self) -> None:
        """Stop the threads and close the sources. May be called twice."""
        for reader in self._readers:
            reader.stop()
        for reader in self._readers:
            reader.join(_CLOSE_S)

    def _raise_errors(self) -> None:
        for reader in self._readers:
            if reader.error is not None:
                raise reader.error

    def _next_parts(self) -> list[Part]:
        """What can be released of each source; nothing while gathering."""
        if self._is_gathering():
            return []
        stepped = [each for reader in self._readers if (each := reader.step_back()) is not None]
        if stepped:  # said with the next events
            self._back_to_us = min(stepped)
            self.has_stepped_back = True
        considered, watermarks_us = [], []
        for reader, taken in zip(self._readers, self._taken, strict=True):
            front, watermark_us = _front(reader, taken)
            considered.append(front)
            watermarks_us.append(watermark_us)
        return releasable(considered, watermarks_us, self.limit_us)

    def _is_gathering(self) -> bool:
        if time.monotonic() - self._gathered_at >= _GATHER_S or all(reader.ended for reader in self._readers):
            return False
        queued = [parsed for reader in self._readers for parsed in reader.queue]
        has_reached = any(parsed.order_us[-1] >= self.limit_us for parsed in queued)
        return not has_reached and sum(parsed.cost for parsed in queued) < _POLL_BYTES

    def _release(self, parts: Sequence[Part]) -> Merged:
        merged = merge(parts, self._sources, self._segments.add, marks=self._marks)
        with self._changed:
            for part in parts:
                self._taken[part.source] = (part.parsed, part.stop)
                if part.stop == len(part.parsed):
                    self._readers[part.source].queue.popleft()
            self._changed.notify_all()
        self._gathered_at = time.monotonic()
        back_to_us, self._back_to_us = self._back_to_us, None
        return replace(merged, back_to_us=back_to_us)


def _front(reader: Reader, taken: tuple[Parsed, int] | None) -> tuple[list[tuple[Parsed, int]], int]:
    """The first chunks of a queue, with the events taken of each, and the watermark after them."""
    front, size = list[tuple[Parsed, int]](), 0
    for parsed in reader.queue:
        if size >= _POLL_BYTES:
            return front, int(parsed.order_us[0])
        front.append((parsed, taken[1] if taken is not None and taken[0] is parsed else 0))
        size += parsed.cost
    return front, reader.watermark_us


def _position_after(source: Source, parsed: Parsed, count: int) -> SourcePosition:
    return {**source.position(parsed.chunk, count), ORDER: int(parsed.order_us[count - 1])}


def _position_of(source: Source, number: int, positions: Sequence[SourcePosition]) -> SourcePosition:
    """The position with the source's name, or, if positions have no names, with its number."""
    if any("source" in position for position in positions):
        return next((position for position in positions if position.get("source") == source.name), {})
    return positions[number] if number < len(positions) else {}


NO_SEGMENT = -1


@dataclass(frozen=True)
class Part:
    """Events `first` to `stop` of a source's chunk."""

    source: int
    parsed: Parsed
    first: int
    stop: int


def releasable(
    fronts: Sequence[Sequence[tuple[Parsed, int]]], watermarks_us: Sequence[int], limit_us: int = NEVER_US
) -> list[Part]:
    """The events before `limit_us` that no unread event can precede.

    fronts: of each source, its next chunks and the events taken of each; watermarks_us: of each source, after those
    chunks. Invariant: events are ordered by (arrival, source), then as in the source; so an event that arrived at
    another source's watermark is released if its own source comes first.
    """
    parts = []
    for source, front in enumerate(fronts):
        for parsed, first in front:
            before_limit = int(np.searchsorted(parsed.order_us, limit_us, "left"))
            stop = min(
                (
                    int(np.searchsorted(parsed.order_us, watermark, "right" if source < other else "left"))
                    for other, watermark in enumerate(watermarks_us)
                    if other != source
                ),
                default=len(parsed),
            )
            stop = min(stop, before_limit)
            if stop > first:
                parts.append(Part(source, parsed, first, stop))
            if stop < len(parsed):
                break
    return parts


def merge(
    parts: Sequence[Part],
    sources: Sequence[Source],
    add: Callable[[Mapping[str, pa.Array]], int],
    *,
    marks: bool = False,
) -> Merged:
    """The events of all parts in one order; their rows are added as one table. parts: ordered by source."""
    order = np.argsort(_concat(parts, lambda p: p.parsed.order_us), kind="stable")
    bad = _bad(parts, sources, order)
    order = order[_concat(parts, lambda p: p.parsed.events.kind)[order] != OTHER]
    lengths = np.concatenate([np.diff(p.parsed.events.first[p.first : p.stop + 1]) for p in parts])
    row = np.cumsum(lengths) - lengths
    kind = _concat(parts, lambda p: p.parsed.events.kind)[order]
    time_us = _concat(parts, lambda p: p.parsed.events.time_us)
    return Merged(
        kind=kind,
        time_us=time_us[order],
        now_us=np.concatenate([_now(part) for part in parts])[order],
        request=_concat(parts, lambda p: p.parsed.events.request)[order],
        item=_concat(parts, lambda p: p.parsed.events.item)[order],
        what=_concat(parts, lambda p: p.parsed.events.what)[order],
        segment=np.full(order.size, _add(parts, add, marks), np.int32),
        row=row[order],
        rows=lengths[order].astype(np.int32),
        items=_items(parts, row[order], lengths[order]),
        bad=bad,
    )


def _concat(parts: Sequence[Part], of: Callable[[Part], npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.concatenate([of(part)[part.first : part.stop] for part in parts])


def _now(part: Part) -> Int64s:
    """Each event's arrival by its source's clock, else its own time; for a BAD event, the previous one's."""
    window = slice(part.first, part.stop)
    if part.parsed.chunk.arrived_us is not None:
        return part.parsed.chunk.arrived_us[window]
    events = part.parsed.events
    return np.where(events.kind[window] == BAD, part.parsed.order_us[window], events.time_us[window])


def _rows_of(part: Part) -> slice:
    first = part.parsed.events.first
    return slice(int(first[part.first]), int(first[part.stop]))


def _add(parts: Sequence[Part], add: Callable[[Mapping[str, pa.Array]], int], marks: bool) -> int:
    tables = []
    for part in parts:
        rows = _rows_of(part)
        if rows.stop > rows.start:
            columns = part.parsed.events.columns
            table = {name: column[rows] for name, column in columns.items()}
            if marks:
                lengths = np.diff(part.parsed.events.first[part.first : part.stop + 1])
                mark = part.parsed.chunk.marks[part.first : part.stop, 0]
                table[MARK] = pa.array(np.repeat(mark, lengths))
            tables.append(table)
    return add(together(tables)) if tables else NO_SEGMENT


def _items(parts: Sequence[Part], row: Int64s, lengths: Int64s) -> npt.NDArray[np.uint64]:
    items = np.concatenate([part.parsed.events.items[_rows_of(part)] for part in parts])
    return items[gathered(row, lengths)]


def _bad(parts: Sequence[Part], sources: Sequence[Source], order: Int64s) -> tuple[BadEvent, ...]:
    if not any(part.parsed.events.bad for part in parts):
        return ()
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    found, before = dict[int, BadEvent](), 0
    for part in parts:
        for number, reason in part.parsed.events.bad.items():
            if part.first <= number < part.stop:
                at = int(rank[before + number - part.first])
                found[at] = _bad_event(sources[part.source], part.parsed.chunk, number, reason)
        before += part.stop - part.first
    return tuple(found[at] for at in sorted(found))


def _bad_event(source: Source, chunk: Chunk, number: int, reason: str) -> BadEvent:
    line = chunk.data[chunk.starts[number] : chunk.starts[number + 1]].rstrip(b"\r\n")
    return BadEvent(source.name, source.where(chunk, number), line, reason)
