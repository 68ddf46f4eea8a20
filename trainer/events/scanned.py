"""Events by whole blocks: one pass over the bytes finds what is wanted, and columns are made of it. No Python an event.

Lines that must be judged are left to `line_by_line`, which gives the same values. What is not wanted is checked and
passed over.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trainer.events.forms import SET, shaped
from trainer.events.line_by_line import RESERVED_TYPES
from trainer.events.raw import MAX_ITEMS, Raw
from trainer.events.scanning.kernels import DEEPEST, Scratch, Spans, Tree, scan
from trainer.events.scanning.literals.kernels import ABSENT, FRACTION, LIST, WHOLE
from trainer.events.scanning.tree import Compiled
from trainer.events.scanning.values import Values
from trainer.events.wanted import ITEMS, RESERVED, Column, Path, Wanted
from trainer.sources.json_lines import is_utf8

_LATEST = 9e18
Bools = npt.NDArray[np.bool_]


class BlockReader:
    """Reads blocks for the columns that are wanted. Remembers nothing of them."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._compiled = Compiled.of(wanted)

    def read(self, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]) -> tuple[Raw, Bools]:
        """The events on the lines that are not odd, and bool[lines], which are odd."""
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
            event_id=block.values(("event_id",)).canonical_or_null(),
            what=block.values(("event",)).canonical_or_null(),
            lengths=block.lengths,
            ids=block.values((ITEMS, "id")).canonical_or_null(),
            columns=columns,
        )


class _Block:
    """A scanned block: the values at each place. Marks in `odd` the lines that it has none of."""

    def __init__(
        self, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], compiled: Compiled, odd: Bools
    ) -> None:
        tree, lines = compiled.tree, odd.size
        most_rows = min(int(np.count_nonzero(data == ord("{"))), lines * MAX_ITEMS)
        room = np.where(tree.in_item == 1, most_rows, lines) + 1
        base = np.concatenate([[0], np.cumsum(room)])
        places = int(base[-1])
        self._spans = Spans(
            base,
            *(np.zeros(places, np.uint8), np.empty(places, np.int32), np.empty(places, np.int32)),
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
        """What stands at a place, one an item or an event."""
        leaf, spans = self._leaves[path], self._spans
        first = int(spans.base[leaf])
        window = slice(first, first + (self._rows if path[0] == ITEMS else self._events))
        return Values(self._data, spans.kinds[window], spans.begins[window], spans.sizes[window])

    def found(self, column: Column) -> tuple[Values | None, bool]:
        """The first value of each row, or of each event if none is an item's own: then True. None: no row has one."""
        used = [path for path in column.places if self._spans.used[self._leaves[path]]]
        of_events = all(path[0] != ITEMS for path in used)
        found: Values | None = None
        for path in used:
            values = self.values(path)
            if path[0] != ITEMS and not of_events:
                values = values.take(self._event_of)
            found = values if found is None else found.or_else(values)
        return found, of_events

    def mixed(self, columns: list[Column]) -> Bools:
        """The events that have no list where others have one in the same column: one array cannot hold both."""
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
    """Numbers as such where all are, and are times: their canonical texts cost more."""
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
