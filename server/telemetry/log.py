"""The server's log: structlog to stderr, for people on a terminal and as JSON lines elsewhere.

With --access-log, a share of the answers is logged too. No cookie, item or feature is ever in it.
"""

from __future__ import annotations

import logging
import random
import sys
from contextlib import suppress
from typing import Any, TextIO, cast

import structlog
import structlog.tracebacks

from model_store.clock import SYSTEM, Clock
from server.telemetry.meter import Answered

LEVELS = ("debug", "info", "warning", "error")

_log = structlog.get_logger(__name__)


def log_to_stderr(level: int | str = logging.INFO, **facts: object) -> None:
    """Configure structlog for this process. Stdout stays free for the command's answer.

    level: one of LEVELS, or its number; lower levels are not written and cost nothing. facts: are added to each line.
    """
    on_terminal = sys.stderr.isatty()
    renderers: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if on_terminal
        else [_tracebacks(), structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[
            Sparse(),
            structlog.processors.add_log_level,
            lambda logger, method, event: {**event, **facts},
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *renderers,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_number(level)),
        # One write for each line, so that the lines of several processes do not mix.
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _Lasting(sys.stderr))),
        cache_logger_on_first_use=True,
    )


OFTEN = ("version built", "catalogue built", "trie rebuilt", "items read", "serving")
"""What each version logs. At a version a second that would be some 50 MB a day."""
OFTEN_LINES, OFTEN_EVERY_S = 5, 60.0


class Sparse:
    """A processor that lets OFTEN_LINES lines of each event of OFTEN and model through, and then one a minute.

    A line says in `unlogged` how many of its kind were left out before it; metrics count all.
    """

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._kinds: dict[tuple[Any, Any], tuple[float, float, int]] = {}
        """By event and model: lines left, as of when, and how many were left out."""

    def __call__(
        self, logger: Any, method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        """Raises DropEvent for a line that is left out."""
        if event["event"] not in OFTEN:
            return event
        now, kind = self._clock.monotonic(), (event["event"], event.get("model"))
        lines, since, unlogged = self._kinds.get(kind, (float(OFTEN_LINES), now, 0))
        lines = min(OFTEN_LINES, lines + (now - since) / OFTEN_EVERY_S)
        if lines < 1:
            self._kinds[kind] = lines, now, unlogged + 1
            raise structlog.DropEvent
        self._kinds[kind] = lines - 1, now, 0
        return {**event, "unlogged": unlogged} if unlogged else event


class AccessLog:
    """A listener of the meter that logs a share of the answers."""

    def __init__(self, share: float) -> None:
        """share: of the answers, from 0 to 1, drawn at random."""
        self._share = share

    def __call__(self, answer: Answered) -> None:
        """Log the answer, if it is drawn."""
        if random.random() >= self._share:
            return
        _log.info(
            "answered",
            request_id=answer.request_id,
            model=answer.model,
            version=answer.version,
            variant=answer.variant,
            candidates=answer.candidates,
            ms=round(answer.took_ns / 1e6, 3),
            # Without the detail, which may quote a stored value.
            degraded=[each.part for each in answer.degraded],
        )


def _tracebacks() -> structlog.typing.Processor:
    """Tracebacks without the frames' local variables, which hold cookies and features."""
    transformer = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    return structlog.processors.ExceptionRenderer(transformer)


def _number(level: int | str) -> int:
    return level if isinstance(level, int) else logging.getLevelNamesMapping()[level.upper()]


class _Lasting:
    """A stream that may close before its writers end: a worker whose supervisor was killed goes on without a log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write; ignore a closed stream."""
        with suppress(OSError, ValueError):  # a closed file raises ValueError
            self._stream.write(text)

    def flush(self) -> None:
        """Flush; ignore a closed stream."""
        with suppress(OSError, ValueError):
            self._stream.flush()
