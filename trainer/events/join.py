"""Joins impressions with their feedback into labelled rows. docs/join.md: the outcome of each event, and why.

In: Merged events, where requests, items and times are numbers. Out: Joined, references to rows, whose columns are kept
by `trainer.events.waiting_rows`, with labels.

The state is records in numpy arrays, which `join_kernels` changes; docs/join.md counts their bytes. Times are
microseconds since 1970; numbers and places are indices into the named array, -1 for none. To make room, forgotten
entries are dropped and, if that is not enough, arrays grow; a third is left empty, so that a request is moved a few
times in its life and an array is at most a few times the size of its content.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.recfunctions import repack_fields

from model_store.errors import CheckpointError, InputError
from model_store.spec.sections import JoinSection
from trainer.events import join_kernels
from trainer.events.events import VIEW, Merged
from trainer.events.join_kernels import (
    CLICKED,
    CLOSED,
    CONVERTED,
    EXPOSED,
    FREE,
    INACTIVE,
    PENDING,
    WAITING,
)

_FEWEST_LOST, _MOST_LOST = 100, 0.01
"""At most this number of events, or this share of them, may come behind their window."""

# A request. first: index of its rows in `items` and `flags`; segment, row, rows: where their columns are. forget: from
# this watermark on. next: the request that closed after it. While WAITING, first and row are the indices of its first
# and last early feedback in `early`, and rows is how many there are.
ENTRY = np.dtype(
    [
        ("request", np.uint64),
        ("time", np.int64),
        ("forget", np.int64),
        ("first", np.int64),
        ("row", np.int64),
        ("segment", np.int32),
        ("rows", np.int32),
        ("positives", np.int32),
        ("clicks", np.int32),
        ("conversions", np.int32),
        ("next", np.int32),
        ("state", np.uint8),
    ],
    align=True,
)

# Feedback whose impression has not come. entry: of its request; next: the next feedback of the same request.
EARLY = np.dtype(
    [
        ("item", np.uint64),
        ("time", np.int64),
        ("entry", np.int32),
        ("next", np.int32),
        ("what", np.uint8),
        ("live", np.uint8),
    ],
    align=True,
)

# An element of an expiry heap: the least (time, place) is first. place: an index into `entries` or `early`.
DUE = np.dtype([("time", np.int64), ("place", np.int32)], align=True)

HEAD = np.dtype(
    [
        ("watermark", np.int64),
        ("items", np.int64),
        ("entries", np.int64),
        ("early", np.int64),
        ("due", np.int64),
        ("early_due", np.int64),
        ("oldest_closed", np.int32),
        ("newest_closed", np.int32),
    ],
    align=True,
)
"""The used length of each array, and the first and last of the remembered closed requests."""


@dataclass(frozen=True)
class JoinCounts:
    """The outcomes of all events so far; docs/join.md defines each count.

    impressions = closed + pending + duplicate_impressions; rows = positives + negatives + unseen + pending_rows;
    clicks + conversions + seen + activated = joined + duplicate_feedback + unknown_item + late + orphans + out_of_order
    + waiting.
    """

    impressions: int = 0
    duplicate_impressions: int = 0
    late_impressions: int = 0
    closed: int = 0
    closed_early: int = 0
    pending: int = 0
    remembered: int = 0
    forgotten_early: int = 0
    rows: int = 0
    positives: int = 0
    negatives: int = 0
    pending_rows: int = 0
    corrections: int = 0
    clicks: int = 0
    conversions: int = 0
    joined: int = 0
    early: int = 0
    waiting: int = 0
    orphans: int = 0
    out_of_order: int = 0
    late: int = 0
    duplicate_feedback: int = 0
    unknown_item: int = 0
    unseen: int = 0
    unactivated: int = 0
    seen: int = 0
    activated: int = 0

    def as_dict(self) -> dict[str, int]:
        """The counts by name."""
        return dict(vars(self))

    def check_order(self, names: str) -> None:
        """Raises InputError if more events come behind their window than labels can bear."""
        lost = self.out_of_order + self.late_impressions
        events = self.impressions + self.clicks + self.conversions + self.seen + self.activated
        if lost > max(_FEWEST_LOST, _MOST_LOST * events):
            raise InputError(
                f"{names}: events are out of order: {lost:,} of {events:,} came after the window in which an "
                "impression and its clicks are joined, so clicks would be lost; they are more than can be sorted in "
                "memory: sort the file by ts, or raise [join] lateness"
            )


COUNTED = tuple(JoinCounts.__dataclass_fields__)
_FIRST_COUNTED = COUNTED[: COUNTED.index("unseen")]
"""Those that every checkpoint has; the later ones are saved once one of them is not 0."""
COUNTS = np.dtype([(name, np.int64) for name in COUNTED], align=True)

# A request whose window has closed, as emitted.
CLOSING = np.dtype(
    [
        ("segment", np.int32),
        ("rows", np.int32),
        ("row", np.int64),
        ("time_us", np.int64),
        ("positives", np.int32),
        ("clicks", np.int32),
        ("conversions", np.int32),
        ("clicked", np.uint64),
    ],
    align=True,
)


class Memory(NamedTuple):
    """The whole state.

    table: uint64, its size a power of two, one word for each request: the upper half of its hash, and 1 + the number of
    its entry; 0 is free; a search starts at the low bits of the hash. entries: ENTRY, in order of arrival; items:
    uint64 and flags: uint8, of their rows; due: DUE, the expiry heap of pending entries; early: EARLY, in order of
    arrival; early_due: DUE, their expiry heap; head: HEAD[1]; counts: COUNTS[1].
    """

    table: Any
    entries: Any
    items: Any
    flags: Any
    due: Any
    early: Any
    early_due: Any
    head: Any
    counts: Any


class Rules(NamedTuple):
    """The `[join]` section. Times in microseconds.

    positive: the flags that make a row a positive together; exposing: those of which one makes it count as shown, 0
    where every row does; correct, weigh: bool, whether late feedback is learned, and rows at once.
    """

    window: np.int64
    lateness: np.int64
    late_within: np.int64
    max_pending: np.int64
    positive: np.uint8
    exposing: np.uint8
    correct: bool
    weigh: bool


class EventArrays(NamedTuple):
    """Merged events, see `trainer.events.events.Merged`; first: int64[n], the index of each one's rows in items."""

    kind: Any
    time_us: Any
    now_us: Any
    request: Any
    item: Any
    what: Any
    segment: Any
    row: Any
    rows: Any
    first: Any
    items: Any


class JoinBuffers(NamedTuple):
    """The output buffers.

    segment: int32, row: int64, label: uint8, clicked: bool, one for each joined row; closings: CLOSING; exposed: bool,
    see Closed; used: int64[3], the number of joined rows, of closings and of elements of exposed.
    """

    segment: Any
    row: Any
    label: Any
    clicked: Any
    closings: Any
    exposed: Any
    used: Any


Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]

BEGINNING_US = -(2**62)
"""The watermark before the first event."""

_LEAST = 1024
_USED = {
    "entries": "entries",
    "items": "items",
    "flags": "items",
    "due": "due",
    "early": "early",
    "early_due": "early_due",
}
_SAVED = (*_USED, "head", "counts")


def _empty() -> Memory:
    """The arrays of a join that has seen nothing."""
    head, counts = np.zeros(1, HEAD), np.zeros(1, COUNTS)
    head["watermark"] = BEGINNING_US
    head["oldest_closed"] = head["newest_closed"] = -1
    return Memory(
        table=np.zeros(2 * _LEAST, np.uint64),
        entries=np.zeros(_LEAST, ENTRY),
        items=np.zeros(_LEAST, np.uint64),
        flags=np.zeros(_LEAST, np.uint8),
        due=np.zeros(_LEAST, DUE),
        early=np.zeros(_LEAST, EARLY),
        early_due=np.zeros(_LEAST, DUE),
        head=head,
        counts=counts,
    )


def _with_room(memory: Memory, events: int, rows: int) -> Memory:
    """The state with room for this many more events and rows of impressions."""
    head = memory.head[0]
    fits = (
        _fits(memory.entries.size, int(head["entries"]) + events)
        and _fits(memory.items.size, int(head["items"]) + rows)
        and _fits(memory.early.size, int(head["early"]) + events)
    )
    if fits:
        return memory
    _compact(memory)
    entries = _size(memory.entries.size, int(head["entries"]) + events)
    items = _size(memory.items.size, int(head["items"]) + rows)
    early = _size(memory.early.size, int(head["early"]) + events)
    sizes = {
        "entries": entries,
        "due": entries,
        "items": items,
        "flags": items,
        "early": early,
        "early_due": early,
    }
    resized = memory._replace(**{name: _resized(memory, name, size) for name, size in sizes.items()})
    return _with_table(resized)


def _restored(arrays: Arrays) -> Memory:
    """The inverse of `Join.state`. Raises CheckpointError for other arrays."""
    fresh = _empty()
    for name in _SAVED:
        older = name == "counts" and name in arrays and set(arrays[name].dtype.names or ()) <= set(COUNTED)
        if name not in arrays or (arrays[name].dtype != getattr(fresh, name).dtype and not older):
            raise CheckpointError(
                f"the checkpoint's join has no array {name!r} of this ftrie's form; go on with the ftrie that "
                "wrote it, or start over with another folder"
            )
    same = [name for name in _SAVED if name != "counts"]
    memory = fresh._replace(**{name: np.array(arrays[name], getattr(fresh, name).dtype) for name in same})
    for name in arrays["counts"].dtype.names or ():  # an earlier release has fewer of them
        memory.counts[name] = arrays["counts"][name]
    head = memory.head[0]
    for name, used in _USED.items():
        if getattr(memory, name).size != head[used]:
            raise CheckpointError(f"the checkpoint's join is damaged: {name!r} has not the size that it says")
    sizes = {name: max(_LEAST, getattr(memory, name).size) for name in _USED}
    grown = memory._replace(**{name: _resized(memory, name, size) for name, size in sizes.items()})
    grown = _with_table(grown)
    _compact(grown)
    return grown


def _compact(memory: Memory) -> None:
    """Drop what is forgotten; rebuilds the table too."""
    head = memory.head[0]
    join_kernels.compact(memory, np.empty(head["entries"], np.int32), np.empty(head["early"], np.int32))


def _with_table(memory: Memory) -> Memory:
    """With a table at most half full. Compacting, which finds nothing to drop here, fills it."""
    slots = 1 << (2 * memory.entries.size - 1).bit_length()
    if slots == memory.table.size:
        return memory
    memory = memory._replace(table=np.zeros(slots, np.uint64))
    _compact(memory)
    return memory


def _right(needed: int) -> int:
    return max(_LEAST, needed + needed // 2)


def _fits(now: int, needed: int) -> bool:
    return needed <= now <= 4 * _right(needed)


def _size(now: int, needed: int) -> int:
    """A larger size if less than a fifth would be free, a smaller one from four times the right size on."""
    return now if _fits(now, needed + needed // 4) else _right(needed)


def _resized(memory: Memory, name: str, size: int) -> Array:
    array: Array = getattr(memory, name)
    if array.size == size:
        return array
    grown = np.zeros(size, array.dtype)  # zeros also between the members of records: states compare by bytes
    used = _used(memory, name)
    grown[: used.size] = used
    return grown


def _used(memory: Memory, name: str) -> Array:
    array: Array = getattr(memory, name)
    return array[: int(memory.head[0][_USED[name]])] if name in _USED else array


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
    views: int = 0
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
        return self.impressions + self.feedback + self.views + self.rows + self.bad_events


@dataclass(frozen=True)
class Closed:
    """Requests whose window closed, in that order, one element each.

    segment: int32, row: int64, rows: int32: where their rows are; positives, clicks, conversions: int32, the rows that
    had some in time; time_us: int64, the impression's time. clicked: uint64, bit i: the i-th row had a click in time,
    of the first MARKED. exposed: bool, one for each row of these requests: whether it was seen; empty if all rows count
    as shown.
    """

    segment: npt.NDArray[np.int32]
    row: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int32]
    positives: npt.NDArray[np.int32]
    clicks: npt.NDArray[np.int32]
    conversions: npt.NDArray[np.int32]
    time_us: npt.NDArray[np.int64]
    clicked: npt.NDArray[np.uint64]
    exposed: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))

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

    def __init__(self, section: JoinSection, rows: str = "shown") -> None:
        """rows: of the spec's [input], the rows that are learned."""
        positive = CLICKED if section.positive == "click" else CONVERTED
        is_clicked = rows == "clicked"
        self._rules = Rules(
            window=np.int64(section.window_us),
            lateness=np.int64(section.lateness_us),
            late_within=np.int64(section.late_within_us),
            max_pending=np.int64(section.max_pending),
            positive=positive | CLICKED if is_clicked else positive,
            exposing=CLICKED if is_clicked else EXPOSED if section.negatives == "seen" else np.uint8(0),
            correct=section.late != "count",
            weigh=section.late == "weigh",
        )
        self._takes_views = section.positive == "view"
        self._memory = _empty()

    def push(self, merged: Merged) -> Joined:
        """Take the next events. O(1) an event, and O(log n) for each window that closes."""
        if self._takes_views:
            return self._views(merged)
        events = _event_arrays(merged)
        self._memory = _with_room(self._memory, len(merged), merged.items.size)
        room = _buffers(len(merged) + 2 * merged.items.size)
        taken = 0
        while (taken := join_kernels.walk(self._memory, self._rules, room, events, taken)) < len(merged):
            room = _grown(room)
        return _joined(room)

    def _views(self, merged: Merged) -> Joined:
        """The rows of the views alone (`trainer.events.views`), at once; a list without others says nothing."""
        chosen = np.flatnonzero((merged.kind == VIEW) & (merged.rows > 1))
        rows, first = merged.rows[chosen], merged.row[chosen]
        ends, lists = np.cumsum(rows, dtype=np.int64), chosen.size
        total = int(rows.sum())
        counts = self._memory.counts[0]
        for name in ("impressions", "closed", "positives"):
            counts[name] += lists
        counts["rows"] += total
        counts["negatives"] += total - lists
        label = np.zeros(total, np.uint8)
        label[ends - rows] = 1
        some = np.ones(lists, np.int32)
        closed = replace(
            _joined(_buffers(0)).closed,
            segment=merged.segment[chosen],
            row=first,
            rows=rows,
            positives=some,
            clicks=0 * some,
            conversions=0 * some,
            time_us=merged.time_us[chosen],
        )
        return Joined(
            segment=np.repeat(merged.segment[chosen], rows),
            row=np.arange(total) + np.repeat(first - ends + rows, rows),
            label=label,
            clicked=np.ones(total, np.bool_),
            closed=closed,
        )

    def step_back(self, now_us: int) -> None:
        """The clock by which events come is now `now_us`, earlier than before: the watermark is no later."""
        head = self._memory.head[0]
        head["watermark"] = min(head["watermark"], now_us - self._rules.lateness)

    def shown(self) -> Array:
        """The entries of requests whose rows are known: copies of ENTRY."""
        entries = _used(self._memory, "entries")
        found: Array = entries[~np.isin(entries["state"], (FREE, WAITING)) & (entries["rows"] > 0)]
        return found

    def forget(self, requests: npt.NDArray[np.uint64]) -> None:
        """Forget the rows of these requests, and the feedback that waits for them.

        They stay as if they had shown nothing, so that later feedback joins no row. Rows that were not learned yet are
        no longer in the counts; what waited counts as orphans.
        """
        memory = self._memory
        counts, entries = memory.counts[0], _used(memory, "entries")
        found = np.isin(entries["request"], requests)
        is_pending = found & (entries["state"] == PENDING)
        unlearned = int(entries["rows"][is_pending | (found & (entries["state"] == INACTIVE))].sum())
        unlearned -= int(entries["positives"][is_pending].sum())
        counts["rows"] -= unlearned
        counts["pending_rows"] -= unlearned
        waiting = found & (entries["state"] == WAITING)
        early = _used(memory, "early")
        lost = waiting[early["entry"]] & (early["live"] == 1)
        early["live"][lost] = 0
        counts["waiting"] -= int(lost.sum())
        counts["orphans"] += int(lost.sum())
        for name in ("rows", "positives", "clicks", "conversions"):
            entries[name][found] = 0
        entries["state"][waiting] = FREE
        _compact(memory)

    def finish(self) -> Joined:
        """Close every window and give up early feedback, as at the end of all events; `push` may still be called."""
        room = _buffers(0)
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
        return watermark if watermark > BEGINNING_US else None

    @property
    def nbytes(self) -> int:
        """Bytes of memory for the state of requests, without their rows."""
        return sum(array.nbytes for array in self._memory)

    def segments(self) -> npt.NDArray[np.int32]:
        """The numbers of the segments whose rows may still be emitted, ascending. O(requests remembered)."""
        entries = self._memory.entries[: int(self._memory.head[0]["entries"])]
        state = entries["state"]
        needed = (state == PENDING) | (state == INACTIVE)
        if self._rules.correct:
            needed |= state == CLOSED
        needed &= entries["rows"] > 0  # one that showed nothing has no segment
        return np.unique(entries["segment"][needed])

    def state(self) -> dict[str, Array]:
        """The whole state as plain arrays, for `restore`: a function of the events taken and their order.

        Views: valid until the next `push`.
        """
        memory = self._memory
        _compact(memory)
        order = memory.early_due[: int(memory.head[0]["early_due"])]
        order.sort(order=("time", "place"))
        arrays = {name: _used(memory, name) for name in _SAVED}
        if not any(memory.counts[0][name] for name in COUNTED[len(_FIRST_COUNTED) :]):
            arrays["counts"] = repack_fields(memory.counts[list(_FIRST_COUNTED)], align=True)
        return arrays

    def restore(self, arrays: Arrays) -> None:
        """Continue from a `state`. Raises CheckpointError if the arrays are not those of a join."""
        self._memory = _restored(arrays)


def _event_arrays(merged: Merged) -> EventArrays:
    rows = np.ascontiguousarray(merged.rows, np.int32)
    if int(rows.sum()) != merged.items.size or (rows < 0).any():
        raise ValueError(f"got {merged.items.size} items; expected one for each of {rows.sum()} rows")
    return EventArrays(
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


def _buffers(rows: int) -> JoinBuffers:
    size = max(rows, _LEAST_ROOM)
    return JoinBuffers(
        segment=np.empty(size, np.int32),
        row=np.empty(size, np.int64),
        label=np.empty(size, np.uint8),
        clicked=np.empty(size, np.bool_),
        closings=np.empty(size, CLOSING),
        exposed=np.empty(size, np.bool_),
        used=np.zeros(3, np.int64),
    )


def _grown(room: JoinBuffers) -> JoinBuffers:
    larger = _buffers(2 * room.row.size)
    rows, closings, exposed = room.used
    for name in ("segment", "row", "label", "clicked"):
        getattr(larger, name)[:rows] = getattr(room, name)[:rows]
    larger.closings[:closings] = room.closings[:closings]
    larger.exposed[:exposed] = room.exposed[:exposed]
    return larger._replace(used=room.used)


def _joined(room: JoinBuffers) -> Joined:
    rows, closings, exposed = room.used
    closed = room.closings[:closings]
    arrays = {name: np.ascontiguousarray(closed[name]) for name in CLOSING.names or ()}
    return Joined(
        segment=room.segment[:rows],
        row=room.row[:rows],
        label=room.label[:rows],
        clicked=room.clicked[:rows],
        closed=Closed(**arrays, exposed=room.exposed[:exposed]),
    )
