"""Admission: the policies that decide which keys enter the table, their counting filters, and the filters' sizes.

`admission_kernels.py` decides for a key. Input: the spec's features with their inclusion rules. Output: the kernels'
parameters, the memory of the filters, and notes where a filter holds more keys than planned.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from model_store.errors import FtrieError, SpecError
from model_store.spec.learner_section import Inclusion
from trainer.examples.examples_kernels import PROBABILITY_BITS
from trainer.examples.rules import FeatureRules
from trainer.learn.admission_kernels import (
    ALWAYS,
    BLOCK_BYTES,
    COUNTED,
    POLICY,
    SOMETIMES,
    ByRule,
    Everything,
)

_FULLER_THAN_PLANNED = 1.05
_LOW_BITS = {0: 0xFF, 1: 0x55, 2: 0x11, 3: 0x01}  # the lowest bit of each cell in a byte, by the cells' width
MOST_PROBES = 16
_GRID = 16  # the mean number of keys in a block is a multiple of 1/16, so that rounding decides nothing
_NEGLIGIBLE = 1e-15
_MOST_KEYS = 1024  # in a block; with more, it is as good as full
_BLOCK_BITS = 8 * BLOCK_BYTES

Parameters = Everything | ByRule


@dataclass(frozen=True)
class Filter:
    """One counting filter: the key of the spec that sets it, its inclusion rule, its size and its cells."""

    source: str
    inclusion: Inclusion
    size: FilterSize
    cells: npt.NDArray[np.uint8]

    def fill(self) -> float:
        """The share of cells that are not 0. O(bytes)."""
        return touched_cells(self.cells, self.size.width) / (self.cells.size * 8 >> self.size.width)

    def keys(self) -> float:
        """An estimate of the number of distinct keys counted."""
        return self.size.keys_at(self.fill())

    def false_positives(self) -> float:
        """The share of new keys that it now admits too early."""
        return false_positive_rate(self.size.width, self.size.probes, self.keys() / self.size.blocks)


class Admission:
    """The admission policies of a model. `parameters` is passed to `admits`, which updates its cells."""

    def __init__(self, parameters: Parameters, filters: Sequence[Filter] = ()) -> None:
        self.parameters = parameters
        self.filters = tuple(filters)

    @classmethod
    def of(cls, rules: FeatureRules, seed: int) -> Admission:
        """The policies of a spec's features; those of one rule (or of `[learner]`) share a filter."""
        distinct = list(dict.fromkeys(zip(rules.inclusions, rules.sources, strict=True)))
        sizes = [
            size_filter(i.keys, i.count or 0, i.false_positives, source) if _kind(i) == COUNTED else None
            for i, source in distinct
        ]
        cells = _aligned_cells(sum(size.nbytes for size in sizes if size))
        table, filters = np.zeros(len(distinct), POLICY), []
        first = 0
        for row, (inclusion, source), size in zip(table, distinct, sizes, strict=True):
            row["kind"], row["threshold"] = _kind(inclusion), _threshold(inclusion.p)
            if size is not None:
                part = cells[first * BLOCK_BYTES : (first + size.blocks) * BLOCK_BYTES]
                filters.append(Filter(source, inclusion, size, part))
                row["first"], row["blocks"], row["count"] = first, size.blocks, inclusion.count or 0
                row["width"], row["probes"] = size.width, size.probes
                first += size.blocks
        if (table["kind"] == ALWAYS).all():
            return cls(Everything())
        rule_of = np.array(
            [distinct.index(pair) for pair in zip(rules.inclusions, rules.sources, strict=True)], np.uint16
        )
        return cls(ByRule(rule_of, table, cells, np.uint64(seed)), filters)

    def close(self) -> None:
        """Admit no more keys, but those of features whose every key is admitted. Idempotent."""
        if isinstance(self.parameters, ByRule):
            policies = self.parameters.policies
            policies["threshold"] = 0  # no draw is below it
            policies["kind"][policies["kind"] != ALWAYS] = SOMETIMES

    @property
    def nbytes(self) -> int:
        """Memory of the filters, in bytes."""
        return sum(each.cells.nbytes for each in self.filters)

    def notes(self) -> Iterator[str]:
        """A note for the user on each filter with more keys than it was sized for. O(bytes)."""
        for each in self.filters:
            keys, planned = each.keys(), each.inclusion.keys
            if (
                keys > _FULLER_THAN_PLANNED * planned
                and each.false_positives() > each.inclusion.false_positives
            ):
                yield (
                    f"{each.source}: its filter has counted about {keys:,.0f} keys and was sized for {planned:,}; "
                    f"{each.false_positives():.2%} of new keys now enter too early, "
                    f"{each.inclusion.false_positives:.2%} was asked for: set keys higher"
                )

    def state(self) -> dict[str, npt.NDArray[np.uint8]]:
        """The filters' cells, in the order of the spec's rules."""
        return {f"cells.{index}": each.cells for index, each in enumerate(self.filters)}

    def restore(self, state: Mapping[str, npt.NDArray[np.uint8]]) -> None:
        """Restore a `state` of the same spec. Raises FtrieError for a state of another spec."""
        for index, each in enumerate(self.filters):
            cells = state.get(f"cells.{index}")
            if cells is None or cells.shape != each.cells.shape:
                got = None if cells is None else cells.size
                raise FtrieError(
                    f"{each.source}: the kept filter has {got} bytes, expected {each.cells.size}; "
                    "it belongs to another spec"
                )
            each.cells[:] = cells


def touched_cells(cells: npt.NDArray[np.uint8], width: int) -> int:
    """The number of cells of 2^width bits that are not 0."""
    total = 0
    for start in range(0, cells.size, 1 << 20):
        combined = cells[start : start + (1 << 20)].copy()
        for step in range(width):
            combined |= combined >> (1 << step)
        total += int(np.bitwise_count(combined & np.uint8(_LOW_BITS[width])).sum(dtype=np.int64))
    return total


def _kind(inclusion: Inclusion) -> np.uint8:
    """The kind of policy of an inclusion; ALWAYS where it admits every key."""
    if inclusion.kind == "poisson" and inclusion.p != 1.0:
        return SOMETIMES
    if inclusion.kind == "bloom" and inclusion.count != 1:
        return COUNTED
    return ALWAYS


def _threshold(p: float | None) -> int:
    return int((p or 0.0) * (1 << PROBABILITY_BITS))


def _aligned_cells(nbytes: int) -> npt.NDArray[np.uint8]:
    try:
        memory = np.zeros(nbytes + BLOCK_BYTES, np.uint8)
    except (MemoryError, ValueError):
        raise SpecError(
            f"inclusion: the filters take {nbytes / 1e9:,.0f} GB, and there is no such memory; set keys lower, or "
            'false_positives higher, or take kind = "poisson", which needs none'
        ) from None
    shift = -memory.ctypes.data % BLOCK_BYTES
    return memory[shift : shift + nbytes]


# The size of a blocked counting filter, from the number of keys it is to hold and the false-positive rate.
#
# A key is a false positive only if other keys have touched every cell that it probes, whatever the required count. So
# the rate is that of a plain Bloom filter whose keys are spread over blocks (Putze, Sanders & Singler, JEA 2009): with
# b blocks, the number of keys in a block is Poisson distributed with mean keys / b, and the number of cells that they
# have touched is computed exactly, key by key.


@dataclass(frozen=True)
class FilterSize:
    """blocks of 64 bytes, in cells of 2^width bits; probes: cells per key."""

    blocks: int
    width: int
    probes: int

    @property
    def nbytes(self) -> int:
        """The filter's memory."""
        return self.blocks * BLOCK_BYTES

    def keys_at(self, fill: float) -> float:
        """The expected number of keys when this share of its cells is touched: fill = 1 - exp(-q keys / blocks).

        q is the share of its block's cells that one key touches.
        """
        cells = _BLOCK_BITS >> self.width
        untouched = max(1.0 - fill, 0.5 / (cells * self.blocks))
        return -math.log(untouched) * self.blocks / (1.0 - (1.0 - 1.0 / cells) ** self.probes)


def size_filter(keys: int, count: int, false_positives: float, source: str = "inclusion") -> FilterSize:
    """The smallest filter for `count` occurrences that, with `keys` keys, has this false-positive rate.

    count >= 2. O(probes x block): independent of `keys`. Raises SpecError for an unreachable rate,
    naming `source`, the key of the spec.
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
    """The largest mean number of keys in a block, in 1/16, that satisfies the rate; 0 if there is none."""
    low, high = 0, _BLOCK_BITS * _GRID
    while high - low > 1:
        middle = (low + high) // 2
        if false_positive_rate(width, probes, middle / _GRID) <= false_positives:
            low = middle
        else:
            high = middle
    return low


def false_positive_rate(width: int, probes: int, keys_in_block: float) -> float:
    """The probability that all probes of a new key are touched, given the mean number of keys in a block."""
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
    """By the number of keys in a block: the probability that all probes of a new key are touched. Beyond: 1."""
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
