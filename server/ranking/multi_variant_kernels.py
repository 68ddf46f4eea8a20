"""Kernel that scores several variants in one walk, with their uncertainties.

Lane i of k holds the score of variant which[i]; a last lane, if there is one more than variants, holds Σ rate·|x| over
the keys that which[0] uses. Each lane is added up in the order in which `scoring_kernels.rank` adds up one variant's
score, so that the bits are the same. Groups of arrays and columns of terms are those of that module, except by_slot,
which has all of a layer's values: weights f32[w, n], variants u8[planes, n], rates f32[w, n].

With the probit link, rates are variances and `priors` f64[variants] are those of keys that a variant does not have; it
is empty otherwise. Then lane k + i holds the variance of score i: Σ rate·x² over all keys that request and candidate
make for the variant. Keys of crosses of both that the model lacks are never walked: lane 2k + i sums x² of the
request's half over those found, made f64[k, groups] over those that exist, and the rest has the prior. Both are added
up in the same order, so that the rest is exactly 0 where all keys are found.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.jit import bare_inline, bare_kernel
from model_store.trie.trie_kernels import SLOT
from server.model.items_kernels import (
    BASE,
    FIRST_RUN,
    FRESH,
    GROUP,
    MASK,
    OF_USER,
    chosen_x,
    find_key,
    first_choice,
    next_choice,
    walk_choice,
)
from server.ranking.scoring_kernels import FIRST_INLINE, SCAN_PER_FIND, find_half, has_no_gap, mark_group


@bare_inline
def _counts(variants: Any, slot: Any, mask: Any, variant: Any) -> Any:
    """Whether the variant uses both the key and the term, whose variants are `mask`."""
    used = np.int64(variants[variant >> 3, slot]) >> (variant & 7)
    return used & (mask >> variant) & 1 != 0


@bare_inline
def _add_key(
    by_slot: Any, slot: Any, mask: Any, x: Any, which: Any, priors: Any, sums: Any, place: Any
) -> None:
    """Add one key to sums[lane, place]."""
    weights, variants, rates = by_slot
    shared, k = weights.shape[0] == 1, which.size
    for lane in range(k):
        variant = which[lane]
        if _counts(variants, slot, mask, variant):
            sums[lane, place] += weights[0 if shared else variant, slot] * x
            if priors.size > 0:
                sums[k + lane, place] += rates[0 if shared else variant, slot] * (x * x)
                sums[2 * k + lane, place] += x * x
    first = which[0]
    if priors.size == 0 and sums.shape[0] > k and _counts(variants, slot, mask, first):
        sums[k, place] += rates[0 if shared else first, slot] * abs(x)


@bare_inline
def _add_unseen(by_slot: Any, slot: Any, mask: Any, x: Any, which: Any, priors: Any, totals: Any) -> None:
    """Add the prior variance of a key for each variant that makes it and does not have it; slot -1: none has it."""
    for lane in range(which.size):
        variant = which[lane]
        if (mask >> variant) & 1 != 0 and (slot < 0 or not _counts(by_slot[1], slot, mask, variant)):
            totals[which.size + lane, 0] += priors[variant] * (x * x)


@bare_inline
def _is_used(mask: Any, which: Any) -> Any:
    """Whether any of the variants uses a term."""
    for lane in range(which.size):
        if (mask >> which[lane]) & 1 != 0:
            return True
    return False


@bare_inline
def _add_request(
    layers: Any, terms: Any, tokens: Any, which: Any, priors: Any, choice: Any, totals: Any
) -> Any:
    """Add the keys that the request makes alone, in the order of `terms`; 1 if which[0] has one of the user's."""
    of_user = np.int64(0)
    trie, by_slot, _, _, fresh_trie, fresh_by_slot, _, _ = layers
    values, value_start = tokens[0], tokens[1]
    for term in range(terms.shape[0]):
        mask = terms[term, MASK]
        going = _is_used(mask, which) and first_choice(terms, term, values, 0, value_start, choice)
        while going:
            slot, fresh_slot, x = find_key(trie, fresh_trie, terms, term, tokens, choice)
            if slot >= 0:
                _add_key(by_slot, slot, mask, x, which, priors, totals, 0)
                if _counts(by_slot[1], slot, mask, which[0]):
                    of_user |= terms[term, OF_USER]
            elif fresh_slot >= 0:
                _add_key(fresh_by_slot, fresh_slot, mask, x, which, priors, totals, 0)
                if _counts(fresh_by_slot[1], fresh_slot, mask, which[0]):
                    of_user |= terms[term, OF_USER]
            if priors.size > 0:
                x = chosen_x(terms, term, tokens[3], choice)
                if fresh_slot >= 0:
                    _add_unseen(fresh_by_slot, fresh_slot, mask, x, which, priors, totals)
                else:
                    _add_unseen(by_slot, slot, mask, x, which, priors, totals)
            going = next_choice(terms, term, values, 0, value_start, choice)
    return of_user


@bare_inline
def _add_range(
    by_slot: Any, half: Any, at: Any, begin: Any, stop: Any, mask: Any, x: Any, which: Any, priors: Any,
    first: Any, last: Any, marks: Any, wanted: Any, sums: Any,
) -> None:  # fmt: skip
    """Add the keys in [begin, stop) whose halves are wanted[first:last]; `at` is empty where entries are slots."""
    if at.size == 0 and has_no_gap(half, begin, stop):
        low = np.int64(half[begin])
        for place in range(first, last):
            slot = begin + np.int64(wanted[place]) - low
            if begin <= slot < stop:
                _add_key(by_slot, slot, mask, x, which, priors, sums, place)
        return
    if stop - begin <= SCAN_PER_FIND * (last - first):
        for entry in range(begin, stop):
            marked = np.int64(marks[half[entry]])
            if marked > 0:
                slot = np.int64(at[entry]) if at.size > 0 else entry
                _add_key(by_slot, slot, mask, x, which, priors, sums, marked - 1)
        return
    for place in range(first, last):
        entry = find_half(half, begin, stop, wanted[place])
        if entry < stop and half[entry] == wanted[place]:
            slot = np.int64(at[entry]) if at.size > 0 else entry
            _add_key(by_slot, slot, mask, x, which, priors, sums, place)


@bare_inline
def _add_layer(
    trie: Any, by_slot: Any, half: Any, at: Any, terms: Any, term: Any, layer: Any, tokens: Any, choice: Any,
    which: Any, priors: Any, first: Any, last: Any, marks: Any, wanted: Any, sums: Any,
) -> Any:  # fmt: skip
    """Walk the chosen request half of a cross in one layer, and add what lies under it.

    Returns 1 if there are keys under it, it is the user's, and which[0] uses the cross.
    """
    node, _, stop, x = walk_choice(trie, terms, term, layer, tokens, choice, True)
    if node < 0:
        return np.int64(0)
    begin, mask = np.int64(trie[0][node, SLOT]), terms[term, MASK]
    _add_range(by_slot, half, at, begin, stop, mask, x, which, priors, first, last, marks, wanted, sums)
    return terms[term, OF_USER] & (mask >> which[0])


@bare_inline
def _add_made(mask: Any, x: Any, which: Any, group: Any, made: Any) -> None:
    """Add x² of one request's half to its group, for each variant that makes keys of it."""
    for lane in range(which.size):
        if (mask >> which[lane]) & 1 != 0:
            made[lane, group] += x * x


@bare_inline
def _add_crosses(
    layers: Any, terms: Any, tokens: Any, which: Any, priors: Any, starts: Any, choice: Any,
    marks: Any, wanted: Any, sums: Any, made: Any, of_user: Any,
) -> Any:  # fmt: skip
    """Add the keys of every mixed cross to their halves' sums; returns what that of `scoring_kernels` does."""
    values, value_start = tokens[0], tokens[1]
    trie, by_slot, half, at, fresh_trie, fresh_by_slot, fresh_half, fresh_at = layers
    for term in range(terms.shape[0]):
        group = terms[term, GROUP]
        first, last = starts[group], starts[group + 1]
        if not _is_used(terms[term, MASK], which):
            continue
        if first == last and priors.size == 0 and terms[term, OF_USER] <= of_user:
            continue
        going = first_choice(terms, term, values, 0, value_start, choice)
        while going:
            if priors.size > 0:
                _add_made(terms[term, MASK], chosen_x(terms, term, tokens[3], choice), which, group, made)
            of_user |= _add_layer(
                trie, by_slot, half, at, terms, term, BASE, tokens, choice,
                which, priors, first, last, marks, wanted, sums,
            )  # fmt: skip
            of_user |= _add_layer(
                fresh_trie, fresh_by_slot, fresh_half, fresh_at, terms, term, FRESH, tokens, choice,
                which, priors, first, last, marks, wanted, sums,
            )  # fmt: skip
            going = next_choice(terms, term, values, 0, value_start, choice)
    return of_user


@bare_inline
def _add_item(own: Any, items: Any, row: Any, lane: Any, marks: Any, sums: Any, unsure: Any) -> Any:
    """One lane of an item: its own sum, then its halves' sums, group by group."""
    codes, run_start, run_half, run_x = items
    total = own
    for group in range(codes.shape[1]):
        code = np.int64(codes[row, group])
        if code >= 0:
            total += sums[lane, marks[code] - 1]
        elif code <= FIRST_RUN:
            run = FIRST_RUN - code
            for pair in range(run_start[run], run_start[run + 1]):
                found = sums[lane, marks[run_half[pair]] - 1]
                if found != 0.0:
                    total += found * (abs(run_x[pair]) if unsure else run_x[pair])
    return total


@bare_inline
def _part_variance(place: Any, lane: Any, k: Any, prior: Any, made: Any, sums: Any) -> Any:
    """The variance of the keys that end in one item part: those found, and the rest of those `made` from the prior."""
    return sums[k + lane, place] + prior * (made - sums[2 * k + lane, place])


@bare_inline
def _item_variance(
    own: Any, items: Any, unknown: Any, row: Any, lane: Any, which: Any, priors: Any, marks: Any, sums: Any, made: Any
) -> Any:  # fmt: skip
    """The variance that an item adds: of its own keys, then of its parts', group by group."""
    codes, run_start, run_half, run_x = items
    total, k, prior = own, which.size, priors[which[lane]]
    for group in range(codes.shape[1]):
        whole, code = made[lane, group], np.int64(codes[row, group])
        if code >= 0:
            total += _part_variance(marks[code] - 1, lane, k, prior, whole, sums)
        elif code <= FIRST_RUN:
            run = FIRST_RUN - code
            for pair in range(run_start[run], run_start[run + 1]):
                part = _part_variance(marks[run_half[pair]] - 1, lane, k, prior, whole, sums)
                total += part * (run_x[pair] * run_x[pair])
        total += prior * whole * unknown[row, group]
    return total


@bare_inline
def _add_items(
    own: Any, unsure: Any, items: Any, unknown: Any, row: Any, which: Any, priors: Any,
    marks: Any, sums: Any, totals: Any, made: Any, out: Any, to: Any,
) -> None:  # fmt: skip
    """Every lane of one candidate, the request's part added."""
    for lane in range(which.size):
        item = _add_item(own[which[lane], row], items, row, lane, marks, sums, False)
        out[lane, to] = totals[lane, 0] + item
    if priors.size > 0:
        for lane in range(which.size):
            item = _item_variance(
                unsure[which[lane], row], items, unknown, row, lane, which, priors, marks, sums, made
            )
            out[which.size + lane, to] = totals[which.size + lane, 0] + item
    elif out.shape[0] > which.size:
        lane = which.size
        item = _add_item(unsure[which[0], row], items, row, lane, marks, sums, True)
        out[lane, to] = totals[lane, 0] + item


@bare_kernel
def sum_variants(
    nodes: Any, first_byte: Any, labels: Any, weights: Any, variants: Any, rates: Any, half: Any, at: Any,
    fresh_nodes: Any, fresh_first_byte: Any, fresh_labels: Any,
    fresh_weights: Any, fresh_variants: Any, fresh_rates: Any, fresh_half: Any, fresh_at: Any,
    request_terms: Any, mixed_terms: Any,
    own: Any, unsure: Any, codes: Any, run_start: Any, run_half: Any, run_x: Any, unknown: Any,
    inline_own: Any, inline_unsure: Any,
    inline_codes: Any, inline_run_start: Any, inline_run_half: Any, inline_run_x: Any, inline_unknown: Any,
    priors: Any, values: Any, value_start: Any, begin: Any, xs: Any, text: Any,
    rows: Any, which: Any, marks: Any, wanted: Any, starts: Any, choice: Any,
    sums: Any, totals: Any, made: Any, out: Any,
) -> Any:  # fmt: skip
    """Write each lane's sum of each candidate to out, f64[lanes, candidates], in the order of the candidates.

    own and unsure f64[variants, rows]; unknown as `code_items` makes it; which int64[k], 0 < k, with k or k + 1 lanes,
    or with `priors` 2k. Scratch as `rank` has it, but sums f64[lanes, halves wanted] and totals f64[lanes, 1], with
    `priors` of 3k lanes. Returns what `rank` returns, of which[0].
    """
    base = (nodes, first_byte, labels), (weights, variants, rates), half, at
    fresh = (
        (fresh_nodes, fresh_first_byte, fresh_labels),
        (fresh_weights, fresh_variants, fresh_rates),
        fresh_half,
        fresh_at,
    )
    layers, tokens = base + fresh, (values, value_start, begin, xs, text)
    catalogue = (codes, run_start, run_half, run_x)
    inline = (inline_codes, inline_run_start, inline_run_half, inline_run_x)
    for lane in range(totals.shape[0]):
        totals[lane, 0] = 0.0
    made[:] = 0.0
    of_user = _add_request(layers, request_terms, tokens, which, priors, choice, totals)
    starts[0] = 0
    for group in range(codes.shape[1]):
        starts[group + 1] = mark_group(catalogue, inline, rows, group, marks, wanted, starts[group])
    for lane in range(sums.shape[0]):
        for place in range(starts[codes.shape[1]]):
            sums[lane, place] = 0.0
    of_user = _add_crosses(
        layers, mixed_terms, tokens, which, priors, starts, choice, marks, wanted, sums, made, of_user
    )
    for candidate in range(rows.size):
        row = np.int64(rows[candidate])
        if row >= 0:
            _add_items(
                own, unsure, catalogue, unknown, row, which, priors, marks, sums, totals, made, out, candidate
            )  # fmt: skip
        elif row <= FIRST_INLINE:
            row = FIRST_INLINE - row
            _add_items(
                inline_own, inline_unsure, inline, inline_unknown, row, which, priors, marks, sums, totals, made,
                out, candidate,
            )  # fmt: skip
        else:
            for lane in range(out.shape[0]):
                out[lane, candidate] = totals[lane, 0] + 0.0
    for place in range(starts[codes.shape[1]]):
        marks[wanted[place]] = 0
    return of_user
