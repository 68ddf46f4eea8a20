"""Candidate sets, read for one request and kept a second for the others; the last known serves while the store is away.

A set is asked for by page or placement, so that a few sets serve most requests. Nothing here ranks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc

from model_store.errors import StoreError, StoreUnavailable
from server.errors import Degradation
from server.ranking.store_reads import StoredReads
from server.ranking.wire import MAX_ID_BYTES

PART = "candidate_set"
FRESH_S = 1.0
MAX_IDS = 500_000
"""Ids kept at most, of all sets together."""
IDS_A_NAME = 100
"""What a set's name counts for, 4 KiB at most: names that no set has are remembered too, and callers choose them."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A set as it was read: None if there was none. read_at: seconds on the monotonic clock."""

    ids: Sequence[str] | None
    read_at: float

    @property
    def size(self) -> int:
        return len(self.ids or ()) + IDS_A_NAME


class CandidateSets:
    """A bounded memory of sets. Thread safety: any thread may ask; two may read the same set at a time."""

    def __init__(self, reads: StoredReads, now: Callable[[], float] = time.monotonic) -> None:
        self._reads = reads
        self._now = now
        self._kept: dict[str, _Kept] = {}
        self._ids = 0
        self._lock = threading.Lock()

    def members(
        self, name: str, context: grpc.ServicerContext
    ) -> tuple[Sequence[str] | None, list[Degradation]]:
        """The ids of a set, None if there is no such set; and what `degraded` must say.

        Raises StoreUnavailable if the store does not answer and never did for this set, StoreError for what is no set,
        DeadlinePassed.
        """
        kept = self._kept.get(name)
        if kept is not None and self._now() - kept.read_at < FRESH_S:
            return kept.ids, []
        try:
            ids = self._reads.candidates(name, context)
        except StoreUnavailable as error:
            if kept is None:
                raise
            return kept.ids, [Degradation.stale(PART, self._now() - kept.read_at, str(error))]
        if ids is None and kept is not None and kept.ids and self._reads.lost_sets(kept.read_at, context):
            age_s = self._now() - kept.read_at  # not kept again: each request looks whether it is there
            return kept.ids, [Degradation.stale(PART, age_s, "the store lost its data")]
        self._keep(name, _Kept(ids, self._now()))
        return ids, []

    def forget(self) -> None:
        """Read every set again, and keep none that the store lacks."""
        with self._lock:
            self._kept, self._ids = {}, 0

    def _keep(self, name: str, kept: _Kept) -> None:
        with self._lock:
            before = self._kept.pop(name, None)
            self._ids += kept.size - (before.size if before is not None else 0)
            if self._ids > MAX_IDS:
                self._kept, self._ids = {}, kept.size  # simple, and right within a second
            self._kept[name] = kept


# --- Items that the catalogue lacks: looked up in the store when a request names them, until a rebuild has
# them ---
#
# Both answers are remembered for a few seconds, so that a repeated id, known or not, does not cost a round
# trip each time. Those that were found are told to whoever follows the items, so that a rebuild has them.
# Nothing here changes the catalogue.


ITEMS_PART = "items"
REMEMBERED_S = 5.0
MAX_REMEMBERED = 20_000
MAX_LOOKUPS = 512
MAX_FOUND = 1_000
"""Ids told at a time; the others are found again when they are asked for again."""

Record = dict[str, str]


class LateItems:
    """A bounded memory of late look-ups. Each operation on it is one atomic dict operation, so none locks."""

    def __init__(self, reads: StoredReads, now: Callable[[], float] = time.monotonic) -> None:
        self._reads = reads
        self._now = now
        self._memory: dict[str, tuple[float, Record | None]] = {}
        self._found: dict[str, None] = {}

    def take_found(self) -> list[str]:
        """The ids that were found since the last call; to be called by one thread."""
        found, self._found = self._found, {}
        return list(found)

    def look_up(
        self, ids: Sequence[str], context: grpc.ServicerContext
    ) -> tuple[dict[str, Record], list[Degradation]]:
        """The records of those `ids` that the store has, and what `degraded` must say.

        One round trip at most, for at most 512 ids. Raises DeadlinePassed.
        """
        known, asked = self._remembered(dict.fromkeys(ids))
        problems = list[Degradation]()
        if len(asked) > MAX_LOOKUPS:
            detail = f"{len(asked)} unknown items, only {MAX_LOOKUPS} were looked up"
            problems = [Degradation.limited(ITEMS_PART, detail)]
            asked = asked[:MAX_LOOKUPS]
        if asked:
            try:
                records = self._reads.items(asked, context)
            except StoreError as error:
                return known, [Degradation.of(ITEMS_PART, error)]
            self._remember(asked, records)
            known |= {item: record for item, record in zip(asked, records, strict=True) if record is not None}
        if known and len(self._found) < MAX_FOUND:
            self._found.update(dict.fromkeys(known))
        return known, problems

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
                if 0 < len(item.encode("utf-8", "surrogateescape")) <= MAX_ID_BYTES:
                    asked.append(item)
            elif record is not None:
                known[item] = record
        return known, asked

    def _remember(self, ids: Sequence[str], records: Sequence[Record | None]) -> None:
        if len(self._memory) + len(ids) > MAX_REMEMBERED:
            self._memory = {}  # simple, and right within seconds
        expires = self._now() + REMEMBERED_S
        self._memory.update(zip(ids, ((expires, record) for record in records), strict=True))
