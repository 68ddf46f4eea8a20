"""The pin of a model: an operator has chosen the version to serve, and the trainer is not to overrule that by itself.

activate.lua sets it, where the model has had a trainer; it outlives the trainer's process. Versions go on being
published meanwhile; what was chosen is served until someone says `ftrie store resume`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from model_store.errors import UnreadableValue
from model_store.redis.connection import StoreConnection
from model_store.redis.redis_keys import ModelKeys
from model_store.redis.stored_values import Report, record, silent, version_number


class Pin:
    """The pin of one model. Every method raises StoreUnavailable if the store does not answer."""

    def __init__(self, connection: StoreConnection, keys: ModelKeys) -> None:
        self._store = connection
        self._client = connection.client
        self._keys = keys
        self._resume = connection.script("resume")

    def version(self) -> int | None:
        """The version that an operator has chosen over the trainer's; None without one."""
        with self._store.answers(self._keys.trainer):
            pinned = self._client.hget(self._keys.trainer, "pinned")
        return version_number(f"{self._keys.trainer} pinned", pinned) if pinned else None

    def resume(self) -> int | None:
        """Let the trainer activate again, this one or the next; returns the version that was pinned."""
        return int(self._resume([self._keys.trainer, self._keys.active_epoch])) or None


# --- What guards of a model keep in the store: refused versions, the last rollback, versions that gc must
# spare ---
#
# `trainer/guarding/` decides; nothing here judges. docs/guard.md tells what follows.


REFUSED, ROLLED_BACK = "refused", "rolled_back"


@dataclass(frozen=True)
class GuardRecord:
    """What guards did so far. Version 0: none.

    refused: how many versions were refused; rolled_back: how often a guard went back; when_us: the last time, by the
    store's clock, 0 for never or once an operator has overruled it; origin, target: from and to which version; reason.
    good: the last version whose online calibration was found within its band; candidate: the one now watched.
    """

    refused: int = 0
    rolled_back: int = 0
    when_us: int = 0
    origin: int = 0
    target: int = 0
    reason: str = ""
    good: int = 0
    candidate: int = 0


class Refusals:
    """The guard's record of one model. Every method raises StoreUnavailable if the store does not answer."""

    def __init__(self, connection: StoreConnection, keys: ModelKeys, on_junk: Report = silent) -> None:
        """on_junk: is told of fields that cannot be read."""
        self._on_junk = on_junk
        self._store = connection
        self._client = connection.client
        self._keys = keys
        self._mark = connection.script("refuse")

    def record(self, *, strict: bool = False) -> GuardRecord:
        """What guards did so far. A field that cannot be read counts as never written, and is reported.

        strict: raise UnreadableValue for such a field.
        """
        with self._store.answers(self._keys.guard):
            found = self._client.hgetall(self._keys.guard)
        return record(self._keys.guard, found, GuardRecord(), _refuse if strict else self._on_junk)

    def now_us(self) -> int:
        """The store's clock, microseconds since 1970."""
        with self._store.answers():
            seconds, micros = self._client.time()
        return int(seconds) * 1_000_000 + int(micros)

    def count(self) -> None:
        """One version more was refused."""
        with self._store.answers(self._keys.guard):
            self._client.hincrby(self._keys.guard, REFUSED, 1)

    def mark(self, versions: Sequence[int], reason: str) -> int:
        """Mark those of the versions that are there and not marked yet; returns how many."""
        if not versions:
            return 0
        return int(self._mark([self._keys.manifest(version) for version in versions], [reason]))

    def watch(self, candidate: int, good: int) -> None:
        """Note the version that is watched, and the last one found good. gc spares both."""
        with self._store.answers(self._keys.guard):
            self._client.hset(self._keys.guard, mapping={"candidate": candidate, "good": good})

    def went_back(self, origin: int, target: int, reason: str) -> None:
        """Note a rollback, now."""
        now_us = self.now_us()
        fields = {"when_us": now_us, "origin": origin, "target": target, "reason": reason}
        with self._store.answers(self._keys.guard), self._client.pipeline(transaction=True) as pipe:
            pipe.hset(self._keys.guard, mapping=fields | {"candidate": target})
            pipe.hincrby(self._keys.guard, ROLLED_BACK, 1)
            pipe.execute()

    def force(self, version: int) -> None:
        """An operator wants this version, which is there, served even if all candidates score the same."""
        with self._store.answers():
            self._client.hset(self._keys.manifest(version), "forced", "1")

    def overruled(self, version: int) -> None:
        """An operator wants this version served: it is refused no more, and no cooldown is under way."""
        clear = {"when_us": 0, "origin": 0, "target": 0}
        with self._store.answers(), self._client.pipeline(transaction=True) as pipe:
            pipe.hset(self._keys.manifest(version), REFUSED, "")
            pipe.hset(self._keys.guard, mapping=clear | {"candidate": version})
            pipe.execute()


def _refuse(junk: str) -> None:
    raise UnreadableValue(junk)
