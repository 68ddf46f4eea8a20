"""What requests read from the store about candidates: the sets that they name, and items that the catalogue lacks.

Both are remembered for a moment. A set belongs to a page or placement, so that a few sets serve most requests; while
the store is away, the set that was read last is used. Unknown items are looked up until a rebuild has them in the
catalogue.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from model_store.errors import StoreError, StoreUnavailable
from server.errors import Degradation
from server.ranking.limits import MAX_ID_BYTES, MAX_LOOKUPS
from server.ranking.store_reads import StoredReads, Timed

SET_PART, LATE_PART = "candidate_set", "items"
FRESH_S = 1.0
MAX_IDS = 500_000
"""Ids that are kept, of all sets together."""
IDS_A_NAME = 100
"""Ids that a set's name counts for: it may have 4 KiB, and unknown names are remembered too."""
REMEMBERED_S = 5.0
MAX_REMEMBERED = 20_000
MAX_FOUND = 1_000
"""Ids that `take_found` returns at a time; the others are found again when they are requested again."""

Record = dict[str, str]


@dataclass(frozen=True, slots=True)
class _KeptSet:
    """A set as it was read: None if there was none. read_at: seconds on the monotonic clock."""

    ids: Sequence[str] | None
    read_at: float

    @property
    def size(self) -> int:
        return len(self.ids or ()) + IDS_A_NAME


class CandidateSets:
    """A bounded memory of sets. Thread safety: any thread may call; two may read the same set at a time."""

    def __init__(self, reads: StoredReads) -> None:
        self._reads = reads
        self._now = reads.clock.monotonic
        self._kept: dict[str, _KeptSet] = {}
        self._ids = 0
        self._lock = threading.Lock()

    def members(self, name: str, context: Timed) -> tuple[Sequence[str] | None, list[Degradation]]:
        """The ids of a set, None if there is no such set; and the notes for `degraded`.

        Raises StoreUnavailable if the store does not answer and never did for this set, StoreError for a key of another
        kind, DeadlinePassed.
        """
        kept = self._kept.get(name)
        if kept is not None and self._now() - kept.read_at < FRESH_S:
            return kept.ids, []
        try:
            ids = self._reads.candidates(name, context)
        except StoreUnavailable as error:
            if kept is None:
                raise
            return kept.ids, [Degradation.stale(SET_PART, self._now() - kept.read_at, str(error))]
        if ids is None and kept is not None and kept.ids and self._reads.lost_sets(kept.read_at, context):
            age_s = self._now() - kept.read_at  # not kept: each request looks whether the set is back
            return kept.ids, [Degradation.stale(SET_PART, age_s, "the store lost its data")]
        self._keep(name, _KeptSet(ids, self._now()))
        return ids, []

    def forget(self) -> None:
        """Read every set again, and keep none that the store lacks."""
        with self._lock:
            self._kept, self._ids = {}, 0

    def _keep(self, name: str, kept: _KeptSet) -> None:
        with self._lock:
            before = self._kept.pop(name, None)
            self._ids += kept.size - (before.size if before is not None else 0)
            if self._ids > MAX_IDS:
                self._kept, self._ids = {}, kept.size  # simple, and right within a second
            self._kept[name] = kept


class LateItems:
    """A bounded memory of looked-up items: known and unknown ids, so that a repeated one costs no round trip.

    Those that were found are handed to the thread that follows the items, so that a rebuild has them. Each access is
    one atomic dict operation, so no lock is needed.
    """

    def __init__(self, reads: StoredReads) -> None:
        self._reads = reads
        self._now = reads.clock.monotonic
        self._memory: dict[str, tuple[float, Record | None]] = {}
        self._found: dict[str, None] = {}

    def take_found(self) -> list[str]:
        """The ids that were found since the last call. For one thread."""
        # An id that a call adds to the old dict after it was read is found again at its next request.
        found, self._found = self._found, {}
        return list(found)

    def look_up(self, ids: Sequence[str], context: Timed) -> tuple[dict[str, Record], list[Degradation]]:
        """The records of those `ids` that the store has, and the notes for `degraded`.

        One round trip at most, for at most MAX_LOOKUPS ids. Raises DeadlinePassed.
        """
        known, asked = self._remembered(dict.fromkeys(ids))
        notes = list[Degradation]()
        if len(asked) > MAX_LOOKUPS:
            detail = f"{len(asked)} unknown items, only {MAX_LOOKUPS} were looked up"
            notes = [Degradation.limited(LATE_PART, detail)]
            asked = asked[:MAX_LOOKUPS]
        if asked:
            try:
                records = self._reads.items(asked, context)
            except StoreError as error:
                return known, [Degradation.of(LATE_PART, error)]
            self._remember(asked, records)
            known |= {item: record for item, record in zip(asked, records, strict=True) if record is not None}
        if known and len(self._found) < MAX_FOUND:
            self._found.update(dict.fromkeys(known))
        return known, notes

    def rebuilt(self) -> None:
        """A rebuild of the catalogue has begun: forget the items it will find."""
        self._found = {}

    def _remembered(self, ids: Sequence[str] | dict[str, None]) -> tuple[dict[str, Record], list[str]]:
        now = self._now()
        known: dict[str, Record] = {}
        asked = []
        for item in ids:
            expires, record = self._memory.get(item, (0.0, None))
            if expires <= now:
                # No record has another id.
                if 0 < len(item.encode("utf-8", "surrogateescape")) <= MAX_ID_BYTES:
                    asked.append(item)
            elif record is not None:
                known[item] = record
        return known, asked

    def _remember(self, ids: Sequence[str], records: Sequence[Record | None]) -> None:
        # Bounded, since callers choose the ids.
        if len(self._memory) + len(ids) > MAX_REMEMBERED:
            self._memory = {}  # simple, and right within seconds
        expires = self._now() + REMEMBERED_S
        self._memory.update(zip(ids, ((expires, record) for record in records), strict=True))
