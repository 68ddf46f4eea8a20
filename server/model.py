"""Model: one published version, ready to score: its trie, its weights by slot, and its plan's terms over both."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy.typing as npt

from model_store.artefact import Artefact
from model_store.features import FeaturePlan
from model_store.prefixes import PrefixRules
from model_store.spec import ModelSpec
from server.interning.halves import Halves
from server.scoring.terms import Terms
from server.trie import FlatTrie

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Model:
    """A version of a model. Immutable; shared by all threads.

    weight float32[n] and variants uint32[n] are indexed by the trie's slots; bit v of variants: variant v uses the key.
    """

    version: int
    spec: ModelSpec
    plan: FeaturePlan
    trie: FlatTrie
    weight: Array
    variants: Array
    halves: Halves
    terms: Terms
    rules: PrefixRules

    @classmethod
    def build(cls, artefact: Artefact, version: int) -> Model:
        """Build from a verified artefact, sharing its arrays. O(key bytes). Raises ArtefactError for unsorted keys."""
        plan = FeaturePlan.of(artefact.spec)
        trie = FlatTrie.build(artefact.key_data, artefact.key_offsets)
        halves = Halves.of(plan, trie)
        return cls(
            version=version,
            spec=artefact.spec,
            plan=plan,
            trie=trie,
            weight=artefact.weight,
            variants=artefact.variants,
            halves=halves,
            terms=Terms.of(plan, trie, halves),
            rules=PrefixRules.of(plan),
        )

    @cached_property
    def trie_arrays(self) -> tuple[Array, ...]:
        """The group `trie` of the scoring kernels."""
        return self.trie.nodes, self.trie.first_byte, self.trie.key_data

    @cached_property
    def slots(self) -> tuple[Array, ...]:
        """The group `slots` of the scoring kernels."""
        return self.weight, self.variants, self.halves.half

    @cached_property
    def item_id_fields(self) -> tuple[str, ...]:
        """Item fields that stand for the item itself: an item without a value there has its own id as value."""
        column = self.spec.input.item
        return tuple(
            f.name for f in self.plan.item_fields if column is not None and column in (f.name, f.column)
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays. O(1)."""
        return self.trie.nbytes + self.halves.trie.nbytes + sum(array.nbytes for array in self.slots)
