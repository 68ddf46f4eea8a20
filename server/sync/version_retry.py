"""Versions that cannot be served: logged once for each cause, counted by reason, tried again after growing pauses."""

from __future__ import annotations

import threading
from collections import Counter

import structlog

from model_store.clock import SYSTEM, Clock
from model_store.errors import ArtefactError, FtrieError, NewerFormat, UnreadableValue, VersionNotFound
from model_store.waiting import Backoff
from server.model.live_model import AllEqual
from server.telemetry.meter import Meter, declare

REFUSED_VERSIONS = declare(
    "ftrie_refused_versions_total",
    ("model", "reason"),
    "refused versions: `damaged`, `newer` (format), `gone`, `equal` (all candidates would score the same), `memory`, "
    "`unreadable` or `failed`",
)
DAMAGED, NEWER, GONE, EQUAL = "damaged", "newer", "gone", "equal"
MEMORY, UNREADABLE, OTHER = "memory", "unreadable", "failed"

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""Between attempts to serve a version that was refused."""

_log = structlog.get_logger(__name__)

# The first that fits counts: NewerFormat and AllEqual are ArtefactErrors too.
_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (VersionNotFound, GONE),
    (NewerFormat, NEWER),
    (AllEqual, EQUAL),
    (ArtefactError, DAMAGED),
    (UnreadableValue, UNREADABLE),
    (MemoryError, MEMORY),
    (OSError, MEMORY),  # creating shared memory is the only system call that building a version makes
)


def reason_of(error: BaseException) -> str:
    """The metric's label for a cause."""
    return next((word for kind, word in _REASONS if isinstance(error, kind)), OTHER)


class VersionRetry:
    """The refused versions of one model. `counts` may be read by any thread; the rest is for the one that syncs."""

    def __init__(self, model: str, meter: Meter, clock: Clock = SYSTEM) -> None:
        self._model = model
        self._meter = meter
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._version: int | None = None
        self._logged_cause = ""
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._retry_at = 0.0

    @property
    def counts(self) -> dict[str, int]:
        """How often a version was refused, by reason."""
        with self._lock:
            return dict(self._counts)

    def resting(self, version: int | None) -> bool:
        """Whether `version` was refused and its next attempt is not due yet. None: the active pointer itself."""
        return version == self._version and self._clock.monotonic() < self._retry_at

    def refuse(self, version: int | None, error: Exception, still_serving: int | None) -> None:
        """Count one refusal; log it unless the last one had the same cause."""
        reason = reason_of(error)
        with self._lock:
            self._counts[reason] += 1
        self._meter.count(REFUSED_VERSIONS, self._model, reason)
        # Another version has not failed yet, so its pauses begin with the first.
        if version != self._version:
            self._backoff.succeeded()
        self._version = version
        self._retry_at = self._clock.monotonic() + self._backoff.failed()
        cause = f"{version} {reason} {error}"
        if cause == self._logged_cause:
            return
        self._logged_cause = cause
        facts = {"model": self._model, "version": version, "reason": reason, "still_serving": still_serving}
        if reason == OTHER and not isinstance(error, FtrieError):
            _log.error("version refused", **facts, exc_info=error)
        else:
            _log.error("version refused", **facts, error=str(error))

    def forgive(self) -> None:
        """Make the next attempt due now."""
        self._retry_at = 0.0

    def succeeded(self) -> None:
        """A version is served: forget the refused one, but not the counts."""
        self._version, self._logged_cause = None, ""
        self._backoff.succeeded()
