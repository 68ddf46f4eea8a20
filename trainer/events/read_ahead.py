"""One source read and parsed ahead, in a thread of its own. Says when each event came, and what may still come before.

The order of what it brings is the source's. Nothing here knows other sources; their order is `merging`'s.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass, replace
from threading import Condition, Thread

import numpy as np

from model_store.errors import SourceUnavailable, StoreUnavailable, UnreadableValue
from trainer.events.events import BAD, NEVER_US, Events, Int64s, Lag, Source, Stretch
from trainer.events.parse import Parser

FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0
"""Between attempts to read a source that is away; doubled each time, and each wait up to half shorter, by chance."""

BEFORE_ALL_US = int(np.iinfo(np.int64).min)
_PAUSE_S = 0.05
_LAG_EVERY_S = 2.0


@dataclass(frozen=True)
class Parsed:
    """A stretch and its events. order_us: int64[n], never falling: when each came, which is what sources are merged by.

    Where the source has no clock, the greatest time of its events so far, bad ones left out. cost: bytes it holds.
    """

    stretch: Stretch
    events: Events
    order_us: Int64s
    cost: int

    def __len__(self) -> int:
        return len(self.events)


class Reader:
    """What a thread has read ahead of one source. `changed` guards all that is public, and is told of each change.

    queue: not yet handed out, in order. frontier_us: what is still to be read came no earlier; NEVER_US also while the
    source stands still. error: what ended the thread.
    """

    def __init__(
        self,
        source: Source,
        parser: Parser,
        changed: Condition,
        on_note: Callable[[str], None],
        *,
        order_us: int = BEFORE_ALL_US,
        idle_s: float,
        once: bool,
        limit: int,
    ) -> None:
        self.source = source
        self.queue: deque[Parsed] = deque()
        self.frontier_us = order_us
        self.ended = False
        self.error: Exception | None = None
        self.lag = Lag()
        self._changed, self._on_note = changed, on_note
        self._parser, self._idle_s, self._once, self._limit = parser, idle_s, once, limit
        self._last_us, self._has_clock = order_us, True
        self._still = _Still(idle_s)
        self._lag_at = -np.inf
        self._stopping = False
        in_context = copy_context().run  # so that it warns in the form that the command was asked for
        self._thread = Thread(target=in_context, args=(self._run,), name=f"read {source.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end; `join` waits until it has closed the source."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def join(self, seconds: float) -> None:
        """Wait until the thread has ended, at most so long: a read that hangs is left behind."""
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            while self._wait_for_room() and not self.ended:
                stretch = self._read()
                if not self._stopping:
                    self._take(stretch)
                    self._look_at_lag()  # behind the first read: before it, a stream does not know what it has read
            if self.ended:  # as it is at the end, and not as it was some seconds before
                self._lag_at = -np.inf
                self._look_at_lag()
        except Exception as error:
            with self._changed:
                self.error = error
                self._changed.notify_all()
        finally:
            self.source.close()

    def _wait_for_room(self) -> bool:
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._stopping or self._has_room(), _LAG_EVERY_S):
                    return not self._stopping
            self._look_at_lag()  # it grows meanwhile

    def _has_room(self) -> bool:
        return not self.queue or sum(parsed.cost for parsed in self.queue) < self._limit

    def _read(self) -> Stretch | None:
        """One read, tried until the source answers. What it holds stays there, so that nothing is lost meanwhile."""
        said, since, wait_s = set[str](), time.monotonic(), FIRST_WAIT_S
        while not self._stopping:
            try:
                stretch = self.source.read()
            except (StoreUnavailable, SourceUnavailable, UnreadableValue) as error:
                if self._once and isinstance(error, UnreadableValue):
                    raise
                self._still.forget()
                if str(error) not in said:
                    said.add(str(error))
                    self._on_note(f"{self.source.name}: {error}; trying again, nothing is lost meanwhile")
                self._pause(wait_s * random.uniform(0.5, 1.0))
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
                continue
            if said:
                seconds = time.monotonic() - since
                self._on_note(f"{self.source.name}: answers again, after {seconds:.1f} s")
            return stretch
        return None

    def _take(self, stretch: Stretch | None) -> None:
        parsed = self._parsed(stretch) if stretch is not None and len(stretch) else None
        frontier_us = self._frontier(dry=stretch is None)
        with self._changed:
            if parsed is not None:
                self.queue.append(parsed)
            self.ended = frontier_us == NEVER_US and (self._once or self.source.frontier_us() == NEVER_US)
            self.frontier_us = frontier_us
            self._changed.notify_all()
        if stretch is None and not self.ended:
            self._pause(min(_PAUSE_S, self._idle_s))

    def _parsed(self, stretch: Stretch) -> Parsed:
        events = self._parser.parse(stretch.data, stretch.starts, stretch.arrived_us)
        came_us = stretch.arrived_us
        self._has_clock = came_us is not None
        if came_us is None:
            came_us = np.where(events.kind == BAD, self._last_us, events.time_us)
        order_us = np.maximum(np.maximum.accumulate(came_us), self._last_us)
        self._last_us = int(order_us[-1])
        cost = len(stretch.data) + sum(column.nbytes for column in events.columns.values())
        return Parsed(stretch, events, order_us, cost)

    def _frontier(self, dry: bool) -> int:
        """Where what is still to be read begins; NEVER_US if the source has ended or stands still."""
        frontier_us = self.source.frontier_us()
        if frontier_us == NEVER_US or (dry and self._once):
            return NEVER_US
        frontier_us = max(frontier_us, self._last_us) if self._has_clock else self._last_us
        return NEVER_US if self._still.since(frontier_us, dry) else frontier_us

    def _look_at_lag(self) -> None:
        if time.monotonic() - self._lag_at < _LAG_EVERY_S:
            return
        self._lag_at = time.monotonic()
        try:
            lag = self.source.lag()
        except (StoreUnavailable, SourceUnavailable, UnreadableValue):
            return
        with self._changed:
            self.lag = lag

    def lag_and_queue(self) -> Lag:
        """The source's lag, and what waits here."""
        with self._changed:
            events = sum(len(parsed) for parsed in self.queue)
            size = sum(len(parsed.stretch.data) for parsed in self.queue)
            lag = self.lag
        return replace(
            lag,
            events=None if lag.events is None else lag.events + events,
            bytes=None if lag.bytes is None else lag.bytes + size,
        )

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, seconds)


class _Still:
    """How long a source has brought nothing while its clock, if it has one, stood too."""

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._since: tuple[int, float] | None = None

    def since(self, frontier_us: int, dry: bool) -> bool:
        """True if that is long enough by now."""
        now = time.monotonic()
        if not dry:
            self.forget()
            return False
        if self._since is None or self._since[0] != frontier_us:
            self._since = (frontier_us, now)
        return now - self._since[1] >= self._idle_s

    def forget(self) -> None:
        """It was not to be read: that is no standing still."""
        self._since = None
