"""Finds invalid values in the store's keys and repairs them, for `ftrie store check`: a walk over the table of keys.

Of every key the type and the ids are checked as `model_store.keys` says; of a collection each part, as PARTS says.
What depends on several keys follows: a manifest is rebuilt from the version's bytes, the list of versions from the
manifests, the active pointer from the events. What cannot be restored is removed, or marked as refused so that no
rollback chooses it. docs/operating.md describes its use.

Versions come and go while a check reads them. So an invalid value is judged again before it is reported: a version
that has been collected is skipped, and one published meanwhile is examined before the active pointer is judged.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import WatchError

from model_store.errors import ArtefactError, ExperimentError, NewerFormat, StoreError, UnreadableValue
from model_store.features.history import check_record
from model_store.keys import (
    EPOCH_STEP,
    MOST,
    MOST_COUNTED,
    REMOVED,
    TABLE,
    AnyKey,
    Key,
    ModelKeys,
    RecordKeys,
    audit_entry,
    counter,
    forget_entry,
    number,
    online_cell,
    record,
    shown,
    time_of,
    version_number,
)
from model_store.ratios import BUCKETS
from model_store.redis.connection import StoreConnection
from model_store.versions.audit import By
from model_store.versions.experiments import EXTRAS, FORMAT, PIN, Experiment
from model_store.versions.guard_record import GuardRecord
from model_store.versions.manifest import (
    MOST_CHUNK_BYTES,
    Manifest,
    RecentFigures,
    chain_of,
    chunks_there,
    now,
    parents_of,
)
from model_store.versions.model_versions import ModelVersions, manifest_of
from model_store.versions.online_metrics import SUMS
from model_store.versions.rounds import Rounds

BATCH = 1_000
DAMAGED = "damaged: "
"""Prefix of the refusal reason of a version whose bytes cannot be restored."""
_AHEAD = 1_000_000
"""A counter further ahead of its versions, or this many times EPOCH_STEP ahead of its epochs, was set manually."""
_EPOCHS_AHEAD = 1_000 * EPOCH_STEP
_MOST_AHEAD_MS = 60_000
"""How far the last id of a stream may be ahead of the store's clock, which may have been set back by a little."""
_AHEAD_MS = 3_600_000
"""How far a lease's times may be ahead of the store's clock."""
_ANY = re.compile("|".join(f"({key.expression})" for key in TABLE).encode(), re.DOTALL)
_MODEL = re.compile(rb"ftrie:\{([^:]+)\}:")
_VERSION = re.compile(rb"[1-9]\d{0,11}")

T = TypeVar("T")
Judge = Callable[[], str | None]
"""Returns the invalid value at a key, None if it is valid."""
Change = Callable[[Any], object]
"""A repair: adds commands to a transaction."""


@dataclass(frozen=True)
class Finding:
    """A key with an invalid value: the value, what is expected, the repair, and whether it was done."""

    key: str
    found: str
    expected: str
    repair: str
    repaired: bool


def check(connection: StoreConnection, models: Sequence[str], *, repair: bool) -> list[Finding]:
    """Check all keys of these models; without names, of all models and the records. With `repair`, repair them.

    Raises StoreUnavailable, StoreError, and UsageError for an invalid name. O(keys of the store + bytes of the models).
    """
    findings = _Findings(connection, repair)
    found: dict[str, dict[AnyKey, list[bytes]]] = {ModelKeys(name).model: {} for name in models}
    for batch in connection.scan(b"ftrie:*", BATCH):
        # Records are checked batch by batch, so that millions of users need no memory. The keys of a model depend on
        # each other: their names are kept, and checked once all are known.
        records: dict[AnyKey, list[bytes]] = {}
        for key in batch:
            known = _ANY.fullmatch(key)
            if known is None:
                continue
            # One group for each key of TABLE: the group that matched says which it is.
            kind = TABLE[(known.lastindex or 1) - 1]
            if (named := _MODEL.match(key)) is None:
                records.setdefault(kind, []).append(key)
            elif not models or named[1].decode() in found:
                found.setdefault(named[1].decode(), {}).setdefault(kind, []).append(key)
        if not models:
            for kind, keys in records.items():
                findings.kind(kind, keys, _Limits())
    for name, of_model in sorted(found.items()):
        _ModelCheck(findings, name, of_model).run()
    return findings.found


# -- the parts of a value, each by itself


class _Limits(NamedTuple):
    """What numbers of a model may be at most: epochs, and times in ms."""

    epoch: int = MOST_COUNTED
    ms: int = MOST


class _Part(NamedTuple):
    """How the parts of a value are checked: members, fields or entries, or a whole string, whose name is empty.

    wrong: what is invalid of a part, given the key, the part's name, its value, and the limits. A wrong part is
    removed.
    """

    wrong: Callable[[str, bytes, Any, _Limits], str | None]
    expected: str
    repair: str


def _member(key: str, name: bytes, value: Any, limits: _Limits) -> str | None:
    return _unreadable(lambda: version_number(key, name)) and f"the member {shown(name)}"


def _guard_field(key: str, name: bytes, value: bytes, limits: _Limits) -> str | None:
    reports: list[str] = []
    record(key, {name: value}, GuardRecord(), reports.append)
    is_ahead = name == b"when_us" and (_number_of(value) or 0) > 1000 * limits.ms
    return f"{name.decode()} {shown(value)}" if reports or is_ahead else None


def _lease_time(key: str, name: bytes, value: bytes, limits: _Limits) -> str | None:
    """A lease whose end is far ahead of the clock would never expire."""
    return _beyond(name, value, limits.ms) if name in (b"until_ms", b"seen_ms", b"spec_ms") else None


def _lease_number(key: str, name: bytes, value: bytes, limits: _Limits) -> str | None:
    most = {b"epoch": limits.epoch, b"resumed": limits.epoch, b"rows": MOST}
    return _beyond(name, value, most[name]) if name in most else None


def _cell(key: str, name: bytes, value: bytes, limits: _Limits) -> str | None:
    found = f"{shown(name)}: {shown(value)}"
    return _unreadable(lambda: online_cell(key, name, value, SUMS, BUCKETS)) and found


def _entry(key: str, name: bytes, value: Mapping[bytes, bytes], limits: _Limits) -> str | None:
    return _unreadable(lambda: audit_entry(key, name, value), key)


def _forget(key: str, name: bytes, value: Mapping[bytes, bytes], limits: _Limits) -> str | None:
    return _unreadable(lambda: forget_entry(key, name, value), key)


def _history(key: str, name: bytes, value: bytes, limits: _Limits) -> str | None:
    found = _unreadable(lambda: check_record(value))
    return found and found.removeprefix("got ")


_VERSIONS = _Part(_member, "numbers of versions", "the member is removed")
_AGAIN = "the field is removed; the trainer writes it again"
_LEASE = (
    _Part(_lease_time, "a time near the present", _AGAIN),
    _Part(_lease_number, "a whole number", _AGAIN),
)
_CELLS = _Part(_cell, "versions and sums", "the field is removed")
PARTS: Mapping[AnyKey, Sequence[_Part]] = {
    ModelKeys.versions: [_VERSIONS],
    ModelKeys.history: [_VERSIONS],
    ModelKeys.guard: [_Part(_guard_field, "what docs/redis_keys.md has", "the field is removed")],
    ModelKeys.trainer: _LEASE,
    ModelKeys.partition_lease: _LEASE,
    ModelKeys.outcomes: [_CELLS],
    ModelKeys.outcomes_of_hour: [_CELLS],
    ModelKeys.audit: [_Part(_entry, "who changed what", "the entry is removed")],
    ModelKeys.forget: [_Part(_forget, "hashes of a cookie and of requests", "the entry is removed")],
    RecordKeys.history: [
        _Part(_history, "a user's history", "removed; the trainer writes it again with the user's next event")
    ],
}
"""The kinds of keys whose parts are checked one by one."""
_READ: Mapping[str, tuple[Any, ...]] = {
    "string": ("GET",),
    "hash": ("HGETALL",),
    "list": ("LRANGE", 0, -1),
    "zset": ("ZRANGE", 0, -1),
    "stream": ("XRANGE", "-", "+"),
}
_REMOVE: Mapping[str, Callable[[Any, bytes, bytes], object]] = {
    "string": lambda pipe, key, name: pipe.unlink(key),
    "hash": lambda pipe, key, name: pipe.hdel(key, name),
    "list": lambda pipe, key, name: pipe.lrem(key, 0, name),
    "zset": lambda pipe, key, name: pipe.zrem(key, name),
    "stream": lambda pipe, key, name: pipe.xdel(key, name),
}


def _parts(answer: Any) -> dict[bytes, Any]:
    """The parts of a value by their names, of an answer to one of _READ."""
    if isinstance(answer, list):
        return dict(each if isinstance(each, tuple) else (each, each) for each in answer)
    return answer if isinstance(answer, dict) else {} if answer is None else {b"": answer}


class _Findings:
    """Collects findings, and repairs each at once unless the key has changed meanwhile."""

    def __init__(self, connection: StoreConnection, repair: bool) -> None:
        self.found: list[Finding] = []
        self.repair = repair
        self.store = connection

    def add(self, key: str | bytes, judge: Judge, expected: str, repair: str, change: Change | None) -> bool:
        """Judge a key; if invalid, record a finding and repair it by `change` in one transaction. True if invalid.

        change: None if there is no repair.
        """
        name = _text(key)
        lost = None  # what was repaired by a transaction whose answer was lost
        while (found := judge()) is not None:
            repaired = self.repair and change is not None
            if repaired and change is not None:
                with self.store.answers(name), self.store.at(key).pipeline(transaction=True) as pipe:
                    # Watched before it is judged again: what is changed is what was judged, or nothing is.
                    pipe.watch(key)
                    if judge() != found:
                        continue
                    pipe.multi()
                    change(pipe)
                    try:
                        pipe.execute()
                    except WatchError as error:
                        # redis-py raises WatchError also where the connection was lost during EXEC: the repair may be
                        # done, which only the next judgement shows.
                        lost = found if isinstance(error.__context__, RedisConnectionError) else None
                        continue
            self.found.append(Finding(name, found, expected, repair, repaired))
            return True
        if lost is not None:
            self.found.append(Finding(name, lost, expected, repair, True))
        return lost is not None

    def kind(self, kind: AnyKey, keys: Sequence[bytes], limits: _Limits) -> None:
        """Check keys of one kind as the table says: their types, their ids, and their parts."""
        # A check of the contents finds a wrong type, or nothing reads such a key (`AnyKey`).
        if not kind.repair:
            return
        for begin in range(0, len(keys), BATCH):
            some = keys[begin : begin + BATCH]
            there = [answer.decode() for answer in self._each(some, ("TYPE",))]
            for key, type_ in zip(some, there, strict=True):
                if type_ not in ("none", *kind.types):
                    expected = f"a {' or '.join(kind.types)}"
                    self.add(key, self.type_judge(key, kind.types), expected, kind.repair, _unlink(key))
                if kind.ids:
                    self._ids(kind, key)
            if kind in PARTS:
                sound = [key for key, type_ in zip(some, there, strict=True) if type_ in kind.types]
                for key, answer in self._read(sound, _READ[kind.types[0]]):
                    self._parts(kind, key, _parts(answer), limits)

    def _parts(self, kind: AnyKey, key: bytes, parts: Mapping[bytes, Any], limits: _Limits) -> None:
        type_, named = kind.types[0], _text(key)
        for name, value in parts.items():
            for wrong, expected, repair in PARTS[kind]:
                if wrong(named, name, value, limits) is None:
                    continue

                def judge(name: bytes = name, wrong: Any = wrong) -> str | None:
                    # Of a stream only the one entry; other values have to be read whole.
                    words = ("XRANGE", name, name) if type_ == "stream" else _READ[type_]
                    try:
                        [answer] = self._each([key], words)
                    except UnreadableValue:
                        return None  # of another type, which is a finding of its own
                    there = _parts(answer)
                    found: str | None = wrong(named, name, there[name], limits) if name in there else None
                    return found

                def remove(pipe: Any, name: bytes = name) -> None:
                    _REMOVE[type_](pipe, key, name)

                self.add(key, judge, expected, repair, remove)

    def _read(self, keys: Sequence[bytes], words: Sequence[Any]) -> list[tuple[bytes, Any]]:
        """The keys with their answers; one whose type has changed meanwhile is a finding of the next check."""
        try:
            return list(zip(keys, self._each(keys, words), strict=True))
        except UnreadableValue:
            # The answer names no key: each is asked by itself, to lose only the one whose type has changed.
            if len(keys) == 1:
                return []
            return [found for key in keys for found in self._read([key], words)]

    def _each(self, keys: Sequence[bytes], words: Sequence[Any]) -> list[Any]:
        """The answers to one command for each key. Raises UnreadableValue if the type of one is not the command's."""
        with self.store.answers():
            return [
                answer
                for (answer,) in self.store.each([(key, [(words[0], key, *words[1:])]) for key in keys])
            ]

    def _ids(self, kind: AnyKey, key: bytes) -> None:
        """Check a stream's last id: if it is ahead of the clock, all later entries get such an id."""
        store, removed = self.store, kind.ids == REMOVED
        most_ms = 24 * _AHEAD_MS if removed else _MOST_AHEAD_MS

        def judge() -> str | None:
            try:
                with store.answers():
                    if not store.at(key).exists(key):
                        return None
                    last = store.at(key).xinfo_stream(key)["last-generated-id"]
            except UnreadableValue:
                return None
            # Redis gives no id below the last one: a clock that was ahead once stays in all ids until it is passed.
            ahead_ms = int(last.partition(b"-")[0]) - _now_ms(store, key)
            return f"the last id {last.decode()}, ahead of the store's clock" if ahead_ms > most_ms else None

        def renumber(pipe: Any) -> None:
            store.script("renumber").queue(pipe, [_text(key), f"{_text(key)}:renumbered"], [_MOST_AHEAD_MS])

        again = "entries that are ahead get ids of the present, in their order; none is lost"
        expected = "an id of the present"
        self.add(key, judge, expected, REMOVED if removed else again, _unlink(key) if removed else renumber)

    def type_judge(self, key: str | bytes, types: Sequence[str]) -> Judge:
        """A judge that accepts a missing key or one of these types."""

        def judge() -> str | None:
            with self.store.answers():
                there = self.store.at(key).type(key).decode()
            return None if there in ("none", *types) else f"a {there}"

        return judge


# -- what several keys decide


class _ModelCheck:
    """The check of one model. `run` checks first what later checks rely on."""

    def __init__(self, findings: _Findings, model: str, found: Mapping[AnyKey, Sequence[bytes]]) -> None:
        """found: the model's keys that a scan has found."""
        self._findings = findings
        self._store = findings.store
        self._client = self._store.at(ModelKeys(model).versions)
        self._versions = ModelVersions(self._store, model)
        self._keys, self._model, self._found = ModelKeys(model), model, found
        self._sound: dict[int, Manifest] = {}
        """The versions that can be served, with their manifests as repaired."""
        self._examined: set[int] = set()
        self._epochs = [0]
        last = [self._counter(key) or 0 for key in (self._keys.epoch, self._keys.active_epoch)]
        # Without a readable counter there is nothing to judge epochs by.
        self._highest_epoch = min(MOST_COUNTED, max(last) + _EPOCHS_AHEAD) if any(last) else MOST_COUNTED

    def run(self) -> None:
        self._each_kind()
        self._times()
        self._examine()
        self._pinned()
        self._rounds()
        self._active()
        self._counters()
        self._experiment()

    def _each_kind(self) -> None:
        """Check what the table says of each key. A single key may have been written since the scan."""
        limits = _Limits(self._highest_epoch, _now_ms(self._store, self._keys.versions) + _AHEAD_MS)
        for kind in TABLE:
            if kind.pattern.startswith("ftrie:{model}:"):
                single = [kind.named(self._model).encode()] if isinstance(kind, Key) else []
                self._findings.kind(kind, single or sorted(self._found.get(kind, [])), limits)

    def _read(self, default: T, *words: Any) -> T:
        """The answer to a command; the default if its key, the first argument, has another type."""
        try:
            with self._store.answers(words[1]):
                answer: T = self._client.execute_command(*words)
        except UnreadableValue:
            return default
        return answer

    # -- versions

    def _times(self) -> None:
        """Check the times of the versions in `versions`."""
        key = self._keys.versions
        for member, seconds in self._scored():
            if time_of(seconds) is not None or not _VERSION.fullmatch(member):
                continue
            version = int(member)

            try:
                when = self._versions.manifest(version).created.timestamp()
            except (ArtefactError, StoreError):
                when = now().timestamp()
            judge = self._score_judge(
                member, lambda score: f"the time {score} of a version" if time_of(score) is None else None
            )
            repair = f"version {version} gets the time of its manifest"
            self._findings.add(key, judge, "seconds since 1970", repair, _zadd(key, version, when))

    def _score_judge(self, member: bytes, judge: Callable[[float], str | None]) -> Judge:
        def now_there() -> str | None:
            with self._store.answers():
                score = self._client.zscore(self._keys.versions, member)
            return None if score is None else judge(score)

        return now_there

    def _scored(self) -> list[tuple[bytes, float]]:
        try:
            with self._store.answers(self._keys.versions):
                found: list[tuple[bytes, float]] = self._client.zrange(
                    self._keys.versions, 0, -1, withscores=True
                )
        except UnreadableValue:  # of another type, without repair
            return []
        return found

    def _numbers(self) -> set[int]:
        """The versions that are listed or have a manifest."""
        listed = {int(member) for member, _ in self._scored() if _VERSION.fullmatch(member)}
        return listed | {int(key.rpartition(b":")[2]) for key in self._found.get(ModelKeys.manifest, [])}

    def _examine(self) -> None:
        """Check the versions that there are now and were not checked before."""
        # Until none is new: versions are published while others are examined, which takes their whole bytes.
        while new := self._numbers() - self._examined:
            self._examined |= new
            for version in sorted(new):
                self._version(version)
        self._chains()

    def _is_there(self, version: int) -> bool:
        return bool(self._fields(version)) or chunks_there(self._store, self._keys, version) > 0

    def _version(self, version: int) -> None:
        """Check that a version's manifest matches its bytes, and that it is listed."""
        key, listing = self._keys.manifest(version), self._keys.versions
        fields = self._fields(version)
        if not fields and not chunks_there(self._store, self._keys, version):
            judge = self._score_judge(b"%d" % version, lambda score: f"version {version}, which has no data")
            self._findings.add(listing, judge, "existing versions", "it is removed", _zrem(listing, version))
            return
        right, damage = self._right_manifest(version, fields)
        if right is None:
            self._beyond_repair(version, fields, damage)
            return
        made: list[Manifest] = [right]

        def wrong() -> str | None:
            if self._wrong(version, made[-1]) is None or not self._is_there(version):
                return None
            again, _ = self._right_manifest(version, self._fields(version))  # a guard may have refused it
            if again is not None:
                # Judged again at the repair: `wrong` and `rebuild` share the latest one.
                made.append(again)
            found = self._wrong(version, made[-1])
            return found if self._is_there(version) else None

        rebuild: Change = lambda pipe: _replace(pipe, key, made[-1].to_hash())  # noqa: E731
        self._findings.add(key, wrong, "what the bytes say", "rebuilt from them", rebuild)
        right = made[-1]
        self._epochs.append(right.epoch)
        if not right.refused.startswith(DAMAGED):
            self._sound[version] = right

        def not_listed() -> str | None:
            with self._store.answers():
                if not self._client.exists(key) or self._client.type(listing) not in (b"zset", b"none"):
                    return None
                return None if self._client.zscore(listing, version) is not None else f"no version {version}"

        published = right.created.timestamp()
        self._findings.add(
            listing, not_listed, f"version {version}", "it is listed", _zadd(listing, version, published)
        )

    def _fields(self, version: int) -> dict[bytes, bytes]:
        """The manifest's HASH; a key of another type gives one empty field."""
        return self._read({b"": b""}, "HGETALL", self._keys.manifest(version))

    def _right_manifest(self, version: int, fields: dict[bytes, bytes]) -> tuple[Manifest | None, str]:
        """The manifest rebuilt from the bytes and from fields that bytes cannot provide; or None and why not."""
        from model_store.artefact.artefact import Delta, decode

        try:
            there: Manifest | None = self._versions.read_manifest(version, fields)
        except ArtefactError:
            there = None
        if there is not None and there.refused.startswith(DAMAGED):
            return there, ""  # found by an earlier check
        parts: list[bytes] = []
        try:
            keys = self._keys.chunks(version, chunks_there(self._store, self._keys, version))
            for key in keys:
                with self._store.answers(key):
                    parts.append(self._client.get(key) or b"")
            data = b"".join(parts)
            model = decode(data)
        # Not damaged: this ftrie cannot read it, and must not judge it.
        except NewerFormat as error:
            return there, str(error)
        except (ArtefactError, StoreError) as error:
            return None, str(error)
        parent = model.parent if isinstance(model, Delta) else _number_in(fields, b"parent")
        epoch = _number_in(fields, b"epoch") or 0
        made = manifest_of(model, data, version, parent, epoch if epoch <= self._highest_epoch else 0)
        size = len(parts[0]) if parts else made.chunk_bytes
        # Only the last chunk may be shorter.
        if len(parts) > 1 and any(len(each) != size for each in parts[1:-1]):
            return None, "its chunks are not of one size"
        # A single chunk does not show how large chunks are meant to be: any size that holds it is right.
        chunk_bytes = size if len(parts) > 1 else _number_in(fields, b"chunk_bytes") or 0
        if not len(data) <= chunk_bytes <= MOST_CHUNK_BYTES and len(parts) == 1:
            chunk_bytes = made.chunk_bytes
        # The bytes decode, and are others than were published: which of the two is right cannot be told.
        if there is not None and hashlib.sha256(data).hexdigest() != there.sha256:
            return None, f"its bytes have another SHA-256 than the manifest's {there.sha256[:12]}…"
        listed = None if there else time_of(dict(self._scored()).get(b"%d" % version, 0.0))
        recent = _text_in(fields, b"recent")
        try:
            recent = recent and (recent if RecentFigures.from_json(recent) else "")
        except (ArtefactError, RecursionError):
            recent = ""
        made = replace(
            made,
            chunk_bytes=chunk_bytes,
            chunks=len(parts),
            created=there.created if there else listed.replace(microsecond=0) if listed else made.created,
            through_us=_number_in(fields, b"through_us"),
            refused=_text_in(fields, b"refused"),
            forced=_text_in(fields, b"forced") == "1",
            recent=recent,
        )
        return made, ""

    def _wrong(self, version: int, right: Manifest) -> str | None:
        """The wrong fields of the stored manifest."""
        fields = self._fields(version)
        expected = {name.encode(): value.encode() for name, value in right.to_hash().items()}
        wrong = [
            f"{name.decode()} {shown(fields[name])}" if name in fields else f"no {name.decode()}"
            for name, value in expected.items()
            if fields.get(name) != value
        ]
        return f"a manifest with {', '.join(wrong)}" if wrong else None

    def _beyond_repair(self, version: int, fields: dict[bytes, bytes], damage: str) -> None:
        """Handle a version whose bytes are damaged: remove it, or refuse it if its manifest is readable."""
        key = self._keys.manifest(version)
        try:
            self._versions.read_manifest(version, fields)
        except ArtefactError:
            count = chunks_there(self._store, self._keys, version)
            gone = [key, *self._keys.chunks(version, count)]

            def remove(pipe: Any) -> None:
                pipe.unlink(*gone)
                pipe.zrem(self._keys.versions, version)

            found = "an unreadable manifest of unreadable bytes"
            judge = lambda: found if self._fields(version) == fields else None  # noqa: E731
            self._findings.add(key, judge, "a version", "it is removed", remove)
            return
        reason = f"{DAMAGED}{damage}"

        def damaged() -> str | None:
            fields = self._fields(version)
            if not fields or _text_in(fields, b"refused").startswith(DAMAGED):
                return None
            return (
                damage if self._right_manifest(version, fields)[0] is None and self._fields(version) else None
            )

        repair = "the version is refused, so that no rollback chooses it; publish it again"
        mark = partial(_hset, key=key, field="refused", value=reason)
        self._findings.add(key, damaged, "complete bytes", repair, mark)

    def _chains(self) -> None:
        """Check that everything a delta needs is complete."""
        parents = parents_of(self._sound.values())
        for version in sorted(self._sound):
            try:
                chain_of(version, parents)
            except ArtefactError as error:
                key, reason = self._keys.manifest(version), f"{DAMAGED}{error}"

                def judge(key: str = key, reason: str = reason, found: str = str(error)) -> str | None:
                    with self._store.answers(key):
                        refused = self._client.hget(key, "refused")
                    return (
                        None if refused in (None, reason.encode()) else found
                    )  # None: it has been collected

                repair = "the version is refused, so that no rollback chooses it"
                mark = partial(_hset, key=key, field="refused", value=reason)
                self._findings.add(key, judge, "a delta of complete versions", repair, mark)
                # Versions in ascending order: those that need this one are found next.
                del self._sound[version], parents[version]

    # -- what points at versions

    def _active(self) -> None:
        """Check that the active version exists and is complete."""
        key = self._keys.active

        def judge() -> str | None:
            while True:
                try:
                    version = self._versions.active()
                except UnreadableValue:
                    return self._shown_string(key)
                self._examine()
                if version is None or version in self._sound:
                    return None
                # The pointer may have moved while its version was examined: then the new one is judged.
                with suppress(UnreadableValue):
                    if version == self._versions.active():
                        return f"{version}, which is {'damaged' if self._is_there(version) else 'missing'}"

        self._examine()
        target = self._right_active()

        def change(pipe: Any) -> None:
            if target is None:
                pipe.delete(key)
                return
            pipe.set(key, target)
            # XADD to a key of another type would fail within the transaction, after SET; servers poll as well.
            if self._client.type(self._keys.events) in (b"stream", b"none"):
                pipe.xadd(self._keys.events, {"way": "repair", "version": target}, maxlen=1000)

        expected = "a complete version" if target is None else str(target)
        repair = (
            "removed, since no version can be served" if target is None else f"version {target} is active"
        )
        if self._findings.add(key, judge, expected, repair, change) and self._findings.repair:
            self._versions.audit.write(By("ftrie store check"), "repair", None, target)

    def _right_active(self) -> int | None:
        """The complete version that was activated last, according to other keys."""

        def candidates() -> Iterator[int | None]:
            # From the best witness to the weakest.
            yield self._versions.last_activated()
            yield self._number(self._keys.trainer, "pinned")
            with suppress(StoreError):
                yield from self._versions.history()
            yield self._number(self._keys.guard, "good")
            yield from sorted((v for v, each in self._sound.items() if not each.refused), reverse=True)

        return next((each for each in candidates() if each in self._sound), None)

    def _number(self, key: str, field: str) -> int | None:
        return _number_of(self._read(b"", "HGET", key, field) or b"")

    def _shown_string(self, key: str) -> str:
        with self._store.answers():
            kind = self._client.type(key).decode()
            return shown(self._client.get(key) or b"") if kind == "string" else f"a {kind}"

    # -- counters

    def _counters(self) -> None:
        """Check that `sequence` >= every version, `epoch` >= every epoch, and `active_epoch` <= `epoch`."""
        keys = self._keys
        leases = [keys.trainer, *map(_text, self._found.get(ModelKeys.partition_lease, []))]
        floor = max([*self._epochs, *(self._number(key, "epoch") or 0 for key in leases)])
        last = self._counter(keys.active_epoch) or 0
        epoch = self._counter(keys.epoch) or 0
        # Fences only rise: a counter below an epoch in use would give that epoch to a second writer.
        top = max(epoch, floor) if epoch >= floor else max(floor, last)
        newest = max(self._numbers(), default=0)
        if floor and top > floor + _EPOCHS_AHEAD:
            top = max(floor, last if last <= floor + _EPOCHS_AHEAD else 0)
        for key, least, most, right in (
            (keys.sequence, newest, newest + _AHEAD if newest else MOST_COUNTED, newest),
            (keys.epoch, floor, floor + _EPOCHS_AHEAD if floor else MOST_COUNTED, top),
            (keys.active_epoch, 0, top, floor),
        ):

            def judge(key: str = key, least: int = least, most: int = most) -> str | None:
                value = self._counter(key)
                if value is None:
                    return self._shown_string(key)
                return None if least <= value <= most else str(value)

            def change(pipe: Any, key: str = key, right: int = right) -> None:
                pipe.set(key, right)

            expected = f"a whole number from {least} to {most}"
            self._findings.add(key, judge, expected, f"set to {right}", change)

    def _counter(self, key: str) -> int | None:
        with suppress(UnreadableValue), self._store.answers(key):
            return counter(key, self._client.get(key))
        return None

    # -- records

    def _pinned(self) -> None:
        """Check the pin, which the lease of the first partition holds: an operator pins the version activated last."""
        key = self._keys.trainer
        try:
            active = self._versions.known_active()
        except StoreError:
            active = None
        right = "" if active is None else str(active)

        def judge() -> str | None:
            pin: bytes = self._read(b"", "HGET", key, "pinned") or b""
            # A pin of a version that is gone would keep the trainer from activating for ever.
            is_right = not pin or (_number_of(pin) or 0) in self._numbers()
            return None if is_right else f"pinned {shown(pin)}"

        change = partial(_hset, key=key, field="pinned", value=right)
        self._findings.add(key, judge, "a version, or nothing", f"set to {right!r}", change)

    def _rounds(self) -> None:
        """Check the record of the partitions and the bytes of every part of a round.

        What is damaged is removed: a part that is there is never replaced, and one that is missing is written again.
        """
        rounds, key = Rounds(self._store, self._model), self._keys.partitions

        def record_judge() -> str | None:
            if self._findings.type_judge(key, ModelKeys.partitions.types)() is not None:
                return None  # a finding of its own
            return _unreadable(rounds.record, key)

        again = "removed; the trainer of partition 1 writes it again"
        self._findings.add(key, record_judge, "how the partitions started", again, _unlink(key))
        chunks = self._found.get(ModelKeys.round_chunk, [])
        for part in map(_text, sorted(self._found.get(ModelKeys.round_part, []))):
            # With its chunks, whatever writer they are of: another part is written under an epoch of its own.
            own = [chunk for chunk in chunks if chunk.startswith(f"{part}:chunk:".encode())]
            again = "removed; the trainer of its partition writes it again"
            judge = partial(rounds.damage, part)
            self._findings.add(part, judge, "a complete part of a round", again, _unlink(part, *own))

    def _experiment(self) -> None:
        """Check the experiment; a repair keeps its readable fields."""
        key = self._keys.experiment
        with self._store.answers():
            if self._client.type(key) != b"hash":
                return
            fields = self._client.hgetall(key)
        try:
            # A format far above this one is not a later ftrie but damage.
            newer = FORMAT < number(fields.get(b"format", b"")) < FORMAT + 1_000
        except ValueError:
            newer = False

        def judge() -> str | None:
            try:
                self._versions.experiments.read()
            except UnreadableValue:
                return None
            except StoreError as error:
                return str(error).removeprefix(f"{key}: ").partition("; `")[0]
            return None

        kept = readable_part(fields)
        content = kept.to_hash() | {"revision": str(kept.revision + 1)}
        repair = "upgrade ftrie" if newer else "readable fields are kept; the others are reset"
        self._findings.add(
            key, judge, "an experiment", repair, None if newer else partial(_replace, key=key, fields=content)
        )


def readable_part(fields: dict[bytes, bytes]) -> Experiment:
    """An experiment made of the readable fields of a damaged record."""

    def fits(more: dict[bytes, bytes]) -> bool:
        try:
            Experiment.from_hash(kept | more)
        except (ExperimentError, UnicodeDecodeError):
            return False
        return True

    empty = Experiment().to_hash() | {"revision": "0"}
    kept = {name.encode(): value.encode() for name, value in empty.items()}
    pins = {name: value for name, value in fields.items() if name.startswith(PIN.encode())}
    # state and winner are valid only together; each other field by itself.
    groups = [
        {b"state", b"winner"},
        *({name.encode()} for name in (*empty, *EXTRAS) if name not in ("state", "winner", "format")),
    ]
    parts = [{name: fields[name] for name in group if name in fields} for group in groups]
    # Each by itself, so that one bad pin costs no other; together only if they are not too many.
    good = {name: value for name, value in pins.items() if fits({name: value})}
    for part in (*parts, good):
        kept |= part if fits(part) else {}
    return Experiment.from_hash(kept)


def _now_ms(store: StoreConnection, key: str | bytes) -> int:
    with store.answers():
        return int(store.at(key).time()[0]) * 1000


def _unreadable(read: Callable[[], object], key: str = "") -> str | None:
    """Why a value cannot be read, without the key and the remedy; None if it can."""
    try:
        read()
    except UnreadableValue as error:
        return str(error).removeprefix(f"{key}: ").partition(";")[0]
    return None


def _number_of(raw: bytes, least: int = 0) -> int | None:
    """A number, None if it is invalid."""
    try:
        return number(raw, least)
    except ValueError:
        return None


def _beyond(name: bytes, raw: bytes, most: int) -> str | None:
    found = _number_of(raw)
    return f"{name.decode()} {shown(raw)}" if found is None or found > most else None


def _number_in(fields: Mapping[bytes, bytes], name: bytes) -> int | None:
    """A number of a manifest, None if it is missing or invalid."""
    return _number_of(fields.get(name, b""), 0 if name == b"epoch" else 1)


def _text_in(fields: Mapping[bytes, bytes], name: bytes) -> str:
    return fields.get(name, b"").decode("utf-8", "replace")


def _text(key: str | bytes) -> str:
    return key if isinstance(key, str) else key.decode("utf-8", "backslashreplace")


def _unlink(*keys: str | bytes) -> Change:
    return lambda pipe: pipe.unlink(*keys)


def _hset(pipe: Any, key: str, field: str, value: str) -> None:
    pipe.hset(key, field, value)


def _zadd(key: str, version: int, seconds: float) -> Change:
    return lambda pipe: pipe.zadd(key, {str(version): int(seconds)})


def _zrem(key: str, member: bytes | int) -> Change:
    return lambda pipe: pipe.zrem(key, member)


def _replace(pipe: Any, key: str, fields: Mapping[str, str]) -> None:
    pipe.delete(key)
    pipe.hset(key, mapping=fields)
