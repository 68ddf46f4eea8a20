"""What is counted of one column while the log is read: values, how they go with the label, and what is odd in them.

In: batches of cells and the rows' labels. Out: counts, from which `column_checks` makes findings. Memory: a sample of
at most VALUES values, and BINS bins of numbers. Labels are counted in two halves of the log, so that what one half
says of a value can be judged on the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.inspect.cells import Cells, cells_of
from trainer.inspect.sketches import ABSENT, DistinctSample, Float64s, Int64s, UInt64s, mixed

VALUES = 1 << 13
"""Distinct values of a column that are kept; a log of more than 128 columns keeps fewer of each."""
FEWEST_VALUES = 1 << 9
BINS = 64
FEW = 64
"""A column with at most so many values keeps their texts."""
ROWS, VIEWS, CLICKS, OTHER_VIEWS, OTHER_CLICKS = range(5)
"""The sums of each value: its rows; views and clicks in one half of the log; the same in the other half."""
_64_BITS = (1 << 64) - 1
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Rows:
    """The rows of a batch as the checks read them, each array one element a row.

    first: the number of rows before; marks: where each is, see `Places`; views: float64, 1 for a valid label, 0 for an
    invalid one, or the views of a log of counts; clicks: float64; other: which half of the log a row is in.
    """

    count: int
    first: int
    marks: Int64s
    views: Float64s
    clicks: Float64s
    other: Bools

    @cached_property
    def four(self) -> tuple[Float64s, Float64s, Float64s, Float64s]:
        """Views and clicks of one half, then of the other."""
        one, other = (~self.other).astype(np.float64), self.other.astype(np.float64)
        return self.views * one, self.clicks * one, self.views * other, self.clicks * other


@dataclass
class Odd:
    """Values of one odd kind: how many rows, and the first of them."""

    rows: int = 0
    text: str = ""
    mark: int = -1

    def add(self, which: Bools, cells: Cells, marks: Int64s) -> None:
        """Add the cells whose value is one of `which`, bool[values + 1]."""
        if not which.any():
            return
        found = which & (cells.per_value > 0)
        self.rows += int(cells.per_value[found].sum())
        if self.mark < 0 and found.any():
            codes = np.flatnonzero(found)
            code = int(codes[np.argmin(cells.first_rows[codes])])
            self.text, self.mark = cells.text(code), int(marks[cells.first_rows[code]])


class ColumnCounts:
    """The counts of one column. rows: those read so far; filled: those with a value."""

    def __init__(self, name: str, capacity: int = VALUES) -> None:
        self.name = name
        self.rows = self.filled = 0
        self.is_several = False
        self.sample = DistinctSample(capacity, 5)
        self.texts: dict[int, str] = {}
        self.example, self.example_mark = "", -1
        self.told, self.told_mark = "", -1
        """A value of a clicked row that is not the usual value, and where it is."""
        self.usual: int = int(ABSENT)
        """The hash of the value that most of the first rows have."""
        self.is_numeric = False
        """Whether at least half of the first values are numbers."""
        self.usual_sums, self.absent_sums, self.total = np.zeros(5), np.zeros(5), np.zeros(5)
        self.edges: Float64s | None = None
        self.bins = np.zeros((BINS + 2, 5))
        """Of each range between edges; then of what is no number; then of no value."""
        self.numbers, self.fractions, self.largest = 0, 0, 0.0
        self.not_number, self.not_finite, self.missing, self.broken = Odd(), Odd(), Odd(), Odd()
        self.digest = 0
        self.growth: list[tuple[int, int]] = []

    def add(self, column: Any, rows: Rows) -> UInt64s:
        """Count the next rows; returns their hashes: uint64[rows]."""
        cells = cells_of(column)
        self.is_several |= cells.row is not None
        self.rows += rows.count
        self.filled += int(np.count_nonzero(cells.row_hashes != ABSENT))
        sums = self._sums(cells, rows)
        self.total += [rows.count, *(each.sum() for each in rows.four)]
        self.absent_sums += sums[cells.absent]
        self.usual_sums += sums[cells.hashes == np.uint64(self.usual)].sum(axis=0)
        self._count_values(cells, sums, rows.marks)
        self._count_numbers(cells, sums, rows.marks)
        self.broken.add(cells.broken, cells, rows.marks)
        self._keep_example(cells, rows)
        order = np.arange(rows.first, rows.first + rows.count, dtype=np.int64)
        added = int(np.sum(mixed(cells.row_hashes ^ mixed(order)), dtype=np.uint64))
        self.digest = (self.digest + added) & _64_BITS
        self._note_growth()
        return cells.row_hashes

    @property
    def is_filled_only_for_clicks(self) -> bool:
        """Whether every row with a value is clicked."""
        filled = self.total - self.absent_sums
        return bool(filled[CLICKS] + filled[OTHER_CLICKS] == filled[VIEWS] + filled[OTHER_VIEWS] > 0)

    @property
    def distinct(self) -> int:
        """Distinct values; an estimate if the sample is not exact."""
        return self.sample.distinct

    @property
    def repeats(self) -> bool:
        """Whether more than one in a thousand rows has a value of an earlier row."""
        kept = self.sample.keys != ABSENT
        return bool(self.sample.sums[kept, ROWS].sum() > 1.001 * np.count_nonzero(kept))

    def _sums(self, cells: Cells, rows: Rows) -> Float64s:
        """float64[values + 1, 5]: the sums of each value of the batch."""
        parts = [cells.per_value.astype(np.float64), *(cells.sums(each) for each in rows.four)]
        sums: Float64s = np.stack(parts, axis=1)
        if cells.row is not None:  # rows without a member have no cell
            empty = cells.row_hashes == ABSENT
            of_empty = [each[empty].sum() for each in rows.four]
            sums[cells.absent] = [np.count_nonzero(empty), *of_empty]
        return sums

    def _count_values(self, cells: Cells, sums: Float64s, marks: Int64s) -> None:
        there = np.flatnonzero(sums[:, ROWS] > 0)
        hashes = cells.hashes[there]
        first = (
            marks[np.maximum(cells.first_rows[there], 0)] if marks.size else np.zeros(there.size, np.int64)
        )
        order = np.argsort(hashes, kind="stable")
        self.sample.add(hashes[order], sums[there][order], first[order])
        if len(self.texts) <= FEW:
            for code, key in zip(there.tolist(), hashes.tolist(), strict=True):
                if code != cells.absent and len(self.texts) <= FEW:
                    self.texts.setdefault(key, cells.text(code))

    def look(self, column: Any) -> None:
        """Choose the usual value and the edges of bins by the first rows. Called before `add`."""
        cells = cells_of(column)
        counts = cells.per_value.copy()
        counts[cells.absent] = np.count_nonzero(cells.row_hashes == ABSENT)
        self.usual = int(cells.hashes[int(np.argmax(counts))])
        numbers = cells.numbers
        is_number = np.isfinite(numbers)
        self.is_numeric = bool(2 * cells.per_value[is_number].sum() >= cells.per_value[:-1].sum() > 0)
        known = is_number & (cells.hashes != np.uint64(self.usual))
        if self.is_numeric and known.any():
            values = np.repeat(numbers[known], cells.per_value[known])
            self.edges = np.unique(np.quantile(values, np.linspace(0, 1, BINS)[1:-1]))

    def _count_numbers(self, cells: Cells, sums: Float64s, marks: Int64s) -> None:
        """Ranges of numbers, and what is odd beside them."""
        self.missing.add(cells.missing_words, cells, marks)
        if not self.is_numeric:
            return
        numbers, counts = cells.numbers, cells.per_value
        is_number = np.isfinite(numbers)
        self.numbers += int(counts[is_number].sum())
        with np.errstate(invalid="ignore"):
            self.fractions += int(counts[is_number & (np.floor(numbers) != numbers)].sum())
        self.largest = max(self.largest, float(np.abs(numbers[is_number]).max(initial=0.0)))
        self.not_finite.add(cells.not_finite, cells, marks)
        other = ~is_number & ~cells.not_finite & ~cells.missing_words
        other[cells.absent] = False
        self.not_number.add(other, cells, marks)
        if self.edges is not None:
            bins = np.full(numbers.size, BINS)
            bins[is_number] = np.searchsorted(self.edges, numbers[is_number], side="right")
            bins[cells.absent] = BINS + 1
            bins[cells.hashes == np.uint64(self.usual)] = BINS - 1  # counted alone, not among its neighbours
            np.add.at(self.bins, bins, sums)

    def _keep_example(self, cells: Cells, rows: Rows) -> None:
        if self.example_mark < 0 and (filled := np.flatnonzero(cells.row_hashes != ABSENT)).size:
            self.example, self.example_mark = _of_row(cells, int(filled[0])), int(rows.marks[filled[0]])
        if self.told_mark < 0:
            tells = (rows.clicks > 0) & (cells.row_hashes != ABSENT)
            if cells.row is None:
                tells &= cells.row_hashes != np.uint64(self.usual)
            if (found := np.flatnonzero(tells)).size:
                self.told, self.told_mark = _of_row(cells, int(found[0])), int(rows.marks[found[0]])

    def _note_growth(self) -> None:
        """How many distinct values had come when the rows doubled."""
        if self.filled >= (2 * self.growth[-1][0] if self.growth else 1000):
            self.growth.append((self.filled, self.distinct))

    def new_values(self) -> float:
        """New values a filled row, in the later half of the rows; 0 for a log that is too short to tell."""
        earlier = [each for each in self.growth if 2 * each[0] <= self.filled]
        if not earlier:
            return 0.0
        filled, distinct = earlier[-1]
        return max(self.distinct - distinct, 0) / (self.filled - filled)


def _of_row(cells: Cells, row: int) -> str:
    at = row if cells.row is None else int(np.searchsorted(cells.row, row))
    return cells.text(int(cells.codes[at]))
