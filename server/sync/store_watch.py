"""Watches the stores that a server reads, whether or not a request needs them: one that is away, a replica that lags.

A worker learns that the store of users is away from a request alone, and of a replica that has lost its primary nothing
at all: it goes on answering what it had.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from model_store.errors import StoreError, StoreUnavailable
from model_store.store import Store
from server.telemetry.status import StoreStatus

EVERY_S = 1.0
ANSWERS_WITHIN_S = 2.0
LATE_S = 30.0
"""A replica that has heard nothing from its primary for so long is a problem. A primary pings every 10 s by default."""

_log = structlog.get_logger(__name__)


class StoreWatch(threading.Thread):
    """Looks at one store every second, from `start` to `stop`. `status` may be read by any thread."""

    def __init__(self, name: str, url: str, now: Callable[[], float] = time.monotonic) -> None:
        """name: what the server calls the store, "store" or "users"."""
        super().__init__(name=f"watch {name}", daemon=True)
        self.status = StoreStatus(name)
        self._name, self._url, self._now = name, url, now
        self._stopped = threading.Event()
        self._store: Store | None = None
        self._heard_at: float | None = None
        """When a replica with its link down was last known to hear from its primary."""

    def stop(self) -> None:
        """Ask the thread to end."""
        self._stopped.set()

    def run(self) -> None:
        """Look until stopped."""
        while not self._stopped.is_set():
            before, self.status = self.status, self.look()
            if bool(before.problem) != bool(self.status.problem):
                log = _log.warning if self.status.problem else _log.info
                log("store watched", store=self._name, problem=self.status.problem)
            self._stopped.wait(EVERY_S)
        if self._store is not None:
            self._store.close()

    def look(self) -> StoreStatus:
        """The store as it is now."""
        try:
            if self._store is None:
                self._store = Store.open(self._url, timeout_s=ANSWERS_WITHIN_S)
            lag_s = self._lag_s(self._store.replication())
        except StoreUnavailable as error:
            return StoreStatus(self._name, away=True, problem=f"away: {error}")
        except StoreError as error:  # as by an ACL without `+info`
            return StoreStatus(
                self._name, problem=f"whether it is a replica that lags cannot be seen: {error}"
            )
        late = lag_s is not None and lag_s > LATE_S
        problem = f"a replica that has heard nothing from its primary for {lag_s:.0f} s" if late else ""
        return StoreStatus(self._name, lag_s=lag_s, problem=problem)

    def _lag_s(self, replication: tuple[bool, float] | None) -> float | None:
        """Seconds since a replica heard from its primary; None for a primary."""
        if replication is None:
            self._heard_at = None
            return None
        is_linked, silent_s = replication
        heard_at = self._now() - silent_s
        if is_linked or self._heard_at is None:
            self._heard_at = heard_at
        else:  # a replica that was never linked says nothing of how long
            self._heard_at = min(self._heard_at, heard_at)
        return self._now() - self._heard_at
