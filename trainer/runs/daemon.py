"""`ftrie trainer`: one process that learns from events as they arrive and publishes the model: open → begin → go → end.

It may be killed at any moment: started again, it learns what came after the last checkpoint again, from the same events
in the same order. SIGTERM ends it in good order. What learns is `trainer.runs.stream_run`; here is what happens between
its steps: publishing, checkpoints, tasks of the store, rollbacks, warnings and status.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import TypeVar

from model_store.errors import (
    CheckpointError,
    InputError,
    LeaseHeld,
    SourceUnavailable,
    StaleEpoch,
    Stopped,
    StoreError,
    StoreUnavailable,
    UnreadableValue,
)
from model_store.spec.spec import ModelSpec
from model_store.store import Store
from model_store.versions.lease import TrainerLease
from model_store.waiting import Backoff
from trainer.checkpoint import Checkpoints
from trainer.checkpoint.folder import lock_folder
from trainer.events.share import Share
from trainer.publish.publisher import Publisher, PublishOptions
from trainer.publish.rollback import RollbackWatch
from trainer.runs.lease import LeaseHolder, lease_owner
from trainer.runs.metrics import StatusCollector, serve_metrics
from trainer.runs.publish_pacing import PublishPacer
from trainer.runs.reconcile import check_mergeable
from trainer.runs.rounds import Partners, WaitsForPartner
from trainer.runs.signals import StopRequest
from trainer.runs.status import Status
from trainer.runs.stream_run import SEGMENTS, SavedRun, StreamRun, open_run
from trainer.settings import TrainerOptions

T = TypeVar("T")

WAITING_AGAIN_S = 60.0
"""While the trainer waits for the store, a warning is repeated this often."""
ONCE_WAITS_S = 30.0
"""How long a run with --once waits for an unavailable store; without, a run waits forever."""
STEP_S = 0.05
"""How long a step waits for events, and so publishing, checkpoints and signals for the step."""
TASKS_EVERY_S = 1.0
WARNINGS_EVERY_S = 1.0


def run(spec: ModelSpec, options: TrainerOptions, on_status: Callable[[Status], None]) -> None:
    """Train a model until a signal comes or, with --once, the sources end. Raises FtrieError."""
    with StopRequest() as stop, ExitStack() as stack:
        daemon = Daemon(spec, options, stop, on_status)
        daemon.open(stack)
        daemon.begin(stack)
        daemon.go()
        daemon.end()


class Daemon:
    """One trainer. For one thread."""

    def __init__(
        self, spec: ModelSpec, options: TrainerOptions, stop: StopRequest, on_status: Callable[[Status], None]
    ) -> None:
        self._spec = spec
        self._options = options
        self._output = options.output
        self._stop = stop
        self._on_status = on_status
        self._tasks = StoreTasks(TASKS_EVERY_S, self._output.warn)
        self._active: int | None = None
        self._next_status = time.monotonic() + options.say_every_s
        self._next_warnings = 0.0
        self._warnings: dict[str, str] = {}
        self._metrics: StatusCollector | None = None
        self._pacer: PublishPacer | None = None
        self._lease: TrainerLease | None = None
        self._lease_holder: LeaseHolder | None = None
        self._partners: Partners | None = None
        self._watch: RollbackWatch | None = None
        self._store_losses = 0
        self._has_noted_other = False

    def open(self, stack: ExitStack) -> None:
        """Lock the folder, open the store and take the lease; wait for an unavailable store."""
        options, name = self._options, self._spec.model.name
        if options.partition is None:
            self._checkpoints = self._open_checkpoints(stack)
        else:
            check_mergeable(self._spec)
            stack.callback(os.close, lock_folder(options.folder))
        self._store = stack.enter_context(self._once_available(lambda: Store.open(options.store)))
        self._versions = self._store.model(name, self._output.warn)
        if options.partition is not None:
            self._open_partition(stack, *options.partition)
            if not (options.publish and self._learns_first):
                assert self._lease is not None
                self._lease_holder = stack.enter_context(LeaseHolder(self._lease, lambda: 0))
                return
        elif not options.publish:
            return
        else:
            self._lease = self._store.trainer_lease(name, lease_owner(options.folder))
            self._epoch = self._once_available(self._lease.take)
        lease = self._lease
        assert lease is not None
        publisher = Publisher(
            self._versions,
            PublishOptions(
                options.publish_every,
                # The publisher counts deltas, or looks at the clock.
                options.snapshot_every.rows or options.snapshot_every,
                options.publish_threshold,
                options.activate,
                options.keep,
            ),
            self._output.warn,
            epoch=self._epoch,
        )
        pacer = self._pacer = PublishPacer(publisher, lease.earlier_rows, force=options.force)
        self._lease_holder = stack.enter_context(LeaseHolder(lease, lambda: pacer.rows))

    def _open_checkpoints(self, stack: ExitStack) -> Checkpoints:
        options, warn = self._options, self._output.warn
        return stack.enter_context(
            Checkpoints(options.folder, options.every, self._spec, resume=True, on_warning=warn)
        )

    def _open_partition(self, stack: ExitStack, number: int | None, count: int) -> None:
        """Take the lease of the partition, or of the first free one, the former one first; open its checkpoints."""
        options, name = self._options, self._spec.model.name
        owner, folder = lease_owner(options.folder), options.folder
        numbers = sorted(range(1, count + 1), key=lambda each: not (folder / f"partition-{each}").exists())

        def take() -> tuple[int, TrainerLease]:
            held: LeaseHeld | None = None
            for each in numbers if number is None else [number]:
                lease = self._store.trainer_lease(name, owner, each)
                try:
                    lease.take()
                    return each, lease
                except LeaseHeld as error:
                    held = error
            assert held is not None
            if number is None:
                raise LeaseHeld(f"all {count} partitions of {name} have a trainer")
            raise held

        taken, self._lease = self._once_available(take)
        self._epoch = self._lease.epoch
        share = Share(taken, count)
        self._output.note(f"learning partition {share} of {name}")
        self._options = replace(options, checkpoint=folder / f"partition-{taken}")
        self._checkpoints = self._open_checkpoints(stack)
        self._partners = Partners(
            self._store, self._spec, share, options.reconcile_us, self._lease, self._output
        )

    @property
    def _learns_first(self) -> bool:
        """True unless another partition's trainer publishes the model."""
        return self._partners is None or self._partners.publishes

    def begin(self, stack: ExitStack) -> None:
        """Open the sources where the last checkpoint has left them, and restore the model."""
        earlier, partners = self._checkpoints.take(), self._partners
        if partners is not None:
            folder, sources = self._options.folder, self._options.sources
            earlier = self._once_available(
                lambda: partners.resume(earlier, folder, folder / SEGMENTS, sources)
            )
        saved = SavedRun(earlier, self._options.sources)
        if saved.checkpoint is not None:
            before = saved.checkpoint.description
            self._output.note(
                f"resuming from {saved.checkpoint.path}: {before.rows:,} examples learned, {before.keys:,} keys"
            )
        if self._options.metrics_port is not None:
            self._metrics = serve_metrics(self._options.metrics_host, self._options.metrics_port)
        self._run = self._once_available(lambda: self._open_run(saved, stack))
        self._once_available(self._run.begin)
        if saved.checkpoint is None:  # what was resolved now must not be resolved otherwise after a crash
            self._run.save()
        self._add_tasks()
        if self._pacer is not None:
            resumes = saved.checkpoint is not None
            through_us = self._once_available(self._versions.active_through_us) if resumes else 0
            if through_us > self._once_available(self._versions.guard.now_us):
                through_us = (
                    0  # by a clock that has stepped back: nothing would be published until it has caught up
                )
            self._pacer.begin(self._run.model, through_us, self._run.counts)

    def go(self) -> None:
        """Learn, publish, save, until a signal comes or, with --once, the sources have ended. Raises StaleEpoch."""
        while not self._stop:
            worked = self._run.step(STEP_S)
            self._between_steps()
            if not worked and self._options.once and self._run.ended:
                self._run.finish()
                return

    def end(self) -> None:
        """Save, publish the remaining changes, report the totals. Raises CheckpointError if they could not be saved."""
        run = self._run
        run.save()
        run.model.warnings.finish()
        self._report_warnings()
        if self._options.save is not None:
            run.model.artefact().write(self._options.save)
        try:
            self._tasks.run()  # first: publishing the last version may be refused
            if self._pacer is not None:
                self._pacer.finish(run.model, run.counts)
            self._read_active()
        except (StoreError, InputError) as error:
            if self._options.once:
                raise
            self._output.warn(f"{error}; what was learned is in {self._options.folder}")
        self._report(ended=True)
        if self._checkpoints.unsaved:
            raise CheckpointError(
                f"the last checkpoint could not be written to {self._options.folder}: the next start learns again what "
                "came after the one before it, as after a kill"
            )

    def _open_run(self, saved: SavedRun, stack: ExitStack) -> StreamRun:
        """Open the run; what it holds is closed by the stack, or at once if it could not be opened."""
        with ExitStack() as attempt:
            resources = (self._checkpoints, self._store, self._stop, attempt, self._partners)
            run = open_run(self._spec, self._options, saved, *resources)
            stack.push(attempt.pop_all())
            return run

    def _add_tasks(self) -> None:
        if self._lease_holder is not None:
            self._tasks.add(self._lease_holder.confirm)
        for task in self._run.store_tasks(self._versions, self._store.records) if self._learns_first else ():
            self._tasks.add(task if self._lease_holder is not None else self._if_no_other_trainer(task))
        self._tasks.add(self._read_active)
        if self._pacer is not None and self._options.activate:
            self._tasks.add(self._pacer.publisher.retry_activation)
            self._watch = RollbackWatch(self._spec.guard, self._versions, self._output.warn)
            self._tasks.add(self._check_rollback)

    def _between_steps(self) -> None:
        """Everything between two steps, when it is due."""
        run = self._run
        if self._lease_holder is not None:
            self._lease_holder.check()
        self._notice_store_loss()
        if self._pacer is not None:
            self._pacer.after_step(run.model, run.counts, run.behind)
        if run.save_is_due():
            run.save()
        self._tasks.run_due()
        now = time.monotonic()
        if now >= self._next_warnings:
            self._next_warnings = now + WARNINGS_EVERY_S
            self._report_warnings()
        if now >= self._next_status:
            self._next_status = now + self._options.say_every_s
            self._report()

    def _notice_store_loss(self) -> None:
        """Warn that the store has lost its data, and publish again what it held."""
        if self._lease is None or self._pacer is None or self._lease.losses == self._store_losses:
            return
        self._store_losses = self._lease.losses
        name = self._spec.model.name
        self._output.warn(
            f"THE STORE LOST ITS DATA, or is back at an earlier state: versions of {name}, its experiment and pins, "
            "items, users and unread events may be gone. The learned model is not: it is published again as a "
            "snapshot. Restore a backup, or load items and users again (docs/operating.md, A store that lost its data)"
        )
        self._pacer.store_lost_its_data()
        self._run.store_lost_its_data()

    def _report_warnings(self) -> None:
        """Print new warnings; each status repeats those that persist."""
        found = self._run.warnings()
        for kind in found.keys() - self._warnings.keys():
            self._output.warn(found[kind])
        self._warnings = found

    def _read_active(self) -> None:
        self._active = self._versions.known_active()

    def _if_no_other_trainer(self, task: StoreTask) -> StoreTask:
        """The task, except while another trainer has the model: what it would write is the other one's to write."""

        def run() -> None:
            try:
                self._versions.refuse_beside_a_trainer()
            except LeaseHeld as error:
                if not self._has_noted_other:
                    self._output.note(f"{error}; it alone writes dead letters and online metrics")
                self._has_noted_other = True
                return
            task()

        return run

    def _check_rollback(self) -> None:
        assert self._watch is not None
        self._watch.check(self._run.online.evidence, self._epoch)

    def _report(self, *, ended: bool = False) -> None:
        status = replace(
            self._run.status(self._pacer, ended=ended),
            rolled_back=self._watch.rolled_back if self._watch is not None else 0,
            active=self._active,
            inactive=self._pacer.publisher.inactive if self._pacer is not None else "",
            store_losses=self._store_losses,
            store_away=self._tasks.failing,
        )
        withheld = (status.withheld,) if status.withheld else ()
        status = replace(status, warnings=(*withheld, *self._warnings.values()))
        self._on_status(status)
        if self._metrics is not None:
            self._metrics.show(status)

    def _once_available(self, ask: Callable[[], T]) -> T:
        """The result of `ask` once store and sources answer and no other trainer has the model.

        A key with an unreadable value is waited for like an unavailable store: an operator may repair it. Raises
        Stopped; LeaseHeld without --wait; with --once UnreadableValue at once, and StoreUnavailable or a source's
        SourceUnavailable after ONCE_WAITS_S.
        """
        backoff, began, warned = Backoff(), time.monotonic(), -WAITING_AGAIN_S
        while True:
            try:
                return ask()
            except (StoreUnavailable, SourceUnavailable, UnreadableValue) as error:
                waited = time.monotonic() - began
                too_long = waited > ONCE_WAITS_S and not isinstance(error, WaitsForPartner)
                if self._options.once and (too_long or isinstance(error, UnreadableValue)):
                    raise
                if waited - warned >= WAITING_AGAIN_S:
                    self._output.warn(
                        f"{error}; waiting for it" + (f", for {waited:.0f} s so far" if warned >= 0 else "")
                    )
                    warned = waited
            except LeaseHeld as error:
                any_partition = self._options.partition is not None and self._options.partition[0] is None
                if not self._options.wait and not any_partition:
                    raise
                if not backoff.failures:
                    self._output.note(f"{error}; waiting for it to end")
            if self._stop.wait(backoff.failed()):
                raise Stopped("stopped while waiting for the store", self._stop.number)


StoreTask = Callable[[], object]


class StoreTasks:
    """What a trainer reads and writes in the store every few seconds. For one thread.

    A failure does not stop learning: the tasks are tried again after a growing pause.
    """

    def __init__(self, every_s: float, on_warning: Callable[[str], None]) -> None:
        """`on_warning` is told when the store fails, and when it works again."""
        self._every_s = every_s
        self._warn = on_warning
        self._tasks: list[StoreTask] = []
        self._backoff = Backoff(first_s=0.5, longest_s=10.0)
        self._next = 0.0

    def add(self, task: StoreTask) -> None:
        """Add a task. It may raise StoreError, and is then called again."""
        self._tasks.append(task)

    @property
    def failing(self) -> bool:
        """Whether the last attempt failed."""
        return self._backoff.failures > 0

    def run_due(self) -> None:
        """Run them if they are due. Raises no StoreError."""
        now = time.monotonic()
        if now < self._next:
            return
        try:
            self.run()
        except StoreError as error:
            if not self._backoff.failures:
                self._warn(f"{error}; learning continues, and the store is tried again")
            self._next = time.monotonic() + max(self._every_s, self._backoff.failed())
            return
        if self._backoff.succeeded():
            self._warn("the store works again, and is up to date")
        self._next = now + self._every_s

    def run(self) -> None:
        """Run them all now, in order; one that the store refuses does not stop the others. Raises StoreError."""
        refused: StoreError | None = None
        for task in self._tasks:
            try:
                task()
            except (StoreUnavailable, StaleEpoch):
                raise
            except StoreError as error:
                refused = refused or error
        if refused is not None:
            raise refused
