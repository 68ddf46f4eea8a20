"""From merged events to batches of labelled rows: what the trainer, a replay and a log of events have in common.

`EventRows` takes the next events and joins them. `JoinedExamples` makes examples of rows in the order in which they
become known, for a trainer that learns a click at once; `trainer.examples.event_log` makes batches of whole requests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model_store.spec.sections import InputSection
from model_store.spec.spec import ModelSpec
from trainer.events.columns import UNKNOWN
from trainer.events.events import Merged
from trainer.events.histories import EventHistories
from trainer.events.join import Join, Joined
from trainer.events.waiting_rows import Segments
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.formats.batch import Position, RowBatch
from trainer.formats.cells import label_columns
from trainer.formats.rejects import Reject
from trainer.sources.merge import Merger

JOIN = "join"
"""The source of joined rows, in dead letters."""


class EventRows:
    """Takes events from the merger and joins them, step by step. For one thread.

    This is the one place that every event passes on its way to a labelled row, in the order that depends on the events
    alone: for `ftrie trainer`, `ftrie replay` and event logs alike. What is computed from the order of events, such as
    a user's history before a request, is computed in `step` between the merger and the join, where the rows of the
    impressions are in their segment already, and before `Join.push` can emit any of them. What is computed from one
    impression alone, such as a price's rank in its list, is computed earlier, where `trainer.events.parse.Parser` has
    made columns of it: all readers share that parser too, and it runs ahead in their threads.
    """

    def __init__(self, merger: Merger, join: Join, segments: Segments, *specs: ModelSpec) -> None:
        """specs: resolved; segments: those that the merger adds rows to."""
        self.merger, self.join, self.segments = merger, join, segments
        self.histories = EventHistories.of(*specs)

    def step(self, wait_s: float = 0.0) -> tuple[Merged, Joined] | None:
        """The next events and what the join makes of them; None if there are none within `wait_s` seconds."""
        merged = self.merger.poll(wait_s)
        if merged is None:
            return None
        if merged.back_to_us is not None:
            self.join.step_back(merged.back_to_us)
            if self.histories is not None:
                self.histories.step_back(merged.back_to_us)
        if self.histories is not None:
            self.histories.take(merged, self.segments)
        return merged, self.join.push(merged)

    def history_state(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays of the histories; empty if no field is of one."""
        return self.histories.state() if self.histories is not None else {}


@dataclass(frozen=True)
class BadJoinedRow:
    """A joined row that cannot be learned from: why, and the row as JSON."""

    reason: str
    json: bytes


class JoinedExamples:
    """Labels and hashes joined rows, in their order. `rows` counts them, learned from or not.

    unknown_items: rows skipped because the server did not know the item; they are not in `rows`.
    """

    def __init__(
        self, maker: ExampleMaker, segments: Segments, rows: int = 0, unknown_items: int = 0
    ) -> None:
        self._maker = maker
        self._segments = segments
        self._input = maker.spec.input
        self._learns_unknown = maker.spec.join.unknown_items == "learn"
        self.rows = rows
        self.unknown_items = unknown_items

    def of(self, joined: Joined) -> Iterator[tuple[Examples, list[BadJoinedRow]]]:
        """Examples of consecutive rows whose columns have the same types, and the bad rows among them."""
        for batch in self._batches(joined):
            examples = self._maker.make(batch)
            yield examples, [_bad(batch, reject) for reject in examples.rejects]

    def _batches(self, joined: Joined) -> Iterator[RowBatch]:
        before, rows = self.rows, (joined.segment, joined.row, joined.label)
        for chosen, columns in labelled(self._segments, rows, self._input, self._learns_unknown):
            yield RowBatch(
                columns=columns,
                lines=np.arange(self.rows, self.rows + chosen.size, dtype=np.int64),
                file=JOIN,
                rejects=(),
                rows=chosen.size,
                stop=Position(JOIN),
                first_row=self.rows,
                clicked=joined.clicked[chosen],
            )
            self.rows += chosen.size
        self.unknown_items += len(joined) - (self.rows - before)


def labelled(
    segments: Segments,
    rows: tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[Any]],
    given: InputSection,
    with_unknown: bool = True,
    names: Sequence[str] | None = None,
) -> Iterator[tuple[npt.NDArray[np.int64], dict[str, pa.Array]]]:
    """Joined rows in runs of one schema: their numbers among `rows`, and their columns, or those of `names`.

    rows: their segments, their indexes there and their labels, 0 or 1. The label is a column as well, in place of an
    event's own of that name. with_unknown: also rows of items that the server that ranked them had no data on.
    """
    segment, row, label = rows
    for first, columns in segments.gather(segment, row, names):
        chosen = np.arange(first, first + len(next(iter(columns.values()))))
        unknown = None if with_unknown else columns.get(UNKNOWN)  # missing in rows of older checkpoints
        if unknown is not None and unknown.null_count < len(unknown):
            known = pc.fill_null(unknown, 0).to_numpy(zero_copy_only=False) == 0
            columns = {name: column.filter(pa.array(known)) for name, column in columns.items()}
            chosen = chosen[known]
        if chosen.size:
            yield chosen, {**columns, **label_columns(given, label[chosen])}


def _bad(batch: RowBatch, reject: Reject) -> BadJoinedRow:
    row = reject.line - int(batch.lines[0])
    values = {name: _plain(column[row].as_py()) for name, column in batch.columns.items()}
    return BadJoinedRow(
        reject.reason, json.dumps(values, ensure_ascii=False).encode("utf-8", "surrogateescape")
    )


def _plain(value: Any) -> Any:
    """A JSON value: bytes as text, a map as an object."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, list):
        return dict(value) if value and isinstance(value[0], tuple) else [_plain(each) for each in value]
    return value
