"""Finds invalid values in the store's keys and repairs them, for `ftrie store check`.

Each finding names the value, what is expected, and the repair. Repairs use what the store itself knows: a manifest is
rebuilt from the version's bytes, the list of versions from the manifests, the active pointer from the events. What
cannot be restored is removed, or marked as refused so that no rollback chooses it. docs/operating.md describes its
use.

Versions come and go while a check reads them. So what seems invalid is judged again by what is there then: a version
that has been collected is none, and one that was published meanwhile is examined before the active pointer is judged.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC
from functools import partial
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import WatchError

from model_store.errors import ArtefactError, ExperimentError, NewerFormat, StoreError, UnreadableValue
from model_store.features.history import check_record
from model_store.keys import (
    CANDIDATES,
    HISTORY_OF,
    ITEM,
    ITEMS_CHANGES,
    ITEMS_EPOCH,
    ITEMS_GENERATION,
    MOST,
    MOST_COUNTED,
    USER,
    ModelKeys,
    audit_entry,
    counter,
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
from model_store.versions.chain import chain_of, chunks_there
from model_store.versions.experiments import FORMAT, PIN, Experiment
from model_store.versions.guard_record import GuardRecord
from model_store.versions.manifest import MOST_CHUNK_BYTES, Manifest, RecentFigures, now
from model_store.versions.model_versions import ModelVersions, manifest_of
from model_store.versions.online_metrics import SUMS
from model_store.versions.rounds import Rounds

BATCH = 1_000
DAMAGED = "damaged: "
"""Prefix of the refusal reason of a version whose bytes cannot be restored."""
_AHEAD = 1_000_000
"""A counter further ahead of its versions or epochs was set manually."""
_MOST_AHEAD_MS = 60_000
"""How far the last id of a stream may be ahead of the store's clock, which may have been set back by a little."""
_AHEAD_MS = 3_600_000
"""How far a lease's times may be ahead of the store's clock."""
_MODEL = re.compile(rb"ftrie:\{([A-Za-z0-9._-]{1,128})\}:(.+)", re.DOTALL)
_MANIFEST = re.compile(rb"version:([1-9]\d{0,11})")
_OUTCOMES = re.compile(rb"outcomes:(hour:)?\d+")
_LEASE_OF_PARTITION = re.compile(rb"trainer:\d+")
_PART = re.compile(rb"round:\d+:\d+:(?:\d+|state-\d+|model)")
_PART_CHUNK = re.compile(rb"(round:\d+:\d+:[^:]+):chunk:.+", re.DOTALL)
_TYPES = {
    "versions": "zset",
    "history": "list",
    "events": "stream",
    "experiment": "hash",
    "impressions": "stream",
    "clicks": "stream",
    "dead": "stream",
    "audit": "stream",
    "trainer": "hash",
    "guard": "hash",
    "partitions": "hash",
}
"""Keys of a model that are removed if they have another type; versions and counters are checked separately."""
_RECORDS = {
    USER: ("hash",),
    ITEM: ("hash",),
    CANDIDATES: ("list", "set", "zset"),
    ITEMS_CHANGES: ("stream",),
    ITEMS_EPOCH: ("string",),
    ITEMS_GENERATION: ("string",),
}
_LEASE = ("epoch", "until_ms", "seen_ms", "spec_ms", "rows", "resumed")

Judge = Callable[[], str | None]
"""Returns the invalid value at a key, None if it is valid."""


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
    found: dict[str, set[bytes]] = {name: set() for name in models}
    for name in models:
        ModelKeys(name)  # raises UsageError for an invalid name
    for batch in connection.scan(b"ftrie:*", BATCH):
        for key in batch:
            if (of_model := _MODEL.fullmatch(key)) and (not models or of_model[1].decode() in found):
                found.setdefault(of_model[1].decode(), set()).add(of_model[2])
        if not models:
            _check_records(findings, [key for key in batch if not _MODEL.fullmatch(key)])
    for name, suffixes in sorted(found.items()):
        _ModelCheck(findings, connection, name, suffixes).run()
    return findings.found


class _Findings:
    """Collects findings, and repairs each at once unless the key has changed meanwhile."""

    def __init__(self, connection: StoreConnection, repair: bool) -> None:
        self.found: list[Finding] = []
        self.repair = repair
        self.store = connection

    def add(
        self,
        key: str | bytes,
        judge: Judge,
        expected: str,
        repair: str,
        change: Callable[[Any], object] | None,
    ) -> bool:
        """Judge a key; if invalid, record a finding and repair it by `change` in one transaction. True if invalid.

        change: None if there is no repair.
        """
        name = key if isinstance(key, str) else key.decode("utf-8", "backslashreplace")
        lost = None  # what was repaired by a transaction whose answer was lost
        while (found := judge()) is not None:
            repaired = self.repair and change is not None
            if repaired and change is not None:
                with self.store.answers(name), self.store.at(key).pipeline(transaction=True) as pipe:
                    pipe.watch(key)
                    if judge() != found:
                        continue
                    pipe.multi()
                    change(pipe)
                    try:
                        pipe.execute()
                    except WatchError as error:
                        lost = found if isinstance(error.__context__, RedisConnectionError) else None
                        continue
            self.found.append(Finding(name, found, expected, repair, repaired))
            return True
        if lost is not None:
            self.found.append(Finding(name, lost, expected, repair, True))
        return lost is not None

    def types(self, keys: Sequence[bytes], kinds: Sequence[str], repair: str = "removed") -> None:
        """Check that all these keys have one of these types; remove others."""
        with self.store.answers():
            there = [kind.decode() for (kind,) in self.store.each([(key, [("TYPE", key)]) for key in keys])]
        for key, kind in zip(keys, there, strict=True):
            if kind not in ("none", *kinds):
                self.add(key, self.type_judge(key, kinds), f"a {' or '.join(kinds)}", repair, _unlink(key))

    def type_judge(self, key: str | bytes, kinds: Sequence[str]) -> Judge:
        """A judge that accepts a missing key or one of these types."""

        def judge() -> str | None:
            with self.store.answers():
                kind = self.store.at(key).type(key).decode()
            return None if kind in ("none", *kinds) else f"a {kind}"

        return judge


def _check_records(findings: _Findings, keys: Sequence[bytes]) -> None:
    """Check users, items, candidate sets, and the keys about changed items."""
    for prefix, kinds in _RECORDS.items():
        whole = prefix in (ITEMS_CHANGES, ITEMS_EPOCH, ITEMS_GENERATION)
        of_kind = [key for key in keys if (key == prefix if whole else key.startswith(prefix))]
        if of_kind:
            findings.types(of_kind, kinds)
        if whole and prefix == ITEMS_CHANGES and of_kind:
            _check_clock(findings, prefix.decode(), keep=False)
    _check_histories(findings, [key for key in keys if key.startswith(HISTORY_OF)])


def _check_histories(findings: _Findings, keys: Sequence[bytes]) -> None:
    """Check the bytes of users' histories. A damaged one is removed: the trainer writes it with the next event."""
    if not keys:
        return
    findings.types(keys, ["string"])
    with findings.store.answers():
        kinds = [kind for (kind,) in findings.store.each([(key, [("TYPE", key)]) for key in keys])]
        strings = [key for key, kind in zip(keys, kinds, strict=True) if kind == b"string"]
        records = [raw for (raw,) in findings.store.each([(key, [("GET", key)]) for key in strings])]

    def judged(raw: bytes | None) -> str | None:
        try:
            if raw is not None:
                check_record(raw)
        except UnreadableValue as error:
            return str(error).removeprefix("got ")
        return None

    def judge_of(key: bytes) -> Judge:
        def judge() -> str | None:
            if findings.type_judge(key, ["string"])() is not None:
                return None  # a finding of its own
            with findings.store.answers():
                return judged(findings.store.at(key).get(key))

        return judge

    for key, raw in zip(strings, records, strict=True):
        if judged(raw) is not None:
            repair = "removed; the trainer writes it again with the user's next event"
            findings.add(key, judge_of(key), "a user's history", repair, _unlink(key))


class _ModelCheck:
    """The check of one model. `run` checks first what later checks rely on."""

    def __init__(
        self, findings: _Findings, connection: StoreConnection, model: str, suffixes: Iterable[bytes]
    ) -> None:
        self._findings = findings
        self._store = connection
        self._client = connection.at(ModelKeys(model).versions)
        self._versions = ModelVersions(connection, model)
        self._keys, self._model = ModelKeys(model), model
        self._suffixes = sorted(suffixes)
        self._sound: dict[int, Manifest] = {}
        """The versions that can be served, with their manifests as repaired."""
        self._examined: set[int] = set()
        self._epochs = [0]
        last = [self._counter(key) or 0 for key in (self._keys.epoch, self._keys.active_epoch)]
        self._highest_epoch = min(MOST_COUNTED, max(last) + _AHEAD) if any(last) else MOST_COUNTED

    def run(self) -> None:
        keys = self._keys
        for name, kind in _TYPES.items():
            rebuilt = "removed, and rebuilt from the manifests"
            self._findings.types(
                [getattr(keys, name).encode()], [kind], rebuilt if name == "versions" else "removed"
            )
        for name in ("events", "impressions", "clicks", "audit"):
            _check_clock(self._findings, getattr(keys, name), keep=name != "events")
        feedback = [s for s in self._suffixes if s.startswith(b"feedback:")]
        for begin in range(0, len(feedback), BATCH):
            self._findings.types([self._full(s) for s in feedback[begin : begin + BATCH]], ["string"])
        self._members()
        self._examine()
        self._history()
        self._guard()
        self._leases()
        self._rounds()
        self._active()
        self._counters()
        self._experiment()
        self._online()
        self._audit()

    def _full(self, suffix: bytes) -> bytes:
        return self._keys.versions.removesuffix("versions").encode() + suffix

    # -- versions

    def _members(self) -> None:
        """Check that `versions` holds version numbers with times."""
        key = self._keys.versions
        for member, seconds in self._scored():
            try:
                version = version_number(key, member)
            except UnreadableValue:
                judge = self._member_judge(member, _always(f"the member {shown(member)}"))
                self._findings.add(
                    key, judge, "numbers of versions", "the member is removed", _zrem(key, member)
                )
                continue
            if time_of(seconds) is None:
                when = self._created(version)
                self._findings.add(
                    key,
                    self._member_judge(
                        member,
                        lambda score: f"the time {score} of a version" if time_of(score) is None else None,
                    ),
                    "seconds since 1970",
                    f"version {version} gets the time of its manifest",
                    _zadd(key, version, when),
                )

    def _member_judge(self, member: bytes, judge: Callable[[float], str | None]) -> Judge:
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
        listed = {
            int(member)
            for member, _ in self._scored()
            if _MANIFEST.fullmatch(b"version:" + member) is not None
        }
        return listed | {int(found[1]) for s in self._suffixes if (found := _MANIFEST.fullmatch(s))}

    def _created(self, version: int) -> float:
        try:
            return self._versions.manifest(version).created.timestamp()
        except (ArtefactError, StoreError):
            return now().timestamp()

    def _examine(self) -> None:
        """Check the versions that there are now and were not checked before."""
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
            judge = self._member_judge(b"%d" % version, lambda score: f"version {version}, which has no data")
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
                made.append(again)
            found = self._wrong(version, made[-1])
            return found if self._is_there(version) else None

        def rebuild(pipe: Any) -> None:
            _replace(key, made[-1].to_hash())(pipe)

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
        try:
            with self._store.answers(self._keys.manifest(version)):
                found: dict[bytes, bytes] = self._client.hgetall(self._keys.manifest(version))
        except UnreadableValue:
            return {b"": b""}
        return found

    def _right_manifest(self, version: int, fields: dict[bytes, bytes]) -> tuple[Manifest | None, str]:
        """The manifest rebuilt from the bytes and from fields that bytes cannot provide; or None and why not."""
        from model_store.artefact.artefact import Delta, decode

        try:
            there: Manifest | None = self._versions.read_manifest(version, fields)
        except ArtefactError:
            there = None
        if there is not None and there.refused.startswith(DAMAGED):
            return there, ""  # found by an earlier check
        try:
            parts = self._bytes(version)
            data = b"".join(parts)
            model = decode(data)
        except NewerFormat as error:
            return there, str(error)
        except (ArtefactError, StoreError) as error:
            return None, str(error)
        parent = model.parent if isinstance(model, Delta) else _number_in(fields, b"parent")
        epoch = _number_in(fields, b"epoch") or 0
        made = manifest_of(model, data, version, parent, epoch if epoch <= self._highest_epoch else 0)
        size = len(parts[0]) if parts else made.chunk_bytes
        if len(parts) > 1 and any(len(each) != size for each in parts[1:-1]):
            return None, "its chunks are not of one size"
        chunk_bytes = size if len(parts) > 1 else _number_in(fields, b"chunk_bytes") or 0
        if not len(data) <= chunk_bytes <= MOST_CHUNK_BYTES and len(parts) == 1:
            chunk_bytes = made.chunk_bytes
        if there is not None and hashlib.sha256(data).hexdigest() != there.sha256:
            return None, f"its bytes have another SHA-256 than the manifest's {there.sha256[:12]}…"
        made = replace(
            made,
            chunk_bytes=chunk_bytes,
            chunks=len(parts),
            created=there.created if there else self._listed_time(version, fields) or made.created,
            through_us=_number_in(fields, b"through_us"),
            refused=_text_in(fields, b"refused"),
            forced=_text_in(fields, b"forced") == "1",
            recent=_recent(_text_in(fields, b"recent")),
        )
        return made, ""

    def _listed_time(self, version: int, fields: dict[bytes, bytes]) -> Any:
        with self._store.answers():
            kind = self._client.type(self._keys.versions)
            score = self._client.zscore(self._keys.versions, version) if kind == b"zset" else None
        when = None if score is None else time_of(score)
        return None if when is None else when.astimezone(UTC).replace(microsecond=0)

    def _wrong(self, version: int, right: Manifest) -> str | None:
        """The wrong fields of the stored manifest. One written by an earlier ftrie may lack optional fields."""
        fields = self._fields(version)
        expected = {name.encode(): value.encode() for name, value in right.to_hash().items()}
        optional = {b"through_us", b"recent", b"refused", b"forced"}
        if not right.is_delta:  # perhaps published by an ftrie without deltas
            optional |= {b"kind", b"content"}
        wrong = [
            f"{name.decode()} {shown(fields[name])}" if name in fields else f"no {name.decode()}"
            for name, value in expected.items()
            if fields.get(name, value if name in optional else None) != value
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

            unreadable = "an unreadable manifest of unreadable bytes"
            self._findings.add(
                key,
                lambda: unreadable if self._fields(version) == fields else None,
                "a version",
                "it is removed",
                remove,
            )
            return
        reason = f"{DAMAGED}{damage}"

        def damaged() -> str | None:
            fields = self._fields(version)
            if not fields or _text_in(fields, b"refused").startswith(DAMAGED):
                return None
            return (
                damage if self._right_manifest(version, fields)[0] is None and self._fields(version) else None
            )

        self._findings.add(
            key,
            damaged,
            "complete bytes",
            "the version is refused, so that no rollback chooses it; publish it again",
            lambda pipe: pipe.hset(key, "refused", reason),
        )

    def _bytes(self, version: int) -> list[bytes]:
        """The existing chunks. Raises UnreadableValue for a key of another type."""
        parts = []
        for key in self._keys.chunks(version, chunks_there(self._store, self._keys, version)):
            with self._store.answers(key):
                parts.append(self._client.get(key) or b"")
        return parts

    def _chains(self) -> None:
        """Check that everything a delta needs is complete."""
        parents = {
            version: manifest.parent if manifest.is_delta else None
            for version, manifest in self._sound.items()
        }
        for version in sorted(self._sound):
            try:
                chain_of(version, parents)
            except ArtefactError as error:
                key, reason = self._keys.manifest(version), f"{DAMAGED}{error}"
                self._findings.add(
                    key,
                    self._text_judge(key, reason, str(error)),
                    "a delta of complete versions",
                    "the version is refused, so that no rollback chooses it",
                    _hset(key, "refused", reason),
                )
                del self._sound[version], parents[version]

    def _text_judge(self, key: str, reason: str, found: str) -> Judge:
        def judge() -> str | None:
            with self._store.answers(key):
                refused = self._client.hget(key, "refused")
            return None if refused in (None, reason.encode()) else found  # None: it has been collected

        return judge

    # -- what points at versions

    def _history(self) -> None:
        key = self._keys.history

        def members() -> list[bytes]:
            try:
                with self._store.answers(key):
                    found: list[bytes] = self._client.lrange(key, 0, -1)
            except UnreadableValue:
                return []
            return found

        for member in dict.fromkeys(members()):
            try:
                version_number(key, member)
            except UnreadableValue:
                judge = _among(members, member)
                self._findings.add(
                    key, judge, "numbers of versions", "the member is removed", _lrem(key, member)
                )

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
            if self._client.type(self._keys.events) in (b"stream", b"none"):
                pipe.xadd(self._keys.events, {"way": "repair", "version": target}, maxlen=1000)

        expected = "a complete version" if target is None else str(target)
        repair = (
            "removed, since no version can be served" if target is None else f"version {target} is active"
        )
        if self._findings.add(key, judge, expected, repair, change) and self._findings.repair:
            self._versions.audit.write(By("ftrie store check"), "repair", None, target)

    def _right_active(self) -> int | None:
        """The complete version that was activated last, as far as other keys tell."""

        def candidates() -> Iterator[int | None]:
            yield self._versions.last_activated()
            yield self._hash_number(self._keys.trainer, "pinned")
            with suppress(StoreError):
                yield from self._versions.history()
            yield self._hash_number(self._keys.guard, "good")
            yield from sorted((v for v, each in self._sound.items() if not each.refused), reverse=True)

        return next((each for each in candidates() if each in self._sound), None)

    def _hash_number(self, key: str, field: str) -> int | None:
        try:
            with self._store.answers(key):
                return number(self._client.hget(key, field) or b"")
        except (UnreadableValue, ValueError):
            return None

    def _shown_string(self, key: str) -> str:
        with self._store.answers():
            kind = self._client.type(key).decode()
            return shown(self._client.get(key) or b"") if kind == "string" else f"a {kind}"

    # -- counters

    def _counters(self) -> None:
        """Check that `sequence` >= every version, `epoch` >= every epoch, and `active_epoch` <= `epoch`."""
        keys = self._keys
        leases = [keys.trainer, *self._partition_leases()]
        floor = max([*self._epochs, *(self._hash_number(key, "epoch") or 0 for key in leases)])
        last = self._counter(keys.active_epoch) or 0
        epoch = self._counter(keys.epoch) or 0
        top = max(epoch, floor) if epoch >= floor else max(floor, last)
        newest = max(self._numbers(), default=0)
        if floor and top > floor + _AHEAD:
            top = max(floor, last if last <= floor + _AHEAD else 0)
        for key, least, most, right in (
            (keys.sequence, newest, newest + _AHEAD if newest else MOST_COUNTED, newest),
            (keys.epoch, floor, floor + _AHEAD if floor else MOST_COUNTED, top),
            (keys.active_epoch, 0, top, floor),
        ):
            self._findings.add(
                key,
                self._counter_judge(key, least, most),
                f"a whole number from {least} to {most}",
                f"set to {right}",
                _set(key, right),
            )

    def _counter(self, key: str) -> int | None:
        try:
            with self._store.answers(key):
                return counter(key, self._client.get(key))
        except UnreadableValue:
            return None

    def _counter_judge(self, key: str, least: int, most: int) -> Judge:
        def judge() -> str | None:
            value = self._counter(key)
            if value is None:
                return self._shown_string(key)
            return None if least <= value <= most else str(value)

        return judge

    # -- records

    def _partition_leases(self) -> list[str]:
        return [self._full(s).decode() for s in self._suffixes if _LEASE_OF_PARTITION.fullmatch(s)]

    def _leases(self) -> None:
        """Check the leases of all partitions, and the pin, which that of the first one holds."""
        others = self._partition_leases()
        self._findings.types([key.encode() for key in others], ["hash"])
        for each in (self._keys.trainer, *others):
            self._lease(each)
        key = self._keys.trainer
        active = self._hash_pin()

        def pinned(raw: bytes) -> str | None:
            return None if not raw or (_number_in({b"": raw}, b"") or 0) in self._numbers() else shown(raw)

        pin = _hset(key, "pinned", active)
        self._field(key, "pinned", pinned, "a version, or nothing", f"set to {active!r}", pin)

    def _lease(self, key: str) -> None:
        """Check numbers, and that no time is ahead of the clock, since such a lease would never expire."""
        latest_ms = _now_ms(self._store, self._keys.trainer) + _AHEAD_MS
        for name in _LEASE:
            is_time = name.endswith("_ms")

            most = latest_ms if is_time else None if name == "rows" else self._highest_epoch

            def judge(raw: bytes, most: int | None = most) -> str | None:
                return _not_a_number(raw, most)

            expected = "a time near the present" if is_time else "a whole number"
            again = "the field is removed; the trainer writes it again"
            self._field(key, name, judge, expected, again, _hdel(key, name))

    def _rounds(self) -> None:
        """Check the record of the partitions and the bytes of every part of a round.

        What is damaged is removed: a part that is there is never replaced, and one that is missing is written again.
        """
        rounds, key = Rounds(self._store, self._model), self._keys.partitions

        def record_judge() -> str | None:
            if self._findings.type_judge(key, ["hash"])() is not None:
                return None  # a finding of its own
            try:
                rounds.record()
            except UnreadableValue as error:
                return str(error).removeprefix(f"{key}: ").partition(";")[0]
            return None

        again = "removed; the trainer of partition 1 writes it again"
        self._findings.add(key, record_judge, "how the partitions started", again, _unlink(key))
        chunks: dict[bytes, list[bytes]] = {}
        for suffix in self._suffixes:
            if of_part := _PART_CHUNK.fullmatch(suffix):
                chunks.setdefault(of_part[1], []).append(self._full(suffix))
        for suffix in self._suffixes:
            if _PART.fullmatch(suffix):
                part = self._full(suffix).decode()
                self._findings.add(
                    part,
                    partial(rounds.damage, part),
                    "a complete part of a round",
                    "removed; the trainer of its partition writes it again",
                    _unlink(part, *chunks.get(suffix, ())),
                )
        self._findings.types([each for some in chunks.values() for each in some], ["string"])

    def _hash_pin(self) -> str:
        """The right value of the pin: an operator pins the version activated last."""
        try:
            active = self._versions.known_active()
        except StoreError:
            active = None
        return "" if active is None else str(active)

    def _guard(self) -> None:
        key, latest_us = self._keys.guard, 1000 * (_now_ms(self._store, self._keys.guard) + _AHEAD_MS)
        for name in vars(GuardRecord()):

            def judge(raw: bytes, name: str = name) -> str | None:
                reports: list[str] = []
                if name == "when_us" and (_number_in({b"": raw}, b"") or 0) > latest_us:
                    return shown(raw)
                record(key, {name.encode(): raw}, GuardRecord(), reports.append)
                return shown(raw) if reports else None

            expected = "what docs/redis_keys.md has"
            self._field(key, name, judge, expected, "the field is removed", _hdel(key, name))

    def _field(
        self,
        key: str,
        name: str,
        judge: Callable[[bytes], str | None],
        expected: str,
        repair: str,
        change: Callable[[Any], object],
    ) -> None:
        """Check one field of a HASH, if it exists."""

        def now_there() -> str | None:
            try:
                with self._store.answers(key):
                    raw = self._client.hget(key, name)
            except UnreadableValue:
                return None  # of another type, which is a finding of its own
            wrong = None if raw is None else judge(raw)
            return None if wrong is None else f"{name} {wrong}"

        self._findings.add(key, now_there, expected, repair, change)

    def _experiment(self) -> None:
        """Check the experiment; a repair keeps its readable fields."""
        key = self._keys.experiment
        with self._store.answers():
            if self._client.type(key) != b"hash":
                return
            fields = self._client.hgetall(key)
        try:
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
        self._findings.add(key, judge, "an experiment", repair, None if newer else _replace(key, content))

    def _online(self) -> None:
        keys = [self._full(s) for s in self._suffixes if _OUTCOMES.fullmatch(s)]
        for begin in range(0, len(keys), BATCH):
            self._findings.types(keys[begin : begin + BATCH], ["hash"])
        for key in keys:
            for field, value in self._hash(key).items():
                try:
                    online_cell(key.decode(), field, value, SUMS, BUCKETS)
                except UnreadableValue:
                    judge = self._cell_judge(key, field, value)
                    self._findings.add(
                        key, judge, "versions and sums", "the field is removed", _hdel(key, field)
                    )

    def _audit(self) -> None:
        """Check every entry about a change."""
        key = self._keys.audit

        def junk(entry: bytes) -> str | None:
            with self._store.answers(key):
                found = self._client.xrange(key, entry, entry)
            try:
                for _, fields in found:
                    audit_entry(key, entry, fields)
            except UnreadableValue as error:
                return str(error).removeprefix(f"{key}: ").partition(";")[0]
            return None

        try:
            with self._store.answers(key):
                entries = self._client.xrange(key)
        except UnreadableValue:  # of another type, which is a finding of its own
            return
        for entry, fields in entries:
            try:
                audit_entry(key, entry, fields)
            except UnreadableValue:
                self._findings.add(
                    key,
                    partial(junk, entry),
                    "who changed what",
                    "the entry is removed",
                    _xdel(key, entry),
                )

    def _cell_judge(self, key: bytes, field: bytes, value: bytes) -> Judge:
        return lambda: f"{shown(field)}: {shown(value)}" if self._hash(key).get(field) == value else None

    def _hash(self, key: bytes) -> dict[bytes, bytes]:
        try:
            with self._store.answers(key.decode()):
                found: dict[bytes, bytes] = self._client.hgetall(key)
        except UnreadableValue:
            return {}
        return found


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
    groups = [
        {b"state", b"winner"},
        *({name.encode()} for name in empty if name not in ("state", "winner", "format")),
    ]
    parts = [{name: fields[name] for name in group if name in fields} for group in groups]
    good = {name: value for name, value in pins.items() if fits({name: value})}
    for part in (*parts, good):
        kept |= part if fits(part) else {}
    return Experiment.from_hash(kept)


def _check_clock(findings: _Findings, key: str, *, keep: bool) -> None:
    """Check a stream's last id: if it is ahead of the clock, all later entries get such an id.

    keep: give its entries ids of the present; else remove it, and readers start again.
    """
    store = findings.store
    most_ms = _MOST_AHEAD_MS if keep else 24 * _AHEAD_MS

    def judge() -> str | None:
        try:
            with store.answers(key):
                if not store.at(key).exists(key):
                    return None
                last = store.at(key).xinfo_stream(key)["last-generated-id"]
        except UnreadableValue:
            return None
        ahead_ms = int(last.partition(b"-")[0]) - _now_ms(store, key)
        return f"the last id {last.decode()}, ahead of the store's clock" if ahead_ms > most_ms else None

    def change(pipe: Any) -> None:
        if keep:
            store.script("renumber").queue(pipe, [key, f"{key}:renumbered"], [_MOST_AHEAD_MS])
        else:
            pipe.delete(key)

    again = "entries that are ahead get ids of the present, in their order; none is lost"
    findings.add(key, judge, "an id of the present", again if keep else "removed", change)


def _now_ms(store: StoreConnection, key: str) -> int:
    with store.answers():
        return int(store.at(key).time()[0]) * 1000


def _number_in(fields: dict[bytes, bytes], name: bytes) -> int | None:
    """A number of a manifest, None if it is missing or invalid."""
    try:
        return number(fields[name], 0 if name == b"epoch" else 1)
    except (KeyError, ValueError):
        return None


def _text_in(fields: dict[bytes, bytes], name: bytes) -> str:
    return fields.get(name, b"").decode("utf-8", "replace")


def _recent(text: str) -> str:
    try:
        return text if not text or RecentFigures.from_json(text) else ""
    except (ArtefactError, RecursionError):
        return ""


def _not_a_number(raw: bytes, most: int | None = None) -> str | None:
    try:
        return None if number(raw) <= (MOST if most is None else most) else shown(raw)
    except ValueError:
        return shown(raw)


def _always(found: str) -> Callable[[float], str | None]:
    return lambda score: found


def _among(members: Callable[[], list[bytes]], member: bytes) -> Judge:
    return lambda: f"the member {shown(member)}" if member in members() else None


def _unlink(*keys: str | bytes) -> Callable[[Any], object]:
    return lambda pipe: pipe.unlink(*keys)


def _set(key: str, value: int) -> Callable[[Any], object]:
    return lambda pipe: pipe.set(key, value)


def _zrem(key: str, member: bytes | int) -> Callable[[Any], object]:
    return lambda pipe: pipe.zrem(key, member)


def _zadd(key: str, version: int, seconds: float) -> Callable[[Any], object]:
    return lambda pipe: pipe.zadd(key, {str(version): int(seconds)})


def _lrem(key: str, member: bytes) -> Callable[[Any], object]:
    return lambda pipe: pipe.lrem(key, 0, member)


def _hset(key: str, field: str, value: str) -> Callable[[Any], object]:
    return lambda pipe: pipe.hset(key, field, value)


def _hdel(key: str | bytes, field: str | bytes) -> Callable[[Any], object]:
    return lambda pipe: pipe.hdel(key, field)


def _xdel(key: str, entry: bytes) -> Callable[[Any], object]:
    return lambda pipe: pipe.xdel(key, entry)


def _replace(key: str, fields: dict[str, str]) -> Callable[[Any], object]:
    def change(pipe: Any) -> None:
        pipe.delete(key)
        pipe.hset(key, mapping=fields)

    return change
