"""User and item records and candidate sets: writing them, and reading all items.

A record is a HASH of text; a list is stored as a JSON array. `lookups` reads by id, `item_changes` follows changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from model_store.records.item_changes import ItemChanges
from model_store.records.lookups import Lookups, Record
from model_store.redis.connection import StoreConnection
from model_store.redis.redis_keys import CANDIDATES, ITEM, MAX_ID_BYTES, USER, record_key

BATCH = 1000
Progress = Callable[[int], None]


class Records(Lookups):
    """Records of one store. Thread safety: every method may be called from any thread."""

    def __init__(self, connection: StoreConnection, user_timeout_s: float) -> None:
        super().__init__(connection, user_timeout_s)
        self.item_changes = ItemChanges(self)

    # -- reading

    def scan_items(self) -> Iterator[tuple[str, Record]]:
        """Every item once, in no particular order. Reads all key names: O(keys of the store).

        Skips keys without an id or with one that is too long, and anything but a HASH.
        """
        seen: set[str] = set()
        with self._store.answers():
            keys = self._store.client.scan_iter(match=ITEM + b"*", count=BATCH)
            while batch := list(islice(keys, BATCH)):
                ids = [
                    key[len(ITEM) :].decode("utf-8", "surrogateescape")
                    for key in batch
                    if 0 < len(key) - len(ITEM) <= MAX_ID_BYTES
                ]
                for item, record in zip(ids, self.items(ids), strict=True):
                    if record is not None and item not in seen:
                        seen.add(item)
                        yield item, record

    # -- writing

    def put_users(
        self, records: Iterable[tuple[str, Mapping[str, str]]], on_progress: Progress | None = None
    ) -> int:
        """Replace these users' records; returns their number. A batch of 1,000 becomes visible atomically."""
        return self._put(USER, records, on_progress)

    def put_items(
        self, records: Iterable[tuple[str, Mapping[str, str]]], on_progress: Progress | None = None
    ) -> int:
        """Replace these items' records, where an empty one removes the item; returns their number.

        A batch of 1,000 becomes visible atomically, together with the stream entries that servers follow.
        """
        return self._put(ITEM, records, on_progress)

    def only_these_items(self) -> None:
        """Have servers read all items again and drop those that the store lacks."""
        with self._store.answers():
            self.item_changes.ask_for_all(self._store.client)

    def put_candidates(self, name: str, ids: Iterable[str]) -> int:
        """Replace a candidate set by this list; returns its length. Raises StoreError for a bad id."""
        key = record_key(CANDIDATES, name)
        encoded = [record_key(b"", item) for item in ids]
        with self._store.answers(), self._store.client.pipeline(transaction=True) as pipe:
            pipe.delete(key)
            for start in range(0, len(encoded), BATCH):
                pipe.rpush(key, *encoded[start : start + BATCH])
            pipe.execute()
        return len(encoded)

    def _put(
        self, prefix: bytes, records: Iterable[tuple[str, Mapping[str, str]]], on_progress: Progress | None
    ) -> int:
        done = 0
        remaining = iter(records)
        while batch := list(islice(remaining, BATCH)):
            with self._store.answers(), self._store.client.pipeline(transaction=True) as pipe:
                for record_id, record in batch:
                    key = record_key(prefix, record_id)
                    pipe.delete(key)
                    if record:
                        pipe.hset(key, mapping=_encoded(record))
                if prefix == ITEM:
                    self.item_changes.add(pipe, [record_id for record_id, _ in batch])
                if not done:
                    self.item_changes.identify(pipe)
                pipe.execute()
            done += len(batch)
            if on_progress is not None:
                on_progress(done)
        return done


def _encoded(record: Mapping[str, str]) -> dict[bytes, bytes]:
    return {
        name.encode("utf-8", "surrogateescape"): value.encode("utf-8", "surrogateescape")
        for name, value in record.items()
    }
