"""Layer: a trie with what belongs to its slots. A model has a base, and a fresh one for keys that the base lacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from model_store.features.features import FeaturePlan
from model_store.spec.spec import ModelSpec, spec_from_json
from model_store.trie.trie import FlatTrie
from server.model.item_parts import Halves
from server.model.layers_kernels import merge_keys
from server.model.request_tokens import RequestTokens, SetCrosses
from server.model.shared_memory import Mapped
from server.model.values import Values

Array = npt.NDArray[Any]
_TRIE = ("key_data", "key_offsets", "nodes", "first_byte")


@dataclass(frozen=True, eq=False)
class Layer:
    """Keys, the item halves of their crosses, and their values, all by the trie's slots. Immutable while served."""

    trie: FlatTrie
    halves: Halves
    values: Values

    @classmethod
    def none(cls, values: Values, first_half: int) -> Layer:
        """A fresh layer without keys, over a base with these values and `first_half` halves."""
        return cls(FlatTrie.of([]), Halves.none(first_half), values.zeros(0))

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays. O(1)."""
        keys = self.trie.nbytes + self.halves.half.nbytes + self.halves.at.nbytes
        return keys + self.halves.trie.nbytes + self.values.nbytes

    def __len__(self) -> int:
        return len(self.trie)


def keys_by_name(trie: FlatTrie, halves: Halves) -> dict[str, Array]:
    """A layer's arrays without the values, as a part has them."""
    arrays = dict(zip(_TRIE, trie.arrays, strict=True))
    arrays |= {f"halves_{name}": array for name, array in zip(_TRIE, halves.trie.arrays, strict=True)}
    return arrays | {"half": halves.half, "at": halves.at}


def keys_of_part(part: Mapped, first_half: int = 0) -> tuple[FlatTrie, Halves]:
    """Views of a part's arrays: the trie and its halves."""
    arrays = part.arrays
    trie, halves_trie = (FlatTrie(*(arrays[prefix + name] for name in _TRIE)) for prefix in ("", "halves_"))
    return trie, Halves(halves_trie, arrays["half"], arrays["at"], first_half)


# --- The base: the spec and the keys that a snapshot brought, with their item halves. It stays until the next
# rebuild ---
#
# Made by a supervisor, once; bound by each process, once. Its values by slot are another part.


@dataclass(frozen=True, eq=False)
class Base:
    """Immutable; shared by every version over the same part."""

    spec: ModelSpec
    plan: FeaturePlan
    request_tokens: RequestTokens
    item_set_crosses: SetCrosses
    trie: FlatTrie
    halves: Halves

    @classmethod
    def of_spec(cls, spec: ModelSpec, trie: FlatTrie, halves: Halves) -> Base:
        """Compile the spec. O(fields)."""
        plan = FeaturePlan.of(spec)
        return cls(spec, plan, RequestTokens(plan), SetCrosses(plan, plan.item_fields), trie, halves)

    @classmethod
    def of_part(cls, part: Mapped) -> Base:
        """Bind a part; the same object again for the same part. O(fields), then O(1)."""
        bound = _BOUND.get(part)
        if bound is None:
            bound = _BOUND[part] = cls.of_spec(spec_from_json(part.head["spec"]), *keys_of_part(part))
        return bound

    @staticmethod
    def part(spec: ModelSpec, key_data: Array, key_offsets: Array) -> Mapped:
        """Build from sorted keys. O(key bytes). Raises ArtefactError for unsorted keys."""
        trie = FlatTrie.build(key_data, key_offsets, trim=False)
        halves = Halves.of(FeaturePlan.of(spec), trie)
        return Mapped.write({"spec": spec.to_json()}, keys_by_name(trie, halves))


_BOUND: WeakKeyDictionary[Mapped, Base] = WeakKeyDictionary()


# --- The fresh layer: keys that came after the base was built, in a small trie that each delta replaces whole
# ---


def no_fresh(base: Base, values: Values) -> Layer:
    """The fresh layer while there is none, over a base with these values."""
    return Layer.none(values, len(base.halves.trie))


def fresh_of_part(base: Base, values: Values, part: Mapped | None) -> Layer:
    """Bind a part over its base. O(1)."""
    if part is None:
        return no_fresh(base, values)
    trie, halves = keys_of_part(part, len(base.halves.trie))
    return Layer(trie, halves, Values.of_part(part))


def part_of_fresh(layer: Layer) -> Mapped:
    """A block with all of a layer. O(bytes)."""
    return Mapped.write({}, keys_by_name(layer.trie, layer.halves) | layer.values.by_name())


def with_rows(base: Base, fresh: Layer, rows: Rows) -> Layer:
    """`fresh` with these keys, none of which `base` has; those that no variant uses taken out. O(key bytes of both)."""
    slots = fresh.trie.get_many(rows.key_data, rows.key_offsets)
    known = slots >= 0
    own = fresh.values.zeros(len(fresh))
    own.fill(fresh.values)
    own.put(slots[known], rows.values.take(known.nonzero()[0]))
    both = merged(Rows(fresh.trie.key_data, fresh.trie.key_offsets, own), rows.at((~known).nonzero()[0]))
    trie = FlatTrie.build(both.key_data, both.key_offsets)
    return Layer(trie, Halves.fresh(base.plan, trie, base.halves), both.values)


# --- Putting two sets of sorted keys together, by kernel; keys that were taken out are left behind ---


@dataclass(frozen=True, eq=False)
class Rows:
    """Sorted keys, uint8 data and int offsets [n + 1] into it, with their values."""

    key_data: Array
    key_offsets: Array
    values: Values

    def __len__(self) -> int:
        return len(self.values)

    def at(self, rows: Array) -> Rows:
        """Some of them, in the order of `rows`, which rises."""
        keep = np.zeros(len(self), np.bool_)
        keep[rows] = True
        nothing = Rows(np.empty(0, np.uint8), np.zeros(1, np.int64), self.values.zeros(0))
        return _merged(self, keep, nothing, np.empty(0, np.bool_))


def merged(one: Rows, other: Rows) -> Rows:
    """The keys of both that a variant uses. They have none in common. O(key bytes)."""
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
