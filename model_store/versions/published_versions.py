"""The versions of one model, for readers: which exist, which one is active, and their models, verified.

`model_versions` adds writing, `chain` resolves deltas.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError, ResponseError

from model_store.errors import ArtefactError, NewerFormat, UnreadableValue, VersionNotFound
from model_store.keys import (
    DELTA,
    ModelKeys,
    Report,
    cure,
    number,
    silent,
    time_of,
    unreadable,
    version_number,
    version_numbers,
)
from model_store.redis.connection import LONGEST_BLOCK_S, StoreConnection
from model_store.versions.audit import Audit
from model_store.versions.chain import check_parent, download
from model_store.versions.experiments import StoredExperiment
from model_store.versions.guard_record import GuardRecords
from model_store.versions.manifest import Manifest
from model_store.versions.online_metrics import OnlineMetrics

if TYPE_CHECKING:
    from model_store.artefact.artefact import Artefact, Delta
    from model_store.versions.experiments import Experiment

_MOST_NAMED = 100
_MOST_REPORTED = 1_000
_EVENTS_LOOKED_AT = 100


@dataclass(frozen=True)
class VersionInfo:
    """One published version, for a list. `published` is UTC; `rows` of a delta counts the keys that changed.

    refused: why it must not be served, or empty. damaged: its manifest cannot be read, and `refused` says why; rows,
    size and parent are then unknown.
    """

    version: int
    published: datetime
    rows: int
    size: int  # bytes
    sha256: str
    active: bool
    kind: str
    parent: int | None
    content: str
    refused: str = ""
    damaged: bool = False


class PublishedVersions:
    """The published versions of one model. Every method raises StoreUnavailable if the store does not answer.

    A key with an unreadable value raises UnreadableValue where the value is needed; otherwise it is skipped and
    reported.
    """

    def __init__(self, connection: StoreConnection, model: str, on_junk: Report = silent) -> None:
        """on_junk is called once with a message for each value that was skipped because it cannot be read."""
        self.model = model
        self.keys = ModelKeys(model)
        self.guard = GuardRecords(connection, self.keys, self._report)
        self.online = OnlineMetrics(connection, self.keys, self._report)
        self.audit = Audit(connection, self.keys, self._report)
        self.experiments = StoredExperiment(connection, self.keys, model, self.audit)
        self._store = connection
        self._client = connection.at(self.keys.versions)
        self._on_junk = on_junk
        self._reported = set[str]()

    def active(self) -> int | None:
        """The active version, None without one. Raises UnreadableValue for a damaged pointer."""
        with self._store.answers(self.keys.active):
            version = self._client.get(self.keys.active)
        return None if version is None else version_number(self.keys.active, version)

    def pinned(self) -> int | None:
        """The version that an operator pinned, None without one. Raises UnreadableValue.

        activate.lua sets the pin when an operator activates a version of a model that has a trainer; the trainer keeps
        publishing, but activates nothing until `resume`.
        """
        with self._store.answers(self.keys.trainer):
            pinned = self._client.hget(self.keys.trainer, "pinned")
        return version_number(f"{self.keys.trainer} pinned", pinned) if pinned else None

    def spec_since(self) -> datetime | None:
        """Since when versions of the active one's spec are active; None if unknown. UTC, by the store's clock."""
        with self._store.answers(self.keys.trainer):
            text = self._client.hget(self.keys.trainer, "spec_ms")
        try:
            return time_of(number(text) / 1000) if text is not None else None
        except ValueError as error:
            self._report(f"{unreadable(f'{self.keys.trainer} spec_ms', str(error))}; it is left out")
            return None

    def known_active(self) -> int | None:
        """The active version; if the pointer cannot be read, report that and return the last one activated.

        That comes from the events; None if they name none.
        """
        try:
            return self.active()
        except UnreadableValue as error:
            last = self.last_activated()
            instead = (
                "nothing else names the active version"
                if last is None
                else f"version {last} was the last activated"
            )
            self._report(f"{error}; {instead}")
            return last

    def last_activated(self) -> int | None:
        """The version named by the latest event whose version still exists."""
        try:
            with self._store.answers(self.keys.events):
                events = self._client.xrevrange(self.keys.events, count=_EVENTS_LOOKED_AT)
            there = set(self._numbers())
        except UnreadableValue:
            return None
        named = [words[b"version"] for _, words in events if b"version" in words]
        return next(
            (each for each in version_numbers(self.keys.events, named, silent) if each in there), None
        )

    def active_or_fail(self) -> int:
        """The active version. Raises VersionNotFound if there is none."""
        version = self.active()
        if version is None:
            raise VersionNotFound(
                f"no version of {self.model} is active; its versions: {listed(self._numbers())}"
            )
        return version

    def versions(self) -> list[VersionInfo]:
        """All published versions, oldest first."""
        active = self.known_active()
        with self._store.answers(self.keys.versions):
            members = self._client.zrange(self.keys.versions, 0, -1, withscores=True)
        published = {
            version: seconds
            for member, seconds in members
            for version in version_numbers(self.keys.versions, [member], self._report)
        }
        with self._store.answers(), self._client.pipeline(transaction=False) as pipe:
            for version in published:
                pipe.hmget(self.keys.manifest(version), *_LISTED)
            details = pipe.execute(raise_on_error=False)
        listed = [
            self._info(version, seconds, found, version == active)
            for (version, seconds), found in zip(published.items(), details, strict=True)
            if isinstance(found, RedisError)
            or any(each is not None for each in found)  # else collected meanwhile
        ]
        return sorted(listed, key=lambda info: info.version)

    def active_through_us(self) -> int:
        """`Manifest.through_us` of the active version; 0 without one, or if it was not learned from streams."""
        active = self.known_active()
        try:
            return (self.manifest(active).through_us or 0) if active is not None else 0
        except (ArtefactError, VersionNotFound):  # damaged, or collected meanwhile
            return 0

    def manifest(self, version: int) -> Manifest:
        """The manifest of a version. Raises VersionNotFound, or ArtefactError if it cannot be read."""
        try:
            with self._store.answers(self.keys.manifest(version)):
                found = self._client.hgetall(self.keys.manifest(version))
        except UnreadableValue as error:
            raise ArtefactError(f"version {version} is damaged: {error}") from None
        if not found:
            raise VersionNotFound(
                f"{self.model} has no version {version}; its versions: {listed(self._numbers())}"
            )
        return self.read_manifest(version, found)

    def read_manifest(self, version: int, found: Mapping[bytes, bytes]) -> Manifest:
        """Read a manifest's HASH. Raises ArtefactError naming the version and the remedy."""
        try:
            manifest = Manifest.from_hash(found)
        except ArtefactError as error:
            raise ArtefactError(
                f"version {version} of {self.model}: {error}; or {cure(self.keys.active)} rebuilds it from its bytes"
            ) from None
        if manifest.version != version:
            why = f"got version {manifest.version}, expected {version}"
            raise ArtefactError(str(unreadable(self.keys.manifest(version), why)))
        return manifest

    def _info(
        self, version: int, seconds: float, found: Sequence[bytes | None] | RedisError, active: bool
    ) -> VersionInfo:
        """One version for a list, as damaged if its manifest cannot be read."""
        key, published = self.keys.manifest(version), time_of(seconds)
        try:
            if isinstance(found, RedisError):
                raise self._store.translated(found, key)
            there = {n.encode(): each for n, each in zip(_LISTED, found, strict=True) if each is not None}
            manifest = self.read_manifest(version, _NOT_LISTED | there)
        except (ArtefactError, UnreadableValue) as error:
            self._report(str(error))
            when = published or datetime.fromtimestamp(0, UTC)
            damage = f"damaged: {error}"
            return VersionInfo(version, when, 0, 0, "", active, "", None, "", refused=damage, damaged=True)
        if published is None:
            why = f"got the time {seconds} for version {version}, expected seconds since 1970"
            self._report(f"{unreadable(self.keys.versions, why)}; the manifest's time is used")
        return VersionInfo(
            version=version,
            published=published or manifest.created.astimezone(UTC),
            rows=manifest.rows,
            size=manifest.size,
            sha256=manifest.sha256,
            active=active,
            kind=manifest.kind,
            parent=manifest.parent,
            content=manifest.content,
            refused=manifest.refused,
        )

    def fetch(self, version: int) -> Artefact | Delta:
        """Download a version as stored, a model or a delta; sizes, SHA-256 and content are verified.

        Raises VersionNotFound, or ArtefactError saying what is damaged.
        """
        return self._read(self.manifest(version))

    def read(self, manifest: Manifest) -> Artefact | Delta:
        """Same as `fetch`, for a version whose manifest has been read already."""
        return self._read(manifest)

    def delta_chain(self, served: int, manifest: Manifest, *, at_most: int) -> list[Manifest] | None:
        """The deltas that lead from version `served` to the version of `manifest`, oldest first.

        None if a snapshot lies between the two, or more than `at_most` deltas do. Costs one round trip for each version
        between the two, which are not counted. Raises VersionNotFound, ArtefactError.
        """
        chain = [manifest]
        while (parent := chain[-1].parent) is not None and chain[-1].is_delta and len(chain) <= at_most:
            check_parent(chain[-1].version, parent)
            if parent <= served:
                return chain[::-1] if parent == served else None
            chain.append(self.manifest(parent))
        return None

    def chain(self, version: int) -> list[int]:
        """The versions needed to load `version`: its snapshot first, itself last.

        Raises VersionNotFound if it does not exist, ArtefactError naming a missing parent.
        """
        return [manifest.version for manifest in self._chain(version)]

    def materialise(self, version: int) -> Artefact:
        """The whole model of a version, loaded from its chain; every part and the result are verified.

        Raises VersionNotFound, or ArtefactError saying what is missing, damaged or inconsistent. Time and memory are
        those of its snapshot.
        """
        from model_store.versions.chain import apply_chain

        manifests = self._chain(version)
        snapshot, *deltas = (self._read(manifest) for manifest in manifests)
        try:
            return apply_chain(snapshot, deltas)  # type: ignore[arg-type]  # `_read` has checked the kinds
        except ArtefactError as error:
            raise ArtefactError(f"version {version} cannot be loaded: {error}") from error

    def experiment(self) -> Experiment | None:
        """The model's experiment, or None. Raises StoreError for one that cannot be read."""
        return self.experiments.read()

    def last_event(self) -> str:
        """The id of the latest event, to pass to `wait`. Read it before `active`, so that no change is missed."""
        try:
            with self._store.answers(self.keys.events):
                latest = self._client.xrevrange(self.keys.events, count=1)
        except UnreadableValue as error:
            self._report(str(error))
            latest = None
        return str(latest[0][0].decode()) if latest else "0-0"

    def wait(self, last_event_id: str, timeout_s: float) -> str:
        """Wait for an event after `last_event_id`; returns the newest one's id, or the same on timeout.

        An event is only a hint: `active` is the truth. Without a stream, this waits for the whole timeout.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            block_s = min(LONGEST_BLOCK_S, deadline - time.monotonic())
            try:
                with self._store.answers(self.keys.events):
                    streams = self._next_events(last_event_id, max(1, int(1000 * block_s)))
            except UnreadableValue as error:
                self._report(str(error))
                time.sleep(max(0.0, block_s))
                streams = None
            if streams:
                return str(streams[0][1][-1][0].decode())
            if time.monotonic() >= deadline:
                return last_event_id

    # -- steps

    def _next_events(self, after: str, block_ms: int) -> Any:
        """Raises RedisError."""
        try:
            return self._store.patient_at(self.keys.events).xread({self.keys.events: after}, block=block_ms)
        except ResponseError as error:
            # The only server has become a replica: it ends what blocks, and can be read as before.
            if self._store.nodes is not None or not str(error).startswith("UNBLOCKED"):
                raise
            return None

    def _chain(self, version: int) -> list[Manifest]:
        """The manifests of `chain`."""
        from model_store.versions.chain import chain_of

        found: dict[int, Manifest] = {}
        at: int | None = version
        while at is not None and at not in found:
            try:
                found[at] = self.manifest(at)
            except VersionNotFound:
                if at == version:
                    raise
                break
            at = found[at].parent if found[at].is_delta else None
        return [found[each] for each in chain_of(version, _parents(found))]

    def _read(self, manifest: Manifest) -> Artefact | Delta:
        from model_store.artefact.artefact import decode
        from model_store.versions.chain import check_matches

        read = decode(self._download(manifest))
        check_matches(read, manifest)
        return read

    def _download(self, manifest: Manifest) -> bytes:
        from model_store.artefact.artefact import Delta

        if manifest.format > Delta.FORMAT:
            raise NewerFormat(
                f"version {manifest.version} has format {manifest.format}, newer than the {Delta.FORMAT} "
                "this ftrie reads: upgrade ftrie"
            )
        try:
            return download(self._store, self.keys, manifest)
        except ArtefactError:
            self.manifest(manifest.version)  # raises VersionNotFound if the version was collected meanwhile
            raise

    def _numbers(self) -> list[int]:
        with self._store.answers(self.keys.versions):
            members = self._client.zrange(self.keys.versions, 0, -1)
        return sorted(version_numbers(self.keys.versions, members, self._report))

    def _report(self, text: str) -> None:
        if text not in self._reported and len(self._reported) < _MOST_REPORTED:
            self._reported.add(text)
            self._on_junk(text)


_NOT_LISTED = {b"spec": b"", b"metrics": b"{}", b"recent": b""}
"""Manifest fields that a list does not read, since they may be long."""
_LISTED = tuple(each.name for each in fields(Manifest) if each.name.encode() not in _NOT_LISTED)


def _parents(manifests: Mapping[int, Manifest]) -> dict[int, int | None]:
    return {
        version: manifest.parent if manifest.is_delta else None for version, manifest in manifests.items()
    }


def parents_of(infos: Sequence[VersionInfo]) -> dict[int, int | None]:
    """Each version with the parent it needs, None for a snapshot. Damaged versions are left out."""
    return {info.version: info.parent if info.kind == DELTA else None for info in infos if not info.damaged}


def listed(versions: Sequence[int]) -> str:
    """Version numbers for a message; of many only the first and last, since a gRPC status holds 8 KiB."""
    if len(versions) > _MOST_NAMED:
        return f"{listed(versions[:3])}, … {listed(versions[-3:])} ({len(versions):,} in total)"
    return ", ".join(map(str, versions)) or "none"
