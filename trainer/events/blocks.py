"""Events by whole blocks: Arrow reads the JSON, items are laid out by the offsets of their lists. No Python an event.

Where Arrow cannot read a block, would lose digits, or finds a member of a kind that must be judged, the answer is None,
and `line_by_line` reads it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trainer.events.forms import nullable_text, shaped
from trainer.events.kernels import find_odd
from trainer.events.line_by_line import RESERVED_TYPES
from trainer.events.raw import Raw
from trainer.events.wanted import CONTEXT, FEATURES, ITEMS, RESERVED, USER, Column, Path, Wanted
from trainer.sources.blocks import one_array
from trainer.sources.json_lines import is_utf8, read_block
from trainer.sources.kernels import survey_json
from trainer.sources.plain import NotPlain, is_exact, is_several, plain, without_timestamps

_MEMBERS: tuple[Path, ...] = (
    *(("request_id",), ("ts",), ("item",), ("event_id",), ("event",)),
    *((ITEMS, "id"), (ITEMS, FEATURES), (CONTEXT,), (USER,)),
)
_ID_TYPES = (pa.string(), pa.int64(), pa.null())
Tree = dict[str, Any]


class BlockReader:
    """Reads blocks for the columns that are wanted, each with the types of the one before while they fit."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._tree = _tree_of(wanted)
        self._schema: pa.Schema | None = None
        self.hopeful = True
        """False once it has seen that a wanted column holds weighted sets, which are only read one by one."""

    def read(self, data: npt.NDArray[np.uint8], count: int) -> Raw | None:
        """The events of whole lines; None if they must be read one by one."""
        if not self.hopeful:
            return None
        lines, regular = survey_json(data)
        if not regular or lines != count or not is_utf8(data):
            return None
        table = self._parse(data)
        if table is None or table.num_rows != count:
            return None
        try:
            return self._raw(table)
        except NotPlain:
            return None

    def _parse(self, data: npt.NDArray[np.uint8]) -> pa.Table | None:
        """With the types of the block before; where they do not fit, with those that Arrow sees.

        What is wanted and was not there is of type null in the schema, so that its first value does not fit either.
        """
        table = read_block(data, self._schema) if self._schema is not None else None
        if table is not None:
            return table
        seen = read_block(data, None)
        if seen is None:
            return None
        self._schema = pa.schema(_asked(seen.schema, self._tree))
        sets = (column for column in self._wanted.columns if column.form == "set")
        self.hopeful = not any(_is_object(self._schema, column) for column in sets)
        return read_block(data, self._schema) if self.hopeful else None

    def _raw(self, table: pa.Table) -> Raw:
        block = _Block(table)
        return Raw(
            request=_id(block.of_events(("request_id",))),
            ts=_single(block.of_events(("ts",))),
            item=_id(block.of_events(("item",))),
            event_id=_id(block.of_events(("event_id",))),
            what=_id(block.of_events(("event",))),
            lengths=block.lengths,
            ids=_id(block.of_items((ITEMS, "id"))),
            columns=self._columns(block),
        )

    def _columns(self, block: _Block) -> dict[str, pa.Array]:
        columns = {column.name: _column(block, column) for column in self._wanted.columns}
        for name, (path, kind) in RESERVED.items():
            if path[0] == ITEMS:
                columns[name] = _reserved(block.of_items(path), kind)
            else:
                columns[name] = block.spread(_reserved(block.of_events(path), kind))
        return columns


def odd_lines(data: bytes, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which lines no block may have that is to be read as a whole: broken ones, mostly."""
    block, odd = np.frombuffer(data, np.uint8), np.zeros(starts.size - 1, np.bool_)
    find_odd(block, starts, odd)
    if not is_utf8(block):
        odd |= [not is_utf8(block[a:b]) for a, b in pairwise(starts.tolist())]
    return odd


class _Block:
    """A parsed block. NotPlain where its objects are none."""

    def __init__(self, table: pa.Table) -> None:
        self._top = {name: one_array(table.column(name)) for name in table.column_names}
        lists = self._top[ITEMS]
        for array in (self._top[CONTEXT], self._top[USER]):
            _check_struct(array.type)
        if pa.types.is_null(lists.type):
            self.lengths = np.full(len(lists), -1, np.int64)
            self._items = pa.nulls(0)
        elif pa.types.is_list(lists.type):
            lengths = pc.list_value_length(lists).fill_null(-1)
            self.lengths = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
            self._items = lists.flatten()
        else:
            raise NotPlain(f"items of type {lists.type}")
        self._check_items()
        counts = np.maximum(self.lengths, 0)
        self._event_of = pa.array(np.repeat(np.arange(counts.size, dtype=np.int32), counts))

    def _check_items(self) -> None:
        if self._items.null_count:
            raise NotPlain("null among the items")
        _check_struct(self._items.type)
        _check_struct(_walk(self._items, (FEATURES,)).type)

    def of_events(self, path: Path) -> pa.Array:
        """What stands at a path, one value an event; of type null where nothing does."""
        top = self._top.get(path[0])
        return pa.nulls(self.lengths.size) if top is None else _walk(top, path[1:])

    def of_items(self, path: Path) -> pa.Array:
        """The same, one value an item."""
        return _walk(self._items, path[1:])

    def spread(self, array: pa.Array) -> pa.Array:
        """Values of events, once for each of its items."""
        return array.take(self._event_of)


def _column(block: _Block, column: Column) -> pa.Array:
    """The values at the first place that has one, row by row; mostly one place has them all."""
    found = []
    for path in column.places:
        inside = path[0] == ITEMS
        array = block.of_items(path) if inside else block.of_events(path)
        if array.null_count < len(array):
            found.append((inside, _exact(array) if column.form == "set" else _single(array)))
    if not found:
        return block.spread(shaped(pa.nulls(block.lengths.size), column.form))
    if len(found) == 1:
        inside, array = found[0]
        return shaped(array, column.form) if inside else block.spread(shaped(array, column.form))
    rows = [array if inside else block.spread(array) for inside, array in found]
    return shaped(_first_of(rows), column.form)


def _first_of(arrays: list[pa.Array]) -> pa.Array:
    if any(is_several(array.type) for array in arrays):
        raise NotPlain("sets in several places")
    same = all(array.type == arrays[0].type for array in arrays)
    return pc.coalesce(*(arrays if same else [nullable_text(array) for array in arrays]))


def _exact(array: pa.Array) -> pa.Array:
    if not is_exact(array):
        raise NotPlain("numbers that a double cannot hold")
    return plain(array)


def _single(array: pa.Array) -> pa.Array:
    if is_several(array.type):
        raise NotPlain("several values where one is wanted")
    return _exact(array)


def _id(array: pa.Array) -> pa.Array:
    if array.type not in _ID_TYPES:
        raise NotPlain(f"ids of type {array.type}")
    return nullable_text(array)


def _reserved(array: pa.Array, kind: str) -> pa.Array:
    if kind == "text":
        return _id(array)
    if array.type not in (pa.int64(), pa.float64(), pa.null()) or not is_exact(array):
        raise NotPlain(f"{kind} of type {array.type}")
    try:
        return array.cast(RESERVED_TYPES[kind], safe=kind == "whole")
    except pa.ArrowInvalid:
        raise NotPlain("a fraction where a whole number is wanted") from None


def _walk(array: pa.Array, path: Iterable[str]) -> pa.Array:
    for part in path:
        if not pa.types.is_struct(array.type) or array.type.get_field_index(part) < 0:
            return pa.nulls(len(array))
        array = pc.struct_field(array, part)
    return array


def _check_struct(kind: pa.DataType) -> None:
    if not (pa.types.is_struct(kind) or pa.types.is_null(kind)):
        raise NotPlain(f"{kind} where an object is wanted")


def _tree_of(wanted: Wanted) -> Tree:
    """All paths that are looked at, as objects in objects."""
    places = (path for column in wanted.columns for path in column.places)
    tree: Tree = {}
    for path in (*_MEMBERS, *(path for path, _ in RESERVED.values()), *places):
        branch = tree
        for part in path:
            branch = branch.setdefault(part, {})
    return tree


def _asked(fields: pa.Schema | pa.StructType, tree: Tree) -> list[pa.Field]:
    """The fields of a tree with the types that were seen; null for those that were not."""
    return [
        pa.field(name, _pruned(fields.field(name).type, branch) if name in _names(fields) else pa.null())
        for name, branch in tree.items()
    ]


def _pruned(kind: pa.DataType, branch: Tree) -> pa.DataType:
    if branch and pa.types.is_struct(kind):
        return pa.struct(_asked(kind, branch))
    if branch and pa.types.is_list(kind):
        return pa.list_(_pruned(kind.value_type, branch))
    return without_timestamps(kind)


def _names(fields: pa.Schema | pa.StructType) -> list[str]:
    return [field.name for field in fields]


def _is_object(schema: pa.Schema, column: Column) -> bool:
    """True if one of a column's places holds objects, which Arrow would make a column of every member of."""
    return any(pa.types.is_struct(_type_at(schema, path)) for path in column.places)


def _type_at(schema: pa.Schema, path: Path) -> pa.DataType:
    kind: pa.DataType = pa.struct(list(schema))
    for part in path:
        if pa.types.is_list(kind):
            kind = kind.value_type
        if not pa.types.is_struct(kind) or kind.get_field_index(part) < 0:
            return pa.null()
        kind = kind.field(part).type
    return kind
