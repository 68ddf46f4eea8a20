"""Replays a log: runs it through the trainer's own join and learner, faster than it was written.

In: a spec, and logs of one kind: events (impressions and feedback), which are joined as `ftrie trainer` joins them, or
labelled rows, which need no join. Out: a `Replayed` with the learned model; `JoinedTap` keeps the joined rows, for
off-policy estimates.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt

from model_store.errors import SpecError
from model_store.features.derived import Derivations
from model_store.spec.spec import ModelSpec
from model_store.store import Store
from trainer.events.columns import Wanted
from trainer.events.join import Join, Joined
from trainer.events.waiting_rows import Segments
from trainer.examples.derived import check_one_way
from trainer.examples.hashing import ExampleMaker
from trainer.examples.joined import JOIN, labelled, with_request
from trainer.examples.learned import with_learned
from trainer.examples.open_log import Log, open_log
from trainer.formats.batch import Position, RowBatch, mark_of
from trainer.formats.reader import EVENTS
from trainer.formats.rejects import RejectLog
from trainer.formats.times import NO_TIME, parse_times, time_format
from trainer.learn.model import LearningModel
from trainer.off_policy.logged import Layout, LoggedRows, RowCollector, bad_rows
from trainer.output import SILENT, Output
from trainer.runs.first_events import items_shown
from trainer.runs.loop import LogLoop
from trainer.runs.stream import DeadLetterOutbox, EventLoop
from trainer.runs.train import show
from trainer.sources.merge import Merger
from trainer.sources.open_sources import ROWS, open_sources

MEMORY_BYTES = 1 << 30
_WAIT_S = 0.2


@dataclass(frozen=True)
class Replayed:
    """A replay that has ended.

    kind: EVENTS or ROWS; examples: learned from; doubled: rows of which each is two examples; rejected, reasons: bad
    events and rows, in all and by category; span_s: from the log's first time to its last, None if it has no times.
    counts: events by kind, join: outcomes of the join; both are empty for rows.
    """

    kind: str
    model: LearningModel
    examples: int
    rejected: int
    seconds: float
    span_s: float | None
    counts: Mapping[str, int] = field(default_factory=dict)
    join: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)
    doubled: int = 0

    @property
    def rejected_share(self) -> float:
        """The share of the events or rows that were rejected."""
        return self.rejected / max(self.rejected + self.examples - self.doubled, 1)

    @property
    def speed(self) -> float | None:
        """How many times faster the replay was than the log was written; None if unknown."""
        return self.span_s / self.seconds if self.span_s and self.seconds else None

    def as_dict(self) -> dict[str, object]:
        """The JSON form, without the model's bytes."""
        return {
            "kind": self.kind,
            "events": dict(self.counts) or None,
            "join": dict(self.join) or None,
            "examples": self.examples,
            "rejected": self.rejected,
            "reasons": dict(self.reasons),
            "seconds": round(self.seconds, 6),
            "span_s": self.span_s,
            "speed": self.speed and round(self.speed, 1),
            "keys": self.model.table.count,
            "variants": {name: metrics.as_dict() for name, metrics in self.model.metrics.summary().items()},
        }


def as_events(spec: ModelSpec) -> ModelSpec:
    """The spec resolved for events, which have no columns: every field must be named. Raises SpecError."""
    named = [field.column or name for name, field in spec.fields.items()]
    return spec.resolve((*named, *spec.input.named_columns))


def replay_events(
    spec: ModelSpec,
    logs: Sequence[str],
    store: Store | None = None,
    *,
    tap: JoinedTap | None = None,
    memory_bytes: int = MEMORY_BYTES,
    output: Output = SILENT,
) -> Replayed:
    """Learn from impressions and feedback to the end of all logs, with the trainer's own loop.

    tap: receives every joined row; memory_bytes: of rows that wait for their clicks, the rest lies in a temporary
    folder. Raises SpecError, InputError, StoreUnavailable.
    """
    began = time.perf_counter()
    resolved = as_events(spec)
    (resolved,) = with_learned([resolved], items_shown(resolved, logs, store), output.warn)
    with ExitStack() as stack:
        sources = open_sources(logs, spec, store, (), output.note, once=True)
        folder = stack.enter_context(TemporaryDirectory(prefix="ftrie-replay-"))
        segments = Segments(Path(folder), memory_bytes)
        merger = Merger(
            *(sources, _wanted(resolved, tap), segments),
            once=True,
            on_note=output.note,
            lateness_us=resolved.join.lateness_us,
        )
        stack.callback(merger.close)
        bar = stack.enter_context(output.progress("replaying", unit="examples"))
        model = LearningModel(ExampleMaker(resolved))
        dead_letters, span = DeadLetterOutbox(None), _Span()

        def on_joined(joined: Joined, segments: Segments) -> None:
            span.add(joined.closed.time_us)
            if tap is not None:
                tap.add(joined, segments)

        loop = EventLoop(
            *(merger, Join(resolved.join, resolved.input.rows), segments, model, dead_letters),
            on_joined=on_joined,
            warn=output.warn,
        )
        while not loop.ended:
            loop.step(_WAIT_S)
            loop.join.counts.check_order(", ".join(logs))
            show(bar, model, None)
        loop.finish()
        show(bar, model, None)
    return Replayed(
        kind=EVENTS,
        model=model,
        examples=loop.counts.examples,
        rejected=loop.counts.bad_events + loop.counts.bad_rows,
        seconds=time.perf_counter() - began,
        span_s=span.seconds,
        counts=asdict(loop.counts),
        join=dict(vars(loop.join.counts)),
        reasons=dict(dead_letters.reasons.most_common()),
    )


def replay_rows(
    spec: ModelSpec, log: Log, *, rejects: RejectLog, threads: int | None = None, output: Output = SILENT
) -> Replayed:
    """Learn from every labelled row in order, as `ftrie train` does.

    Raises SpecError where the spec does not fit the log, InputError where the log cannot be read to its end.
    """
    began = time.perf_counter()
    with open_log(log, spec) as opened:
        model, span = LearningModel(opened.maker), _Span()
        stamp = spec.input.timestamp
        batches = _timed(opened.batches([stamp] if stamp in opened.columns else []), opened.spec, span)
        loop = LogLoop(model, opened, rejects)
        with opened.examples(threads, batches=batches) as stream, output.progress("replaying") as bar:
            failure = loop.run(stream, lambda: show(bar, model, opened.expected_rows(model.metrics.rows)))
            if failure is not None:
                raise failure
    for warning in opened.warnings():
        output.note(warning)
    seconds = time.perf_counter() - began
    return Replayed(
        *(ROWS, model, model.metrics.rows, rejects.count, seconds, span.seconds),
        reasons=rejects.counts,
        doubled=loop.counts.doubled,
    )


class JoinedTap:
    """Collects joined rows for off-policy estimates: every impression's rows in the order shown, with their labels.

    models: the specs that the rows are to be scored by; propensity, position, decision: as in `LogOfRows`. If the join
    emits a row again, corrected by a late click, the last one counts.
    """

    def __init__(
        self,
        spec: ModelSpec,
        models: Iterable[ModelSpec],
        propensity: str | None,
        position: str | None,
        decision: str,
    ) -> None:
        """Raises SpecError if a spec does not name its fields."""
        self.spec = spec = as_events(with_request(spec))
        self._propensity, self._position, self._decision = propensity, position, decision
        named = (spec.input.request, spec.input.item, propensity, position)
        self.models = resolved = [as_events(each) for each in models]
        wanted = [
            name
            for each in resolved
            for name in each.wanted_columns()
            if name not in (each.input.label, each.input.views)
        ]
        self.columns = (*filter(None, named), *wanted)
        self._makers = [ExampleMaker(each) for each in resolved]
        self._collector: RowCollector | None = None

    def add(self, joined: Joined, segments: Segments) -> None:
        """Keep the rows that one step of the join emitted."""
        given = joined.segment, joined.row, joined.label
        keys = mark_of(joined.segment.astype(np.int64), joined.row)
        for chosen, columns in labelled(segments, given, self.spec.input):
            batch = RowBatch(columns, np.arange(chosen.size), JOIN, (), chosen.size, Position(JOIN))
            self._collected(columns).add(batch, bad_rows(batch, self._makers), keys[chosen])

    def _collected(self, columns: Iterable[str]) -> RowCollector:
        """The collector; columns: those of the first rows. Raises SpecError if they lack a named one."""
        if self._collector is None:
            layout = Layout.of(tuple(columns), self._propensity, self._position)
            self._collector = RowCollector(self.spec.input, layout)
        return self._collector

    def read(
        self, spec: ModelSpec, models: Sequence[ModelSpec]
    ) -> tuple[LoggedRows, Layout, list[ModelSpec]]:
        """The rows that are examples to all of the models, and the resolved models. Raises SpecError, InputError."""
        collector = self._collected(())
        return collector.rows(self._decision), collector.layout, self.models


def _wanted(resolved: ModelSpec, tap: JoinedTap | None) -> Wanted:
    """The columns of joined rows: those of the spec, and as text those that only the tap wants."""
    more, own = (tap.columns, tap.spec.input) if tap is not None else ((), resolved.input)
    read = resolved.model_copy(
        update={"input": own}
    )  # which may name a request that the trainer's spec does not
    wanted = Wanted.of_columns((*resolved.wanted_columns(), *more), read)
    models = tap.models if tap is not None else ()
    check_one_way([resolved, *models])
    histories = {each.column or name for name, each in resolved.fields.items() if each.history is not None}
    for name, each in (item for model in models for item in model.fields.items()):
        if each.history is not None and (each.column or name) not in histories:
            raise SpecError(
                f"fields.{name}: a model to estimate has this history field and the spec of the replay has not, so its "
                "values would be missing; add it to that spec"
            )
    others = [Derivations.of(each.fields) for each in models]
    return replace(wanted, derived=(*wanted.derived, *filter(None, others)))


class _Span:
    """The time from the first of the times to the last."""

    def __init__(self) -> None:
        self._ends: list[int] = []

    @property
    def seconds(self) -> float | None:
        """None if there was no time."""
        return (self._ends[-1] - self._ends[0]) / 1e6 if self._ends else None

    def add(self, times_us: npt.ArrayLike) -> None:
        """Take note of times, skipping NO_TIME."""
        times = np.asarray(times_us)
        known = times[times != NO_TIME]
        if known.size:
            self._ends = [
                min([int(known.min()), *self._ends[:1]]),
                max([int(known.max()), *self._ends[1:]]),
            ]


def _timed(batches: Iterable[RowBatch], spec: ModelSpec, span: _Span) -> Iterator[RowBatch]:
    """The batches, unchanged; the times of the first and last row of each are recorded as they pass."""
    form = time_format(spec)
    for batch in batches:
        column = batch.columns.get(spec.input.timestamp) if spec.input.timestamp else None
        if column is not None and batch.rows:
            span.add(parse_times(column.take([0, batch.rows - 1]), form)[0])
        yield batch
