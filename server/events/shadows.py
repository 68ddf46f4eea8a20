"""The shadow log: what variants that do not answer would have answered, as JSON lines.

A call offers its shadows and goes on; one thread a process writes them. What the disk does not take, or not in time,
is dropped and counted. docs/experiments.md lists the members of a line.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import structlog

from model_store.metrics import Family
from server.events.sinks import RotatingFile
from server.events.writer import BackgroundWriter
from server.telemetry.meter import declare

if TYPE_CHECKING:
    from server.ranking.query import Query, Ranking, ShadowRanking
    from server.ranking.served import ServedVersion
    from server.settings import Settings

SHADOW_LOGGED = declare(
    "ftrie_shadow_logged_total", ("model",), "answers whose shadows were written to the log"
)
SHADOW_DROPPED = declare(
    "ftrie_shadow_dropped_total", ("model",), "answers whose shadows could not be written"
)
LOGGED_ITEMS = 100
"""Of each list of items, this many are written."""
WAITING = 1000
BATCH = 256
MAX_BYTES = 64 << 20
KEPT = 3
CLOSE_S = 2.0

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class ShadowRecord:
    """An answer with its shadows, as a line has them; immutable."""

    time_s: float
    request_id: str
    model: str
    version: int
    variants: tuple[str, ...]
    variant: str
    ids: Sequence[str]
    score: Sequence[float]
    shadows: Sequence[ShadowRanking]

    @classmethod
    def of(
        cls, request_id: str, served: ServedVersion, query: Query, ranking: Ranking, time_s: float
    ) -> ShadowRecord:
        """An answer's shadows: of each list the first LOGGED_ITEMS."""
        # Cut now, so that a record that waits does not keep all candidates in memory.
        few = slice(LOGGED_ITEMS)
        return cls(
            time_s=time_s,
            request_id=request_id,
            model=served.name,
            version=served.version,
            variants=served.variant_names,
            variant=query.variant_of(served.variant_names),
            ids=ranking.ids[few],
            score=ranking.score[few],
            shadows=[
                replace(s, ids=s.ids[few], score=s.score[few], shown=s.shown[few]) for s in ranking.shadows
            ],
        )


class ShadowLog:
    """Writes shadows to a file. Thread safety: `wants` and `offer`, any thread."""

    def __init__(
        self,
        path: str | Path,
        count: Callable[[Family, str], None],
        *,
        sample: float = 1.0,
        max_bytes: int = MAX_BYTES,
        kept: int = KEPT,
        waiting: int = WAITING,
    ) -> None:
        """`count(family, model)` counts lines; `sample` is the fraction of requests whose shadows are scored at all.

        A file that would grow over `max_bytes` becomes FILE.1, that one FILE.2, up to `kept`. Raises OutputError if the
        file cannot be opened.
        """
        self._path = str(path)
        self._count = count
        # crc32 is spread evenly over 32 bits, so that this share of all ids lies below the bound.
        self._below = int(sample * (1 << 32))
        self._failing = False
        self._file = RotatingFile(path, max_bytes, kept)
        # Before the thread starts, so that a path that cannot be written ends the start of the server and not only the
        # log.
        self._file.check("the shadow log")
        self._writer = BackgroundWriter("shadow log", self._write, most=waiting, batch=BATCH)

    @classmethod
    def of(cls, settings: Settings, count: Callable[[Family, str], None]) -> ShadowLog | None:
        """The log that the settings ask for; None if they ask for none. Raises OutputError."""
        if not settings.shadow_log:
            return None
        return cls(settings.shadow_log, count, sample=settings.shadow_sample)

    def wants(self, request_id: str) -> bool:
        """Whether this request is in the sample. Only its id decides, so that every server samples the same ones."""
        return crc32(request_id.encode("utf-8", "surrogatepass")) < self._below

    def offer(self, record: ShadowRecord) -> None:
        """Queue one answer, or drop it if too many wait. Returns at once, raises nothing."""
        if not self._writer.offer(record):
            self._count(SHADOW_DROPPED, record.model)

    def close(self) -> None:
        """Write what waits, for at most CLOSE_S seconds, and end the thread."""
        for record in self._writer.close(time.monotonic() + CLOSE_S):
            self._count(SHADOW_DROPPED, record.model)

    def _write(self, batch: Sequence[ShadowRecord]) -> bool:
        family = SHADOW_DROPPED
        try:
            self._file.append(b"".join(_line(record) for record in batch))
            family, self._failing = SHADOW_LOGGED, False
        except OSError as error:
            if not self._failing:
                _log.error("shadow log not written", file=self._path, error=error.strerror)
            self._failing = True
        except Exception:
            _log.exception("shadow log not written", file=self._path)
        for record in batch:
            self._count(family, record.model)
        return True


def _line(record: ShadowRecord) -> bytes:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.time_s))
    names = record.variants
    line = {
        "time": f"{stamp}.{int(record.time_s * 1000) % 1000:03d}Z",
        "request_id": record.request_id,
        "model": record.model,
        "version": record.version,
        "variant": record.variant,
        "ids": list(record.ids),
        "scores": list(record.score),
        "shadows": {
            names[s.variant]: {"ids": s.ids, "scores": s.score, "shown_scores": s.shown}
            for s in record.shadows
        },
    }
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"
