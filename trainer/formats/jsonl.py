"""JSON lines: blocks of whole lines as batches; where values stand if objects are flat, or by Arrow, or line by line.

A field `b` of an object under `a` is the column `a.b`. `load`, `column_of` and `canonical` are shared with the parser
of events.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.json

from model_store.errors import InputError
from model_store.features.cells import Block, CellText, padded_lines
from model_store.features.cells_kernels import BOOLEAN, LF, NOT_CANONICAL, STRING
from trainer.formats.batch import (
    EXACT,
    HEAD_BYTES,
    LazyColumns,
    NotPlain,
    Position,
    RowBatch,
    is_exact,
    plain,
    steps_to,
    without_timestamps,
)
from trainer.formats.json_kernels import ODD, find_marks, find_values
from trainer.formats.rejects import Reject
from trainer.formats.rows_kernels import survey_json
from trainer.formats.streams import ALL, Bytes, Feed, Share, one_array

ARRAY = re.compile(rb"\s*\[\s*(?:\{|$)")
"""How an array of objects starts: no row, but a file of them."""


class JsonLinesFile:
    """One file of JSON objects, one a line.

    columns: the keys met in the first block, in order; left_out: of its first lines, the keys of lists of objects. An
    object is a weighted set (see `kinds`) and becomes a column only if wanted. Raises InputError for a file without an
    object. If `objects` names the columns that hold objects, the first block is not inspected, and `columns` is empty.
    """

    def __init__(self, feed: Feed, objects: frozenset[str] | None = None) -> None:
        self._feed = feed
        self._schema: pa.Schema | None = None
        self._objects = objects or frozenset()
        self.left_out: tuple[str, ...] = ()
        self.columns = self._first_columns() if objects is None else ()
        self.kinds: Mapping[str, str | None] = dict.fromkeys(self._objects, "set")
        self._wanted_objects: frozenset[str] = frozenset()

    def may_have(self, column: str) -> bool:
        """True for `columns`, and for the objects that contain them: an object of numbers is a weighted set."""
        return column in self.columns or column in self._objects

    def batches(self, wanted: Sequence[str], share: Share = ALL) -> Iterator[RowBatch]:
        """The rest of the file. Raises InputError where it is damaged, after the rows before."""
        self._wanted_objects = self._objects.intersection(wanted)
        for data in self._feed.blocks(share):
            yield self._batch(data, wanted)

    def go_on(self, position: Position) -> None:
        """Skip what is before a position of an earlier run."""
        self._feed.go_on(position)

    def _batch(self, data: Bytes, wanted: Sequence[str]) -> RowBatch:
        feed = self._feed
        block = None if self._wanted_objects else flat_block(data, wanted)
        columns: Mapping[str, Any] | None
        if block is not None:
            count = block.rows
            columns = LazyColumns({name: CellText(block, place) for place, name in enumerate(wanted)})
        else:
            count, regular = survey_json(data)
            by_arrow = regular and not self._wanted_objects  # Arrow would make a column of each key in them
            columns = self._columns(data, wanted, count) if by_arrow else None
        first = feed.line
        # A last line without a line end may continue when the file grows.
        stop = feed.drop(data.size, count - bool(data[-1] != ord("\n")))
        if columns is None:
            return parse(data.tobytes(), wanted, first, stop, self._wanted_objects)
        lines = np.arange(first, first + count, dtype=np.int64)
        return RowBatch(columns, lines, feed.name, (), count, stop)

    def _columns(self, data: Bytes, wanted: Sequence[str], count: int) -> dict[str, pa.Array] | None:
        """The columns by Arrow; None if Arrow cannot parse them or would lose something."""
        if not is_utf8(data):
            return None
        table = self._parse(data, wanted)
        if table is None or table.num_rows != count:
            return None
        try:
            return {name: _exact(_column_at(table, name)) for name in wanted}
        except NotPlain:
            return None

    def _parse(self, data: Bytes, wanted: Sequence[str]) -> pa.Table | None:
        """Parse with the types of the previous block; if they do not fit, with those that Arrow infers."""
        table = read_block(data, self._schema) if self._schema is not None else None
        if table is not None:
            return table
        table = read_block(data, None)
        if table is None:
            return None
        schema = _schema_of(table.schema, wanted)
        # A schema makes Arrow ignore other columns, so it must not hide one that only later blocks have.
        self._schema = schema if all(_has(name, table.schema) for name in wanted) else None
        return table if _has_texts(table.schema, schema) else read_block(data, schema)

    def _first_columns(self) -> tuple[str, ...]:
        name, data = self._feed.name, self._feed.first_lines()
        if ARRAY.match(data[:HEAD_BYTES].tobytes()):
            raise InputError(
                f"{name} is a JSON array; expected one object on each line, as jq -c '.[]' writes them"
            )
        columns, self._objects = tuple(columns_of(data.tobytes())), objects_of(data.tobytes())
        if not columns:
            self._feed.check()
            raise InputError(
                f"{name}: found no JSON object; expected one on each line, with values other than objects; jq -c . "
                "writes one a line of objects that share a line or take several, jq -c '.rows[]' those in a list `rows`"
            )
        self.left_out = tuple(name for name in dict.fromkeys(_nested(data.tobytes())) if name not in columns)
        return columns


def flat_block(data: Bytes, wanted: Sequence[str]) -> Block | None:
    """The values of lines where they stand; None unless all lines are flat objects without escapes.

    wanted: keys, each once.
    """
    if not wanted or any("." in name for name in wanted):
        return None
    lines, size = padded_lines(data)
    marks = np.empty(size, np.int32)  # of which only what is written takes memory
    count, special, not_ascii = find_marks(lines, size, marks)
    if count == ODD or (not_ascii and not is_utf8(data)):
        return None
    marks = marks[:count]
    keys = [name.encode() for name in wanted]
    starts = np.cumsum([0, *map(len, keys)])
    text = np.frombuffer(b"".join(keys) + bytes(8), np.uint8)
    spans = np.empty((int(np.count_nonzero(lines[marks] == LF)), len(keys), 2), np.int32)
    kinds, before = np.zeros(len(keys), np.uint8), np.empty((_KEYS, 3), np.int64)
    rows, longest = find_values(lines, marks, text, starts, before, spans, kinds)
    mixed = kinds & NOT_CANONICAL & -((kinds & (STRING | BOOLEAN)) > 0).astype(np.uint8)
    if rows == ODD or mixed.any():
        return None
    return Block.with_survey(lines, spans, rows, len(keys), 2, longest, special or not_ascii, kinds)


def read_block(data: Bytes, schema: pa.Schema | None) -> pa.Table | None:
    """Whole lines parsed by Arrow, with inferred types or only the columns of a schema; None if it fails."""
    try:
        return pa.json.read_json(
            pa.BufferReader(pa.py_buffer(data)),
            read_options=pa.json.ReadOptions(use_threads=False, block_size=data.size + 1),
            parse_options=pa.json.ParseOptions(
                explicit_schema=schema,
                unexpected_field_behavior="infer" if schema is None else "ignore",
            ),
        )
    except (pa.ArrowException, UnicodeDecodeError):
        return None


def _schema_of(schema: pa.Schema, wanted: Sequence[str]) -> pa.Schema:
    """The schema of the wanted columns, with text where Arrow inferred a time."""
    asked = [field for field in schema if any(f"{name}.".startswith(f"{field.name}.") for name in wanted)]
    return pa.schema([(field.name, without_timestamps(field.type)) for field in asked])


def _has(name: str, schema: pa.Schema) -> bool:
    try:
        return bool(steps_to(name, schema))
    except KeyError:
        return False


def _has_texts(schema: pa.Schema, asked: pa.Schema) -> bool:
    """True if no wanted column was read as a time instead of text."""
    return all(schema.field(field.name).type == field.type for field in asked)


def _column_at(table: pa.Table, name: str) -> pa.Array:
    """Column `name`, or the nested field it is a path to, or nulls."""
    try:
        top, *path = steps_to(name, table.schema)
    except KeyError:
        return pa.nulls(table.num_rows)
    array = one_array(table.column(top))
    return pa.compute.struct_field(array, path) if path else array


def _exact(array: pa.Array) -> pa.Array:
    """The array as a plain type. Raises NotPlain if Arrow may have lost digits."""
    if not is_exact(array):
        raise NotPlain("numbers that a double cannot hold")
    return plain(array)


def is_utf8(data: Bytes) -> bool:
    """True if the bytes are UTF-8 text."""
    offsets = pa.py_buffer(np.array([0, data.size], np.int32))
    try:
        pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(data)]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


_INT64 = 2**63
_LOOKED_AT = 100  # lines, for what is left out
_KEYS = 1024  # so many keys of a row are remembered
_LARGEST = int(sys.float_info.max)
_NAMES = {dict: "an object", list: "a list", str: "a string", type(None): "null", bool: "a boolean"}
_decode = json.JSONDecoder().decode


class BadRow(Exception):
    """A line that is not a row; the message is the reject's reason."""


def parse(
    data: bytes, wanted: Sequence[str], first_line: int, stop: Position, objects: Container[str] = ()
) -> RowBatch:
    """The rows of `data`, whole lines from `first_line` up to `stop`; blank lines are skipped.

    A column in `objects` may hold objects of numbers, which become maps.
    """
    values: list[list[Any]] = [[] for _ in wanted]
    lines, rejects = [], []
    for line, text in enumerate(_split(data), first_line):
        if not text.strip():
            continue
        try:
            row = _pick(load(text), wanted, objects)
        except BadRow as reason:
            rejects.append(Reject(stop.file, line, str(reason)))
            continue
        lines.append(line)
        for column, value in zip(values, row, strict=True):
            column.append(value)
    columns = {name: column_of(column) for name, column in zip(wanted, values, strict=True)}
    return RowBatch(columns, np.array(lines, np.int64), stop.file, tuple(rejects), len(lines), stop)


def columns_of(data: bytes) -> Iterator[str]:
    """The columns of the objects in `data`, in order of appearance; bad lines are skipped."""
    seen: dict[str, None] = {}
    for text in _split(data):
        try:
            seen.update(dict.fromkeys(_paths(load(text))))
        except BadRow:
            continue
    return iter(seen)


def _nested(data: bytes) -> Iterator[str]:
    """The paths of lists of objects or lists in the first lines."""
    for text in _split(data)[:_LOOKED_AT]:
        with contextlib.suppress(BadRow):
            yield from (path for path, value in _values(load(text)) if _is_nested(value))


def _is_nested(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(each, dict | list) for each in value)


def objects_of(data: bytes) -> frozenset[str]:
    """The paths where `data` has only objects and null."""
    found: dict[str, bool] = {}
    for text in _split(data):
        try:
            for path, value in _values(load(text)):
                if value is not None:
                    found[path] = isinstance(value, dict) and found.get(path, True)
        except BadRow:
            continue
    return frozenset(path for path, always in found.items() if always)


def load(text: bytes) -> dict[str, Any]:
    """The object on one line. Raises BadRow."""
    try:
        value = _decode(text.decode())
    except UnicodeDecodeError as error:
        raise BadRow(f"invalid UTF-8: at byte {error.start + 1} of the line") from None
    except json.JSONDecodeError as error:
        raise BadRow(f"malformed JSON: {error.msg} at character {error.colno}") from None
    except (RecursionError, ValueError) as error:
        raise BadRow(f"malformed JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRow(f"not a JSON object: got {_NAMES.get(type(value), 'a number')}")
    return value


def column_of(values: Sequence[Any]) -> pa.Array:
    """A typed array if all values are of one type, else an array of their canonical texts."""
    kinds = {type(value) for value in values} - {type(None)}
    if not kinds:
        return pa.nulls(len(values))
    if kinds == {list}:
        return _lists_of(values)
    if kinds == {dict}:
        return _maps_of(values)
    if len(kinds) == 1 and not (kinds == {int} and any(abs(v) >= _INT64 for v in values if v is not None)):
        return pa.array(values)
    if kinds == {int, float} and all(abs(value) < EXACT for value in values if value is not None):
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    return pa.array([None if value is None else canonical(value) for value in values], pa.string())


def _lists_of(lists: Sequence[list[Any] | None]) -> pa.Array:
    inner = column_of([each for value in lists if value is not None for each in value])
    offsets = np.cumsum([0] + [len(value) if value is not None else 0 for value in lists], dtype=np.int32)
    mask = pa.array([value is None for value in lists], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets), inner, mask=mask)


def _maps_of(objects: Sequence[dict[str, float | None] | None]) -> pa.Array:
    entries = [
        None if each is None else [(member, None if x is None else float(x)) for member, x in each.items()]
        for each in objects
    ]
    return pa.array(entries, pa.map_(pa.string(), pa.float64()))


def canonical(value: str | int | float | list[Any] | dict[str, Any]) -> str:
    """The canonical text of a value: 1 and 1.0 are "1", true is "true"; a list is JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | dict):
        return json.dumps(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT:
        return str(int(value))
    return str(value) if isinstance(value, int) else repr(value)


def _split(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def _pick(row: dict[str, Any], wanted: Sequence[str], objects: Container[str]) -> list[Any]:
    values = [_value_at(row, name) for name in wanted]
    for name, value in zip(wanted, values, strict=True):
        if isinstance(value, dict) and name in objects:
            _check_weighted(name, value)
            continue
        for each in value if isinstance(value, list) else (value,):
            _check(name, each)
    return values


def _value_at(row: dict[str, Any], name: str) -> Any:
    if name in row:
        return row[name]
    for key, inner in row.items():  # a member's own name may have dots
        if isinstance(inner, dict) and name.startswith(f"{key}."):
            value = _value_at(inner, name[len(key) + 1 :])
            if value is not None:
                return value
    return None


def _check(name: str, value: Any) -> None:
    if isinstance(value, dict | list):
        raise BadRow(f"nested value: column {name!r} holds {_NAMES[type(value)]}")
    if isinstance(value, float) and not math.isfinite(value):
        raise BadRow(f"not a finite number: column {name!r} holds {value}")
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BadRow(f"invalid UTF-8: column {name!r} holds half of a surrogate pair") from None


def _check_weighted(name: str, members: dict[str, Any]) -> None:
    """Raise BadRow unless the object is a weighted set: all numbers."""
    for member, x in members.items():
        _check(name, member)
        if isinstance(x, bool) or not isinstance(x, int | float | None):
            raise BadRow(
                f"nested value: column {name!r} holds an object, in it {member!r}, which is no number"
            )
        if isinstance(x, int) and abs(x) > _LARGEST:
            raise BadRow(f"not a finite number: column {name!r} holds a whole number that no double can hold")
        _check(name, x)


def _paths(row: dict[str, Any]) -> Iterator[str]:
    """The paths of values that can be columns: not of objects, nor of lists of nested values."""
    for path, value in _values(row):
        if not _is_nested(value) and not isinstance(value, dict):
            yield path


def _values(row: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every path and its value, objects before their members."""
    for key, value in row.items():
        yield prefix + key, value
        if isinstance(value, dict):
            yield from _values(value, f"{prefix}{key}.")
