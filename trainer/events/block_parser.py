"""Reads events by whole blocks: one scan of the bytes finds the wanted values, which become columns.

No Python runs per event. Lines that need judgement are left to `line_parser`, which gives the same values. Unwanted
members are checked and skipped.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trainer.events.columns import (
    CONTEXT,
    FEATURES,
    ITEMS,
    RESERVED,
    SET,
    USER,
    Column,
    Path,
    Wanted,
    shaped,
)
from trainer.events.events import MAX_ITEMS, Raw
from trainer.events.line_parser import RESERVED_TYPES
from trainer.formats.cells_kernels import ESCAPED, FLOAT, LIST, LONG, NOT_CANONICAL, STRING, WHOLE
from trainer.formats.json_kernels import ABSENT, OBJECT_OR_NULL, ROWS_OR_NULL
from trainer.formats.json_scan import SCALAR, Bools, Lines, Paths, Values

_LATEST = 9e18
_ID = STRING | ESCAPED | WHOLE | LONG
_NUMBER = WHOLE | LONG | FLOAT | NOT_CANONICAL
_KINDS = {"text": _ID, "whole": WHOLE, "number": _NUMBER}
_MEMBERS: dict[Path, int] = {
    ("request_id",): _ID,
    ("ts",): SCALAR,
    ("item",): _ID,
    ("event",): _ID,
    (ITEMS, "id"): _ID,
}
_OBJECTS = {
    (ITEMS,): ROWS_OR_NULL,
    (ITEMS, FEATURES): OBJECT_OR_NULL,
    (CONTEXT,): OBJECT_OR_NULL,
    (USER,): OBJECT_OR_NULL,
}


class BlockReader:
    """Reads blocks for the wanted columns. Keeps no state between blocks."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        # Only the kinds that all readers of a path take are allowed there.
        allowed = dict(_MEMBERS)
        for path, kind in RESERVED.values():
            allowed[path] = allowed.get(path, _KINDS[kind]) & _KINDS[kind]
        for column in wanted.columns:
            kinds = SCALAR | LIST if column.form == "set" else SCALAR
            allowed |= {path: allowed.get(path, kinds) & kinds for path in column.paths}
        self._paths = Paths.of(allowed, _OBJECTS, MAX_ITEMS)

    def read(self, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]) -> tuple[Raw, Bools]:
        """The events of the lines that are not set aside, and bool[lines]: which are.

        data: with at least 64 bytes after the lines, which begin at `starts`.
        """
        aside = np.zeros(starts.size - 1, np.bool_)
        while True:
            block = _Block(Lines(data, starts, self._paths, aside))
            mixed = block.mixed(column for column in self._wanted.columns if column.form == "set")
            if not mixed.any():
                return self._raw(block), aside
            aside[np.flatnonzero(~aside)[mixed]] = True

    def _raw(self, block: _Block) -> Raw:
        values = block.lines.values
        columns = {column.name: _column(block, column) for column in self._wanted.columns}
        for name, (path, kind) in RESERVED.items():
            own = values(path)
            array = own.canonical_or_null() if kind == "text" else _numbers(own, RESERVED_TYPES[kind])
            columns[name] = array if path[0] == ITEMS else array.take(pa.array(block.event_of))
        return Raw(
            request=values(("request_id",)).canonical_or_null(),
            ts=_times(values(("ts",))),
            item=values(("item",)).canonical_or_null(),
            what=values(("event",)).canonical_or_null(),
            lengths=block.lines.lengths,
            ids=values((ITEMS, "id")).canonical_or_null(),
            columns=columns,
        )


class _Block:
    """Scanned events. event_of: the number of each item's event."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        numbers = np.arange(lines.count, dtype=np.int32)
        self.event_of = np.repeat(numbers, np.maximum(lines.lengths, 0))

    def first_values(self, column: Column) -> tuple[Values | None, bool]:
        """The first value of each item, False; or of each event, True, if no item has its own. None: there is none."""
        used = [(path[0] == ITEMS, self.lines.values(path)) for path in column.paths]
        used = [(in_item, values) for in_item, values in used if values.kind]
        of_events = not any(in_item for in_item, _ in used)
        first: Values | None = None
        for in_item, values in used:
            own = values if in_item or of_events else values.take(self.event_of)
            first = own if first is None else first.or_else(own)
        return first, of_events

    def mixed(self, columns: Iterable[Column]) -> Bools:
        """The events with a scalar where others have a list in the same column: one array cannot hold both."""
        mixed = np.zeros(self.lines.count, np.bool_)
        for column in columns:
            values, of_events = self.first_values(column)
            if values is not None and values.kind & LIST:
                scalars = (values.kinds != LIST) & (values.kinds != ABSENT)
                mixed[np.flatnonzero(scalars) if of_events else self.event_of[scalars]] = True
        return mixed


def _column(block: _Block, column: Column) -> pa.Array:
    values, of_events = block.first_values(column)
    if values is None:
        return shaped(pa.nulls(len(block.event_of)), column.form)
    array = _shaped(values, column)
    return array.take(pa.array(block.event_of)) if of_events else array


def _shaped(values: Values, column: Column) -> pa.Array:
    if column.form == "set" and not values.kind:
        return pa.nulls(len(values), SET)
    if column.form == "set" and values.kind == LIST:
        return values.lists(Values.canonical)
    if column.form == "number":
        numbers = shaped(values.written(), "number")
        if pa.types.is_floating(numbers.type):
            return numbers
    return values.canonical()


def _times(values: Values) -> pa.Array:
    """Numbers if all values are numbers in the range of times, which is cheaper than text; else canonical text."""
    if not values.kind & ~_NUMBER:
        numbers = _numbers(values, pa.float64())
        if not (np.abs(numbers.to_numpy(zero_copy_only=False)) > _LATEST).any():
            return numbers
    return values.canonical()


def _numbers(values: Values, kind: pa.DataType) -> pa.Array:
    return (
        values.or_null(values.written()).cast(pa.string()).cast(kind)
        if values.kind
        else pa.nulls(len(values), kind)
    )
