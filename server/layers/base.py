"""The base: the spec and the keys that a snapshot brought, with their item halves. It stays until the next rebuild.

Made by a supervisor, once; bound by each process, once. Its values by slot are another part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy.typing as npt

from model_store.features import FeaturePlan
from model_store.spec import ModelSpec, spec_from_json
from server.interning.halves import Halves
from server.layers.layer import keys_by_name, keys_of_part
from server.mapped import Mapped
from server.scoring.request_tokens import RequestTokens
from server.scoring.set_crosses import SetCrosses
from server.trie import FlatTrie

Array = npt.NDArray[Any]


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
