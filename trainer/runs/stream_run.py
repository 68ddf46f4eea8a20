"""A trainer's run over its sources: opened new or from a checkpoint; it learns in steps, saves itself and reports.

In: the options of `ftrie trainer`, its sources, and the checkpoint to resume from. Out: a model that learns,
checkpoints, and a `Status`. A checkpoint holds the arrays of model, join and online metrics and, as JSON, the offsets
in the sources, the counts and the waiting dead letters, all of the same moment. Rows waiting for their clicks are in
segment files, which are on disk before a checkpoint names them. `trainer.runs.daemon` decides when to save and publish,
and when to end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, Protocol

from model_store.errors import CheckpointError, InputError, OutputError, SpecError
from model_store.records.records import Records
from model_store.spec.spec import ModelSpec
from model_store.store import Store
from model_store.versions.manifest import now
from model_store.versions.model_versions import ModelVersions
from trainer.checkpoint import Checkpoint, Checkpoints, Description
from trainer.events.columns import Wanted
from trainer.events.events import Lag, SourcePosition
from trainer.events.join import Join
from trainer.events.waiting_rows import Segments
from trainer.examples.hashing import ExampleMaker
from trainer.learn.model import LearningModel
from trainer.publish.online_metrics import OnlineAccumulator
from trainer.runs.dead_letters import DeadLetterOutbox
from trainer.runs.first_events import resolve_by_file, resolve_by_impressions
from trainer.runs.publish_pacing import PublishPacer
from trainer.runs.resume import initial_model, layout_error, resumed_spec, start_model
from trainer.runs.rounds import Partners, RoundLoop
from trainer.runs.signals import StopRequest
from trainer.runs.status import IdleWatch, LateWatch, Status, VariantOutcome, skew_warnings
from trainer.runs.stream import Counts, EventLoop, Loop, RowLoop
from trainer.runs.warmup import compile_trainer
from trainer.settings import TrainerOptions
from trainer.sources.merge import Merger
from trainer.sources.open_sources import ROWS, check_there, kind_of, known_as, open_rows, open_sources

SEGMENTS = "segments"
HISTORIES_S = 0.25
"""How long histories are written at a time, once a second."""


class NamedSource(Protocol):
    """What a run reports of a source."""

    @property
    def name(self) -> str:
        """The name as given."""

    @property
    def lost(self) -> int:
        """How many events were deleted before they were read."""

    def holds(self) -> str:
        """What it holds, read or not, in words."""


class SavedRun:
    """What an earlier run has saved; empty for a first run. `counts`: of the events so far."""

    def __init__(self, earlier: Checkpoint | None, sources: Sequence[str]) -> None:
        """Raises CheckpointError for one of `ftrie train` or of another layout, InputError for other sources."""
        self.checkpoint = earlier
        self.counts = Counts()
        self._saved: Mapping[str, Any] = {}
        if earlier is None:
            return
        if earlier.description.stream is None:
            raise CheckpointError(
                f"{earlier.path} is of a run of `ftrie train`; give --checkpoint another folder"
            )
        self._saved = earlier.description.stream
        try:
            self.counts = Counts(**self._saved.get("counts", {}))
            before = list(self._saved["sources"])
        except (KeyError, TypeError) as error:
            raise layout_error(earlier, error) from error
        names = [known_as(name) for name in sources]
        if names != before:
            raise InputError(
                f"{earlier.path} was made with --from {' --from '.join(before)}, got "
                f"{' --from '.join(names)}; give the same, or start again with another --checkpoint"
            )

    @property
    def positions(self) -> list[SourcePosition]:
        """Where each source is to be read from next."""
        return list(self._saved.get("places", ()))

    @property
    def round(self) -> Mapping[str, int] | None:
        """`Loop.round` of a partition; None for a first run."""
        return self._saved.get("round")

    @property
    def dead_letters(self) -> Mapping[str, Any] | None:
        """What `DeadLetterOutbox.state` returned; None for a first run."""
        return self._saved.get("letters")


def open_run(
    spec: ModelSpec,
    options: TrainerOptions,
    saved: SavedRun,
    checkpoints: Checkpoints,
    store: Store,
    stop: StopRequest,
    stack: ExitStack,
    partners: Partners | None = None,
) -> StreamRun:
    """Open the sources where `saved` has left them, and start or restore the model.

    What stays open is closed by `stack`. partners: of a trainer that learns one of several partitions.

    Raises SpecError, InputError, CheckpointError, StoreUnavailable, Stopped.
    """
    if options.once and saved.checkpoint is None:
        check_there(options.sources)
    has_rows = kind_of(options.sources, spec.input.label) == ROWS
    if partners is not None and has_rows:
        raise InputError(
            f"--partition: {options.sources[0]} holds labelled rows, which have no request to divide them by; "
            "`ftrie train-distributed` learns a log on several machines"
        )
    compile_trainer(spec, options.output)
    published, known = None, list[ModelSpec]()
    if saved.checkpoint is None:
        published = initial_model(spec, options.init_from, options.store)
        known = [published.spec] if published is not None else []
    loop: Loop
    if has_rows:
        loop, sources = _open_row_loop(spec, options, saved, store, stop, stack, known)
    else:
        loop, sources = _open_event_loop(spec, options, saved, store, stop, stack, partners, known)
    if saved.checkpoint is None and published is None and not has_rows:
        options.output.note(
            f"starting with an empty model: until the first window of {spec.join.window} has closed, it learns "
            "from clicks only; --init-from starts with a published model, `ftrie replay` makes one of a log"
        )
    initial = start_model(
        loop.model, options.output, checkpoint=saved.checkpoint, initial=published, whole=loop
    )
    return StreamRun(
        *(spec, loop, sources, options.sources, checkpoints, saved),
        max_lag_s=options.max_lag_s,
        initial=initial,
        on_warning=options.output.warn,
    )


def _open_event_loop(
    spec: ModelSpec,
    options: TrainerOptions,
    saved: SavedRun,
    store: Store,
    stop: StopRequest,
    stack: ExitStack,
    partners: Partners | None,
    known: Sequence[ModelSpec],
) -> tuple[Loop, Sequence[NamedSource]]:
    """Impressions and feedback, to be joined."""
    once, output = options.once, options.output
    if partners is not None and saved.checkpoint is None:
        _check_learned_alike(spec.with_learned_of(known))
    resolved = (
        resumed_spec(spec, saved.checkpoint)
        if saved.checkpoint is not None
        else resolve_by_impressions(spec, options.sources, store, stop, once=once, known=known, output=output)
    )
    sources = open_sources(options.sources, spec, store, saved.positions, output.warn, once=once)
    segments = Segments(options.folder / SEGMENTS, options.memory_bytes)
    merger = Merger(
        *(sources, Wanted.of(resolved), segments),
        positions=saved.positions,
        idle_s=options.idle_s,
        once=once,
        share=partners.share if partners is not None else None,
        on_note=output.warn,
    )
    stack.callback(merger.close)
    relays = partners is not None and not partners.publishes
    model, dead_letters = _model(resolved, options), _dead_letters(spec, options, saved, store, relays=relays)
    parts = (merger, Join(resolved.join), segments, model, dead_letters)
    if partners is None:
        return EventLoop(*parts, counts=saved.counts), sources
    return RoundLoop(partners, saved.round, *parts, counts=saved.counts, once=once), sources


def _check_learned_alike(spec: ModelSpec) -> None:
    """Raise SpecError for a field that would learn on its own in each of several partitions."""
    for name, field in spec.fields.items():
        if field.has_to_learn:
            raise SpecError(
                f"fields.{name}: each partition would learn from the items shown when it starts, and the partitions' "
                "models could not be merged; set learned, or --init-from a model that has learned"
            )


def _open_row_loop(
    spec: ModelSpec,
    options: TrainerOptions,
    saved: SavedRun,
    store: Store,
    stop: StopRequest,
    stack: ExitStack,
    known: Sequence[ModelSpec],
) -> tuple[Loop, Sequence[NamedSource]]:
    """Rows that have their label already."""
    once, output = options.once, options.output
    resolved = resumed_spec(spec, saved.checkpoint) if saved.checkpoint is not None else None
    named = spec if resolved is None else spec.with_columns(resolved.input.columns)
    source = open_rows(options.sources, named, saved.positions, output.warn, once=once)
    stack.callback(source.close)
    resolved = resolved or resolve_by_file(spec, source, stop, once=once, known=known, output=output)
    model, dead_letters = _model(resolved, options), _dead_letters(spec, options, saved, store)
    return RowLoop(source, saved.positions, model, dead_letters, saved.counts, once=once), [source]


def _model(resolved: ModelSpec, options: TrainerOptions) -> LearningModel:
    return LearningModel(ExampleMaker(resolved), keep_seen=options.publish)


def _dead_letters(
    spec: ModelSpec, options: TrainerOptions, saved: SavedRun, store: Store, *, relays: bool = False
) -> DeadLetterOutbox:
    name = spec.model.name
    return DeadLetterOutbox(
        store.dead_letters(name) if not relays else None,
        saved.dead_letters,
        lambda text: options.output.warn(f"{text}, and listed by: ftrie store dead {name}"),
        relays=relays,
    )


class StreamRun:
    """A run that learns in steps. For one thread. `behind`: whether a source is read later than `max_lag_s`."""

    def __init__(
        self,
        spec: ModelSpec,
        loop: Loop,
        sources: Sequence[NamedSource],
        names: Sequence[str],
        checkpoints: Checkpoints,
        saved: SavedRun,
        *,
        max_lag_s: float,
        initial: str | None = None,
        on_warning: Callable[[str], None] = lambda text: None,
    ) -> None:
        """names: of the sources as given; initial: SHA-256 of the published model that the first run started from."""
        before = saved.checkpoint.description if saved.checkpoint is not None else None
        self.behind = False
        self._spec = spec
        self._loop = loop
        self._sources = sources
        self._names = [known_as(name) for name in names]
        self._checkpoints = checkpoints
        self._max_lag_s = max_lag_s
        self._initial = initial
        self._warn = on_warning
        self._seconds_before = before.seconds if before is not None else 0.0
        self._began_s = time.monotonic()
        self._saved_rows = before.rows if before is not None else -1
        self._rate_since = (self._began_s, loop.counts.events)
        self._lags: dict[str, Lag] = {}
        self._failing_on_disk = set[str]()
        self._idle = IdleWatch(spec.model.name, sources, loop.counts)
        self._late = LateWatch(loop.joined())
        if isinstance(loop, RoundLoop):
            loop.describe = self._description

    @property
    def model(self) -> LearningModel:
        """The model that learns."""
        return self._loop.model

    @property
    def counts(self) -> Counts:
        """Counts of the events so far."""
        return self._loop.counts

    @property
    def online(self) -> OnlineAccumulator:
        """The online metrics of the served versions."""
        return self._loop.online

    @property
    def ended(self) -> bool:
        """True once every source has ended and all its events are taken."""
        return self._loop.ended

    def step(self, wait_s: float) -> bool:
        """Learn from the next events; False if none come within `wait_s` seconds."""
        worked = self._loop.step(wait_s)
        if worked:
            self._on_disk(self._loop.relieve, "rows waiting for their clicks stay in memory")
        return worked

    def finish(self) -> None:
        """Close every window: there will be no more events."""
        self._loop.finish()

    def save_is_due(self) -> bool:
        """True if a checkpoint should be written now."""
        return self._loop.resumable and self._checkpoints.is_due(self.model.rows)

    def save(self) -> None:
        """Write the rows waiting for their clicks, then a checkpoint, which names them. A failure is reported.

        A partition writes none but at the beginning of a round.
        """
        loop, rows = self._loop, self.model.rows
        if not loop.resumable:
            return
        if not self._on_disk(loop.before_checkpoint, "no checkpoint is written"):
            self._checkpoints.skip(rows)
            return
        is_written = self._checkpoints.save(self._description(), loop.state())
        if is_written and rows > self._saved_rows:
            # A checkpoint of as many rows as the last one replaces it, and drops none of those before.
            self._saved_rows = rows
            loop.after_checkpoint()

    def begin(self) -> None:
        """Of a first run: start the partitions, if this is one. Raises StoreError."""
        if isinstance(self._loop, RoundLoop):
            self._loop.begin()

    def store_tasks(self, versions: ModelVersions, records: Records) -> list[Callable[[], object]]:
        """What is to be written to the store every second."""
        tasks: list[Callable[[], object]] = [
            self._loop.dead_letters.send,
            lambda: self._loop.online.flush(versions.online),
        ]
        users = self._loop.histories
        if users is not None:
            users.all_changed()  # what the store has may be of after the checkpoint
            tasks.append(
                lambda: users.write(records, self._spec.model.name, math.inf if self.ended else HISTORIES_S)
            )
        return tasks

    def store_lost_its_data(self) -> None:
        """Write all users' histories again."""
        if self._loop.histories is not None:
            self._loop.histories.all_changed()

    def warnings(self) -> dict[str, str]:
        """Present problems, by kind. To be called every second or so."""
        counts, found = self.counts, dict(self.model.warnings.texts)
        if isinstance(self._loop, RoundLoop) and (problem := self._loop.problem()):
            found[problem] = problem
        self._update_lags()
        found |= skew_warnings(self._lags)
        if late := self._late.look(self._loop.joined(), at_end=self.ended):
            found["late"] = late
        self._idle.look(counts)
        if self._idle.reason:
            found["quiet"] = self._idle.reason
        if (users := self._loop.histories) is not None and users.dropped:
            found["users"] = (
                f"more than {users.most:,} users have a history: {users.dropped:,} were dropped, the least recently "
                "used ones first, and begin again should they return"
            )
        if counts.minus_labels:
            others = counts.examples - counts.minus_labels - self.model.metrics.clicked
            found["labels"] = "labels are read as -1/+1: -1 is no click" + (
                f", as 0 is ({others:,} rows)" if others else ""
            )
        return found

    def status(self, pacer: PublishPacer | None, *, ended: bool) -> Status:
        """The present status; asks the sources how far behind they are read."""
        loop, counts, model = self._loop, self._loop.counts, self._loop.model
        self._update_lags()
        return Status(
            model=model.spec.model.name,
            events=counts.events,
            examples=counts.examples,
            rate=self._rate(),
            keys=model.table.count,
            logloss=model.metrics.recent_logloss(),
            version=pacer.version if pacer is not None else None,
            published=pacer.publisher.counts.as_dict() if pacer is not None else {},
            failed_checkpoints=self._checkpoints.failed,
            dead_letters=loop.dead_letters.count,
            lags=self._lags,
            lost={source.name: source.lost for source in self._sources},
            counts=counts.as_dict(),
            join=loop.joined(),
            users_dropped=loop.histories.dropped if loop.histories is not None else 0,
            behind=self.behind,
            normalized_entropy=model.warnings.normalized_entropy,
            withheld=pacer.publisher.withheld if pacer is not None else "",
            variants=model.metrics.summary() if ended else {},
            outcomes=self._outcomes(),
            ended=ended,
            **self._of_partition(),
        )

    def _outcomes(self) -> dict[str, VariantOutcome]:
        """By variant. The recent figures are in the online metrics of the whole model, which partition 1 writes."""
        loop, recent = self._loop, self._loop.online.recent()
        writes = not isinstance(loop, RoundLoop) or loop.publishes
        return {
            name: VariantOutcome.of(totals, recent.get(name) if writes else None)
            for name, totals in loop.online.totals().items()
        }

    def _of_partition(self) -> dict[str, Any]:
        loop = self._loop
        if not isinstance(loop, RoundLoop):
            return {}
        return {"partition": loop.partition, "round": loop.number, "waiting_s": round(loop.waiting_s, 1)}

    def _description(self) -> Description:
        loop, counts, model = self._loop, self._loop.counts, self._loop.model
        return Description(
            ftrie=version("ftrie"),
            created=now().isoformat(),
            spec=self._spec.to_json(),
            resolved=model.spec.to_json(),
            columns=(),
            rows=model.rows,
            keys=model.table.count,
            seconds=self._seconds_before + time.monotonic() - self._began_s,
            read=(),
            rows_read=counts.examples + counts.bad_rows + counts.subsampled,
            subsampled=counts.subsampled,
            reject_counts=dict(loop.dead_letters.reasons),
            initial=self._initial,
            stream={
                "sources": self._names,
                "places": list(loop.positions()),
                "counts": asdict(counts),
                "letters": loop.dead_letters.state(),
                "join": loop.joined(),
                **({"round": loop.round} if loop.round else {}),
            },
        )

    def _on_disk(self, work: Callable[[], None], consequence: str) -> bool:
        """Whether the work succeeded; a full disk does not stop learning, and is reported once."""
        try:
            work()
        except OutputError as error:
            if consequence not in self._failing_on_disk:
                self._warn(f"{error}; {consequence}, and learning continues")
            self._failing_on_disk.add(consequence)
            return False
        self._failing_on_disk.discard(consequence)
        return True

    def _update_lags(self) -> None:
        lags = self._loop.lags()
        self._lags = {source.name: lag for source, lag in zip(self._sources, lags, strict=True)}
        self.behind = any((lag.seconds or 0.0) > self._max_lag_s for lag in lags)

    def _rate(self) -> float:
        then_s, events = self._rate_since
        now_s = time.monotonic()
        self._rate_since = (now_s, self.counts.events)
        return (self.counts.events - events) / max(now_s - then_s, 1e-9)
