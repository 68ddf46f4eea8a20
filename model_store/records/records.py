"""User and item records and candidate sets: writing them, and reading all items.

A record is a HASH of text; a list is stored as a JSON array. `lookups` reads by id, `item_changes` follows changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from model_store.keys import (
    CANDIDATES,
    ITEM,
    ITEMS_CHANGES,
    ITEMS_EPOCH,
    ITEMS_GENERATION,
    MAX_ID_BYTES,
    USER,
    history_key,
    record_key,
)
from model_store.records.item_changes import ItemChanges
from model_store.records.lookups import Lookups, Record
from model_store.redis.connection import StoreConnection

BATCH = 1000
Progress = Callable[[int], None]
Writes = Sequence[Sequence[tuple[bytes, ...]]]
"""The commands that write each record."""


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
        for batch in self._store.scan(ITEM + b"*", BATCH):
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
        """Replace these users' records; returns their number.

        A batch of 1,000 becomes visible atomically; on a cluster each record does.
        """
        return self._put(USER, records, on_progress)

    def put_items(
        self, records: Iterable[tuple[str, Mapping[str, str]]], on_progress: Progress | None = None
    ) -> int:
        """Replace these items' records, where an empty one removes the item; returns their number.

        A batch of 1,000 becomes visible atomically, together with the stream entries that servers follow; on a cluster
        each record does, and the entries only once all records of the batch are there.
        """
        return self._put(ITEM, records, on_progress)

    def only_these_items(self) -> None:
        """Have servers read all items again and drop those that the store lacks."""
        with self._store.answers():
            self.item_changes.ask_for_all(self._store.at(ITEMS_GENERATION))

    def put_candidates(self, name: str, ids: Iterable[str]) -> int:
        """Replace a candidate set by this list; returns its length. Raises StoreError for a bad id."""
        key = record_key(CANDIDATES, name)
        encoded = [record_key(b"", item) for item in ids]
        with self._store.answers(), self._store.at(key).pipeline(transaction=True) as pipe:
            pipe.delete(key)
            for start in range(0, len(encoded), BATCH):
                pipe.rpush(key, *encoded[start : start + BATCH])
            pipe.execute()
        return len(encoded)

    def put_histories(self, model: str, records: Iterable[tuple[bytes, bytes]], kept_ms: int) -> int:
        """Replace the histories of these users for a model, each atomically; returns their number.

        records: cookies and what `UserHistory.encode` made; kept_ms: when a record expires that is not replaced.
        """
        keyed = [(history_key(model, cookie), record) for cookie, record in records]
        lasts = b"%d" % kept_ms
        with self._store.answers():
            self._store.each([(key, [(b"SET", key, record, b"PX", lasts)]) for key, record in keyed])
        return len(keyed)

    def _put(
        self, prefix: bytes, records: Iterable[tuple[str, Mapping[str, str]]], on_progress: Progress | None
    ) -> int:
        done = 0
        remaining = iter(records)
        while batch := list(islice(remaining, BATCH)):
            changed = [record_id for record_id, _ in batch] if prefix == ITEM else []
            writes = [_written(record_key(prefix, record_id), record) for record_id, record in batch]
            with self._store.answers():
                if self._store.is_cluster:
                    self._put_by_slot(writes, changed, is_first=not done)
                else:
                    self._put_at_once(writes, changed, is_first=not done)
            done += len(batch)
            if on_progress is not None:
                on_progress(done)
        return done

    def _put_at_once(self, writes: Writes, changed: Sequence[str], *, is_first: bool) -> None:
        """Write a batch, and the ids of changed items, in one transaction."""
        with self._store.at(b"").pipeline(transaction=True) as pipe:
            for commands in writes:
                for words in commands:
                    pipe.execute_command(*words)
            self.item_changes.add(pipe, changed)
            if is_first:
                self.item_changes.identify(pipe)
            pipe.execute()

    def _put_by_slot(self, writes: Writes, changed: Sequence[str], *, is_first: bool) -> None:
        """Write a batch record by record, each in a transaction; then tell of it.

        The keys are in different slots. A reader that learns of a change finds the new record; what fails in between is
        written again by the next attempt, as if it had not been written.
        """
        if is_first:
            self.item_changes.identify(self._store.at(ITEMS_EPOCH))
        self._store.each([(commands[0][1], [(b"MULTI",), *commands, (b"EXEC",)]) for commands in writes])
        if changed:
            with self._store.at(ITEMS_CHANGES).pipeline(transaction=True) as pipe:
                self.item_changes.add(pipe, changed)
                pipe.execute()


def _written(key: bytes, record: Mapping[str, str]) -> list[tuple[bytes, ...]]:
    """The commands that replace a record."""
    words = [word for pair in _encoded(record).items() for word in pair]
    return [(b"DEL", key), (b"HSET", key, *words)] if words else [(b"DEL", key)]


def _encoded(record: Mapping[str, str]) -> dict[bytes, bytes]:
    return {
        name.encode("utf-8", "surrogateescape"): value.encode("utf-8", "surrogateescape")
        for name, value in record.items()
    }
