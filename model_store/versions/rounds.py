"""What the partitions of one model exchange through the store: parts of rounds, and the record of how they started.

A part is a partition's contribution to a round or its state at the beginning of one, or the merged model: bytes, opaque
to this module. It is complete or absent: its chunks are uploaded with an expiry and made visible by one script
(round.lua), which refuses a writer whose lease another trainer has taken. A part is written once; a second writer
gets the one that is there. docs/redis_keys.md describes the keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from redis.exceptions import RedisError

from model_store.bounded import json_object
from model_store.errors import StaleEpoch, StoreError, UnreadableValue
from model_store.keys import ModelKeys, number, shown, unreadable
from model_store.redis.connection import StoreConnection
from model_store.versions.lease import TrainerLease, taken_over
from model_store.versions.manifest import CHUNK_BYTES, MOST_CHUNKS, chunk_sizes, read_chunks, write_chunks

KEPT_S = 7 * 86_400
"""Parts of rounds are deleted once they are not needed; one that nobody deletes expires after this."""
MODEL = "model"

Parsed = TypeVar("Parsed", "PartitionsRecord", "PartInfo")


def contribution(partition: int) -> str:
    """The part that holds what a partition has learned in the round."""
    return str(partition)


def state(partition: int) -> str:
    """The part that holds the state of a partition at the beginning of the round, without the model."""
    return f"state-{partition}"


@dataclass(frozen=True)
class PartitionsRecord:
    """How the partitions of a model started, and from which rounds one can resume.

    start: the epoch of the trainer that started them; partitions: how many; every_us: the length of a round. spec: as
    given, canonical JSON. saved: the latest round of which the merged model and the state of every partition are in the
    store; oldest: the oldest round that may still be there.
    """

    start: int
    partitions: int
    every_us: int
    spec: str
    saved: int = 0
    oldest: int = 0

    def __post_init__(self) -> None:
        if not self.partitions or not self.every_us or self.oldest > self.saved:
            raise ValueError("numbers out of range")
        json_object(self.spec)


@dataclass(frozen=True)
class PartInfo:
    """A part of a round as its HASH describes it."""

    size: int
    chunk_bytes: int
    epoch: int
    sha256: str

    def __post_init__(self) -> None:
        if not self.chunk_bytes or self.size > self.chunk_bytes * MOST_CHUNKS or len(self.sha256) != 64:
            raise ValueError("sizes or a digest out of range")


class Rounds:
    """The rounds of one model. Every method raises StoreUnavailable if the store does not answer."""

    def __init__(self, connection: StoreConnection, model: str) -> None:
        self.model = model
        self._keys = ModelKeys(model)
        self._store = connection
        self._client = connection.at(self._keys.versions)
        self._show = connection.script("round")

    def record(self) -> PartitionsRecord | None:
        """How the partitions started; None before they have. Raises UnreadableValue."""
        key = self._keys.partitions
        with self._store.answers(key):
            found = self._client.hgetall(key)
        return _parsed(PartitionsRecord, key, found) if found else None

    def write_record(self, record: PartitionsRecord) -> None:
        """Write the whole record. By the trainer of partition 1 alone, while it has the lease."""
        key = self._keys.partitions
        with self._store.answers(key):
            self._client.hset(key, mapping=vars(record))

    def put(
        self, record: PartitionsRecord, round_number: int, part: str, data: bytes, lease: TrainerLease
    ) -> str:
        """Write a part, unless it is there; returns the SHA-256 of the one that is there now.

        Raises StaleEpoch if another trainer has taken the lease.
        """
        key = self._keys.round_part(record.start, round_number, part)
        digest = hashlib.sha256(data).hexdigest()
        # Saves the upload of a part that is there already; round.lua looks again, since another may be faster.
        if (there := self.infos(record, round_number, [part])[part]) is not None:
            return there.sha256
        info = PartInfo(len(data), CHUNK_BYTES, lease.epoch, digest)
        chunks, sizes = _chunks(key, info), chunk_sizes(info.size, info.chunk_bytes)
        write_chunks(self._store, chunks, sizes, data)
        described = [word for pair in vars(info).items() for word in pair]
        answer = self._show([lease.keys[0], key, *chunks], [lease.epoch, KEPT_S, *sizes, *described])
        if answer[0] == b"stale":
            raise StaleEpoch(taken_over(lease.model, *answer[1:]))
        if answer[0] == b"chunk":
            raise StoreError(f"{key}: chunk {answer[1]} should have {answer[2]} bytes and has {answer[3]}")
        return answer[1].decode() if answer[0] == b"there" else digest

    def infos(
        self, record: PartitionsRecord, round_number: int, parts: Sequence[str]
    ) -> dict[str, PartInfo | None]:
        """The parts of a round that are there, None for the others. Raises UnreadableValue."""
        keys = [self._keys.round_part(record.start, round_number, part) for part in parts]
        with self._store.answers(), self._client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.hgetall(key)
            # So that the error of one key can be named with it.
            answers = pipe.execute(raise_on_error=False)
        found = {}
        for part, key, answer in zip(parts, keys, answers, strict=True):
            if isinstance(answer, RedisError):
                raise self._store.translated(answer, key)
            found[part] = _parsed(PartInfo, key, answer) if answer else None
        return found

    def there(self, record: PartitionsRecord, round_numbers: Iterable[int], part: str) -> list[int]:
        """The rounds, in the given order, that have this part. One round trip."""
        numbers = list(round_numbers)
        with self._store.answers(), self._client.pipeline(transaction=False) as pipe:
            for each in numbers:
                pipe.exists(self._keys.round_part(record.start, each, part))
            return [each for each, found in zip(numbers, pipe.execute(), strict=True) if found]

    def get(self, record: PartitionsRecord, round_number: int, part: str) -> bytes:
        """The bytes of a part, verified. Raises UnreadableValue naming the key of one that is missing or damaged."""
        key = self._keys.round_part(record.start, round_number, part)
        info = self.infos(record, round_number, [part])[part]
        if info is None:
            raise unreadable(key, "got nothing, expected a part of a round")
        return self._bytes(key, info)

    def damage(self, key: str) -> str | None:
        """Why the part with this key cannot be read; None if it can, or is not there."""
        try:
            with self._store.answers(key):
                found = self._client.hgetall(key)
            if found:
                self._bytes(key, _parsed(PartInfo, key, found))
        except UnreadableValue as error:
            with self._store.answers(key):
                return (
                    str(error).removeprefix(f"{key}: ").partition(";")[0]
                    # It may have been deleted while its chunks were read, which is no damage.
                    if self._client.exists(key)
                    else None
                )
        return None

    def _bytes(self, key: str, info: PartInfo) -> bytes:
        data = b"".join(read_chunks(self._store, _chunks(key, info)))
        if len(data) != info.size or hashlib.sha256(data).hexdigest() != info.sha256:
            raise UnreadableValue(
                f"{key} is damaged: got {len(data):,} bytes with another SHA-256 than expected of {info.size:,} bytes; "
                "`ftrie store check --repair` removes it, and the trainer of its partition writes it again"
            )
        return data

    def delete(self, record: PartitionsRecord, round_number: int, parts: Sequence[str]) -> None:
        """Delete parts of a round, and their chunks."""
        for part, info in self.infos(record, round_number, parts).items():
            if info is not None:
                key = self._keys.round_part(record.start, round_number, part)
                with self._store.answers(key):
                    # In one command, so that nobody sees the part without its chunks.
                    self._client.unlink(*_chunks(key, info), key)


def _chunks(key: str, info: PartInfo) -> list[str]:
    """The keys of a part's chunks; the writer's epoch in them keeps two writers apart."""
    count = -(-info.size // info.chunk_bytes)
    return [f"{key}:chunk:{info.epoch}:{index}" for index in range(count)]


_EXPECTED = {
    PartitionsRecord: "the members that docs/redis_keys.md lists",
    PartInfo: "the description of a part of a round",
}


def _parsed(kind: type[Parsed], key: str, found: Mapping[bytes, bytes]) -> Parsed:
    """A HASH of numbers and texts, all of the dataclass's fields. Raises UnreadableValue."""
    try:
        values: dict[str, Any] = {}
        for each in fields(kind):
            raw = found[each.name.encode()]
            # With postponed annotations, the type of a field is its text.
            values[each.name] = number(raw) if each.type == "int" else raw.decode()
        return kind(**values)
    except (KeyError, ValueError) as error:
        raise unreadable(key, f"got {shown(repr(found))}, expected {_EXPECTED[kind]} ({error!r})") from None
