"""One step of the loop: merged events go through the join and become examples, which are learned from at once.

`ftrie trainer` and `ftrie replay` are both this loop; it knows neither store nor clock. What it has learned after some
events depends on these events alone, however they came: in one piece or in many, today or after a crash.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trainer.events.columns import UNKNOWN
from trainer.events.events import FEEDBACK, IMPRESSION, Lag, Merged, SourcePosition
from trainer.events.merge import Merger
from trainer.events.rows import Rows, RowSource
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.join.join import Join, Joined
from trainer.join.rows import Segments
from trainer.learn.model import LearningModel
from trainer.logs.batch import Position, RowBatch
from trainer.logs.rejects import Reject
from trainer.publish.online_metrics import OnlineAccumulator
from trainer.runs.dead_letters import Letters

JOIN_PART, ONLINE_PART = "join.", "online."

Arrays = Mapping[str, npt.NDArray[Any]]
Closed = Callable[[Joined, Segments], None]


@dataclass
class Counts:
    """What became of the events so far; over all runs that went on from one another.

    rows: labelled rows, where there are no events; bad_events: those that could not be read; examples: learned from;
    bad_rows: rows that are no examples; subsampled: rows that were not drawn; unknown_items: rows of items of which the
    server knew nothing. through_us: the order time of the last event taken. minus_labels: examples of labelled rows
    whose label is written as -1.
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
        """All that was taken."""
        return self.impressions + self.feedback + self.rows + self.bad_events

    def as_dict(self) -> dict[str, int]:
        """The counts by name."""
        return dict(vars(self))


class Loop(Protocol):
    """What learns in steps: from events that are joined, or from rows that have their label already."""

    model: LearningModel
    letters: Letters
    counts: Counts
    online: OnlineAccumulator

    def step(self, wait_s: float = 0.0) -> bool:
        """Take what comes next; False if nothing does within `wait_s` seconds."""

    def finish(self) -> None:
        """Nothing more is to come."""

    @property
    def ended(self) -> bool:
        """True once every source has ended and all it had is taken."""

    def positions(self) -> list[SourcePosition]:
        """Where each source is to be read on."""

    def lags(self) -> list[Lag]:
        """How far behind each source is read."""

    def relieve(self) -> None:
        """Keep memory within its bound. Raises OutputError."""

    def before_checkpoint(self) -> None:
        """Put on the disk what a checkpoint names. Raises OutputError."""

    def after_checkpoint(self) -> None:
        """A checkpoint was written."""

    def joined(self) -> dict[str, int]:
        """What became of the events in the join; nothing where there is none."""

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays of a checkpoint."""

    def restore(self, arrays: Arrays) -> None:
        """Take over what `state` gave."""


class EventLoop:
    """Learns from impressions and feedback. For one thread.

    `on_joined` is told of everything that the join gives out, before it is learned from.
    """

    def __init__(
        self,
        merger: Merger,
        join: Join,
        segments: Segments,
        model: LearningModel,
        letters: Letters,
        on_joined: Closed = lambda joined, segments: None,
        counts: Counts | None = None,
        online: OnlineAccumulator | None = None,
    ) -> None:
        self.model = model
        self.join = join
        self.segments = segments
        self.letters = letters
        self.counts = counts or Counts()
        self.online = online or OnlineAccumulator()
        self._merger = merger
        self._on_joined = on_joined
        joined_rows = self.counts.examples + self.counts.bad_rows + self.counts.subsampled
        self._examples = JoinedExamples(model.maker, segments, joined_rows, self.counts.unknown_items)

    def step(self, wait_s: float = 0.0) -> bool:
        """Take the next events; False if none come within `wait_s` seconds. Raises what the sources raise."""
        merged = self._merger.poll(wait_s)
        if merged is None:
            return False
        self._count(merged)
        for bad in merged.bad:
            self.letters.add(bad.source, bad.where, bad.reason, bad.line)
        self._learn(self.join.push(merged))
        return True

    def relieve(self) -> None:
        """Keep memory within its bound. Raises OutputError if that needs a disk that is full; nothing is lost then."""
        self.segments.relieve(self.join.segments)

    def finish(self) -> None:
        """There will be no more events: close every window, and learn from what was in them."""
        self._learn(self.join.finish())

    @property
    def ended(self) -> bool:
        """True once every source has ended and all their events are taken."""
        return self._merger.ended

    def positions(self) -> list[SourcePosition]:
        """Where each source is to be read on."""
        return self._merger.positions()

    def lags(self) -> list[Lag]:
        """How far behind each source is read."""
        return self._merger.lags()

    def before_checkpoint(self) -> None:
        """Put the rows that wait for clicks on the disk, so that a checkpoint can name them. Raises OutputError."""
        self.segments.keep(self.join.segments())
        self.segments.flush()

    def after_checkpoint(self) -> None:
        """A checkpoint was written: files that none can name any more may go."""
        self.segments.committed()

    def joined(self) -> dict[str, int]:
        """What became of the events in the join."""
        return dict(vars(self.join.counts))

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays of the model, of the join and of the online metrics, for a checkpoint."""
        return (
            self.model.state()
            | _named(JOIN_PART, self.join.state())
            | _named(ONLINE_PART, self.online.state())
        )

    def restore(self, arrays: Arrays) -> None:
        """Take over what `state` gave."""
        self.model.restore(arrays)
        self.join.restore(_part(JOIN_PART, arrays))
        self.online.restore(_part(ONLINE_PART, arrays))
        self.segments.restore(self.join.segments())

    def _count(self, merged: Merged) -> None:
        counts = self.counts
        counts.impressions += int(np.count_nonzero(merged.kind == IMPRESSION))
        counts.feedback += int(np.count_nonzero(merged.kind == FEEDBACK))
        counts.bad_events += len(merged.bad)
        if len(merged):
            counts.through_us = max(counts.through_us, int(merged.now_us[-1]))

    def _learn(self, joined: Joined) -> None:
        self._on_joined(joined, self.segments)
        self.online.add(joined, self.segments)
        counts = self.counts
        for examples, bad in self._examples.of(joined):
            self.model.learn(examples)
            counts.examples += int(examples.rows.size)
            counts.subsampled += examples.subsampled
            counts.bad_rows += len(bad)
            for row in bad:
                self.letters.add(JOIN, "", row.reason, row.json)
        counts.unknown_items = self._examples.unknown_items


def _named(part: str, arrays: Arrays) -> dict[str, npt.NDArray[Any]]:
    return {f"{part}{name}": array for name, array in arrays.items()}


def _part(part: str, arrays: Arrays) -> dict[str, npt.NDArray[Any]]:
    return {name.removeprefix(part): array for name, array in arrays.items() if name.startswith(part)}


# --- One step of a trainer that learns from labelled rows: files of a log that grow. There is nothing to join
# ---


LOOK_EVERY_S = 0.05


class RowLoop:
    """Learns from rows in the order of their files. For one thread. See `trainer.runs.stream.Loop` for the methods.

    In its counts bad rows are also those that are none, such as a line with too few columns.
    """

    def __init__(
        self,
        source: RowSource,
        positions: Sequence[SourcePosition],
        model: LearningModel,
        letters: Letters,
        counts: Counts,
        *,
        once: bool = False,
    ) -> None:
        self.model = model
        self.letters = letters
        self.counts = counts
        self.online = OnlineAccumulator()
        self._source = source
        self._position = positions[0] if positions else source.start
        self._wanted = model.spec.wanted_columns()
        self._once = once
        self._pause = threading.Event()

    def step(self, wait_s: float = 0.0) -> bool:
        """Learn from the next rows; False if there are none within `wait_s` seconds. Raises what the source raises."""
        rows = self._source.read(self._wanted)
        if rows is None and wait_s and not self.ended:
            self._pause.wait(min(wait_s, LOOK_EVERY_S))
            rows = self._source.read(self._wanted)
        if rows is None:
            return False
        self._learn(rows)
        return True

    def finish(self) -> None:
        """There is nothing that waits."""

    @property
    def ended(self) -> bool:
        """With `once`: all was read."""
        return self._source.ended

    def positions(self) -> list[SourcePosition]:
        """Where the source is to be read on."""
        return [self._position]

    def lags(self) -> list[Lag]:
        """How far behind the source is read."""
        return [self._source.lag()]

    def relieve(self) -> None:
        """Nothing is kept."""

    def before_checkpoint(self) -> None:
        """All is in the model."""

    def after_checkpoint(self) -> None:
        """There are no files besides."""

    def joined(self) -> dict[str, int]:
        """Nothing is joined."""
        return {}

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays of the model."""
        return self.model.state()

    def restore(self, arrays: Arrays) -> None:
        """Take over what `state` gave."""
        self.model.restore(arrays)

    def _learn(self, rows: Rows) -> None:
        counts, batch = self.counts, rows.batch
        examples = self.model.maker.make(replace(batch, first_row=counts.examples + counts.bad_rows))
        self.model.learn(examples)
        counts.examples += int(np.size(examples.rows))
        counts.minus_labels += examples.minus_labels
        counts.bad_rows += len(examples.rejects)
        counts.rows += batch.rows + len(batch.rejects)
        for reject in examples.rejects:
            self.letters.add(self._source.name, f"{reject.file}:{reject.line}", reject.reason, b"")
        self._position = rows.after


# --- From what the join gives out to hashed examples, and the rows among it that cannot be learned from ---
#
# The rows of a joined row's segment are columns already; here they get their label and are hashed by the same
# code that hashes a log's. Knows nothing of sources or of the store.


JOIN = "join"


@dataclass(frozen=True)
class BadRow:
    """A joined row that is no example: why, and the row as JSON."""

    reason: str
    json: bytes


class JoinedExamples:
    """Makes the examples of joined rows, in their order. `rows` counts them, learned from or not.

    unknown_items: rows that were left out, as the server knew nothing of the item; they are not in `rows`.
    """

    def __init__(
        self, maker: ExampleMaker, segments: Segments, rows: int = 0, unknown_items: int = 0
    ) -> None:
        self._maker = maker
        self._segments = segments
        self._label = maker.spec.input.label
        self._learns_unknown = maker.spec.join.unknown_items == "learn"
        self.rows = rows
        self.unknown_items = unknown_items

    def of(self, joined: Joined) -> Iterator[tuple[Examples, list[BadRow]]]:
        """Runs of rows whose columns have the same types, hashed; and those of them that are bad."""
        for batch in self._batches(joined):
            examples = self._maker.make(batch)
            yield examples, [_bad(batch, reject) for reject in examples.rejects]

    def _batches(self, joined: Joined) -> Iterator[RowBatch]:
        for first, gathered in self._segments.gather(joined.segment, joined.row):
            rows = len(next(iter(gathered.values())))
            mine = np.arange(first, first + rows)
            columns, known = gathered, self._known(gathered)
            if known is not None:
                columns = {name: column.filter(pa.array(known)) for name, column in gathered.items()}
                mine = mine[known]
                self.unknown_items += rows - mine.size
                rows = mine.size
                if not rows:
                    continue
            # What the event says under the label's name is not what became of it.
            labelled = {**columns, self._label: pa.array(joined.label[mine].astype(np.int64))}
            yield RowBatch(
                columns=labelled,
                lines=np.arange(self.rows, self.rows + rows, dtype=np.int64),
                file=JOIN,
                rejects=(),
                rows=rows,
                stop=Position(JOIN),
                first_row=self.rows,
                clicked=joined.clicked[mine],
            )
            self.rows += rows

    def _known(self, columns: Mapping[str, pa.Array]) -> npt.NDArray[np.bool_] | None:
        """bool[rows], which may be learned from; None for all of them."""
        marks = columns.get(UNKNOWN)  # rows of an older checkpoint have no such column
        if self._learns_unknown or marks is None or marks.null_count == len(marks):
            return None
        known: npt.NDArray[np.bool_] = pc.fill_null(marks, 0).to_numpy(zero_copy_only=False) == 0
        return None if known.all() else known


def _bad(batch: RowBatch, reject: Reject) -> BadRow:
    row = reject.line - int(batch.lines[0])
    values = {name: _plain(column[row].as_py()) for name, column in batch.columns.items()}
    return BadRow(reject.reason, json.dumps(values, ensure_ascii=False).encode("utf-8", "surrogateescape"))


def _plain(value: Any) -> Any:
    """As JSON can say it: bytes as text, a map as an object."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, list):
        return dict(value) if value and isinstance(value[0], tuple) else [_plain(each) for each in value]
    return value
