"""Attributes: every field of the catalogue items' records, the model's fields and all others, by name and row.

Objectives, filters and caps read them. A column keeps each distinct text once, sorted, with its value as a number; rows
hold codes. Only arrays, so that every process maps the same copy.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.errors import FieldValueError
from model_store.features.features import FeaturePlan
from model_store.features.values import Value, one_scalar, parse_number, set_members, text_of

Array = npt.NDArray[Any]

MAX_NAMES = 64
MAX_TEXT_BYTES = 256
NO_TEXT = -1


@dataclass(frozen=True, eq=False)
class Column:
    """One field of every row. Immutable.

    text uint8, text_offsets int64[n + 1]: the n distinct texts, sorted bytewise. numbers float64[n + 1]: each text as a
    number, NaN if it is none; NaN last, which NO_TEXT indexes. codes int32: the text of each row, or NO_TEXT; if rows
    have several, those of row r are codes[start[r] : start[r + 1]], start int64.
    """

    text: Array
    text_offsets: Array
    numbers: Array
    codes: Array
    start: Array | None

    def code(self, text: bytes) -> int:
        """The code of a text, NO_TEXT if no row has it. O(log texts)."""
        low, high = 0, len(self.text_offsets) - 1
        while low < high:
            middle = (low + high) // 2
            if self.text_of(middle) < text:
                low = middle + 1
            else:
                high = middle
        found = low < len(self.text_offsets) - 1 and self.text_of(low) == text
        return low if found else NO_TEXT

    @cached_property
    def texts(self) -> pa.Array:
        """The distinct texts as an Arrow array over the same memory."""
        buffers = [None, pa.py_buffer(self.text_offsets), pa.py_buffer(self.text)]
        return pa.Array.from_buffers(pa.large_binary(), len(self.text_offsets) - 1, buffers)

    def text_of(self, code: int) -> bytes:
        """The text of a code. O(length)."""
        return self.text[self.text_offsets[code] : self.text_offsets[code + 1]].tobytes()

    def arrays(self) -> dict[str, Array]:
        """All arrays by name."""
        named = {name: getattr(self, name) for name in ("text", "text_offsets", "numbers", "codes", "start")}
        return {name: found for name, found in named.items() if found is not None}


@dataclass(frozen=True, eq=False)
class Attributes:
    """Columns by field name. Immutable; shared by all threads and, packed, by all processes."""

    columns: Mapping[str, Column] = field(default_factory=dict)
    separators: Mapping[str, str | None] = field(default_factory=dict)
    """The model's set fields and their separators; every other field has one value."""
    problems: tuple[str, ...] = ()

    def pack(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """A JSON head and named arrays, for `unpack` in another process. O(columns)."""
        arrays = {
            f"attribute.{number}.{name}": found
            for number, column in enumerate(self.columns.values())
            for name, found in column.arrays().items()
        }
        return {"names": list(self.columns), "separators": dict(self.separators)}, arrays

    @classmethod
    def unpack(cls, head: Mapping[str, Any], arrays: Mapping[str, Array]) -> Attributes:
        """Build from what `pack` returned; `arrays` may hold others too. O(columns)."""

        def column(number: int) -> Column:
            prefix = f"attribute.{number}."
            own = {name: arrays[prefix + name] for name in ("text", "text_offsets", "numbers", "codes")}
            return Column(**own, start=arrays.get(prefix + "start"))

        columns = {name: column(number) for number, name in enumerate(head["names"])}
        return cls(columns, head["separators"])

    def texts_at(self, row: int, name: str) -> list[str]:
        """The texts of one row in a field. O(their bytes)."""
        column = self.columns.get(name)
        if column is None:
            return []
        first, stop = (row, row + 1) if column.start is None else column.start[row : row + 2].tolist()
        codes = column.codes[first:stop].tolist()
        return [column.text_of(code).decode("utf-8", "surrogatepass") for code in codes if code != NO_TEXT]

    def members(self, name: str, value: Value) -> tuple[bytes, ...]:
        """The texts of an item's value of this field: the members of a set, or one text, or none if it is missing.

        A text over MAX_TEXT_BYTES and a value of the wrong kind count as missing.
        """
        return texts_of(value, self.separators.get(name, _ONE_VALUE))


def number_of(value: Value) -> float:
    """A value as a number; NaN if it is none."""
    try:
        return parse_number(one_scalar(value))
    except FieldValueError:
        return float("nan")


_ONE_VALUE = object()


def texts_of(value: Value, separator: object) -> tuple[bytes, ...]:
    """See `Attributes.members`."""
    try:
        if separator is not _ONE_VALUE or (value is not None and not _is_scalar(value)):
            texts = tuple(set_members(value, separator if isinstance(separator, str) else None))
        else:
            texts = (text_of(one_scalar(value)),) if value is not None else ()
    except FieldValueError:
        return ()
    return tuple(text for text in texts if 0 < len(text) <= MAX_TEXT_BYTES)


def _is_scalar(value: Value) -> bool:
    return isinstance(value, str | bytes | bool | int | float)


class AttributeWriter:
    """Collects the records of a catalogue. At most MAX_NAMES fields are kept: the model's first, then by name."""

    def __init__(self, plan: FeaturePlan) -> None:
        fields = [field for field in plan.item_fields if field.kind != "raw"]
        self._separators = {field.name: field.spec.separator for field in fields if field.kind == "set"}
        self._raw = {field.name for field in plan.fields if field.kind == "raw"}
        self._own = {field.name for field in fields}
        self._columns = {field.name: _ColumnWriter(self._separator(field.name)) for field in fields}
        self._others: list[str] = []
        self._left_out: set[str] = set()
        self._rows = 0

    def add(self, row: int, record: Mapping[str, Value]) -> None:
        """Add the record of the next row, or replace that of an earlier one."""
        if row < self._rows:
            for column in self._columns.values():
                column.clear(row)
        self._rows = max(self._rows, row + 1)
        for name, value in record.items():
            found = self._columns.get(name) or self._begin(name)
            if found is not None:
                found.put(row, value)

    def finish(self) -> Attributes:
        """The columns that have a value at all."""
        columns = {name: self._columns[name] for name in sorted(self._columns) if self._columns[name].code_of}
        problems: tuple[str, ...] = ()
        if self._left_out:
            some = ", ".join(sorted(self._left_out)[:3])
            problems = (
                f"items have {len(self._left_out)} fields more than the {MAX_NAMES} that are kept: {some}…",
            )
        done = {name: column.finish(self._rows) for name, column in columns.items()}
        return Attributes(done, self._separators, problems)

    def _separator(self, name: str) -> object:
        return self._separators.get(name, _ONE_VALUE)

    def _begin(self, name: str) -> _ColumnWriter | None:
        """Begin a column for a new name; if there are too many, the last by name is dropped."""
        if name in self._raw or name in self._left_out:
            return None
        insort(self._others, name)
        column = self._columns[name] = _ColumnWriter(_ONE_VALUE)
        if len(self._own) + len(self._others) > MAX_NAMES:
            last = self._others.pop() if self._others else name
            del self._columns[last]
            self._left_out.add(last)
            return None if last == name else column
        return column


class _ColumnWriter:
    """Codes by row, numbered in the order of the texts' appearance; `finish` sorts them."""

    def __init__(self, separator: object) -> None:
        self._separator = separator
        self.code_of: dict[bytes, int] = {}
        self._code_of_value: dict[str, int] = {}
        self._codes = array("i")
        self._several: dict[int, list[int]] = {}

    def clear(self, row: int) -> None:
        if row < len(self._codes):
            self._codes[row] = NO_TEXT
        self._several.pop(row, None)

    def put(self, row: int, value: Value) -> None:
        if self._separator is not _ONE_VALUE:
            texts = texts_of(value, self._separator)
            self._several[row] = [self.code_of.setdefault(text, len(self.code_of)) for text in texts]
            return
        code = self._code_of_value.get(value) if isinstance(value, str) else None
        if code is None:
            code = self._code(value)
        self._codes.extend([NO_TEXT] * (row + 1 - len(self._codes)))
        self._codes[row] = code

    def finish(self, rows: int) -> Column:
        texts = sorted(self.code_of)
        rank = np.full(len(texts) + 1, NO_TEXT, np.int32)  # NO_TEXT indexes the last one
        rank[[self.code_of[text] for text in texts]] = np.arange(len(texts), dtype=np.int32)
        text = np.frombuffer(bytearray(b"".join(texts)), np.uint8)
        offsets = np.array([0, *accumulate(map(len, texts))], np.int64)
        numbers = np.array([*map(number_of, texts), np.nan])
        if self._separator is _ONE_VALUE:
            self._codes.extend([NO_TEXT] * (rows - len(self._codes)))
            return Column(text, offsets, numbers, rank[np.array(self._codes, np.int64)], None)
        lists = [self._several.get(row, ()) for row in range(rows)]
        start = np.array([0, *accumulate(map(len, lists))], np.int64)
        codes = np.array([code for codes in lists for code in codes], np.int64)
        return Column(text, offsets, numbers, rank[codes], start)

    def _code(self, value: Value) -> int:
        texts = texts_of(value, _ONE_VALUE) if _is_scalar(value) else ()
        code = self.code_of.setdefault(texts[0], len(self.code_of)) if texts else NO_TEXT
        if isinstance(value, str):
            self._code_of_value[value] = code
        return code
