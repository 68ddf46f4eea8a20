"""Replaying events: the daemon's own loop of merge, join and learner, over sources that end, and nothing published.

What it learns is what `ftrie trainer` learns from the same events: it is the same code, told that the sources end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from model_store.spec import ModelSpec
from model_store.store import Store
from trainer.daemon.letters import Letters
from trainer.daemon.loop import EventLoop
from trainer.events.merging import Merger
from trainer.events.sources.opening import open_sources
from trainer.events.wanted import Column, Wanted, places_of
from trainer.hashing.examples import ExampleMaker
from trainer.joining.join import Join, Joined
from trainer.joining.segments import Segments
from trainer.model import LearningModel
from trainer.replaying.kinds import EVENTS
from trainer.replaying.replayed import Replayed
from trainer.replaying.tap import JoinedTap

WAIT_S = 0.2
MEMORY_BYTES = 1 << 30


def as_events(spec: ModelSpec) -> ModelSpec:
    """The spec with its fields named, for events, which have no columns to name them by. Raises SpecError."""
    named = [field.column or name for name, field in spec.fields.items()]
    return spec.resolve((*named, *spec.input.named_columns))


def replay_events(
    spec: ModelSpec,
    logs: Sequence[str],
    store: Store | None = None,
    *,
    tap: JoinedTap | None = None,
    memory_bytes: int = MEMORY_BYTES,
    on_progress: Callable[[EventLoop], None] = lambda loop: None,
    on_note: Callable[[str], None] = lambda text: None,
) -> Replayed:
    """Learn from impressions and feedback to the end of all logs. `tap` is given every joined row as well.

    Rows that wait for their clicks take up to memory_bytes, then lie in a folder that goes when this ends. Raises
    SpecError, InputError, StoreUnavailable.
    """
    began = time.perf_counter()
    resolved = as_events(spec)
    with ExitStack() as stack:
        sources = open_sources(logs, spec, store, (), on_note, once=True)
        folder = stack.enter_context(TemporaryDirectory(prefix="ftrie-replay-"))
        segments = Segments(Path(folder), memory_bytes)
        merger = Merger(sources, _wanted(resolved, tap), segments, once=True, on_note=on_note)
        stack.callback(merger.close)
        model = LearningModel(ExampleMaker(resolved))
        letters, span = Letters(None), _Span()

        def joined(found: Joined, segments: Segments) -> None:
            span.add(found)
            if tap is not None:
                tap.add(found, segments)

        loop = EventLoop(merger, Join(resolved.join), segments, model, letters, joined)
        while not loop.ended:
            loop.step(WAIT_S)
            on_progress(loop)
        loop.finish()
        on_progress(loop)
    return Replayed(
        kind=EVENTS,
        model=model,
        examples=loop.counts.examples,
        rejected=loop.counts.bad_events + loop.counts.bad_rows,
        seconds=time.perf_counter() - began,
        span_s=span.seconds,
        counts=loop.counts.as_dict(),
        join=dict(vars(loop.join.counts)),
        reasons=dict(letters.reasons.most_common()),
    )


def _wanted(resolved: ModelSpec, tap: JoinedTap | None) -> Wanted:
    """What the spec's joined rows have, and what the tap asks for besides: as text, which every kind is read from."""
    wanted = Wanted.of(resolved)
    known = set(wanted.names)
    more = [name for name in (tap.columns if tap is not None else ()) if name not in known]
    extra = tuple(Column(name, "text", places_of(resolved, name)) for name in dict.fromkeys(more))
    return replace(wanted, columns=wanted.columns + extra)


class _Span:
    """From the first closed request's time to the last's."""

    def __init__(self) -> None:
        self._ends: list[int] = []

    @property
    def seconds(self) -> float | None:
        """None where no request was closed."""
        return (max(self._ends) - min(self._ends)) / 1e6 if self._ends else None

    def add(self, joined: Joined) -> None:
        """Look at what the join gave out."""
        times = np.asarray(joined.closed.time_us)
        if times.size:
            self._ends = [min([int(times.min()), *self._ends]), max([int(times.max()), *self._ends])]
