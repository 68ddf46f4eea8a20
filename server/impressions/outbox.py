"""Outbox: lines that wait for one sink, and the thread that takes them there, again and again until it has them.

A sink that is away costs memory up to a bound, and then lines, which are counted. It never costs the writer time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from itertools import islice

import structlog

from model_store.backoff import Backoff
from model_store.errors import FtrieError
from server.impressions.sinks import Sink
from server.telemetry.families import (
    IMPRESSIONS_DROPPED,
    IMPRESSIONS_FAILED,
    IMPRESSIONS_LOGGED,
    IMPRESSIONS_WAITING,
)
from server.telemetry.meter import Meter

BATCH = 64
"""Lines at a time: to send so many takes the interpreter from the calls for a third of a millisecond."""
BATCH_BYTES = 1 << 20
MOST_BYTES = 64 << 20
"""What may wait for one sink, however long lines are."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 5.0
FULL, CLOSED = "sink", "closed"

_log = structlog.get_logger(__name__)

Line = tuple[str, bytes]
"""A model and what to write, without its end."""


class Outbox:
    """Thread safety: `put` from one thread, `close` from one, `dropped` from any."""

    def __init__(self, sink: Sink, name: str, most: int, meter: Meter) -> None:
        """name: of the sink in metrics. most: lines that may wait."""
        self.name = name
        self._sink = sink
        self._most = most
        self._meter = meter
        self._lines: deque[Line] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._end_at_s: float | None = None
        self._dropping = False
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        meter.gauge(IMPRESSIONS_WAITING, name, read=lambda: len(self._lines))
        self._thread = threading.Thread(target=self._run, name=f"impressions to {name}", daemon=True)
        self._thread.start()

    def put(self, lines: Sequence[Line]) -> None:
        """Take lines, those that there is room for. Waits for nothing."""
        with self._changed:
            taken = 0
            for line in lines:
                if len(self._lines) >= self._most or self._bytes + len(line[1]) > MOST_BYTES:
                    break
                self._lines.append(line)
                self._bytes += len(line[1])
                taken += 1
            self._changed.notify()
        for model, _ in lines[taken:]:
            self.dropped(model, FULL)
        self._say_whether_dropping(taken < len(lines))

    def dropped(self, model: str, reason: str) -> None:
        """Count one line that the sink will not get."""
        self._meter.count(IMPRESSIONS_DROPPED, model, self.name, reason)

    def close(self, end_at_s: float) -> None:
        """Hand over what waits, until `end_at_s` on the monotonic clock; count the rest as dropped."""
        with self._changed:
            self._end_at_s = end_at_s
            self._changed.notify()
        self._thread.join(max(0.0, end_at_s - time.monotonic()) + 0.2)
        with self._changed:  # what the thread has in hand too: it counts only what it still finds here
            left = [model for model, _ in self._lines]
            self._lines.clear()
            self._bytes = 0
        for model in left:
            self.dropped(model, CLOSED)
        if left:
            _log.error("impressions lost at the end", sink=self.name, lines=len(left))

    # -- the thread

    def _run(self) -> None:
        while batch := self._next_batch():
            if self._hand_over(batch) and self._taken_out(batch):
                self._meter.count(IMPRESSIONS_LOGGED, batch[0][0], self.name, by=len(batch))
        self._sink.close()

    def _taken_out(self, batch: Sequence[Line]) -> bool:
        """Lines that the sink has wait no longer; False if `close` has given them up, and counted them, meanwhile."""
        with self._changed:
            if not self._lines:
                return False
            for _ in batch:
                self._bytes -= len(self._lines.popleft()[1])
            return True

    def _next_batch(self) -> list[Line]:
        """The lines that have waited longest, of one model; none once nothing waits, or may wait, at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._end_at_s is not None)
            if self._end_at_s is not None and time.monotonic() >= self._end_at_s:
                return []
            batch: list[Line] = []
            size = 0
            for line in islice(self._lines, BATCH):
                size += len(line[1])
                if batch and (line[0] != batch[0][0] or size > BATCH_BYTES):
                    break
                batch.append(line)
            return batch

    def _hand_over(self, batch: Sequence[Line]) -> bool:
        """Whether the sink has taken them; where it has not, this has waited a while."""
        try:
            self._sink.append(batch[0][0], [line for _, line in batch])
        except (FtrieError, OSError) as error:
            self._failed(error)
            return False
        except Exception as error:
            self._failed(error, exc_info=True)
            return False
        if self._backoff.succeeded():
            _log.info("the sink of impressions takes them again", sink=self.name, waiting=len(self._lines))
        return True

    def _failed(self, error: Exception, exc_info: bool = False) -> None:
        """Count it, say so if it is the first in a row, and wait: less than usual if the end is near."""
        self._meter.count(IMPRESSIONS_FAILED, self.name)
        pause_s = self._backoff.failed()
        if self._backoff.failures == 1:
            facts = {"sink": self.name, "to": self._sink.shown, "error": str(error)}
            _log.error("the sink of impressions fails, trying again", **facts, exc_info=exc_info)
        with self._changed:
            self._changed.wait_for(lambda: self._end_at_s is not None, pause_s)
            if self._end_at_s is not None:
                pause_s = min(FIRST_PAUSE_S, max(0.0, self._end_at_s - time.monotonic()))
                self._changed.wait(pause_s)

    def _say_whether_dropping(self, dropping: bool) -> None:
        """Once for each change; where lines come faster than they go, half of the room must be free again first."""
        if dropping and not self._dropping:
            _log.error(
                "impressions dropped: too many wait for the sink", sink=self.name, waiting=len(self._lines)
            )
            self._dropping = True
        elif self._dropping and len(self._lines) <= self._most // 2:
            _log.info("impressions are kept again", sink=self.name)
            self._dropping = False
