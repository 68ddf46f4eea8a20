"""Items that the catalogue lacks: looked up in the store when a request names them, until a rebuild has them.

Both answers are remembered for a few seconds, so that a repeated id, known or not, does not cost a round trip
each time. Those that were found are told to whoever follows the items, so that a rebuild has them. Nothing here
changes the catalogue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import grpc

from model_store.errors import StoreError
from server.stored import StoredReads
from server.wire import MAX_ID_BYTES

PART = "items"
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
    ) -> tuple[dict[str, Record], list[str]]:
        """The records of those `ids` that the store has, and what `degraded` must say.

        One round trip at most, for at most 512 ids. Raises DeadlinePassed.
        """
        known, asked = self._remembered(dict.fromkeys(ids))
        problems = []
        if len(asked) > MAX_LOOKUPS:
            problems = [f"{PART}: {len(asked)} unknown items, only {MAX_LOOKUPS} were looked up"]
            asked = asked[:MAX_LOOKUPS]
        if asked:
            try:
                records = self._reads.items(asked, context)
            except StoreError as error:
                return known, [f"{PART}: {error}"]
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
