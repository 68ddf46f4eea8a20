"""The versions of one model, for writers: publish, activate, roll back, collect.

A version is complete or absent: its chunks are uploaded with an expiry and made visible by one script (publish.lua).
Another script (activate.lua) sets the active pointer; it refuses a version with a missing chunk, in itself or in a
version it needs, and a writer with a stale epoch.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redis.exceptions import WatchError

from model_store.errors import (
    ArtefactError,
    LeaseHeld,
    Pinned,
    StaleEpoch,
    StoreError,
    UnreadableValue,
    VersionNotFound,
    VersionRefused,
)
from model_store.keys import (
    DELTA,
    MOST_COUNTED,
    SNAPSHOT,
    Report,
    counter,
    silent,
    unreadable,
    version_numbers,
)
from model_store.redis.connection import StoreConnection
from model_store.versions.audit import PYTHON, By
from model_store.versions.chain import Progress, chunks_there, incomplete, upload
from model_store.versions.lease import TrainerLease, held, taken_over
from model_store.versions.manifest import CHUNK_BYTES, Manifest, now
from model_store.versions.published_versions import PublishedVersions, VersionInfo, listed, parents_of

if TYPE_CHECKING:
    from model_store.artefact.artefact import Artefact, Delta

WRITER, OPERATOR, OVERRULING = "writer", "operator", "overruling"
HISTORY = 100
KEEP = 5
THINNED = ((60.0, 5), (3_600.0, 6), (86_400.0, 3))
"""Periods, in seconds, of each of which gc keeps a snapshot, and how many periods."""
NEWEST = 10
"""How many of the latest versions are examined for the highest number."""


class ModelVersions(PublishedVersions):
    """The versions of one model. Every method raises StoreUnavailable if the store does not answer.

    To publish and activate, use `publish_and_activate`, or take an epoch with `begin` before publishing and pass it to
    `activate`, which raises StaleEpoch if a writer that began later has activated a version.
    """

    def __init__(self, connection: StoreConnection, model: str, on_junk: Report = silent) -> None:
        super().__init__(connection, model, on_junk)
        self._publish = connection.script("publish")
        self._activate = connection.script("activate")
        self._resume = connection.script("resume")

    # -- writing

    def begin(self) -> int:
        """Take the next epoch, the fencing token of a writer that will activate.

        Raises LeaseHeld while a trainer holds the model's lease; only an operator may overrule it.
        """
        self.refuse_beside_a_trainer()
        return self._next_epoch()

    def refuse_beside_a_trainer(self) -> None:
        """Raise LeaseHeld while a trainer holds the model's lease: then only an operator may activate."""
        TrainerLease(self._store, self.model, "").refuse_while_held()

    def publish(
        self,
        model: Artefact | Delta,
        *,
        parent: int | None = None,
        epoch: int = 0,
        through_us: int | None = None,
        recent: str = "",
        refused: str = "",
        on_progress: Progress | None = None,
    ) -> int:
        """Upload a model or a delta as a new version and return its number. It is visible, but not active.

        `parent`: the version it was made from; by default the one that a delta names. `through_us`, `recent`,
        `refused`: see `Manifest`. `on_progress(bytes done, bytes in total)` is called after each chunk. Raises
        VersionNotFound if a delta's parent does not exist, ArtefactError if the parent's content is not what the delta
        changes.
        """
        model, parent = _with_parent(model, parent)
        data = model.to_bytes()
        version = self._next_version()
        manifest = manifest_of(model, data, version, parent, epoch)
        manifest = replace(manifest, through_us=through_us, recent=recent, refused=refused)
        upload(self._store, self.keys, manifest, data, on_progress)
        self._make_visible(manifest, getattr(model, "parent_content", ""))
        return version

    def publish_and_activate(
        self,
        model: Artefact | Delta,
        *,
        parent: int | None = None,
        on_progress: Progress | None = None,
        by: By | None = None,
    ) -> int:
        """Publish and activate. by: the operator whose order that is, for the audit; None for a program's.

        Raises StaleEpoch if a writer that began later has activated a version.
        """
        epoch = self.begin()
        version = self.publish(model, parent=parent, epoch=epoch, on_progress=on_progress)
        self._point_to(version, epoch, "activate", WRITER, by)
        return version

    def activate(
        self, version: int, *, epoch: int | None = None, force: bool = False, by: By = PYTHON
    ) -> int | None:
        """Make `version` active; returns the version that was active before.

        Without an `epoch` this is an operator's order, which the audit records: the version's bytes are verified, and
        every writer that began before is fenced off, a trainer until `resume`. Everything that a delta needs must
        exist. `force` activates a version that a guard or a server has refused, and clears the refusal; if a guard had
        refused it, or it is active already, no writer is fenced off. Raises VersionNotFound, ArtefactError, StaleEpoch,
        VersionRefused; then nothing has changed.
        """
        if not force or epoch is not None:
            return self._verify_and_point(version, epoch, "activate", by)
        manifest = self.manifest(version)
        if manifest.refused or version == self.active():
            self._verify(manifest)
            before = self._point_to(version, self._fence(), "activate", OVERRULING, by)
            if manifest.refused:
                self.guard.overrule(version)
        else:
            before = self._verify_and_point(version, None, "activate", by)
        self.guard.force(version)
        return before

    def rollback(self, version: int | None = None, *, by: By = PYTHON) -> int:
        """Activate `version` again, by default the one active before; returns the version now active.

        Raises what `go_back` raises.
        """
        return self.go_back(version, by=by)[0]

    def go_back(
        self, version: int | None = None, *, epoch: int | None = None, by: By = PYTHON
    ) -> tuple[int, int | None]:
        """Same as `rollback`; returns the version now active, and the one it replaced.

        If no version of the history exists any more, the newest version older than the active one is chosen. Deltas
        that cannot be loaded and refused versions are skipped. `epoch`: that of a writer that rolls back
        automatically; raises StaleEpoch if another has activated a version since. Raises VersionNotFound if there is
        no version to return to.
        """
        target = self._previous() if version is None else version
        if target is None:
            raise VersionNotFound(
                f"{self.model} has no version before the active one ({self.known_active() or 'none is active'}); "
                f"its versions: {listed(self._numbers())}"
            )
        return target, self._verify_and_point(target, epoch, "rollback", by)

    def resume(self, by: By = PYTHON) -> int | None:
        """Remove the pin, so that trainers activate again, and record it; returns the version that was pinned."""
        pinned = int(self._resume([self.keys.trainer, self.keys.active_epoch])) or None
        if pinned is not None:
            self.audit.write(by, "resume", pinned, None)
        return pinned

    def served_before(self, version: int) -> int | None:
        """The last active version older than `version` that is complete and not refused; None without one."""
        sound = self._sound()
        return next((each for each in self.history() if each < version and each in sound), None)

    def gc(self, keep: int | None = None, *, dry_run: bool = False) -> list[int]:
        """Delete all but the newest `keep` versions, the active one and the target of a rollback.

        keep: None: the newest KEEP, and one snapshot of each of the last minutes, hours and days (THINNED), so that one
        can go back further than seconds where versions are published each second. The versions that a guard watches or
        found good are kept too, and everything that kept deltas need. Returns the versions deleted (dry_run: to be
        deleted), oldest first. O(versions + chunks deleted).
        """
        if keep is not None and keep < 1:
            raise StoreError(f"got keep={keep}; expected at least 1")
        tried = set[int]()
        while (collected := self._collect(keep, dry_run, tried)) is None:
            pass  # the active version changed meanwhile, or the answer was lost: try again
        return sorted({*collected, *tried} - ({*self._numbers()} if tried else set()))

    # -- steps

    def _make_visible(self, manifest: Manifest, parent_content: str) -> None:
        own = self.keys.manifest(manifest.version)
        parent = self.keys.manifest(manifest.parent) if manifest.is_delta and manifest.parent else own
        chunks = self.keys.chunks(manifest.version, manifest.chunks)
        keys = [own, self.keys.versions, parent, self.keys.trainer, *chunks]
        fields = [word for pair in manifest.to_hash().items() for word in pair]
        published_s = int(manifest.created.timestamp())
        sizes = manifest.chunk_sizes()
        words = [manifest.version, published_s, parent_content, manifest.epoch, *sizes, *fields]
        answer = self._publish(keys, words)
        self._check(answer, [manifest])

    def _verify_and_point(self, version: int, epoch: int | None, way: str, by: By) -> int | None:
        if epoch is not None:
            return self._point_to(version, epoch, way, WRITER, None)
        manifest = self.manifest(version)
        if manifest.refused:
            raise VersionRefused(
                f"version {version} of {self.model} is refused: {manifest.refused}. Activate another one; or, to serve "
                f"it anyway: ftrie store activate {self.model} {version} --force"
            )
        self._verify(manifest)
        return self._point_to(version, self._next_epoch(), way, OPERATOR, by)

    def _next_version(self) -> int:
        """A number above all existing versions, even if the sequence was set back."""
        with self._store.answers(self.keys.versions):
            newest = self._client.zrevrange(self.keys.versions, 0, NEWEST)
        return self._count(
            self.keys.sequence, max(version_numbers(self.keys.versions, newest, self._report), default=0)
        )

    def _next_epoch(self) -> int:
        """An epoch above all earlier ones, even if the counter was set back."""
        return self._count(self.keys.epoch, self._fence())

    def _count(self, key: str, above: int) -> int:
        """Increment a counter, to a number above `above`. Raises UnreadableValue."""
        with self._store.answers(key):
            number = int(self._client.incr(key))
            if number <= above:
                self._report(
                    f"{key}: got {number - 1}, expected at least {above}; counting continues from there"
                )
                number = int(self._client.incrby(key, above + 1 - number))
        if number > MOST_COUNTED:
            raise unreadable(key, f"got {number}, expected a whole number up to {MOST_COUNTED}")
        return number

    def history(self) -> list[int]:
        """The versions active before, latest first."""
        with self._store.answers(self.keys.history):
            members = self._client.lrange(self.keys.history, 0, -1)
        return version_numbers(self.keys.history, members, self._report)

    def _verify(self, manifest: Manifest) -> None:
        """Raise ArtefactError unless the version's bytes are complete and it can be loaded."""
        if manifest.is_delta:
            self.materialise(manifest.version)
        else:
            self._download(manifest)

    def _point_to(self, version: int, epoch: int, way: str, who: str, by: By | None) -> int | None:
        """Set the active pointer, and record an operator's order; returns the version that was active before."""
        chain = self._chain(version)[::-1]
        own = self.keys
        keys = [own.active, own.active_epoch, own.history, own.events, own.trainer]
        for manifest in chain:
            keys += [
                self.keys.manifest(manifest.version),
                *self.keys.chunks(manifest.version, manifest.chunks),
            ]
        words = [version, epoch, way, HISTORY, who, *(each.chunks for each in chain)]
        answer = self._activate(keys, words)
        self._check(answer, chain)
        _, active, *skipped = answer
        before = int(active) if active else None
        if by is not None:  # after the change, since a refused one leaves no entry
            self.audit.write(by, way, before, version)
        for key in skipped:
            self._report(
                f"{unreadable(key.decode(), 'held an unreadable value')}; version {version} was activated anyway"
            )
        return before

    def _check(self, answer: Sequence[Any], chain: Sequence[Manifest]) -> None:
        """Raise the error that a script's answer stands for, unless it is ok. chain: the version, its parent, …"""
        version, parent = chain[0].version, chain[0].parent
        match answer:
            case [b"absent", place]:
                raise VersionNotFound(f"version {chain[place].version} of {self.model} was deleted meanwhile")
            case [b"chunk", place, index, expected, there]:
                raise incomplete(chain[place].version, index, expected, there)
            case [b"orphan"]:
                raise VersionNotFound(
                    f"version {version} of {self.model} would be a delta of version {parent}, which does not exist; "
                    "publish a snapshot"
                )
            case [b"other", content]:
                raise ArtefactError(
                    f"version {version} of {self.model} would be a delta of version {parent}, whose content is "
                    f"{content.decode()}, not what the delta changes; publish a snapshot"
                )
            case [b"stale", last]:
                raise StaleEpoch(
                    f"version {version} of {self.model} stays inactive: another writer (epoch {last}) has "
                    "activated a version since this one began; train again, or activate it manually"
                )
            case [b"pinned", chosen]:
                raise Pinned(
                    f"version {version} of {self.model} stays inactive: an operator has pinned version {chosen}; "
                    f"to let the trainer activate again: ftrie store resume {self.model}"
                )
            case [b"fenced", epoch, host, process]:
                raise StaleEpoch(taken_over(self.model, epoch, host, process))
            case [b"held", host, process, silent_ms]:
                raise LeaseHeld(
                    f"version {version} stays inactive: {held(self.model, host, process, silent_ms)}; "
                    f"or activate it manually: ftrie store activate {self.model} {version}"
                )

    def _previous(self) -> int | None:
        try:
            history = self.history()
        except UnreadableValue as error:
            self._report(f"{error}; the newest version before the active one is chosen")
            history = []
        return _rollback_target(self.known_active(), history, self._sound())

    def _sound(self) -> list[int]:
        """The versions that a rollback may choose: complete and not refused."""
        from model_store.versions.chain import is_whole

        infos = self.versions()
        parents = parents_of(infos)
        return [each.version for each in infos if not each.refused and is_whole(each.version, parents)]

    def _fence(self) -> int:
        """The lowest epoch that may activate now: the higher of the trainer's and that of the last activation."""
        with self._store.answers(self.keys.trainer):
            trainer = counter(f"{self.keys.trainer} epoch", self._client.hget(self.keys.trainer, "epoch"))
        try:
            with self._store.answers(self.keys.active_epoch):
                last = counter(self.keys.active_epoch, self._client.get(self.keys.active_epoch))
        except UnreadableValue as error:  # activate.lua decides who may overwrite it
            self._report(str(error))
            last = 0
        return max(last, trainer)

    def _collect(self, keep: int | None, dry_run: bool, tried: set[int]) -> list[int] | None:
        """As `gc`; None if it is to be tried again, since nothing was deleted, or all of `tried`."""
        from model_store.versions.chain import needed_by

        with self._store.answers(), self._client.pipeline(transaction=True) as pipe:
            pipe.watch(self.keys.active, self.keys.history, self.keys.versions)
            numbers = self._numbers()
            watched = self.guard.record(strict=True)
            active = (
                self.known_active() or self.active()
            )  # raises if the pointer is damaged and no event names one
            spared = (active, self._previous(), watched.good, watched.candidate)
            infos = self.versions()
            wanted = {*numbers[-(keep or KEEP) :], *filter(None, spared)}
            if keep is None:
                wanted |= _thinned(infos, time.time())
            kept = wanted | needed_by(wanted, parents_of(infos))
            # The parents of a damaged version are unknown, and it may be repaired: keep everything older.
            damaged = max(
                (info.version for info in infos if info.damaged and info.version in kept), default=0
            )
            kept |= {version for version in numbers if version < damaged}
            gone = [version for version in numbers if version not in kept]
            doomed = [key for version in gone for key in self._keys_of(version)]
            if gone and not dry_run:
                tried.update(gone)
                pipe.multi()
                pipe.unlink(*doomed)
                pipe.zrem(self.keys.versions, *gone)
                try:
                    pipe.execute()
                except WatchError:
                    return None
        return gone

    def _keys_of(self, version: int) -> list[str]:
        try:
            chunks = self.manifest(version).chunks
        except VersionNotFound:
            chunks = 0
        except ArtefactError:  # unreadable: delete the chunks that exist
            chunks = chunks_there(self._store, self.keys, version)
        return [self.keys.manifest(version), *self.keys.chunks(version, chunks)]


def _thinned(infos: Sequence[VersionInfo], now_s: float) -> set[int]:
    """The first snapshot of each period of THINNED that can be served."""
    found: dict[tuple[float, int], int] = {}
    for info in infos:
        if info.kind == SNAPSHOT and not info.refused:
            for length_s, most in THINNED:
                ago = int(now_s // length_s) - int(info.published.timestamp() // length_s)
                if 0 <= ago < most:
                    found.setdefault((length_s, ago), info.version)
    return set(found.values())


def _rollback_target(active: int | None, history: Sequence[int], versions: Sequence[int]) -> int | None:
    existing = set(versions)
    before = [version for version in history if version in existing and version != active]
    if before:
        return before[0]
    return max((version for version in versions if active is not None and version < active), default=None)


def _with_parent(model: Artefact | Delta, parent: int | None) -> tuple[Artefact | Delta, int | None]:
    """The model and its parent. A delta must have one, which its bytes name as well."""
    from model_store.artefact.artefact import Delta

    if not isinstance(model, Delta):
        return model, parent
    named = model.parent if parent is None else parent
    if named < 1:
        raise StoreError("got a delta without a parent; expected the version that it changes")
    return (model if named == model.parent else replace(model, parent=named)), named


def manifest_of(
    model: Artefact | Delta, data: bytes, version: int, parent: int | None, epoch: int
) -> Manifest:
    """The manifest of a model with these bytes, created now."""
    from model_store.artefact.artefact import Delta

    return Manifest(
        version=version,
        format=model.FORMAT,
        rows=model.rows,
        size=len(data),
        chunks=-(-len(data) // CHUNK_BYTES),
        chunk_bytes=CHUNK_BYTES,
        sha256=hashlib.sha256(data).hexdigest(),
        spec=model.spec.to_json(),
        spec_sha256=model.spec.sha256,
        metrics=model.metrics,
        parent=parent,
        epoch=epoch,
        created=now(),
        kind=DELTA if isinstance(model, Delta) else SNAPSHOT,
        content=model.content,
    )
