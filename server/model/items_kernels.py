"""Kernels over items: each one's own sums for every variant, and the numbers of its item parts.

`server/model/items.py` describes the arrays, `server/ranking/scoring_kernels.py` their groups, and
`server/model/terms_kernels.py` the columns of terms.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.jit import bare_inline, bare_kernel
from server.model.ids_kernels import NO_HALF
from server.model.terms_kernels import FIRST_RUN, MASK, chosen_x, find_key, first_choice, next_choice


@bare_kernel
def sum_items(
    nodes: Any, first_byte: Any, labels: Any, weights: Any, variants: Any, rates: Any,
    fresh_nodes: Any, fresh_first_byte: Any, fresh_labels: Any,
    fresh_weights: Any, fresh_variants: Any, fresh_rates: Any, terms: Any,
    values: Any, value_start: Any, begin: Any, xs: Any, text: Any,
    first: Any, priors: Any, choice: Any, own: Any, unsure: Any,
) -> None:  # fmt: skip
    """Add Σ w·x and Σ rate·|x| over the keys that each row's item makes alone to own and unsure, f64[v, rows].

    For the variants first + v. weights and rates f32[variants, n] have a row for each variant of the model, or one row
    that they share. own and unsure are all 0. Each key is walked once for all variants.

    priors f64[variants] is empty unless rates are variances. Then unsure has Σ rate·x² instead, where a key that the
    variant makes but does not have counts with its prior variance.
    """
    trie, fresh_trie = (nodes, first_byte, labels), (fresh_nodes, fresh_first_byte, fresh_labels)
    by_slot, fresh_by_slot = (weights, variants, rates), (fresh_weights, fresh_variants, fresh_rates)
    tokens = (values, value_start, begin, xs, text)
    for row in range(own.shape[1]):
        for term in range(terms.shape[0]):
            going = first_choice(terms, term, values, row, value_start, choice)
            while going:
                slot, fresh_slot, x = find_key(trie, fresh_trie, terms, term, tokens, choice)
                if slot >= 0:
                    _add_own(by_slot, slot, terms[term, MASK], x, first, row, priors, own, unsure)
                elif fresh_slot >= 0:
                    _add_own(fresh_by_slot, fresh_slot, terms[term, MASK], x, first, row, priors, own, unsure)
                elif priors.size > 0:
                    _add_unseen(
                        terms[term, MASK], chosen_x(terms, term, xs, choice), first, row, priors, unsure
                    )
                going = next_choice(terms, term, values, row, value_start, choice)


@bare_inline
def _add_own(
    by_slot: Any, slot: Any, mask: Any, x: Any, first: Any, row: Any, priors: Any, own: Any, unsure: Any
) -> None:
    weights, variants, rates = by_slot
    shared = weights.shape[0] == 1
    for v in range(own.shape[0]):
        variant = first + v
        used = np.int64(variants[variant >> 3, slot]) >> (variant & 7)
        if used & (mask >> variant) & 1 != 0:
            whose = 0 if shared else variant
            own[v, row] += weights[whose, slot] * x
            unsure[v, row] += rates[whose, slot] * (abs(x) if priors.size == 0 else x * x)
        elif priors.size > 0 and (mask >> variant) & 1 != 0:
            unsure[v, row] += priors[variant] * (x * x)


@bare_inline
def _add_unseen(mask: Any, x: Any, first: Any, row: Any, priors: Any, unsure: Any) -> None:
    for v in range(unsure.shape[0]):
        if (mask >> (first + v)) & 1 != 0:
            unsure[v, row] += priors[first + v] * (x * x)


@bare_kernel
def code_items(
    nodes: Any, first_byte: Any, labels: Any, fresh_nodes: Any, fresh_first_byte: Any, fresh_labels: Any,
    first_fresh: Any, terms: Any,
    values: Any, value_start: Any, begin: Any, xs: Any, text: Any,
    choice: Any, codes: Any, run_start: Any, run_half: Any, run_x: Any, unknown: Any,
) -> Any:  # fmt: skip
    """Find each item's part in each group: codes[row, group] is a number, NO_HALF, or a run of (number, x) pairs.

    The tries are those of the item parts, and `terms` has a row for each group; the fresh layer's are numbered from
    `first_fresh`. An item has a run if it has several parts in the group, or one with x other than 1. Returns the
    numbers of runs and pairs; those that do not fit the arrays are only counted.

    unknown f64[rows, groups], all 0, gets Σ x² over the parts that the model does not have; it may have no rows.
    """
    trie, fresh_trie = (nodes, first_byte, labels), (fresh_nodes, fresh_first_byte, fresh_labels)
    tokens = (values, value_start, begin, xs, text)
    runs, pairs = 0, 0
    for row in range(codes.shape[0]):
        for group in range(terms.shape[0]):
            found, only, only_x = 0, NO_HALF, 1.0
            going = first_choice(terms, group, values, row, value_start, choice)
            while going:
                half, fresh_half, x = find_key(trie, fresh_trie, terms, group, tokens, choice)
                if fresh_half >= 0:
                    half = first_fresh + fresh_half
                if half < 0 and unknown.shape[0] > 0:
                    part_x = chosen_x(terms, group, xs, choice)
                    unknown[row, group] += part_x * part_x
                if half >= 0:
                    if pairs + found < run_half.size:
                        run_half[pairs + found], run_x[pairs + found] = half, x
                    found, only, only_x = found + 1, half, x
                going = next_choice(terms, group, values, row, value_start, choice)
            if found <= 1 and only_x == 1.0:
                codes[row, group] = only
            else:
                codes[row, group] = FIRST_RUN - runs
                pairs += found
                runs += 1
                if runs < run_start.size:
                    run_start[runs] = pairs
    return runs, pairs
