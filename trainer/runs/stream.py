"""The learning loops of a trainer: each step takes what comes next, makes examples of it and learns from them.

`EventLoop` joins impressions with feedback (`ftrie trainer`, `ftrie replay`); `RowLoop` reads labelled rows of growing
files. What a loop has learned after some events depends on these events alone: not on how they were divided into steps,
nor on restarts from a checkpoint between them. Neither reads the store or a clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trainer.events.events import FEEDBACK, IMPRESSION, Lag, Merged, SourcePosition
from trainer.events.histories import Histories
from trainer.events.join import Join, Joined
from trainer.events.waiting_rows import Segments
from trainer.examples.derived import DerivedColumns
from trainer.examples.joined import JOIN, EventRows, JoinedExamples
from trainer.examples.row_histories import RowHistories
from trainer.learn.model import LearningModel
from trainer.publish.online_metrics import OnlineAccumulator
from trainer.runs.dead_letters import DeadLetterOutbox
from trainer.sources.merge import Merger
from trainer.sources.rows import Rows, RowSource

JOIN_PART, ONLINE_PART, HISTORY_PART = "join.", "online.", "history."
"""Prefixes of the names of a checkpoint's arrays."""
LOOK_EVERY_S = 0.05

Arrays = Mapping[str, npt.NDArray[Any]]
Closed = Callable[[Joined, Segments], None]


@dataclass
class Counts:
    """Counts of events and rows, over all resumed runs.

    rows: labelled rows read; bad_events: events that could not be parsed; examples: learned from; bad_rows: rows that
    could not be learned from; subsampled: rows dropped by subsampling; unknown_items: rows skipped because the server
    did not know the item; minus_labels: examples with a label written as -1. through_us: the order time of the last
    event.
    """

    impressions: int = 0
    feedback: int = 0
    rows: int = 0
    bad_events: int = 0
    examples: int = 0
    bad_rows: int = 0
    subsampled: int = 0
    unknown_items: int = 0
    through_us: int = 0
    minus_labels: int = 0

    @property
    def events(self) -> int:
        """All events and labelled rows taken."""
        return self.impressions + self.feedback + self.rows + self.bad_events

    def as_dict(self) -> dict[str, int]:
        """The counts by name."""
        return dict(vars(self))


class Loop(Protocol):
    """Learns in steps, from events to be joined or from labelled rows."""

    model: LearningModel
    dead_letters: DeadLetterOutbox
    counts: Counts
    online: OnlineAccumulator

    def step(self, wait_s: float = 0.0) -> bool:
        """Learn from what comes next; False if nothing does within `wait_s` seconds."""

    def finish(self) -> None:
        """There will be no more events."""

    @property
    def ended(self) -> bool:
        """True once every source has ended and all its events are taken."""

    @property
    def histories(self) -> Histories | None:
        """The users' histories; None if no field is of one."""

    @property
    def resumable(self) -> bool:
        """True if a later run may resume from the present state."""

    @property
    def round(self) -> dict[str, int]:
        """The round that begins here, for the checkpoint; empty unless the loop is one of several partitions'."""

    def positions(self) -> list[SourcePosition]:
        """Where each source is to be read from next."""

    def lags(self) -> list[Lag]:
        """How far behind each source is read."""

    def relieve(self) -> None:
        """Keep memory within its bound. Raises OutputError; nothing is lost then."""

    def before_checkpoint(self) -> None:
        """Write the files that a checkpoint will name. Raises OutputError."""

    def after_checkpoint(self) -> None:
        """A checkpoint was written."""

    def joined(self) -> dict[str, int]:
        """The join's counts; empty if nothing is joined."""

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays for a checkpoint."""

    def restore(self, arrays: Arrays) -> None:
        """Restore `state`."""


class EventLoop:
    """Learns from impressions and feedback; see `Loop` for the methods. For one thread.

    `on_joined` is called with the output of the join before it is learned from.
    """

    def __init__(
        self,
        merger: Merger,
        join: Join,
        segments: Segments,
        model: LearningModel,
        dead_letters: DeadLetterOutbox,
        on_joined: Closed = lambda joined, segments: None,
        counts: Counts | None = None,
        online: OnlineAccumulator | None = None,
    ) -> None:
        self.model = model
        self.join = join
        self.segments = segments
        self.dead_letters = dead_letters
        self.counts = counts or Counts()
        self.online = online or OnlineAccumulator(tuple(model.spec.variants))
        self.merger = merger
        self._events = EventRows(merger, join, segments, model.spec)
        self._on_joined = on_joined
        joined_rows = self.counts.examples + self.counts.bad_rows + self.counts.subsampled
        self._examples = JoinedExamples(model.maker, segments, joined_rows, self.counts.unknown_items)

    @property
    def histories(self) -> Histories | None:
        """The users' histories; None if no field is of one."""
        return self._events.histories.users if self._events.histories is not None else None

    @property
    def resumable(self) -> bool:
        """Any state is."""
        return True

    @property
    def round(self) -> dict[str, int]:
        """It learns all events."""
        return {}

    def step(self, wait_s: float = 0.0) -> bool:
        """Learn from the next events. Raises what the sources raise."""
        found = self._events.step(wait_s)
        if found is None:
            return False
        merged, joined = found
        self._count(merged)
        for bad in merged.bad:
            self.dead_letters.add(bad.source, bad.where, bad.reason, bad.line)
        self._learn(joined)
        return True

    def relieve(self) -> None:
        """Move rows to disk if they exceed the memory."""
        self.segments.relieve(self.join.segments)

    def finish(self) -> None:
        """Close every window, and learn from the requests in it."""
        self._learn(self.join.finish())

    @property
    def ended(self) -> bool:
        """True once every source has ended and all its events are taken."""
        return self.merger.ended

    def positions(self) -> list[SourcePosition]:
        """Where each source is to be read on."""
        return self.merger.positions()

    def lags(self) -> list[Lag]:
        """How far behind each source is read."""
        return self.merger.lags()

    def before_checkpoint(self) -> None:
        """Write the rows waiting for clicks to disk."""
        self.segments.keep(self.join.segments())
        self.segments.flush()

    def after_checkpoint(self) -> None:
        """Delete files that no checkpoint names any more."""
        self.segments.committed()

    def joined(self) -> dict[str, int]:
        """The join's counts."""
        return dict(vars(self.join.counts))

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays of the model, of the join and of the online metrics."""
        return (
            self.model.state()
            | _prefixed(JOIN_PART, self.join.state())
            | _prefixed(ONLINE_PART, self.online.state())
            | _prefixed(HISTORY_PART, self._events.history_state())
        )

    def restore(self, arrays: Arrays) -> None:
        """Restore `state`."""
        self.model.restore(arrays)
        self.join.restore(_with_prefix(JOIN_PART, arrays))
        self.online.restore(_with_prefix(ONLINE_PART, arrays))
        if self._events.histories is not None:
            self._events.histories.restore(_with_prefix(HISTORY_PART, arrays))
        self.segments.restore(self.join.segments())

    def _count(self, merged: Merged) -> None:
        counts = self.counts
        counts.impressions += int(np.count_nonzero(merged.kind == IMPRESSION))
        counts.feedback += int(np.count_nonzero(merged.kind == FEEDBACK))
        counts.bad_events += len(merged.bad)
        if merged.back_to_us is not None:
            counts.through_us = min(counts.through_us, merged.back_to_us)
        if len(merged):
            counts.through_us = max(counts.through_us, int(merged.now_us[-1]))

    def _learn(self, joined: Joined) -> None:
        self._on_joined(joined, self.segments)
        self.online.add(joined, self.segments)
        counts = self.counts
        for examples, bad in self._examples.of(joined):
            self.model.learn(examples)
            counts.examples += int(examples.rows.size)
            counts.subsampled += examples.counts.subsampled
            counts.bad_rows += len(bad)
            for row in bad:
                self.dead_letters.add(JOIN, "", row.reason, row.json)
        counts.unknown_items = self._examples.unknown_items


class RowLoop:
    """Learns from labelled rows in the order of their files; see `Loop` for the methods. For one thread.

    Its bad rows include lines that could not be parsed, such as one with too few columns.
    """

    def __init__(
        self,
        source: RowSource,
        positions: Sequence[SourcePosition],
        model: LearningModel,
        dead_letters: DeadLetterOutbox,
        counts: Counts,
        *,
        once: bool = False,
    ) -> None:
        self.model = model
        self.dead_letters = dead_letters
        self.counts = counts
        self.online = OnlineAccumulator()
        self._source = source
        self._position = positions[0] if positions else source.start
        self._wanted = model.spec.wanted_columns()
        self._derived = DerivedColumns(model.spec)
        self._once = once
        self._histories = RowHistories.of(model.spec)
        self._pause = threading.Event()

    @property
    def histories(self) -> Histories | None:
        """The users' histories; None if no field is of one."""
        return self._histories.users if self._histories is not None else None

    @property
    def resumable(self) -> bool:
        """Any state is."""
        return True

    @property
    def round(self) -> dict[str, int]:
        """It learns all events."""
        return {}

    def step(self, wait_s: float = 0.0) -> bool:
        """Learn from the next rows. Raises what the source raises."""
        rows = self._source.read(self._wanted)
        if rows is None and wait_s and not self.ended:
            self._pause.wait(min(wait_s, LOOK_EVERY_S))
            rows = self._source.read(self._wanted)
        if rows is None:
            return False
        self._learn(rows)
        return True

    def finish(self) -> None:
        """No row is waiting."""

    @property
    def ended(self) -> bool:
        """With `once`: True when everything is read."""
        return self._source.ended

    def positions(self) -> list[SourcePosition]:
        """Where the source is to be read from next."""
        return [self._position]

    def lags(self) -> list[Lag]:
        """How far behind the source is read."""
        return [self._source.lag()]

    def relieve(self) -> None:
        """No rows are kept in memory."""

    def before_checkpoint(self) -> None:
        """The checkpoint names no files."""

    def after_checkpoint(self) -> None:
        """The checkpoint names no files."""

    def joined(self) -> dict[str, int]:
        """Nothing is joined."""
        return {}

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays of the model, and of histories."""
        histories = self._histories.state() if self._histories is not None else {}
        return self.model.state() | _prefixed(HISTORY_PART, histories)

    def restore(self, arrays: Arrays) -> None:
        """Restore `state`."""
        self.model.restore(arrays)
        if self._histories is not None:
            self._histories.restore(_with_prefix(HISTORY_PART, arrays))

    def _learn(self, rows: Rows) -> None:
        counts = self.counts
        batch = rows.batch if self._histories is None else self._histories.fill(rows.batch)
        (batch,) = self._derived.filled([batch])
        examples = self.model.maker.make(replace(batch, first_row=counts.examples + counts.bad_rows))
        self.model.learn(examples)
        counts.examples += int(np.size(examples.rows))
        counts.minus_labels += examples.counts.minus_labels
        counts.bad_rows += len(examples.rejects)
        counts.rows += batch.rows + len(batch.rejects)
        for reject in examples.rejects:
            self.dead_letters.add(self._source.name, f"{reject.file}:{reject.line}", reject.reason, b"")
        self._position = rows.after


def _prefixed(prefix: str, arrays: Arrays) -> dict[str, npt.NDArray[Any]]:
    return {f"{prefix}{name}": array for name, array in arrays.items()}


def _with_prefix(prefix: str, arrays: Arrays) -> dict[str, npt.NDArray[Any]]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
