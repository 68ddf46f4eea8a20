"""What a model knows of items: each one's own sum for every variant, and its halves as numbers. Made from tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from model_store.spec_sections import MAX_CROSS_FIELDS
from server.scoring.kernels import code_items, sum_items
from server.scoring.tokens import TokenTable

if TYPE_CHECKING:
    from server.model import Model

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class ItemTable:
    """Items as the ranking kernel reads them: own f64[rows] a variant, codes int32[rows, groups], and the runs.

    A code is a half, NO_HALF, or FIRST_RUN - r for run r: the pairs run_start[r] … run_start[r + 1] - 1 of
    run_half (int32) and run_x (float64), for items with several halves in a group, or with an x other than 1.
    """

    own: tuple[Array | None, ...]  # by variant; None where it was not asked for
    codes: Array
    run_start: Array
    run_half: Array
    run_x: Array

    @classmethod
    def of(cls, model: Model, tokens: TokenTable, variants: range) -> ItemTable:
        """Look every row up. O(tokens); `variants` are those whose sums will be needed."""
        own = _own(model, tokens, variants)
        by_variant = [
            own[v - variants.start] if v in variants else None for v in range(len(model.plan.variants))
        ]
        return cls(tuple(by_variant), *_codes(model, tokens))

    def arrays(self, variant: int) -> tuple[Array | None, ...]:
        """The group `items` of the scoring kernels."""
        return self.own[variant], self.codes, self.run_start, self.run_half, self.run_x

    @cached_property
    def longest_run(self) -> int:
        """The most halves any row has in a group, at least 1."""
        return int(np.diff(self.run_start).max(initial=1))


def _own(model: Model, tokens: TokenTable, variants: range) -> Array:
    own, choice = (
        np.zeros((len(variants), len(tokens.values)), np.float64),
        np.empty(MAX_CROSS_FIELDS, np.int64),
    )
    by_slot = model.weights, model.variants
    sum_items(*model.trie_arrays, *by_slot, model.terms.item, *tokens.arrays, variants.start, choice, own)
    return own


def _codes(model: Model, tokens: TokenTable) -> tuple[Array, Array, Array, Array]:
    """Codes and runs. Runs are rare: the first pass counts them, a second one follows only if there are any."""
    codes = np.empty((len(tokens.values), len(model.terms.groups)), np.int32)
    runs = pairs = 0
    while True:
        arrays = codes, np.zeros(runs + 1, np.int64), np.empty(pairs, np.int32), np.empty(pairs, np.float64)
        trie, choice = model.halves.trie, np.empty(MAX_CROSS_FIELDS, np.int64)
        found = code_items(
            trie.nodes, trie.first_byte, trie.key_data, model.terms.groups, *tokens.arrays, choice, *arrays
        )
        if found == (runs, pairs):
            return arrays
        runs, pairs = found
