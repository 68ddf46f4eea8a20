"""The two layers of a model: the base, and a small fresh layer for keys that the base lacks.

The base holds the spec and the keys of a snapshot. A supervisor builds it, each process binds it once, and it stays
until the next rebuild; its values are a block of their own. A delta with new keys replaces the fresh layer whole.

Item parts are the item's half of the keys of mixed crosses, each numbered once in a model. `age*brand=25*nike` and
`gender*brand=f*nike` end in the same item part, `nike` of the group (brand,). As every key's item part is known as a
number, a candidate is matched by comparing integers, and its bytes are walked once instead of once for each cross.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from model_store.features.features import CrossPlan, FeaturePlan
from model_store.spec.spec import ModelSpec, spec_from_json
from model_store.trie.trie import Cursor, FlatTrie, plain
from server.model.byte_kernels import (
    NO_HALF,
    WORD_BYTES,
    mark_request_parts,
    merge_keys,
    number_item_parts,
    words_at,
    write_spans,
)
from server.model.shared_memory import SharedBlock
from server.model.tokens import RequestTokens, SetCrosses
from server.model.values import Values

Array = npt.NDArray[Any]
# -- item parts

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
    # A cross's fields of the request come first (`CrossPlan`), so that its first and last field tell.
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
    # Big-endian, so that tags rise bytewise with the groups, as the sorted keys of a trie must.
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
            # A part that the base knows keeps the base's number, so that the codes of items stay as they are.
            number[order] = self._known.get_many(*self._written(tag, spans, order))
            order = order[number[order] < 0]
        number[order] = np.arange(self._count, self._count + len(order), dtype=np.int32)
        self._count += len(order)
        data, offsets = self._written(tag, spans, order)
        self._data.append(data)
        self._lengths.append(np.diff(offsets))
        for _, cursor in parts:
            # Until here `half` has numbers in the order of appearance, by `_interned`.
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
        # A copy: a view would keep the room for every slot in memory.
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


# -- layers

_TRIE = ("labels", "nodes", "first_byte")


@dataclass(frozen=True, eq=False)
class Layer:
    """Keys, the item parts of their crosses, and their values, by the trie's slots. Immutable while served."""

    trie: FlatTrie
    item_parts: ItemParts
    values: Values

    @classmethod
    def none(cls, values: Values, first_part: int) -> Layer:
        """A fresh layer without keys, over a base with these values and `first_part` item parts."""
        return cls(FlatTrie.of([]), ItemParts.none(first_part), values.zeros(0))

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays. O(1)."""
        keys = self.trie.nbytes + self.item_parts.half.nbytes + self.item_parts.at.nbytes
        return keys + self.item_parts.trie.nbytes + self.values.nbytes

    def __len__(self) -> int:
        return len(self.trie)


def keys_by_name(trie: FlatTrie, item_parts: ItemParts) -> dict[str, Array]:
    """A layer's arrays without the values, as its block names them."""
    arrays = dict(zip(_TRIE, trie.arrays, strict=True))
    arrays |= {f"halves_{name}": array for name, array in zip(_TRIE, item_parts.trie.arrays, strict=True)}
    return arrays | {"half": item_parts.half, "at": item_parts.at}


def keys_of_part(part: SharedBlock, first_part: int = 0) -> tuple[FlatTrie, ItemParts]:
    """Views of a block's arrays: the trie and its item parts."""
    arrays = part.arrays
    trie, parts_trie = (FlatTrie(*(arrays[prefix + name] for name in _TRIE)) for prefix in ("", "halves_"))
    return trie, ItemParts(parts_trie, arrays["half"], arrays["at"], first_part)


@dataclass(frozen=True, eq=False)
class Base:
    """The base, without its values. Immutable; shared by every version over the same block."""

    spec: ModelSpec
    plan: FeaturePlan
    request_tokens: RequestTokens
    item_set_crosses: SetCrosses
    trie: FlatTrie
    item_parts: ItemParts

    @classmethod
    def of_spec(cls, spec: ModelSpec, trie: FlatTrie, item_parts: ItemParts) -> Base:
        """Compile the spec. O(fields)."""
        plan = FeaturePlan.of(spec)
        return cls(spec, plan, RequestTokens(plan), SetCrosses(plan, plan.item_fields), trie, item_parts)

    @classmethod
    def of_part(cls, part: SharedBlock) -> Base:
        """Bind a block; returns the same object for the same block. O(fields), then O(1)."""
        bound = _BOUND.get(part)
        if bound is None:
            bound = _BOUND[part] = cls.of_spec(spec_from_json(part.head["spec"]), *keys_of_part(part))
        return bound

    @staticmethod
    def part(spec: ModelSpec, key_data: Array, key_offsets: Array) -> SharedBlock:
        """Build the block from sorted keys. O(key bytes). Raises ArtefactError for unsorted keys."""
        # Not trimmed, since writing the block copies the arrays anyway.
        trie = FlatTrie.build(key_data, key_offsets, trim=False)
        item_parts = ItemParts.of(FeaturePlan.of(spec), trie, key_data, key_offsets)
        return SharedBlock.write({"spec": spec.to_json()}, keys_by_name(trie, item_parts))


_BOUND: WeakKeyDictionary[SharedBlock, Base] = WeakKeyDictionary()


def no_fresh(base: Base, values: Values) -> Layer:
    """An empty fresh layer over a base with these values."""
    return Layer.none(values, len(base.item_parts.trie))


def fresh_of_part(base: Base, values: Values, part: SharedBlock | None) -> Layer:
    """Bind a fresh layer's block over its base. O(1)."""
    if part is None:
        return no_fresh(base, values)
    trie, item_parts = keys_of_part(part, len(base.item_parts.trie))
    return Layer(trie, item_parts, Values.of_part(part))


def part_of_fresh(layer: Layer) -> SharedBlock:
    """The block of a fresh layer. O(bytes)."""
    return SharedBlock.write({}, keys_by_name(layer.trie, layer.item_parts) | layer.values.by_name())


def with_rows(base: Base, fresh: Layer, rows: Rows) -> Layer:
    """`fresh` with these keys, which `base` lacks, without keys that no variant uses. O(key bytes of both)."""
    slots = fresh.trie.get_many(rows.key_data, rows.key_offsets)
    # A key that was fresh before only gets other values; only new ones make the trie grow.
    known = slots >= 0
    # A copy, since requests still read the layer before.
    own = fresh.values.zeros(len(fresh))
    own.fill(fresh.values)
    own.put(slots[known], rows.values.take(known.nonzero()[0]))
    both = merged(Rows(*fresh.trie.keys(), own), rows.at((~known).nonzero()[0]))
    trie = FlatTrie.build(both.key_data, both.key_offsets)
    return Layer(
        trie, ItemParts.fresh(base.plan, trie, both.key_data, both.key_offsets, base.item_parts), both.values
    )


@dataclass(frozen=True, eq=False)
class Rows:
    """Sorted keys, as uint8 data and int offsets [n + 1], with their values."""

    key_data: Array
    key_offsets: Array
    values: Values

    def __len__(self) -> int:
        return len(self.values)

    def at(self, rows: Array) -> Rows:
        """Some of the keys; `rows` is ascending."""
        keep = np.zeros(len(self), np.bool_)
        keep[rows] = True
        nothing = Rows(np.empty(0, np.uint8), np.zeros(1, np.int64), self.values.zeros(0))
        return _merged(self, keep, nothing, np.empty(0, np.bool_))


def merged(one: Rows, other: Rows) -> Rows:
    """The keys of both that a variant uses; the two have no key in common. O(key bytes)."""
    return _merged(one, one.values.used, other, other.values.used)


def _merged(one: Rows, keep: Array, other: Rows, keep_other: Array) -> Rows:
    count = np.count_nonzero(keep) + np.count_nonzero(keep_other)
    data = np.empty(len(one.key_data) + len(other.key_data), np.uint8)
    offsets, rows = np.zeros(count + 1, np.int64), np.empty(count, np.int64)
    merge_keys(
        one.key_data,
        one.key_offsets,
        keep,
        other.key_data,
        other.key_offsets,
        keep_other,
        data,
        offsets,
        rows,
    )
    values = one.values.zeros(int(count))
    firsts, others = np.flatnonzero(rows >= 0), np.flatnonzero(rows < 0)
    values.put(firsts, one.values.take(rows[firsts]))
    values.put(others, other.values.take(-1 - rows[others]))
    return Rows(data[: offsets[-1]], offsets, values)
