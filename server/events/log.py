"""The log of impressions: what a worker writes of its answers, for a trainer to learn from.

A call queues its answer in a microsecond. One thread makes the lines, and one thread per sink delivers them. Where
either cannot keep up, impressions are dropped and counted; a call never waits for them and never fails because of them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import structlog

from model_store.clock import SYSTEM, Clock
from model_store.errors import FtrieError
from server.events.lines import Lines, NoFragments, Shown
from server.events.sinks import Sink, open_sinks
from server.events.writer import BackgroundWriter
from server.telemetry.meter import Meter, declare

if TYPE_CHECKING:
    from server.ranking.query import Query, Ranking
    from server.ranking.served import ServedVersion
    from server.settings import Settings

LOGGED = declare(
    "ftrie_impressions_logged_total",
    ("model", "sink"),
    "impressions that a sink has accepted; `sink` is `store`, `redis` or `file`, the second one of a kind `redis-2` "
    "and so on",
)
DROPPED = declare(
    "ftrie_impressions_dropped_total",
    ("model", "sink", "reason"),
    "impressions that never reach a sink: `reason` is `queue` (the writer lagged), `sink` (too many waited for the "
    "sink), `closed` (the worker exited first), `catalogue` (the items' values are not known yet) or `failed` (an "
    "error in ftrie, in the log)",
)
SKIPPED = declare(
    "ftrie_impressions_skipped_total",
    ("model", "reason"),
    "answers that are not logged as impressions: `reason` is `variant` (the request forced one) or `no_log` (the "
    "request set it, as `ftrie bench serve` does)",
)
ATTEMPTS_FAILED = declare(
    "ftrie_impressions_failed_total",
    ("sink",),
    "failed attempts to deliver impressions; each is repeated",
)
WAITING = declare(
    "ftrie_impressions_waiting",
    ("sink",),
    "impressions that wait for a sink at present, of all workers",
)
LINGER_S = 0.02
"""Answers that come within this time are written together: a thread that woke for each would delay the calls."""
BATCH = 16
BREATH_S = 0.0001
"""After each batch the writer releases the interpreter's lock for this long, for the threads that answer."""
MOST_BYTES = 16 << 20
"""Of the requests that wait for their lines."""
SINK_BATCH = 64
"""Lines that a sink is given at a time: sending these holds the interpreter's lock for a third of a millisecond."""
SINK_BATCH_BYTES = 1 << 20
SINK_MOST_BYTES = 64 << 20
"""Of the lines that wait for one sink."""
CLOSE_S = 3.0
PROBLEM_AGAIN_S = 60.0

_log = structlog.get_logger(__name__)

Reason = Literal["queue", "sink", "closed", "catalogue", "failed"]
"""Why an impression is dropped: a label of DROPPED."""
Line = tuple[str, bytes]
"""A model, and one of its lines without its end."""


class ImpressionLog:
    """Thread safety: `offer` from any thread, `close` from one."""

    def __init__(self, sinks: Sequence[Sink], meter: Meter, most: int, clock: Clock = SYSTEM) -> None:
        """most: answers that may wait for their lines, and lines that may wait for each sink."""
        names = _names(sinks)
        self._outboxes = [Outbox(sink, name, most, meter) for sink, name in zip(sinks, names, strict=True)]
        self._meter = meter
        self._most = most
        self._clock = clock
        self._lines: dict[str, Lines] = {}
        """By model, those of the version that was offered last."""
        self._problem, self._problem_logged_s = "", 0.0
        self._writer = BackgroundWriter(
            "impressions",
            self._write,
            most=most,
            most_bytes=MOST_BYTES,
            batch=BATCH,
            linger_s=LINGER_S,
            breath_s=BREATH_S,
            on_full=self._log_full,
        )

    @classmethod
    def of(cls, settings: Settings, meter: Meter, clock: Clock = SYSTEM) -> ImpressionLog | None:
        """The log that the settings ask for; None if they ask for none. Raises ServerError."""
        sinks = open_sinks(settings)
        return cls(sinks, meter, settings.impressions_queue, clock) if sinks else None

    def offer(self, served: ServedVersion, query: Query, ranking: Ranking) -> None:
        """Queue one answer, or drop it if too many wait. Returns at once, raises nothing.

        An answer by a forced variant, or to a request with `no_log`, is no impression: it is only counted.
        """
        if query.no_log or query.is_forced:
            return self._meter.count(SKIPPED, served.name, "no_log" if query.no_log else "variant")
        # The ages of the user's events were computed for this time, so the line has the same.
        time_s = query.time_us / 1e6 if query.time_us else self._clock.time()
        shown = Shown(time_s, self._lines_of(served), query, ranking)
        if not self._writer.offer(shown, query.size):
            self._drop(served.name, "closed" if self._writer.closed else "queue")

    def close(self) -> None:
        """Write what waits, for at most CLOSE_S seconds, and end the threads. Call when the last call has ended."""
        if self._writer.closed:
            return
        began_s = time.monotonic()
        # Half of the time for the lines, so that the outboxes still have the rest to deliver them.
        for shown in self._writer.close(began_s + CLOSE_S / 2):
            self._drop(shown.lines.model, "closed")
        for outbox in self._outboxes:
            # One after the other, up to one common end: a sink that hangs takes the time of those behind it.
            outbox.close(began_s + CLOSE_S)

    def _drop(self, model: str, reason: Reason) -> None:
        for outbox in self._outboxes:
            outbox.dropped(model, reason)

    def _lines_of(self, served: ServedVersion) -> Lines:
        lines = self._lines.get(served.name)
        # Each version has a Form of its own, so that its identity names the version. Two threads at once make the same
        # lines twice; the dict's operations are atomic.
        if lines is None or lines.form is not served.form:
            lines = self._lines[served.name] = Lines.of(served)
        return lines

    def _log_full(self, full: bool) -> None:
        if full:
            _log.error("impressions dropped: too many wait for the writer", at_most=self._most)
        else:
            _log.info("the writer of impressions keeps up again")

    # -- the writer's thread

    def _write(self, batch: Sequence[Shown]) -> bool:
        """Make the lines of these answers and hand them to each sink."""
        lines: list[Line] = []
        for shown in batch:
            try:
                lines.append((shown.lines.model, shown.lines.line(shown)))
            # A line that fails must not cost the others of its batch: `BackgroundWriter` would drop all of them.
            except NoFragments as error:
                self._no_line(shown, "catalogue", error)
            except Exception as error:
                self._no_line(shown, "failed", error)
        for outbox in self._outboxes:
            outbox.put(lines)
        return True

    def _no_line(self, shown: Shown, reason: Reason, error: Exception) -> None:
        """Count it, and log why; the same cause at most once in PROBLEM_AGAIN_S."""
        model = shown.lines.model
        self._drop(model, reason)
        problem, now_s = repr(error), self._clock.monotonic()
        # One catalogue without values fails every line: a log line for each would fill the disk.
        if problem != self._problem or now_s - self._problem_logged_s > PROBLEM_AGAIN_S:
            trace = None if isinstance(error, NoFragments) else error
            _log.error("impressions dropped: no line of them", model=model, error=problem, exc_info=trace)
            self._problem, self._problem_logged_s = problem, now_s


class Outbox:
    """The lines that wait for one sink; a batch is sent again until the sink has accepted it.

    Thread safety: `put` from one thread, `close` from one, `dropped` from any.
    """

    def __init__(self, sink: Sink, name: str, most: int, meter: Meter) -> None:
        """name: of the sink in metrics. most: lines that may wait."""
        self._name = name
        self._sink = sink
        self._meter = meter
        self._failing = False
        self._writer = BackgroundWriter[Line](
            f"impressions to {name}",
            self._append,
            most=most,
            most_bytes=SINK_MOST_BYTES,
            batch=SINK_BATCH,
            batch_bytes=SINK_BATCH_BYTES,
            group=lambda line: line[0],
            on_written=self._count,
            on_full=self._log_full,
            on_end=sink.close,
        )
        meter.gauge(WAITING, name, read=lambda: self._writer.waiting)

    def put(self, lines: Sequence[Line]) -> None:
        """Queue lines; those that do not fit are dropped. Returns at once."""
        queued = self._writer.offer_all([(line, len(line[1])) for line in lines])
        for model, _ in lines[queued:]:
            self.dropped(model, "sink")

    def dropped(self, model: str, reason: Reason) -> None:
        """Count a line that never reaches the sink."""
        self._meter.count(DROPPED, model, self._name, reason)

    def close(self, end_at_s: float) -> None:
        """Hand over what waits, until `end_at_s` on the monotonic clock; count the rest as dropped."""
        left = self._writer.close(end_at_s)
        for model, _ in left:
            self.dropped(model, "closed")
        if left:
            _log.error("impressions lost at the end", sink=self._name, lines=len(left))

    def _append(self, batch: Sequence[Line]) -> bool:
        try:
            # Every line of a batch is of one model: `group` above.
            self._sink.append(batch[0][0], [line for _, line in batch])
        except Exception as error:
            self._meter.count(ATTEMPTS_FAILED, self._name)
            if not self._failing:
                known = isinstance(error, FtrieError | OSError)
                facts = {"sink": self._name, "to": self._sink.shown, "error": str(error)}
                _log.error(
                    "the sink of impressions fails, trying again", **facts, exc_info=None if known else error
                )
            self._failing = True
            return False
        if self._failing:
            _log.info(
                "the sink of impressions takes them again", sink=self._name, waiting=self._writer.waiting
            )
        self._failing = False
        return True

    def _count(self, batch: Sequence[Line]) -> None:
        self._meter.count(LOGGED, batch[0][0], self._name, by=len(batch))

    def _log_full(self, full: bool) -> None:
        if full:
            _log.error("impressions dropped: too many wait for the sink", sink=self._name)
        else:
            _log.info("impressions are kept again", sink=self._name)


def _names(sinks: Sequence[Sink]) -> list[str]:
    """A name for each sink in metrics: its kind, with a number from the second of a kind on."""
    kinds = [sink.kind for sink in sinks]
    counts = [kinds[: index + 1].count(kind) for index, kind in enumerate(kinds)]
    return [kind if count == 1 else f"{kind}-{count}" for kind, count in zip(kinds, counts, strict=True)]
