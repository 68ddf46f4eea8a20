"""How large a blocked counting filter must be: from the keys it is to hold and the share that may enter too early.

A key is let in too early only if other keys have touched every cell that it probes, whatever the count asked for. So
the rate is that of a plain Bloom filter whose keys are spread over blocks (Putze, Sanders & Singler, JEA 2009): with
b blocks, a block holds i keys with a Poisson probability of mean keys / b, and how many of its cells those have touched
is counted here throw by throw, not approximated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from model_store.errors import SpecError
from trainer.admission.kernels import BLOCK_BYTES

MOST_PROBES = 16
_GRID = 16  # the mean number of keys in a block is a multiple of 1/16, so that rounding decides nothing
_NEGLIGIBLE = 1e-15
_MOST_KEYS = 1024  # in a block; with more, it is as good as full
_BLOCK_BITS = 8 * BLOCK_BYTES


@dataclass(frozen=True)
class FilterSize:
    """blocks of 64 bytes, in cells of 2^width bits; probes: cells a key."""

    blocks: int
    width: int
    probes: int

    @property
    def nbytes(self) -> int:
        """The filter's memory."""
        return self.blocks * BLOCK_BYTES

    def keys_at(self, fill: float) -> float:
        """How many keys it holds on average when this share of its cells is touched: that is 1 - exp(-q keys / blocks).

        q is the share of its block's cells that one key touches.
        """
        cells = _BLOCK_BITS >> self.width
        untouched = max(1.0 - fill, 0.5 / (cells * self.blocks))
        return -math.log(untouched) * self.blocks / (1.0 - (1.0 - 1.0 / cells) ** self.probes)


def size_filter(keys: int, count: int, false_positives: float, source: str = "inclusion") -> FilterSize:
    """The smallest filter that tells `count` occurrences and, holding `keys` keys, errs on that share of new ones.

    count >= 2. O(probes x block): independent of `keys`. Raises SpecError for a rate that no such filter reaches,
    naming `source`, where the spec asks for it.
    """
    width = cell_width(count)
    load, probes = max(
        (_load(width, probes, false_positives), probes) for probes in range(1, MOST_PROBES + 1)
    )
    if not load:
        raise SpecError(
            f"{source}.false_positives: {false_positives:g} is out of reach with count = {count}; ask for 1e-6 or more"
        )
    blocks = -(-keys * _GRID // load)
    return FilterSize(blocks, width, probes)


def cell_width(count: int) -> int:
    """log2 of the bits a cell needs to hold count - 1: 0 to 3."""
    return next(width for width in range(4) if count <= 1 << (1 << width))


def _load(width: int, probes: int, false_positives: float) -> int:
    """The largest mean number of keys in a block, in 1/16, with which the rate is still met; 0 if there is none."""
    low, high = 0, _BLOCK_BITS * _GRID
    while high - low > 1:
        middle = (low + high) // 2
        if false_positive_rate(width, probes, middle / _GRID) <= false_positives:
            low = middle
        else:
            high = middle
    return low


def false_positive_rate(width: int, probes: int, keys_in_block: float) -> float:
    """The share of unseen keys whose probes are all touched, with so many keys in a block on average."""
    rates = _rates(width, probes)
    right = weights = 0.0
    weight = 1.0  # Poisson probabilities, up to a factor: no exponential, so that every machine gets one size
    held = 0
    while held <= keys_in_block or weight > _NEGLIGIBLE * weights:
        right += weight * (1.0 - rates[held] if held < rates.size else 0.0)
        weights += weight
        held += 1
        weight *= keys_in_block / held
    return float(1.0 - right / weights)


@cache
def _rates(width: int, probes: int) -> npt.NDArray[np.float64]:
    """By the number of keys a block holds: how likely all probes of another fall on touched cells. Beyond: 1."""
    cells = _BLOCK_BITS >> width
    share = np.arange(cells + 1) / cells
    all_touched = np.ones(cells + 1)
    for _ in range(probes):
        all_touched *= share
    touched = np.zeros(cells + 1)
    touched[0] = 1.0
    rates = [0.0]
    while rates[-1] < 1.0 - _NEGLIGIBLE and len(rates) < _MOST_KEYS:
        for _ in range(probes):
            new = touched * (1.0 - share)
            touched = touched * share
            touched[1:] += new[:-1]
        rates.append(float((touched * all_touched).sum()))
    return np.array(rates)
