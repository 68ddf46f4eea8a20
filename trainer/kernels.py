"""Kernels of the trainer that no learner owns: a row's features, the table's slots, the arena, the metrics.

Layout of a batch of tokens (made by `trainer.examples`): field f's tokens begin at `base[f]` of `digests`. A dense
field (`list_of[f]` = -1) has one place a row, with digest 0 where the value is absent; a list field has the places
`starts[list_of[f], r]` to `starts[list_of[f], r + 1]` of row r, all present. Features are numbered: 0 the bias, then
the fields, then the crosses.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from model_store.jit import inline, kernel
from model_store.kernels import END, TIMES, combine, digest, load_i32, load_u8, prefetch, sigmoid

AUC_BUCKETS = 8192
AUC_BUCKETS_PER_UNIT = 256.0
AUC_RANGE = 16.0
SMALLEST_PROBABILITY = 1e-15

_EMPTY = np.uint64(0)
_STAR = np.uint8(0x2A)
_ROWS_BETWEEN_LOGS = 16  # 16 factors of at least 1e-15 stay far above the smallest float64


@inline
def token_range(field: Any, row: Any, digests: Any, base: Any, list_of: Any, starts: Any) -> Any:
    """First and last-plus-one token of a field in a row."""
    if list_of[field] < 0:
        first = base[field] + row
        return first, first + (1 if digests[first] != _EMPTY else 0)
    lists = starts[list_of[field]]
    return base[field] + lists[row], base[field] + lists[row + 1]


@kernel
def count_features(rows: Any, digests: Any, base: Any, list_of: Any, starts: Any, crosses: Any) -> Any:
    """How many features the given rows have: the size that `assemble` needs."""
    total = rows.size
    for row in rows:
        for field in range(base.size):
            first, last = token_range(field, row, digests, base, list_of, starts)
            total += last - first
        for cross in range(crosses.shape[0]):
            combinations = 1
            for field in crosses[cross]:
                if field >= 0:
                    first, last = token_range(field, row, digests, base, list_of, starts)
                    combinations *= last - first
            total += combinations
    return total


@kernel
def assemble(
    rows: Any,
    digests: Any,
    values: Any,
    base: Any,
    list_of: Any,
    starts: Any,
    crosses: Any,
    states: Any,
    raw: Any,
    masks: Any,
    bias_hash: Any,
    row_starts: Any,
    hashes: Any,
    features: Any,
    x: Any,
) -> None:
    """Hash every feature of the given rows, in the order bias, fields, crosses.

    rows: int32[m], the good rows; values: float64, one a token, or empty where every x is 1; crosses: int32[c, 4],
    field numbers padded with -1; states: uint64, the hash state after each field's and cross's prefix; raw:
    uint8[fields], 1 where a digest is the whole key's hash; masks: uint32 a feature, 0 skips it.
    Out: row_starts int64[m + 1]; hashes uint64, features uint16 and x float64 (or empty), one a feature.
    """  # fmt: skip
    at = 0
    fields = base.size
    picked = np.empty(4, np.int64)
    for index in range(rows.size):
        row = rows[index]
        row_starts[index] = at
        hashes[at] = bias_hash
        features[at] = 0
        if x.size:
            x[at] = 1.0
        at += 1
        for field in range(fields):
            if masks[field + 1] == 0:
                continue
            first, last = token_range(field, row, digests, base, list_of, starts)
            for token in range(first, last):
                hashes[at] = digests[token] if raw[field] else combine(states[field], digests[token], END)
                features[at] = field + 1
                if x.size:
                    x[at] = values[token]
                at += 1
        for cross in range(crosses.shape[0]):
            feature = fields + 1 + cross
            if masks[feature] == 0:
                continue
            combinations = cross_size(cross, row, digests, base, list_of, starts, crosses)
            for combination in range(combinations):
                size = pick(combination, cross, row, digests, base, list_of, starts, crosses, picked)
                state = states[fields + cross]
                product = 1.0
                for part in range(size):
                    separator = END if part == size - 1 else TIMES
                    state = combine(state, digests[picked[part]], separator)
                    if x.size:
                        product *= values[picked[part]]
                hashes[at] = state
                features[at] = feature
                if x.size:
                    x[at] = product
                at += 1
    row_starts[rows.size] = at


@inline
def cross_size(cross: Any, row: Any, digests: Any, base: Any, list_of: Any, starts: Any, crosses: Any) -> Any:
    """How many keys a cross has in a row: the product of its fields' token counts."""
    combinations = 1
    for part in range(crosses.shape[1]):
        if crosses[cross, part] < 0:
            break
        first, last = token_range(crosses[cross, part], row, digests, base, list_of, starts)
        combinations *= last - first
    return combinations


@inline
def pick(
    combination: Any,
    cross: Any,
    row: Any,
    digests: Any,
    base: Any,
    list_of: Any,
    starts: Any,
    crosses: Any,
    picked: Any,
) -> Any:
    """Put the tokens of a cross's `combination`-th key into `picked` (last field fastest); return how many."""
    size = 0
    while size < crosses.shape[1] and crosses[cross, size] >= 0:
        size += 1
    for part in range(size - 1, -1, -1):
        first, last = token_range(crosses[cross, part], row, digests, base, list_of, starts)
        picked[part] = first + combination % (last - first)
        combination //= last - first
    return size


@kernel
def key_tokens(
    added: Any,
    rows: Any,
    row_starts: Any,
    features: Any,
    digests: Any,
    base: Any,
    list_of: Any,
    starts: Any,
    crosses: Any,
    tokens: Any,
) -> None:
    """Find the tokens that make up newly admitted keys.

    added: int64[k], positions in the batch's features; tokens: int64[k, 4] out, padded with -1 (all -1: the bias).
    """  # fmt: skip
    index = 0
    picked = np.empty(4, np.int64)
    for new in range(added.size):
        position = added[new]
        while row_starts[index + 1] <= position:
            index += 1
        feature = np.int64(features[position])
        ordinal = 0
        while position - ordinal > row_starts[index] and features[position - ordinal - 1] == feature:
            ordinal += 1
        tokens[new, :] = -1
        if feature == 0:
            continue
        if feature <= base.size:
            tokens[new, 0] = (
                token_range(feature - 1, rows[index], digests, base, list_of, starts)[0] + ordinal
            )
            continue
        cross = feature - 1 - base.size
        size = pick(ordinal, cross, rows[index], digests, base, list_of, starts, crosses, picked)
        for part in range(size):
            tokens[new, part] = picked[part]


@kernel
def write_keys(
    added: Any,
    tokens: Any,
    features: Any,
    base: Any,
    crosses: Any,
    data: Any,
    offsets: Any,
    prefixes: Any,
    prefix_starts: Any,
    arena: Any,
    at: Any,
) -> Any:
    """Append keys' bytes to the arena as (uint16 length, bytes); return the new end, or -1 where room is short.

    data, offsets: int64[fields], addresses of token bytes and int32 offsets; prefixes: uint8, all prefixes end to end
    (`bias` first), prefix_starts: int64[features + 1].
    """  # fmt: skip
    fields = base.size
    for new in range(added.size):
        feature = np.int64(features[added[new]])
        begin = at
        at += 2
        if at + prefix_starts[feature + 1] - prefix_starts[feature] > arena.size:
            return -1
        for position in range(prefix_starts[feature], prefix_starts[feature + 1]):
            arena[at] = prefixes[position]
            at += 1
        for part in range(4):
            if tokens[new, part] < 0:
                break
            field = feature - 1 if feature <= fields else crosses[feature - 1 - fields, part]
            place = tokens[new, part] - base[field]
            start = np.int64(load_i32(offsets[field] + 4 * place))
            stop = np.int64(load_i32(offsets[field] + 4 * (place + 1)))
            if at + stop - start + 1 > arena.size:
                return -1
            if part > 0:
                arena[at] = _STAR
                at += 1
            for address in range(data[field] + start, data[field] + stop):
                arena[at] = load_u8(address)
                at += 1
        length = at - begin - 2
        arena[begin] = np.uint8(length & 0xFF)
        arena[begin + 1] = np.uint8(length >> 8)
    return at


@kernel
def arena_lengths(arena: Any, lengths: Any) -> None:
    """Read the length of every key in the arena into int64[keys]."""
    at = np.int64(0)
    for index in range(lengths.size):
        lengths[index] = np.int64(arena[at]) | np.int64(arena[at + 1]) << 8
        at += 2 + lengths[index]


@kernel
def arena_keys(arena: Any, kept: Any, data: Any) -> None:
    """Copy the bytes of the keys with kept[i] != 0 out of the arena, end to end."""
    at = np.int64(0)
    to = np.int64(0)
    for index in range(kept.size):
        length = np.int64(arena[at]) | np.int64(arena[at + 1]) << 8
        at += 2
        if kept[index]:
            data[to : to + length] = arena[at : at + length]
            to += length
        at += length


@inline
def find_slot(slots: Any, key: Any) -> Any:
    """The slot that holds `key`, or the free slot where it belongs. Linear probing; the table is never full."""
    mask = slots.size - 1
    slot = np.int64(key & np.uint64(mask))
    while slots[slot].key != key and slots[slot].key != _EMPTY:
        slot = (slot + 1) & mask
    return slot


@inline
def claim_slots(
    slots: Any,
    hashes: Any,
    features: Any,
    masks: Any,
    first: Any,
    last: Any,
    found: Any,
    added: Any,
    added_count: Any,
) -> Any:
    """Find or claim the slot of each feature of one row into `found`; note new keys in `added`; return their count."""
    for position in range(first, last):
        key = hashes[position]
        slot = find_slot(slots, key)
        if slots[slot].key == _EMPTY:
            slots[slot].key = key
            slots[slot].variants = masks[features[position]]
            added[added_count] = position
            added_count += 1
        slots[slot].count += np.uint32(slots[slot].count != np.uint32(0xFFFFFFFF))
        found[position - first] = slot
    return added_count


@inline
def prefetch_slots(slots: Any, hashes: Any, first: Any, last: Any) -> None:
    """Ask for the cache lines of a later row's slots, so that they arrive while this row is computed."""
    mask = np.uint64(slots.size - 1)
    origin = slots.ctypes.data
    for position in range(first, last):
        prefetch(origin + np.int64(hashes[position] & mask) * 32)


@kernel
def rehash(old: Any, new: Any) -> None:
    """Move every occupied slot of `old` to its place in the larger `new`."""
    for index in range(old.size):
        if old[index].key != _EMPTY:
            new[find_slot(new, old[index].key)] = old[index]


@kernel
def find_keys(slots: Any, hashes: Any, found: Any) -> None:
    """The slot of every hash, or -1 where the table does not hold it: int64[n]."""
    for index in range(hashes.size):
        slot = find_slot(slots, hashes[index])
        found[index] = slot if slots[slot].key != _EMPTY else -1


@kernel
def watch(
    scores: Any,
    labels: Any,
    weights: Any,
    totals: Any,
    sums: Any,
    product: Any,
    positives: Any,
    negatives: Any,
) -> None:
    """Add a batch's progressive predictions to the running metrics; where batches begin and end changes no bit.

    scores: float64[rows, >= variants]; labels float64[rows]; weights float64[rows], or empty where all are 1;
    totals: float64[3], rows, weight and clicks; sums: float64[variants, 2], log-loss and sum of p;
    positives, negatives: float64[variants, AUC_BUCKETS]. Logarithms are taken of a product of up to 16
    probabilities, not of each; product: float64[variants], those whose logarithm is still to be taken.
    """
    rows, variants = labels.size, sums.shape[0]
    probability = np.empty(variants)
    for row in range(rows):
        weight = weights[row] if weights.size else 1.0
        totals[0] += 1.0
        totals[1] += weight
        totals[2] += weight * labels[row]
        clicked = labels[row] > 0.5
        for variant in range(variants):
            probability[variant] = sigmoid(scores[row, variant])
            sums[variant, 1] += weight * probability[variant]
        if weights.size:
            for variant in range(variants):
                right = probability[variant] if clicked else 1.0 - probability[variant]
                sums[variant, 0] -= weight * math.log(max(right, SMALLEST_PROBABILITY))
        else:
            for variant in range(variants):
                right = probability[variant] if clicked else 1.0 - probability[variant]
                product[variant] *= max(right, SMALLEST_PROBABILITY)
        histogram = positives if clicked else negatives
        for variant in range(variants):
            score = min(max(scores[row, variant], -AUC_RANGE), AUC_RANGE)
            place = np.int64((score + AUC_RANGE) * AUC_BUCKETS_PER_UNIT)
            histogram[variant, min(place, AUC_BUCKETS - 1)] += weight
        if totals[0] % _ROWS_BETWEEN_LOGS == 0.0:
            for variant in range(variants):
                sums[variant, 0] -= math.log(product[variant])
                product[variant] = 1.0


@kernel
def digest_of_nothing() -> Any:
    """The digest of an empty token: what stands for the value in a real number's key, `price=`."""
    return digest(np.int64(0), 0)
