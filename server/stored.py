"""Reading the store inside a request: within its deadline and a budget, and not at all while it is away.

After three failures in a row the store is left alone for a moment that doubles up to a second, and then one
request tries again; otherwise every request would wait out the whole budget. Nothing here decides what a
failure means.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import grpc

from model_store.errors import StoreUnavailable
from model_store.records import Records
from model_store.store import Store
from server.errors import DeadlinePassed

T = TypeVar("T")

DEFAULT_BUDGET_S = 0.05
MIN_REMAINING_S = 0.005
FAILURES_BEFORE_PAUSE = 3
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0


class Breaker:
    """Counts failures in a row and says when not to try. Safe for any number of threads."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._failures = 0
        self._try_again_at = 0.0

    def pause_s(self) -> float:
        """Seconds until the store may be tried; 0 if now. After a pause one caller gets 0, not all."""
        if self._failures < FAILURES_BEFORE_PAUSE:
            return 0.0
        with self._lock:
            now = self._now()
            if now < self._try_again_at:
                return self._try_again_at - now
            self._try_again_at = now + self._length_s()
            return 0.0

    def failed(self) -> None:
        """Count one failure."""
        with self._lock:
            self._failures += 1
            self._try_again_at = self._now() + self._length_s()

    def succeeded(self) -> None:
        """Forget the failures."""
        if self._failures:
            with self._lock:
                self._failures = 0

    def _length_s(self) -> float:
        doublings = min(max(self._failures - FAILURES_BEFORE_PAUSE, 0), 10)
        return min(FIRST_PAUSE_S * 2.0**doublings, LONGEST_PAUSE_S)


class StoredReads:
    """The store's records as a request may read them. Safe for any number of threads once connected."""

    def __init__(self, url: str, budget_s: float = DEFAULT_BUDGET_S) -> None:
        self._url = url
        self._budget_s = budget_s
        self._breaker = Breaker()
        self._store: Store | None = None

    def connect(self) -> None:
        """Open the store unless it is open. Raises StoreUnavailable. For one thread at a time."""
        if self._store is None:
            self._store = Store.open(self._url, timeout_s=self._budget_s)

    def close(self) -> None:
        """Close the store."""
        if self._store is not None:
            self._store.close()

    def user(self, cookie: str, context: grpc.ServicerContext) -> dict[str, str]:
        """The user's record, empty if there is none. Raises StoreUnavailable or DeadlinePassed."""
        records = self._records(context)
        return self._counted(lambda: records.user(cookie))

    def items(self, ids: Sequence[str], context: grpc.ServicerContext) -> list[dict[str, str] | None]:
        """One record or None an id, in one round trip. Raises as `user`."""
        records = self._records(context)
        return self._counted(lambda: records.items(ids))

    def candidates(self, name: str, context: grpc.ServicerContext) -> list[str] | None:
        """The members of a candidate set, or None if there is no such set. Raises as `user`."""
        records = self._records(context)
        return self._counted(lambda: records.candidates(name))

    def _records(self, context: grpc.ServicerContext) -> Records:
        """The records, if there is time to read them and reason to hope. Raises as `user`."""
        remaining_s = context.time_remaining()
        if remaining_s is not None and remaining_s <= 0:
            raise DeadlinePassed("the deadline passed before the store was asked")
        if remaining_s is not None and remaining_s < MIN_REMAINING_S:
            raise StoreUnavailable(f"not asked: the deadline is in {remaining_s * 1000:.1f} ms")
        if self._store is None:
            raise StoreUnavailable("the store has not answered since this server started")
        pause_s = self._breaker.pause_s()
        if pause_s:
            raise StoreUnavailable(f"the store did not answer lately; next try in {pause_s:.2f} s")
        return self._store.records

    def _counted(self, read: Callable[[], T]) -> T:
        try:
            answer = read()
        except StoreUnavailable:
            self._breaker.failed()
            raise
        self._breaker.succeeded()
        return answer
