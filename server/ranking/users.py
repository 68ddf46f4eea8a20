"""The user's side of a request: what the store knows of a user, read at most once for many requests.

The store is asked only if a cookie is given and some user-side field is not in the request; once for all requests of
that cookie at a time, and not again while the record is fresh. If the store does not answer, or has lost its data, the
record that was read last is used; without one, the request goes on with what it brought. The notes say both.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field

from model_store.errors import StoreError, StoreUnavailable, UnreadableValue
from model_store.features.history import check_record
from server.errors import Degradation
from server.ranking.features import StoredUser, UserFields
from server.ranking.store_reads import StoredReads, Timed
from server.settings import DEFAULT_USER_CACHE, DEFAULT_USER_TTL_S
from server.telemetry.meter import Meter, declare

USER_CACHE = declare(
    "ftrie_user_cache_total",
    ("result",),
    "users looked up: `result` is `hit` (fresh in the cache), `miss` (read from the store), `stale` (the store failed "
    "or lost its data, and the last known record was used) or `failed`",
)
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
        # The dict's own method, which is atomic: a method here would cost each request a call more.
        self.get = self._users.get
        """The user of a cookie, or None. O(1)."""

    def __len__(self) -> int:
        return len(self._users)

    def put(self, user: StoredUser) -> None:
        """Keep a user instead of an earlier one of the same cookie, or of one that was not used recently. O(1)."""
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
        self._reads, self._now = reads, reads.clock.monotonic
        self._meter = meter or Meter()
        self._users = users
        self._ttl_s = ttl_s
        self._of_models: dict[str, ModelUsers] = {}

    def forget(self) -> None:
        """Read every user again, and keep none that the store lacks."""
        self._of_models.clear()

    def lacks(self, cookie: str, given: int, model: str, wanted: UserFields) -> bool:
        """Whether `find` would have to read the user, and `read_together` can do so.

        Users with histories and those of a cluster, whose nodes fail one at a time, are read alone.
        """
        if not cookie or wanted.histories is not None or given & wanted.stored_bits == wanted.stored_bits:
            return False
        user = self._of_model(model, wanted).cache.get(cookie)
        return (user is None or user.fresh_until <= self._now()) and not self._reads.users.is_cluster

    def read_together(
        self, cookies: Iterable[str], model: str, wanted: UserFields, wait_s: float
    ) -> Mapping[str, PendingRead]:
        """Read users in one round trip, each for all requests of its cookie; the reads by cookie, all ended.

        For requests that lack these users. Leaves out users that another thread is reading.
        """
        kept = self._of_model(model, wanted)
        with kept.lock:
            reads = {cookie: PendingRead(wait_s) for cookie in cookies if cookie not in kept.pending}
            kept.pending.update(reads)
        try:
            if reads:
                self._read_all(kept, reads, wait_s)
        finally:
            kept.end(reads)
        return reads

    def _read_all(self, kept: ModelUsers, reads: Mapping[str, PendingRead], wait_s: float) -> None:
        found: Sequence[list[str | None] | StoreError]
        try:
            found = self._reads.users_values(list(reads), kept.wanted.hash_fields, wait_s)
        except StoreError as error:
            found = [copy(error)] * len(reads)  # as in `PendingRead.fail`
        for (cookie, pending), values in zip(reads.items(), found, strict=True):
            if isinstance(values, StoreError):
                pending.fail(values)
                continue
            try:
                pending.user = self._keep(kept, cookie, values, None, wait_s)
            except StoreError as error:
                pending.fail(error)

    def find(
        self,
        cookie: str,
        given: int,
        model: str,
        wanted: UserFields,
        context: Timed,
        pending: PendingRead | None = None,
    ) -> tuple[StoredUser | None, Sequence[Degradation]]:
        """The user to lay under a request's features, None if there is nothing to add; and the notes.

        given: a bit for each field that the request has itself. pending: the read that `read_together` has made for
        this request. The notes name what is missing or stale, and the stored values that were left out because they do
        not fit their field. Raises DeadlinePassed.
        """
        reads_history = wanted.histories is not None
        if not cookie or (given & wanted.user_bits == wanted.user_bits and not reads_history):
            return None, ()
        notes = list[Degradation]()
        if given & wanted.stored_bits == wanted.stored_bits and not reads_history:
            user = _unread(cookie, wanted)
        else:
            user, notes = self._user(cookie, model, wanted, context, pending)
        if reads_history and user.history is None and not notes:
            notes = [
                Degradation.left_out(HISTORY_PART, "a record that is damaged; see ftrie store check", cookie)
            ]
        if misfits := user.tokens(wanted).misfits:
            notes = [*notes, *(Degradation.left_out(PART, text) for bit, text in misfits if not given & bit)]
        return user, notes

    def _of_model(self, model: str, wanted: UserFields) -> ModelUsers:
        """The users kept of a model, whose version reads these fields."""
        # Without a lock: two threads at worst make two caches, one of which is dropped with what it had read.
        kept = self._of_models.get(model)
        if kept is None or kept.wanted is not wanted:
            # Another version, whose spec has other fields: the records read for the one before do not serve it.
            kept = self._of_models[model] = ModelUsers(model, wanted, UserCache(self._users))
        return kept

    def _user(
        self,
        cookie: str,
        model: str,
        wanted: UserFields,
        context: Timed,
        pending: PendingRead | None,
    ) -> tuple[StoredUser, list[Degradation]]:
        """The user as far as known, and the notes on that. Raises DeadlinePassed."""
        kept = self._of_model(model, wanted)
        user = kept.cache.get(cookie)
        if pending is None and user is not None and user.fresh_until > self._now():
            user.used = True
            self._meter.count(USER_CACHE, "hit")
            return user, (_lost(user, self._now()) if user.lost_at else [])
        try:
            read = self._read(kept, cookie, context) if pending is None else pending.outcome()
            self._meter.count(USER_CACHE, "stale" if read.lost_at else "miss")
            return read, (_lost(read, self._now()) if read.lost_at else [])
        except StoreError as error:
            self._meter.count(USER_CACHE, "failed" if user is None else "stale")
            if user is None:
                return _unread(cookie, wanted), [Degradation.of(PART, error)]
            user.used = True
            # When it was read is not kept: a record is fresh for the same time since then.
            age_s = self._now() - user.fresh_until + self._fresh_s(wanted)
            return user, [Degradation.stale(PART, age_s, str(error))]

    def _read(self, kept: ModelUsers, cookie: str, context: Timed) -> StoredUser:
        """Ask the store, or wait for the request that is asking it for the same cookie. Raises StoreError."""
        # Before the lock, and before others may wait for this read: it raises where there is no time left.
        wait_s = self._reads.users.wait_s(context)
        with kept.lock:
            pending = kept.pending.get(cookie)
            # Made for the first that waits: most reads are waited for by nobody.
            if pending is not None and pending.ended is None:
                pending.ended = threading.Event()
            ours = pending is None
            if pending is None:
                pending = kept.pending[cookie] = PendingRead(wait_s)
        return (
            self._read_first(kept, cookie, pending) if ours else self._wait_for(kept, cookie, pending, wait_s)
        )

    def _read_first(self, kept: ModelUsers, cookie: str, pending: PendingRead) -> StoredUser:
        try:
            pending.user = self._ask(kept, cookie, pending.wait_s)
            return pending.user
        except StoreError as error:
            pending.fail(error)
            raise
        finally:
            kept.end({cookie: pending})

    def _wait_for(self, kept: ModelUsers, cookie: str, pending: PendingRead, wait_s: float) -> StoredUser:
        began = self._now()
        assert pending.ended is not None
        if not pending.ended.wait(wait_s):
            raise StoreUnavailable(
                f"another request asks for it too, and had no answer in {wait_s * 1000:.0f} ms"
            )
        if pending.user is not None:
            return pending.user
        left_s = wait_s - (self._now() - began)
        if pending.wait_s < wait_s and left_s > 0:  # that request had less time than this one
            return self._ask(kept, cookie, left_s)
        raise StoreUnavailable(str(pending.failure))

    def _ask(self, kept: ModelUsers, cookie: str, wait_s: float) -> StoredUser:
        wanted, history = kept.wanted, None
        if wanted.histories is None:
            values = self._reads.user_values(cookie, wanted.hash_fields, wait_s)
        else:
            values, record = self._reads.user_and_history(cookie, wanted.hash_fields, kept.model, wait_s)
            history = _sound(record)
        return self._keep(kept, cookie, values, history, wait_s)

    def _keep(
        self, kept: ModelUsers, cookie: str, values: list[str | None], history: bytes | None, wait_s: float
    ) -> StoredUser:
        """The user that the store's answer describes, cached for later requests. Raises StoreError."""
        wanted = kept.wanted
        user = StoredUser(cookie, values, self._now() + self._fresh_s(wanted), 0.0, history)
        if all(value is None for value in values) and not history:
            user = self._unless_lost(kept, user, wait_s)
        if len(cookie) <= MAX_KEPT_COOKIE:
            kept.cache.put(user)
        return user

    def _fresh_s(self, wanted: UserFields) -> float:
        """How long a record counts as fresh: a history for no longer than it takes the trainer to write it again."""
        return self._ttl_s if wanted.histories is None else min(self._ttl_s, HISTORY_FRESH_S)

    def _unless_lost(self, kept: ModelUsers, user: StoredUser, wait_s: float) -> StoredUser:
        """`user`, whom the store does not have; the record known before if the store has lost its data."""
        before = kept.cache.get(user.cookie)
        if before is None or not (before.history or any(value is not None for value in before.values)):
            return user
        read_at = before.lost_at or before.fresh_until - self._fresh_s(kept.wanted)
        if not self._reads.users.has_lost(read_at, wait_s):
            return user
        return StoredUser(user.cookie, before.values, user.fresh_until, read_at, before.history)


@dataclass(slots=True)
class PendingRead:
    """One read of a user. ended: made by the first request that waits for it, under the lock of `ModelUsers`.

    user or failure: the outcome, once it has ended.
    """

    wait_s: float
    ended: threading.Event | None = None
    user: StoredUser | None = None
    failure: StoreError = field(
        default_factory=lambda: StoreUnavailable("the request that asked for it failed")
    )

    def fail(self, error: StoreError) -> None:
        """The read has ended with an error."""
        # A copy, here and below: an error that was raised holds the frames of its callers, and in one of them this
        # object. Such a circle kept a version that was replaced, with its memory, until Python looked for circles.
        self.failure = copy(error)

    def outcome(self) -> StoredUser:
        """The user who was read. Raises StoreError."""
        if self.user is None:
            raise copy(self.failure)
        return self.user


@dataclass(frozen=True, slots=True)
class ModelUsers:
    """The users kept of one model. pending: reads under way by cookie, under `lock`."""

    model: str
    wanted: UserFields
    cache: UserCache
    pending: dict[str, PendingRead] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def end(self, reads: Mapping[str, PendingRead]) -> None:
        """Take back reads that have ended, by cookie, and wake the requests that wait for them."""
        with self.lock:
            for cookie in reads:
                # Before the others wake: a request that comes from here on reads the user again, or finds it in the
                # cache.
                del self.pending[cookie]
        for pending in reads.values():
            if pending.ended is not None:
                pending.ended.set()


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


def _lost(user: StoredUser, now_s: float) -> list[Degradation]:
    """The note on a user whose record the store has lost."""
    age_s = now_s - user.lost_at
    return [Degradation.stale(PART, age_s, "the store lost its data, and has no record of this user")]
