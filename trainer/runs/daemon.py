"""A trainer's life: open → begin → go → end. Each verb is one method; what they use lives in the files beside.

It may be killed at any moment: what it has learned since the last checkpoint it learns again, from the same events in
the same order. SIGTERM lets it end in good order.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import TypeVar

from model_store.backoff import Backoff
from model_store.errors import (
    InputError,
    LeaseHeld,
    SourceUnavailable,
    Stopped,
    StoreError,
    StoreUnavailable,
    UnreadableValue,
)
from model_store.spec.spec import ModelSpec
from model_store.store import Store
from model_store.versions.lease import TrainerLease
from trainer.checkpoint import Checkpoints
from trainer.publish.publisher import Publisher, PublishOptions
from trainer.publish.rollback import RollbackWatch
from trainer.runs.daemon_begin import begin
from trainer.runs.daemon_learner import Learner
from trainer.runs.daemon_options import Asked
from trainer.runs.metrics import Exposed, serve
from trainer.runs.publish_pacing import GoingOut
from trainer.runs.saved_state import Saved, owner_of
from trainer.runs.signals import StopAsked
from trainer.runs.status import Status
from trainer.runs.store_tasks import Chore, Chores, Tenure

T = TypeVar("T")

SAY_AGAIN_S = 60.0
"""What is still waited for is told of again this often."""
ONCE_WAITS_S = 30.0
"""So long a run with --once waits for a store that is away; one that never ends waits for ever."""
STEP_S = 0.05
"""How long a step waits for events: as long as publishing, saving and signals may have to wait for it."""
CHORES_EVERY_S = 1.0
WARNINGS_EVERY_S = 1.0


def run(spec: ModelSpec, asked: Asked, say: Callable[[Status], None]) -> None:
    """Be the trainer of a model until a signal comes or, with --once, the sources end. Raises FtrieError."""
    with StopAsked() as stop, ExitStack() as stack:
        daemon = Daemon(spec, asked, stop, say)
        daemon.open(stack)
        daemon.begin(stack)
        daemon.go()
        daemon.end()


class Daemon:
    """One trainer. For one thread."""

    def __init__(self, spec: ModelSpec, asked: Asked, stop: StopAsked, say: Callable[[Status], None]) -> None:
        self._spec = spec
        self._asked = asked
        self._output = asked.output
        self._stop = stop
        self._say = say
        self._chores = Chores(CHORES_EVERY_S, self._output.warn)
        self._active: int | None = None
        self._next_status = time.monotonic() + asked.say_every_s
        self._next_warnings = 0.0
        self._warnings: dict[str, str] = {}
        self._exposed: Exposed | None = None
        self._watch: RollbackWatch | None = None
        self._is_beside = False

    def open(self, stack: ExitStack) -> None:
        """Take the folder, the store and the lease; wait for a store that is away."""
        asked = self._asked
        self._keeper = stack.enter_context(
            Checkpoints(asked.folder, asked.every, self._spec, resume=True, on_warning=self._output.warn)
        )
        self._store = stack.enter_context(self._until_there(lambda: Store.open(asked.store)))
        self._versions = self._store.model(self._spec.model.name, self._output.warn)
        self._out: GoingOut | None = None
        self._tenure: Tenure | None = None
        self._lease: TrainerLease | None = None
        self._losses = 0
        if asked.publish is None:
            return
        lease = self._lease = self._store.trainer_lease(self._spec.model.name, owner_of(asked.folder))
        self._epoch = self._until_there(lease.take)
        how = PublishOptions(asked.publish, asked.snapshot, asked.threshold, asked.activate, asked.keep)
        self._out = GoingOut(
            Publisher(self._versions, how, self._output.warn, epoch=self._epoch),
            lease.earlier_rows,
            force=asked.force,
        )
        out = self._out
        self._tenure = stack.enter_context(Tenure(lease, lambda: out.rows))

    def begin(self, stack: ExitStack) -> None:
        """Open the sources where the last checkpoint has left them, and restore what was learned."""
        saved = Saved(self._keeper.take(), self._asked.sources)
        if saved.checkpoint is not None:
            at = saved.checkpoint.description
            self._output.note(
                f"going on from {saved.checkpoint.path}: {at.rows:,} examples learned, {at.keys:,} keys"
            )
        if self._asked.metrics_port is not None:
            self._exposed = serve(self._asked.metrics_host, self._asked.metrics_port)
        self._learner = self._until_there(lambda: self._begun(saved, stack))
        if saved.checkpoint is None:  # what was settled now must not be settled otherwise after a crash
            self._learner.save()
        if self._tenure is not None:
            self._chores.add(self._tenure.confirm)
        for chore in self._learner.chores(self._versions):
            self._chores.add(chore if self._tenure is not None else self._beside_none(chore))
        self._chores.add(self._look_at_active)
        if self._out is not None and self._asked.activate:
            self._chores.add(self._out.publisher.retry_activation)
            self._watch = RollbackWatch(self._spec.guard, self._versions, self._output.warn)
            self._chores.add(self._watch_served)
        if self._out is not None:
            goes_on = saved.checkpoint is not None
            through_us = self._until_there(self._versions.active_through_us) if goes_on else 0
            self._out.begin(self._learner.model, through_us, self._learner.counts)

    def _begun(self, saved: Saved, stack: ExitStack) -> Learner:
        """The learner; what it holds open is closed by the stack, or at once where it could not begin."""
        with ExitStack() as attempt:
            resources = (self._keeper, self._store, self._stop, attempt)
            learner = begin(self._spec, self._asked, saved, *resources)
            stack.push(attempt.pop_all())
            return learner

    def go(self) -> None:
        """Learn, publish, save, until told to stop or, with --once, the sources have ended. Raises StaleEpoch."""
        learner = self._learner
        while not self._stop:
            worked = learner.step(STEP_S)
            self._beside()
            if not worked and self._asked.once and learner.ended:
                learner.finish()
                return

    def end(self) -> None:
        """Save, publish what is left, say what became of all."""
        learner = self._learner
        learner.save()
        learner.model.warnings.finish()
        self._look_for_warnings()
        if self._asked.save is not None:
            learner.model.artefact().write(self._asked.save)
        try:
            self._chores.run()  # first: what is published last may be refused
            if self._out is not None:
                self._out.finish(learner.model, learner.counts)
            self._look_at_active()
        except (StoreError, InputError) as error:
            if self._asked.once:
                raise
            self._output.warn(f"{error}; what was learned is in {self._asked.folder}")
        self._tell(ended=True)

    def _beside(self) -> None:
        """All that is done between two steps, when it is due."""
        learner = self._learner
        if self._tenure is not None:
            self._tenure.check()
        self._notice_loss()
        if self._out is not None:
            self._out.after_step(learner.model, learner.counts, learner.behind)
        if learner.save_is_due():
            learner.save()
        self._chores.run_due()
        now = time.monotonic()
        if now >= self._next_warnings:
            self._next_warnings = now + WARNINGS_EVERY_S
            self._look_for_warnings()
        if now >= self._next_status:
            self._next_status = now + self._asked.say_every_s
            self._tell()

    def _notice_loss(self) -> None:
        """Say aloud that the store has lost its data, and publish anew what it held."""
        if self._lease is None or self._out is None or self._lease.losses == self._losses:
            return
        self._losses = self._lease.losses
        name = self._spec.model.name
        self._output.warn(
            f"THE STORE LOST ITS DATA, or is back at an earlier state: versions of {name}, its experiment and pins, "
            "items, users and unread events may be gone. What was learned is not: it is published again as a snapshot. "
            "Restore a backup, or load items and users again (docs/operating.md, A store that lost its data)"
        )
        self._out.store_lost_its_data()

    def _look_for_warnings(self) -> None:
        """Say what is new; what goes on stands in each status."""
        found = self._learner.warnings()
        for kind in found.keys() - self._warnings.keys():
            self._output.warn(found[kind])
        self._warnings = found

    def _look_at_active(self) -> None:
        self._active = self._versions.known_active()

    def _beside_none(self, chore: Chore) -> Chore:
        """The chore, but not while another trainer has the model: then what it writes is that one's to write."""

        def unless_another() -> None:
            try:
                self._versions.refuse_beside_a_trainer()
            except LeaseHeld as error:
                if not self._is_beside:
                    self._output.note(f"{error}; that one's dead letters and online metrics are left to it")
                self._is_beside = True
                return
            chore()

        return unless_another

    def _watch_served(self) -> None:
        """Go back if what is served does not do what it promised."""
        assert self._watch is not None
        self._watch.check(self._learner.online.evidence(), self._epoch)

    def _tell(self, *, ended: bool = False) -> None:
        status = replace(
            self._learner.status(self._out, ended=ended),
            rolled_back=self._watch.rolled_back if self._watch is not None else 0,
            active=self._active,
            inactive=self._out.publisher.inactive if self._out is not None else "",
            store_losses=self._losses,
            store_away=self._chores.failing,
        )
        withheld = (status.withheld,) if status.withheld else ()
        status = replace(status, warnings=(*withheld, *self._warnings.values()))
        self._say(status)
        if self._exposed is not None:
            self._exposed.show(status)

    def _until_there(self, ask: Callable[[], T]) -> T:
        """What `ask` gives once the store answers and no other trainer has the model. Raises Stopped, LeaseHeld.

        A key that holds what it should not is waited for like a store that is away: somebody repairs it. With --once it
        is raised (UnreadableValue).
        """
        backoff, began, said = Backoff(), time.monotonic(), -SAY_AGAIN_S
        while True:
            try:
                return ask()
            except (StoreUnavailable, SourceUnavailable, UnreadableValue) as error:
                waited = time.monotonic() - began
                if self._asked.once and (waited > ONCE_WAITS_S or isinstance(error, UnreadableValue)):
                    raise
                if waited - said >= SAY_AGAIN_S:
                    self._output.warn(
                        f"{error}; waiting for it" + (f", for {waited:.0f} s by now" if said >= 0 else "")
                    )
                    said = waited
            except LeaseHeld as error:
                if not self._asked.wait:
                    raise
                if not backoff.failures:
                    self._output.note(f"{error}; waiting for it to end")
            if self._stop.wait(backoff.failed()):
                raise Stopped("stopped while waiting for the store", self._stop.number)
