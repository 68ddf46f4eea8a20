"""When a model that learns is published, as what, and what becomes of it when the store does not take it.

`line` makes the deltas. A version that cannot be published is told of, and what it held goes out with the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

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
from model_store.versions.model_versions import KEEP, ModelVersions
from trainer.checkpoint.schedule import Every, Schedule
from trainer.learn.model import LearningModel
from trainer.publish.delta_chain import Change, Line
from trainer.publish.guard import Guard, Verdict


@dataclass(frozen=True)
class Publishing:
    """How a run publishes while it learns.

    snapshot_every: deltas between two snapshots, or the time; threshold: moves of a weight up to this are held back;
    activate: make servers switch to each version; keep: how many versions the store keeps, None for all.
    """

    every: Every
    snapshot_every: int | Every = 10
    threshold: float = 0.0
    activate: bool = False
    keep: int | None = KEEP


@dataclass
class Published:
    """How many versions went out as what, and how many could not be published; one that went out has not failed.

    Of those that went out, refused: by the guard; held: not activated, since a rollback was a moment ago.
    """

    snapshots: int = 0
    deltas: int = 0
    failed: int = 0
    refused: int = 0
    held: int = 0

    def as_dict(self) -> dict[str, int]:
        """The counts by name."""
        return asdict(self)


class Publishes(Protocol):
    """What a run asks of whoever publishes it."""

    counts: Published
    withheld: str
    """Why nothing may go out for now; empty if it may. Set by the run before each `after_batch`."""

    def begin(self, model: LearningModel) -> None:
        """The run begins: the model may be that of a checkpoint, or begun with another."""

    def after_batch(self, model: LearningModel) -> None:
        """A batch has been learned; may publish, and must not raise."""


class Publisher:
    """Publishes a run's versions. A run begins with a snapshot, whatever runs before it have published.

    After a delta that would hold more than half of the keys, or whose parent the store has lost, a snapshot goes out
    instead. If another writer has activated a version since the run began, its versions stay inactive; if an operator
    has, those of a trainer do until they are let go on (`try_again`).
    A version that the guard refuses is published, marked, and stays inactive; the next one is a delta of it even so.
    """

    def __init__(
        self,
        versions: ModelVersions,
        how: Publishing,
        on_warning: Callable[[str], None] = lambda text: None,
        *,
        epoch: int | None = None,
    ) -> None:
        """Take the writer's epoch, if its versions are to be activated and none is given. Raises StoreUnavailable."""
        self.counts = Published()
        self.through_us: int | None = None  # told by who learns from streams: see `Manifest`
        self.withheld = ""  # told by the run: see `Publishes`
        self._told_withheld = False
        self._versions = versions
        self._how = how
        self._warn = on_warning
        self._guard = Guard(versions, on_warning)
        self._verdict = Verdict()
        self._epoch = epoch if epoch is not None else versions.begin() if how.activate else 0
        self._stale: StaleEpoch | None = None
        self._pinned: Pinned | None = None
        self._failed: StoreError | None = None
        self._schedule = Schedule(how.every, 0)
        self._snapshots = Schedule(how.snapshot_every, 0) if isinstance(how.snapshot_every, Every) else None
        self._line: Line | None = None
        self._deltas = 0

    @property
    def model_name(self) -> str:
        """The name of the model whose versions these are."""
        return self._versions.model

    @property
    def version(self) -> int | None:
        """The last version that this run has published."""
        return self._line.version if self._line is not None else None

    @property
    def inactive(self) -> str:
        """Why what is published stays inactive by an operator's or another writer's order; empty if it does not."""
        return str(self._pinned or self._stale or "")

    def begin(self, model: LearningModel) -> None:
        """Count from here."""
        self._schedule.restart(model.rows)

    def start_over(self) -> None:
        """The store has lost what was published: the next version is a snapshot, without a parent."""
        self._line = None

    def try_again(self) -> None:
        """Activate the last version that an operator's order or the store has kept inactive, if it may be by now.

        Raises what the store raises.
        """
        if (self._pinned or self._failed) and self._line is not None and self._verdict.may_be_served:
            self._point_to(self._line.version)

    def after_batch(self, model: LearningModel) -> None:
        """Publish if it is due. What prevents it is told of; the run goes on."""
        if not self._schedule.is_due(model.rows):
            return
        self._schedule.restart(model.rows)
        if self.withheld:
            if not self._told_withheld:
                self._warn(self.withheld)
            self._told_withheld = True
            return
        self._told_withheld = False
        try:
            self._publish(model, last=False)
        except FtrieError as error:
            self.counts.failed += 1
            self._warn(f"no version could be published at {model.rows:,} rows: {error}; learning goes on")

    def finish(self, model: LearningModel) -> int:
        """Publish what is left at the end of a run, with all that was held back; return the last version.

        Raises what prevents it, InputError while it is `withheld`, StaleEpoch if another writer has overtaken this
        one, Pinned if an operator's order keeps it inactive, and VersionRefused if it is not served because the guard
        refused it. NotActivated if the store failed once it was published.
        """
        if self.withheld:
            raise InputError(self.withheld)
        version = self._publish(model, last=True)
        if stays := self._stale or self._pinned or self._failed:
            raise stays
        if self._how.activate:
            self._guard.check(version, self._verdict)
        return version

    def _publish(self, model: LearningModel, *, last: bool) -> int:
        line, change = self._line, None
        if line is not None and (last or not self._wants_snapshot(model)):
            change = line.change(self._how.threshold, last=last)
            if last and not change.delta.rows and line.examples == model.rows:
                return line.version
        if line is not None and change is not None and not self._wants_snapshot(model):
            version = self._publish_delta(model, line, change)
            if version is not None:
                return version
        return self._publish_snapshot(model)

    def _wants_snapshot(self, model: LearningModel) -> bool:
        if self._snapshots is not None:
            return self._snapshots.is_due(model.rows)
        assert isinstance(self._how.snapshot_every, int)
        return self._deltas >= self._how.snapshot_every

    def _publish_delta(self, model: LearningModel, line: Line, change: Change) -> int | None:
        """Publish a change; None if a snapshot should go out in its place."""
        if 2 * change.delta.rows > change.keys:
            return None
        verdict = self._guard.judge(model, change.keys)
        try:
            version = self._versions.publish(change.delta, **self._described(verdict))
        except (VersionNotFound, ArtefactError) as error:
            self._warn(f"version {line.version} is no parent any more ({error}); a snapshot goes out instead")
            self.start_over()
            return None
        line.went_out(change, version)
        self._deltas += 1
        self.counts.deltas += 1
        self._activate(version, verdict)
        return version

    def _publish_snapshot(self, model: LearningModel) -> int:
        parent = self._line.version if self._line is not None else None
        artefact = model.artefact()
        verdict = self._guard.judge(model, artefact.rows)
        version = self._versions.publish(artefact, parent=parent, **self._described(verdict))
        self._line = Line(model, artefact, version)
        self._deltas = 0
        if self._snapshots is not None:
            self._snapshots.restart(model.rows)
        self.counts.snapshots += 1
        self._activate(version, verdict)
        self._collect()
        return version

    def _described(self, verdict: Verdict) -> dict[str, Any]:
        """What a version's manifest says beside its bytes."""
        judged = {"recent": verdict.recent, "refused": verdict.refused}
        return {"epoch": self._epoch, "through_us": self.through_us, **judged}

    def _activate(self, version: int, verdict: Verdict) -> None:
        """Make servers switch to a version that is out. That the store fails at it is told of, and tried again."""
        self._verdict, self._failed = verdict, None
        try:
            self._guard.tell(version, verdict)
            if self._how.activate and self._stale is None and verdict.may_be_served:
                self._point_to(version)
        except StoreError as error:
            held = isinstance(error, LeaseHeld)  # which says itself that the version stays inactive
            self._failed = error if held else NotActivated(self.model_name, version, error)
            self._warn(f"{self._failed}; it is tried again, or the next version is activated")
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
            self._warn(f"{error}; this run's versions stay inactive from here on")
        else:
            if self._pinned is not None:
                self._warn(f"the operator's order has been lifted: version {version} is active")
            elif self._failed is not None:
                self._warn(f"version {version} is active by now")
            self._pinned = self._failed = None

    def _collect(self) -> None:
        """Delete versions beyond those to keep. That it cannot be done costs nothing but room in the store."""
        if self._how.keep is None:
            return
        try:
            self._versions.gc(self._how.keep)
        except StoreError as error:
            self._warn(f"old versions could not be deleted: {error}")
