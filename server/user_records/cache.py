"""UserCache: so many users, the ones asked for lately. It knows no store and no clock; nothing in it expires.

Clock eviction (F. J. Corbató, "A Paging Experiment with the Multics System", 1968): a hit is one dict look-up and one
mark, with no lock and no list to mend, and keeps about what least-recently-used would.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from model_store.values import Value
from server.user_records.wanted import ReadyTokens, WantedFields

LONGEST_SWEEP = 128
"""Users passed over at most to evict one, some 8 µs, so that no request pays for many."""


class StoredUser:
    """One user's record as it was read, empty if there was none. Made ready when first used, in the form then needed.

    fresh_until: seconds on the monotonic clock. used: set by whoever uses it, taken back by the cache's hand.
    lost_at: when it was read last, if the store has lost it since; else 0.
    """

    __slots__ = ("_fields", "_tokens", "cookie", "fresh_until", "lost_at", "place", "used", "values")

    def __init__(
        self, cookie: str, values: Sequence[str | None], fresh_until: float, lost_at: float = 0.0
    ) -> None:
        self.cookie, self.values, self.fresh_until = cookie, tuple(values), fresh_until
        self.lost_at = lost_at
        self.used, self.place = False, -1
        self._fields: dict[str, Value] | None = None
        self._tokens: ReadyTokens | None = None

    def fields(self, wanted: WantedFields) -> dict[str, Value]:
        """The values by name; not to be changed."""
        fields = self._fields
        if fields is None:
            fields = self._fields = wanted.named(self.cookie, self.values)
        return fields

    def tokens(self, wanted: WantedFields) -> ReadyTokens:
        """The tokens."""
        tokens = self._tokens
        if tokens is None:
            tokens = self._tokens = ReadyTokens.of(wanted, wanted.named(self.cookie, self.values))
        return tokens


class UserCache:
    """Bounded. Thread safety: any thread may call anything. `get` takes no lock."""

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
        """Keep a user in the place of the one before of the same cookie, or of one not used lately. O(1)."""
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
        """The place of a user who has not been used since the hand was here before."""
        for _ in range(LONGEST_SWEEP):
            place = self._hand
            self._hand = (place + 1) % self._capacity
            if not self._ring[place].used:
                break
            self._ring[place].used = False
        return place

    def check(self) -> None:
        """Assert what always holds."""
        assert len(self._users) == len(self._ring) <= self._capacity
        for place, user in enumerate(self._ring):
            assert user.place == place
            assert self._users[user.cookie] is user
