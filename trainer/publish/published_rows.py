"""The last published value of every key of a table, and which keys were touched since.

Keys are numbered in the order of admission, which is their order in the arena. An array maps each slot to its key's
number, and another links the keys that share a slot; both are rebuilt when the table has moved its slots. Finding the
touched keys is one pass over the slots' `seen`; everything else is proportional to the number of touched keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.learn.table import TableKeys, ValueTable
from trainer.publish.published_rows_kernels import (
    NONE,
    bytes_at,
    entries_at,
    index_keys,
    slots_of_all,
    touched_since,
)

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class PublishedValues:
    """Published weights and rates of keys: float32[keys, own]; both are 0 where a key is not published."""

    weight: Floats
    rate: Floats

    def of(self, rows: Any) -> PublishedValues:
        """Those of these rows."""
        return PublishedValues(self.weight[rows], self.rate[rows])

    @property
    def is_published(self) -> npt.NDArray[np.bool_]:
        """bool[keys]: which keys are published."""
        return np.asarray(self.weight.any(axis=1))


class PublishedRows:
    """The published values of a table's keys. In bytes: 8 a key and variant; the index: 8 a key, 4 a slot.

    With buckets the index takes 4 a key more.
    """

    def __init__(self, table: ValueTable, own: int) -> None:
        """own: how many variants have values of their own."""
        self._table = table
        self._own = own
        self._entry_starts = np.empty(0, np.int64)
        self._values = _no_values(own)
        self._moves = -1
        self._number_of_slot = np.empty(0, np.int32)
        self._others_in_slot = np.empty(0, np.int32)
        self._known = self._end = 0

    @property
    def sees_touches(self) -> bool:
        """True if the table's slots record when they were touched; if not, every key counts as touched."""
        return "seen" in self._table.slots.dtype.names

    def touched(self, since: int) -> tuple[npt.NDArray[np.int64], TableKeys]:
        """The keys touched by example `since` or a later one, all with 0: their numbers, ascending, and their slots."""
        self._follow()
        table = self._table
        if since == 0 or not self.sees_touches:
            numbers, slots = np.arange(table.count), np.empty(table.count, np.int64)
            slots_of_all(table.layout, self._number_of_slot, self._others_in_slot, slots)
            return numbers, self.keys(numbers, slots)
        found = np.empty((table.count, 2), np.int64)
        size = touched_since(table.layout, since, self._number_of_slot, self._others_in_slot, found)
        found = found[:size]
        found = found[np.argsort(found[:, 0])]
        numbers, slots = (np.ascontiguousarray(column) for column in found.T)
        return numbers, self.keys(numbers, slots)

    def numbers_of(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The numbers of the keys in these slots, of a table whose keys do not share slots."""
        self._follow()
        return self._number_of_slot[slots].astype(np.int64)

    def published(self, numbers: npt.NDArray[np.int64]) -> PublishedValues:
        """The published values of these keys."""
        return self._values.of(numbers)

    def put(self, numbers: npt.NDArray[np.int64], published: PublishedValues) -> None:
        """Remember the values that have been published of these keys."""
        self._values.weight[numbers] = published.weight
        self._values.rate[numbers] = published.rate

    def keys(self, numbers: npt.NDArray[np.int64], slots: npt.NDArray[np.int64]) -> TableKeys:
        """The keys with these numbers, which are in these slots."""
        arena, starts = self._table.arena, self._entry_starts
        offsets, features = np.empty(numbers.size + 1, np.int64), np.empty(numbers.size, np.uint16)
        entries_at(arena, starts, numbers, offsets, features)
        data = np.empty(int(offsets[-1]), np.uint8)
        bytes_at(arena, starts, numbers, offsets, data)
        return TableKeys(data, offsets, slots, features)

    def drop(self, kept: npt.NDArray[np.bool_]) -> tuple[TableKeys, PublishedValues]:
        """Forget the keys that the table is about to evict; return those that are published, and their values.

        kept: bool[keys of the table], in their order. To be called before the table evicts them.
        """
        self._follow()
        known = self._values.of(slice(self._known))
        gone = np.flatnonzero(known.is_published & ~kept)
        keys, numbers = self.keys(gone, np.full(gone.size, -1)), known.of(gone)
        remaining = known.of(kept)
        self._values = _no_values(self._own)
        self._make_room(remaining.weight.shape[0])
        self.put(np.arange(remaining.weight.shape[0]), remaining)
        self._moves = -1  # the arena's entries move: number all keys again
        return keys, numbers

    def _follow(self) -> None:
        """Number the keys admitted since the last call, or all of them if the table has moved its slots."""
        table = self._table
        if self._moves != table.moves:
            self._moves, self._known, self._end = table.moves, 0, 0
            self._number_of_slot = np.full(table.slots.size, NONE, np.int32)
        self._make_room(table.count)
        self._end = int(
            index_keys(
                table.layout, table.space, table.arena, self._end, self._known, table.count, self._entry_starts,
                self._number_of_slot, self._others_in_slot,
            )
        )  # fmt: skip
        self._known = table.count

    def _make_room(self, keys: int) -> None:
        """Grow the arrays to at least `keys` keys, by half as many more; new entries are 0."""
        room = self._values.weight.shape[0]
        if keys > room or self._entry_starts.size < room:
            size = max(keys + keys // 2, room)
            self._entry_starts = _grown(self._entry_starts, size)
            if self._table.buckets is not None:
                self._others_in_slot = _grown(self._others_in_slot, size)
            weight, rate = _grown(self._values.weight, size), _grown(self._values.rate, size)
            self._values = PublishedValues(weight, rate)


def _no_values(own: int) -> PublishedValues:
    return PublishedValues(np.zeros((0, own), np.float32), np.zeros((0, own), np.float32))


def _grown(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    grown = np.zeros((size, *array.shape[1:]), array.dtype)
    grown[: len(array)] = array[:size]
    return grown
