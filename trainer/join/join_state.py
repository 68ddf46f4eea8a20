"""The join's records, as numpy lays them out. What is done with them is in `kernels`; docs/join.md counts their bytes.

Times are microseconds since 1970. A place is an index into the array that is named; -1 is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from model_store.errors import CheckpointError
from trainer.join.join_kernels import compact

# A request. first: place of its rows in `items` and `flags`; segment, row, rows: where they stand as columns. forget:
# from this watermark on. next: the request that closed after it. While WAITING first and row are the places of the
# first and the last of its early feedback in `waiting`, and rows says how many are left of it.
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

# Feedback whose impression has not come. entry: of its request; next: what came after it for the same one.
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

# One place in an order of due times: the least (time, place) stands first. Places are given as things arrive.
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
"""How much of each array is used, and the two ends of the closed requests that are remembered."""

COUNTED = (
    "impressions",
    "duplicate_impressions",
    "late_impressions",
    "closed",
    "closed_early",
    "pending",
    "remembered",
    "forgotten_early",
    "rows",
    "positives",
    "negatives",
    "pending_rows",
    "corrections",
    "clicks",
    "conversions",
    "joined",
    "early",
    "waiting",
    "orphans",
    "late",
    "duplicate_feedback",
    "unknown_item",
)
COUNTS = np.dtype([(name, np.int64) for name in COUNTED], align=True)

# A request whose window has closed, as it is given out.
CLOSING = np.dtype(
    [
        ("segment", np.int32),
        ("rows", np.int32),
        ("row", np.int64),
        ("time_us", np.int64),
        ("positives", np.int32),
        ("clicks", np.int32),
        ("conversions", np.int32),
    ],
    align=True,
)


class Memory(NamedTuple):
    """All that the join knows.

    table: uint64, a power of two, a word a request: the upper half of its hash, and 1 + the place of its entry; 0 is
    free, and a request's search begins at its hash's low bits. entries: ENTRY, in order of arrival; items: uint64 and
    flags: uint8, of their rows; due: DUE, a heap of the pending ones; early: EARLY, in order of arrival; early_due:
    DUE, a heap of them; head: HEAD[1]; counts: COUNTS[1].
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
    """What `[join]` says. Times in microseconds; positive: the flag of a row that makes it one; correct: bool."""

    window: np.int64
    lateness: np.int64
    late_within: np.int64
    max_pending: np.int64
    positive: np.uint8
    correct: bool


class Arriving(NamedTuple):
    """Merged events, as `trainer.events.events.Merged` has them; first: int64[n], each one's place in items."""

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


class Room(NamedTuple):
    """Where what is given out is written.

    segment: int32, row: int64, label: uint8, clicked: bool, one a joined row; closings: CLOSING; used: int64[2], of
    the joined rows and of the closings.
    """

    segment: Any
    row: Any
    label: Any
    clicked: Any
    closings: Any
    used: Any


# --- The join's arrays: made, given room, saved and taken up again. What stands in them is for `kernels` to
# change ---
#
# Room is made by dropping what is forgotten and, where that is not enough, by larger arrays; they are left a
# third empty, so that a request is moved a few times in its life and an array is at most a few times what it
# holds.


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


def empty() -> Memory:
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


def with_room(memory: Memory, events: int, rows: int) -> Memory:
    """The same with room for so many more events and rows of impressions."""
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


def state(memory: Memory) -> dict[str, Array]:
    """What is known, by name: a function of the events taken, however they came. Views, until the next event."""
    _compact(memory)
    order = memory.early_due[: int(memory.head[0]["early_due"])]
    order.sort(order=("time", "place"))
    return {name: _used(memory, name) for name in _SAVED}


def restored(arrays: Arrays) -> Memory:
    """Take up what `state` gave. Raises CheckpointError for anything else."""
    fresh = empty()
    for name in _SAVED:
        if name not in arrays or arrays[name].dtype != getattr(fresh, name).dtype:
            raise CheckpointError(
                f"the checkpoint's join has no array {name!r} of this ftrie's form; go on with the ftrie that "
                "wrote it, or begin anew with another folder"
            )
    memory = fresh._replace(**{name: np.array(arrays[name], getattr(fresh, name).dtype) for name in _SAVED})
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
    """Also makes the table anew."""
    head = memory.head[0]
    compact(memory, np.empty(head["entries"], np.int32), np.empty(head["early"], np.int32))


def _with_table(memory: Memory) -> Memory:
    """At most half full, whatever the entries hold. Filled by compacting, which finds nothing to drop."""
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
    """Larger where a fifth would not be free, smaller from four times of what is right."""
    return now if _fits(now, needed + needed // 4) else _right(needed)


def _resized(memory: Memory, name: str, size: int) -> Array:
    array: Array = getattr(memory, name)
    if array.size == size:
        return array
    grown = np.zeros(
        size, array.dtype
    )  # also between the members of records: a state's bytes tell nothing else
    used = _used(memory, name)
    grown[: used.size] = used
    return grown


def _used(memory: Memory, name: str) -> Array:
    array: Array = getattr(memory, name)
    return array[: int(memory.head[0][_USED[name]])] if name in _USED else array
