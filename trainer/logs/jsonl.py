"""JSON lines: blocks of whole lines, parsed by Arrow where that is safe and exact, else line by line.

Both ways give the same values, so that where the blocks fall never changes what is learnt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.json

from model_store.errors import InputError
from trainer.logs import json_rows
from trainer.logs.batch import NotPlain, RowBatch, is_exact, plain, without_timestamps
from trainer.logs.positions import Position
from trainer.logs.rows_kernels import survey_json
from trainer.logs.streams import Bytes, Feed, one_array, up_to_last_line_end


class JsonLinesFile:
    """One file of JSON objects, one a line.

    `columns` are the keys met in the first block, in order; a field `b` of an object under `a` is the column
    `a.b`. An object is a set, as `kinds` says, and no column until it is wanted. Raises InputError for a file without
    an object. Told which columns are `objects`, it looks for nothing itself and has no `columns`.
    """

    def __init__(self, feed: Feed, objects: frozenset[str] | None = None) -> None:
        self._feed = feed
        self._schema: pa.Schema | None = None
        self._objects = objects or frozenset()
        self.columns = self._first_columns() if objects is None else ()
        self.kinds: Mapping[str, str | None] = dict.fromkeys(self._objects, "set")
        self._wanted_objects: frozenset[str] = frozenset()

    def may_have(self, column: str) -> bool:
        """True for `columns`, and for the objects that they lie in: one of numbers alone is a weighted set."""
        return column in self.columns or column in self._objects

    def batches(self, wanted: Sequence[str]) -> Iterator[RowBatch]:
        """The rest of the file; InputError where it is damaged, after the rows before."""
        self._wanted_objects = self._objects.intersection(wanted)
        while True:
            data = self._lines()
            if data.size:
                yield self._batch(data, wanted)
            elif self._feed.ended:
                break
            else:
                self._feed.fetch()
        self._feed.check()

    def go_on(self, position: Position) -> None:
        """Pass over what lies before a position of an earlier run."""
        self._feed.go_on(position)

    def _lines(self) -> Bytes:
        return self._feed.unread if self._feed.final else up_to_last_line_end(self._feed.unread)

    def _batch(self, data: Bytes, wanted: Sequence[str]) -> RowBatch:
        feed = self._feed
        count, regular = survey_json(data)
        by_arrow = regular and not self._wanted_objects  # Arrow would make a column of every key in them
        columns = self._columns(data, wanted, count) if by_arrow else None
        first = feed.line
        # A last line without an end is still open: when the file grows, the next bytes are on it.
        stop = feed.drop(data.size, count - bool(data[-1] != ord("\n")))
        if columns is None:
            return json_rows.parse(data.tobytes(), wanted, first, stop, self._wanted_objects)
        lines = np.arange(first, first + count, dtype=np.int64)
        return RowBatch(columns, lines, feed.name, (), count, stop)

    def _columns(self, data: Bytes, wanted: Sequence[str], count: int) -> dict[str, pa.Array] | None:
        """The columns by Arrow; None where Arrow cannot, or would lose something."""
        if not is_utf8(data):
            return None
        table = self._parse(data, wanted)
        if table is None or table.num_rows != count:
            return None
        try:
            return {name: _exact(_find(table, name)) for name in wanted}
        except NotPlain:
            return None

    def _parse(self, data: Bytes, wanted: Sequence[str]) -> pa.Table | None:
        """Parse with the types of the block before; where they do not fit, with those that Arrow sees."""
        table = read_block(data, self._schema) if self._schema is not None else None
        if table is not None:
            return table
        table = read_block(data, None)
        if table is None:
            return None
        schema = _schema_of(table.schema, wanted)
        # A schema makes Arrow pass over other columns, so it must not hide one that only later blocks have.
        self._schema = schema if all(_has(table.schema, name) for name in wanted) else None
        return table if _has_texts(table.schema, schema) else read_block(data, schema)

    def _first_columns(self) -> tuple[str, ...]:
        while not self._lines().size and not self._feed.ended:
            self._feed.fetch()
        data = self._lines()
        columns, self._objects = tuple(json_rows.columns(data.tobytes())), json_rows.objects(data.tobytes())
        if not columns:
            self._feed.check()
            raise InputError(f"{self._feed.name}: found no JSON object; expected one on each line")
        return columns


def read_block(data: Bytes, schema: pa.Schema | None) -> pa.Table | None:
    """The objects in whole lines by Arrow, with its own types or with those of a schema alone; None if it cannot."""
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
    """The schema of the wanted columns, with text where Arrow guessed a time: the text is what counts."""
    tops = {name if name in schema.names else name.partition(".")[0] for name in wanted}
    return pa.schema([(field.name, without_timestamps(field.type)) for field in schema if field.name in tops])


def _has(schema: pa.Schema, name: str) -> bool:
    if name in schema.names:
        return True
    fields: pa.Schema | pa.DataType = schema
    for part in name.split("."):
        place = fields.get_field_index(part) if isinstance(fields, pa.Schema | pa.StructType) else -1
        if place < 0:
            return False
        fields = fields.field(place).type
    return True


def _has_texts(schema: pa.Schema, asked: pa.Schema) -> bool:
    """True if no column that was asked for was read as a time instead of as text."""
    return all(schema.field(field.name).type == field.type for field in asked)


def _find(table: pa.Table, name: str) -> pa.Array:
    """Column `name`, or the nested field it is a path to, or nulls."""
    if name in table.column_names:
        return one_array(table.column(name))
    top, *path = name.split(".")
    if top not in table.column_names or not path:
        return pa.nulls(table.num_rows)
    array = one_array(table.column(top))
    for part in path:
        if not pa.types.is_struct(array.type) or array.type.get_field_index(part) < 0:
            return pa.nulls(table.num_rows)
        array = pa.compute.struct_field(array, part)
    return array


def _exact(array: pa.Array) -> pa.Array:
    """`array` as one of the plain kinds; NotPlain if Arrow's reading of it may have lost digits."""
    if not is_exact(array):
        raise NotPlain("numbers that a double cannot hold")
    return plain(array)


def is_utf8(data: Bytes) -> bool:
    """True if a decoder would take the bytes as UTF-8 text."""
    offsets = pa.py_buffer(np.array([0, data.size], np.int32))
    try:
        pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(data)]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
