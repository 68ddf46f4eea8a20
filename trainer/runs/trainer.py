"""`ftrie trainer`: one process that learns from events as they arrive and publishes the model: open → begin → go → end.

It may be killed at any moment: started again, it learns what came after the last checkpoint again, from the same events
in the same order. SIGTERM ends it in good order. What learns is a loop of `trainer.runs.stream`; here is what happens
before its first step and between its steps: the lease, publishing, checkpoints, tasks of the store, rollbacks, status.
"""

from __future__ import annotations

import math
import os
import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from model_store.clock import SYSTEM, Clock
from model_store.errors import (
    CheckpointError,
    InputError,
    LeaseHeld,
    OutputError,
    SourceUnavailable,
    SpecError,
    StaleEpoch,
    Stopped,
    StoreError,
    StoreUnavailable,
    UnreadableValue,
    counted,
)
from model_store.files import write_whole
from model_store.forget import ToForget
from model_store.spec.spec import ModelSpec
from model_store.store import Store
from model_store.versions.lease import TrainerLease
from model_store.waiting import Backoff, StopRequest
from trainer.checkpoint import Checkpoints
from trainer.checkpoint.folder import lock_folder
from trainer.events.columns import Wanted
from trainer.events.events import Source
from trainer.events.join import Join
from trainer.events.parse import PartitionShare
from trainer.events.waiting_rows import Segments
from trainer.examples.hashing import ExampleMaker
from trainer.learn.model import LearningModel
from trainer.publish.publisher import Publisher, PublishOptions, PublishPacer
from trainer.publish.rollback import RollbackWatch
from trainer.runs.first_events import resolve_by_file, resolve_by_impressions
from trainer.runs.loop import initial_model, resumed_spec
from trainer.runs.rounds import Partners, RoundLoop, WaitsForPartner, check_mergeable
from trainer.runs.status import Reporter, Status, StatusCollector, serve_metrics
from trainer.runs.stream import DeadLetterOutbox, EventLoop, RowLoop, SavedRun, StreamLoop
from trainer.runs.warmup import compile_trainer
from trainer.settings import TrainerOptions
from trainer.sources.files import RowSource
from trainer.sources.merge import Merger
from trainer.sources.open_sources import ROWS, check_there, kind_of, open_rows, open_sources

T = TypeVar("T")

SEGMENTS, OWNER = "segments", "owner"
"""Names in the checkpoints' folder: the rows that wait for clicks, and the file with the name of the lease's holder."""
WAITING_AGAIN_S = 60.0
"""While the trainer waits for the store, a warning is repeated this often."""
ONCE_WAITS_S = 30.0
"""How long a run with --once waits for an unavailable store; without, a run waits forever."""
STEP_S = 0.05
"""How long a step waits for events, and so publishing, checkpoints and signals for the step."""
TASKS_EVERY_S = 1.0
WARNINGS_EVERY_S = 1.0
HISTORIES_S = 0.25
"""How long histories are written at a time, once a second."""
RENEWALS_A_TERM = 4


def run(spec: ModelSpec, options: TrainerOptions, on_status: Callable[[Status], None]) -> None:
    """Train a model until a signal comes or, with --once, the sources end. Raises FtrieError."""
    with StopRequest() as stop, ExitStack() as stack:
        trainer = Trainer(spec, options, stop, on_status)
        trainer.open(stack)
        trainer.begin(stack)
        trainer.go()
        trainer.end()


class Trainer:
    """One trainer. For one thread."""

    def __init__(
        self, spec: ModelSpec, options: TrainerOptions, stop: StopRequest, on_status: Callable[[Status], None]
    ) -> None:
        self._spec = spec
        self._options = options
        self._output = options.output
        self._stop = stop
        self._on_status = on_status
        self._clock = options.clock
        self._tasks = StoreTasks(TASKS_EVERY_S, self._output.warn, options.clock)
        self._active: int | None = None
        self._next_status = self._clock.monotonic() + options.say_every_s
        self._next_warnings = 0.0
        self._warnings: dict[str, str] = {}
        self._metrics: StatusCollector | None = None
        self._pacer: PublishPacer | None = None
        self._lease: TrainerLease | None = None
        self._lease_holder: LeaseHolder | None = None
        self._partners: Partners | None = None
        self._watch: RollbackWatch | None = None
        self._store_losses = 0
        self._to_forget: list[ToForget] = []
        self._forgot, self._histories_gone = "", list[bytes]()
        self._has_noted_other = False

    def open(self, stack: ExitStack) -> None:
        """Lock the folder, open the store and take the lease; wait for an unavailable store."""
        options, name = self._options, self._spec.model.name
        if options.partition is None:
            self._open_checkpoints(stack)
        else:
            check_mergeable(self._spec)
            stack.callback(os.close, lock_folder(options.folder))
        self._store = stack.enter_context(
            self._once_available(lambda: Store.open(options.store, clock=options.clock))
        )
        self._versions = self._store.model(name, self._output.warn)
        if options.partition is not None:
            self._open_partition(stack, *options.partition)
        elif options.publish:
            self._lease = self._store.trainer_lease(name, lease_owner(options.folder))
            self._epoch = self._once_available(self._lease.take)
        lease = self._lease
        if lease is None:
            return
        if not (options.publish and self._publishes_model):
            self._lease_holder = stack.enter_context(LeaseHolder(lease, lambda: 0, options.clock))
            return
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
        self._lease_holder = stack.enter_context(LeaseHolder(lease, pacer.published_rows, options.clock))

    def _open_checkpoints(self, stack: ExitStack) -> None:
        options, warn = self._options, self._output.warn
        checkpoints = Checkpoints(
            *(options.folder, options.every, self._spec),
            resume=True,
            on_warning=warn,
            clock=options.clock,
        )
        self._checkpoints = stack.enter_context(checkpoints)

    def _open_partition(self, stack: ExitStack, number: int | None, count: int) -> None:
        """Take the lease of the partition, or of the first free one, the former one first; open its checkpoints."""
        options, name = self._options, self._spec.model.name
        owner, folder = lease_owner(options.folder), options.folder
        numbers = sorted(range(1, count + 1), key=lambda each: not (folder / f"partition-{each}").exists())

        wanted = numbers if number is None else [number]
        leases = [(each, self._store.trainer_lease(name, owner, each)) for each in wanted]

        def take() -> tuple[int, TrainerLease]:
            held: LeaseHeld | None = None
            for each, lease in leases:
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
        share = PartitionShare(taken, count)
        self._output.note(f"learning partition {share} of {name}")
        self._options = replace(options, checkpoint=folder / f"partition-{taken}")
        self._open_checkpoints(stack)
        self._partners = Partners(
            self._store, self._spec, share, options.reconcile_us, self._lease, self._output
        )

    @property
    def _publishes_model(self) -> bool:
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
        self._once_available(lambda: self._open_loop(saved, stack))
        loop, lease = self._loop, self._lease
        # What the lease says is of a trainer that has deleted its older checkpoints.
        self._forgot = self._once_available(lease.forgot) if lease is not None else loop.forgotten
        self._once_available(self._read_to_forget)
        if saved.checkpoint is None and self._to_forget:
            loop.forgotten, self._to_forget = self._to_forget[-1].id, []  # it holds nothing of anyone
        self._once_available(loop.begin)
        if saved.checkpoint is None:  # what was resolved now must not be resolved otherwise after a crash
            loop.save()
        self._forget()
        self._add_tasks()
        if self._pacer is not None:
            resumes = saved.checkpoint is not None
            through_us = self._once_available(self._versions.active_through_us) if resumes else 0
            if through_us > self._once_available(self._versions.guard.now_us):
                # By a clock that has stepped back: nothing would be published until it has caught up.
                through_us = 0
            self._pacer.begin(loop.model, through_us, loop.counts)

    def _open_loop(self, saved: SavedRun, stack: ExitStack) -> None:
        """Open the sources where `saved` has left them, and start or restore the model; on an error close them.

        Raises SpecError, InputError, CheckpointError, StoreUnavailable, Stopped.
        """
        spec, options, output = self._spec, self._options, self._output
        first = saved.checkpoint is None
        if options.once and first:
            check_there(options.sources)
        has_rows = kind_of(options.sources, spec.input.label, are_sources=True) == ROWS
        if self._partners is not None and has_rows:
            raise InputError(
                f"--partition: {options.sources[0]} holds labelled rows, which have no request to divide them by; "
                "`ftrie train-distributed` learns a log on several machines"
            )
        compile_trainer(spec, output)
        published = initial_model(spec, options.init_from, options.store) if first else None
        known = [published.spec] if published is not None else []
        with ExitStack() as attempt:
            loop, sources = (self._open_rows if has_rows else self._open_events)(saved, known, attempt)
            if first and published is None and not has_rows and spec.join.positive != "view":
                output.note(
                    f"starting with an empty model: until the first window of {spec.join.window} has closed, it learns "
                    "from clicks only; --init-from starts with a published model, `ftrie replay` makes one of a log"
                )
            loop.start(saved.checkpoint, published, output)
            stack.push(attempt.pop_all())
        self._loop, self._reporter = loop, Reporter(loop, sources, options.max_lag_s, options.clock)

    def _open_events(
        self, saved: SavedRun, known: Sequence[ModelSpec], stack: ExitStack
    ) -> tuple[StreamLoop, Sequence[Source | RowSource]]:
        """Impressions and feedback, to be joined."""
        spec, options, warn, partners = self._spec, self._options, self._output.warn, self._partners
        if partners is not None and saved.checkpoint is None:
            for name, field in spec.with_learned_of(known).fields.items():
                if field.has_to_learn:
                    raise SpecError(
                        f"fields.{name}: each partition would learn from the items shown when it starts, and the "
                        "partitions' models could not be merged; set learned, or --init-from a model that has learned"
                    )
        once: dict[str, Any] = {"once": options.once}
        resolved = (
            resumed_spec(spec, saved.checkpoint)
            if saved.checkpoint is not None
            else resolve_by_impressions(
                *(spec, options.sources, self._store, self._stop), known=known, output=self._output, **once
            )
        )
        sources = open_sources(options.sources, spec, self._store, saved.positions, warn, **once)
        segments = Segments(options.folder / SEGMENTS, options.memory_bytes)
        merger = Merger(
            *(sources, Wanted.of(resolved), segments),
            positions=saved.positions,
            idle_s=options.idle_s,
            share=partners.share if partners is not None else None,
            on_note=warn,
            clock=options.clock,
            **once,
        )
        stack.callback(merger.close)
        parts = (merger, Join(resolved.join, resolved.input.rows), segments, *self._learner(resolved, saved))
        if partners is None:
            return EventLoop(*parts, warn=warn, **self._kept), sources
        return RoundLoop(partners, *parts, warn=warn, **once, **self._kept), sources

    def _open_rows(
        self, saved: SavedRun, known: Sequence[ModelSpec], stack: ExitStack
    ) -> tuple[StreamLoop, Sequence[Source | RowSource]]:
        """Rows that have their label already."""
        spec, options, output = self._spec, self._options, self._output
        resolved = resumed_spec(spec, saved.checkpoint) if saved.checkpoint is not None else None
        named = spec if resolved is None else spec.with_columns(resolved.input.columns)
        source = open_rows(options.sources, named, saved.positions, output.warn, once=options.once)
        stack.callback(source.close)
        resolved = resolved or resolve_by_file(
            spec, source, self._stop, once=options.once, known=known, output=output
        )
        return RowLoop(source, *self._learner(resolved, saved), **self._kept), [source]

    def _learner(
        self, resolved: ModelSpec, saved: SavedRun
    ) -> tuple[LearningModel, DeadLetterOutbox, SavedRun]:
        """The model, the dead letters, and what both continue."""
        name, relays = self._spec.model.name, not self._publishes_model
        dead_letters = DeadLetterOutbox(
            self._store.dead_letters(name) if not relays else None,
            saved.dead_letters,
            lambda text: self._output.warn(f"{text}, and listed by: ftrie store dead {name}"),
            relays=relays,
        )
        model = LearningModel(ExampleMaker(resolved), keep_seen=self._options.publish)
        return model, dead_letters, saved

    @property
    def _kept(self) -> dict[str, Any]:
        """Where a loop's state is kept."""
        return {"spec": self._spec, "checkpoints": self._checkpoints}

    def go(self) -> None:
        """Learn, publish, save, until a signal comes or, with --once, the sources have ended. Raises StaleEpoch."""
        while not self._stop:
            worked = self._loop.step(STEP_S)
            self._between_steps()
            if not worked and self._options.once and self._loop.ended:
                self._loop.finish()
                return

    def end(self) -> None:
        """Save, publish the remaining changes, report the totals. Raises CheckpointError if they could not be saved."""
        loop = self._loop
        loop.save()
        loop.model.warnings.finish()
        self._report_warnings()
        if self._options.save is not None:
            loop.model.artefact().write(self._options.save)
        try:
            self._tasks.run()  # first: publishing the last version may be refused
            if self._pacer is not None:
                self._pacer.finish(loop.model, loop.counts)
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

    def _add_tasks(self) -> None:
        """What is written to and read from the store every second."""
        loop, versions, users = self._loop, self._versions, self._loop.histories
        written: list[StoreTask] = []
        if self._publishes_model:
            written = [loop.dead_letters.send, lambda: loop.online.flush(versions.online)]
            if users is not None:
                users.all_changed()  # what the store has may be of after the checkpoint
                records, name = self._store.records, self._spec.model.name
                written.append(lambda: users.write(records, name, math.inf if loop.ended else HISTORIES_S))
        if self._lease_holder is not None:
            self._tasks.add(self._lease_holder.confirm)
        for task in written:
            self._tasks.add(task if self._lease_holder is not None else self._if_no_other_trainer(task))
        # After the dead letters, which the store must have before it is told that all is forgotten.
        self._tasks.add(self._read_to_forget)
        self._tasks.add(self._read_active)
        if self._pacer is not None and self._options.activate:
            self._tasks.add(self._pacer.publisher.retry_activation)
            watch = self._watch = RollbackWatch(self._spec.guard, versions, self._output.warn)
            self._tasks.add(lambda: watch.check(loop.online.evidence, self._epoch))

    def _between_steps(self) -> None:
        """Everything between two steps, when it is due."""
        loop = self._loop
        if self._lease_holder is not None:
            self._lease_holder.check()
        self._notice_store_loss()
        if self._pacer is not None:
            self._pacer.after_step(loop.model, loop.counts, self._reporter.behind)
        if loop.save_is_due():
            loop.save()
        self._forget()
        self._tasks.run_due()
        now = self._clock.monotonic()
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
        if self._loop.histories is not None:
            self._loop.histories.all_changed()

    def _report_warnings(self) -> None:
        """Print new warnings; each status repeats those that persist."""
        found = self._reporter.warnings()
        for kind in found.keys() - self._warnings.keys():
            self._output.warn(found[kind])
        self._warnings = found

    def _read_to_forget(self) -> None:
        """Tell the store who is forgotten, once a checkpoint shows it, and ask it who else is to be."""
        loop, last = self._loop, self._to_forget[-1].id if self._to_forget else self._loop.forgotten
        if loop.forgotten != self._forgot and not self._checkpoints.unsaved:
            loop.keep_no_older()
            if self._publishes_model:
                self._store.records.remove_histories(self._spec.model.name, self._histories_gone)
            if self._lease is not None:
                self._lease.has_forgotten(loop.forgotten)
            self._forgot, self._histories_gone = loop.forgotten, []
        stream = self._store.to_forget(self._spec.model.name)
        self._to_forget += stream.after(last, self._output.warn)

    def _forget(self) -> None:
        """Forget whom the store names, and save; of a partition at the beginning of a round, which is a checkpoint."""
        loop = self._loop
        if not self._to_forget or not loop.resumable:
            return
        try:
            self._histories_gone += loop.forget(self._to_forget)
        except OutputError as error:
            self._output.warn(f"{error}; who is to be forgotten is not yet")
            return
        self._output.note(
            f"forgot {counted(len(self._to_forget), 'person', 'persons')}, as the store asked for"
        )
        self._to_forget = []
        loop.save()

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

    def _report(self, *, ended: bool = False) -> None:
        status = self._reporter.status(
            self._pacer,
            ended=ended,
            rolled_back=self._watch.rolled_back if self._watch is not None else 0,
            active=self._active,
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
        backoff, began, warned = Backoff(), self._clock.monotonic(), -WAITING_AGAIN_S
        while True:
            try:
                return ask()
            except (StoreUnavailable, SourceUnavailable, UnreadableValue) as error:
                waited = self._clock.monotonic() - began
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
            if self._clock.wait(self._stop, backoff.failed()):
                raise Stopped("stopped while waiting for the store", self._stop.number)


StoreTask = Callable[[], object]


class StoreTasks:
    """What a trainer reads and writes in the store every few seconds. For one thread.

    A failure does not stop learning: the tasks are tried again after a growing pause.
    """

    def __init__(self, every_s: float, on_warning: Callable[[str], None], clock: Clock = SYSTEM) -> None:
        """`on_warning` is told when the store fails, and when it works again."""
        self._every_s, self._clock = every_s, clock
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
        now = self._clock.monotonic()
        if now < self._next:
            return
        try:
            self.run()
        except StoreError as error:
            if not self._backoff.failures:
                self._warn(f"{error}; learning continues, and the store is tried again")
            self._next = self._clock.monotonic() + max(self._every_s, self._backoff.failed())
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


class LeaseHolder:
    """Renews a lease in a thread while entered, and releases it at the end. `check` raises StaleEpoch once it is lost.

    If it is not renewed in time, another trainer may take it and gets a higher epoch; the store then refuses what this
    one publishes (fencing), and this one ends. Learning needs no lease, so an unavailable store does not stop it.
    """

    def __init__(self, lease: TrainerLease, published_rows: Callable[[], int], clock: Clock = SYSTEM) -> None:
        """published_rows: how many examples the last published version had learned; stored with the lease."""
        self._lease = lease
        self._published_rows = published_rows
        self._ended = threading.Event()
        self._lost: StaleEpoch | None = None
        self._clock = clock
        self._thread = threading.Thread(target=self._renew_until_ended, name="lease", daemon=True)

    def check(self) -> None:
        """Raise StaleEpoch if another trainer has taken the lease."""
        if self._lost is not None:
            raise self._lost

    def confirm(self) -> None:
        """Renew now. Raises StaleEpoch, StoreUnavailable. To be called before a write that the store does not fence.

        Not only if that is overdue: the clock of a machine that was suspended does not say so.
        """
        self.check()
        self._renew()

    def __enter__(self) -> LeaseHolder:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if self._lost is None:
            try:
                self._lease.release(rows=self._published_rows())
            except StoreError:
                return  # it expires

    def _renew_until_ended(self) -> None:
        while not self._clock.wait(self._ended, self._lease.ttl_s / RENEWALS_A_TERM):
            try:
                self._renew()
            except StaleEpoch:
                return
            except StoreError:
                continue  # the lease may expire meanwhile: the next renewal, or the fence, tells

    def _renew(self) -> None:
        try:
            self._lease.renew(rows=self._published_rows())
        except StaleEpoch as error:
            self._lost = error
            raise


def lease_owner(folder: Path) -> str:
    """The name under which the trainer of this folder holds its lease: random, created once, kept in the folder.

    Raises CheckpointError if it cannot be read.
    """
    path = folder / OWNER
    try:
        owner = path.read_text("ascii").strip()
    except FileNotFoundError:
        owner = secrets.token_hex(8)
        write_whole(path, owner.encode())
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"{path}: {error}; expected a name in ASCII: delete the file to create a new one"
        ) from error
    if not owner:
        raise CheckpointError(
            f"{path} is empty; expected a name in ASCII: delete the file to create a new one"
        )
    return owner
