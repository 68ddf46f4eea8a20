"""Reading users, items and candidate sets by id, on a server's hot path. Each read is one round trip.

Each thread has its own connection; nothing is cached.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field

from model_store.errors import StoreError, StoreUnavailable
from model_store.keys import CANDIDATES, ITEM, USER, history_key, record_key
from model_store.redis.connection import StoreConnection
from model_store.redis.direct_connection import Answer, AnsweredError, ClusterConnection, DirectConnection

MAX_MEMBERS = 10_001
"""How many members of a LIST or ZSET are read: one more than a request may have."""
WRONG_TYPE = "WRONGTYPE"
# Codes by which a server says that it can answer nothing now, or not to us.
AWAY = ("LOADING", "MASTERDOWN", "NOAUTH", "WRONGPASS", "CLUSTERDOWN", "TRYAGAIN")
DEMOTED = "READONLY"

Record = dict[str, str]


@dataclass(frozen=True)
class HashFields:
    """One or more fields of a record, in a fixed order, encoded for an HMGET command."""

    names: tuple[str, ...]
    head: bytes = field(init=False, repr=False)
    tail: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Encoded once for a model: each call only puts the key between the two parts.
        object.__setattr__(self, "head", b"*%d\r\n$5\r\nHMGET\r\n" % (len(self.names) + 2))
        names = [name.encode("utf-8", "surrogateescape") for name in self.names]
        object.__setattr__(self, "tail", b"".join(map(_bulk, names)))


class Lookups:
    """Reads of one store. Thread safety: all methods, any thread; each thread has its own connection.

    `wait_s` bounds a read; the default is the store's limit. All methods raise StoreUnavailable.
    """

    def __init__(self, connection: StoreConnection, wait_s: float) -> None:
        self._store = connection
        self._wait_s = wait_s
        self._thread = threading.local()
        # Weak: the connection of a thread that ends is closed with it.
        self._opened: weakref.WeakSet[DirectConnection | ClusterConnection] = weakref.WeakSet()

    def user(self, cookie: str, wait_s: float | None = None) -> Record:
        """The whole record of a user, empty if there is none. Raises StoreError if it is not a HASH."""
        key = record_key(USER, cookie)
        flat = self._one(key, packed(b"HGETALL", key), wait_s)
        return _record(flat)

    def user_values(self, cookie: str, wanted: HashFields, wait_s: float | None = None) -> list[str | None]:
        """The values of some fields of a user, None for missing ones. Raises like `user`."""
        key = record_key(USER, cookie)
        values: list[str | None] = self._one(key, wanted.head + _bulk(key) + wanted.tail, wait_s)
        return values

    def users_values(
        self, cookies: Sequence[str], wanted: HashFields, wait_s: float | None = None
    ) -> list[list[str | None] | StoreError]:
        """As `user_values` of each, in one round trip. A record that cannot be read is replaced by its error."""
        keys = [record_key(USER, cookie) for cookie in cookies]
        answers = self.ask_each([(key, wanted.head + _bulk(key) + wanted.tail) for key in keys], wait_s)
        return [self._values_or_error(answer) for answer in answers]

    def user_and_history(
        self, cookie: str, wanted: HashFields, model: str, wait_s: float | None = None
    ) -> tuple[list[str | None], bytes | None]:
        """As `user_values`, which may be of no fields; and the user's history for a model, None if there is none.

        One round trip. A history of another type is empty bytes, which no history is. Raises like `user`.
        """
        key = record_key(USER, cookie)
        other = history_key(model, cookie.encode("utf-8", "surrogateescape"))
        commands = [(key, wanted.head + _bulk(key) + wanted.tail)] if wanted.names else []
        *values, record = self.ask_each([*commands, (other, packed(b"GET", other))], wait_s)
        # A history of another type must not cost the user's features: the caller finds that it cannot be read.
        found = "" if is_of_another_type(record) else self.checked(record)
        history = None if found is None else found.encode("utf-8", "surrogateescape")
        return (self.checked(values[0]) if values else []), history

    @property
    def is_cluster(self) -> bool:
        """Whether keys are spread over the nodes of a cluster."""
        return self._store.is_cluster

    def holder_of_user(self, cookie: str) -> str:
        """A name of the server of a cluster that holds this user; empty if all keys are in one place."""
        return self._store.holder(record_key(USER, cookie)) if self._store.is_cluster else ""

    def items(self, ids: Sequence[str], wait_s: float | None = None) -> list[Record | None]:
        """The records of items, None for those without a HASH."""
        keys = [record_key(ITEM, item) for item in ids]
        answers = self.ask_each([(key, packed(b"HGETALL", key)) for key in keys], wait_s) if ids else []
        return [None if is_of_another_type(flat) else _record(self.checked(flat)) or None for flat in answers]

    def candidates(self, name: str, wait_s: float | None = None) -> list[str] | None:
        """A candidate set, or None: a LIST in its order, a SET sorted by bytes, a ZSET by rank.

        Of a LIST or ZSET the first MAX_MEMBERS. Raises StoreError for another type, and for ids that are not UTF-8.
        """
        key, last = record_key(CANDIDATES, name), b"%d" % (MAX_MEMBERS - 1)
        commands = [
            # All at once: one round trip instead of two, and those of the wrong type only give an error.
            packed(b"TYPE", key),  # decides which of the other answers is valid
            packed(b"LRANGE", key, b"0", last),
            packed(b"SMEMBERS", key),
            packed(b"ZRANGE", key, b"0", last),
        ]
        answers = self.ask(key, commands, wait_s)
        kind = self.checked(answers[0])
        if kind == "none":
            return None
        if kind not in ("list", "set", "zset"):
            raise StoreError(f"expected a LIST, SET or ZSET at {key!r}, got a {kind.upper()}")
        ids: list[str] = self.checked(answers[("list", "set", "zset").index(kind) + 1])
        # SMEMBERS has no order, and differs from server to server. Text in order of its characters is UTF-8 in order
        # of its bytes.
        return _texts(key, sorted(ids) if kind == "set" else ids)

    def ask(self, key: bytes, commands: Sequence[bytes], wait_s: float | None = None) -> list[Answer]:
        """Same as `ask_each`, for commands that are all for one key."""
        return self.ask_each([(key, command) for command in commands], wait_s)

    def ask_each(self, keyed: Sequence[tuple[bytes, bytes]], wait_s: float | None = None) -> list[Answer]:
        """Send packed commands, each with its key, over this thread's connection; the answers, errors as AnsweredError.

        One round trip to each server that holds one. Raises StoreUnavailable also if the store is not ready.
        """
        try:
            connection: DirectConnection | ClusterConnection = self._thread.connection
        # Only at the first read of a thread: later ones pay nothing for the test.
        except AttributeError:
            connection = self._new_connection()
        received = connection.ask_each(keyed, self._wait_s if wait_s is None else wait_s)
        for answer in received:
            if type(answer) is AnsweredError and str(answer).startswith(AWAY):
                # Behind Sentinel the next use asks for the master again.
                connection.distrust()
                raise StoreUnavailable(f"{self._store.shown_url} cannot answer now: {answer}")
        return received

    def _new_connection(self) -> DirectConnection | ClusterConnection:
        """A new one for this thread."""
        kind = ClusterConnection if self._store.is_cluster else DirectConnection
        with self._store.answers():
            connection = self._thread.connection = kind(self._store, self._wait_s)
        self._opened.add(connection)
        return connection

    def checked(self, answer: Answer) -> Answer:
        """The answer. Raises StoreError if it is an error, StoreUnavailable while the store accepts no writes."""
        if type(answer) is AnsweredError:
            if str(answer).startswith(DEMOTED):
                # A master that became a replica still reads, so only a write shows it.
                self._thread.connection.distrust()
            raise self._store.refused(str(answer))
        return answer

    def _values_or_error(self, answer: Answer) -> list[str | None] | StoreError:
        """The answer, or the error of one record. Raises StoreUnavailable as `checked`."""
        try:
            values: list[str | None] = self.checked(answer)
        except StoreUnavailable:
            raise
        except StoreError as error:
            return copy(error)  # without the frames that it was raised in: they would hold it, and it them
        return values

    def close(self) -> None:
        """Close the connections of all threads."""
        for connection in list(self._opened):
            connection.close()

    def _one(self, key: bytes, command: bytes, wait_s: float | None) -> Answer:
        return self.checked(self.ask_each([(key, command)], wait_s)[0])


def packed(*words: bytes) -> bytes:
    """One command in RESP, an array of bulk strings."""
    return b"*%d\r\n" % len(words) + b"".join(map(_bulk, words))


def _bulk(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)


def is_of_another_type(answer: Answer) -> bool:
    """True if the command failed because the key has another type."""
    return type(answer) is AnsweredError and str(answer).startswith(WRONG_TYPE)


def _record(flat: Sequence[str]) -> Record:
    """A record from an HGETALL answer, alternating names and values."""
    pairs = iter(flat)
    return dict(zip(pairs, pairs, strict=True))


def _texts(key: bytes, ids: list[str]) -> list[str]:
    try:
        # All at once; one by one only to find the invalid one.
        "".join(ids).encode()
    except UnicodeEncodeError:
        odd = next(item for item in ids if _is_no_text(item))
        shown = odd.encode("utf-8", "surrogateescape")[:40]
        raise StoreError(f"expected UTF-8 ids at {key!r}, got {shown!r}; remove it") from None
    return ids


def _is_no_text(item: str) -> bool:
    return any("\ud800" <= letter <= "\udfff" for letter in item)
