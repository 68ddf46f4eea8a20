"""The user's side of a request: stored features under those given inline, field by field.

The store is asked only if a cookie is given and some user-side field is not inline, and then once for all requests of
that cookie at a time, and not again while what it said is fresh. Where it does not answer, or has lost its data, what
it said last serves; where it never said anything, the request goes on with what it brought. Both say so. Nothing here
knows of candidates.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import grpc

from model_store.errors import FieldValueError, StoreError, StoreUnavailable
from server.errors import Degradation
from server.ranking.features import PlainFeatures, StoredUser, UserCache, WantedFields
from server.ranking.served import ServedVersion
from server.ranking.store_reads import StoredReads
from server.ranking.wire import Fields
from server.settings import DEFAULT_USER_CACHE, DEFAULT_USER_TTL_S
from server.telemetry.families import USER_CACHE
from server.telemetry.meter import Meter

PART = "user_features"
LONGEST_KEPT_COOKIE = 256
"""The record of a longer one is read each time: callers choose cookies of up to 4 KiB, and 100,000 are kept."""


class UserFeatures:
    """Completes requests' fields from users' records. Safe for any number of threads."""

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

    def complete(
        self, cookie: str, inline: Fields, served: ServedVersion, context: grpc.ServicerContext
    ) -> tuple[Fields, list[Degradation]]:
        """Returns the fields to score with, and what `degraded` must say. Raises DeadlinePassed."""
        if not cookie or served.user_fields <= inline.keys():
            return inline, []
        problems: list[Degradation] = []
        if served.stored_fields <= inline.keys():
            fields: Fields = dict.fromkeys(served.cookie_fields, cookie)
        else:
            user, problems = self._user(cookie, served, context)
            fields = user.fields(served.wanted).copy()
        fields.update(inline)
        return fields, problems

    def complete_plain(
        self, cookie: str, inline: PlainFeatures, served: ServedVersion, context: grpc.ServicerContext
    ) -> tuple[PlainFeatures, list[Degradation]]:
        """As `complete`, for features that came as tokens and go on as tokens."""
        if not cookie or inline.given & served.user_bits == served.user_bits:
            return inline, []
        if inline.given & served.stored_bits == served.stored_bits:
            user, problems = _unread(cookie, served.wanted), list[Degradation]()
        else:
            user, problems = self._user(cookie, served, context)
        tokens = user.tokens(served.wanted)
        if tokens.misfits:
            problems = problems + tokens.problems(inline.given, PART)
        return tokens.under(inline, user), problems

    def _user(
        self, cookie: str, served: ServedVersion, context: grpc.ServicerContext
    ) -> tuple[StoredUser, list[Degradation]]:
        """The user as far as known, and what `degraded` must say of that. Raises DeadlinePassed."""
        shelf = self._shelves.get(served.name)
        if shelf is None or shelf.wanted is not served.wanted:
            # Another version, whose spec has other fields: what was read for the one before is of no use to it.
            shelf = self._shelves[served.name] = _Shelf(served.wanted, UserCache(self._users))
        user = shelf.cache.get(cookie)
        if user is not None and user.fresh_until > time.monotonic():
            user.used = True
            self._meter.count(USER_CACHE, "hit")
            return user, (_lost(user) if user.lost_at else [])
        try:
            read = self._read(shelf, cookie, context)
            self._meter.count(USER_CACHE, "stale" if read.lost_at else "miss")
            return read, (_lost(read) if read.lost_at else [])
        except StoreError as error:
            self._meter.count(USER_CACHE, "failed" if user is None else "stale")
            if user is None:
                return _unread(cookie, shelf.wanted), [Degradation.of(PART, error)]
            user.used = True
            age_s = time.monotonic() - user.fresh_until + self._ttl_s
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
                flight = shelf.flights[cookie] = _Flight(wait_s)
        return self._fly(shelf, cookie, flight) if ours else self._join(shelf, cookie, flight, wait_s)

    def _fly(self, shelf: _Shelf, cookie: str, flight: _Flight) -> StoredUser:
        try:
            flight.user = self._ask(shelf, cookie, flight.wait_s)
            return flight.user
        except StoreError as error:
            flight.failure = str(error)
            raise
        finally:
            with shelf.lock:
                del shelf.flights[cookie]
            if flight.landed is not None:
                flight.landed.set()

    def _join(self, shelf: _Shelf, cookie: str, flight: _Flight, wait_s: float) -> StoredUser:
        began = time.monotonic()
        assert flight.landed is not None
        if not flight.landed.wait(wait_s):
            raise StoreUnavailable(
                f"another request asks for it too, and had no answer in {wait_s * 1000:.0f} ms"
            )
        if flight.user is not None:
            return flight.user
        left_s = wait_s - (time.monotonic() - began)
        if flight.wait_s < wait_s and left_s > 0:  # it asked in a hurry that is not ours
            return self._ask(shelf, cookie, left_s)
        raise StoreUnavailable(flight.failure)

    def _ask(self, shelf: _Shelf, cookie: str, wait_s: float) -> StoredUser:
        values = self._reads.user_values(cookie, shelf.wanted.hash_fields, wait_s)
        user = StoredUser(cookie, values, time.monotonic() + self._ttl_s)
        if all(value is None for value in values):
            user = self._kept(shelf, user, wait_s)
        if len(cookie) <= LONGEST_KEPT_COOKIE:
            shelf.cache.put(user)
        return user

    def _kept(self, shelf: _Shelf, user: StoredUser, wait_s: float) -> StoredUser:
        """The user, of whom the store has nothing; as known before if that is because the store lost its data."""
        before = shelf.cache.get(user.cookie)
        if before is None or all(value is None for value in before.values):
            return user
        read_at = before.lost_at or before.fresh_until - self._ttl_s
        if not self._reads.users.has_lost(read_at, wait_s):
            return user
        return StoredUser(user.cookie, before.values, user.fresh_until, read_at)


def _lost(user: StoredUser) -> list[Degradation]:
    """What `degraded` says of a user whose record the store has lost."""
    age_s = time.monotonic() - user.lost_at
    return [Degradation.stale(PART, age_s, "the store lost its data, and has no record of this user")]


def drop_misfits(
    fields: Fields, served: ServedVersion, part: str = PART, whose: str = ""
) -> tuple[Fields, list[Degradation]]:
    """Leave out the values that do not fit their fields: stored by mistake, so no fault of the caller's."""
    kept, problems = dict(fields), list[Degradation]()
    for name, value in fields.items():
        plan = served.model.plan.field(name)
        try:
            if plan is not None:
                plan.tokens(value)
        except FieldValueError as error:
            del kept[name]
            problems.append(Degradation.left_out(part, str(error), whose))
    return kept, problems


@dataclass(slots=True)
class _Flight:
    """One read on its way. landed: made by the first that waits for it, while it is listed."""

    wait_s: float
    landed: threading.Event | None = None
    user: StoredUser | None = None
    failure: str = "the request that asked for it failed"


@dataclass(frozen=True, slots=True)
class _Shelf:
    """What is kept of a model's users. flights: by cookie, under `lock`."""

    wanted: WantedFields
    cache: UserCache
    flights: dict[str, _Flight] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


def _unread(cookie: str, wanted: WantedFields) -> StoredUser:
    """A user of whom only the cookie is known."""
    return StoredUser(cookie, [None] * len(wanted.users), 0.0)
