"""What was last published of every key of a table, and which keys were touched since. Nothing here publishes.

Keys are numbered in the order of admission, as they stand in the arena. An array tells each slot's number; it is made
anew when the table has moved its slots. So which keys were touched is one pass over the slots' `seen`, and all else
costs what was touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.learn.table import TableKeys, ValueTable
from trainer.publish import published_rows_kernels as kernels

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Numbers:
    """Weights and rates of keys as they are published: float32[keys, own], both 0 where a key is not published."""

    weight: Floats
    rate: Floats

    def of(self, rows: Any) -> Numbers:
        """Of these rows alone."""
        return Numbers(self.weight[rows], self.rate[rows])

    @property
    def there(self) -> npt.NDArray[np.bool_]:
        """bool[keys]: which keys are published."""
        return np.asarray(self.weight.any(axis=1))


class PublishedRows:
    """The published numbers of a table's keys: 8 bytes a key and variant, and to find them 8 a key and 4 a slot."""

    def __init__(self, table: ValueTable, own: int) -> None:
        """`own`: how many variants have values of their own."""
        self._table = table
        self._own = own
        self._begins = np.empty(0, np.int64)
        self._numbers = Numbers(np.zeros((0, own), np.float32), np.zeros((0, own), np.float32))
        self._moves = -1
        self._places = np.empty(0, np.int32)
        self._known = self._end = 0

    @property
    def sees_touches(self) -> bool:
        """True if the table's slots say when they were touched; else every key counts as touched."""
        return "seen" in self._table.slots.dtype.names

    def touched(self, since: int) -> tuple[npt.NDArray[np.int64], TableKeys]:
        """The keys that example `since` or a later one has touched: their numbers, ascending, and where they are.

        With 0 all of them.
        """
        self._follow()
        table = self._table
        if since == 0 or not self.sees_touches:
            numbers, slots = np.arange(table.used), np.empty(table.used, np.int64)
            kernels.slots_of_all(table.layout, self._places, slots)
            return numbers, self.keys(numbers, slots)
        found = np.empty((table.used, 2), np.int64)
        found = found[: kernels.touched_since(table.layout, since, self._places, found)]
        found = found[np.argsort(found[:, 0])]
        numbers, slots = (np.ascontiguousarray(column) for column in found.T)
        return numbers, self.keys(numbers, slots)

    def published(self, numbers: npt.NDArray[np.int64]) -> Numbers:
        """What was published of these keys."""
        return self._numbers.of(numbers)

    def put(self, numbers: npt.NDArray[np.int64], published: Numbers) -> None:
        """Note what has been published of these keys."""
        self._numbers.weight[numbers] = published.weight
        self._numbers.rate[numbers] = published.rate

    def keys(self, numbers: npt.NDArray[np.int64], slots: npt.NDArray[np.int64]) -> TableKeys:
        """Keys by number, which lie in these slots."""
        arena, begins = self._table.arena, self._begins
        offsets, features = np.empty(numbers.size + 1, np.int64), np.empty(numbers.size, np.uint16)
        kernels.entries_at(arena, begins, numbers, offsets, features)
        data = np.empty(int(offsets[-1]), np.uint8)
        kernels.bytes_at(arena, begins, numbers, offsets, data)
        return TableKeys(data, offsets, slots, features)

    def drop(self, kept: npt.NDArray[np.bool_]) -> tuple[TableKeys, Numbers]:
        """Forget the keys that the table is about to drop; return those of them that are published, and as what.

        kept: bool[keys of the table], in their order. To be called while the table still has them.
        """
        self._follow()
        known = self._numbers.of(slice(self._known))
        gone = np.flatnonzero(known.there & ~kept)
        keys, numbers = self.keys(gone, np.full(gone.size, -1)), known.of(gone)
        remaining = known.of(kept)
        self._numbers = Numbers(np.zeros((0, self._own), np.float32), np.zeros((0, self._own), np.float32))
        self._make_room(remaining.weight.shape[0])
        self.put(np.arange(remaining.weight.shape[0]), remaining)
        self._moves = -1  # the arena's entries move up: all are numbered anew
        return keys, numbers

    def _follow(self) -> None:
        """Number the keys admitted since, or all of them where the table has moved its slots."""
        table = self._table
        if self._moves != table.moves:
            self._moves, self._known, self._end = table.moves, 0, 0
            self._places = np.empty(table.slots.size, np.int32)
        self._make_room(table.used)
        places = (self._begins, self._places)
        self._end = int(
            kernels.index_keys(table.layout, table.arena, self._end, self._known, table.used, *places)
        )
        self._known = table.used

    def _make_room(self, keys: int) -> None:
        """Room for so many keys at least, half as many again where more is needed; what is new is 0."""
        room = self._numbers.weight.shape[0]
        if keys > room or self._begins.size < room:
            wider = max(keys + keys // 2, room)
            self._begins = _widened(self._begins, wider)
            weight, rate = _widened(self._numbers.weight, wider), _widened(self._numbers.rate, wider)
            self._numbers = Numbers(weight, rate)


def _widened(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    wider = np.zeros((size, *array.shape[1:]), array.dtype)
    wider[: len(array)] = array[:size]
    return wider
