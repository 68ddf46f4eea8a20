"""Joins impressions with their feedback into labelled rows. docs/join.md: the outcome of each event, and why.

In: Merged events, where requests, items and times are numbers. Out: Joined, references to rows, whose columns are kept
by `trainer.events.waiting_rows`, with labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.spec.sections import JoinSection
from trainer.events import join_kernels, join_state
from trainer.events.events import IMPRESSION, Merged
from trainer.events.join_kernels import CLICKED, CLOSED, CONVERTED, PENDING
from trainer.events.join_state import CLOSING, COUNTED, Arrays, Arriving, JoinCounts, Room, Rules

_LEAST_ROOM = 4096


@dataclass
class EventCounts:
    """A trainer's counts of events and rows, over all resumed runs.

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


@dataclass(frozen=True)
class Closed:
    """Requests whose window closed, in that order, one element each.

    segment: int32, row: int64, rows: int32: where their rows are; positives, clicks, conversions: int32, the rows that
    had some in time; time_us: int64, the impression's time.
    """

    segment: npt.NDArray[np.int32]
    row: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int32]
    positives: npt.NDArray[np.int32]
    clicks: npt.NDArray[np.int32]
    conversions: npt.NDArray[np.int32]
    time_us: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return self.row.size


@dataclass(frozen=True)
class Joined:
    """Labelled rows, in the order in which they are to be learned, and the requests that closed meanwhile.

    segment: int32[m] and row: int64[m], where a row is; label: uint8[m]; clicked: bool[m], whether its request has
    a positive.
    """

    segment: npt.NDArray[np.int32]
    row: npt.NDArray[np.int64]
    label: npt.NDArray[np.uint8]
    clicked: npt.NDArray[np.bool_]
    closed: Closed

    def __len__(self) -> int:
        return self.row.size


class Join:
    """The join of one model. For one thread.

    The output depends only on the events and their order, not on how they are cut into calls of `push`, nor on
    `restore(state())` between them.
    """

    def __init__(self, section: JoinSection) -> None:
        self._rules = Rules(
            window=np.int64(section.window_us),
            lateness=np.int64(section.lateness_us),
            late_within=np.int64(section.late_within_us),
            max_pending=np.int64(section.max_pending),
            positive=CLICKED if section.positive == "click" else CONVERTED,
            correct=section.late == "correct",
        )
        self._memory = join_state.empty()

    def push(self, merged: Merged) -> Joined:
        """Take the next events. O(1) an event, and O(log n) for each window that closes."""
        events = _arriving(merged)
        self._memory = join_state.with_room(self._memory, len(merged), merged.items.size)
        room = _room(len(merged) + 2 * merged.items.size)
        taken = 0
        while (taken := join_kernels.walk(self._memory, self._rules, room, events, taken)) < len(merged):
            room = _grown(room)
        return _joined(room)

    def step_back(self, now_us: int) -> None:
        """The clock by which events come is now `now_us`, earlier than before: the watermark is no later."""
        head = self._memory.head[0]
        head["watermark"] = min(head["watermark"], now_us - self._rules.lateness)

    def finish(self) -> Joined:
        """Close every window and give up early feedback, as at the end of all events; `push` may still be called."""
        room = _room(0)
        while not join_kernels.finish(self._memory, self._rules, room):
            room = _grown(room)
        return _joined(room)

    @property
    def counts(self) -> JoinCounts:
        """The outcomes of the events so far, over all runs that continued one another."""
        counts = self._memory.counts[0]
        return JoinCounts(**{name: int(counts[name]) for name in COUNTED})

    @property
    def watermark_us(self) -> int | None:
        """Windows that ended before this are closed: microseconds since 1970, None before the first event."""
        watermark = int(self._memory.head[0]["watermark"])
        return watermark if watermark > join_state.BEGINNING_US else None

    @property
    def nbytes(self) -> int:
        """Bytes of memory for the state of requests, without their rows."""
        return sum(array.nbytes for array in self._memory)

    def segments(self) -> npt.NDArray[np.int32]:
        """The numbers of the segments whose rows may still be emitted, ascending. O(requests remembered)."""
        entries = self._memory.entries[: int(self._memory.head[0]["entries"])]
        state = entries["state"]
        needed = state == PENDING
        if self._rules.correct:
            needed |= state == CLOSED
        needed &= entries["rows"] > 0  # one that showed nothing has no segment
        return np.unique(entries["segment"][needed])

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The whole state as plain arrays, for `restore`. Views: valid until the next `push`."""
        return join_state.state(self._memory)

    def restore(self, arrays: Arrays) -> None:
        """Continue from a `state`. Raises CheckpointError if the arrays are not those of a join."""
        self._memory = join_state.restored(arrays)


def _arriving(merged: Merged) -> Arriving:
    rows = np.where(merged.kind == IMPRESSION, merged.rows, 0).astype(np.int32)
    if int(rows.sum()) != merged.items.size or (rows < 0).any():
        raise ValueError(f"got {merged.items.size} items; expected one for each of {rows.sum()} rows")
    return Arriving(
        kind=_plain(merged.kind, np.uint8),
        time_us=_plain(merged.time_us, np.int64),
        now_us=_plain(merged.now_us, np.int64),
        request=_plain(merged.request, np.uint64),
        item=_plain(merged.item, np.uint64),
        what=_plain(merged.what, np.uint8),
        segment=_plain(merged.segment, np.int32),
        row=_plain(merged.row, np.int64),
        rows=rows,
        first=np.cumsum(rows, dtype=np.int64) - rows,
        items=_plain(merged.items, np.uint64),
    )


def _plain(array: npt.NDArray[Any], dtype: Any) -> npt.NDArray[Any]:
    """The array in the type of the compiled kernel: read-only arrays, as Arrow returns them, are another type."""
    array = np.ascontiguousarray(array, dtype)
    return array if array.flags.writeable else array.copy()


def _room(rows: int) -> Room:
    size = max(rows, _LEAST_ROOM)
    return Room(
        segment=np.empty(size, np.int32),
        row=np.empty(size, np.int64),
        label=np.empty(size, np.uint8),
        clicked=np.empty(size, np.bool_),
        closings=np.empty(size, CLOSING),
        used=np.zeros(2, np.int64),
    )


def _grown(room: Room) -> Room:
    larger = _room(2 * room.row.size)
    rows, closings = room.used
    for name in ("segment", "row", "label", "clicked"):
        getattr(larger, name)[:rows] = getattr(room, name)[:rows]
    larger.closings[:closings] = room.closings[:closings]
    return larger._replace(used=room.used)


def _joined(room: Room) -> Joined:
    rows, closings = room.used
    closed = room.closings[:closings]
    return Joined(
        segment=room.segment[:rows],
        row=room.row[:rows],
        label=room.label[:rows],
        clicked=room.clicked[:rows],
        closed=Closed(**{name: np.ascontiguousarray(closed[name]) for name in Closed.__dataclass_fields__}),
    )
