"""A batch's column as the checks count it: distinct values as hashes, with numbers and texts, and a code for each cell.

Lists and maps are their members: a row has as many cells as members. Every step works on whole arrays, and where it
can on the distinct values of the batch only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model_store.features.cells import addresses, plain
from model_store.hash_kernels import digest_columns
from trainer.inspect.findings import cut
from trainer.inspect.sketches import ABSENT, Float64s, Int64s, UInt64s, mixed

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
        if code >= len(self.values):
            return ""
        value = self.values[code].as_py()
        return cut(value.decode(errors="replace") if isinstance(value, bytes) else str(value))

    @cached_property
    def numbers(self) -> Float64s:
        """float64[values + 1]: the values as numbers, which may be infinite; NaN for those that are none."""
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
                found[:-1] = _one_by_one(numbers)
        return found

    @cached_property
    def not_finite(self) -> Flags:
        """bool[values + 1]: NaN and infinities: of numbers only."""
        found = np.zeros(self.hashes.size, np.bool_)
        if pa.types.is_floating(self.values.type):
            found[:-1] = ~np.isfinite(self.numbers[:-1])
        elif self.is_text:
            found[:-1] = np.isinf(self.numbers[:-1])
        return found

    @cached_property
    def missing_words(self) -> Flags:
        """bool[values + 1]: texts that stand for no value."""
        found = np.zeros(self.hashes.size, np.bool_)
        if self.is_text and len(self.values):
            words = pc.is_in(self.values, value_set=pa.array(MISSING, pa.binary()))
            found[:-1] = words.to_numpy(zero_copy_only=False)
        return found

    @cached_property
    def broken(self) -> Flags:
        """bool[values + 1]: texts that are not UTF-8, or were broken before."""
        found = np.zeros(self.hashes.size, np.bool_)
        if not self.is_text or not len(self.values):
            return found
        if self._strings is None:
            found[:-1] = [not _is_utf8(value) for value in self.values.to_pylist()]
        elif not self._is_ascii:
            found[:-1] = pc.match_substring_regex(self._strings, _MOJIBAKE).to_numpy(zero_copy_only=False)
        return found

    @cached_property
    def _strings(self) -> Any:
        """The texts as strings; None if one is not UTF-8."""
        try:
            return self.values.cast(pa.string())
        except pa.ArrowInvalid:
            return None

    @property
    def _is_ascii(self) -> bool:
        data = self.values.buffers()[2]
        return data is None or int(np.frombuffer(data, np.uint8).max(initial=0)) < 128


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


def _one_by_one(texts: Any) -> Float64s:
    numbers = [np.nan if text is None else float(text) for text in texts.to_pylist()]
    return np.array(numbers, np.float64)


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
