"""Model: one published version, ready to score: its trie, its weights by slot, and its plan's terms over both."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.artefact import Artefact
from model_store.calibration import Calibration
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

    weights float32[1, n], or [variants, n] where each variant has its own, and variants uint32[n] are indexed by the
    trie's slots; bit v of variants: variant v uses the key.
    """

    version: int
    spec: ModelSpec
    plan: FeaturePlan
    trie: FlatTrie
    weights: Array
    variants: Array
    halves: Halves
    terms: Terms
    rules: PrefixRules
    calibration: Calibration | None

    @classmethod
    def build(cls, artefact: Artefact, version: int) -> Model:
        """Build from a verified artefact. O(key bytes + weights). Raises ArtefactError for unsorted keys.

        Shares the artefact's arrays, but turns a column of weights a variant into a row, so that a request's reads,
        which are of one variant, lie together.
        """
        plan = FeaturePlan.of(artefact.spec)
        trie = FlatTrie.build(artefact.key_data, artefact.key_offsets)
        halves = Halves.of(plan, trie)
        return cls(
            version=version,
            spec=artefact.spec,
            plan=plan,
            trie=trie,
            weights=np.ascontiguousarray(np.atleast_2d(artefact.weight.T)),
            variants=artefact.variants,
            halves=halves,
            terms=Terms.of(plan, trie, halves),
            rules=PrefixRules.of(plan),
            calibration=artefact.calibration,
        )

    @cached_property
    def trie_arrays(self) -> tuple[Array, ...]:
        """The group `trie` of the scoring kernels."""
        return self.trie.nodes, self.trie.first_byte, self.trie.key_data

    def slots(self, variant: int) -> tuple[Array, ...]:
        """The group `slots` of the scoring kernels, for one variant. O(1). Raises IndexError if there is none such."""
        own = len(self.weights) > 1
        return self.weights[variant if own else 0], self.variants, self.halves.half

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
        by_slot = self.weights.nbytes + self.variants.nbytes + self.halves.half.nbytes
        return self.trie.nbytes + self.halves.trie.nbytes + by_slot
