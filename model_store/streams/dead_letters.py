"""A model's dead-letter stream: events that could not be learned from, with the reason.

The writer numbers letters, and an entry's id is that number, so that a letter written again, after a crash or a missing
answer, is a duplicate. Numbers only grow; a trainer that starts without its checkpoint continues after `last`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError, ResponseError

from model_store.keys import ModelKeys
from model_store.redis.connection import StoreConnection
from model_store.streams.event_streams import EventStream

KEPT = 10_000
"""Approximate length of the stream."""
JSON_BYTES = 64 << 10
"""How much of an event is kept."""
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
