"""The join's arrays: made, given room, saved and taken up again. What stands in them is for `kernels` to change.

Room is made by dropping what is forgotten and, where that is not enough, by larger arrays; they are left a third
empty, so that a request is moved a few times in its life and an array is at most a few times what it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.errors import CheckpointError
from trainer.joining.layout import COUNTS, DUE, EARLY, ENTRY, HEAD, Memory
from trainer.joining.moving.kernels import compact

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
