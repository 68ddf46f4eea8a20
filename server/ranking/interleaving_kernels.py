"""Kernel that scores and interleaves several variants in one call: `scoring_kernels.rank`, and the draft."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from model_store.jit import bare_inline, bare_kernel
from server.ranking.scoring_kernels import best, score_candidates
from server.ranking.select.draft_kernels import drafted


@bare_inline
def _lane(
    weights: Any, variants: Any, half: Any, fresh_weights: Any, fresh_variants: Any, fresh_half: Any, fresh_at: Any,
    own: Any, inline_own: Any, variant: Any, sums: Any,
) -> Any:  # fmt: skip
    """A variant's lane, see `scoring_kernels`."""
    whose, plane = (variant if weights.shape[0] > 1 else 0), variant >> 3
    slots = (weights[whose], variants[plane], half)
    fresh_slots = (fresh_weights[whose], fresh_variants[plane], fresh_half, fresh_at)
    return slots, fresh_slots, own[variant], inline_own[variant], variant, sums


@bare_kernel
def rank_teams(
    nodes: Any, first_byte: Any, labels: Any, weights: Any, variants: Any, rates: Any, half: Any, half_at: Any,
    fresh_nodes: Any, fresh_first_byte: Any, fresh_labels: Any,
    fresh_weights: Any, fresh_variants: Any, fresh_rates: Any, fresh_half: Any, fresh_at: Any,
    request_terms: Any, mixed_terms: Any,
    own: Any, unsure: Any, codes: Any, run_start: Any, run_half: Any, run_x: Any, unknown: Any,
    inline_own: Any, inline_unsure: Any,
    inline_codes: Any, inline_run_start: Any, inline_run_half: Any, inline_run_x: Any, inline_unknown: Any,
    values: Any, value_start: Any, begin: Any, xs: Any, text: Any,
    rows: Any, which: Any, top: Any, by_turns: Any, seed: Any,
    marks: Any, wanted: Any, sums: Any, counts: Any, choice: Any,
    other_sums: Any, scores: Any, orders: Any, no_caps: Any, ints: Any, reals: Any, state: Any,
    order: Any, team: Any, found: Any,
) -> Any:  # fmt: skip
    """Score all candidates by each of the variants `which`, and draft `top` of them: `rank` and `draft` in one call.

    The first arguments are those of `sum_variants`, marks to choice those of `rank`. other_sums f64[halves], scores
    f64[teams, candidates] and orders int64[teams, n], with n = top for a team draft and the number of candidates for a
    probabilistic one, are scratch; no_caps is an empty int64. found f64[4, top]: ctr, without calibration, and score,
    by the team that placed the item; propensity; credit. Returns what `rank` returns, of which[0].
    """
    trie, fresh_trie = (nodes, first_byte, labels), (fresh_nodes, fresh_first_byte, fresh_labels)
    tokens = (values, value_start, begin, xs, text)
    catalogue = (codes, run_start, run_half, run_x)
    inline = (inline_codes, inline_run_start, inline_run_half, inline_run_x)
    of_user = np.int64(0)
    # Two at a time share the walks. The last of an odd number is scored twice: that takes no code of its own.
    for first in range(0, which.size, 2):
        second = min(first + 1, which.size - 1)
        lane = _lane(
            weights, variants, half, fresh_weights, fresh_variants, fresh_half, fresh_at, own, inline_own,
            which[first], sums,
        )  # fmt: skip
        other = _lane(
            weights, variants, half, fresh_weights, fresh_variants, fresh_half, fresh_at, own, inline_own,
            which[second], other_sums,
        )  # fmt: skip
        knows = score_candidates(
            trie, fresh_trie, (lane, other), True, request_terms, mixed_terms, tokens, catalogue, inline, rows,
            counts, choice, marks, wanted, (scores[first], scores[second]),
        )  # fmt: skip
        of_user = knows if first == 0 else of_user
    for each in range(which.size):
        best(scores[each], rows.size, orders[each], orders.shape[1])
    drafted(
        orders, rows.size, top, by_turns, seed, no_caps, no_caps, no_caps, no_caps, ints, reals, state,
        order, team, found[3], found[2],
    )  # fmt: skip
    for place in range(top):
        chosen = scores[team[place], order[place]]
        found[1, place], found[0, place] = chosen, 1.0 / (1.0 + math.exp(-chosen))
    return of_user
