"""Scoring kernels: sum what the model knows of a request and its candidates, and pick the best.

Arrays travel in groups, each a tuple:

    trie     nodes, first_byte, labels                                         see `model_store/trie/trie_kernels.py`
    slots    weight f32[n] of one variant, its plane of variants u8[n], half i32[n]   see `server/model/values.py`
    tokens   values i32[rows, fields], value_start, begin, x, text              see `server/model/items.py`
    items    own f64[rows], codes i32[rows, groups], run_start, run_half, run_x see `server/model/items.py`

A model has two layers (docs/layers.md): `trie` and `slots` are the base; fresh_trie and fresh_slots (with `at` i32[n]
as a fourth) hold the keys that were added since. A key is in one of them, and both are looked up term by term, so that
sums are added up in the same order, to the same bits, however the keys are divided.

`terms` is int64[terms, TERM_COLUMNS], a row a term; `server/model/terms_kernels.py` names its columns and makes keys
of it.
No kernel allocates or checks: callers pass arrays that fit, and scratch space that is large enough.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from model_store.hash_kernels import prefetch
from model_store.jit import bare_inline, bare_kernel
from model_store.trie.trie_kernels import SLOT
from server.model.ids_kernels import UNKNOWN
from server.model.terms_kernels import (
    BASE,
    FIRST_RUN,
    FRESH,
    GROUP,
    MASK,
    OF_USER,
    find_key,
    first_choice,
    next_choice,
    walk_choice,
)

NO_ITEM = UNKNOWN  # in rows: nothing is known of this candidate
FIRST_INLINE = NO_ITEM - 1  # in rows: FIRST_INLINE - r stands for row r of the inline items

# Reading a slot of a range takes about 2.5 ns, finding one half in it 45 ns (benchmarks/ranker.py, forced either way).
SCAN_PER_FIND = 16


@bare_inline
def _counts(slots: Any, slot: Any, variant: Any) -> Any:
    return (np.int64(slots[1][slot]) >> (variant & 7)) & 1 != 0


@bare_inline
def _own_sum(
    trie: Any,
    slots: Any,
    fresh_trie: Any,
    fresh_slots: Any,
    terms: Any,
    tokens: Any,
    variant: Any,
    choice: Any,
) -> Any:
    """Σ w·x over the keys that the request makes alone, in the order of `terms`; 1 if one of them is the user's."""
    total, of_user = 0.0, np.int64(0)
    values, value_start = tokens[0], tokens[1]
    for term in range(terms.shape[0]):
        if (terms[term, MASK] >> variant) & 1 == 0:
            continue
        going = first_choice(terms, term, values, 0, value_start, choice)
        while going:
            slot, fresh_slot, x = find_key(trie, fresh_trie, terms, term, tokens, choice)
            if slot >= 0:
                if _counts(slots, slot, variant):
                    total += slots[0][slot] * x
                    of_user |= terms[term, OF_USER]
            elif fresh_slot >= 0 and _counts(fresh_slots, fresh_slot, variant):
                total += fresh_slots[0][fresh_slot] * x
                of_user |= terms[term, OF_USER]
            going = next_choice(terms, term, values, 0, value_start, choice)
    return total, of_user


@bare_inline
def _mark(half: Any, scratch: Any, count: Any) -> Any:
    """Give `half` a place among the halves wanted, once; return how many there are.

    Without a branch, since which halves come twice cannot be predicted; what is written at `count` may be written over.
    """
    marks, wanted, sums = scratch
    mark = np.int64(marks[half])
    is_new = np.int64(mark == 0)
    wanted[count] = half
    sums[count] = 0.0
    marks[half] = mark + (count + 1) * is_new
    return count + is_new


@bare_inline
def _mark_row(items: Any, row: Any, group: Any, scratch: Any, count: Any) -> Any:
    """Mark the halves of this group that an item has."""
    _, codes, run_start, run_half, _ = items
    code = np.int64(codes[row, group])
    if code >= 0:
        return _mark(code, scratch, count)
    if code <= FIRST_RUN:
        run = FIRST_RUN - code
        for pair in range(run_start[run], run_start[run + 1]):
            count = _mark(np.int64(run_half[pair]), scratch, count)
    return count


@bare_inline
def mark_group(catalogue: Any, inline: Any, rows: Any, group: Any, scratch: Any, count: Any) -> Any:
    """Mark the halves of this group that any candidate has."""
    for candidate in range(rows.size):
        row = np.int64(rows[candidate])
        if row >= 0:
            count = _mark_row(catalogue, row, group, scratch, count)
        elif row <= FIRST_INLINE:
            count = _mark_row(inline, FIRST_INLINE - row, group, scratch, count)
    return count


@bare_inline
def _add_range(
    slots: Any, begin: Any, stop: Any, x: Any, variant: Any, first: Any, last: Any, scratch: Any
) -> None:
    """Add w·x to the sum of each half wanted[first:last] whose key lies in the slots [begin, stop).

    The slots below one request half are sorted by item half. So a range without gaps is indexed, a long one is
    searched, and a short one is read.
    """
    weight, _, half = slots
    marks, wanted, sums = scratch
    if has_no_gap(half, begin, stop):
        low = np.int64(half[begin])
        for place in range(first, last):
            slot = begin + np.int64(wanted[place]) - low
            if begin <= slot < stop and _counts(slots, slot, variant):
                sums[place] += weight[slot] * x
        return
    if stop - begin <= SCAN_PER_FIND * (last - first):
        for slot in range(begin, stop):
            marked = np.int64(marks[half[slot]])
            if marked > 0 and _counts(slots, slot, variant):
                sums[marked - 1] += weight[slot] * x
        return
    for place in range(first, last):
        slot = find_half(half, begin, stop, wanted[place])
        if slot < stop and half[slot] == wanted[place] and _counts(slots, slot, variant):
            sums[place] += weight[slot] * x


@bare_inline
def has_no_gap(half: Any, begin: Any, stop: Any) -> Any:
    """Whether the halves of [begin, stop), which rise, follow one another: every half between its ends has a key."""
    return begin < stop and np.int64(half[stop - 1]) - np.int64(half[begin]) == stop - 1 - begin


@bare_inline
def find_half(half: Any, begin: Any, stop: Any, wanted: Any) -> Any:
    """The first slot in [begin, stop) whose half is not below `wanted`."""
    length = stop - begin
    while length > 1:
        step = length // 2
        begin += step if half[begin + step - 1] < wanted else 0
        length -= step
    return begin + (1 if half[begin] < wanted else 0)


@bare_inline
def _add_fresh_range(
    slots: Any, begin: Any, stop: Any, x: Any, variant: Any, first: Any, last: Any, scratch: Any
) -> None:
    """`_add_range` for a fresh layer, whose entries are sorted by half and tell where each one's slot is."""
    weight, _, half, at = slots
    marks, wanted, sums = scratch
    if stop - begin <= SCAN_PER_FIND * (last - first):
        for entry in range(begin, stop):
            marked = np.int64(marks[half[entry]])
            if marked > 0 and _counts(slots, at[entry], variant):
                sums[marked - 1] += weight[at[entry]] * x
        return
    for place in range(first, last):
        entry = find_half(half, begin, stop, wanted[place])
        if entry < stop and half[entry] == wanted[place] and _counts(slots, at[entry], variant):
            sums[place] += weight[at[entry]] * x


@bare_inline
def _add_crosses(
    trie: Any, slots: Any, fresh_trie: Any, fresh_slots: Any, terms: Any, tokens: Any, variant: Any,
    starts: Any, choice: Any, scratch: Any, of_user: Any,
) -> Any:  # fmt: skip
    """For every mixed cross: walk the request's half once, then add what lies under it; nothing there, nothing done.

    Returns 1 if `of_user` is, or if there are keys under a half with a field of the user.
    """
    values, value_start = tokens[0], tokens[1]
    for term in range(terms.shape[0]):
        group = terms[term, GROUP]
        first, last = starts[group], starts[group + 1]
        if (terms[term, MASK] >> variant) & 1 == 0:
            continue
        if first == last and terms[term, OF_USER] <= of_user:  # no candidate's half, and nothing to find out
            continue
        going = first_choice(terms, term, values, 0, value_start, choice)
        while going:
            node, _, stop, x = walk_choice(trie, terms, term, BASE, tokens, choice, True)
            if node >= 0:
                begin = np.int64(trie[0][node, SLOT])
                _add_range(slots, begin, stop, x, variant, first, last, scratch)
                of_user |= terms[term, OF_USER]
            if terms[term, FRESH] >= 0:
                node, _, stop, x = walk_choice(fresh_trie, terms, term, FRESH, tokens, choice, True)
                if node >= 0:
                    begin = np.int64(fresh_trie[0][node, SLOT])
                    _add_fresh_range(fresh_slots, begin, stop, x, variant, first, last, scratch)
                    of_user |= terms[term, OF_USER]
            going = next_choice(terms, term, values, 0, value_start, choice)
    return of_user


@bare_inline
def prefetch_items(rows: Any, own: Any, codes: Any) -> None:
    """Prefetch the candidates' rows, which are scattered, while the request is being summed."""
    for candidate in range(rows.size):
        row = max(0, np.int64(rows[candidate]))
        prefetch(own.ctypes.data + row * own.itemsize)
        prefetch(codes.ctypes.data + row * codes.shape[1] * codes.itemsize)


@bare_inline
def _item_score(items: Any, row: Any, marks: Any, sums: Any) -> Any:
    """The item's own sum, then its halves' sums, group by group."""
    own, codes, run_start, run_half, run_x = items
    total = own[row]
    for group in range(codes.shape[1]):
        code = np.int64(codes[row, group])
        if code >= 0:
            total += sums[marks[code] - 1]
        elif code <= FIRST_RUN:
            run = FIRST_RUN - code
            for pair in range(run_start[run], run_start[run + 1]):
                found = sums[marks[run_half[pair]] - 1]
                if found != 0.0:  # else an infinite x would make it a NaN
                    total += found * run_x[pair]
    return total


@bare_kernel
def rank(
    nodes: Any, first_byte: Any, labels: Any, weight: Any, variants: Any, half: Any,
    fresh_nodes: Any, fresh_first_byte: Any, fresh_labels: Any,
    fresh_weight: Any, fresh_variants: Any, fresh_half: Any, fresh_at: Any,
    request_terms: Any, mixed_terms: Any,
    own: Any, codes: Any, run_start: Any, run_half: Any, run_x: Any,
    inline_own: Any, inline_codes: Any, inline_run_start: Any, inline_run_half: Any, inline_run_x: Any,
    values: Any, value_start: Any, begin: Any, xs: Any, text: Any,
    rows: Any, variant: Any, top: Any,
    marks: Any, wanted: Any, sums: Any, starts: Any, choice: Any,
    scores: Any, order: Any, ctr: Any, score: Any,
) -> Any:  # fmt: skip
    """Score all candidates and write the `top` best of them, best first, to order, ctr and score.

    rows int32[candidates]: a catalogue row, NO_ITEM, or FIRST_INLINE - r; top ≤ candidates. order, ctr and score hold
    `top`. Scratch: marks int32[halves] is all 0 before and after; wanted int32[], sums f64[] hold one more than the
    halves that the candidates may have; starts int64[groups + 1]; choice int64[4]; scores hold a number a candidate.
    Equal scores keep the order of the candidates.

    Returns 1 if the variant has a key of the user's fields, alone or with others of the request, or the model has one
    that crosses them with any item; else 0.
    """
    trie, fresh_trie = (nodes, first_byte, labels), (fresh_nodes, fresh_first_byte, fresh_labels)
    slots, fresh_slots = (weight, variants, half), (fresh_weight, fresh_variants, fresh_half, fresh_at)
    tokens = (values, value_start, begin, xs, text)
    catalogue = (own, codes, run_start, run_half, run_x)
    inline = (inline_own, inline_codes, inline_run_start, inline_run_half, inline_run_x)
    scratch = (marks, wanted, sums)
    prefetch_items(rows, own, codes)
    layers = (trie, slots, fresh_trie, fresh_slots)
    request_sum, of_user = _own_sum(*layers, request_terms, tokens, variant, choice)
    starts[0] = 0
    for group in range(codes.shape[1]):
        starts[group + 1] = mark_group(catalogue, inline, rows, group, scratch, starts[group])
    of_user = _add_crosses(*layers, mixed_terms, tokens, variant, starts, choice, scratch, of_user)
    for candidate in range(rows.size):
        row = np.int64(rows[candidate])
        item = 0.0
        if row >= 0:
            item = _item_score(catalogue, row, marks, sums)
        elif row <= FIRST_INLINE:
            item = _item_score(inline, FIRST_INLINE - row, marks, sums)
        scores[candidate] = request_sum + item
    for place in range(starts[codes.shape[1]]):
        marks[wanted[place]] = 0
    best(scores, rows.size, order, top)
    for place in range(top):
        chosen = scores[order[place]]
        score[place], ctr[place] = chosen, 1.0 / (1.0 + math.exp(-chosen))
    return of_user


# -- the best: a heap of candidates, the worst on top. Equal scores keep the order of the candidates.


@bare_inline
def _worse(scores: Any, a: Any, b: Any) -> Any:
    return scores[a] < scores[b] or (scores[a] == scores[b] and a > b)


@bare_inline
def _sift(scores: Any, heap: Any, size: Any, at: Any) -> None:
    """Restore the heap, the worst on top, where only `at` may be out of place."""
    moving = heap[at]
    child = 2 * at + 1
    while child < size:
        if child + 1 < size and _worse(scores, heap[child + 1], heap[child]):
            child += 1
        if not _worse(scores, heap[child], moving):
            break
        heap[at], at = heap[child], child
        child = 2 * at + 1
    heap[at] = moving


@bare_inline
def best(scores: Any, count: Any, order: Any, size: Any) -> None:
    """Write the `size` best of `count` candidates to `order`, best first. O(count · log size)."""
    for candidate in range(size):
        order[candidate] = candidate
    for at in range(size // 2 - 1, -1, -1):
        _sift(scores, order, size, at)
    for candidate in range(size, count):
        if size > 0 and _worse(scores, order[0], candidate):
            order[0] = candidate
            _sift(scores, order, size, 0)
    for last in range(size - 1, 0, -1):
        order[0], order[last] = order[last], order[0]
        _sift(scores, order, last, 0)
