"""Scoring kernels: sum what the model knows of a request and its candidates, and pick the best.

Arrays travel in groups, each a tuple:

    trie     nodes, first_byte, labels                                         see `model_store/trie/trie_kernels.py`
    slots    weight f32[n] of one variant, its plane of variants u8[n], half i32[n]   see `server/model/values.py`
    tokens   values i32[rows, fields], value_start, begin, x, text              see `server/model/items.py`
    items    codes i32[rows, groups], run_start, run_half, run_x                see `server/model/items.py`
    lane     slots, fresh slots, own f64[rows] of the items, own of inline items, variant, sums f64[halves]

A model has two layers (docs/formats/served_model.md): `trie` and `slots` are the base; fresh_trie and fresh_slots (with
`at` i32[n] as a fourth) hold the keys that were added since. A key is in one of them, and both are looked up term by
term, so that sums are added up in the same order, to the same bits, however the keys are divided.

A variant's scores are a lane. Two lanes that are scored together share the walks down the trie, and each range of keys
is added up lane by lane, where its loop has no branch. Alone, a lane is given twice and `both` is False, a constant:
the compiler leaves the second out. (A loop over a tuple of lanes takes as long as scoring them one after the other.)

`terms` is int64[terms, TERM_COLUMNS], a row a term; `server/model/items_kernels.py` names its columns and makes keys
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
from server.model.byte_kernels import UNKNOWN
from server.model.items_kernels import (
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
_OWN, _INLINE_OWN, _VARIANT, _SUMS = 2, 3, 4, 5  # places in a lane
FIRST_INLINE = NO_ITEM - 1  # in rows: FIRST_INLINE - r stands for row r of the inline items

# A range with at most so many keys for each half wanted is read whole; in a longer one each half is searched. Reading a
# slot takes 2 ns, or a fifth of that where no half is left out, and finding a half 105 ns (200 of 1,600).
SCAN_PER_FIND = 16


@bare_inline
def _counts(slots: Any, slot: Any, variant: Any) -> Any:
    return (np.int64(slots[1][slot]) >> (variant & 7)) & 1 != 0


@bare_inline
def _own_sum(trie: Any, lane: Any, fresh_trie: Any, terms: Any, tokens: Any, choice: Any) -> Any:
    """Σ w·x over the keys that the request makes alone, in the order of `terms`; 1 if one of them is the user's."""
    slots, fresh_slots, _, _, variant, _ = lane
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
def _mark(half: Any, marks: Any, wanted: Any, count: Any) -> Any:
    """Give `half` a place among the halves wanted, once; return how many there are.

    Without a branch, since which halves come twice cannot be predicted; what is written at `count` may be written over.
    """
    mark = np.int64(marks[half])
    is_new = np.int64(mark == 0)
    wanted[count] = half
    marks[half] = mark + (count + 1) * is_new
    return count + is_new


@bare_inline
def _mark_row(items: Any, row: Any, group: Any, marks: Any, wanted: Any, count: Any) -> Any:
    """Mark the halves of this group that an item has."""
    codes, run_start, run_half, _ = items
    code = np.int64(codes[row, group])
    if code >= 0:
        return _mark(code, marks, wanted, count)
    if code <= FIRST_RUN:
        run = FIRST_RUN - code
        for pair in range(run_start[run], run_start[run + 1]):
            count = _mark(np.int64(run_half[pair]), marks, wanted, count)
    return count


@bare_inline
def mark_group(
    catalogue: Any, inline: Any, rows: Any, group: Any, marks: Any, wanted: Any, count: Any
) -> Any:
    """Mark the halves of this group that any candidate has."""
    for candidate in range(rows.size):
        row = np.int64(rows[candidate])
        if row >= 0:
            count = _mark_row(catalogue, row, group, marks, wanted, count)
        elif row <= FIRST_INLINE:
            count = _mark_row(inline, FIRST_INLINE - row, group, marks, wanted, count)
    return count


@bare_inline
def _distinct(catalogue: Any, inline: Any, rows: Any, group: Any, marks: Any, wanted: Any) -> Any:
    """Write the halves of this group that any candidate has to `wanted`, each once; return how many there are."""
    count = mark_group(catalogue, inline, rows, group, marks, wanted, 0)
    for place in range(count):
        marks[wanted[place]] = 0
    return count


@bare_inline
def _clear_row(items: Any, row: Any, group: Any, lanes: Any, both: Any) -> Any:
    codes, run_start, run_half, _ = items
    code = np.int64(codes[row, group])
    if code >= 0:
        lanes[0][_SUMS][code] = 0.0
        if both:
            lanes[1][_SUMS][code] = 0.0
        return 1
    if code > FIRST_RUN:
        return 0
    run = FIRST_RUN - code
    for pair in range(run_start[run], run_start[run + 1]):
        lanes[0][_SUMS][run_half[pair]] = 0.0
        if both:
            lanes[1][_SUMS][run_half[pair]] = 0.0
    return run_start[run + 1] - run_start[run]


@bare_inline
def _clear_group(catalogue: Any, inline: Any, rows: Any, group: Any, lanes: Any, both: Any) -> Any:
    """Set the sums of this group's halves that any candidate has to 0; return how many the candidates have."""
    count = 0
    for candidate in range(rows.size):
        row = np.int64(rows[candidate])
        if row >= 0:
            count += _clear_row(catalogue, row, group, lanes, both)
        elif row <= FIRST_INLINE:
            count += _clear_row(inline, FIRST_INLINE - row, group, lanes, both)
    return count


@bare_inline
def _addend(slots: Any, slot: Any, x: Any, variant: Any) -> Any:
    """w·x, or 0 if the variant does not use the key. A sum begins with 0, so that adding 0 keeps its bits."""
    return slots[0][slot] * x if _counts(slots, slot, variant) else 0.0


@bare_inline
def _add_all(slots: Any, begin: Any, stop: Any, x: Any, variant: Any, sums: Any) -> None:
    """Add w·x of every slot in [begin, stop) to its half's sum, wanted or not: without a branch that is fastest."""
    weight, used, half = slots
    if has_no_gap(half, begin, stop):
        low = np.int64(half[begin])
        into, of_range = sums[low : low + stop - begin], (weight[begin:stop], used[begin:stop])
        for place in range(into.size):
            into[place] += _addend(of_range, place, x, variant)
    else:
        for slot in range(begin, stop):
            sums[half[slot]] += _addend(slots, slot, x, variant)


@bare_inline
def _add_wanted(
    slots: Any, begin: Any, stop: Any, x: Any, variant: Any, wanted: Any, count: Any, sums: Any
) -> None:
    """Add w·x to the sum of each half wanted[:count] whose key lies in the slots [begin, stop).

    The slots below one request half are sorted by item half. So a range without gaps is indexed, and one with gaps is
    searched.
    """
    half = slots[2]
    low, is_whole = np.int64(half[begin]), has_no_gap(half, begin, stop)
    for place in range(count):
        looked_for = np.int64(wanted[place])
        slot = begin + looked_for - low if is_whole else find_half(half, begin, stop, looked_for)
        if begin <= slot < stop and half[slot] == looked_for:
            sums[looked_for] += _addend(slots, slot, x, variant)


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
def _add_all_fresh(slots: Any, begin: Any, stop: Any, x: Any, variant: Any, sums: Any) -> None:
    """`_add_all` for a fresh layer, whose entries are sorted by half and tell where each one's slot is."""
    half, at = slots[2], slots[3]
    for entry in range(begin, stop):
        sums[half[entry]] += _addend(slots, at[entry], x, variant)


@bare_inline
def _add_wanted_fresh(
    slots: Any, begin: Any, stop: Any, x: Any, variant: Any, wanted: Any, count: Any, sums: Any
) -> None:
    """`_add_wanted` for a fresh layer."""
    half, at = slots[2], slots[3]
    for place in range(count):
        entry = find_half(half, begin, stop, wanted[place])
        if entry < stop and half[entry] == wanted[place]:
            sums[half[entry]] += _addend(slots, at[entry], x, variant)


@bare_inline
def _uses(lane: Any, mask: Any) -> Any:
    """Whether the variant of a lane uses a term."""
    return (mask >> lane[_VARIANT]) & 1 != 0


@bare_inline
def _add_range(
    lane: Any, mask: Any, begin: Any, stop: Any, longest: Any, x: Any, wanted: Any, distinct: Any
) -> None:
    slots, _, _, _, variant, sums = lane
    if _uses(lane, mask):
        if stop - begin <= longest:
            _add_all(slots, begin, stop, x, variant, sums)
        else:
            _add_wanted(slots, begin, stop, x, variant, wanted, distinct, sums)


@bare_inline
def _add_fresh_range(
    lane: Any, mask: Any, begin: Any, stop: Any, longest: Any, x: Any, wanted: Any, distinct: Any
) -> None:
    _, slots, _, _, variant, sums = lane
    if _uses(lane, mask):
        if stop - begin <= longest:
            _add_all_fresh(slots, begin, stop, x, variant, sums)
        else:
            _add_wanted_fresh(slots, begin, stop, x, variant, wanted, distinct, sums)


@bare_inline
def _add_crosses(
    trie: Any, fresh_trie: Any, lanes: Any, both: Any, terms: Any, tokens: Any,
    catalogue: Any, inline: Any, rows: Any, counts: Any, choice: Any, marks: Any, wanted: Any, of_user: Any,
) -> Any:  # fmt: skip
    """For every mixed cross: walk the request's half once, then add what lies under it; nothing there, nothing done.

    Returns 1 if `of_user` is, or if the first lane's variant has a cross of a half with a field of the user that has
    keys.
    """
    values, value_start = tokens[0], tokens[1]
    listed, distinct = np.int64(-1), np.int64(0)  # the group whose halves `wanted` has, and their number
    for term in range(terms.shape[0]):
        group, mask = terms[term, GROUP], terms[term, MASK]
        if not (_uses(lanes[0], mask) or (both and _uses(lanes[1], mask))):
            continue
        of_first = terms[term, OF_USER] * np.int64(_uses(lanes[0], mask))
        if counts[group] == 0 and of_first <= of_user:  # nothing to add, and nothing to find out
            continue
        longest = SCAN_PER_FIND * counts[group]
        going = first_choice(terms, term, values, 0, value_start, choice)
        while going:
            node, _, stop, x = walk_choice(trie, terms, term, BASE, tokens, choice, True)
            if node >= 0:
                of_user |= of_first
                begin = np.int64(trie[0][node, SLOT])
                if stop - begin > longest and listed != group:
                    distinct = _distinct(catalogue, inline, rows, group, marks, wanted)
                    listed = group
                _add_range(lanes[0], mask, begin, stop, longest, x, wanted, distinct)
                if both:
                    _add_range(lanes[1], mask, begin, stop, longest, x, wanted, distinct)
            if terms[term, FRESH] >= 0:
                node, _, stop, x = walk_choice(fresh_trie, terms, term, FRESH, tokens, choice, True)
                if node >= 0:
                    of_user |= of_first
                    begin = np.int64(fresh_trie[0][node, SLOT])
                    if stop - begin > longest and listed != group:
                        distinct = _distinct(catalogue, inline, rows, group, marks, wanted)
                        listed = group
                    _add_fresh_range(lanes[0], mask, begin, stop, longest, x, wanted, distinct)
                    if both:
                        _add_fresh_range(lanes[1], mask, begin, stop, longest, x, wanted, distinct)
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
def _item_score(own: Any, items: Any, row: Any, sums: Any) -> Any:
    """The item's own sum, then its halves' sums, group by group."""
    codes, run_start, run_half, run_x = items
    total = own[row]
    for group in range(codes.shape[1]):
        code = np.int64(codes[row, group])
        if code >= 0:
            total += sums[code]
        elif code <= FIRST_RUN:
            run = FIRST_RUN - code
            for pair in range(run_start[run], run_start[run + 1]):
                found = sums[run_half[pair]]
                if found != 0.0:  # else an infinite x would make it a NaN
                    total += found * run_x[pair]
    return total


@bare_inline
def score_candidates(
    trie: Any, fresh_trie: Any, lanes: Any, both: Any, request_terms: Any, mixed_terms: Any, tokens: Any,
    catalogue: Any, inline: Any, rows: Any, counts: Any, choice: Any, marks: Any, wanted: Any, scores: Any,
) -> Any:  # fmt: skip
    """Write the score of each candidate, an array a lane; returns what `rank` does, of the first lane."""
    prefetch_items(rows, lanes[0][_OWN], catalogue[0])
    of_request, of_user = _own_sum(trie, lanes[0], fresh_trie, request_terms, tokens, choice)
    of_other = 0.0
    if both:
        prefetch_items(rows, lanes[1][_OWN], catalogue[0])
        of_other, _ = _own_sum(trie, lanes[1], fresh_trie, request_terms, tokens, choice)
    for group in range(catalogue[0].shape[1]):
        counts[group] = _clear_group(catalogue, inline, rows, group, lanes, both)
    of_user = _add_crosses(
        trie, fresh_trie, lanes, both, mixed_terms, tokens, catalogue, inline, rows,
        counts, choice, marks, wanted, of_user,
    )  # fmt: skip
    _score_items(lanes[0], of_request, catalogue, inline, rows, scores[0])
    if both:
        _score_items(lanes[1], of_other, catalogue, inline, rows, scores[1])
    return of_user


@bare_inline
def _score_items(lane: Any, of_request: Any, catalogue: Any, inline: Any, rows: Any, scores: Any) -> None:
    for candidate in range(rows.size):
        row = np.int64(rows[candidate])
        item = 0.0
        if row >= 0:
            item = _item_score(lane[_OWN], catalogue, row, lane[_SUMS])
        elif row <= FIRST_INLINE:
            item = _item_score(lane[_INLINE_OWN], inline, FIRST_INLINE - row, lane[_SUMS])
        scores[candidate] = of_request + item


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
    marks: Any, wanted: Any, sums: Any, counts: Any, choice: Any,
    scores: Any, order: Any, ctr: Any, score: Any,
) -> Any:  # fmt: skip
    """Score all candidates and write the `top` best of them, best first, to order, ctr and score.

    rows int32[candidates]: a catalogue row, NO_ITEM, or FIRST_INLINE - r; top ≤ candidates. order, ctr and score hold
    `top`; mixed_terms are sorted by group. Scratch: marks int32[halves] is all 0 before and after; wanted int32[] holds
    one more than the halves that the candidates may have; sums f64[halves], of which those of the candidates' halves
    are set; counts int64[groups]; choice int64[4]; scores hold a number a candidate.
    Equal scores keep the order of the candidates.

    Returns 1 if the variant has a key of the user's fields, alone or with others of the request, or the model has one
    that crosses them with any item; else 0.
    """
    trie, fresh_trie = (nodes, first_byte, labels), (fresh_nodes, fresh_first_byte, fresh_labels)
    slots, fresh_slots = (weight, variants, half), (fresh_weight, fresh_variants, fresh_half, fresh_at)
    lane = (slots, fresh_slots, own, inline_own, np.int64(variant), sums)
    of_user = score_candidates(
        trie, fresh_trie, (lane, lane), False, request_terms, mixed_terms,
        (values, value_start, begin, xs, text), (codes, run_start, run_half, run_x),
        (inline_codes, inline_run_start, inline_run_half, inline_run_x), rows,
        counts, choice, marks, wanted, (scores, scores),
    )  # fmt: skip
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
    if size > 0:
        least = scores[order[0]]
        for candidate in range(size, count):
            if scores[candidate] > least:  # of equals, the earlier one is the better
                order[0] = candidate
                _sift(scores, order, size, 0)
                least = scores[order[0]]
    for last in range(size - 1, 0, -1):
        order[0], order[last] = order[last], order[0]
        _sift(scores, order, last, 0)
