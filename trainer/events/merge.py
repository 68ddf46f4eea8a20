"""All sources in one order, which is a function of what they hold and never of when it was read.

Events are merged by (when they came, number of the source, place in it). An event is handed out once no other source
can bring one that belongs before it: each source's frontier says up to when all it held has been read. Where a source
has no clock of its own (files), its events' own times stand for it, and a source that has brought nothing for `idle_s`
seconds holds nobody up; what it brings after that is merged from there on. A source with a clock whose store is away
holds the others up until it answers: nothing is lost, and the order stays the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from threading import Condition
from typing import Protocol

import pyarrow as pa

from trainer.events.columns import Wanted
from trainer.events.events import Lag, Merged, Place, Source
from trainer.events.order import Part, merge, releasable
from trainer.events.parse import Parser
from trainer.events.read_ahead import BEFORE_ALL_US, Parsed, Reader

ORDER = "order_us"
"""The key that the merger adds to a source's place: when the last event that was handed out came."""

_POLL_BYTES = 8 << 20
_GATHER_S = 0.05
_CLOSE_S = 10.0


class Rows(Protocol):
    """Where the rows of impressions wait for their clicks."""

    def add(self, columns: Mapping[str, pa.Array], /) -> int:
        """Keep a table; its number."""


class Merger:
    """Reads and parses ahead in threads of its own, and hands events out in one order. `poll` from one thread.

    places: as of the checkpoint that the sources were opened with. read_ahead: bytes of events that may wait here.
    on_note: called from any thread.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        wanted: Wanted,
        segments: Rows,
        *,
        places: Sequence[Place] = (),
        idle_s: float = 2.0,
        once: bool = False,
        read_ahead: int = 64 << 20,
        on_note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._sources, self._segments = tuple(sources), segments
        self._places = [_place_of(source, number, places) for number, source in enumerate(sources)]
        self._taken: list[tuple[Parsed, int] | None] = [None] * len(self._sources)
        self._changed = Condition()
        self._gathered_at = 0.0
        self._readers = [
            Reader(
                *(source, Parser(wanted), self._changed, on_note),
                order_us=int(place.get(ORDER, BEFORE_ALL_US)),
                idle_s=idle_s,
                once=once,
                limit=read_ahead // len(self._sources),
            )
            for source, place in zip(self._sources, self._places, strict=True)
        ]

    def poll(self, wait_s: float = 0.0) -> Merged | None:
        """The next events that are sure to be next; None if within `wait_s` there are none.

        A few are gathered for 50 ms, so that a trickle does not come one by one. Raises what a source raised,
        StoreUnavailable excepted: that is tried again, and said through on_note.
        """
        until = time.monotonic() + wait_s
        while True:
            with self._changed:
                self._raise_errors()
                parts = self._next_parts()
            if parts:
                return self._hand_out(parts)
            rest = until - time.monotonic()
            if rest <= 0 or self.ended:
                return None
            with self._changed:
                self._changed.wait(min(rest, _GATHER_S))

    def places(self) -> list[Place]:
        """Where reading goes on in each source behind the events handed out so far."""
        return [
            before if taken is None else _place_behind(source, *taken)
            for source, before, taken in zip(self._sources, self._places, self._taken, strict=True)
        ]

    @property
    def ended(self) -> bool:
        """With `once`: all that the sources held has been handed out."""
        with self._changed:
            return all(reader.ended and not reader.queue for reader in self._readers)

    def lags(self) -> list[Lag]:
        """Of each source, what is read ahead and not yet handed out included."""
        return [reader.lag_and_queue() for reader in self._readers]

    def close(self) -> None:
        """End the threads and close the sources. May be called twice."""
        for reader in self._readers:
            reader.stop()
        for reader in self._readers:
            reader.join(_CLOSE_S)

    def _raise_errors(self) -> None:
        for reader in self._readers:
            if reader.error is not None:
                raise reader.error

    def _next_parts(self) -> list[Part]:
        """What of each source may go out now; none while there is little and more may be on its way."""
        if self._is_gathering():
            return []
        considered, frontiers = [], []
        for reader, taken in zip(self._readers, self._taken, strict=True):
            front, horizon_us = _front(reader, taken)
            considered.append(front)
            frontiers.append(horizon_us)
        return releasable(considered, frontiers)

    def _is_gathering(self) -> bool:
        if time.monotonic() - self._gathered_at >= _GATHER_S or all(reader.ended for reader in self._readers):
            return False
        return sum(parsed.cost for reader in self._readers for parsed in reader.queue) < _POLL_BYTES

    def _hand_out(self, parts: Sequence[Part]) -> Merged:
        merged = merge(parts, self._sources, self._segments.add)
        with self._changed:
            for part in parts:
                self._taken[part.source] = (part.parsed, part.stop)
                if part.stop == len(part.parsed):
                    self._readers[part.source].queue.popleft()
            self._changed.notify_all()
        self._gathered_at = time.monotonic()
        return merged


def _front(reader: Reader, taken: tuple[Parsed, int] | None) -> tuple[list[tuple[Parsed, int]], int]:
    """The first stretches of a queue, and how much is taken of each; and before when nothing comes behind them."""
    front, size = list[tuple[Parsed, int]](), 0
    for parsed in reader.queue:
        if size >= _POLL_BYTES:
            return front, int(parsed.order_us[0])
        front.append((parsed, taken[1] if taken is not None and taken[0] is parsed else 0))
        size += parsed.cost
    return front, reader.frontier_us


def _place_behind(source: Source, parsed: Parsed, count: int) -> Place:
    return {**source.place(parsed.stretch, count), ORDER: int(parsed.order_us[count - 1])}


def _place_of(source: Source, number: int, places: Sequence[Place]) -> Place:
    """The place that is the source's: it has its name, or, where places have no names, its number."""
    if any("source" in place for place in places):
        return next((place for place in places if place.get("source") == source.name), {})
    return places[number] if number < len(places) else {}
