"""Kernels that hash a batch's tokens into rows, write the bytes of new keys into the arena, and draw requests.

Layout of a batch's tokens (made by `hashing.lay_out`): field f's tokens start at `base[f]` of `digests`. A dense field
(`list_of[f]` = -1) has one token a row, `step` after that of the row before, with digest 0 where the value is absent; a
list field has the tokens `starts[list_of[f], r]` to `starts[list_of[f], r + 1]` in row r, all present. Features are
numbered: 0 the bias, then the fields, then the crosses. Keys of a field or cross that have a rule of their own have
further numbers; that field or cross is their owner.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from model_store.hash_kernels import (
    END,
    TIMES,
    combine,
    combine_eight,
    copy_bytes,
    digest,
    load_i32,
    load_u8,
    mixed,
    prefetch,
)
from model_store.jit import bare_inline, bare_kernel

_EMPTY = np.uint64(0)
STAR = np.uint8(0x2A)
_KEYS_AHEAD = 8


class TokenLayout(NamedTuple):
    """A batch's tokens, as above: digests uint64, values float64 (a token's x, or empty where every x is 1).

    base, list_of: int64[fields]; step: np.int64, the number of dense fields, whose tokens stand row by row; starts:
    int32[lists, rows + 1]; crosses: int64[crosses, 4], padded with -1; owner: int64[features], the bias, field or cross
    that a feature belongs to.
    """

    digests: Any
    values: Any
    base: Any
    step: Any
    list_of: Any
    starts: Any
    crosses: Any
    owner: Any

    def of_rows(self, field: int, rows: Any) -> Any:
        """The digests of a dense field in these rows."""
        return self.digests[self.base[field] + rows * self.step]

    def text_number(self, field: int, token: int) -> int:
        """The index of a token's text among those of its field."""
        index = token - int(self.base[field])
        return index // int(self.step) if self.list_of[field] < 0 else index


class KeyRules(NamedTuple):
    """How a spec's keys are hashed.

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
        first = tokens.base[field] + row * tokens.step
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
    """The most features the given rows can have: the size that `assemble` needs."""
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
    if has_one_token_each(tokens, rules, out):
        assemble_dense(rows, tokens, rules, out)
        return
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
def has_one_token_each(tokens: Any, rules: Any, out: Any) -> Any:
    """Whether rows have nothing but at most one token a field, each a part of its key, and all used."""
    plain = tokens.crosses.shape[0] == 0 and out.x.size == 0
    for field in range(tokens.base.size):
        plain = plain and tokens.list_of[field] < 0 and rules.raw[field] == 0 and rules.masks[field + 1] != 0
    return plain


@bare_inline
def assemble_dense(rows: Any, tokens: Any, rules: Any, out: Any) -> None:
    """`assemble` where a row has at most one token a field and no cross."""
    at, fields = 0, tokens.base.size
    states, digests = rules.states.ctypes.data, tokens.digests.ctypes.data
    for index in range(rows.size):
        first = rows[index] * fields
        mine = tokens.digests[first : first + fields]
        hashes, features = out.hashes[at : at + 1 + fields], out.features[at : at + 1 + fields]
        out.starts[index] = at
        hashes[0] = rules.bias
        for feature in range(fields + 1):
            features[feature] = feature
        if fields >= 8:
            for field in range(0, fields, 8):
                place = 8 * min(field, fields - 8)  # the last eight overlap those before
                combine_eight(states + place, digests + 8 * first + place, hashes.ctypes.data + 8 + place)
        else:
            for field in range(fields):
                hashes[field + 1] = combine(rules.states[field], mine[field], END)
        absent = 0
        for field in range(fields):
            absent += mine[field] == _EMPTY
        if absent > 0:
            keep_present(mine, hashes, features)
        at += 1 + fields - absent
    out.starts[rows.size] = at


@bare_inline
def keep_present(digests: Any, hashes: Any, features: Any) -> None:
    """Leave the keys, which follow the bias, of those fields alone that have a token."""
    to = np.uint64(1)
    for field in range(digests.size):
        # Written in any case, and kept if there is a token: a branch would be mispredicted.
        hashes[to], features[to] = hashes[field + 1], field + 1
        to += np.uint64(digests[field] != _EMPTY)


@bare_inline
def put(out: Any, at: Any, feature: Any, key: Any, x: Any) -> Any:
    """Write one feature; return where the next goes."""
    out.hashes[at] = key
    out.features[at] = feature
    if out.x.size:
        out.x[at] = x
    return at + 1


@bare_inline
def tokens_of(tokens: Any, owner: Any, row: Any, ordinal: Any, picked: Any) -> Any:
    """Put the tokens of the `ordinal`-th key of an owner in a row into `picked`; return how many, 0 for the bias."""
    if owner == 0:
        return 0
    fields = tokens.base.size
    if owner > fields:
        return pick(tokens, owner - 1 - fields, row, ordinal, picked)
    picked[0] = token_range(tokens, owner - 1, row)[0] + ordinal
    return 1


@bare_inline
def token_bytes(tokens: Any, owner: Any, part: Any, token: Any, texts: Any) -> Any:
    """The address of a token's bytes, and of their end."""
    fields = tokens.base.size
    field = owner - 1 if owner <= fields else tokens.crosses[owner - 1 - fields, part]
    return text_bytes(texts, field, text_of(tokens, field, token))


@bare_inline
def text_of(tokens: Any, field: Any, token: Any) -> Any:
    """The index of a token's text among those of its field."""
    index = token - tokens.base[field]
    return index // tokens.step if tokens.list_of[field] < 0 else index


@bare_inline
def text_bytes(texts: Any, column: Any, index: Any) -> Any:
    """The address of a text's bytes, and of their end; texts: `TextPlaces`."""
    if texts.codes[column] != 0:
        index = np.int64(load_i32(texts.codes[column] + 4 * index))
    offset, data = texts.offsets[column] + texts.strides[column] * index, texts.data[column]
    return data + np.int64(load_i32(offset)) + texts.gaps[column], data + np.int64(load_i32(offset + 4))


@bare_kernel
def key_tokens(added: Any, rows: Any, hashed: Any, tokens: Any, found: Any, picked: Any) -> None:
    """Find the tokens that make up newly admitted keys.

    added: int64[k], positions in the batch's features, in order; rows: int32[m]; hashed: `HashedRows`; tokens:
    `TokenLayout`; found: int64[k, 4] out, padded with -1 (all -1: the bias).
    """
    index = 0
    last = first = 0  # the previous position, and the start of its owner's run: no row is walked twice
    for new in range(added.size):
        position = added[new]
        while hashed.starts[index + 1] <= position:
            index += 1
        owner = tokens.owner[hashed.features[position]]
        for part in range(4):
            found[new, part] = -1
        # most fields: at most one token
        if 0 < owner <= tokens.base.size and tokens.list_of[owner - 1] < 0:
            found[new, 0] = tokens.base[owner - 1] + rows[index] * tokens.step
            continue
        before, lowest = position, max(hashed.starts[index], last)
        while before > lowest and tokens.owner[hashed.features[before - 1]] == owner:
            before -= 1
        first = first if before == last else before
        last = position
        size = tokens_of(tokens, owner, rows[index], position - first, picked)
        for part in range(size):
            found[new, part] = picked[part]


@bare_kernel
def write_keys(
    added: Any,
    found: Any,
    features: Any,
    tokens: Any,
    texts: Any,
    prefixes: Any,
    prefix_starts: Any,
    arena: Any,
    at: Any,
) -> Any:
    """Append keys to the arena as (uint16 length, uint16 feature, bytes); return the new end, or -1 if it is full.

    found: int64[k, 4], from `key_tokens`; texts: `TextPlaces`, where each field's tokens are; prefixes: uint8, all
    prefixes end to end (`bias` first), prefix_starts: int64[owners + 1].
    """
    memory = arena.ctypes.data
    for new in range(added.size):
        prefetch_text(added, found, features, tokens, texts, new)
        feature = features[added[new]]
        owner = tokens.owner[feature]
        begin, before = at, prefix_starts[owner]
        at += 4
        length = prefix_starts[owner + 1] - before
        if at + length > arena.size:
            return -1
        copy_bytes(prefixes.ctypes.data + before, memory + at, length)
        at += length
        for part in range(4):
            if found[new, part] < 0:
                break
            start, stop = token_bytes(tokens, owner, part, found[new, part], texts)
            if at + stop - start + 1 > arena.size:
                return -1
            if part > 0:
                arena[at] = STAR
                at += 1
            copy_bytes(start, memory + at, stop - start)
            at += stop - start
        length = at - begin - 4
        arena[begin] = np.uint8(length & 0xFF)
        arena[begin + 1] = np.uint8(length >> 8)
        arena[begin + 2] = np.uint8(feature & 0xFF)
        arena[begin + 3] = np.uint8(feature >> 8)
    return at


@bare_inline
def prefetch_text(added: Any, found: Any, features: Any, tokens: Any, texts: Any, new: Any) -> None:
    """Prefetch the text of a key soon to be written, and where the text of a later one is.

    The rows were read by another thread, some batches ago: a text is in no cache near this one.
    """
    later = min(new + 2 * _KEYS_AHEAD, added.size - 1)
    if found[later, 0] >= 0:
        field, index = first_token(tokens, features[added[later]], found[later, 0])
        if texts.codes[field] != 0:
            prefetch(texts.codes[field] + 4 * index)
        else:
            prefetch(texts.offsets[field] + texts.strides[field] * index)
    soon = min(new + _KEYS_AHEAD, added.size - 1)
    if found[soon, 0] >= 0:
        field, index = first_token(tokens, features[added[soon]], found[soon, 0])
        prefetch(text_bytes(texts, field, index)[0])


@bare_inline
def first_token(tokens: Any, feature: Any, token: Any) -> Any:
    """The field of a key's first token, and the number of its text there."""
    owner = tokens.owner[feature]
    field = owner - 1 if owner <= tokens.base.size else tokens.crosses[owner - 1 - tokens.base.size, 0]
    return field, text_of(tokens, field, token)


@bare_kernel
def digest_of_nothing() -> Any:
    """The digest of an empty token, which stands for the value in a real number's key, `price=`."""
    return digest(np.int64(0), 0)


class ValueRules(NamedTuple):
    """Prefixes of values, by owner: first[o] to first[o + 1] are those of owner o, the longest first.

    first: int64[owners + 1]; features: uint16, the feature number of keys with that prefix; text: uint8, the prefixes
    end to end; starts: int64, where each starts in text, and the end of the last.
    """

    first: Any
    features: Any
    text: Any
    starts: Any


@bare_kernel
def apply_value_rules(rows: Any, hashed: Any, tokens: Any, texts: Any, rules: Any, picked: Any) -> None:
    """Give keys with a value rule's prefix that rule's feature number; the longest rule wins.

    rows: int32[m]; hashed: `HashedRows`, whose features are owners' numbers and are rewritten; tokens: `TokenLayout`;
    texts: `TextPlaces`; rules: `ValueRules`; picked: int64[4], room for a cross's tokens.
    """
    for index in range(rows.size):
        position, stop = hashed.starts[index], hashed.starts[index + 1]
        while position < stop:
            owner = np.int64(hashed.features[position])
            ordinal = 0
            while position < stop and hashed.features[position] == owner:
                if rules.first[owner] < rules.first[owner + 1]:
                    size = tokens_of(tokens, owner, rows[index], ordinal, picked)
                    rule = longest_rule(tokens, owner, picked, size, texts, rules)
                    if rule >= 0:
                        hashed.features[position] = rules.features[rule]
                ordinal += 1
                position += 1


@bare_inline
def longest_rule(tokens: Any, owner: Any, picked: Any, size: Any, texts: Any, rules: Any) -> Any:
    """The owner's first rule whose text is a prefix of these tokens' key, or -1."""
    for rule in range(rules.first[owner], rules.first[owner + 1]):
        if begins_with(tokens, owner, picked, size, texts, rules, rule):
            return rule
    return -1


@bare_inline
def begins_with(tokens: Any, owner: Any, picked: Any, size: Any, texts: Any, rules: Any, rule: Any) -> Any:
    """Whether the rule's text is a prefix of the tokens' bytes, joined by `*`."""
    at, end = rules.starts[rule], rules.starts[rule + 1]
    for part in range(size):
        if at < end and part > 0:
            if rules.text[at] != STAR:
                return False
            at += 1
        address, stop = token_bytes(tokens, owner, part, picked[part], texts)
        while at < end and address < stop:
            if rules.text[at] != load_u8(address):
                return False
            at += 1
            address += 1
        if at == end:
            return True
    return False


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


PROBABILITY_BITS = 53
DRAW_STEP = np.uint64(0x9E3779B97F4A7C15)
NEXT_DRAW = np.uint64(0xD1342543DE82EF95)
_UNUSED_BITS = np.uint64(64 - PROBABILITY_BITS)
_SALT = np.uint64(0x2545F4914F6CDD1D)


@bare_kernel
def number_single_rows(ids: Any, first_row: Any) -> None:
    """Give each row whose id is 0 an id of its own, from its number in the stream.

    ids: uint64[rows], changed in place; first_row: how many rows of the stream come before.
    """
    for row in range(ids.size):
        if ids[row] == _EMPTY:
            ids[row] = mixed(np.uint64(first_row + row) ^ _SALT)


@bare_kernel
def draw(ids: Any, clicked: Any, seed: Any, threshold: Any, drawn: Any) -> None:
    """Draw the rows of every request with a click, and of others with probability threshold / 2^53.

    ids: uint64[rows]; clicked: bool[rows], whether the row's request has a click; drawn: bool[rows] out.
    """
    for row in range(ids.size):
        drawn[row] = clicked[row] or chance(ids[row], 0, seed) < threshold


@bare_inline
def chance(key: Any, example: Any, seed: Any) -> Any:
    """A uniform whole number below 2^53, a function of the arguments: SplitMix64's finalizer over their sum."""
    state = key ^ (np.uint64(example) * DRAW_STEP + seed * NEXT_DRAW)
    return mixed(state + DRAW_STEP) >> _UNUSED_BITS
