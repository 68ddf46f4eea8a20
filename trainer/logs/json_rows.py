"""JSON lines one by one: the slow, exact way, which knows what is wrong with a bad line and where.

`json_lines` comes here for the blocks that Arrow cannot read.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Container, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from trainer.logs.batch import EXACT, RowBatch
from trainer.logs.positions import Position
from trainer.logs.rejects import Reject

_INT64 = 2**63
_LARGEST = int(sys.float_info.max)
_NAMES = {dict: "an object", list: "a list", str: "a string", type(None): "null", bool: "a boolean"}
_decode = json.JSONDecoder().decode


class BadRow(Exception):
    """A line that is no row; the message is the reject's reason."""


def parse(
    data: bytes, wanted: Sequence[str], first_line: int, stop: Position, objects: Container[str] = ()
) -> RowBatch:
    """The rows of `data`, whole lines from `first_line` up to `stop`; blank lines are passed over.

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


def columns(data: bytes) -> Iterator[str]:
    """The columns that the objects in `data` have, in order of appearance; bad lines are passed over."""
    seen: dict[str, None] = {}
    for text in _split(data):
        try:
            seen.update(dict.fromkeys(_paths(load(text))))
        except BadRow:
            continue
    return iter(seen)


def objects(data: bytes) -> frozenset[str]:
    """The paths where `data` has objects and nothing else but null."""
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
    """The one text of a value, however its number is written: 1 and 1.0 are "1", true is "true"; a list is JSON."""
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
    values = [_find(row, name) for name in wanted]
    for name, value in zip(wanted, values, strict=True):
        if isinstance(value, dict) and name in objects:
            _check_weighted(name, value)
            continue
        for each in value if isinstance(value, list) else (value,):
            _check(name, each)
    return values


def _find(row: dict[str, Any], name: str) -> Any:
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


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
    """An object is a value where it is a weighted set: all numbers."""
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
    """Every path to a value that can be a column: not to objects, nor to lists of anything nested."""
    for path, value in _values(row):
        nested = isinstance(value, list) and any(isinstance(each, dict | list) for each in value)
        if not nested and not isinstance(value, dict):
            yield path


def _values(row: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every path and what stands there, objects before what is in them."""
    for key, value in row.items():
        yield prefix + key, value
        if isinstance(value, dict):
            yield from _values(value, f"{prefix}{key}.")
