"""The guards' record of a model: refused versions, the last rollback, the version being watched.

`trainer.publish.guard` and `trainer.publish.rollback` decide what to refuse and when to roll back (docs/trainer.md);
`GuardRecords` stores it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from model_store.errors import UnreadableValue
from model_store.keys import ModelKeys, Report, record, silent
from model_store.redis.connection import StoreConnection

REFUSED, ROLLED_BACK = "refused", "rolled_back"


@dataclass(frozen=True)
class GuardRecord:
    """What guards did so far. Version 0 means none.

    refused: number of versions refused; rolled_back: number of automatic rollbacks; when_us: the time of the last one
    by the store's clock, 0 if there was none or an operator has overruled it; origin, target, reason: of that
    rollback. good: the last version whose online calibration was within its band, or that servers went back
    to; candidate: the version being watched; since_us: the time of an operator's last order to serve a refused
    version, by the store's clock: answers before it are no evidence.
    """

    refused: int = 0
    rolled_back: int = 0
    when_us: int = 0
    origin: int = 0
    target: int = 0
    reason: str = ""
    good: int = 0
    candidate: int = 0
    since_us: int = 0


class GuardRecords:
    """The guard record and refused versions of one model. Every method raises StoreUnavailable without an answer."""

    def __init__(self, connection: StoreConnection, keys: ModelKeys, on_junk: Report = silent) -> None:
        """on_junk is called with a message for each field that cannot be read."""
        self._on_junk = on_junk
        self._store = connection
        self._client = connection.at(keys.versions)
        self._keys = keys
        self._refuse = connection.script("refuse")
        self._note = connection.script("guard")

    def record(self, *, strict: bool = False) -> GuardRecord:
        """The record. A field that cannot be read is reported and has its default.

        strict: raise UnreadableValue for such a field instead.
        """
        with self._store.answers(self._keys.guard):
            found = self._client.hgetall(self._keys.guard)
        return record(self._keys.guard, found, GuardRecord(), _raise_unreadable if strict else self._on_junk)

    def now_us(self) -> int:
        """The store's clock, microseconds since 1970."""
        return self._store.now_us(self._keys.guard)

    def dated(self) -> tuple[GuardRecord, int]:
        """The record, and the present by the store's clock, which no time of the record is ahead of.

        If that clock was set back, the times ahead of it become the present one, also in the store: a cooldown begins
        again, and new answers are evidence. Else neither would be so for as long as the clock was set back.
        """
        found, now_us = self.record(), self.now_us()
        fits = replace(found, when_us=min(found.when_us, now_us), since_us=min(found.since_us, now_us))
        if fits != found:
            with self._store.answers():
                times = {"when_us": fits.when_us, "since_us": fits.since_us}
                self._client.hset(self._keys.guard, mapping=times)
        return fits, now_us

    def count_refused(self) -> None:
        """Count one more refused version."""
        self._note([self._keys.guard], [REFUSED])

    def refuse(self, versions: Sequence[int], reason: str) -> int:
        """Mark the versions that exist and are not refused yet as refused; returns how many were marked."""
        if not versions:
            return 0
        return int(self._refuse([self._keys.manifest(version) for version in versions], [reason]))

    def watch(self, candidate: int, good: int) -> None:
        """Record the version being watched and the last good one; gc keeps both."""
        with self._store.answers(self._keys.guard):
            self._client.hset(self._keys.guard, mapping={"candidate": candidate, "good": good})

    def note_rollback(self, origin: int, target: int, reason: str) -> None:
        """Record an automatic rollback at the present time."""
        # By the clock of the store: a trainer on another machine may judge the cooldown.
        noted = {
            "when_us": self.now_us(),
            "origin": origin,
            "target": target,
            "reason": reason,
            "candidate": target,
        }
        self._note([self._keys.guard], [ROLLED_BACK, *(word for pair in noted.items() for word in pair)])

    def force(self, version: int) -> None:
        """Have servers accept this existing version even if all candidates get the same score."""
        with self._store.answers():
            self._client.hset(self._keys.manifest(version), "forced", "1")

    def overrule(self, version: int) -> None:
        """Clear this version's refusal, any cooldown, and all evidence so far, as an operator ordered."""
        clear = {"when_us": 0, "origin": 0, "target": 0, "since_us": self.now_us()}
        # Together: after a crash between them the refusal would be gone and the cooldown not.
        with self._store.answers(), self._client.pipeline(transaction=True) as pipe:
            pipe.hset(self._keys.manifest(version), REFUSED, "")
            pipe.hset(self._keys.guard, mapping=clear | {"candidate": version})
            pipe.execute()


def _raise_unreadable(junk: str) -> None:
    raise UnreadableValue(junk)
