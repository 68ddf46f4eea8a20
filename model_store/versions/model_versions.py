"""The versions of one model: which exist, which is active, their models, verified; publishing, activating, collecting.

A version is complete or absent: its chunks are uploaded with an expiry and made visible by one script (publish.lua).
Another script (activate.lua) sets the active pointer; it refuses a version with a missing chunk, in itself or in a
version it needs, and a writer with a stale epoch. A version is a snapshot or a delta, the changes since its parent; a
delta needs its parent, and so on back to a snapshot: its chain.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError, ResponseError, WatchError

from model_store.clock import SYSTEM, Clock
from model_store.errors import (
    ArtefactError,
    LeaseHeld,
    NewerFormat,
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
    ModelKeys,
    Report,
    counter,
    cure,
    number,
    silent,
    time_of,
    unreadable,
    version_number,
    version_numbers,
)
from model_store.redis.connection import LONGEST_BLOCK_S, StoreConnection
from model_store.versions.audit import PYTHON, Audit, By
from model_store.versions.experiments import StoredExperiment
from model_store.versions.guard_record import GuardRecords
from model_store.versions.lease import TrainerLease, epoch_step, held, taken_over
from model_store.versions.manifest import (
    CHUNK_BYTES,
    Manifest,
    Progress,
    VersionInfo,
    chain_of,
    check_parent,
    chunks_there,
    download,
    incomplete,
    is_whole,
    needed_by,
    now,
    parents_of,
    write_chunks,
)
from model_store.versions.online_metrics import OnlineMetrics

if TYPE_CHECKING:
    from model_store.artefact.artefact import Artefact, Delta
    from model_store.versions.experiments import Experiment

_MOST_NAMED = 100
# A store full of junk must not fill the memory of a server with its reports.
_MOST_REPORTED = 1_000
_EVENTS_LOOKED_AT = 100
WRITER, OPERATOR, OVERRULING = "writer", "operator", "overruling"
HISTORY = 100
KEEP = 5
THINNED = ((60.0, 5), (3_600.0, 6), (86_400.0, 3))
"""Periods, in seconds, of each of which gc keeps a snapshot, and how many periods."""


class ModelVersions:
    """The versions of one model. Every method raises StoreUnavailable if the store does not answer.

    To publish and activate, use `publish_and_activate`, or take an epoch with `begin` before publishing and pass it to
    `activate`, which raises StaleEpoch if a writer that began later has activated a version. A key with an unreadable
    value raises UnreadableValue where the value is needed; otherwise it is skipped and reported.
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
        self._publish = connection.script("publish")
        self._activate = connection.script("activate")
        self._resume = connection.script("resume")

    # -- reading

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

    @property
    def clock(self) -> Clock:
        """That of the store."""
        return self._store.clock

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
                # Several, since the latest ones may be of the experiment, or name versions that gc has deleted.
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
                f"no version of {self.model} is active; its versions: {shown_numbers(self._numbers())}"
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
                # Not HGETALL: specs and metrics of many versions are megabytes.
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
                f"{self.model} has no version {version}; its versions: {shown_numbers(self._numbers())}"
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

    def fetch(self, version: int) -> Artefact | Delta:
        """Download a version as stored, a model or a delta; sizes, SHA-256 and content are verified.

        Raises VersionNotFound, or ArtefactError saying what is damaged.
        """
        return self.read(self.manifest(version))

    def read(self, manifest: Manifest) -> Artefact | Delta:
        """Same as `fetch`, for a version whose manifest has been read already."""
        from model_store.artefact.artefact import Delta, decode

        read = decode(self._download(manifest))  # which has checked the rest
        if isinstance(read, Delta) != manifest.is_delta:
            raise ArtefactError(
                f"version {manifest.version} should be a {manifest.kind}, but its bytes are not; publish it again"
            )
        if isinstance(read, Delta) and (read.parent, read.content) != (manifest.parent, manifest.content):
            raise ArtefactError(
                f"version {manifest.version} should produce content {manifest.content} from version {manifest.parent}, "
                f"but its bytes produce content {read.content} from version {read.parent}; publish it again"
            )
        return read

    def delta_chain(self, served: int, manifest: Manifest, *, at_most: int) -> list[Manifest] | None:
        """The deltas that lead from version `served` to the version of `manifest`, oldest first.

        None if a snapshot lies between the two, or more than `at_most` deltas do. Costs one round trip for each version
        between the two, which are not counted. Raises VersionNotFound, ArtefactError.
        """
        chain = [manifest]
        while (parent := chain[-1].needs) is not None and len(chain) <= at_most:
            check_parent(chain[-1].version, parent)
            if parent <= served:
                return chain[::-1] if parent == served else None
            chain.append(self.manifest(parent))
        return None

    def chain(self, version: int) -> list[Manifest]:
        """The manifests of the versions needed to load `version`: its snapshot first, itself last.

        Raises VersionNotFound if it does not exist, ArtefactError naming a missing parent.
        """
        # `at not in found`: damaged manifests may name each other; `chain_of` then refuses the order.
        found: dict[int, Manifest] = {}
        at: int | None = version
        while at is not None and at not in found:
            try:
                found[at] = self.manifest(at)
            except VersionNotFound:
                if at == version:
                    raise
                break
            at = found[at].needs
        return [found[each] for each in chain_of(version, parents_of(found.values()))]

    def materialise(self, version: int) -> Artefact:
        """The whole model of a version, loaded from its chain; every part and the result are verified.

        Raises VersionNotFound, or ArtefactError saying what is missing, damaged or inconsistent. Time and memory are
        those of its snapshot.
        """
        snapshot, *deltas = (self.read(manifest) for manifest in self.chain(version))
        together: Any = None  # a delta: the snapshot's keys are copied once
        try:
            for delta in deltas:
                together = delta if together is None else together.followed_by(delta)
            whole: Artefact = snapshot if together is None else snapshot.with_changes(together)  # type: ignore
            return whole
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
                # Without a stream to block on; the caller polls `active` after it, and must not do so without pause.
                time.sleep(max(0.0, block_s))
                streams = None
            if streams:
                return str(streams[0][1][-1][0].decode())
            if time.monotonic() >= deadline:
                return last_event_id

    def history(self) -> list[int]:
        """The versions active before, latest first."""
        with self._store.answers(self.keys.history):
            members = self._client.lrange(self.keys.history, 0, -1)
        return version_numbers(self.keys.history, members, self._report)

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
        # Before a number is taken: a model that cannot be encoded uses none up.
        data = model.to_bytes()
        version = self._next_version()
        manifest = manifest_of(model, data, version, parent, epoch, self._store.clock)
        manifest = replace(manifest, through_us=through_us, recent=recent, refused=refused)
        chunks, sizes = self.keys.chunks(version, manifest.chunks), manifest.chunk_sizes()
        write_chunks(self._store, chunks, sizes, data, on_progress)
        own = self.keys.manifest(version)
        # The script takes a parent at a fixed place; a snapshot gives itself there.
        needed = own if manifest.needs is None else self.keys.manifest(manifest.needs)
        changes = getattr(model, "parent_content", "")  # what a delta is the change of
        fields = [word for pair in manifest.to_hash().items() for word in pair]
        published_s = int(manifest.created.timestamp())
        answer = self._publish(
            [own, self.keys.versions, needed, self.keys.trainer, *chunks],
            [version, published_s, changes, epoch, *sizes, *fields],
        )
        self._check(answer, [manifest])
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
        # Before the upload: a writer that begins meanwhile gets a higher epoch, and its version wins.
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
            # No new epoch: the trainer that published it is confirmed, not fenced off.
            before = self._point_to(version, self._fence(), "activate", OVERRULING, by)
            if manifest.refused:
                # After the pointer: if that is refused, the refusal stays too.
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
                f"its versions: {shown_numbers(self._numbers())}"
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
        # Of all: they are ordered by time, and those of a clock that was ahead come last.
        return self._count(self.keys.sequence, max(self._numbers(), default=0))

    def _next_epoch(self) -> int:
        """An epoch above all earlier ones, even if the counter was set back."""
        return self._count(self.keys.epoch, self._fence(), epoch_step())

    def _count(self, key: str, above: int, step: int = 1) -> int:
        """Increment a counter by `step`, or to `above + step` if that is more. Raises UnreadableValue."""
        with self._store.answers(key):
            number = int(self._client.incrby(key, step))
            if number <= above:
                self._report(
                    f"{key}: got {number - step}, expected at least {above}; counting continues from there"
                )
                # Two writers that find it set back at once get different numbers: each adds to what the other has
                # made.
                number = int(self._client.incrby(key, above + step - number))
        if number > MOST_COUNTED:
            raise unreadable(key, f"got {number}, expected a whole number up to {MOST_COUNTED}")
        return number

    def _verify(self, manifest: Manifest) -> None:
        """Raise ArtefactError unless the version's bytes are complete and it can be loaded."""
        if manifest.is_delta:
            self.materialise(manifest.version)
        else:
            self._download(manifest)

    def _point_to(self, version: int, epoch: int, way: str, who: str, by: By | None) -> int | None:
        """Set the active pointer, and record an operator's order; returns the version that was active before."""
        chain = self.chain(version)[::-1]
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
        """Raise the error of a script's answer, unless it is ok. chain: the version, its parent, …"""
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
        active, sound = self.known_active(), self._sound()
        before = [each for each in history if each in sound and each != active]
        older = [each for each in sound if active is not None and each < active]
        return before[0] if before else max(older, default=None)

    def _sound(self) -> list[int]:
        """The versions that a rollback may choose: complete and not refused."""
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
        """As `gc`; None to try again, since nothing was deleted, or all of `tried`."""
        with self._store.answers(), self._client.pipeline(transaction=True) as pipe:
            # Before anything is read: if one of them changes, what is decided below is void, and EXEC does nothing.
            pipe.watch(self.keys.active, self.keys.history, self.keys.versions, self.keys.guard)
            numbers = self._numbers()
            # strict: with a default in place of an unreadable number, the version that the guard watches would be
            # deleted.
            watched = self.guard.record(strict=True)
            active = (
                self.known_active() or self.active()
            )  # raises if the pointer is damaged and no event names one
            spared = (active, self._previous(), watched.good, watched.candidate)
            infos = self.versions()
            wanted = {*numbers[-(keep or KEEP) :], *filter(None, spared)}
            if keep is None:
                wanted |= _thinned(infos)
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
                # UNLINK frees the memory beside the server's one thread; DEL of gigabytes would hold up all readers.
                pipe.unlink(*doomed)
                pipe.zrem(self.keys.versions, *gone)
                try:
                    pipe.execute()
                # redis-py raises it also where the connection was lost during EXEC: then all of `tried` may be gone.
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

    def _next_events(self, after: str, block_ms: int) -> Any:
        """Raises RedisError."""
        try:
            return self._store.patient_at(self.keys.events).xread({self.keys.events: after}, block=block_ms)
        except ResponseError as error:
            # The only server has become a replica: it ends what blocks, and can be read as before.
            if self._store.nodes is not None or not str(error).startswith("UNBLOCKED"):
                raise
            return None

    def _download(self, manifest: Manifest) -> bytes:
        from model_store.artefact.artefact import Delta

        # The higher one of the two formats. Before the bytes, so that no gigabyte is fetched to be refused.
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
        # Servers poll each second: a value that stays unreadable is reported once.
        if text not in self._reported and len(self._reported) < _MOST_REPORTED:
            self._reported.add(text)
            self._on_junk(text)


_NOT_LISTED = {b"spec": b"", b"metrics": b"{}", b"recent": b""}
"""Manifest fields that a list does not read, since they may be long."""
_LISTED = tuple(each.name for each in fields(Manifest) if each.name.encode() not in _NOT_LISTED)


def shown_numbers(versions: Sequence[int]) -> str:
    """Version numbers for a message; of many only the first and last, since a gRPC status holds 8 KiB."""
    if len(versions) > _MOST_NAMED:
        return f"{shown_numbers(versions[:3])}, … {shown_numbers(versions[-3:])} ({len(versions):,} in total)"
    return ", ".join(map(str, versions)) or "none"


def _thinned(infos: Sequence[VersionInfo]) -> set[int]:
    """The first snapshot that can be served of each period of THINNED, back from the newest one."""
    found: dict[tuple[float, int], int] = {}
    # Snapshots only: a delta would keep its chain, and damaged versions have no kind.
    times = {
        each.version: each.published.timestamp()
        for each in infos
        if each.kind == SNAPSHOT and not each.refused
    }
    # Not back from the present, so that a machine whose clock is ahead collects nothing that is new.
    now_s = times[max(times)] if times else 0.0
    for version, published_s in times.items():
        for length_s, most in THINNED:
            ago = int(now_s // length_s) - int(published_s // length_s)
            if 0 <= ago < most:
                found.setdefault((length_s, ago), version)
    return set(found.values())


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
    model: Artefact | Delta,
    data: bytes,
    version: int,
    parent: int | None,
    epoch: int,
    clock: Clock = SYSTEM,
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
        created=now(clock),
        kind=DELTA if isinstance(model, Delta) else SNAPSHOT,
        content=model.content,
    )
