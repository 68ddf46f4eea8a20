"""Reading users, items and candidate sets by id: a server's hot path. Each read is one round trip.

Nothing here writes, and nothing is remembered from one read to the next but each thread's connection.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

from model_store.errors import StoreError, StoreUnavailable
from model_store.redis.connection import StoreConnection
from model_store.redis.direct_connection import Answer, AnsweredError, DirectConnection
from model_store.redis.redis_keys import CANDIDATES, ITEM, USER, record_key

MAX_MEMBERS = 10_001
"""Members of a LIST or ZSET that are read: one more than any request may have."""
WRONG_TYPE = "WRONGTYPE"
AWAY = ("LOADING", "MASTERDOWN", "NOAUTH", "WRONGPASS", "CLUSTERDOWN", "TRYAGAIN")

Record = dict[str, str]


@dataclass(frozen=True)
class HashFields:
    """Some fields of a record, in an order of their own, ready to stand in a command. At least one."""

    names: tuple[str, ...]
    head: bytes = field(init=False, repr=False)
    tail: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "head", b"*%d\r\n$5\r\nHMGET\r\n" % (len(self.names) + 2))
        names = [name.encode("utf-8", "surrogateescape") for name in self.names]
        object.__setattr__(self, "tail", b"".join(map(_bulk, names)))


class Lookups:
    """Reads of one store. Thread safety: every method may be called from any thread; each has its own connection.

    `wait_s` bounds a read; without it, the store's own limit does. All raise StoreUnavailable.
    """

    def __init__(self, connection: StoreConnection, wait_s: float) -> None:
        self._store = connection
        self._wait_s = wait_s
        self._thread = threading.local()
        self._opened: weakref.WeakSet[DirectConnection] = weakref.WeakSet()

    def user(self, cookie: str, wait_s: float | None = None) -> Record:
        """The whole record of one user, empty if there is none. Raises StoreError if it is not a HASH."""
        flat = self._one(packed(b"HGETALL", record_key(USER, cookie)), wait_s)
        return _record(flat)

    def user_values(self, cookie: str, wanted: HashFields, wait_s: float | None = None) -> list[str | None]:
        """The values of some fields of one user, None for each that is not there. Raises as `user`."""
        key = record_key(USER, cookie)
        values: list[str | None] = self._one(wanted.head + _bulk(key) + wanted.tail, wait_s)
        return values

    def items(self, ids: Sequence[str], wait_s: float | None = None) -> list[Record | None]:
        """The records of many items, None where there is no HASH."""
        command = b"".join([packed(b"HGETALL", record_key(ITEM, item)) for item in ids])
        answers = self.ask(command, len(ids), wait_s) if ids else []
        return [None if is_of_another_type(flat) else _record(self.checked(flat)) or None for flat in answers]

    def candidates(self, name: str, wait_s: float | None = None) -> list[str] | None:
        """A candidate set: a LIST in its order, a SET by bytes, a ZSET by rank; None if there is none.

        Of a LIST or ZSET the first MAX_MEMBERS. Raises StoreError for another kind, and for an id that is no text.
        """
        key, last = record_key(CANDIDATES, name), b"%d" % (MAX_MEMBERS - 1)
        command = b"".join(
            [
                packed(b"TYPE", key),  # whose answer says which of the others is the right one
                packed(b"LRANGE", key, b"0", last),
                packed(b"SMEMBERS", key),
                packed(b"ZRANGE", key, b"0", last),
            ]
        )
        answers = self.ask(command, 4, wait_s)
        kind = self.checked(answers[0])
        if kind == "none":
            return None
        if kind not in ("list", "set", "zset"):
            raise StoreError(f"expected a LIST, SET or ZSET at {key!r}, got a {kind.upper()}")
        ids: list[str] = self.checked(answers[("list", "set", "zset").index(kind) + 1])
        return _texts(key, sorted(ids) if kind == "set" else ids)

    def ask(self, command: bytes, answers: int, wait_s: float | None = None) -> list[Answer]:
        """The answers to packed commands, over this thread's connection; an error is an AnsweredError among them.

        Raises StoreUnavailable also where the store answers that it cannot answer yet.
        """
        try:
            connection: DirectConnection = self._thread.connection
        except AttributeError:
            connection = self._thread.connection = DirectConnection(self._store, self._wait_s)
            self._opened.add(connection)
        received = connection.ask(command, answers, self._wait_s if wait_s is None else wait_s)
        for answer in received:
            if type(answer) is AnsweredError and str(answer).startswith(AWAY):
                raise StoreUnavailable(f"{self._store.shown_url} cannot answer now: {answer}")
        return received

    def checked(self, answer: Answer) -> Answer:
        """The answer, unless it is an error. Raises StoreError, StoreUnavailable while the store takes no writes."""
        if type(answer) is AnsweredError:
            raise self._store.refused(str(answer))
        return answer

    def close(self) -> None:
        """Close the connections of all threads."""
        for connection in list(self._opened):
            connection.close()

    def _one(self, command: bytes, wait_s: float | None) -> Answer:
        return self.checked(self.ask(command, 1, wait_s)[0])


def packed(*words: bytes) -> bytes:
    """One command as it is sent (RESP, an array of bulk strings)."""
    return b"*%d\r\n" % len(words) + b"".join(map(_bulk, words))


def _bulk(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)


def is_of_another_type(answer: Answer) -> bool:
    """Whether the key that was asked for holds another type than the command is for."""
    return type(answer) is AnsweredError and str(answer).startswith(WRONG_TYPE)


def _record(flat: Sequence[str]) -> Record:
    """An HGETALL's answer, name after value after name."""
    pairs = iter(flat)
    return dict(zip(pairs, pairs, strict=True))


def _texts(key: bytes, ids: list[str]) -> list[str]:
    try:
        "".join(ids).encode()
    except UnicodeEncodeError:
        odd = next(item for item in ids if _is_no_text(item))
        shown = odd.encode("utf-8", "surrogateescape")[:40]
        raise StoreError(f"expected UTF-8 ids at {key!r}, got {shown!r}; remove it") from None
    return ids


def _is_no_text(item: str) -> bool:
    return any("\ud800" <= letter <= "\udfff" for letter in item)
