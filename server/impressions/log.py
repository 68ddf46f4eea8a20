"""ImpressionLog: what each worker leaves of its answers. A call offers in a microsecond; one thread makes the lines.

Where the writer cannot keep up, or a sink, impressions are dropped and counted; a call never waits and never fails.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

import structlog

from server.impressions.lines import Lines, NoFragments, Shown
from server.impressions.outbox import CLOSED, Line, Outbox
from server.impressions.sinks import Sink, open_sinks
from server.telemetry.families import IMPRESSIONS_SKIPPED
from server.telemetry.meter import Meter

if TYPE_CHECKING:
    from server.ranking.query import Query, Ranking
    from server.ranking.served import ServedVersion
    from server.settings import Settings

LINGER_S = 0.02
"""What comes within this time is written together: a thread that wakes for each call would take its turn from it."""
STRETCH = 16
BREATH_S = 0.0001
"""After so many lines the writer lets go of the interpreter, for whoever answers calls."""
MOST_BYTES = 16 << 20
CLOSE_S = 3.0
PROBLEM_AGAIN_S = 60.0
QUEUE, CATALOGUE, FAILED = "queue", "catalogue", "failed"
NO_LOG, VARIANT = "no_log", "variant"

_log = structlog.get_logger(__name__)


class ImpressionLog:
    """A bounded queue, and the thread that empties it. Thread safety: `offer` from any thread, `close` once."""

    def __init__(self, sinks: Sequence[Sink], meter: Meter, most: int) -> None:
        """most: answers that may wait for the writer, and lines that may wait for each sink."""
        names = _names(sinks)
        self._outboxes = [Outbox(sink, name, most, meter) for sink, name in zip(sinks, names, strict=True)]
        self._meter = meter
        self._most = most
        self._lines: dict[str, Lines] = {}
        """By model, those of the version that was offered last."""
        self._queue: SimpleQueue[Shown | None] = SimpleQueue()
        self._overflowed = self._overflow_told = False
        self._problem, self._problem_told_s = "", 0.0
        self._closing = threading.Event()
        self._writer = threading.Thread(target=self._write_all, name="impressions", daemon=True)
        self._writer.start()

    @classmethod
    def of(cls, settings: Settings, meter: Meter) -> ImpressionLog | None:
        """The log that is asked for, if one is. Raises ServerError."""
        sinks = open_sinks(settings)
        return cls(sinks, meter, settings.impressions_queue) if sinks else None

    def offer(self, served: ServedVersion, query: Query, ranking: Ranking) -> None:
        """Take one answer, or drop it if too many wait. Returns at once, raises nothing.

        An answer by a forced variant, or to a request with `no_log`, is no impression: it is counted and not taken.
        The longer messages are, the fewer may wait: those that do hold MOST_BYTES · (1 + ln most), and one message.
        """
        if query.no_log or query.is_forced:
            return self._meter.count(IMPRESSIONS_SKIPPED, served.name, NO_LOG if query.no_log else VARIANT)
        if self._closing.is_set():
            return self._drop(served.name, CLOSED)
        waiting = self._queue.qsize()
        if waiting < self._most and waiting * query.size < MOST_BYTES:
            self._queue.put(Shown(time.time(), self._lines_of(served), query, ranking))
        else:
            self._overflowed = True
            self._drop(served.name, QUEUE)

    def close(self) -> None:
        """Write what waits, for at most CLOSE_S seconds, and end the threads. Call when the last call has ended.

        Once or more often.
        """
        if self._closing.is_set():
            return
        end_at_s = time.monotonic() + CLOSE_S
        self._queue.put(None)
        self._closing.set()
        self._writer.join(CLOSE_S / 2)
        while left := self._waiting():
            for shown in filter(None, left):
                self._drop(shown.lines.model, CLOSED)
        for outbox in self._outboxes:
            outbox.close(end_at_s)

    def _drop(self, model: str, reason: str) -> None:
        for outbox in self._outboxes:
            outbox.dropped(model, reason)

    def _lines_of(self, served: ServedVersion) -> Lines:
        lines = self._lines.get(served.name)
        if lines is None or lines.form is not served.form:
            lines = self._lines[served.name] = Lines.of(served)
        return lines

    # -- the writer's thread

    def _write_all(self) -> None:
        ended = False
        while not ended:
            stretch = [self._queue.get()]
            self._closing.wait(LINGER_S)
            while stretch:
                ended = stretch[-1] is None
                self._write([shown for shown in stretch if shown is not None])
                self._say_whether_overflowing()
                if not self._closing.is_set():
                    time.sleep(BREATH_S)
                stretch = self._waiting()

    def _waiting(self) -> list[Shown | None]:
        """What waits now, up to the end or STRETCH."""
        found: list[Shown | None] = []
        try:
            while len(found) < STRETCH and (not found or found[-1] is not None):
                found.append(self._queue.get_nowait())
        except Empty:
            pass
        return found

    def _write(self, stretch: Sequence[Shown]) -> None:
        """Make the lines of these answers and hand them on."""
        lines: list[Line] = []
        for shown in stretch:
            try:
                lines.append((shown.lines.model, shown.lines.line(shown)))
            except NoFragments as error:
                self._cannot(shown, CATALOGUE, error)
            except Exception as error:
                self._cannot(shown, FAILED, error)
        for outbox in self._outboxes:
            outbox.put(lines)

    def _cannot(self, shown: Shown, reason: str, error: Exception) -> None:
        """Count it, and say why: a reason that stays the same once in PROBLEM_AGAIN_S."""
        model = shown.lines.model
        self._drop(model, reason)
        problem, now_s = repr(error), time.monotonic()
        if problem != self._problem or now_s - self._problem_told_s > PROBLEM_AGAIN_S:
            trace = None if isinstance(error, NoFragments) else error
            _log.error("impressions dropped: no line of them", model=model, error=problem, exc_info=trace)
            self._problem, self._problem_told_s = problem, now_s

    def _say_whether_overflowing(self) -> None:
        """Once for each change; where answers come faster than lines, half of the room must be free again first."""
        now, self._overflowed = self._overflowed, False
        if now and not self._overflow_told:
            _log.error("impressions dropped: too many wait for the writer", at_most=self._most)
            self._overflow_told = True
        elif self._overflow_told and self._queue.qsize() <= self._most // 2:
            _log.info("the writer of impressions keeps up again")
            self._overflow_told = False


def _names(sinks: Sequence[Sink]) -> list[str]:
    """A name for each in metrics: its kind, and a number from the second of a kind on."""
    kinds = [sink.kind for sink in sinks]
    counts = [kinds[: place + 1].count(kind) for place, kind in enumerate(kinds)]
    return [kind if count == 1 else f"{kind}-{count}" for kind, count in zip(kinds, counts, strict=True)]
