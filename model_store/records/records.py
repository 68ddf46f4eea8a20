"""User and item records and candidate sets: writing them, and reading all items.

A record is a HASH of text; a list is stored as a JSON array. `lookups` reads by id.

A reader notices changed items by the stream of changed item ids and two other keys (`ItemChanges`). A reader's
position is the stream entry it read last. The stream is trimmed from its oldest end, so while that entry exists, all
later ones exist too. docs/features.md describes how other systems write to it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Any

from model_store.keys import (
    CANDIDATES,
    ITEM,
    ITEMS_CHANGES,
    ITEMS_EPOCH,
    ITEMS_GENERATION,
    MAX_ID_BYTES,
    USER,
    history_key,
    is_id,
    record_key,
)
from model_store.records.lookups import Lookups, Record, is_of_another_type, packed
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
        # SCAN may give a key several times, while the table of keys grows or shrinks.
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
            # In a transaction: no reader sees the set empty or in part. It may have been a SET or ZSET before.
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
            # One command for each key, which may be repeated if a node fails (`StoreConnection.each`).
            self._store.each([(key, [(b"SET", key, record, b"PX", lasts)]) for key, record in keyed])
        return len(keyed)

    def remove_histories(self, model: str, cookies: Iterable[bytes]) -> None:
        """Remove the histories of these users for a model."""
        with self._store.answers():
            keys = [history_key(model, cookie) for cookie in cookies]
            self._store.each([(key, [(b"UNLINK", key)]) for key in keys])

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
        """Write a batch record by record, each in a transaction; then add the stream entries.

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
    # DEL first: HSET alone would leave fields that the new record does not have.
    return [(b"DEL", key), (b"HSET", key, *words)] if words else [(b"DEL", key)]


def _encoded(record: Mapping[str, str]) -> dict[bytes, bytes]:
    return {
        name.encode("utf-8", "surrogateescape"): value.encode("utf-8", "surrogateescape")
        for name, value in record.items()
    }


# Fewer entries for a load of everything: the stream holds the ids of 500,000 items before it trims some.
IDS_AN_ENTRY = 100
ENTRIES_KEPT = 5_000
"""The stream's length; a reader that missed trimmed entries reads all items again."""
ENTRIES_A_READ = 1_000
ID_FIELD = "id"


@dataclass(frozen=True)
class ItemsState:
    """The state of all items, as far as a server can detect changes.

    epoch: random, lost with the store's data; "" if the store is read-only. reread: a token that a writer changes to
    have all items read again. position: the last entry of the stream, or None. junk: keys of the wrong type.
    """

    epoch: str
    reread: str
    position: str | None
    junk: tuple[str, ...] = ()

    @property
    def generation(self) -> int:
        """A 63-bit hash of the state."""
        text = "\0".join((self.epoch, self.reread, self.position or ""))
        digest = blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest()
        # Not negative as a signed 64-bit number.
        return int.from_bytes(digest, "big") >> 1


class ItemChanges:
    """Reads and writes the stream. Thread safety: every method may be called from any thread."""

    def __init__(self, lookups: Lookups) -> None:
        self._lookups = lookups

    @staticmethod
    def identify(pipe: Any) -> None:
        """Give the data an epoch if it has none, by a redis-py pipeline."""
        # NX: of several writers the first one decides.
        pipe.set(ITEMS_EPOCH, secrets.token_hex(8), nx=True)

    @staticmethod
    def ask_for_all(pipe: Any) -> None:
        """Have servers read all items again and drop those that the store lacks, by a redis-py pipeline."""
        pipe.set(ITEMS_GENERATION, secrets.token_hex(8))

    @staticmethod
    def add(pipe: Any, ids: Sequence[str]) -> None:
        """Add stream entries for these changed items to a redis-py pipeline."""
        for start in range(0, len(ids), IDS_AN_ENTRY):
            some = [item.encode("utf-8", "surrogateescape") for item in ids[start : start + IDS_AN_ENTRY]]
            words = [word for item in some for word in (ID_FIELD, item)]
            pipe.execute_command("XADD", ITEMS_CHANGES, "MAXLEN", "~", ENTRIES_KEPT, "*", *words)

    def state(self) -> ItemsState:
        """The present state; gives the data an epoch if it has none. Raises StoreUnavailable, StoreError.

        A key of the wrong type counts as missing; once there is a stream again, all items are read again.
        """
        answers = self._lookups.ask_each(
            [
                (ITEMS_EPOCH, packed(b"GET", ITEMS_EPOCH)),
                (ITEMS_GENERATION, packed(b"GET", ITEMS_GENERATION)),
                (ITEMS_CHANGES, packed(b"XREVRANGE", ITEMS_CHANGES, b"+", b"-", b"COUNT", b"1")),
            ]
        )
        epoch, reread, last = (
            None if is_of_another_type(each) else self._lookups.checked(each) for each in answers
        )
        keys = (ITEMS_EPOCH, ITEMS_GENERATION, ITEMS_CHANGES)
        junk = tuple(
            key.decode() for key, each in zip(keys, answers, strict=True) if is_of_another_type(each)
        )
        return ItemsState(epoch or self._new_epoch(), reread or "", last[0][0] if last else None, junk)

    def epoch(self) -> str:
        """The epoch alone, same as in `state`. Raises StoreUnavailable, StoreError."""
        (answer,) = self._lookups.ask(ITEMS_EPOCH, [packed(b"GET", ITEMS_EPOCH)])
        epoch = None if is_of_another_type(answer) else self._lookups.checked(answer)
        return epoch or self._new_epoch()

    def since(self, position: str) -> tuple[dict[str, None], str] | None:
        """The ids changed after `position`, each once, and the new position; None if some may be missing.

        Raises StoreUnavailable, StoreError.
        """
        changed: dict[str, None] = {}
        while True:
            # XRANGE includes `position`: as long as that entry is there, nothing after it was trimmed.
            command = packed(
                b"XRANGE", ITEMS_CHANGES, position.encode(), b"+", b"COUNT", b"%d" % ENTRIES_A_READ
            )
            (answer,) = self._lookups.ask(ITEMS_CHANGES, [command])
            entries = None if is_of_another_type(answer) else self._lookups.checked(answer)
            if not entries or entries[0][0] != position:
                return None  # trimmed, or another stream
            for _, words in entries[1:]:
                changed |= dict.fromkeys(_ids(words))
            position = entries[-1][0]
            if len(entries) < ENTRIES_A_READ:
                return changed, position

    def _new_epoch(self) -> str:
        """Give the data an epoch, unless another server was first; "" if the store refuses (a replica, or an ACL)."""
        fresh = packed(b"SET", ITEMS_EPOCH, secrets.token_hex(8).encode(), b"NX")
        asked = self._lookups.ask(ITEMS_EPOCH, [fresh, packed(b"GET", ITEMS_EPOCH)])
        # What GET gives counts: another server may have been first.
        return asked[1] if type(asked[1]) is str else ""


def _ids(words: Sequence[str]) -> list[str]:
    """The valid ids of one entry; invalid ones are skipped, so that one bad entry does not stop readers."""
    pairs = zip(words[::2], words[1::2], strict=True)
    return [item for name, item in pairs if name == ID_FIELD and is_id(item)]
