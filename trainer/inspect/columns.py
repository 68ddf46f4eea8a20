"""What is counted of one column while the log is read: values, how they go with the label, and what is odd in them.

In: batches of cells and the rows' labels. Out: counts, from which `checks` makes findings. Memory: a sample of at most
VALUES distinct values, and BINS bins of numbers. Labels are counted in two halves of the log, so that what one half
says of a value can be judged on the other.

Distinct sampling (Gibbons, VLDB 2001; Flajolet's adaptive sampling, 1990): a value is kept if the lowest `level` bits
of its hash are 0, and `level` rises by one whenever more than `capacity` values are kept. All occurrences of a kept
value are counted, so sums of a kept value are exact; sums over all values are those of the kept ones times
2 ** level. Until `capacity` distinct values have come, everything is exact. Above, a count of distinct values has a
relative standard error of at most 1.2 / sqrt(capacity): 1.3 % for 8,192, 0.12 % for 1,048,576.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model_store.hash_kernels import digest_columns
from trainer.formats.cells import addresses, plain
from trainer.inspect.findings import Cases, words_of

# --- A sample of distinct values ---


UInt64s = npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]

_EXAMPLES = 3
ABSENT = np.uint64(0)
"""The hash of no value; it is always kept."""


def mixed(numbers: npt.NDArray[Any]) -> UInt64s:
    """Hashes of 64-bit values, never ABSENT: the finalizer of splitmix64 (Steele et al., OOPSLA 2014)."""
    z = numbers.view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: UInt64s = z ^ (z >> np.uint64(31))
    return np.where(found == ABSENT, np.uint64(1), found)


class DistinctSample:
    """A sample of the distinct values of a stream, by their hashes, with sums for each and where each was first.

    keys: uint64[n], ascending; sums: float64[n, width]; first: int64[n], the mark of each value's first row.
    """

    def __init__(self, capacity: int, width: int) -> None:
        self.keys: UInt64s = np.empty(0, np.uint64)
        self.sums: Float64s = np.empty((0, width))
        self.first: Int64s = np.empty(0, np.int64)
        self.level = 0
        self._capacity = capacity

    @property
    def scale(self) -> int:
        """How many distinct values of the stream one kept value stands for."""
        return 1 << self.level

    @property
    def is_exact(self) -> bool:
        """True if all values are kept."""
        return self.level == 0

    @property
    def distinct(self) -> int:
        """The number of distinct values, without ABSENT; an estimate unless `is_exact`."""
        return int(np.count_nonzero(self.keys != ABSENT)) * self.scale

    def add(self, keys: UInt64s, sums: Float64s, marks: Int64s) -> tuple[Int64s, Int64s]:
        """Add to the sums of distinct `keys`: float64[n, width]; marks: int64[n], where each is first in this part.

        Returns the indices into `keys` of those that were kept before, and the marks of their first rows.
        """
        kept = np.flatnonzero((keys & np.uint64(self.scale - 1)) == 0)
        keys, sums, marks = keys[kept], sums[kept], marks[kept]
        at = np.searchsorted(self.keys, keys)
        known = np.zeros(keys.size, np.bool_)
        if self.keys.size:
            inside = at < self.keys.size
            known[inside] = self.keys[at[inside]] == keys[inside]
            self.sums[at[known]] += sums[known]
        before = self.first[at[known]]
        if not known.all():
            every = np.concatenate([self.keys, keys[~known]])
            both = (
                every,
                np.concatenate([self.sums, sums[~known]]),
                np.concatenate([self.first, marks[~known]]),
            )
            chosen: Any = np.argsort(every, kind="stable")
            self.keys, self.sums, self.first = (each[chosen] for each in both)
            while self.keys.size > self._capacity:
                self.level += 1
                chosen = (self.keys & np.uint64(self.scale - 1)) == 0
                self.keys, self.sums, self.first = (
                    each[chosen] for each in (self.keys, self.sums, self.first)
                )
        return kept[known], before


class Repeats:
    """Counts keys that came before; remembers the first few, each with the earlier row."""

    def __init__(self, capacity: int = 1 << 20) -> None:
        self.sample = DistinctSample(capacity, 1)
        self.examples: list[tuple[int, int]] = []
        self.rows = 0

    def add(self, keys: UInt64s, marks: Int64s) -> None:
        """Take the keys of the next rows, and where they are."""
        self.rows += keys.size
        distinct, index, counts = np.unique(keys, return_index=True, return_counts=True)
        known, before = self.sample.add(distinct, counts[:, None].astype(np.float64), marks[index])
        if len(self.examples) < _EXAMPLES and (known.size or distinct.size < keys.size):
            order = np.argsort(keys, kind="stable")
            same = keys[order][1:] == keys[order][:-1]
            later = np.concatenate([marks[index[known]], marks[order[1:][same]]])
            earlier = np.concatenate([before, marks[order[:-1][same]]])
            first = np.argsort(later, kind="stable")[:_EXAMPLES]
            self.examples += zip(later[first].tolist(), earlier[first].tolist(), strict=True)
            del self.examples[_EXAMPLES:]

    @property
    def repeated(self) -> int:
        """Rows whose key came before; an estimate if the sample is not exact."""
        sums = self.sample.sums[:, 0]
        return int((sums - 1.0).sum()) * self.sample.scale

    @property
    def evenly(self) -> float:
        """The share of the keys that came as often as most did, more than once: near 1 for copies of a whole file."""
        times, keys = np.unique(self.sample.sums[:, 0], return_counts=True)
        return float(keys[times > 1.0].max(initial=0)) / max(int(keys.sum()), 1)


# --- The cells of a batch ---


Flags = npt.NDArray[np.bool_]
_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
MISSING = tuple(
    b"null|NULL|Null|nan|NaN|none|None|NONE|n/a|N/A|#N/A|NA|undefined|nil|\\N|(null)|<null>".split(b"|")
)
"""Texts that stand for no value in logs whose writer had nothing better."""
_MOJIBAKE = r"Ã[\x{0080}-\x{00BF}]|â€|Â[\x{00A0}-\x{00BF}]|\x{FFFD}"
"""UTF-8 that was read as Latin-1 or Windows-1252 and written again, or a character that was lost before."""


@dataclass(frozen=True)
class Cells:
    """The cells of one column in one batch.

    values: the distinct values, an Arrow array without nulls; hashes: uint64[values + 1], the last one ABSENT, for no
    value; codes: int64[cells], indices into hashes; row: int64[cells], None where each row is one cell; row_hashes:
    uint64[rows], ABSENT for rows without a value.
    """

    values: Any
    hashes: UInt64s
    codes: Int64s
    row: Int64s | None
    row_hashes: UInt64s

    @property
    def absent(self) -> int:
        """The code of no value."""
        return len(self.values)

    @property
    def is_text(self) -> bool:
        """True if the values are text."""
        return bool(pa.types.is_binary(self.values.type))

    @cached_property
    def per_value(self) -> Int64s:
        """int64[values + 1]: how often each value occurs."""
        return np.bincount(self.codes, minlength=self.hashes.size)

    @cached_property
    def first_rows(self) -> Int64s:
        """int64[values + 1]: the first row of each value, -1 where it does not occur."""
        first = np.full(self.hashes.size, -1, np.int64)
        rows = np.arange(self.codes.size) if self.row is None else self.row
        first[self.codes[::-1]] = rows[::-1]
        return first

    def sums(self, weights: Float64s) -> Float64s:
        """float64[values + 1]: the sum of weights, float64[rows], of the rows of each value."""
        of_cells = weights if self.row is None else weights[self.row]
        return np.bincount(self.codes, of_cells, self.hashes.size).astype(np.float64)

    def text(self, code: int) -> str:
        """A value, for people."""
        return words_of(self.values[code].as_py()) if code < len(self.values) else ""

    @cached_property
    def numbers(self) -> Float64s:
        """float64[values + 1]: the values as numbers, which may be infinite; NaN for those that are not numbers."""
        found = np.full(self.hashes.size, np.nan)
        kind = self.values.type
        if not len(self.values) or pa.types.is_null(kind) or pa.types.is_boolean(kind):
            return found
        if not self.is_text:
            found[:-1] = self.values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
            return found
        texts = self._strings
        if texts is None:
            return found
        try:
            found[:-1] = texts.cast(pa.float64()).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid:
            is_number = pc.match_substring_regex(texts, _NUMBER)
            numbers = pc.if_else(is_number, pc.utf8_trim_whitespace(texts), pa.scalar(None, pa.string()))
            try:
                found[:-1] = numbers.cast(pa.float64()).to_numpy(zero_copy_only=False)
            except pa.ArrowInvalid:  # +5 is a number to ftrie
                found[:-1] = [np.nan if text is None else float(text) for text in numbers.to_pylist()]
        return found

    @cached_property
    def not_finite(self) -> Flags:
        """bool[values + 1]: NaN and infinities: of numbers only."""
        if pa.types.is_floating(self.values.type):
            return np.append(~np.isfinite(self.numbers[:-1]), False)
        return np.isinf(self.numbers) if self.is_text else np.zeros(self.hashes.size, np.bool_)

    @cached_property
    def missing_words(self) -> Flags:
        """bool[values + 1]: texts that stand for no value."""
        if not self.is_text or not len(self.values):
            return np.zeros(self.hashes.size, np.bool_)
        words = pc.is_in(self.values, value_set=pa.array(MISSING, pa.binary()))
        return np.append(words.to_numpy(zero_copy_only=False), False)

    @cached_property
    def broken(self) -> Flags:
        """bool[values + 1]: texts that are not UTF-8, or were broken before."""
        found = np.zeros(self.hashes.size, np.bool_)
        if not self.is_text or not len(self.values):
            return found
        if self._strings is None:
            found[:-1] = [not _is_utf8(value) for value in self.values.to_pylist()]
        elif not pc.all(pc.string_is_ascii(self._strings)).as_py():
            found[:-1] = pc.match_substring_regex(self._strings, _MOJIBAKE).to_numpy(zero_copy_only=False)
        return found

    @cached_property
    def _strings(self) -> Any:
        """The texts as strings; None if one is not UTF-8."""
        try:
            return self.values.cast(pa.string())
        except pa.ArrowInvalid:
            return None


def cells_of(column: Any) -> Cells:
    """The cells of a batch's column, of one of the plain types of `trainer.formats.batch`."""
    array = plain(column)
    kind = array.type
    rows = len(array)
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return _members(array, rows)
    values, hashes, codes = _distinct(array)
    return Cells(values, hashes, codes, None, hashes[codes])


def _members(array: Any, rows: int) -> Cells:
    is_map = pa.types.is_map(array.type)
    offsets = array.offsets.to_numpy().astype(np.int64)
    counts = np.where(np.asarray(array.is_valid()), np.diff(offsets), 0)
    if array.null_count:  # a null may hide members
        hidden = np.repeat(np.asarray(array.is_valid()), np.diff(offsets))
        chosen = pa.array(offsets[0] + np.flatnonzero(hidden))
    else:
        chosen = pa.array(np.arange(offsets[0], offsets[-1]))
    flat = (array.keys if is_map else array.values).take(chosen)
    row = np.repeat(np.arange(rows), counts)
    values, hashes, codes = _distinct(plain(flat))
    of_cells = mixed(hashes[codes])
    if is_map:
        x = array.items.take(chosen).to_numpy(zero_copy_only=False).astype(np.float64)
        of_cells = of_cells + mixed(x.view(np.uint64))
    before = np.concatenate([np.zeros(1, np.uint64), np.cumsum(of_cells)])
    stops = np.cumsum(counts)
    row_hashes = np.where(counts > 0, before[stops] - before[stops - counts], ABSENT)
    return Cells(values, hashes, codes, row, row_hashes)


def _distinct(array: Any) -> tuple[Any, UInt64s, Int64s]:
    """The distinct values, their hashes with ABSENT at the end, and the code of each element."""
    if pa.types.is_null(array.type):
        return array.slice(0, 0), np.array([ABSENT]), np.zeros(len(array), np.int64)
    encoded = array.dictionary_encode()
    values = encoded.dictionary
    hashes = np.append(_hashes(values), ABSENT)
    codes = encoded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False).astype(np.int64)
    if pa.types.is_binary(values.type):  # an empty text is no value
        codes[hashes[codes] == ABSENT] = len(values)
    return values, hashes, codes


_NOT_RAW = np.zeros(1, np.uint8)


def _hashes(values: Any) -> UInt64s:
    """uint64[values]: ABSENT for an empty text. A whole number is the same as a double and as an integer."""
    kind = values.type
    if pa.types.is_binary(kind):
        found = np.empty(len(values), np.uint64)
        digest_columns(*addresses([values]), len(values), _NOT_RAW, found.reshape(1, -1))
        return found
    if pa.types.is_boolean(kind):
        return mixed(values.cast(pa.int64()).to_numpy(zero_copy_only=False))
    numbers = values.to_numpy(zero_copy_only=False)
    if numbers.dtype == np.int64:
        return mixed(numbers)
    whole = (np.floor(numbers) == numbers) & (np.abs(numbers) < 2.0**53)
    as_integers = np.where(whole, numbers, 0.0).astype(np.int64).view(np.uint64)
    return mixed(np.where(whole, as_integers, numbers.view(np.uint64)))


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


# --- The counts of a column ---


VALUES = 1 << 13
"""Distinct values of a column that are kept; a log of more than 128 columns keeps fewer of each."""
FEWEST_VALUES = 1 << 9
BINS = 64
ROWS, VIEWS, CLICKS, OTHER_VIEWS, OTHER_CLICKS = range(5)
"""The sums of each value: its rows; views and clicks in one half of the log; the same in the other half."""
_64_BITS = (1 << 64) - 1
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class CheckedRows:
    """The rows of a batch as the checks read them, each array one element a row.

    first: the number of rows before; marks: where each is, see `Places`; views: float64, 1 for a valid label, 0 for an
    invalid one, or the views of a log of counts; clicks: float64; other: which half of the log a row is in; columns:
    the values; hashes: those of the values, by column; file: the number of the file.
    """

    count: int
    first: int
    marks: Int64s
    views: Float64s
    clicks: Float64s
    other: Bools
    columns: Mapping[str, Any] = field(default_factory=dict)
    hashes: dict[str, UInt64s] = field(default_factory=dict)
    file: int = 0

    @cached_property
    def four(self) -> tuple[Float64s, Float64s, Float64s, Float64s]:
        """Views and clicks of one half, then of the other."""
        one, other = (~self.other).astype(np.float64), self.other.astype(np.float64)
        return self.views * one, self.clicks * one, self.views * other, self.clicks * other


class ColumnCounts:
    """The counts of one column. rows: those read so far; filled: those with a value."""

    def __init__(self, name: str, capacity: int = VALUES) -> None:
        self.name = name
        self.rows = self.filled = 0
        self.is_several = False
        self.sample = DistinctSample(capacity, 5)
        self.first, self.telling = Cases(), Cases()
        """A value, and one of a clicked row that is not the usual value."""
        self.usual: int = int(ABSENT)
        """The hash of the value that most of the first rows have."""
        self.is_numeric = False
        """Whether at least half of the first values are numbers."""
        self.usual_sums, self.absent_sums, self.total = np.zeros(5), np.zeros(5), np.zeros(5)
        self.edges: Float64s | None = None
        self.bins = np.zeros((BINS + 2, 5))
        """Of each range between edges; then of what is no number; then of no value."""
        self.numbers = self.fractions = 0
        self.not_number, self.not_finite, self.missing, self.broken = Cases(), Cases(), Cases(), Cases()
        self.digest = 0
        self.growth: list[tuple[int, int]] = []
        """How many distinct values had come when the rows doubled."""

    def add(self, column: Any, rows: CheckedRows) -> UInt64s:
        """Count the next rows; returns their hashes: uint64[rows]."""
        cells = cells_of(column)
        self.is_several |= cells.row is not None
        self.rows += rows.count
        self.filled += int(np.count_nonzero(cells.row_hashes != ABSENT))
        sums = self._sums(cells, rows)
        self.total += [rows.count, *(each.sum() for each in rows.four)]
        self.absent_sums += sums[cells.absent]
        self.usual_sums += sums[cells.hashes == np.uint64(self.usual)].sum(axis=0)
        there = np.flatnonzero(sums[:, ROWS] > 0)
        there = there[np.argsort(cells.hashes[there], kind="stable")]
        first_rows = np.maximum(cells.first_rows[there], 0)
        first = rows.marks[first_rows] if rows.count else np.zeros(there.size, np.int64)
        self.sample.add(cells.hashes[there], sums[there], first)
        self._count_numbers(cells, sums, rows.marks)
        _add_cells(self.broken, cells.broken, cells, rows.marks)
        self._keep_example(cells, rows)
        order = np.arange(rows.first, rows.first + rows.count, dtype=np.int64)
        added = int(np.sum(mixed(cells.row_hashes ^ mixed(order)), dtype=np.uint64))
        self.digest = (self.digest + added) & _64_BITS
        if self.filled >= (2 * self.growth[-1][0] if self.growth else 1000):
            self.growth.append((self.filled, self.distinct))
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

    def _sums(self, cells: Cells, rows: CheckedRows) -> Float64s:
        """float64[values + 1, 5]: the sums of each value of the batch."""
        parts = [cells.per_value.astype(np.float64), *(cells.sums(each) for each in rows.four)]
        sums: Float64s = np.stack(parts, axis=1)
        if cells.row is not None:  # rows without a member have no cell
            empty = cells.row_hashes == ABSENT
            of_empty = [each[empty].sum() for each in rows.four]
            sums[cells.absent] = [np.count_nonzero(empty), *of_empty]
        return sums

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
        _add_cells(self.missing, cells.missing_words, cells, marks)
        if not self.is_numeric:
            return
        numbers, counts = cells.numbers, cells.per_value
        is_number = np.isfinite(numbers)
        self.numbers += int(counts[is_number].sum())
        with np.errstate(invalid="ignore"):
            self.fractions += int(counts[is_number & (np.floor(numbers) != numbers)].sum())
        _add_cells(self.not_finite, cells.not_finite, cells, marks)
        other = ~is_number & ~cells.not_finite & ~cells.missing_words
        other[cells.absent] = False
        _add_cells(self.not_number, other, cells, marks)
        if self.edges is not None:
            bins = np.full(numbers.size, BINS)
            bins[is_number] = np.searchsorted(self.edges, numbers[is_number], side="right")
            bins[cells.absent] = BINS + 1
            bins[cells.hashes == np.uint64(self.usual)] = BINS - 1  # counted alone, not among its neighbours
            np.add.at(self.bins, bins, sums)

    def _keep_example(self, cells: Cells, rows: CheckedRows) -> None:
        if self.first.mark < 0:
            self.first.add(np.flatnonzero(cells.row_hashes != ABSENT), rows.marks, partial(_of_row, cells))
        if self.telling.mark < 0:
            tells = (rows.clicks > 0) & (cells.row_hashes != ABSENT)
            if cells.row is None:
                tells &= cells.row_hashes != np.uint64(self.usual)
            self.telling.add(np.flatnonzero(tells), rows.marks, partial(_of_row, cells))

    def new_values(self) -> float:
        """New values a filled row, in the later half of the rows; 0 for a log that is too short to tell."""
        earlier = [each for each in self.growth if 2 * each[0] <= self.filled]
        if not earlier:
            return 0.0
        filled, distinct = earlier[-1]
        return max(self.distinct - distinct, 0) / (self.filled - filled)


def _add_cells(cases: Cases, which: Bools, cells: Cells, marks: Int64s) -> None:
    """Add the cells whose value is one of `which`, bool[values + 1]."""
    codes = np.flatnonzero(which & (cells.per_value > 0)) if which.any() else ()
    if len(codes):
        code = int(codes[np.argmin(cells.first_rows[codes])])
        mark = int(marks[cells.first_rows[code]])
        cases.note(int(cells.per_value[codes].sum()), mark, lambda: cells.text(code))


def _of_row(cells: Cells, row: int) -> str:
    at = row if cells.row is None else int(np.searchsorted(cells.row, row))
    return cells.text(int(cells.codes[at]))
