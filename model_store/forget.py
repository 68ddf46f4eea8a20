"""Forgetting a person: everything that the store holds of a cookie, for `ftrie store forget`.

In this order, so that nothing that is removed comes back: the impressions, which name the cookie's requests; an entry
that has the trainers forget both; once these have said so, the feedback of the requests, dead letters, and the
histories, which the trainers wrote; last the lines of files that are named. It may be repeated, also after a failure
at any moment: an impression goes together with an entry that has its request, by which its feedback is found then.
docs/decide.md says what is kept, and what the store cannot reach.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from model_store.bounded import json_object
from model_store.errors import InputError, OutputError, StoreError, UnreadableValue, UsageError
from model_store.files import whole_file
from model_store.hash_kernels import digest_columns
from model_store.keys import (
    MAX_ID_BYTES,
    USER,
    ModelKeys,
    Report,
    forget_entry,
    history_key,
    is_id,
    number,
    record_key,
)
from model_store.redis.connection import StoreConnection
from model_store.streams.event_streams import entry_id, payload_of
from model_store.versions.audit import PYTHON, By
from model_store.versions.model_versions import ModelVersions

BATCH = 1_000
KEPT = 10_000
"""Approximate length of the stream of those to forget."""
REQUESTS_AN_ENTRY = 10_000
POLL_S = 0.1
WAIT_S = 10.0
"""How long running trainers are waited for."""
_PACKED = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"  # gzip, zstd

_OF_MODEL = re.compile(rb"ftrie:\{([A-Za-z0-9._-]{1,128})\}:(trainer(?::(\d+))?$)?")

ELSEWHERE = {
    "files not named with --file, and on other hosts": "run the command there, with --file for impressions, recorded "
    "requests and shadow logs; files that a trainer follows, logs of training, Kafka: as you keep them",
    "what servers have not yet sent": "it comes within a minute or so: run the command again then",
    "servers that run": "a user's record stays in memory, unused, until others take its place: restart them",
    "trainers that do not run": "they forget when they start again; else delete their --checkpoint",
    "trainers with --no-publish": "they forget if they learn with this --store, but cannot say so",
    "rounds of partitions": "states in the store hold waiting rows until the next ones are written",
    "backups, replicas, persistence files of the store": "as your store keeps them",
}
"""What is not reached, and what to do."""
KEEPS = (
    "the model keeps weights of hashed keys, which are sums over many people and cannot be read back; only if the "
    "cookie is itself a field's value, its key has a weight of its own until it is evicted (learner.ttl), or the model "
    "is trained again without it"
)


class ToForget(NamedTuple):
    """An entry of the stream: its id, and the 64-bit hashes of the cookie and of its requests."""

    id: str
    cookie: int
    requests: Sequence[int]


@dataclass(frozen=True)
class ModelFound:
    """What a model had of a person. clicks: and conversions, of the requests of the impressions."""

    model: str
    pins: int
    impressions: int
    clicks: int
    dead_letters: int
    histories: int


@dataclass(frozen=True)
class RunningTrainer:
    """A trainer that holds the model's lease. forgot: whether it has said that it has, in its checkpoint too."""

    model: str
    partition: int
    process: str
    forgot: bool


@dataclass(frozen=True)
class Forgotten:
    """What was found, and removed unless it was a dry run. record: whether there was one; files: lines of each."""

    record: bool
    models: Sequence[ModelFound]
    files: Mapping[str, int]
    trainers: Sequence[RunningTrainer]
    dry_run: bool
    elsewhere: Mapping[str, str] = field(default_factory=lambda: ELSEWHERE)
    model_keeps: str = KEEPS


class ForgetStream:
    """Those whom a model's trainers are to forget. Every method raises StoreUnavailable, or UnreadableValue."""

    def __init__(self, connection: StoreConnection, model: str) -> None:
        self._store, self.key = connection, ModelKeys(model).forget
        self._client = connection.at(self.key)

    def add(self, cookie: int, requests: Sequence[int]) -> str:
        """Add a cookie and its requests; returns the id of the last entry."""
        for start in range(0, max(1, len(requests)), REQUESTS_AN_ENTRY):
            some = " ".join(f"{each:016x}" for each in requests[start : start + REQUESTS_AN_ENTRY])
            with self._store.answers(self.key):
                last: bytes = self._client.xadd(
                    self.key, {"cookie": f"{cookie:016x}", "requests": some}, maxlen=KEPT
                )
        return last.decode()

    def removing(self, cookie: int, requests: Sequence[int], key: str, entries: Sequence[bytes]) -> None:
        """Add a cookie and its requests, and remove these entries of another stream of the model, both or neither."""
        written = {"cookie": f"{cookie:016x}", "requests": " ".join(f"{each:016x}" for each in requests)}
        with self._store.answers(self.key), self._client.pipeline(transaction=True) as pipe:
            pipe.xadd(self.key, written, maxlen=KEPT).xdel(key, *entries).execute()

    def after(self, entry: str, on_junk: Report) -> list[ToForget]:
        """The entries after one, all if it is empty; an invalid one is skipped and reported."""
        with self._store.answers(self.key):
            entries = self._client.xrange(self.key, f"({entry}" if entry else "-")
        found = []
        for each, fields in entries:
            try:
                found.append(ToForget(each.decode(), *forget_entry(self.key, each, fields)))
            except UnreadableValue as error:
                on_junk(f"{error}; it is skipped")
        return found


def forget(
    connection: StoreConnection,
    cookie: str,
    model: str | None = None,
    *,
    files: Sequence[Path] = (),
    dry_run: bool = False,
    wait_s: float = WAIT_S,
    by: By = PYTHON,
    on_junk: Report = lambda text: None,
) -> Forgotten:
    """Remove what the store has of a cookie, and have the trainers forget it; of one model, or all and the record.

    files: of JSON lines, from which the person's are removed; wait_s: how long trainers that run are waited for. Raises
    UsageError, InputError, OutputError, StoreUnavailable, and UnreadableValue naming a key of another type.
    O(keys of the store + bytes of the streams).
    """
    if not is_id(cookie):
        raise UsageError(f"got the cookie {cookie[:60]!r}; expected 1 to {MAX_ID_BYTES} bytes")
    leases = _leases_of(connection)
    if model is not None and model not in leases:
        there = ", ".join(sorted(leases)) or "none"
        raise StoreError(f"the store has nothing of a model {ModelKeys(model).model}; it has: {there}")
    names = [model] if model is not None else sorted(leases)
    person = _Person(cookie, dry_run)
    for name in names:
        before = ForgetStream(connection, name).after("", on_junk)
        person.hashes.update(*(each.requests for each in before if each.cookie == person.hash))
    for path in files:
        for line in _lines(path):
            person.is_impression(line)
    parts = [_OfModel(connection, each, person, on_junk) for each in names]
    entries = {each: part.begin(by) for each, part in zip(names, parts, strict=True)}
    until, pause = connection.clock.monotonic() + wait_s, threading.Event()
    while True:
        trainers = [
            each for name in names for each in _trainers(connection, name, leases[name], entries[name])
        ]
        if dry_run or all(each.forgot for each in trainers) or connection.clock.monotonic() >= until:
            break
        connection.clock.wait(pause, POLL_S)
    found = [part.end(by) for part in parts]
    record = model is None and _remove(connection, record_key(USER, cookie), dry_run)
    lines = {str(path): _remove_lines(path, person) for path in files}
    return Forgotten(record, found, lines, trainers, dry_run)


class _Person:
    """A cookie, the requests that are known of it, and what tells their events.

    hashes: of the requests that an earlier try has found, and whose impressions are gone.
    """

    def __init__(self, cookie: str, dry_run: bool) -> None:
        self.cookie, self.dry_run = cookie, dry_run
        self.requests: set[str] = set()
        self.hashes: set[int] = set()
        self.raw = cookie.encode("utf-8", "surrogateescape")
        self.hash = _hashes([self.raw])[0]
        # Either may be in an event: writers escape what is not ASCII, or do not.
        texts = (json.dumps(cookie, ensure_ascii=is_ascii)[1:-1] for is_ascii in (False, True))
        self._written = [text.encode("utf-8", "surrogateescape") for text in texts]

    def is_impression(self, event: bytes) -> bool:
        """Whether an event is of the cookie; its request is remembered."""
        # Most are others', and need not be parsed. An escape may stand for any character.
        if b"\\" not in event and self._written[0] not in event:
            return False
        members = _members(event)
        if _text(members.get("cookie")) != self.cookie:
            return False
        self.requests |= {_text(members.get("request_id"))} - {""}
        return True

    def is_feedback(self, event: bytes) -> bool:
        """Whether an event is of one of the requests, or a view of the cookie."""
        return self._is_request(_text(_members(event).get("request_id"))) or self.is_impression(event)

    def is_letter(self, event: bytes) -> bool:
        """Whether a dead letter is theirs: its event, or its row, whose columns have any names."""
        if values := {_text(value) for value in _members(event).values()} - {""}:
            return self.cookie in values or any(map(self._is_request, values))
        return any(b'"%b"' % written in event for written in self._written)

    def _is_request(self, text: str) -> bool:
        return text in self.requests or bool(self.hashes and _hashes_of([text])[0] in self.hashes)


class _OfModel:
    """A person in the keys of one model."""

    def __init__(self, connection: StoreConnection, model: str, person: _Person, on_junk: Report) -> None:
        self._store, self._person = connection, person
        self._versions = ModelVersions(connection, model, on_junk)
        self._keys = self._versions.keys
        self._pins = self._impressions = 0

    def begin(self, by: By) -> str:
        """Remove pins and impressions, and ask the trainers to forget; returns the id of what asks them."""
        person, experiments = self._person, self._versions.experiments
        there = experiments.read()
        self._pins = int(there is not None and person.cookie in there.pins)
        if self._pins and not person.dry_run:
            experiments.change(lambda before: before.unpinned([person.cookie]), by=by)
        asking, known = ForgetStream(self._store, self._versions.model), set(person.requests)
        for found in self._found(self._keys.impressions, person.is_impression):
            self._impressions += len(found)
            if not person.dry_run:
                # Those of the batch; the entry below has all, and comes after the last impression.
                new, known = sorted(person.requests - known), set(person.requests)
                asking.removing(person.hash, _hashes_of(new), self._keys.impressions, found)
        if person.dry_run:
            return ""
        return asking.add(person.hash, _hashes_of(sorted(person.requests)))

    def end(self, by: By) -> ModelFound:
        """Remove the rest, and write the audit."""
        person, model = self._person, self._versions.model
        clicks = self._remove_from(self._keys.clicks, person.is_feedback)
        letters = self._remove_from(self._keys.dead, person.is_letter)
        history = _remove(self._store, history_key(model, person.raw), person.dry_run)
        found = ModelFound(model, self._pins, self._impressions, clicks, letters, int(history))
        if not person.dry_run:
            # Only counts: cookies are personal data.
            counts = {name: count for name, count in asdict(found).items() if name != "model"}
            self._versions.audit.write(by, "forget", json.dumps(counts), "")
        return found

    def _remove_from(self, key: str, is_theirs: Callable[[bytes], bool]) -> int:
        """Remove the entries that are theirs from a stream; returns how many there are."""
        count = 0
        for found in self._found(key, is_theirs):
            count += len(found)
            if not self._person.dry_run:
                with self._store.answers(key):
                    self._store.at(key).xdel(key, *found)
        return count

    def _found(self, key: str, is_theirs: Callable[[bytes], bool]) -> Iterator[list[bytes]]:
        """The entries of a stream that are theirs, of one batch after the other."""
        client, after = self._store.at(key), "-"
        while True:
            with self._store.answers(key):
                entries = client.xrange(key, after, "+", count=BATCH)
            if theirs := [entry for entry, fields in entries if is_theirs(payload_of(entry, fields))]:
                yield theirs
            if len(entries) < BATCH:
                return
            after = f"({entries[-1][0].decode()}"


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            if file.peek(4).startswith(_PACKED):
                raise InputError(f"{path} is compressed; expected JSON lines: unpack it first")
            yield from file
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def _remove_lines(path: Path, person: _Person) -> int:
    """Remove the lines that are theirs; returns how many there are. Servers may append to the file meanwhile."""
    try:
        with path.open("rb") as there:
            # Writers append under this lock, and open the file again where it was replaced (`RotatingFile`).
            fcntl.flock(there, fcntl.LOCK_EX)
            theirs = [person.is_impression(line) or person.is_feedback(line) for line in _lines(path)]
            if any(theirs) and not person.dry_run:
                before = os.fstat(there.fileno())
                with whole_file(path) as out:
                    os.fchmod(out.fileno(), before.st_mode)
                    out.writelines(line for line, is_gone in zip_longest(there, theirs) if not is_gone)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}; its lines are as they were") from error
    return sum(theirs)


def _members(event: bytes) -> dict[str, Any]:
    """The members of an event, of a recorded request those of the request; none of what cannot be read."""
    try:
        members = json_object(event)
    except ValueError:
        return {}
    request = members.get("request")
    return {**request, **members} if isinstance(request, dict) else members


def _text(value: Any) -> str:
    """An id as the trainer reads it: text, or a whole number; else empty."""
    return value if isinstance(value, str) else str(value) if type(value) is int else ""


def _hashes_of(requests: Sequence[str]) -> list[int]:
    return _hashes([each.encode("utf-8", "surrogateescape") for each in requests]) if requests else []


def _hashes(texts: Sequence[bytes]) -> list[int]:
    """The hashes by which trainers know cookies and requests."""
    data = np.frombuffer(b"".join(texts) + b"\0", np.uint8)
    offsets = np.array([0, *accumulate(map(len, texts))], np.int32)
    out = np.zeros((1, len(texts)), np.uint64)
    addresses = (np.array([each.ctypes.data], np.int64) for each in (data, offsets))
    digest_columns(*addresses, len(texts), np.zeros(1, np.uint8), out)
    return [int(each) for each in out[0]]


def _remove(store: StoreConnection, key: bytes, dry_run: bool) -> bool:
    with store.answers():
        return bool(store.at(key).exists(key) if dry_run else store.at(key).unlink(key))


def _leases_of(store: StoreConnection) -> dict[str, dict[int, str]]:
    """The models of the store, and by partition the keys of the leases that their trainers have, or had."""
    found: dict[str, dict[int, str]] = {}
    for batch in store.scan(b"ftrie:{*", BATCH):
        for key in batch:
            if of_model := _OF_MODEL.match(key):
                leases = found.setdefault(of_model[1].decode(), {})
                if of_model[2]:
                    leases[int(of_model[3] or 1)] = key.decode()
    return found


def _trainers(
    store: StoreConnection, model: str, leases: Mapping[int, str], entry: str
) -> Iterator[RunningTrainer]:
    for partition, key in sorted(leases.items()):
        with store.answers(key):
            *words, until, forgot = store.at(key).hmget(key, "process", "host", "until_ms", "forgot")
        is_running = has_forgotten = False
        with suppress(ValueError):  # `ftrie store check` names what is invalid
            is_running = number(until or b"0") > store.now_us(key) // 1000
            has_forgotten = bool(entry and forgot) and entry_id(forgot) >= entry_id(entry.encode())
        if is_running:
            process = " on ".join((word or b"").decode("utf-8", "replace") for word in words)
            yield RunningTrainer(model, partition, process, has_forgotten)
