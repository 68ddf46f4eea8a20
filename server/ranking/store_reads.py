"""Reading the store inside a request: within its deadline and a budget, and not at all while the store is away.

After three failures in a row no request asks the store for a moment, which doubles up to a second; then one request
tries again. Otherwise every request would wait for the whole budget.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from model_store.clock import SYSTEM, Clock
from model_store.errors import StoreError, StoreUnavailable
from model_store.records.lookups import HashFields
from model_store.records.records import Records
from model_store.store import Store
from server.errors import DeadlinePassed
from server.settings import DEFAULT_STORE_BUDGET_S

T = TypeVar("T")

MARGIN_S = 0.004
"""The part of a deadline that is reserved for everything after a read."""
SHORTEST_WAIT_S = 0.001
FAILURES_BEFORE_PAUSE = 3
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0


Holder = Callable[[Records], str]


class Timed(Protocol):
    """A call with a deadline, such as grpc's context of it."""

    def time_remaining(self) -> float | None:
        """Seconds until the deadline, 0 once it has passed; None without one."""


def no_holder(records: Records) -> str:
    """For reads that concern several servers, or one that need not be distinguished."""
    return ""


class Breaker:
    """Counts failures in a row and says when not to try. Safe for any number of threads."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._try_again_at = 0.0

    def pause_s(self) -> float:
        """Seconds until the store may be tried; 0 if now. After a pause one caller gets 0, not all."""
        # Without the lock, in every read: a thread that sees the number before asks once more.
        if self._failures < FAILURES_BEFORE_PAUSE:
            return 0.0
        with self._lock:
            now = self._clock.monotonic()
            if now < self._try_again_at:
                return self._try_again_at - now
            # Before the caller tries: the others wait for another pause meanwhile.
            self._try_again_at = now + self._length_s()
            return 0.0

    def failed(self) -> None:
        """Count one failure."""
        with self._lock:
            self._failures += 1
            self._try_again_at = self._clock.monotonic() + self._length_s()

    def succeeded(self) -> None:
        """Forget the failures."""
        if self._failures:
            with self._lock:
                self._failures = 0

    def _length_s(self) -> float:
        doublings = min(max(self._failures - FAILURES_BEFORE_PAUSE, 0), 10)
        return min(FIRST_PAUSE_S * 2.0**doublings, LONGEST_PAUSE_S)


class Source:
    """One store as requests read it. Safe for any number of threads once connected."""

    def __init__(self, url: str, budget_s: float, clock: Clock = SYSTEM) -> None:
        self.clock = clock
        self._url = url
        self._budget_s = budget_s
        self._breakers: dict[str, Breaker] = {}
        """By the server that holds a key, empty if all keys are in one place."""
        self._store: Store | None = None
        self._epoch = ""
        self._lost_at = -math.inf

    @classmethod
    def of(cls, store: Store, budget_s: float = DEFAULT_STORE_BUDGET_S) -> Source:
        """A store that is open, and that its owner closes."""
        made = cls(store.url, budget_s, store.clock)
        made._bind(store)
        return made

    def connect(self) -> None:
        """Open the store unless it is open. Raises StoreUnavailable. For one thread at a time."""
        if self._store is None:
            self._bind(Store.open(self._url, timeout_s=self._budget_s, clock=self.clock))

    def _bind(self, store: Store) -> None:
        with suppress(StoreError):  # without it a loss of data goes unnoticed
            self._epoch = store.records.item_changes.epoch()
        self._store = store

    def has_lost(self, read_at: float, wait_s: float) -> bool:
        """Whether the store has lost its data since `read_at` (monotonic clock). Asks it. Raises StoreUnavailable."""
        if not self._epoch:
            return False
        epoch = self.read(lambda records, wait: records.item_changes.epoch(), wait_s)
        # A store that is read only may have no epoch, which says nothing.
        if epoch and epoch != self._epoch:
            self._epoch, self._lost_at = epoch, self.clock.monotonic()
        return read_at < self._lost_at

    def close(self) -> None:
        """Close the store."""
        if self._store is not None:
            self._store.close()

    @property
    def is_cluster(self) -> bool:
        """Whether the store, once connected, is a cluster."""
        return self._store is not None and self._store.records.is_cluster

    def left_s(self, call: Timed, spent_s: float) -> float:
        """How long a read may still take for a call that has spent `spent_s` of its budget; 0 or less: it may not."""
        remaining_s = call.time_remaining()
        left_s = self._budget_s - spent_s
        return left_s if remaining_s is None else min(left_s, remaining_s - MARGIN_S)

    def wait_s(self, context: Timed) -> float:
        """How long a read for this request may take, more than 0. Raises DeadlinePassed or StoreUnavailable."""
        remaining_s = context.time_remaining()
        if remaining_s is None:
            return self._budget_s
        if remaining_s <= 0:
            raise DeadlinePassed("the deadline passed before the store was asked")
        if remaining_s < MARGIN_S + SHORTEST_WAIT_S:
            raise StoreUnavailable(f"not asked: the deadline is in {remaining_s * 1000:.1f} ms")
        return min(self._budget_s, remaining_s - MARGIN_S)

    def read(self, ask: Callable[[Records, float], T], wait_s: float, holder: Holder = no_holder) -> T:
        """What `ask` returns; it gets records and `wait_s`. Raises StoreUnavailable, also while the breaker is open.

        holder: names the server of a cluster that is asked, so that one that fails keeps no requests from the others.
        """
        return self.use(lambda store, wait: ask(store.records, wait), wait_s, holder)

    def use(self, ask: Callable[[Store, float], T], wait_s: float, holder: Holder = no_holder) -> T:
        """Same as `read`, with the store itself."""
        if self._store is None:
            raise StoreUnavailable("the store has not answered since this server started")
        name = holder(self._store.records)
        # setdefault is atomic; a defaultdict may give two threads a breaker each, and keep one.
        breaker = self._breakers.get(name) or self._breakers.setdefault(name, Breaker(self.clock))
        pause_s = breaker.pause_s()
        if pause_s:
            raise StoreUnavailable(f"the store did not answer lately; next try in {pause_s:.2f} s")
        began = self.clock.monotonic()
        try:
            answer = ask(self._store, wait_s)
        except StoreUnavailable:
            # A read that had only the caller's last milliseconds does not count as the store's failure.
            if wait_s >= self._budget_s / 2 or self.clock.monotonic() - began < wait_s:
                breaker.failed()
            raise
        # Errors of data end before this: they count neither as failure nor as success.
        breaker.succeeded()
        return answer


class StoredReads:
    """What requests read by id: users from one store, items and candidate sets from another or the same."""

    def __init__(
        self,
        url: str,
        budget_s: float = DEFAULT_STORE_BUDGET_S,
        user_url: str = "",
        clock: Clock = SYSTEM,
    ) -> None:
        self._records = Source(url, budget_s, clock)
        self.users = Source(user_url, budget_s, clock) if user_url and user_url != url else self._records

    @classmethod
    def of(cls, records: Source, users: Source) -> StoredReads:
        """Reads of these sources, which may be the same."""
        made = cls.__new__(cls)
        made._records, made.users = records, users
        return made

    @property
    def clock(self) -> Clock:
        """By it what was read is fresh or not."""
        return self._records.clock

    def connect(self) -> None:
        """Open each store unless it is open. Raises StoreUnavailable if one of them does not answer."""
        try:
            # Both are tried, so that one store that is away does not leave the other closed.
            self._records.connect()
        finally:
            self.users.connect()

    def close(self) -> None:
        """Close the stores."""
        self._records.close()
        self.users.close()

    def user_values(self, cookie: str, wanted: HashFields, wait_s: float) -> list[str | None]:
        """The values of some fields of a user's record. `wait_s`: of `users`. Raises StoreError."""
        return self.users.read(
            lambda records, wait: records.user_values(cookie, wanted, wait),
            wait_s,
            lambda records: records.holder_of_user(cookie),
        )

    def users_values(
        self, cookies: Sequence[str], wanted: HashFields, wait_s: float
    ) -> list[list[str | None] | StoreError]:
        """As `user_values` of each, or the error of its record. One round trip. Not of a cluster."""
        return self.users.read(lambda records, wait: records.users_values(cookies, wanted, wait), wait_s)

    def user_and_history(
        self, cookie: str, wanted: HashFields, model: str, wait_s: float
    ) -> tuple[list[str | None], bytes | None]:
        """As `user_values`, and the user's history for a model: one round trip, unless users have a store of their own.

        Raises StoreError.
        """
        if self.users is not self._records:
            values = self.user_values(cookie, wanted, wait_s) if wanted.names else []
            nothing = HashFields(())
            return values, self._records.read(
                lambda records, wait: records.user_and_history(cookie, nothing, model, wait)[1],
                wait_s,
                lambda records: records.holder_of_user(cookie),
            )
        return self.users.read(
            lambda records, wait: records.user_and_history(cookie, wanted, model, wait),
            wait_s,
            lambda records: records.holder_of_user(cookie),
        )

    def lost_sets(self, read_at: float, context: Timed) -> bool:
        """Whether the store of candidate sets has lost its data since `read_at`. Raises as `items`."""
        return self._records.has_lost(read_at, self._records.wait_s(context))

    def items(self, ids: Sequence[str], context: Timed) -> list[dict[str, str] | None]:
        """One record or None an id, in one round trip. Raises StoreError or DeadlinePassed."""
        source = self._records
        return source.read(lambda records, wait: records.items(ids, wait), source.wait_s(context))

    def candidates(self, name: str, context: Timed) -> list[str] | None:
        """The members of a candidate set, or None if there is no such set. Raises as `items`."""
        source = self._records
        return source.read(lambda records, wait: records.candidates(name, wait), source.wait_s(context))
