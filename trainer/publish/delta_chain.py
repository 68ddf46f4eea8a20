"""A chain of versions of a model that learns: a snapshot and deltas of it. It makes them; `publisher` publishes them.

The chain remembers the published value of every key. A delta holds the keys touched since the version before whose
value has moved by more than a threshold from what was published, so that small moves add up and are published in time.
Where weights change without being touched (`untouched_stay`), or slots do not record when they were touched, all keys
are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.artefact.artefact import Artefact, Delta
from model_store.artefact.changes import differing
from model_store.artefact.rows import Content
from trainer.learn.learners.registry import untouched_stay
from trainer.learn.model import LearningModel
from trainer.learn.table import TableKeys, ValueTable
from trainer.learn.table_kernels import (
    NONE,
    bytes_at,
    entries_at,
    index_keys,
    slots_of_all,
    touched_since,
)

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Change:
    """A delta to be published, and what the chain has to remember once it is.

    numbers: of the keys that it adds, changes or removes; published: float32[2, keys, own], their weights and rates.
    """

    delta: Delta
    numbers: Int64s
    published: npt.NDArray[np.float32]
    keys: int  # in the model after it


class DeltaChain:
    """The published versions of one model, from a snapshot on. For the model's thread.

    `version`, `content` and `keys` are those of the latest version; `examples`: how many it was learned from. Memory in
    bytes: 8 a key and variant with values of its own, and that of `NumberedKeys`.
    """

    def __init__(self, model: LearningModel, snapshot: Artefact, version: int) -> None:
        """Start with a snapshot of the model as it is now."""
        self._model = model
        self._keys = NumberedKeys(model.table)
        # By number; weight and rate are both 0 where a key is not published.
        self._published = np.zeros((2, 0, model.coordinates.own), np.float32)
        self._looks_at_all = not untouched_stay(model.spec)
        self._removed: list[Delta] = []
        self.version, self.content, self.keys = version, snapshot.content, snapshot.rows
        numbers, keys = self._touched(0)
        self._published[:, numbers] = model.published(keys)
        self.examples = model.rows
        model.about_to_drop = self._drop

    def change(self, threshold: float = 0.0, *, last: bool = False) -> Change:
        """The keys that moved by more than the threshold since they were published; with `last`, all that moved."""
        numbers, keys = self._touched(0 if last or self._looks_at_all else self.examples + 1)
        before = self._published.take(numbers, axis=1)
        after = np.stack(self._model.published(keys))
        masks = self._model.coordinates.masks_of(keys)
        old, new = self._columns(masks, before), self._columns(masks, after)
        changed = differing(old, new, 0.0 if last else threshold)
        added = int(_is_published(after)[changed].sum()) - int(_is_published(before)[changed].sum())
        chosen = self._keys.of(numbers[changed], keys.slots[changed])
        delta = self._delta(chosen, _rows_of(old, changed), _rows_of(new, changed))
        removed = sum(each.rows for each in self._removed)
        return Change(delta, numbers[changed], after[:, changed], self.keys + added - removed)

    def mark_published(self, change: Change, version: int) -> None:
        """Remember that the change has been published as this version."""
        self._published[:, change.numbers] = change.published
        self._removed = []
        self.version, self.content, self.keys = version, change.delta.content, change.keys
        self.examples = self._model.rows

    def _touched(self, since: int) -> tuple[Int64s, TableKeys]:
        """`NumberedKeys.touched`; there is room for the published values of all keys then."""
        found = self._keys.touched(since)
        self._published = _grown(self._published, self._model.table.count, axis=1)
        return found

    def _delta(self, keys: TableKeys, old: dict[str, Any], new: dict[str, Any]) -> Delta:
        """Evicted keys are removed first, so that a key that has come back is added again."""
        delta = None
        for removed in self._removed:
            delta = removed if delta is None else delta.followed_by(removed)
        content = self.content if delta is None else delta.content
        latest = self._delta_of(keys, content, old, new)
        return latest if delta is None else delta.followed_by(latest)

    def _drop(self, kept: npt.NDArray[np.bool_]) -> None:
        """Remember which published keys the table is about to evict; kept: bool[keys of the table], in their order."""
        self._keys.follow()
        known = _grown(self._published, kept.size, axis=1)[:, : kept.size]
        gone = np.flatnonzero(_is_published(known) & ~kept)
        keys, published = self._keys.of(gone, np.full(gone.size, -1)), known.take(gone, axis=1)
        self._published = known.compress(kept, axis=1)
        self._keys.restart()  # the arena's entries move
        if not gone.size:
            return
        old = self._columns(self._model.coordinates.masks_of(keys), published)
        nothing = {name: np.zeros_like(column) for name, column in old.items()}
        content = self._removed[-1].content if self._removed else self.content
        self._removed.append(self._delta_of(keys, content, old, nothing))

    def _columns(self, masks: npt.NDArray[np.uint32], published: npt.NDArray[np.float32]) -> dict[str, Any]:
        return {
            "weight": self._model.shaped(published[0]),
            "variants": np.where(_is_published(published), masks, np.uint32(0)),
            "rate": self._model.shaped(published[1]),
        }

    def _delta_of(
        self, keys: TableKeys, parent_content: str, old: dict[str, Any], new: dict[str, Any]
    ) -> Delta:
        columns: dict[str, Any] = {"key_data": keys.data, "key_offsets": keys.offsets}
        content = Content.parse(parent_content) - Content.of(**columns, **old) + Content.of(**columns, **new)
        return Delta.from_columns(
            **columns,
            **new,
            **self._model.described(),
            parent=self.version,
            parent_content=parent_content,
            content=str(content),
        )


def _rows_of(columns: dict[str, Any], rows: npt.NDArray[np.bool_]) -> dict[str, Any]:
    return {name: column[rows] for name, column in columns.items()}


def _is_published(values: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    return np.asarray(values[0].any(axis=1))


class NumberedKeys:
    """A table's keys by number, in the order of admission, which is their order in the arena; which were touched since.

    An array maps each slot to its key's number, and another links the keys that share a slot; both are rebuilt when the
    table has moved its slots. Finding the touched keys is one pass over the slots' `seen`; everything else is
    proportional to the number of touched keys. In bytes: 8 a key, with buckets 12, and 4 a slot.
    """

    def __init__(self, table: ValueTable) -> None:
        self._table = table
        self._entry_starts = np.empty(0, np.int64)
        self._number_of_slot = np.empty(0, np.int32)
        self._others_in_slot = np.empty(0, np.int32)
        self.restart()

    def restart(self) -> None:
        """Number all keys again: the table evicts some."""
        self._moves = -1

    def touched(self, since: int) -> tuple[Int64s, TableKeys]:
        """The keys touched by example `since` or a later one: their numbers, ascending, and their slots.

        With 0, or where slots do not record when they were touched, all keys.
        """
        self.follow()
        table = self._table
        if since == 0 or "seen" not in table.slots.dtype.names:
            numbers, slots = np.arange(table.count), np.empty(table.count, np.int64)
            slots_of_all(table.layout, self._number_of_slot, self._others_in_slot, slots)
            return numbers, self.of(numbers, slots)
        found = np.empty((table.count, 2), np.int64)
        size = touched_since(table.layout, since, self._number_of_slot, self._others_in_slot, found)
        found = found[:size]
        found = found[np.argsort(found[:, 0])]
        numbers, slots = (np.ascontiguousarray(column) for column in found.T)
        return numbers, self.of(numbers, slots)

    def numbers_of(self, slots: Int64s) -> Int64s:
        """The numbers of the keys in these slots, of a table whose keys do not share slots."""
        self.follow()
        return self._number_of_slot[slots].astype(np.int64)

    def of(self, numbers: Int64s, slots: Int64s) -> TableKeys:
        """The keys with these numbers, which are in these slots."""
        arena, starts = self._table.arena, self._entry_starts
        offsets, features = np.empty(numbers.size + 1, np.int64), np.empty(numbers.size, np.uint16)
        entries_at(arena, starts, numbers, offsets, features)
        data = np.empty(int(offsets[-1]), np.uint8)
        bytes_at(arena, starts, numbers, offsets, data)
        return TableKeys(data, offsets, slots, features)

    def follow(self) -> None:
        """Number the keys admitted since the last call, or all of them if the table has moved its slots."""
        table = self._table
        if self._moves != table.moves:
            self._moves, self._known, self._end = table.moves, 0, 0
            self._number_of_slot = np.full(table.slots.size, NONE, np.int32)
        self._entry_starts = _grown(self._entry_starts, table.count)
        if table.buckets is not None:
            self._others_in_slot = _grown(self._others_in_slot, table.count)
        self._end = int(
            index_keys(
                table.layout, table.space, table.arena, self._end, self._known, table.count, self._entry_starts,
                self._number_of_slot, self._others_in_slot,
            )
        )  # fmt: skip
        self._known = table.count


def _grown(array: npt.NDArray[Any], size: int, axis: int = 0) -> npt.NDArray[Any]:
    """The array with room for at least `size` along the axis, then for half as many more; new elements are 0."""
    if size <= array.shape[axis]:
        return array
    more = list(array.shape)
    more[axis] = size + size // 2 - array.shape[axis]
    return np.concatenate([array, np.zeros(more, array.dtype)], axis)
