"""A bounded queue and the thread that writes its items: impressions, shadows and recorded requests.

A call offers an item and continues; where the writer cannot keep up, the offer is refused, and the owner counts it. The
owner's `write` gets batches. An item stays in the queue until it has been written, so that `close` can return the
rest.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Generic, TypeVar

import structlog

from model_store.waiting import Backoff

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 5.0
"""Between attempts to write a batch."""
JOIN_S = 0.2
"""How much longer than its end `close` waits for the thread."""

T = TypeVar("T")

_log = structlog.get_logger(__name__)


class BackgroundWriter(Generic[T]):
    """Runs from construction to `close`. Thread safety: `offer` from any thread, `close` from one."""

    def __init__(
        self,
        name: str,
        write: Callable[[Sequence[T]], bool],
        *,
        most: int,
        most_bytes: int = sys.maxsize,
        batch: int = 1,
        batch_bytes: int = sys.maxsize,
        group: Callable[[T], object] | None = None,
        linger_s: float = 0.0,
        breath_s: float = 0.0,
        on_written: Callable[[Sequence[T]], None] = lambda batch: None,
        on_full: Callable[[bool], None] = lambda full: None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """name: of the thread. write: takes a batch; False: it is to be tried again, after growing pauses.

        most, most_bytes: bounds of the queue. batch, batch_bytes: bounds of a batch, which has one item at least.
        group: the items of a batch have the same. linger_s: how long the thread waits for more items when it wakes.
        breath_s: a pause after each batch, in which other threads get the interpreter's lock.

        on_written is called with each batch that was written and that `close` had not given up. on_full(True) is called
        by the first `offer` that is refused, on_full(False) once half of the queue is free again. on_end is called by
        the thread when it ends.
        """
        self._write = write
        self._most, self._most_bytes = most, most_bytes
        self._batch, self._batch_bytes = batch, batch_bytes
        self._group = group or (lambda item: None)
        self._linger_s, self._breath_s = linger_s, breath_s
        self._on_written, self._on_full, self._on_end = on_written, on_full, on_end
        self._lock = threading.Lock()
        self._items: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._full = self._closed = False
        self._awake = False
        """Whether the thread will read the queue, so that `offer` need not wake it."""
        self._wake, self._closing = threading.Event(), threading.Event()
        self._end_at_s = 0.0
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        # A daemon: a sink that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many items wait, including those that are being written."""
        return len(self._items)

    @property
    def closed(self) -> bool:
        """Whether `close` was called; every offer is refused then."""
        return self._closed

    def offer(self, item: T, size: int = 0) -> bool:
        """Queue an item of `size` bytes; False if it does not fit. Returns in about a microsecond."""
        with self._lock:
            fits = len(self._items) < self._most and self._bytes + size <= self._most_bytes
            if fits and not self._closed:
                self._items.append((item, size))
                self._bytes += size
                if not self._awake:
                    self._awake = True
                    self._wake.set()
                return True
            # Only the first refusal is reported, and outside the lock: the callback logs, and other offers would wait
            # for it.
            newly_full = not (fits or self._full)
            self._full |= newly_full
        if newly_full:
            self._on_full(True)
        return False

    def offer_all(self, items: Sequence[tuple[T, int]]) -> int:
        """Queue items with their sizes, up to the first that does not fit; returns how many were queued."""
        with self._lock:  # one wake-up for all: each costs the caller a switch of threads
            waited, self._awake = self._awake, True
        queued = 0
        for item, size in items:
            if not self.offer(item, size):
                break
            queued += 1
        if not waited:
            self._wake.set()
        return queued

    def close(self, end_at_s: float) -> list[T]:
        """Write what waits until `end_at_s` on the monotonic clock, and end; returns what was not written."""
        # Before the event is set: the thread reads the time once it sees the event.
        self._end_at_s = end_at_s
        with self._lock:
            self._closed = True
        self._closing.set()
        self._wake.set()
        self._thread.join(max(0.0, end_at_s - time.monotonic()) + JOIN_S)
        with self._lock:
            # The thread may be within a write that hangs. It finds the queue empty afterwards, and then counts its
            # batch no more.
            left = [item for item, _ in self._items]
            self._items.clear()
            self._bytes = 0
        return left

    # -- the thread

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            # Not a sleep, so that `close` ends it early.
            self._closing.wait(self._linger_s)
            self._wake.clear()
            self._awake = False  # before the queue is read: an item that comes later wakes the thread again
            while batch := self._next_batch():
                self._write_out(batch)
                if self._breath_s and not self._closing.is_set():
                    time.sleep(self._breath_s)
        while batch := self._next_batch():
            self._write_out(batch)
        self._on_end()

    def _next_batch(self) -> list[T]:
        """The items that have waited longest; none if the queue is empty or the time is up."""
        if self._time_is_up():
            return []
        batch: list[T] = []
        size = 0
        with self._lock:
            for item, item_size in islice(self._items, self._batch):
                size += item_size
                if batch and (size > self._batch_bytes or self._group(item) != self._group(batch[0])):
                    break
                batch.append(item)
        return batch

    def _write_out(self, batch: list[T]) -> None:
        """Write a batch, as often as it takes, and remove it from the queue."""
        failed = False
        while True:
            try:
                if self._write(batch):
                    break
            except Exception:
                _log.exception("a batch could not be written", writer=self._thread.name, items=len(batch))
                failed = True  # it would fail again
                break
            self._closing.wait(self._backoff.failed())
            if self._closing.is_set():
                # The event stays set, so that waiting for it returns at once: without a sleep the attempts would follow
                # each other.
                time.sleep(min(FIRST_PAUSE_S, max(0.0, self._end_at_s - time.monotonic())))
            if self._time_is_up():
                return
        self._backoff.succeeded()
        with self._lock:
            given_up = not self._items  # by `close`, which empties the queue
            for _ in () if given_up else batch:
                self._bytes -= self._items.popleft()[1]
            # At half and not below the bound, so that a queue that stays near it does not report with each item.
            half_free = self._full and len(self._items) <= self._most // 2
            self._full &= not half_free
        if not (given_up or failed):
            self._on_written(batch)
        if half_free:
            self._on_full(False)

    def _time_is_up(self) -> bool:
        return self._closing.is_set() and time.monotonic() >= self._end_at_s
