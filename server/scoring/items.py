"""What a model knows of items: each one's own sums for every variant, and its halves as numbers. Made from tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from model_store.spec_sections import MAX_CROSS_FIELDS
from server.scoring.item_side.kernels import code_items, sum_items
from server.scoring.tokens import TokenTable

if TYPE_CHECKING:
    from server.model import Model

Array = npt.NDArray[Any]
_NAMES = ("own", "unsure", "codes", "run_start", "run_half", "run_x")


@dataclass(frozen=True, eq=False)
class ItemTable:
    """Items as the ranking kernels read them: codes int32[rows, groups], the runs, and two sums a variant and row.

    own float64[variants, rows] is Σ w·x over the keys that the item makes alone, unsure Σ rate·|x| over the same. With
    a `variant`, row 0 is that one's and there is no other.

    A code is a half, NO_HALF, or FIRST_RUN - r for run r: the pairs run_start[r] … run_start[r + 1] - 1 of
    run_half (int32) and run_x (float64), for items with several halves in a group, or with an x other than 1.
    """

    own: Array
    unsure: Array
    codes: Array
    run_start: Array
    run_half: Array
    run_x: Array

    @classmethod
    def of(cls, model: Model, tokens: TokenTable, variants: range) -> ItemTable:
        """Look every row up. O(tokens); `variants` are those whose sums will be needed."""
        return cls(*sums_of(model, tokens, variants), *codes_of(model, tokens))

    @classmethod
    def of_arrays(cls, arrays: dict[str, Array]) -> ItemTable:
        """The table whose arrays these are, by name."""
        return cls(*(arrays[name] for name in _NAMES))

    @property
    def by_name(self) -> dict[str, Array]:
        """The arrays as a part has them."""
        return {name: getattr(self, name) for name in _NAMES}

    @property
    def code_arrays(self) -> tuple[Array, ...]:
        """The group `items` of the scoring kernels without the sums."""
        return self.codes, self.run_start, self.run_half, self.run_x

    @cached_property
    def longest_run(self) -> int:
        """The most halves any row has in a group, at least 1."""
        return int(np.diff(self.run_start).max(initial=1))


def sums_of(model: Model, tokens: TokenTable, variants: range) -> tuple[Array, Array]:
    """own and unsure of an ItemTable."""
    own, unsure = (np.zeros((len(variants), len(tokens.values)), np.float64) for _ in range(2))
    choice = np.empty(MAX_CROSS_FIELDS, np.int64)
    sum_items(
        *model.base.trie.walked, *model.base.values.arrays, *model.fresh.trie.walked, *model.fresh.values.arrays,
        model.terms.item, *tokens.arrays, variants.start, choice, own, unsure,
    )  # fmt: skip
    return own, unsure


def codes_of(model: Model, tokens: TokenTable) -> tuple[Array, Array, Array, Array]:
    """Codes and runs. Runs are rare: the first pass counts them, a second one follows only if there are any."""
    codes = np.empty((len(tokens.values), len(model.terms.groups)), np.int32)
    base, fresh = model.base.halves, model.fresh.halves
    runs = pairs = 0
    while True:
        arrays = codes, np.zeros(runs + 1, np.int64), np.empty(pairs, np.int32), np.empty(pairs, np.float64)
        found = code_items(
            *base.trie.walked, *fresh.trie.walked, fresh.first, model.terms.groups,
            *tokens.arrays, np.empty(MAX_CROSS_FIELDS, np.int64), *arrays,
        )  # fmt: skip
        if found == (runs, pairs):
            return arrays
        runs, pairs = found
