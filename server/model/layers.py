"""The two layers of a model: the base, and a small fresh layer for keys that the base lacks.

The base holds the spec and the keys of a snapshot. A supervisor builds it, each process binds it once, and it stays
until the next rebuild; its values are a block of their own. A delta with new keys replaces the fresh layer whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from model_store.features.features import FeaturePlan
from model_store.spec.spec import ModelSpec, spec_from_json
from model_store.trie.trie import FlatTrie
from server.model.item_parts import ItemParts
from server.model.layers_kernels import merge_keys
from server.model.shared_memory import SharedBlock
from server.model.tokens import RequestTokens, SetCrosses
from server.model.values import Values

Array = npt.NDArray[Any]
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
    """`fresh` with these keys, none of which `base` has, without keys that no variant uses. O(key bytes of both)."""
    slots = fresh.trie.get_many(rows.key_data, rows.key_offsets)
    known = slots >= 0
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
