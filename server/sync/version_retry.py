"""Versions that could not be taken: said once a cause, counted by reason, and tried again after growing pauses."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

import structlog

from model_store.errors import ArtefactError, FtrieError, NewerFormat, UnreadableValue, VersionNotFound
from server.model.state import AllEqual
from server.sync.pauses import REFUSED_VERSION
from server.telemetry.families import REFUSED_VERSIONS
from server.telemetry.meter import Meter

DAMAGED, NEWER, GONE, EQUAL = "damaged", "newer", "gone", "equal"
MEMORY, UNREADABLE, OTHER = "memory", "unreadable", "failed"

_log = structlog.get_logger(__name__)

_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (VersionNotFound, GONE),
    (NewerFormat, NEWER),
    (AllEqual, EQUAL),
    (ArtefactError, DAMAGED),
    (UnreadableValue, UNREADABLE),
    (MemoryError, MEMORY),
    (
        OSError,
        MEMORY,
    ),  # shared memory is made by system calls; nothing else is asked of the system for a version
)


def reason_of(error: BaseException) -> str:
    """One word for a cause."""
    return next((word for kind, word in _REASONS if isinstance(error, kind)), OTHER)


class Refusals:
    """Of one model. `counts` may be read by any thread, the rest is for the one that follows the store."""

    def __init__(self, model: str, meter: Meter, now: Callable[[], float] = time.monotonic) -> None:
        self._model = model
        self._meter = meter
        self._now = now
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._version: int | None = None
        self._said = ""
        self._failures = 0
        self._again_at = 0.0

    @property
    def counts(self) -> dict[str, int]:
        """How often a version was refused, by reason."""
        with self._lock:
            return dict(self._counts)

    def resting(self, version: int | None) -> bool:
        """Whether `version` was refused lately, and is to be left alone for now. None: what names the version."""
        return version == self._version and self._now() < self._again_at

    def refuse(self, version: int | None, error: Exception, still_serving: int | None) -> None:
        """Count one refusal; log it unless it was the last one's cause too."""
        reason = reason_of(error)
        with self._lock:
            self._counts[reason] += 1
        self._meter.count(REFUSED_VERSIONS, self._model, reason)
        self._failures = self._failures + 1 if version == self._version else 1
        self._version = version
        self._again_at = self._now() + REFUSED_VERSION.after(self._failures)
        cause = f"{version} {reason} {error}"
        if cause == self._said:
            return
        self._said = cause
        facts = {"model": self._model, "version": version, "reason": reason, "still_serving": still_serving}
        if reason == OTHER and not isinstance(error, FtrieError):
            _log.error("version refused", **facts, exc_info=error)
        else:
            _log.error("version refused", **facts, error=str(error))

    def forgive(self) -> None:
        """Let the next look try again at once."""
        self._again_at = 0.0

    def succeeded(self) -> None:
        """A version was taken: what was refused before is forgotten, but for the counts."""
        self._version, self._said, self._failures = None, "", 0
