"""Scores of several variants for one request, and the uncertainty of the first, from one walk over the keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from server.model.items import ItemTable
from server.model.layers import Layer
from server.model.model import Model
from server.ranking.multi_variant_kernels import sum_lanes

Array = npt.NDArray[Any]


class LaneScorer:
    """A model and what it knows of items, bound for `sum_lanes`. Immutable; any number of threads may use it."""

    def __init__(self, model: Model, items: ItemTable, nothing: ItemTable) -> None:
        """`nothing`: a table without rows, for requests that spell no item out."""
        terms = model.terms.request, model.terms.mixed
        known = items.own, items.unsure, *items.code_arrays
        self._head = (*_arrays(model.base), *_arrays(model.fresh), *terms, *known)
        self._nothing = nothing

    def sums(
        self,
        tokens: tuple[Array, ...],
        rows: Array,
        spelled: ItemTable | None,
        variants: Sequence[int],
        uncertainty: bool,
        scratch: tuple[Array, ...],
    ) -> Array:
        """float64[lanes, candidates] in the order of `rows`: the scores of each of `variants`, bit for bit `rank`'s.

        With `uncertainty`, a last lane has Σ rate·|x| over the keys that the first variant uses. `spelled` has sums of
        every variant of the model; tokens, rows and scratch are as `rank` takes them.
        """
        others = self._nothing if spelled is None else spelled
        lanes = len(variants) + uncertainty
        marks, wanted, _, starts, choice = scratch[:5]
        sums, totals = np.empty((lanes, len(wanted)), np.float64), np.empty((lanes, 1), np.float64)
        out = np.empty((lanes, len(rows)), np.float64)
        which = np.array(variants, np.int64)
        sum_lanes(
            *self._head, others.own, others.unsure, *others.code_arrays, *tokens,
            rows, which, marks, wanted, starts, choice, sums, totals, out,
        )  # fmt: skip
        return out


def _arrays(layer: Layer) -> tuple[Array, ...]:
    return *layer.trie.walked, *layer.values.arrays, layer.item_parts.half, layer.item_parts.at
