"""The admission policy of a model: what kernels take, the memory it needs, and how full its filters are.

How a key is judged stands in `kernels.py`; how large a filter must be in `sizing.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from model_store.errors import FtrieError, SpecError
from model_store.learner_section import Inclusion
from trainer.admission.kernels import (
    ALWAYS,
    BLOCK_BYTES,
    COUNTED,
    POLICY,
    PROBABILITY_BITS,
    SOMETIMES,
    ByRule,
    Everything,
)
from trainer.admission.rules import FeatureRules
from trainer.admission.sizing import FilterSize, false_positive_rate, size_filter

_FULLER_THAN_PLANNED = 1.05
_LOW_BITS = {0: 0xFF, 1: 0x55, 2: 0x11, 3: 0x01}  # the lowest bit of each cell in a byte, by the cells' width

Parameters = Everything | ByRule


@dataclass(frozen=True)
class Filter:
    """One counting filter: where the spec asks for it, what it asks for, its size and its cells."""

    source: str
    inclusion: Inclusion
    size: FilterSize
    cells: npt.NDArray[np.uint8]

    def fill(self) -> float:
        """The share of cells that are not 0. O(bytes)."""
        return touched_cells(self.cells, self.size.width) / (self.cells.size * 8 >> self.size.width)

    def keys(self) -> float:
        """About how many distinct keys it has counted."""
        return self.size.keys_at(self.fill())

    def false_positives(self) -> float:
        """The share of new keys that it now takes for old ones."""
        return false_positive_rate(self.size.width, self.size.probes, self.keys() / self.size.blocks)


class Admission:
    """Decides which keys enter. `parameters` goes to `kernels.admits`, which writes into its cells."""

    def __init__(self, parameters: Parameters, filters: Sequence[Filter] = ()) -> None:
        self.parameters = parameters
        self.filters = tuple(filters)

    @classmethod
    def of(cls, rules: FeatureRules, seed: int) -> Admission:
        """The policies of a spec's features, those of one rule (or of `[learner]`) sharing one filter."""
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

    @property
    def nbytes(self) -> int:
        """Memory held by the filters, in bytes."""
        return sum(each.cells.nbytes for each in self.filters)

    def notes(self) -> Iterator[str]:
        """What the user should hear: each filter that has counted more keys than it was sized for. O(bytes)."""
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
        """What must be kept to go on: the filters' cells, in the order of the spec's rules."""
        return {f"cells.{index}": each.cells for index, each in enumerate(self.filters)}

    def restore(self, state: Mapping[str, npt.NDArray[np.uint8]]) -> None:
        """Take over a `state` of the same spec. Raises FtrieError where it is of another."""
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
    """How many cells of 2^width bits are not 0."""
    total = 0
    for start in range(0, cells.size, 1 << 20):
        folded = cells[start : start + (1 << 20)].copy()
        for step in range(width):
            folded |= folded >> (1 << step)
        total += int(np.bitwise_count(folded & np.uint8(_LOW_BITS[width])).sum(dtype=np.int64))
    return total


def _kind(inclusion: Inclusion) -> np.uint8:
    """The policy of an inclusion; one that lets everything in is no policy."""
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
