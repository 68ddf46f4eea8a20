"""Publishes a model while it learns: when, as a snapshot or a delta, and what happens if the store does not take it.

`delta_chain` makes the deltas, `guard` decides which versions may be served. A version that cannot be published is
reported, and its changes are in the next one. `PublishPacer` decides when a trainer publishes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from model_store.clock import Clock
from model_store.errors import (
    ArtefactError,
    FtrieError,
    InputError,
    LeaseHeld,
    NotActivated,
    Pinned,
    StaleEpoch,
    StoreError,
    VersionNotFound,
)
from model_store.versions.model_versions import ModelVersions
from model_store.waiting import Backoff
from trainer.events.join import EventCounts
from trainer.formats.rejects import too_many_rejected
from trainer.learn.model import LearningModel
from trainer.publish.delta_chain import Change, DeltaChain
from trainer.publish.guard import Guard, Verdict
from trainer.settings import Every, Schedule

PAUSE_WHILE_BEHIND = 10.0
"""A trainer that is behind waits this many times as long as its last publication took."""


@dataclass(frozen=True)
class PublishOptions:
    """How a run publishes while it learns.

    snapshot_every: deltas between two snapshots, or the time between them; threshold: smaller moves of a weight are not
    published yet; activate: make servers switch to each version; keep: how many versions the store keeps, 0 for all;
    None: see `ModelVersions.gc`.
    """

    every: Every
    snapshot_every: int | Every = 10
    threshold: float = 0.0
    activate: bool = False
    keep: int | None = None


@dataclass
class PublishCounts:
    """Versions published as snapshots and as deltas, and attempts that failed.

    Of those published, refused: by the guard; held: not activated, as a rollback was less than the cooldown ago.
    """

    snapshots: int = 0
    deltas: int = 0
    failed: int = 0
    refused: int = 0
    held: int = 0

    def as_dict(self) -> dict[str, int]:
        """The counts by name."""
        return asdict(self)


class BatchPublisher(Protocol):
    """What a run over logs needs of its publisher."""

    counts: PublishCounts
    withheld: str
    """Why nothing may be published now; empty if it may. Set by the run before each `after_batch`."""

    def begin(self, model: LearningModel) -> None:
        """The run starts; the model may be new or restored."""

    def after_batch(self, model: LearningModel) -> None:
        """A batch has been learned: publish if it is due. Must not raise."""


class Publisher:
    """Publishes a run's versions. The first is a snapshot, whatever earlier runs have published.

    A snapshot replaces a delta that would hold more than half of the keys, or whose parent the store has lost. If
    another writer has activated a version since the run started, this run's versions stay inactive; if an operator has
    pinned one, a trainer's versions do until the pin is removed (`retry_activation`). A version that the guard refuses
    is published, marked as refused and stays inactive; the next delta's parent is that version nevertheless.
    """

    def __init__(
        self,
        versions: ModelVersions,
        options: PublishOptions,
        on_warning: Callable[[str], None] = lambda text: None,
        *,
        epoch: int | None = None,
    ) -> None:
        """Without `epoch` take one from the store, if versions are to be activated. Raises StoreUnavailable."""
        self.counts = PublishCounts()
        self.through_us: int | None = None  # set by a run over events: see `Manifest`
        self.withheld = ""  # set by the run: see `BatchPublisher`
        self._reported_withheld = False
        self._versions = versions
        self._options = options
        self._warn = on_warning
        self._guard = Guard(versions, on_warning)
        self._verdict = Verdict()
        self._epoch = epoch if epoch is not None else versions.begin() if options.activate else 0
        self._stale: StaleEpoch | None = None
        self._pinned: Pinned | None = None
        self._failed: StoreError | None = None
        self._schedule = Schedule(options.every, 0, versions.clock)
        self._snapshots = (
            Schedule(options.snapshot_every, 0, versions.clock)
            if isinstance(options.snapshot_every, Every)
            else None
        )
        self._chain: DeltaChain | None = None
        self._deltas = 0

    @property
    def clock(self) -> Clock:
        """That of the store."""
        return self._versions.clock

    @property
    def model_name(self) -> str:
        """The name of the model whose versions these are."""
        return self._versions.model

    @property
    def version(self) -> int | None:
        """The last version that this run has published; None before the first."""
        return self._chain.version if self._chain is not None else None

    @property
    def inactive(self) -> str:
        """Why versions stay inactive: an operator's pin, or another writer; empty if they do not."""
        return str(self._pinned or self._stale or "")

    def begin(self, model: LearningModel) -> None:
        """Count from here."""
        self._schedule.restart(model.rows)

    def restart_chain(self) -> None:
        """The store has lost what was published: the next version is a snapshot without a parent."""
        # Another writer may have activated while the lease was lost too; the renewed lease lets this one pass.
        self._chain = self._stale = None

    @property
    def awaits_activation(self) -> bool:
        """Whether only a pin, or a failure of the store, keeps the last version inactive."""
        return bool(self._pinned or self._failed)

    def retry_activation(self) -> None:
        """Activate the last version if it awaits that. Raises StoreError."""
        if self.awaits_activation and self._chain is not None and self._verdict.may_be_served:
            self._point_to(self._chain.version)

    def after_batch(self, model: LearningModel) -> None:
        """Publish if it is due. A failure is reported, and the run continues."""
        if not self._schedule.is_due(model.rows):
            return
        self._schedule.restart(model.rows)
        if self.withheld:
            if not self._reported_withheld:
                self._warn(self.withheld)
            self._reported_withheld = True
            return
        self._reported_withheld = False
        try:
            self._publish(model, last=False)
        except FtrieError as error:
            self.counts.failed += 1
            self._warn(f"no version could be published at {model.rows:,} rows: {error}; learning continues")

    def finish(self, model: LearningModel) -> int:
        """Publish all changes at the end of a run, also those below the threshold; return the last version.

        Raises InputError if publishing is `withheld`, and what publishing raises.
        """
        if self.withheld:
            raise InputError(self.withheld)
        return self._publish(model, last=True)

    def check_activated(self) -> None:
        """After `finish`: raise why the last version stays inactive, if it was to be activated.

        StaleEpoch if another writer has overtaken this one, Pinned if an operator's pin keeps it inactive,
        VersionRefused if the guard does, NotActivated if the store failed after it was published.
        """
        if reason := self._stale or self._pinned or self._failed:
            raise reason
        if self._options.activate and self.version is not None:
            self._guard.check(self.version, self._verdict)

    def _publish(self, model: LearningModel, *, last: bool) -> int:
        chain, change = self._chain, None
        if chain is not None and (last or not self._wants_snapshot(model)):
            change = chain.change(self._options.threshold, last=last)
            if last and not change.delta.rows and chain.examples == model.rows:
                return chain.version
        if chain is not None and change is not None and not self._wants_snapshot(model):
            version = self._publish_delta(model, chain, change)
            if version is not None:
                return version
        return self._publish_snapshot(model)

    def _wants_snapshot(self, model: LearningModel) -> bool:
        if self._snapshots is not None:
            return self._snapshots.is_due(model.rows)
        assert isinstance(self._options.snapshot_every, int)
        return self._deltas >= self._options.snapshot_every

    def _publish_delta(self, model: LearningModel, chain: DeltaChain, change: Change) -> int | None:
        """Publish a change; None if a snapshot has to be published instead."""
        if 2 * change.delta.rows > change.keys:
            return None
        verdict = self._guard.judge(model, change.keys)
        try:
            version = self._versions.publish(change.delta, **self._described(verdict))
        except (VersionNotFound, ArtefactError) as error:
            self._warn(
                f"version {chain.version} can no longer be a parent ({error}); publishing a snapshot instead"
            )
            self.restart_chain()
            return None
        chain.mark_published(change, version)
        self._deltas += 1
        self.counts.deltas += 1
        self._activate(version, verdict)
        return version

    def _publish_snapshot(self, model: LearningModel) -> int:
        parent = self._chain.version if self._chain is not None else None
        artefact = model.artefact()
        verdict = self._guard.judge(model, artefact.rows)
        version = self._versions.publish(artefact, parent=parent, **self._described(verdict))
        self._chain = DeltaChain(model, artefact, version)
        self._deltas = 0
        if self._snapshots is not None:
            self._snapshots.restart(model.rows)
        self.counts.snapshots += 1
        self._activate(version, verdict)
        self._collect()
        return version

    def _described(self, verdict: Verdict) -> dict[str, Any]:
        """The members of the manifest that the publisher sets."""
        judged = {"recent": verdict.recent, "refused": verdict.refused}
        return {"epoch": self._epoch, "through_us": self.through_us, **judged}

    def _activate(self, version: int, verdict: Verdict) -> None:
        """Make servers switch to a published version. A failure of the store is reported, and tried again later."""
        self._verdict, self._failed = verdict, None
        try:
            self._guard.report(version, verdict)
            if self._options.activate and self._stale is None and verdict.may_be_served:
                self._point_to(version)
        except StoreError as error:
            says_so = isinstance(error, LeaseHeld)  # its text says that the version stays inactive
            self._failed = error if says_so else NotActivated(self.model_name, version, error)
            self._warn(f"{self._failed}; will try again, or activate the next version")
        self.counts.refused, self.counts.held = self._guard.refused, self._guard.held

    def _point_to(self, version: int) -> None:
        try:
            self._versions.activate(version, epoch=self._epoch)
        except Pinned as error:
            if self._pinned is None:
                self._warn(str(error))
            self._pinned = error
        except StaleEpoch as error:
            self._stale = error
            self._warn(f"{error}; this run's versions stay inactive from now on")
        else:
            if self._pinned is not None:
                self._warn(f"the operator's pin was removed: version {version} is active")
            elif self._failed is not None:
                self._warn(f"version {version} is active now")
            self._pinned = self._failed = None

    def _collect(self) -> None:
        """Delete old versions beyond those to keep. A failure only costs room in the store."""
        if self._options.keep == 0:
            return
        try:
            self._versions.gc(self._options.keep)
        except StoreError as error:
            self._warn(f"old versions could not be deleted: {error}")


class PublishPacer:
    """Publishes a trainer's model, except while nothing was learned or too many rows were rejected. For one thread.

    At longer intervals while the trainer is behind its sources; after a failure with a growing pause, so that a store
    that hangs does not hold up learning; and after a crash only when the model has learned again what the last
    published version had.
    `rows`: examples that the last published version had learned; `version`: that version, if this run published it.
    """

    def __init__(self, publisher: Publisher, rows: int, *, force: bool = False) -> None:
        """rows: those of the version that an earlier run of the same trainer published last, from its lease.

        force: publish however many labelled rows were rejected.
        """
        self.publisher = publisher
        self._now = publisher.clock.monotonic
        self._force = force
        self._before = EventCounts()
        self.rows = rows
        self._through_us = self._start_rows = 0
        self.version: int | None = None
        self._backoff = Backoff(first_s=0.5, longest_s=10.0)
        self._not_before = 0.0
        self._store_lost_data = False

    def published_rows(self) -> int:
        """Those that a later run of this trainer need not publish; 0 while the last version awaits its activation."""
        return 0 if self.publisher.awaits_activation else self.rows

    def store_lost_its_data(self) -> None:
        """Publish everything learned again, as soon as that is allowed."""
        self._store_lost_data = True
        self.publisher.restart_chain()

    def begin(self, model: LearningModel, through_us: int = 0, counts: EventCounts | None = None) -> None:
        """Count from here. through_us: of a resumed run, the time up to which the active version has learned."""
        self._before = replace(counts or EventCounts())
        self._through_us, self._start_rows = through_us, model.rows
        self.rows = self.rows if model.rows else 0  # a run that starts again may never learn as many
        self.publisher.begin(model)

    def after_step(self, model: LearningModel, all_counts: EventCounts, behind: bool) -> None:
        """Publish if it is due and there is something new. Raises nothing."""
        through_us = all_counts.through_us
        is_published = self._is_published(model, through_us)
        if self._store_lost_data:
            is_published = not model.rows
        if is_published or self._now() < self._not_before:
            return
        self.publisher.through_us = through_us
        self.publisher.withheld = self._withheld(all_counts)
        counts = self.publisher.counts
        published, failed, began = counts.snapshots + counts.deltas, counts.failed, self._now()
        self.publisher.after_batch(model)
        if counts.failed > failed:
            self._not_before = self._now() + self._backoff.failed()
        elif counts.snapshots + counts.deltas > published:
            self._note_published(model, all_counts)
            took = self._now() - began
            self._not_before = began + took * (1.0 + PAUSE_WHILE_BEHIND if behind else 1.0)

    def finish(self, model: LearningModel, counts: EventCounts) -> int | None:
        """Publish all remaining changes; None if nothing was learned.

        Raises what prevents that, or the activation of the last version.
        """
        through_us = counts.through_us
        # This run has learned nothing, and an earlier one has published what the checkpoint holds.
        is_published = (
            model.rows == self._start_rows
            and self._is_published(model, through_us)
            and not self._store_lost_data
        )
        if not model.rows or model.rows < self.rows or is_published:
            return self.version
        self.publisher.through_us = through_us
        self.publisher.withheld = self._withheld(counts)
        self.version = self.publisher.finish(model)
        self.rows = model.rows
        self.publisher.check_activated()
        return self.version

    def _is_published(self, model: LearningModel, through_us: int) -> bool:
        """Whether a version before has all that the model has learned.

        Not if it has learned of the same events: windows that have ended since give more rows. The lease knows how many
        it had only some seconds after it was published; publishing the same model once more does no harm.
        """
        return model.rows <= self.rows or 0 < through_us < self._through_us  # labelled rows have no time

    def _withheld(self, counts: EventCounts) -> str:
        """Why nothing may be published: too many of the labelled rows since the last version were rejected."""
        if self._force or not counts.rows:
            return ""
        bad = counts.bad_rows - self._before.bad_rows
        rows = counts.rows - self._before.rows
        name = self.publisher.model_name
        where = [
            f"of the rows since the last publication; `ftrie store dead {name}` lists them with their reasons"
        ]
        return too_many_rejected(bad / rows if rows else 0.0, bad, where, "then start the trainer again")

    def _note_published(self, model: LearningModel, counts: EventCounts) -> None:
        self._before = replace(counts)
        self._backoff.succeeded()
        self._store_lost_data = False
        self.rows = model.rows
        self._through_us = 0
        self.version = self.publisher.version
