"""The versions of one model in the store: publish, verify, activate, roll back, collect.

A version is complete or absent: its chunks are uploaded under an expiry and made visible by one script
(publish.lua); the active pointer is flipped by another (activate.lua), which refuses a version with a chunk
missing and a writer whose epoch another has overtaken. What the bytes mean is the artefact's business.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redis.exceptions import WatchError

from model_store.chunks import Progress, download, incomplete, upload
from model_store.connection import LONGEST_BLOCK_S, StoreConnection
from model_store.errors import ArtefactError, StaleEpoch, StoreError, VersionNotFound
from model_store.manifest import CHUNK_BYTES, Manifest, now
from model_store.redis_keys import ModelKeys, whole_number
from model_store.stored_experiment import StoredExperiment

if TYPE_CHECKING:
    from model_store.artefact import Artefact
    from model_store.experiments import Experiment

HISTORY = 100
KEEP = 5


@dataclass(frozen=True)
class VersionInfo:
    """One published version, as a list shows it. `published` is UTC."""

    version: int
    published: datetime
    rows: int
    size: int  # bytes
    sha256: str
    active: bool


class ModelVersions:
    """The versions of one model. Every method raises StoreUnavailable if the store does not answer.

    A writer that publishes and then activates uses `publish_and_activate`, or takes an epoch with `begin`
    before it publishes and hands it to `activate`: if a writer that began later has activated, this one gets
    StaleEpoch.
    """

    def __init__(self, connection: StoreConnection, model: str) -> None:
        self.model = model
        self.keys = ModelKeys(model)
        self.experiments = StoredExperiment(connection, self.keys, model)
        self._store = connection
        self._client = connection.client
        self._publish = self._client.register_script(_script("publish.lua"))
        self._activate = self._client.register_script(_script("activate.lua"))

    # -- writing

    def begin(self) -> int:
        """Take the next epoch: the fencing token of a writer that will activate."""
        with self._store.answers():
            return int(self._client.incr(self.keys.epoch))

    def publish(
        self,
        artefact: Artefact,
        *,
        parent: int | None = None,
        epoch: int = 0,
        on_progress: Progress | None = None,
    ) -> int:
        """Upload an artefact as a new version and return its number. It is visible then, but not active.

        `on_progress(bytes done, bytes in all)` is called after each chunk.
        """
        data = artefact.to_bytes()
        with self._store.answers():
            version = int(self._client.incr(self.keys.sequence))
            manifest = _manifest(artefact, data, version, parent, epoch)
            upload(self._store, self.keys, manifest, data, on_progress)
            self._make_visible(manifest)
        return version

    def publish_and_activate(
        self, artefact: Artefact, *, parent: int | None = None, on_progress: Progress | None = None
    ) -> int:
        """Publish and make active, unless a writer that began later was faster (StaleEpoch)."""
        epoch = self.begin()
        version = self.publish(artefact, parent=parent, epoch=epoch, on_progress=on_progress)
        self._point_to(self.manifest(version), epoch, "activate")
        return version

    def activate(self, version: int, *, epoch: int | None = None) -> int | None:
        """Serve `version`; returns the version that was active before.

        With no `epoch` this is an operator's order: the version's bytes are verified, and every writer that
        began before is fenced off. Raises VersionNotFound, ArtefactError, StaleEpoch; then nothing has
        changed.
        """
        return self._verify_and_point(version, epoch, "activate")

    def rollback(self, version: int | None = None) -> int:
        """Go back to `version`, by default to what was active before; returns the version now active.

        With no history that still exists, goes to the newest version older than the active one.
        Raises VersionNotFound if there is nothing to go back to.
        """
        target = self._previous() if version is None else version
        if target is None:
            raise VersionNotFound(
                f"{self.model} has no version before the active one ({self.active() or 'none is active'}); "
                f"its versions: {_listed(self._numbers())}"
            )
        self._verify_and_point(target, None, "rollback")
        return target

    def gc(self, keep: int = KEEP, *, dry_run: bool = False) -> list[int]:
        """Delete all but the newest `keep` versions, the active one and the one a rollback would go to.

        Returns what was (or, dry, would be) deleted, oldest first. Running time O(versions + chunks deleted).
        """
        if keep < 1:
            raise StoreError(f"got keep={keep}; expected 1 or more versions to keep")
        while (collected := self._collect(keep, dry_run)) is None:
            pass  # the active version changed meanwhile: decide again
        return collected

    # -- reading

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
                f"no version of {self.model} is active; its versions: {_listed(self._numbers())}"
            )
        return version

    def versions(self) -> list[VersionInfo]:
        """All published versions, oldest first."""
        active = self.active()
        with self._store.answers():
            published = self._client.zrange(self.keys.versions, 0, -1, withscores=True)
            with self._client.pipeline(transaction=False) as pipe:
                for version, _ in published:
                    pipe.hmget(self.keys.manifest(int(version)), "rows", "size", "sha256")
                details = pipe.execute()
        listed = [
            VersionInfo(
                int(version),
                datetime.fromtimestamp(seconds, UTC),
                int(rows),
                int(size),
                sha256.decode(),
                int(version) == active,
            )
            for (version, seconds), (rows, size, sha256) in zip(published, details, strict=True)
            if rows is not None  # collected between the two reads
        ]
        return sorted(listed, key=lambda info: info.version)

    def manifest(self, version: int) -> Manifest:
        """The manifest of a version. Raises VersionNotFound, or ArtefactError if it cannot be read."""
        with self._store.answers():
            fields = self._client.hgetall(self.keys.manifest(version))
        if not fields:
            raise VersionNotFound(
                f"{self.model} has no version {version}; its versions: {_listed(self._numbers())}"
            )
        return Manifest.from_hash(fields)

    def fetch(self, version: int) -> Artefact:
        """Download a version and verify sizes, SHA-256 and content before it is returned.

        Raises VersionNotFound, or ArtefactError saying what is damaged.
        """
        from model_store.artefact import Artefact

        return Artefact.from_bytes(self._download(self.manifest(version)))

    def experiment(self) -> Experiment | None:
        """The model's experiment, None if there is none. Raises StoreError for one that cannot be read."""
        return self.experiments.read()

    def set_experiment(self, changed: Experiment) -> Experiment:
        """Replace the experiment that `changed` was made from. Raises ExperimentChanged if it is another by now."""
        return self.experiments.write(changed)

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

    # -- the steps

    def _make_visible(self, manifest: Manifest) -> None:
        keys = [
            self.keys.manifest(manifest.version),
            self.keys.versions,
            *self.keys.chunks(manifest.version, manifest.chunks),
        ]
        fields = [word for pair in manifest.to_hash().items() for word in pair]
        published_s = int(manifest.created.timestamp())
        answer = self._publish(keys, [manifest.version, published_s, *manifest.chunk_sizes(), *fields])
        self._check(answer, manifest.version)

    def _verify_and_point(self, version: int, epoch: int | None, way: str) -> int | None:
        manifest = self.manifest(version)
        if epoch is None:
            self._download(manifest)
            epoch = self.begin()
        return self._point_to(manifest, epoch, way)

    def _point_to(self, manifest: Manifest, epoch: int, way: str) -> int | None:
        keys = [
            self.keys.manifest(manifest.version),
            self.keys.active,
            self.keys.active_epoch,
            self.keys.history,
            self.keys.events,
            *self.keys.chunks(manifest.version, manifest.chunks),
        ]
        with self._store.answers():
            answer = self._activate(keys, [manifest.version, epoch, way, HISTORY])
        self._check(answer, manifest.version)
        return int(answer[1]) if answer[1] else None

    def _check(self, answer: Sequence[Any], version: int) -> None:
        """Raise what a script's answer stands for, unless it is ok."""
        match answer:
            case [b"absent"]:
                raise VersionNotFound(f"version {version} of {self.model} was deleted meanwhile")
            case [b"chunk", index, expected, there]:
                raise incomplete(version, index, expected, there)
            case [b"stale", last]:
                raise StaleEpoch(
                    f"version {version} of {self.model} stays inactive: another writer (epoch {last}) has "
                    "activated a version since this one began; train again, or activate it by hand"
                )

    def _download(self, manifest: Manifest) -> bytes:
        from model_store.artefact import Artefact

        if manifest.format > Artefact.FORMAT:
            raise ArtefactError(
                f"version {manifest.version} has format {manifest.format}, newer than the {Artefact.FORMAT} "
                "this ftrie reads: upgrade ftrie"
            )
        try:
            return download(self._store, self.keys, manifest)
        except ArtefactError:
            self.manifest(manifest.version)  # if the version was collected meanwhile, say that instead
            raise

    def _previous(self) -> int | None:
        active = self.active()
        with self._store.answers():
            history = [int(version) for version in self._client.lrange(self.keys.history, 0, -1)]
        return _rollback_target(active, history, self._numbers())

    def _numbers(self) -> list[int]:
        with self._store.answers():
            return sorted(int(version) for version in self._client.zrange(self.keys.versions, 0, -1))

    def _collect(self, keep: int, dry_run: bool) -> list[int] | None:
        with self._store.answers(), self._client.pipeline(transaction=True) as pipe:
            pipe.watch(self.keys.active, self.keys.history)
            numbers = self._numbers()
            kept = {self.active(), self._previous(), *numbers[-keep:]}
            gone = [version for version in numbers if version not in kept]
            doomed = [key for version in gone for key in self._keys_of(version)]
            if gone and not dry_run:
                pipe.multi()
                pipe.unlink(*doomed)
                pipe.zrem(self.keys.versions, *gone)
                try:
                    pipe.execute()
                except WatchError:
                    return None
        return gone

    def _keys_of(self, version: int) -> list[str]:
        chunks = self._client.hget(self.keys.manifest(version), "chunks")
        return [self.keys.manifest(version), *self.keys.chunks(version, int(chunks or 0))]


def _rollback_target(active: int | None, history: Sequence[int], versions: Sequence[int]) -> int | None:
    existing = set(versions)
    before = [version for version in history if version in existing and version != active]
    if before:
        return before[0]
    return max((version for version in versions if active is not None and version < active), default=None)


def _manifest(artefact: Artefact, data: bytes, version: int, parent: int | None, epoch: int) -> Manifest:
    return Manifest(
        version=version,
        format=artefact.FORMAT,
        rows=artefact.rows,
        size=len(data),
        chunks=-(-len(data) // CHUNK_BYTES),
        chunk_bytes=CHUNK_BYTES,
        sha256=hashlib.sha256(data).hexdigest(),
        spec=artefact.spec.to_json(),
        spec_sha256=artefact.spec.sha256,
        metrics=artefact.metrics,
        parent=parent,
        epoch=epoch,
        created=now(),
    )


def _listed(versions: Sequence[int]) -> str:
    return ", ".join(map(str, versions)) or "none"


def _script(name: str) -> str:
    return Path(__file__).with_name(name).read_text()
