"""Kernels that decide whether a key that is not in the table is admitted: McMahan et al. (KDD 2013), section 4.1.

Numba compiles a learner once for each class of admission, so `admits` costs nothing where every key is admitted.

The counting filter is blocked: block b is the 64 bytes of `cells` from 64 b, and holds 512 >> width cells of 1 << width
bits. All probes of a key are in one block, so a lookup costs one cache miss.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from model_store.hash_kernels import mixed
from model_store.jit import bare_inline, bare_kernel, implements, stub
from trainer.examples.examples_kernels import DRAW_STEP, NEXT_DRAW, chance

BLOCK_BYTES = 64

ALWAYS, SOMETIMES, COUNTED = np.uint8(0), np.uint8(1), np.uint8(2)

_BLOCK_BITS = 9  # log2 of the bits of a block
_32 = np.uint64(32)
_64 = np.uint64(64)

# threshold: for SOMETIMES, out of 2^53. The other fields are for COUNTED; first, blocks: the filter's blocks; width:
# log2 of the bits of a cell, which must hold count - 1; probes: cells per key.
POLICY = np.dtype(
    [
        ("threshold", np.uint64),
        ("first", np.int64),
        ("blocks", np.int64),
        ("width", np.int64),
        ("probes", np.int64),
        ("count", np.int64),
        ("kind", np.uint8),
    ],
    align=True,
)


class Everything(NamedTuple):
    """Every key is admitted at its first occurrence."""


class ByRule(NamedTuple):
    """Each feature has its own policy.

    rule_of: uint16[features], indexes of policies; policies: `POLICY`[n]; cells: uint8, the filters of all policies,
    aligned to 64 bytes.
    """

    rule_of: Any
    policies: Any
    cells: Any
    seed: np.uint64


@stub
def admits(admission: Any, key: Any, feature: Any, example: Any) -> Any:
    """Whether `key`, which is not in the table, is admitted now; a filter also counts this occurrence.

    For kernels only: admission is one of the classes above; key uint64, the key's hash; feature int64; example int64,
    the number of the example in the stream, from 1.
    """


@bare_inline
def seen_often(cells: Any, policy: Any, key: Any) -> Any:
    """Count one occurrence of `key` in a policy's filter; True if it was the `count`-th, or a false positive.

    Conservative update: only the cells with the lowest count are incremented; the others exceed this key's count. A key
    that was counted count - 1 times is not counted further, so cells never overflow.
    """
    width = policy.width
    block = (policy.first + np.int64(((key >> _32) * np.uint64(policy.blocks)) >> _32)) * BLOCK_BYTES
    shift = _64 - np.uint64(_BLOCK_BITS - width)
    highest = (1 << (1 << width)) - 1
    start = mixed(key)
    least, walk = highest, start
    for _ in range(policy.probes):
        bit = np.int64(walk >> shift) << width
        least = min(least, (np.int64(cells[block + (bit >> 3)]) >> (bit & 7)) & highest)
        walk = walk * NEXT_DRAW + DRAW_STEP
    if least + 1 >= policy.count:
        return True
    walk = start
    for _ in range(policy.probes):
        bit = np.int64(walk >> shift) << width
        byte, low = block + (bit >> 3), bit & 7
        if (np.int64(cells[byte]) >> low) & highest == least:
            cells[byte] = np.uint8(np.int64(cells[byte]) + (1 << low))
        walk = walk * NEXT_DRAW + DRAW_STEP
    return False


implements(admits, Everything)(lambda admission, key, feature, example: True)


@implements(admits, ByRule)
def _by_rule(admission: Any, key: Any, feature: Any, example: Any) -> Any:
    policy = admission.policies[admission.rule_of[feature]]
    if policy.kind == ALWAYS:
        return True
    if policy.kind == SOMETIMES:
        return chance(key, example, admission.seed) < policy.threshold
    return seen_often(admission.cells, policy, key)


@bare_kernel
def admit_each(admission: Any, keys: Any, features: Any, examples: Any, admitted: Any) -> None:
    """`admits` for a sequence of occurrences.

    keys: uint64[n]; features, examples: int64[n]; admitted: uint8[n] out.
    """
    for index in range(keys.size):
        admitted[index] = admits(admission, keys[index], features[index], examples[index])
