"""Kernels of the trainer that no learner owns: a row's features, the table's slots, the arena, the metrics.

Layout of a batch of tokens (made by `trainer.examples`): field f's tokens begin at `base[f]` of `digests`. A dense
field (`list_of[f]` = -1) has one place a row, with digest 0 where the value is absent; a list field has the places
`starts[list_of[f], r]` to `starts[list_of[f], r + 1]` of row r, all present. Features are numbered: 0 the bias, then
the fields, then the crosses.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from model_store.jit import bare_inline, bare_kernel
from model_store.kernels import END, TIMES, combine, digest, load_i32, load_u8, prefetch, sigmoid

AUC_BUCKETS = 8192
AUC_BUCKETS_PER_UNIT = 256.0
AUC_RANGE = 16.0
SMALLEST_PROBABILITY = 1e-15

_EMPTY = np.uint64(0)
_STAR = np.uint8(0x2A)
_ROWS_AHEAD = 2
_ROWS_BETWEEN_LOGS = 16  # 16 factors of at least 1e-15 stay far above the smallest float64


class TokenLayout(NamedTuple):
    """A batch's tokens, as above: digests uint64, values float64 (a token's x, or empty where every x is 1).

    base, list_of: int64[fields]; starts: int32[lists, rows + 1]; crosses: int64[crosses, 4], padded with -1.
    """

    digests: Any
    values: Any
    base: Any
    list_of: Any
    starts: Any
    crosses: Any


class KeyRules(NamedTuple):
    """What a spec says of its keys' hashes.

    bias: the bias's hash; states: uint64, the state after each field's and then each cross's prefix; raw:
    uint8[fields], 1 where a digest is the whole hash of a key; masks: uint32[features], 0 where no variant uses it.
    """

    bias: Any
    states: Any
    raw: Any
    masks: Any


@bare_inline
def token_range(tokens: Any, field: Any, row: Any) -> Any:
    """First and last-plus-one token of a field in a row."""
    if tokens.list_of[field] < 0:
        first = tokens.base[field] + row
        return first, first + (1 if tokens.digests[first] != _EMPTY else 0)
    lists = tokens.list_of[field]
    return tokens.base[field] + tokens.starts[lists, row], tokens.base[field] + tokens.starts[lists, row + 1]


@bare_inline
def cross_size(tokens: Any, cross: Any, row: Any) -> Any:
    """How many keys a cross has in a row: the product of its fields' token counts."""
    combinations = 1
    for part in range(tokens.crosses.shape[1]):
        if tokens.crosses[cross, part] < 0:
            break
        first, last = token_range(tokens, tokens.crosses[cross, part], row)
        combinations *= last - first
    return combinations


@bare_inline
def pick(tokens: Any, cross: Any, row: Any, combination: Any, picked: Any) -> Any:
    """Put the tokens of a cross's `combination`-th key into `picked` (last field fastest); return how many."""
    size = 0
    while size < tokens.crosses.shape[1] and tokens.crosses[cross, size] >= 0:
        size += 1
    for part in range(size - 1, -1, -1):
        first, last = token_range(tokens, tokens.crosses[cross, part], row)
        picked[part] = first + combination % (last - first)
        combination //= last - first
    return size


@bare_kernel
def count_features(rows: Any, tokens: Any) -> Any:
    """How many features the given rows have at most: the size that `assemble` needs."""
    total = rows.size
    for row in rows:
        for field in range(tokens.base.size):
            first, last = token_range(tokens, field, row)
            total += last - first
        for cross in range(tokens.crosses.shape[0]):
            total += cross_size(tokens, cross, row)
    return total


@bare_kernel
def assemble(rows: Any, tokens: Any, rules: Any, out: Any, picked: Any) -> None:
    """Hash every feature of the given rows, in the order bias, fields, crosses.

    rows: int32[m], the good rows; tokens: `TokenLayout`; rules: `KeyRules`; out: `HashedRows`, whose starts, hashes,
    features and x are written; picked: int64[4], room for a cross's tokens.
    """
    at = 0
    fields = tokens.base.size
    for index in range(rows.size):
        row = rows[index]
        out.starts[index] = at
        at = put(out, at, 0, rules.bias, 1.0)
        for field in range(fields):
            if rules.masks[field + 1] == 0:
                continue
            first, last = token_range(tokens, field, row)
            for token in range(first, last):
                digest_of = tokens.digests[token]
                key = digest_of if rules.raw[field] else combine(rules.states[field], digest_of, END)
                at = put(out, at, field + 1, key, tokens.values[token] if out.x.size else 1.0)
        for cross in range(tokens.crosses.shape[0]):
            if rules.masks[fields + 1 + cross] == 0:
                continue
            for combination in range(cross_size(tokens, cross, row)):
                size = pick(tokens, cross, row, combination, picked)
                key, x = rules.states[fields + cross], 1.0
                for part in range(size):
                    key = combine(key, tokens.digests[picked[part]], END if part == size - 1 else TIMES)
                    if out.x.size:
                        x *= tokens.values[picked[part]]
                at = put(out, at, fields + 1 + cross, key, x)
    out.starts[rows.size] = at


@bare_inline
def put(out: Any, at: Any, feature: Any, key: Any, x: Any) -> Any:
    """Write one feature; return where the next goes."""
    out.hashes[at] = key
    out.features[at] = feature
    if out.x.size:
        out.x[at] = x
    return at + 1


@bare_kernel
def key_tokens(added: Any, rows: Any, hashed: Any, tokens: Any, found: Any, picked: Any) -> None:
    """Find the tokens that make up newly admitted keys.

    added: int64[k], positions in the batch's features; rows: int32[m]; hashed: `HashedRows`; tokens: `TokenLayout`;
    found: int64[k, 4] out, padded with -1 (all -1: the bias).
    """
    index = 0
    for new in range(added.size):
        position = added[new]
        while hashed.starts[index + 1] <= position:
            index += 1
        feature = np.int64(hashed.features[position])
        ordinal = 0
        while (
            position - ordinal > hashed.starts[index] and hashed.features[position - ordinal - 1] == feature
        ):
            ordinal += 1
        for part in range(4):
            found[new, part] = -1
        if feature == 0:
            continue
        if feature <= tokens.base.size:
            found[new, 0] = token_range(tokens, feature - 1, rows[index])[0] + ordinal
            continue
        size = pick(tokens, feature - 1 - tokens.base.size, rows[index], ordinal, picked)
        for part in range(size):
            found[new, part] = picked[part]


@bare_kernel
def write_keys(
    added: Any,
    found: Any,
    features: Any,
    tokens: Any,
    data: Any,
    offsets: Any,
    prefixes: Any,
    prefix_starts: Any,
    arena: Any,
    at: Any,
) -> Any:
    """Append keys' bytes to the arena as (uint16 length, bytes); return the new end, or -1 where room is short.

    found: int64[k, 4], what `key_tokens` found; data, offsets: int64[fields], addresses of token bytes and of int32
    offsets; prefixes: uint8, all prefixes end to end (`bias` first), prefix_starts: int64[features + 1].
    """
    fields = tokens.base.size
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
            if found[new, part] < 0:
                break
            field = feature - 1 if feature <= fields else tokens.crosses[feature - 1 - fields, part]
            place = found[new, part] - tokens.base[field]
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


@bare_kernel
def arena_lengths(arena: Any, lengths: Any) -> None:
    """Read the length of every key in the arena into int64[keys]."""
    at = np.int64(0)
    for index in range(lengths.size):
        lengths[index] = np.int64(arena[at]) | np.int64(arena[at + 1]) << 8
        at += 2 + lengths[index]


@bare_kernel
def arena_keys(arena: Any, kept: Any, data: Any) -> None:
    """Copy the bytes of the keys with kept[i] != 0 out of the arena, end to end."""
    at = np.int64(0)
    to = np.int64(0)
    for index in range(kept.size):
        length = np.int64(arena[at]) | np.int64(arena[at + 1]) << 8
        at += 2
        if kept[index]:
            for byte in range(length):
                data[to + byte] = arena[at + byte]
            to += length
        at += length


@bare_inline
def find_slot(slots: Any, key: Any) -> Any:
    """The slot that holds `key`, or the free slot where it belongs. Linear probing; the table is never full."""
    mask = slots.size - 1
    slot = np.int64(key & np.uint64(mask))
    while slots[slot].key != key and slots[slot].key != _EMPTY:
        slot = (slot + 1) & mask
    return slot


class HashedRows(NamedTuple):
    """Rows as learners take them: starts int64[m + 1] into hashes (uint64), features (uint16) and x (float64).

    x is empty where every x is 1; labels float64[m]; weights float64[m], or empty where all are 1.
    """

    starts: Any
    hashes: Any
    features: Any
    x: Any
    labels: Any
    weights: Any


@bare_inline
def x_of(rows: Any, position: Any) -> Any:
    """The x of a feature."""
    return rows.x[position] if rows.x.size else 1.0


@bare_inline
def importance_of(rows: Any, row: Any) -> Any:
    """The importance weight of a row."""
    return rows.weights[row] if rows.weights.size else 1.0


@bare_inline
def claim_slots(
    slots: Any, rows: Any, masks: Any, first: Any, size: Any, found: Any, added: Any, count: Any
) -> Any:
    """Find or claim the slot of each feature of one row into `found`; note new keys in `added`; return their count."""
    for i in range(size):
        key = rows.hashes[first + i]
        slot = find_slot(slots, key)
        if slots[slot].key == _EMPTY:
            slots[slot].key = key
            slots[slot].variants = masks[rows.features[first + i]]
            added[count] = first + i
            count += 1
        slots[slot].count += np.uint32(slots[slot].count != np.uint32(0xFFFFFFFF))
        found[i] = slot
    return count


@bare_inline
def prefetch_ahead(slots: Any, rows: Any, row: Any) -> None:
    """Ask for the cache lines of a later row's slots, so that they arrive while this row is computed."""
    ahead = min(row + _ROWS_AHEAD, rows.labels.size - 1)
    mask = np.uint64(slots.size - 1)
    origin = slots.ctypes.data
    for position in range(rows.starts[ahead], rows.starts[ahead + 1]):
        prefetch(origin + np.int64(rows.hashes[position] & mask) * 32)


@bare_kernel
def rehash(old: Any, new: Any) -> None:
    """Move every occupied slot of `old` to its place in the larger `new`."""
    for index in range(old.size):
        if old[index].key != _EMPTY:
            new[find_slot(new, old[index].key)] = old[index]


@bare_kernel
def find_keys(slots: Any, hashes: Any, found: Any) -> None:
    """The slot of every hash, or -1 where the table does not hold it: int64[n]."""
    for index in range(hashes.size):
        slot = find_slot(slots, hashes[index])
        found[index] = slot if slots[slot].key != _EMPTY else -1


@bare_kernel
def watch(
    scores: Any,
    labels: Any,
    weights: Any,
    totals: Any,
    sums: Any,
    product: Any,
    positives: Any,
    negatives: Any,
    probability: Any,
) -> None:
    """Add a batch's progressive predictions to the running metrics; where batches begin and end changes no bit.

    scores: float64[rows, >= variants]; labels float64[rows]; weights float64[rows], or empty where all are 1;
    totals: float64[3], rows, weight and clicks; sums: float64[variants, 2], log-loss and sum of p;
    positives, negatives: float64[variants, AUC_BUCKETS]. Logarithms are taken of a product of up to 16
    probabilities, not of each; product: float64[variants], those whose logarithm is still to be taken.
    """
    rows, variants = labels.size, sums.shape[0]
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


@bare_kernel
def digest_of_nothing() -> Any:
    """The digest of an empty token: what stands for the value in a real number's key, `price=`."""
    return digest(np.int64(0), 0)
