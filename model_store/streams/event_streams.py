"""Streams of events, impressions and feedback: appending, reading, trimming.

An entry holds one event as JSON in its field `json`; feedback of other systems may have one field per member instead.
docs/events.md describes the events.

Dead letters are the events that could not be learned from. Their writer numbers them, and an entry's id is that number,
so that a letter written again, after a crash or a missing answer, is a duplicate. Numbers only grow; a trainer that
starts without its checkpoint continues after `last`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from redis.exceptions import RedisError, ResponseError

from model_store.keys import ModelKeys, unreadable
from model_store.redis.connection import StoreConnection

LENGTH = 1_000_000
"""Default length of a stream, approximate."""
AGE_S = 86_400.0
TRIM_EVERY_S = 5.0
JSON_FIELD = b"json"

EntryId = tuple[int, int]
"""Milliseconds since 1970 by the store's clock, and a sequence number. (0, 0) precedes every entry."""

_NUMBER = re.compile(rb"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_NUMBERS = (b"ts", b"value")
"""Flat fields that become numbers if they look like one; all others are text."""


@dataclass(frozen=True)
class Read:
    """Entries in id order, and the state of the stream when they were read.

    ids: int64[n, 2], milliseconds and sequence number. payloads: n events, each JSON on one line. now_us: the store's
    clock before reading, in whole milliseconds; every entry with milliseconds x 1000 below it existed then. first_id:
    the oldest entry, None if the stream is empty. removed: how many entries were deleted so far, oldest first; a
    reader that counted fewer has missed the difference. added: entries ever added. Both are None before Redis 7.
    last_id: of the last entry ever added; it decreases if the stream was deleted or lost entries in a failover.
    """

    ids: npt.NDArray[np.int64]
    payloads: list[bytes]
    now_us: int
    first_id: EntryId | None
    removed: int | None
    last_id: EntryId
    added: int | None

    def __len__(self) -> int:
        return len(self.payloads)


class StreamInfo(NamedTuple):
    """The state of a stream. added: entries ever added, None before Redis 7."""

    length: int
    first_id: EntryId | None
    last_id: EntryId
    added: int | None


class EventStream:
    """One stream. Every method raises StoreUnavailable if the store does not answer, StoreError if it refuses.

    length: approximate number of entries kept; age_s: their maximum age. `append` enforces both; other writers have
    their own limits. Thread safety: all methods, any thread.
    """

    def __init__(
        self, connection: StoreConnection, key: str, *, length: int = LENGTH, age_s: float = AGE_S
    ) -> None:
        self.key = key
        self.length = length
        self.age_s = age_s
        self._store = connection
        self._client = connection.at(key)
        self._trimmed_s = -math.inf

    def append(self, payloads: Sequence[bytes]) -> int:
        """Add events, one JSON object each, atomically; returns their number.

        One round trip, and another every few seconds; O(n). Retrying after StoreUnavailable may add them twice.
        """
        if not payloads:
            return 0
        with self._store.answers(self.key):
            adding: list[tuple[Any, ...]] = [
                ("XADD", self.key, "MAXLEN", "~", self.length, "*", JSON_FIELD, payload)
                for payload in payloads
            ]
            # XADD takes MAXLEN or MINID, not both. ~ trims whole blocks of entries, which costs next to nothing.
            if self._is_trim_due():
                adding.append(("XTRIM", self.key, "MINID", "~", self._oldest_ms()))
            self._store.write(self.key, adding)
        return len(payloads)

    def read(self, after: EntryId, count: int) -> Read:
        """At most `count` entries after `after`, without waiting. One round trip, O(count)."""
        beyond = f"({after[0]}-{after[1]}"
        with self._store.answers(), self._client.pipeline(transaction=False) as pipe:
            # TIME first: an entry that is added after it, and so may be missing below, has at least this time.
            pipe.execute_command("TIME")
            pipe.execute_command("XINFO STREAM", self.key)
            pipe.execute_command("XRANGE", self.key, beyond, "+", "COUNT", count)
            (seconds, micros), about, entries = _checked(self.key, pipe.execute(raise_on_error=False))
        info = _info(about)
        return Read(
            ids=_ids(entries),
            payloads=[payload_of(entry, fields) for entry, fields in entries],
            now_us=seconds * 1_000_000 + micros // 1000 * 1000,
            first_id=info.first_id,
            removed=None if info.added is None else info.added - info.length,
            last_id=info.last_id,
            added=info.added,
        )

    def before_last(self, count: int, last: EntryId) -> EntryId:
        """The entry before the last `count` entries up to `last`; (0, 0) if there is none. O(count)."""
        with self._store.answers(), self._client.pipeline(transaction=False) as pipe:
            pipe.execute_command("XREVRANGE", self.key, f"{last[0]}-{last[1]}", "-", "COUNT", count + 1)
            (entries,) = _checked(self.key, pipe.execute(raise_on_error=False))
        return entry_id(entries[-1][0]) if len(entries) > count else (0, 0)

    def latest(self, count: int) -> list[bytes]:
        """The payloads of the latest `count` entries, oldest first. One round trip, O(count)."""
        with self._store.answers(), self._client.pipeline(transaction=False) as pipe:
            pipe.execute_command("XREVRANGE", self.key, "+", "-", "COUNT", count)
            (entries,) = _checked(self.key, pipe.execute(raise_on_error=False))
        return [payload_of(entry, fields) for entry, fields in reversed(entries)]

    def info(self) -> StreamInfo:
        """The present state. One round trip."""
        with self._store.answers(), self._client.pipeline(transaction=False) as pipe:
            pipe.execute_command("XINFO STREAM", self.key)
            return _info(_checked(self.key, pipe.execute(raise_on_error=False))[0])

    def _is_trim_due(self) -> bool:
        now_s = self._store.clock.monotonic()
        if now_s - self._trimmed_s < TRIM_EVERY_S:
            return False
        # Without a lock: two threads that trim at once do no harm.
        self._trimmed_s = now_s
        return True

    def _oldest_ms(self) -> int:
        """The oldest time to keep, by the store's clock, which also makes the ids."""
        return max(0, int(self._store.now_us(self.key) / 1000 - self.age_s * 1000))


def entry_id(text: bytes) -> EntryId:
    """Parse an entry id."""
    milliseconds, _, number = text.partition(b"-")
    return int(milliseconds), int(number)


def _checked(key: str, answers: list[Any]) -> list[Any]:
    """The answers; None for a missing stream. Raises UnreadableValue for a key of another type."""
    for place, answer in enumerate(answers):
        # XINFO is an error for a missing key, where the other commands give nothing.
        if isinstance(answer, ResponseError) and "no such key" in str(answer):
            answers[place] = None
        elif isinstance(answer, ResponseError) and "WRONGTYPE" in str(answer):
            raise unreadable(key, f"expected a stream, got a key of another type ({answer})")
        elif isinstance(answer, RedisError):
            raise answer
    return answers


def _info(answer: Mapping[str, Any] | None) -> StreamInfo:
    if answer is None:
        return StreamInfo(0, None, (0, 0), 0)
    first = answer["first-entry"]
    return StreamInfo(
        length=answer["length"],
        first_id=entry_id(first[0]) if first else None,
        last_id=entry_id(answer["last-generated-id"]),
        added=answer.get("entries-added"),
    )


def _ids(entries: Sequence[tuple[bytes, Any]]) -> npt.NDArray[np.int64]:
    return np.array([entry_id(entry) for entry, _ in entries], np.int64).reshape(-1, 2)


def payload_of(entry: bytes, fields: Mapping[bytes, bytes]) -> bytes:
    """The event as JSON on one line; line feeds between members become spaces."""
    payload = fields.get(JSON_FIELD)
    if payload is None:
        return _from_flat(entry, fields)
    # In JSON a bare line feed is only between members: within a text it is escaped.
    return payload.replace(b"\n", b" ") if b"\n" in payload else payload


def _from_flat(entry: bytes, fields: Mapping[bytes, bytes]) -> bytes:
    """The event whose members are fields, with the entry's time unless it has one."""
    # Fields have no types: only `_NUMBERS` may be more than text.
    event: dict[str, Any] = {_text(name): _value(name, value) for name, value in fields.items()}
    event.setdefault("ts", entry_id(entry)[0] / 1000)
    return json.dumps(event).encode()


def _value(name: bytes, value: bytes) -> Any:
    return json.loads(value) if name in _NUMBERS and _is_number(value) else _text(value)


def _is_number(value: bytes) -> bool:
    """True for a finite number in JSON's syntax, not too long to parse."""
    # A longer one is no time and no value, and stays text.
    return len(value) <= 32 and bool(_NUMBER.fullmatch(value)) and math.isfinite(float(value))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")  # json.dumps escapes surrogates, so nothing is lost


KEPT = 10_000
"""Approximate length of the stream."""
JSON_BYTES = 64 << 10
"""How much of an event is kept."""
# Told by its text: XADD of an id that is not above the last one has only the code ERR.
_THERE_ALREADY = "equal or smaller"


@dataclass(frozen=True)
class Letter:
    """An event that could not be learned from: its source, its place there, the reason, and its bytes."""

    source: str
    place: str
    reason: str
    json: bytes


class DeadLetters:
    """One model's dead letters. Every method raises StoreUnavailable, or StoreError if the store refuses."""

    def __init__(self, connection: StoreConnection, model: str) -> None:
        self._store = connection
        self.key = ModelKeys(model).dead
        self._client = connection.at(self.key)

    def add(self, number: int, letters: Sequence[Letter]) -> None:
        """Write letters `number`, `number` + 1, … (from 1); existing ones are not changed."""
        with self._store.answers(self.key), self._client.pipeline(transaction=False) as pipe:
            for place, letter in enumerate(letters):
                pipe.execute_command(
                    "XADD", self.key, "MAXLEN", "~", KEPT, f"{number + place}-1", *_fields(letter)
                )
            for answer in pipe.execute(raise_on_error=False):
                if isinstance(answer, RedisError) and not _is_there_already(answer):
                    raise answer

    def last(self) -> int:
        """The highest number ever written, or 0."""
        return EventStream(self._store, self.key).info().last_id[0]

    def latest(self, count: int) -> Iterator[tuple[int, Letter]]:
        """The latest `count` letters by their numbers, latest first."""
        with self._store.answers(self.key):
            entries = self._client.xrevrange(self.key, count=count)
        for entry, fields in entries:
            yield int(entry.partition(b"-")[0]), _letter(fields)


def _fields(letter: Letter) -> tuple[str | bytes, ...]:
    texts = {"source": letter.source, "place": letter.place, "reason": letter.reason}
    words = [word for name, text in texts.items() for word in (name, text.encode("utf-8", "surrogateescape"))]
    return (*words, "json", letter.json[:JSON_BYTES])


def _letter(fields: Any) -> Letter:
    source, place, reason = (
        fields.get(name, b"").decode("utf-8", "surrogateescape") for name in (b"source", b"place", b"reason")
    )
    return Letter(source, place, reason, fields.get(b"json", b""))


def _is_there_already(error: RedisError) -> bool:
    return isinstance(error, ResponseError) and _THERE_ALREADY in str(error)
