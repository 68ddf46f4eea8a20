"""The user's side of a request: what the store knows of a user, read at most once for many requests.

The store is asked only if a cookie is given and some user-side field is not in the request; once for all requests of
that cookie at a time, and not again while the record is fresh. If the store does not answer, or has lost its data, the
record that was read last is used; without one, the request goes on with what it brought. The notes say both.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import grpc

from model_store.errors import StoreError, StoreUnavailable, UnreadableValue
from model_store.features.history import check_record
from server.errors import Degradation
from server.ranking.features import StoredUser, UserFields
from server.ranking.store_reads import StoredReads
from server.settings import DEFAULT_USER_CACHE, DEFAULT_USER_TTL_S
from server.telemetry.families import USER_CACHE
from server.telemetry.meter import Meter

PART, HISTORY_PART = "user_features", "user_history"
HISTORY_FRESH_S = 1.0
MAX_KEPT_COOKIE = 256
"""Characters. Callers choose cookies of up to 4 KiB, and 100,000 are kept: the record of a longer one is not."""
MAX_SWEEP = 128
"""Users that one eviction looks at, some 8 µs, so that no request pays for many."""


class UserCache:
    """A bounded map from cookie to user. Thread safety: any thread may call anything; `get` takes no lock.

    Clock eviction (F. J. Corbató, "A Paging Experiment with the Multics System", 1968): a hit is one dict look-up and
    one mark, without a lock or a list to reorder, and keeps about what least-recently-used would. Nothing expires here.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._users: dict[str, StoredUser] = {}
        self._ring: list[StoredUser] = []
        self._hand = 0
        self._lock = threading.Lock()
        self.get = self._users.get
        """The user of a cookie, or None. O(1)."""

    def __len__(self) -> int:
        return len(self._users)

    def put(self, user: StoredUser) -> None:
        """Keep a user instead of an earlier one of the same cookie, or of one that was not used lately. O(1)."""
        if not self._capacity:
            return
        with self._lock:
            before = self._users.get(user.cookie)
            if before is not None:
                user.place = before.place
            elif len(self._ring) < self._capacity:
                user.place = len(self._ring)
                self._ring.append(user)
            else:
                user.place = self._victim()
                del self._users[self._ring[user.place].cookie]
            self._ring[user.place] = self._users[user.cookie] = user

    def _victim(self) -> int:
        """The place of a user who was not used since the hand passed."""
        for _ in range(MAX_SWEEP):
            place = self._hand
            self._hand = (place + 1) % self._capacity
            if not self._ring[place].used:
                break
            self._ring[place].used = False
        return place

    def check(self) -> None:
        """Assert the invariants."""
        assert len(self._users) == len(self._ring) <= self._capacity
        for place, user in enumerate(self._ring):
            assert user.place == place
            assert self._users[user.cookie] is user


class Users:
    """The users of all models, as the store has them. Safe for any number of threads."""

    def __init__(
        self,
        reads: StoredReads,
        users: int = DEFAULT_USER_CACHE,
        ttl_s: float = DEFAULT_USER_TTL_S,
        meter: Meter | None = None,
    ) -> None:
        """`users`: how many are kept for each model, 0 for none; `ttl_s`: how long a record counts as fresh."""
        self._reads = reads
        self._meter = meter or Meter()
        self._users = users
        self._ttl_s = ttl_s
        self._shelves: dict[str, _Shelf] = {}

    def forget(self) -> None:
        """Read every user again, and keep none that the store lacks."""
        self._shelves.clear()

    def lacks(self, cookie: str, given: int, model: str, wanted: UserFields) -> bool:
        """Whether `find` would have to read the user, and `read_together` can do so.

        Users with histories and those of a cluster, whose nodes fail one at a time, are read alone.
        """
        if not cookie or wanted.histories is not None or given & wanted.stored_bits == wanted.stored_bits:
            return False
        user = self._shelf(model, wanted).cache.get(cookie)
        return (user is None or user.fresh_until <= time.monotonic()) and not self._reads.users.is_cluster

    def read_together(
        self, cookies: Iterable[str], model: str, wanted: UserFields, wait_s: float
    ) -> Mapping[str, Flight]:
        """Read users in one round trip, each for all requests of its cookie; the reads by cookie, all ended.

        For requests that lack these users. Leaves out whom another thread is reading.
        """
        shelf = self._shelf(model, wanted)
        with shelf.lock:
            flights = {cookie: Flight(wait_s) for cookie in cookies if cookie not in shelf.flights}
            shelf.flights.update(flights)
        try:
            if flights:
                self._fly_together(shelf, flights, wait_s)
        finally:
            with shelf.lock:
                for cookie in flights:
                    del shelf.flights[cookie]
            for flight in flights.values():
                if flight.landed is not None:
                    flight.landed.set()
        return flights

    def _fly_together(self, shelf: _Shelf, flights: Mapping[str, Flight], wait_s: float) -> None:
        found: Sequence[list[str | None] | StoreError]
        try:
            found = self._reads.users_values(list(flights), shelf.wanted.hash_fields, wait_s)
        except StoreError as error:
            found = [error] * len(flights)
        for (cookie, flight), values in zip(flights.items(), found, strict=True):
            if isinstance(values, StoreError):
                flight.fail(values)
                continue
            try:
                flight.user = self._kept(shelf, cookie, values, None, wait_s)
            except StoreError as error:
                flight.fail(error)

    def find(
        self,
        cookie: str,
        given: int,
        model: str,
        wanted: UserFields,
        context: grpc.ServicerContext,
        flight: Flight | None = None,
    ) -> tuple[StoredUser | None, Sequence[Degradation]]:
        """The user to lay under a request's features, None if there is nothing to add; and the notes.

        given: a bit for each field that the request has itself. flight: the read that `read_together` has made for this
        request. The notes tell what is missing or stale, and which
        stored values were left out because they do not fit their field. Raises DeadlinePassed.
        """
        reads_history = wanted.histories is not None
        if not cookie or (given & wanted.user_bits == wanted.user_bits and not reads_history):
            return None, ()
        notes = list[Degradation]()
        if given & wanted.stored_bits == wanted.stored_bits and not reads_history:
            user = _unread(cookie, wanted)
        else:
            user, notes = self._user(cookie, model, wanted, context, flight)
        if reads_history and user.history is None and not notes:
            notes = [
                Degradation.left_out(HISTORY_PART, "a record that is damaged; see ftrie store check", cookie)
            ]
        if misfits := user.tokens(wanted).misfits:
            notes = [*notes, *(Degradation.left_out(PART, text) for bit, text in misfits if not given & bit)]
        return user, notes

    def _shelf(self, model: str, wanted: UserFields) -> _Shelf:
        """The users kept of a model, whose version reads these fields."""
        shelf = self._shelves.get(model)
        if shelf is None or shelf.wanted is not wanted:
            # Another version, whose spec has other fields: the records read for the one before do not serve it.
            shelf = self._shelves[model] = _Shelf(model, wanted, UserCache(self._users))
        return shelf

    def _user(
        self,
        cookie: str,
        model: str,
        wanted: UserFields,
        context: grpc.ServicerContext,
        flight: Flight | None,
    ) -> tuple[StoredUser, list[Degradation]]:
        """The user as far as known, and the notes on that. Raises DeadlinePassed."""
        shelf = self._shelf(model, wanted)
        user = shelf.cache.get(cookie)
        if flight is None and user is not None and user.fresh_until > time.monotonic():
            user.used = True
            self._meter.count(USER_CACHE, "hit")
            return user, (_lost(user) if user.lost_at else [])
        try:
            read = self._read(shelf, cookie, context) if flight is None else flight.outcome()
            self._meter.count(USER_CACHE, "stale" if read.lost_at else "miss")
            return read, (_lost(read) if read.lost_at else [])
        except StoreError as error:
            self._meter.count(USER_CACHE, "failed" if user is None else "stale")
            if user is None:
                return _unread(cookie, wanted), [Degradation.of(PART, error)]
            user.used = True
            age_s = time.monotonic() - user.fresh_until + self._fresh_s(wanted)
            return user, [Degradation.stale(PART, age_s, str(error))]

    def _read(self, shelf: _Shelf, cookie: str, context: grpc.ServicerContext) -> StoredUser:
        """Ask the store, or wait for the request that is asking it for the same cookie. Raises StoreError."""
        wait_s = self._reads.users.wait_s(context)
        with shelf.lock:
            flight = shelf.flights.get(cookie)
            if flight is not None and flight.landed is None:
                flight.landed = threading.Event()
            ours = flight is None
            if flight is None:
                flight = shelf.flights[cookie] = Flight(wait_s)
        return self._fly(shelf, cookie, flight) if ours else self._join(shelf, cookie, flight, wait_s)

    def _fly(self, shelf: _Shelf, cookie: str, flight: Flight) -> StoredUser:
        try:
            flight.user = self._ask(shelf, cookie, flight.wait_s)
            return flight.user
        except StoreError as error:
            flight.fail(error)
            raise
        finally:
            with shelf.lock:
                del shelf.flights[cookie]
            if flight.landed is not None:
                flight.landed.set()

    def _join(self, shelf: _Shelf, cookie: str, flight: Flight, wait_s: float) -> StoredUser:
        began = time.monotonic()
        assert flight.landed is not None
        if not flight.landed.wait(wait_s):
            raise StoreUnavailable(
                f"another request asks for it too, and had no answer in {wait_s * 1000:.0f} ms"
            )
        if flight.user is not None:
            return flight.user
        left_s = wait_s - (time.monotonic() - began)
        if flight.wait_s < wait_s and left_s > 0:  # that request had less time than this one
            return self._ask(shelf, cookie, left_s)
        raise StoreUnavailable(str(flight.failure))

    def _ask(self, shelf: _Shelf, cookie: str, wait_s: float) -> StoredUser:
        wanted, history = shelf.wanted, None
        if wanted.histories is None:
            values = self._reads.user_values(cookie, wanted.hash_fields, wait_s)
        else:
            values, record = self._reads.user_and_history(cookie, wanted.hash_fields, shelf.model, wait_s)
            history = _sound(record)
        return self._kept(shelf, cookie, values, history, wait_s)

    def _kept(
        self, shelf: _Shelf, cookie: str, values: list[str | None], history: bytes | None, wait_s: float
    ) -> StoredUser:
        """The user of what the store has answered, kept for further requests. Raises StoreError."""
        wanted = shelf.wanted
        user = StoredUser(cookie, values, time.monotonic() + self._fresh_s(wanted), 0.0, history)
        if all(value is None for value in values) and not history:
            user = self._unless_lost(shelf, user, wait_s)
        if len(cookie) <= MAX_KEPT_COOKIE:
            shelf.cache.put(user)
        return user

    def _fresh_s(self, wanted: UserFields) -> float:
        """How long a record counts as fresh: a history for no longer than it takes the trainer to write it again."""
        return self._ttl_s if wanted.histories is None else min(self._ttl_s, HISTORY_FRESH_S)

    def _unless_lost(self, shelf: _Shelf, user: StoredUser, wait_s: float) -> StoredUser:
        """`user`, of whom the store has nothing; as known before if that is because the store lost its data."""
        before = shelf.cache.get(user.cookie)
        if before is None or not (before.history or any(value is not None for value in before.values)):
            return user
        read_at = before.lost_at or before.fresh_until - self._fresh_s(shelf.wanted)
        if not self._reads.users.has_lost(read_at, wait_s):
            return user
        return StoredUser(user.cookie, before.values, user.fresh_until, read_at, before.history)


@dataclass(slots=True)
class Flight:
    """One read of a user. landed: made by the first request that waits for it, under the shelf's lock.

    user or failure: the outcome, once it has ended.
    """

    wait_s: float
    landed: threading.Event | None = None
    user: StoredUser | None = None
    failure: StoreError = field(
        default_factory=lambda: StoreUnavailable("the request that asked for it failed")
    )

    def fail(self, error: StoreError) -> None:
        """The read has ended with an error."""
        self.failure = error

    def outcome(self) -> StoredUser:
        """The user who was read. Raises StoreError."""
        if self.user is None:
            raise self.failure
        return self.user


@dataclass(frozen=True, slots=True)
class _Shelf:
    """The users kept of one model. flights: reads under way by cookie, under `lock`."""

    model: str
    wanted: UserFields
    cache: UserCache
    flights: dict[str, Flight] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


def _unread(cookie: str, wanted: UserFields) -> StoredUser:
    """A user of whom only the cookie is known."""
    return StoredUser(cookie, [None] * len(wanted.users), 0.0)


def _sound(record: bytes | None) -> bytes | None:
    """The record of a history; empty if there is none, None if it is damaged."""
    try:
        if record is not None:
            check_record(record)
    except UnreadableValue:
        return None
    return record or b""


def _lost(user: StoredUser) -> list[Degradation]:
    """The note on a user whose record the store has lost."""
    age_s = time.monotonic() - user.lost_at
    return [Degradation.stale(PART, age_s, "the store lost its data, and has no record of this user")]
