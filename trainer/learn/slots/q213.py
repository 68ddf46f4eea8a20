"""q2.13 fixed-point numbers: unbiased rounding, and packing one with a float64 in a 64-bit word.

A value is rounded to a multiple of 2^-13, up or down at random, so that the expected error is 0 (McMahan et al., KDD
2013, section 4.1.2). The random bits are a hash of the key, the example and a seed, so a run is reproducible.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from model_store.hash_kernels import bits_of_float, mixed
from model_store.jit import bare_inline

STEP = 1.0 / 8192.0
LOW_16 = np.uint64(0xFFFF)

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_U32 = np.uint64(32)
_U40 = np.uint64(40)
_UNIT = 2.0**-32


@bare_inline
def random_bits(seed: Any, key: Any, example: Any, stream: Any) -> Any:
    """64 uniform bits for this key at this example; `stream` separates independent draws."""
    h = key ^ (np.uint64(example) * _GOLDEN) ^ seed ^ (np.uint64(stream) << _U40)
    return mixed(h)


@bare_inline
def uniform_in(bits: Any) -> Any:
    """A number in [0, 1) from the upper 32 of 64 uniform bits."""
    return np.float64(np.int64(bits >> _U32)) * _UNIT


@bare_inline
def round_to_q213(value: Any, uniform: Any) -> Any:
    """2^13 value as an integer, rounded down after adding `uniform`, from [0, 1), and clipped to 16 bits."""
    return np.int64(min(max(math.floor(value * 8192.0 + uniform), -32768.0), 32767.0))


@bare_inline
def with_q213(state: Any, q: Any) -> Any:
    """A word with its q2.13 value replaced; q is the integer."""
    return (state & ~LOW_16) | (np.uint64(q) & LOW_16)


@bare_inline
def q213_in(state: Any) -> Any:
    """The q2.13 value of a word."""
    return np.float64(np.int16(state & LOW_16)) * STEP


@bare_inline
def pack_word(value: Any, n: Any, seed: Any, key: Any, example: Any, stream: Any) -> Any:
    """A word of a q2.13 value and the upper 48 bits of n, both rounded without bias."""
    bits = random_bits(seed, key, example, stream)
    upper = np.uint64(bits_of_float(n)) + (bits & LOW_16)
    return with_q213(upper, round_to_q213(value, uniform_in(bits)))
