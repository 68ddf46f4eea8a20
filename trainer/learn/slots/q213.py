"""A q2.13 value, alone or in a word with what else a slot holds; rounding by chance.

A value is rounded to a multiple of 2^-13, up or down, so that the expected error is 0 (McMahan et al., KDD 2013,
section 4.1.2). Chance is a hash of the key, the example and a seed, so it is the same each time.
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
def chance(seed: Any, key: Any, example: Any, what: Any) -> Any:
    """64 bits of chance for this key at this example, uniform and reproducible."""
    h = key ^ (np.uint64(example) * _GOLDEN) ^ seed ^ (np.uint64(what) << _U40)
    return mixed(h)


@bare_inline
def luck_in(bits: Any) -> Any:
    """A number in [0, 1) from the upper 32 bits of chance."""
    return np.float64(np.int64(bits >> _U32)) * _UNIT


@bare_inline
def rounded(value: Any, luck: Any) -> Any:
    """2^13 value as an integer, rounded down after adding luck in [0, 1), and clipped to 16 bits."""
    return np.int64(min(max(math.floor(value * 8192.0 + luck), -32768.0), 32767.0))


@bare_inline
def with_value(state: Any, q: Any) -> Any:
    """A state word with another value."""
    return (state & ~LOW_16) | (np.uint64(q) & LOW_16)


@bare_inline
def value_in(state: Any) -> Any:
    """The value of a state word."""
    return np.float64(np.int16(state & LOW_16)) * STEP


@bare_inline
def word_of(value: Any, n: Any, seed: Any, key: Any, example: Any, what: Any) -> Any:
    """A word of a q2.13 value and the upper 48 bits of n, both rounded without bias."""
    bits = chance(seed, key, example, what)
    upper = np.uint64(bits_of_float(n)) + (bits & LOW_16)
    return with_value(upper, rounded(value, luck_in(bits)))
