"""Item parts: the item's half of the keys of mixed crosses, each numbered once in a model.

`age*brand=25*nike` and `gender*brand=f*nike` end in the same item part, `nike` of the group (brand,). As every key's
item part is known as a number, a candidate is matched by comparing integers, and its bytes are walked once instead of
once for each cross.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.features.features import CrossPlan, FeaturePlan
from model_store.trie.trie import Cursor, FlatTrie, plain
from server.model.ids_kernels import (
    NO_HALF,
    WORD_BYTES,
    mark_request_parts,
    number_item_parts,
    words_at,
    write_spans,
)

Array = npt.NDArray[Any]
Part = tuple[CrossPlan, Cursor]
_TAG_BYTES = 4


@dataclass(frozen=True, eq=False)
class ItemParts:
    """The item parts of one layer of a model.

    trie: from a group's tag (its number in `groups_of`) and an item part to the part's number less `first`. half
    int32[slots]: the number of the item part that each key ends in, NO_HALF for other keys.

    In a base, `first` is 0, `at` is empty, and numbers rise with (group, bytes of the part): the keys that share a
    request's half are in the order of their numbers. A fresh layer's trie holds only item parts that the base lacks,
    numbered from `first`, the base's count. Its entries with the same request's half are sorted by number instead, and
    half[i] belongs to slot at[i] (int32[slots]).
    """

    trie: FlatTrie
    half: Array
    at: Array
    first: int = 0

    @classmethod
    def of(cls, plan: FeaturePlan, trie: FlatTrie, key_data: Array, key_offsets: Array) -> ItemParts:
        """Number the item parts of every mixed cross of a base. O(bytes of the keys), and a sort of the parts.

        key_data, key_offsets: the keys that `trie` was built from.
        """
        numbering = _Numbering(key_data, key_offsets, None, 0)
        for tag, parts in _by_group(plan, trie):
            numbering.add(tag, parts)
        return cls(numbering.trie(), numbering.half, np.empty(0, np.int32))

    @classmethod
    def fresh(
        cls, plan: FeaturePlan, trie: FlatTrie, key_data: Array, key_offsets: Array, base: ItemParts
    ) -> ItemParts:
        """Number the item parts of a fresh layer over `base`. Likewise, and O(keys · log keys)."""
        numbering = _Numbering(key_data, key_offsets, base.trie, len(base.trie))
        run = np.arange(len(trie), dtype=np.int32)
        for tag, parts in _by_group(plan, trie):
            numbering.add(tag, parts)
            for cross, cursor in parts:
                mark_request_parts(*numbering.keys, *_extent(cross, cursor), run)
        at = np.lexsort((numbering.half, run)).astype(np.int32)
        return cls(numbering.trie(), numbering.half[at], at, numbering.first)

    @classmethod
    def none(cls, first: int) -> ItemParts:
        """The item parts of an empty fresh layer, over a base with `first` of them."""
        return cls(FlatTrie.of([]), np.empty(0, np.int32), np.empty(0, np.int32), first)

    def cursor(self, group: int) -> Cursor | None:
        """Where the item parts of a group begin in `trie`."""
        return self.trie.cursor(_tag(group))

    @property
    def stop(self) -> int:
        """One past the highest number."""
        return self.first + len(self.trie)


def is_mixed(cross: CrossPlan) -> bool:
    """True if the cross has fields of the request and of the item."""
    return cross.fields[0].side != "item" and cross.fields[-1].side == "item"


def group_of(cross: CrossPlan) -> tuple[str, ...]:
    """The item fields of a cross, by name, in the order of its keys."""
    return tuple(field.name for field in cross.item_fields)


def groups_of(plan: FeaturePlan) -> tuple[tuple[str, ...], ...]:
    """The groups of a plan, in the order of its crosses, whether a model has keys of them or not.

    A score adds the groups in this order, so it must not depend on which layer holds what.
    """
    return tuple(dict.fromkeys(group_of(cross) for cross in plan.crosses if is_mixed(cross)))


def _by_group(plan: FeaturePlan, trie: FlatTrie) -> list[tuple[Array, list[Part]]]:
    """For each group that has keys: its tag, and its crosses with their cursors."""
    found = []
    for group, names in enumerate(groups_of(plan)):
        crosses = (cross for cross in plan.crosses if is_mixed(cross) and group_of(cross) == names)
        parts = [(cross, cursor) for cross in crosses if (cursor := trie.cursor(cross.prefix)) is not None]
        if parts:
            found.append((np.frombuffer(bytearray(_tag(group)), np.uint8), parts))
    return found


def _tag(group: int) -> bytes:
    return group.to_bytes(_TAG_BYTES, "big")


def _extent(cross: CrossPlan, cursor: Cursor) -> tuple[int, int, int, int]:
    """A cross's slots, its prefix's length, and how many `*` the request's half has."""
    return cursor.begin, cursor.stop, len(cross.prefix), len(cross.request_fields)


class _Numbering:
    """Numbers item parts group by group, and collects the texts of those that `known`, the base's trie, lacks."""

    def __init__(self, key_data: Array, key_offsets: Array, known: FlatTrie | None, first: int) -> None:
        self.keys = plain(key_data, np.uint8), plain(key_offsets, np.int64)
        self._known, self.first = known, first
        self.half = np.full(len(key_offsets) - 1, NO_HALF, np.int32)
        self._data: list[Array] = []
        self._lengths: list[Array] = []
        self._count = first

    def add(self, tag: Array, parts: Sequence[Part]) -> None:
        """Number the item parts of one group; tags rise from call to call."""
        spans = self._interned(parts)
        order = sorted_spans(self.keys[0], spans)
        number = np.full(len(spans) + 1, NO_HALF, np.int32)  # NO_HALF indexes the last one
        if self._known is not None:
            number[order] = self._known.get_many(*self._written(tag, spans, order))
            order = order[number[order] < 0]
        number[order] = np.arange(self._count, self._count + len(order), dtype=np.int32)
        self._count += len(order)
        data, offsets = self._written(tag, spans, order)
        self._data.append(data)
        self._lengths.append(np.diff(offsets))
        for _, cursor in parts:
            below = self.half[cursor.begin : cursor.stop]
            below[:] = number[below]

    def trie(self) -> FlatTrie:
        """The trie of the texts collected."""
        offsets = np.concatenate([[0], np.cumsum(np.concatenate([np.empty(0, np.int64), *self._lengths]))])
        return FlatTrie.build(np.concatenate([np.empty(0, np.uint8), *self._data]), offsets)

    def _interned(self, parts: Sequence[Part]) -> Array:
        """Number the distinct item parts as they appear, in `half`; returns their spans in the keys, int64[n, 2]."""
        slots = sum(cursor.stop - cursor.begin for _, cursor in parts)
        table = np.full(1 << (2 * slots - 1).bit_length(), -1, np.int32)
        spans, count = np.empty((slots, 2), np.int64), 0
        for cross, cursor in parts:
            count = number_item_parts(*self.keys, *_extent(cross, cursor), table, spans, count, self.half)
        return spans[:count].copy()

    def _written(self, tag: Array, spans: Array, rows: Array) -> tuple[Array, Array]:
        offsets = np.zeros(len(rows) + 1, np.int64)
        data = np.empty(int((spans[rows, 1] - spans[rows, 0]).sum()) + len(rows) * len(tag), np.uint8)
        write_spans(self.keys[0], spans, rows, tag, data, offsets)
        return data, offsets


def sorted_spans(data: Array, spans: Array) -> Array:
    """The rows of distinct `spans` (int64[n, 2]: begin and end in `data`, uint8) in the order of their bytes.

    Sorts by the first seven bytes as one number, then ties by the next seven, and so on, without a Python object for
    each string. O(n log n) for each seven bytes that ties share.
    """
    rank = np.zeros(len(spans), np.int64)  # of each row: the rank of the first row it is tied with
    tied, depth = np.arange(len(spans)), 0
    while len(tied):
        words = np.empty(len(tied), np.uint64)
        words_at(data, spans, tied, depth, words)
        order = np.lexsort((words, rank[tied]))
        tied, words = tied[order], words[order]
        before = rank[tied]
        begins = np.flatnonzero(_changes(before) | _changes(words))
        sizes = np.diff(np.append(begins, len(tied)))
        # A new tie starts after what precedes it in its old tie: its offset is the difference of the two begins.
        first_of_old = np.maximum.accumulate(np.where(_changes(before), np.arange(len(tied)), 0))
        rank[tied] = before + np.repeat(begins, sizes) - first_of_old
        tied = tied[np.repeat(sizes > 1, sizes)]
        depth += WORD_BYTES
    rows = np.empty(len(spans), np.int64)
    rows[rank] = np.arange(len(spans))
    return rows


def _changes(numbers: Array) -> Array:
    """True where a number differs from the one before it, and for the first."""
    found: Array = np.concatenate([[True], numbers[1:] != numbers[:-1]])
    return found
