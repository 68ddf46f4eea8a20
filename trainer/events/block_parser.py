"""Reads events by whole blocks: one scan of the bytes finds the wanted values, which become columns.

No Python runs per event. Odd lines, which need judgement, are left to `line_parser`, which gives the same values.
Unwanted members are checked and skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.features.cells import text_column
from trainer.events.columns import (
    CONTEXT,
    FEATURES,
    ITEMS,
    RESERVED,
    SET,
    TEXT,
    USER,
    Column,
    Path,
    Wanted,
    shaped,
)
from trainer.events.events import MAX_ITEMS, Raw
from trainer.events.line_parser import RESERVED_TYPES
from trainer.events.scan_kernels import (
    ABSENT,
    DEEPEST,
    ESCAPED,
    FALSE,
    FRACTION,
    ITEMS_OR_NULL,
    LIST,
    OBJECT_OR_NULL,
    STRING,
    TRUE,
    WHOLE,
    Scratch,
    Spans,
    Tree,
    copy_text,
    count_members,
    find_members,
    scan,
    text_offsets,
)
from trainer.formats.jsonl import is_utf8

_LATEST = 9e18
Bools = npt.NDArray[np.bool_]


class BlockReader:
    """Reads blocks for the wanted columns. Keeps no state between blocks."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._compiled = Compiled.of(wanted)

    def read(self, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]) -> tuple[Raw, Bools]:
        """The events of the lines that are not odd, and bool[lines]: which are odd."""
        odd = np.zeros(starts.size - 1, np.bool_)
        if not is_utf8(data):
            odd |= [not is_utf8(data[a:b]) for a, b in pairwise(starts.tolist())]
        while True:
            block = _Block(data, starts, self._compiled, odd)
            mixed = block.mixed([column for column in self._wanted.columns if column.form == "set"])
            if not mixed.any():
                return self._raw(block), odd
            odd[np.flatnonzero(~odd)[mixed]] = True

    def _raw(self, block: _Block) -> Raw:
        columns = {column.name: _column(block, column) for column in self._wanted.columns}
        for name, (path, kind) in RESERVED.items():
            values = block.values(path)
            array = values.canonical_or_null() if kind == "text" else _number(values, RESERVED_TYPES[kind])
            columns[name] = array if path[0] == ITEMS else array.take(block.event_of)
        return Raw(
            request=block.values(("request_id",)).canonical_or_null(),
            ts=_times(block.values(("ts",))),
            item=block.values(("item",)).canonical_or_null(),
            what=block.values(("event",)).canonical_or_null(),
            lengths=block.lengths,
            ids=block.values((ITEMS, "id")).canonical_or_null(),
            columns=columns,
        )


class _Block:
    """A scanned block: the values at each path. Lines without values are marked in `odd`."""

    def __init__(
        self, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], compiled: Compiled, odd: Bools
    ) -> None:
        tree, lines = compiled.tree, odd.size
        most_rows = min(int(np.count_nonzero(data == ord("{"))), lines * MAX_ITEMS)
        room = np.where(tree.in_item == 1, most_rows, lines) + 1
        base = np.concatenate([[0], np.cumsum(room)])
        size = int(base[-1])
        self._spans = Spans(
            base,
            *(np.zeros(size, np.uint8), np.empty(size, np.int32), np.empty(size, np.int32)),
            np.zeros(tree.allowed.size, np.uint16),
        )
        lengths = np.empty(lines + 1, np.int64)
        self._rows = int(scan(data, starts, tree, self._spans, _scratch(tree), lengths, odd))
        self._events = lines - int(np.count_nonzero(odd))
        self._data, self._leaves = data, compiled.leaves
        self.lengths = lengths[: self._events]
        numbers = np.arange(self._events, dtype=np.int32)
        self._event_of = np.repeat(numbers, np.maximum(self.lengths, 0))
        self.event_of = pa.array(self._event_of)

    def values(self, path: Path) -> Values:
        """The values at a path, one an item or an event."""
        leaf, spans = self._leaves[path], self._spans
        first = int(spans.base[leaf])
        window = slice(first, first + (self._rows if path[0] == ITEMS else self._events))
        return Values(self._data, spans.kinds[window], spans.begins[window], spans.sizes[window])

    def found(self, column: Column) -> tuple[Values | None, bool]:
        """The first value of each row, False; or of each event, True, if no item has its own. None: no row has one."""
        used = [path for path in column.paths if self._spans.used[self._leaves[path]]]
        of_events = all(path[0] != ITEMS for path in used)
        found: Values | None = None
        for path in used:
            values = self.values(path)
            if path[0] != ITEMS and not of_events:
                values = values.take(self._event_of)
            found = values if found is None else found.or_else(values)
        return found, of_events

    def mixed(self, columns: list[Column]) -> Bools:
        """The events with a scalar where others have a list in the same column: one array cannot hold both."""
        mixed = np.zeros(self._events, np.bool_)
        for column in columns:
            values, of_events = self.found(column)
            if values is not None and (values.kinds == LIST).any():
                scalars = (values.kinds != LIST) & (values.kinds != ABSENT)
                mixed[np.flatnonzero(scalars) if of_events else self._event_of[scalars]] = True
        return mixed


def _column(block: _Block, column: Column) -> pa.Array:
    values, of_events = block.found(column)
    if values is None:
        return shaped(pa.nulls(len(block.event_of)), column.form)
    array = _shaped(values, column)
    return array.take(block.event_of) if of_events else array


def _shaped(values: Values, column: Column) -> pa.Array:
    if column.form == "set" and not (values.kinds != ABSENT).any():
        return pa.nulls(len(values), SET)
    if column.form == "set" and (values.kinds == LIST).any():
        return values.members()
    if column.form == "number":
        numbers = shaped(values.written(), "number")
        if pa.types.is_floating(numbers.type):
            return numbers
    return values.canonical()


def _times(values: Values) -> pa.Array:
    """Numbers if all values are numbers in the range of times, which is cheaper than text; else canonical text."""
    if np.isin(values.kinds, (ABSENT, WHOLE, FRACTION)).all():
        numbers = _number(values, pa.float64())
        if not (np.abs(numbers.to_numpy(zero_copy_only=False)) > _LATEST).any():
            return numbers
    return values.canonical()


def _number(values: Values, kind: pa.DataType) -> pa.Array:
    present = pa.array(values.kinds != ABSENT)
    return (
        pa.compute.if_else(present, values.written(), pa.scalar(None, pa.binary()))
        .cast(pa.string())
        .cast(kind)
    )


def _scratch(tree: Tree) -> Scratch:
    names, objects = tree.leaf.size, tree.first.size - 1
    containers, numbers, serials, last = np.zeros((4, DEEPEST), np.int64)
    after, seen = np.full(names + objects, -1, np.int64), np.zeros(names, np.int64)
    return Scratch(containers, numbers, serials, last, after, seen, np.zeros(1, np.int64))


_IDS = (STRING, ESCAPED, WHOLE)
_SCALARS = (*_IDS, FRACTION, TRUE, FALSE)
_SETS = (*_SCALARS, LIST)
_RESERVED = {"text": _IDS, "whole": (WHOLE,), "number": (WHOLE, FRACTION)}
_MEMBERS: dict[Path, tuple[int, ...]] = {
    ("request_id",): _IDS,
    ("ts",): _SCALARS,
    ("item",): _IDS,
    ("event",): _IDS,
    (ITEMS, "id"): _IDS,
}
_WHOLE_BYTES, _ANY_BYTES = 18, 2**31 - 1  # always fits an int64
_OBJECTS = {
    (ITEMS,): ITEMS_OR_NULL,
    (ITEMS, FEATURES): OBJECT_OR_NULL,
    (CONTEXT,): OBJECT_OR_NULL,
    (USER,): OBJECT_OR_NULL,
}


@dataclass
class _Node:
    """A member name: the names in it, if it is an object, and its leaf, if it is wanted."""

    path: Path = ()
    names: dict[str, _Node] = field(default_factory=dict)
    leaf: int = -1

    def at(self, path: Iterable[str]) -> _Node:
        node = self
        for part in path:
            node = node.names.setdefault(part, _Node((*node.path, part)))
        return node


@dataclass(frozen=True)
class Compiled:
    """The wanted paths as the arrays that the scan kernel walks.

    leaves: the number of each path; only the kinds that all readers of a path take are allowed there.
    """

    tree: Tree
    leaves: dict[Path, int]

    @classmethod
    def of(cls, wanted: Wanted) -> Compiled:
        """For the wanted columns, and for the members that validation reads."""
        allowed = dict[Path, set[int]]()
        for path, kinds in _readers(wanted):
            allowed[path] = allowed.get(path, set(kinds)) & set(kinds)
        root, leaves = _Node(), {path: leaf for leaf, path in enumerate(allowed)}
        for path in _OBJECTS:
            root.at(path)
        for path, leaf in leaves.items():
            root.at(path).leaf = leaf
        bits = [sum(1 << kind for kind in allowed[path]) for path in leaves]
        whole = {path for path, kind in RESERVED.values() if kind == "whole"}
        longest = [_WHOLE_BYTES if path in whole else _ANY_BYTES for path in leaves]
        return cls(_arrays(root, bits, longest, [path[0] == ITEMS for path in leaves]), leaves)


def _readers(wanted: Wanted) -> Iterable[tuple[Path, tuple[int, ...]]]:
    yield from _MEMBERS.items()
    for path, kind in RESERVED.values():
        yield path, _RESERVED[kind]
    for column in wanted.columns:
        for path in column.paths:
            yield path, _SETS if column.form == "set" else _SCALARS


def _arrays(root: _Node, bits: list[int], longest: list[int], in_item: list[bool]) -> Tree:
    objects, first, names = [root], [0], list[_Node]()
    under = list[int]()
    for each in objects:  # grows: breadth first
        for node in each.names.values():
            names.append(node)
            is_object = bool(node.names) or node.path in _OBJECTS
            under.append(len(objects) if is_object else -1)
            if is_object:
                objects.append(node)
        first.append(len(names))
    texts = [node.path[-1].encode() for node in names]
    return Tree(
        first=np.array(first, np.int32),
        names=np.frombuffer(b"".join(texts), np.uint8),
        name_at=np.cumsum([0, *map(len, texts)], dtype=np.int32),
        leaf=np.array([node.leaf for node in names], np.int32),
        under=np.array(under, np.int32),
        must=np.array([_OBJECTS.get(node.path, 0) for node in names], np.uint8),
        allowed=np.array(bits, np.uint16),
        longest=np.array(longest, np.int32),
        in_item=np.array(in_item, np.uint8),
    )


Bytes = npt.NDArray[np.uint8]
_NONE = np.empty(0, np.int32)


@dataclass(frozen=True)
class Values:
    """Where values are in `data`, one an event or a row, as in the kernels' Spans."""

    data: Bytes
    kinds: Bytes
    begins: npt.NDArray[np.int32]
    sizes: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return self.kinds.size

    def or_else(self, others: Values) -> Values:
        """These values, and the others' where these are absent."""
        mine = self.kinds != ABSENT
        pairs = ((self.kinds, others.kinds), (self.begins, others.begins), (self.sizes, others.sizes))
        return Values(self.data, *(np.where(mine, a, b) for a, b in pairs))

    def take(self, rows: npt.NDArray[np.int32]) -> Values:
        """The values of these rows."""
        return Values(self.data, self.kinds[rows], self.begins[rows], self.sizes[rows])

    def written(self) -> pa.Array:
        """Each value as written, without escapes; empty where absent."""
        return self._with(self._copied(), np.flatnonzero(self.kinds == ESCAPED), _unescaped)

    def canonical(self) -> pa.Array:
        """The canonical text of each, empty where absent."""
        return self._with(self.written(), np.flatnonzero(self.kinds == FRACTION), _of_numbers)

    def canonical_or_null(self) -> pa.Array:
        """The canonical text of each, null where absent."""
        text = self.canonical()
        missing = self.kinds == ABSENT
        return pa.compute.if_else(pa.array(~missing), text, pa.scalar(None, TEXT)) if missing.any() else text

    def members(self) -> pa.Array:
        """For lists and ABSENT values only: lists of their members' canonical texts."""
        offsets = np.empty(len(self) + 1, np.int32)
        count_members(self.data, self.kinds, self.begins, self.sizes, offsets)
        total = int(offsets[-1])
        inside = Values(
            self.data, np.empty(total, np.uint8), np.empty(total, np.int32), np.empty(total, np.int32)
        )
        spans = Spans(_NONE, inside.kinds, inside.begins, inside.sizes, _NONE)
        find_members(self.data, self.kinds, self.begins, self.sizes, spans)
        mask = pa.array(self.kinds != LIST)
        return pa.ListArray.from_arrays(pa.array(offsets), inside.canonical(), mask=mask)

    def _copied(self) -> pa.Array:
        offsets = np.empty(len(self) + 1, np.int32)
        text_offsets(self.kinds, self.sizes, offsets)
        out = np.empty(int(offsets[-1]), np.uint8)
        copy_text(self.data, self.begins, offsets, out)
        return pa.Array.from_buffers(TEXT, len(self), [None, pa.py_buffer(offsets), pa.py_buffer(out)])

    def _with(self, text: pa.Array, rows: npt.NDArray[np.int64], of: Any) -> pa.Array:
        """The texts, those of some rows replaced."""
        if not rows.size:
            return text
        order = np.arange(len(self))
        order[rows] = len(self) + np.arange(rows.size)
        return pa.concat_arrays([text, of(text.take(pa.array(rows)))]).take(pa.array(order))


def _unescaped(text: pa.Array) -> pa.Array:
    return pa.array([json.loads(b'"' + each + b'"') for each in text.to_pylist()], pa.string()).cast(TEXT)


def _of_numbers(text: pa.Array) -> pa.Array:
    return text_column(text.cast(pa.string()).cast(pa.float64()))
