"""Reads events line by line: the slow, exact way, which says what is wrong with an event and where.

`block_parser` reads whole blocks and leaves odd lines to this module. Both give the same values.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from trainer.events.columns import (
    CONTEXT,
    FEATURES,
    ITEMS,
    RESERVED,
    TEXT,
    USER,
    Column,
    Path,
    Wanted,
    shaped,
)
from trainer.events.events import MAX_ITEMS, Raw
from trainer.formats.jsonl import BadRow, canonical, column_of, load

_LARGEST = int(sys.float_info.max)
_INT64 = 2**63
_SCALAR = "text, a number or a boolean"
_ID = "text or a whole number"
RESERVED_TYPES = {"whole": pa.int64(), "number": pa.float64(), "text": TEXT}


def read_lines(lines: Iterable[bytes], wanted: Wanted) -> Raw:
    """The events on lines of JSON."""
    events, bad = list[_Event](), dict[int, str]()
    for number, line in enumerate(lines):
        try:
            events.append(_Event(load(line), wanted))
        except BadRow as reason:
            bad[number] = str(reason)
            events.append(_Event({}, wanted))
    ids = [each for event in events for each in event.ids]
    rows = [row for event in events for row in event.rows]
    values = list(zip(*rows, strict=True)) or [()] * len(wanted.names)
    split = len(wanted.columns)
    columns = {
        column.name: shaped(column_of(each), column.form)
        for column, each in zip(wanted.columns, values[:split], strict=True)
    }
    for (name, (_, kind)), each in zip(RESERVED.items(), values[split:], strict=True):
        columns[name] = _texts(each) if kind == "text" else pa.array(each, RESERVED_TYPES[kind])
    return Raw(
        request=_texts(event.request for event in events),
        ts=column_of([event.ts for event in events]),
        item=_texts(event.item for event in events),
        what=_texts(event.what for event in events),
        lengths=np.array([event.length for event in events], np.int64),
        ids=_texts(ids),
        columns=columns,
        bad=bad,
    )


class _Event:
    """One event's members, each checked for its type. Raises BadRow."""

    def __init__(self, event: dict[str, Any], wanted: Wanted) -> None:
        self.request = _text(event.get("request_id"), "request_id")
        self.ts = _scalar(event.get("ts"), "ts")
        self.item = _text(event.get("item"), "item")
        self.what = _text(event.get("event"), "event")
        for name in (CONTEXT, USER):
            _check_object(event.get(name), name)
        items = event.get(ITEMS)
        if items is not None and not isinstance(items, list):
            raise BadRow(f"{ITEMS}: got {_named(items)}, expected a list of objects")
        self.length = -1 if items is None else len(items)
        if self.length > MAX_ITEMS:
            raise BadRow(f"{ITEMS}: got {self.length:,} of them, expected at most {MAX_ITEMS:,}")
        self.ids, self.rows = list[str | None](), list[list[Any]]()
        for index, item in enumerate(items or ()):
            self._add(event, item, f"{ITEMS}[{index}]", wanted)

    def _add(self, event: dict[str, Any], item: Any, where: str, wanted: Wanted) -> None:
        if not isinstance(item, dict):
            raise BadRow(f"{where}: got {_named(item)}, expected an object")
        _check_object(item.get(FEATURES), f"{where}.{FEATURES}")
        self.ids.append(_text(item.get("id"), f"{where}.id"))
        row = [_value(event, item, where, column) for column in wanted.columns]
        for path, kind in RESERVED.values():
            value, at = _at(event, item, where, path)
            row.append(_READ[kind](value, at))
        self.rows.append(row)


def _value(event: dict[str, Any], item: dict[str, Any], where: str, column: Column) -> Any:
    for path in column.paths:
        value, at = _at(event, item, where, path)
        if value is not None:
            return _scalar(value, at) if column.form != "set" else _several(value, at)
    return None


def _at(event: dict[str, Any], item: dict[str, Any], where: str, path: Path) -> tuple[Any, str]:
    """The value at a path, None if absent, and the path in words."""
    inside = path[0] == ITEMS
    value: Any = item if inside else event
    for part in path[1:] if inside else path:
        if not isinstance(value, dict):
            return None, ""
        value = value.get(part)
    return value, ".".join((where, *path[1:]) if inside else path)


def _text(value: Any, where: str) -> str | None:
    """Text, also of a whole number."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadRow(f"{where}: got {_named(value)}, expected {_ID}")
    return canonical(_scalar(value, where))


def _whole(value: Any, where: str) -> int | None:
    number = _number(value, where)
    if number is None:
        return None
    if number != int(number) or not -_INT64 <= int(value) < _INT64:
        raise BadRow(f"{where}: got {canonical(value)}, expected a whole number of 64 bits")
    return int(value)


def _number(value: Any, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRow(f"{where}: got {_named(value)}, expected a number")
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise BadRow(f"{where}: got a whole number that no double can hold")
    return float(_scalar(value, where))


_READ = {"text": _text, "whole": _whole, "number": _number}


def _scalar(value: Any, where: str) -> Any:
    if isinstance(value, dict | list):
        raise BadRow(f"{where}: got {_named(value)}, expected {_SCALAR}")
    if isinstance(value, float) and not math.isfinite(value):
        raise BadRow(f"{where}: got {value}, expected a finite number")
    if isinstance(value, str) and not value.isascii():
        _check_unicode(value, where)
    return value


def _several(value: Any, where: str) -> Any:
    """A set: a scalar, a list of scalars, or an object of numbers."""
    if isinstance(value, list):
        for index, each in enumerate(value):
            _scalar(each, f"{where}[{index}]")
    elif isinstance(value, dict):
        for member, x in value.items():
            _check_unicode(member, where)
            _number(x, f"{where}.{member}")
    else:
        _scalar(value, where)
    return value


def _check_unicode(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadRow(f"{where}: got half of a surrogate pair, expected Unicode text") from None


def _check_object(value: Any, where: str) -> None:
    if value is not None and not isinstance(value, dict):
        raise BadRow(f"{where}: got {_named(value)}, expected an object")


def _named(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", type(None): "null", bool: "a boolean"}
    return names.get(type(value), "a number")


def _texts(values: Iterable[str | None]) -> pa.Array:
    return pa.array(list(values), pa.string()).cast(TEXT)
