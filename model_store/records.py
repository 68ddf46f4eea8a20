"""User and item records and candidate sets: what a server looks up by id. Models live elsewhere.

A record is a HASH of text; a value that is a list stands there as a JSON array. `user` and `items` are the
server's hot path: one packed command over a connection that belongs to the calling thread.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from model_store.connection import StoreConnection
from model_store.errors import StoreError
from model_store.redis_keys import (
    CANDIDATES,
    ITEM,
    ITEMS_GENERATION,
    MAX_ID_BYTES,
    USER,
    record_key,
    whole_number,
)

BATCH = 1000
WRONG_KIND = "WRONGTYPE"
Record = dict[str, str]
Progress = Callable[[int], None]


class Records:
    """Records of one store. Thread safety: every method may be called from any thread."""

    def __init__(self, connection: StoreConnection, user_timeout_s: float) -> None:
        self._store = connection
        self._user_timeout_s = user_timeout_s
        self._thread = threading.local()
        self._opened: weakref.WeakSet[Any] = weakref.WeakSet()

    # -- reading

    def user(self, cookie: str) -> Record:
        """The record of one user, empty if there is none. One round trip. Raises StoreUnavailable."""
        record = self._ask([record_key(USER, cookie)])[0]
        if isinstance(record, ResponseError):
            raise self._store.translated(record) from record
        return record

    def items(self, ids: Sequence[str]) -> list[Record | None]:
        """The records of many items, None where there is no HASH. One round trip. Raises StoreUnavailable."""
        return [
            None if isinstance(record, ResponseError) else record or None
            for record in self._ask([record_key(ITEM, item) for item in ids])
        ]

    def scan_items(self) -> Iterator[tuple[str, Record]]:
        """Every item once, in no order. Reads all key names: O(keys of the store).

        Passes over what is no item: a key without an id, one with an over-long id, and anything but a HASH.
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

    def candidates(self, name: str) -> list[str] | None:
        """A candidate set: a LIST in its order, a SET by bytes, a ZSET by rank; None if there is none."""
        key = record_key(CANDIDATES, name)
        client = self._store.client
        with self._store.answers():
            kind = client.type(key)
            if kind == b"none":
                return None
            if kind == b"list":
                ids = client.lrange(key, 0, -1)
            elif kind == b"set":
                ids = sorted(client.smembers(key))
            elif kind == b"zset":
                ids = client.zrange(key, 0, -1)
            else:
                raise StoreError(f"expected a LIST, SET or ZSET at {key!r}, got a {kind.decode().upper()}")
        try:
            return [item.decode() for item in ids]
        except UnicodeDecodeError as error:
            raise StoreError(f"expected UTF-8 ids at {key!r}, got {error.object[:40]!r}; remove it") from None

    def items_generation(self) -> int:
        """A counter that moves whenever items were put."""
        with self._store.answers():
            generation = self._store.client.get(ITEMS_GENERATION)
        return whole_number(ITEMS_GENERATION, generation or b"0")

    # -- writing

    def put_users(
        self, records: Iterable[tuple[str, Mapping[str, str]]], on_progress: Progress | None = None
    ) -> int:
        """Replace these users' records; returns how many. A batch of 1,000 is seen whole or not at all."""
        return self._put(USER, records, on_progress)

    def put_items(
        self, records: Iterable[tuple[str, Mapping[str, str]]], on_progress: Progress | None = None
    ) -> int:
        """Replace the records of these items, then move the generation; returns how many."""
        try:
            return self._put(ITEM, records, on_progress)
        finally:  # a load that failed half-way has changed items too
            with self._store.answers():
                self._store.client.incr(ITEMS_GENERATION)

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
                pipe.execute()
            done += len(batch)
            if on_progress is not None:
                on_progress(done)
        return done

    # -- the hot path

    def _ask(self, keys: Sequence[bytes]) -> list[Record | ResponseError]:
        """HGETALL of every key in one round trip; a connection the store dropped is opened again, once.

        A key that holds something else than a HASH gets its error as answer, so that it costs the others nothing.
        """
        command = b"".join([b"*2\r\n$7\r\nHGETALL\r\n$%d\r\n%b\r\n" % (len(key), key) for key in keys])
        connection = self._connection()
        try:
            try:
                return self._exchange(connection, command, len(keys))
            except RedisConnectionError:
                return self._exchange(connection, command, len(keys))
        except RedisError as error:
            raise self._store.translated(error) from error

    @staticmethod
    def _exchange(connection: Any, command: bytes, answers: int) -> list[Record | ResponseError]:
        records: list[Record | ResponseError] = []
        try:
            connection.send_packed_command((command,), check_health=False)
            for _ in range(answers):
                records.append(_answer(connection))
        except BaseException:
            connection.disconnect()  # answers may still be on their way, and must not be taken for the next
            raise
        return records

    def _connection(self) -> Any:
        connection = getattr(self._thread, "connection", None)
        if connection is None:
            connection = self._thread.connection = self._store.single(self._user_timeout_s)
            self._opened.add(connection)
        return connection

    def close(self) -> None:
        """Close the connections of all threads."""
        for connection in list(self._opened):
            connection.disconnect()


def _answer(connection: Any) -> Record | ResponseError:
    """The next HGETALL's answer."""
    try:
        flat: Any = iter(connection.read_response())
    except ResponseError as error:
        if str(error).startswith(WRONG_KIND):
            return error
        raise
    return dict(zip(flat, flat, strict=True))


def _encoded(record: Mapping[str, str]) -> dict[bytes, bytes]:
    return {
        name.encode("utf-8", "surrogateescape"): value.encode("utf-8", "surrogateescape")
        for name, value in record.items()
    }
