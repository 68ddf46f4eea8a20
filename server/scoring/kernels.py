"""Scoring kernels: sum what the model knows of a request and its candidates, and pick the best.

Arrays travel in groups, each a tuple:

    trie     nodes, first_byte, key_data                                       see `server/kernels.py`
    slots    weight f32[n] of one variant, variants u32[n], half i32[n]         see `server/interning/halves.py`
    tokens   values i32[rows, fields], value_start, begin, x, text              see `server/scoring/tokens.py`
    items    own f64[rows], codes i32[rows, groups], run_start, run_half, run_x see `server/scoring/items.py`

`terms` is int64[terms, 10], a row a term, with the columns below (`server/scoring/terms.py` makes it). Nothing
here allocates or checks: callers hand in arrays that fit, and scratch space that is as large as it may need to be.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from model_store.jit import bare_inline, bare_kernel
from model_store.kernels import prefetch
from server.interning.kernels import NO_HALF, UNKNOWN
from server.kernels import SLOT, slot_at, walk

# Columns of `terms`: how many fields it crosses and which; where its prefix ends in the trie; the variants that use
# it; and, for a cross of request and item, the group of item halves that its keys end in.
COUNT, FIELD, NODE, USED, STOP, MASK, GROUP = 0, 1, 5, 6, 7, 8, 9
TERM_COLUMNS = 10

FIRST_RUN = NO_HALF - 1  # in codes: FIRST_RUN - r stands for run r

NO_ITEM = UNKNOWN  # in rows: nothing is known of this candidate
FIRST_SPELLED = NO_ITEM - 1  # in rows: FIRST_SPELLED - r stands for row r of the spelled-out items

# Reading a slot of a range takes about 2.5 ns, finding one half in it 45 ns (benchmarks/ranker.py, forced either way).
_SCAN_PER_FIND = 16


@bare_inline
def _first_choice(terms: Any, term: Any, values: Any, row: Any, value_start: Any, choice: Any) -> Any:
    """Set `choice` to the first token of each of the term's fields; False if one has none."""
    for i in range(terms[term, COUNT]):
        value = values[row, terms[term, FIELD + i]]
        if value < 0 or value_start[value] == value_start[value + 1]:
            return False
        choice[i] = value_start[value]
    return True


@bare_inline
def _next_choice(terms: Any, term: Any, values: Any, row: Any, value_start: Any, choice: Any) -> Any:
    """Step `choice` to the next combination of tokens, the last field fastest; False after the last."""
    for i in range(terms[term, COUNT] - 1, -1, -1):
        value = values[row, terms[term, FIELD + i]]
        choice[i] += 1
        if choice[i] < value_start[value + 1]:
            return True
        choice[i] = value_start[value]
    return False


@bare_inline
def _walk_choice(trie: Any, terms: Any, term: Any, tokens: Any, choice: Any, more: Any) -> Any:
    """Walk the chosen tokens, joined by `*`, from the end of the term's prefix; with `more`, a last `*` as well.

    Returns the place and the product of the tokens' x.
    """
    nodes, first_byte, key_data = trie
    _, _, begin, xs, text = tokens
    node, used, stop = terms[term, NODE], terms[term, USED], terms[term, STOP]
    count, x = terms[term, COUNT], 1.0
    for i in range(count):
        token = choice[i]
        # In `text` a `*` stands after every token.
        end = begin[token + 1] - (0 if more or i + 1 < count else 1)
        node, used, stop = walk(nodes, first_byte, key_data, node, used, stop, text, begin[token], end)
        if node < 0:
            break
        x *= xs[token]
    return node, used, stop, x


@bare_inline
def _counts(slots: Any, slot: Any, variant: Any) -> Any:
    return (slots[1][slot] >> np.uint32(variant)) & np.uint32(1) != 0


@bare_inline
def _own_sum(trie: Any, slots: Any, terms: Any, tokens: Any, row: Any, variant: Any, choice: Any) -> Any:
    """Σ w·x over the keys that one side makes alone, in the order of `terms`."""
    total = 0.0
    values, value_start = tokens[0], tokens[1]
    for term in range(terms.shape[0]):
        if (terms[term, MASK] >> variant) & 1 == 0:
            continue
        going = _first_choice(terms, term, values, row, value_start, choice)
        while going:
            node, used, _, x = _walk_choice(trie, terms, term, tokens, choice, False)
            slot = slot_at(trie[0], node, used)
            if slot >= 0 and _counts(slots, slot, variant):
                total += slots[0][slot] * x
            going = _next_choice(terms, term, values, row, value_start, choice)
    return total


@bare_kernel
def sum_items(
    nodes: Any, first_byte: Any, key_data: Any, weights: Any, variants: Any, terms: Any,
    values: Any, value_start: Any, begin: Any, xs: Any, text: Any, first: Any, choice: Any, own: Any,
) -> None:  # fmt: skip
    """Add Σ w·x over the keys that each row's item makes alone to own[v, row], for the variants first + v.

    weights f32[variants, n] has all variants of the model, or one row that they share. own f64[variants, rows] is all
    0. Each key is walked once for all variants.
    """
    trie, tokens = (nodes, first_byte, key_data), (values, value_start, begin, xs, text)
    shared = weights.shape[0] == 1
    for row in range(own.shape[1]):
        for term in range(terms.shape[0]):
            going = _first_choice(terms, term, values, row, value_start, choice)
            while going:
                node, used, _, x = _walk_choice(trie, terms, term, tokens, choice, False)
                slot = slot_at(nodes, node, used)
                if slot >= 0:
                    bits = (np.int64(variants[slot]) & terms[term, MASK]) >> first
                    for v in range(own.shape[0]):
                        if (bits >> v) & 1 != 0:
                            own[v, row] += weights[0 if shared else first + v, slot] * x
                going = _next_choice(terms, term, values, row, value_start, choice)


@bare_kernel
def code_items(
    nodes: Any, first_byte: Any, key_data: Any, terms: Any,
    values: Any, value_start: Any, begin: Any, xs: Any, text: Any,
    choice: Any, codes: Any, run_start: Any, run_half: Any, run_x: Any,
) -> Any:  # fmt: skip
    """Find each item's half in each group: codes[row, group] is a half, NO_HALF, or a run of (half, x) pairs.

    The trie is that of the halves, `terms` has a row a group. An item has a run where it has several halves, or one
    with x other than 1. Returns the numbers of runs and pairs; those that do not fit the arrays are counted only.
    """
    trie, tokens = (nodes, first_byte, key_data), (values, value_start, begin, xs, text)
    runs, pairs = 0, 0
    for row in range(codes.shape[0]):
        for group in range(terms.shape[0]):
            found, only, only_x = 0, NO_HALF, 1.0
            going = terms[group, NODE] >= 0 and _first_choice(terms, group, values, row, value_start, choice)
            while going:
                node, used, _, x = _walk_choice(trie, terms, group, tokens, choice, False)
                known = slot_at(nodes, node, used)
                if known >= 0:
                    if pairs + found < run_half.size:
                        run_half[pairs + found], run_x[pairs + found] = known, x
                    found, only, only_x = found + 1, known, x
                going = _next_choice(terms, group, values, row, value_start, choice)
            if found <= 1 and only_x == 1.0:
                codes[row, group] = only
            else:
                codes[row, group] = FIRST_RUN - runs
                pairs += found
                runs += 1
                if runs < run_start.size:
                    run_start[runs] = pairs
    return runs, pairs


@bare_inline
def _mark(half: Any, scratch: Any, count: Any) -> Any:
    """Give `half` a place among the halves wanted, once; return how many there are."""
    marks, wanted, sums = scratch
    if marks[half] == 0:
        wanted[count] = half
        sums[count] = 0.0
        count += 1
        marks[half] = count
    return count


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
def _mark_group(catalogue: Any, spelled: Any, rows: Any, group: Any, scratch: Any, count: Any) -> Any:
    """Mark the halves of this group that any candidate has."""
    for candidate in range(rows.size):
        row = np.int64(rows[candidate])
        if row >= 0:
            count = _mark_row(catalogue, row, group, scratch, count)
        elif row <= FIRST_SPELLED:
            count = _mark_row(spelled, FIRST_SPELLED - row, group, scratch, count)
    return count


@bare_inline
def _add_range(
    slots: Any, begin: Any, stop: Any, x: Any, variant: Any, first: Any, last: Any, scratch: Any
) -> None:
    """Add w·x to the sum of each half wanted[first:last] whose key lies in the slots [begin, stop).

    The slots below one request half are sorted by item half, so a long range is searched and a short one is read.
    """
    weight, _, half = slots
    marks, wanted, sums = scratch
    if stop - begin <= _SCAN_PER_FIND * (last - first):
        for slot in range(begin, stop):
            marked = np.int64(marks[half[slot]])
            if marked > 0 and _counts(slots, slot, variant):
                sums[marked - 1] += weight[slot] * x
        return
    for place in range(first, last):
        slot = _find(half, begin, stop, wanted[place])
        if slot < stop and half[slot] == wanted[place] and _counts(slots, slot, variant):
            sums[place] += weight[slot] * x


@bare_inline
def _find(half: Any, begin: Any, stop: Any, wanted: Any) -> Any:
    """The first slot in [begin, stop) whose half is not below `wanted`."""
    length = stop - begin
    while length > 1:
        step = length // 2
        begin += step if half[begin + step - 1] < wanted else 0
        length -= step
    return begin + (1 if half[begin] < wanted else 0)


@bare_inline
def _add_crosses(
    trie: Any, slots: Any, terms: Any, tokens: Any, variant: Any, starts: Any, choice: Any, scratch: Any
) -> None:
    """For every mixed cross: walk the request's half once, then add what lies under it; nothing there, nothing done."""
    values, value_start = tokens[0], tokens[1]
    for term in range(terms.shape[0]):
        group = terms[term, GROUP]
        if (terms[term, MASK] >> variant) & 1 == 0 or starts[group] == starts[group + 1]:
            continue
        going = _first_choice(terms, term, values, 0, value_start, choice)
        while going:
            node, _, stop, x = _walk_choice(trie, terms, term, tokens, choice, True)
            if node >= 0:
                begin = np.int64(trie[0][node, SLOT])
                _add_range(slots, begin, stop, x, variant, starts[group], starts[group + 1], scratch)
            going = _next_choice(terms, term, values, 0, value_start, choice)


@bare_inline
def _ask_for_items(rows: Any, own: Any, codes: Any) -> None:
    """Ask for the candidates' rows, which lie anywhere, while the request is being summed."""
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
                total += sums[marks[run_half[pair]] - 1] * run_x[pair]
    return total


@bare_kernel
def rank(
    nodes: Any, first_byte: Any, key_data: Any, weight: Any, variants: Any, half: Any,
    request_terms: Any, mixed_terms: Any,
    own: Any, codes: Any, run_start: Any, run_half: Any, run_x: Any,
    spelled_own: Any, spelled_codes: Any, spelled_run_start: Any, spelled_run_half: Any, spelled_run_x: Any,
    values: Any, value_start: Any, begin: Any, xs: Any, text: Any,
    rows: Any, variant: Any, top: Any,
    marks: Any, wanted: Any, sums: Any, starts: Any, choice: Any,
    scores: Any, order: Any, ctr: Any, score: Any,
) -> None:  # fmt: skip
    """Score all candidates and write the `top` best of them, best first, to order, ctr and score.

    rows int32[candidates]: a catalogue row, NO_ITEM, or FIRST_SPELLED - r; top ≤ candidates. Scratch: marks
    int32[halves] is all 0 before and after; wanted int32[], sums f64[] hold as many halves as the candidates may
    have; starts int64[groups + 1]; choice int64[4]. scores, order, ctr and score hold a number a candidate or more.
    Equal scores stand in the order of the candidates.
    """
    trie, slots, tokens = (
        (nodes, first_byte, key_data),
        (weight, variants, half),
        (values, value_start, begin, xs, text),
    )
    catalogue = (own, codes, run_start, run_half, run_x)
    spelled = (spelled_own, spelled_codes, spelled_run_start, spelled_run_half, spelled_run_x)
    scratch = (marks, wanted, sums)
    _ask_for_items(rows, own, codes)
    request_sum = _own_sum(trie, slots, request_terms, tokens, 0, variant, choice)
    starts[0] = 0
    for group in range(codes.shape[1]):
        starts[group + 1] = _mark_group(catalogue, spelled, rows, group, scratch, starts[group])
    _add_crosses(trie, slots, mixed_terms, tokens, variant, starts, choice, scratch)
    for candidate in range(rows.size):
        row = np.int64(rows[candidate])
        item = 0.0
        if row >= 0:
            item = _item_score(catalogue, row, marks, sums)
        elif row <= FIRST_SPELLED:
            item = _item_score(spelled, FIRST_SPELLED - row, marks, sums)
        scores[candidate] = request_sum + item
    for place in range(starts[codes.shape[1]]):
        marks[wanted[place]] = 0
    _best(scores, rows.size, order, top)
    for place in range(top):
        best = scores[order[place]]
        score[place], ctr[place] = best, 1.0 / (1.0 + math.exp(-best))


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
def _best(scores: Any, count: Any, order: Any, size: Any) -> None:
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
