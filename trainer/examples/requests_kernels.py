"""Kernels over a batch's request ids: one for rows that have none, and the draw of a sample."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.hash_kernels import mixed
from model_store.jit import bare_inline, bare_kernel

_NONE = np.uint64(0)
_SALT = np.uint64(0x2545F4914F6CDD1D)


@bare_kernel
def name_single_rows(ids: Any, first_row: Any) -> None:
    """Give each row whose id is 0 one of its own, from its number in the stream.

    ids: uint64[rows], changed in place; first_row: how many rows of the stream come before.
    """
    for row in range(ids.size):
        if ids[row] == _NONE:
            ids[row] = mixed(np.uint64(first_row + row) ^ _SALT)


@bare_kernel
def draw(ids: Any, clicked: Any, seed: Any, threshold: Any, drawn: Any) -> None:
    """Draw the rows of every request with a click, and those of the others with a chance of threshold / 2^53.

    ids: uint64[rows]; clicked: bool[rows], whether the row's request has a click; drawn: bool[rows] out.
    """
    for row in range(ids.size):
        drawn[row] = clicked[row] or chance(ids[row], 0, seed) < threshold


PROBABILITY_BITS = 53


_UNUSED_BITS = np.uint64(64 - PROBABILITY_BITS)


DRAW_STEP = np.uint64(0x9E3779B97F4A7C15)


NEXT_DRAW = np.uint64(0xD1342543DE82EF95)


@bare_inline
def chance(key: Any, example: Any, seed: Any) -> Any:
    """A whole number below 2^53, uniform, a function of its three arguments: SplitMix64's finalizer over their sum."""
    state = key ^ (np.uint64(example) * DRAW_STEP + seed * NEXT_DRAW)
    return mixed(state + DRAW_STEP) >> _UNUSED_BITS
