"""The versions of one model as readers see them: which there are, which is served, their bytes, verified.

Nothing here changes anything in the store; `model_versions` writes. How versions hang together is in `chains`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from model_store.chunks import download
from model_store.connection import LONGEST_BLOCK_S, StoreConnection
from model_store.errors import ArtefactError, NewerFormat, VersionNotFound
from model_store.manifest import DELTA, SNAPSHOT, Manifest
from model_store.online_metrics import OnlineMetrics
from model_store.pin import Pin
from model_store.redis_keys import ModelKeys, whole_number
from model_store.refusals import Refusals
from model_store.stored_experiment import StoredExperiment

if TYPE_CHECKING:
    from model_store.artefact import Artefact
    from model_store.delta import Delta
    from model_store.experiments import Experiment

_MOST_NAMED = 100


@dataclass(frozen=True)
class VersionInfo:
    """One published version, as a list shows it. `published` is UTC; `rows` of a delta are the keys that changed.

    refused: why it is not to be served, empty if it may be.
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


class PublishedVersions:
    """What is published of one model. Every method raises StoreUnavailable if the store does not answer."""

    def __init__(self, connection: StoreConnection, model: str) -> None:
        self.model = model
        self.keys = ModelKeys(model)
        self.experiments = StoredExperiment(connection, self.keys, model)
        self.refusals = Refusals(connection, self.keys)
        self.pin = Pin(connection, self.keys)
        self.online = OnlineMetrics(connection, self.keys)
        self._store = connection
        self._client = connection.client

    def active(self) -> int | None:
        """The version being served."""
        with self._store.answers():
            version = self._client.get(self.keys.active)
        return None if version is None else whole_number(self.keys.active, version)

    def active_or_fail(self) -> int:
        """The version being served. Raises VersionNotFound if there is none."""
        version = self.active()
        if version is None:
            raise VersionNotFound(
                f"no version of {self.model} is active; its versions: {listed(self._numbers())}"
            )
        return version

    def versions(self) -> list[VersionInfo]:
        """All published versions, oldest first."""
        active = self.active()
        with self._store.answers():
            published = self._client.zrange(self.keys.versions, 0, -1, withscores=True)
            with self._client.pipeline(transaction=False) as pipe:
                for version, _ in published:
                    pipe.hmget(self.keys.manifest(int(version)), *_LISTED)
                details = pipe.execute()
        listed = [
            _info(int(version), seconds, found, int(version) == active)
            for (version, seconds), found in zip(published, details, strict=True)
            if found[0] is not None  # collected between the two reads
        ]
        return sorted(listed, key=lambda info: info.version)

    def active_through_us(self) -> int:
        """Through when the active version has learned; 0 where there is none, or it was not learned from streams."""
        active = self.active()
        try:
            return (self.manifest(active).through_us or 0) if active is not None else 0
        except (ArtefactError, VersionNotFound):  # damaged, or collected meanwhile: nothing is known of it
            return 0

    def manifest(self, version: int) -> Manifest:
        """The manifest of a version. Raises VersionNotFound, or ArtefactError if it cannot be read."""
        with self._store.answers():
            fields = self._client.hgetall(self.keys.manifest(version))
        if not fields:
            raise VersionNotFound(
                f"{self.model} has no version {version}; its versions: {listed(self._numbers())}"
            )
        return Manifest.from_hash(fields)

    def fetch(self, version: int) -> Artefact | Delta:
        """Download a version as it is stored; sizes, SHA-256 and content are verified before it is returned.

        Raises VersionNotFound, or ArtefactError saying what is damaged.
        """
        return self._read(self.manifest(version))

    def chain(self, version: int) -> list[int]:
        """The versions that `version` is put together from: its snapshot first, itself last.

        Raises VersionNotFound if it is not there, ArtefactError naming the one in between that is not.
        """
        return [manifest.version for manifest in self._chain(version)]

    def materialise(self, version: int) -> Artefact:
        """The whole model of a version, put together from its chain; every part and the result are verified.

        Raises VersionNotFound, or ArtefactError saying what is missing, damaged or does not fit. Time and memory are
        those of its snapshot.
        """
        from model_store.chains import put_together

        manifests = self._chain(version)
        snapshot, *deltas = (self._read(manifest) for manifest in manifests)
        try:
            return put_together(snapshot, deltas)  # type: ignore[arg-type]  # `_read` has held kinds to manifests
        except ArtefactError as error:
            raise ArtefactError(f"version {version} cannot be put together: {error}") from error

    def experiment(self) -> Experiment | None:
        """The model's experiment, None if there is none. Raises StoreError for one that cannot be read."""
        return self.experiments.read()

    def last_event(self) -> str:
        """The id of the latest event, where `wait` begins. Read it before `active`: no change is missed."""
        with self._store.answers():
            latest = self._client.xrevrange(self.keys.events, count=1)
        return str(latest[0][0].decode()) if latest else "0-0"

    def wait(self, last_event_id: str, timeout_s: float) -> str:
        """Wait for an event after `last_event_id`; returns the newest one's id, or the same on timeout.

        An event is only a hint: ask `active` for the truth.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            block_s = min(LONGEST_BLOCK_S, deadline - time.monotonic())
            with self._store.answers():
                streams = self._store.patient_client.xread(
                    {self.keys.events: last_event_id}, block=max(1, int(1000 * block_s))
                )
            if streams:
                return str(streams[0][1][-1][0].decode())
            if time.monotonic() >= deadline:
                return last_event_id

    # -- the steps, which writing takes too

    def _chain(self, version: int) -> list[Manifest]:
        """The manifests of `chain`."""
        from model_store.chains import chain_of

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
        from model_store.arrow_format import decode
        from model_store.chains import check_as_announced

        read = decode(self._download(manifest))
        check_as_announced(read, manifest)
        return read

    def _download(self, manifest: Manifest) -> bytes:
        from model_store.delta import Delta

        if manifest.format > Delta.FORMAT:
            raise NewerFormat(
                f"version {manifest.version} has format {manifest.format}, newer than the {Delta.FORMAT} "
                "this ftrie reads: upgrade ftrie"
            )
        try:
            return download(self._store, self.keys, manifest)
        except ArtefactError:
            self.manifest(manifest.version)  # if the version was collected meanwhile, say that instead
            raise

    def _numbers(self) -> list[int]:
        with self._store.answers():
            return sorted(int(version) for version in self._client.zrange(self.keys.versions, 0, -1))


_LISTED = ("rows", "size", "sha256", "kind", "parent", "content", "refused")


def _info(version: int, seconds: float, found: Sequence[bytes | None], active: bool) -> VersionInfo:
    rows, size, sha256, kind, parent, content, refused = (b"" if each is None else each for each in found)
    return VersionInfo(
        version=version,
        published=datetime.fromtimestamp(seconds, UTC),
        rows=int(rows),
        size=int(size),
        sha256=sha256.decode(),
        active=active,
        kind=kind.decode() or SNAPSHOT,
        parent=int(parent) if parent else None,
        content=content.decode(),
        refused=refused.decode(),
    )


def _parents(manifests: Mapping[int, Manifest]) -> dict[int, int | None]:
    return {
        version: manifest.parent if manifest.is_delta else None for version, manifest in manifests.items()
    }


def parents_of(infos: Sequence[VersionInfo]) -> dict[int, int | None]:
    """Each version with the parent that it needs: none of a snapshot."""
    return {info.version: info.parent if info.kind == DELTA else None for info in infos}


def listed(versions: Sequence[int]) -> str:
    """Version numbers for a message; of many the first and the last ones, since a gRPC status has room for 8 KiB."""
    if len(versions) > _MOST_NAMED:
        return f"{listed(versions[:3])}, … {listed(versions[-3:])} ({len(versions):,} in all)"
    return ", ".join(map(str, versions)) or "none"
