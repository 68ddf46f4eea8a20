"""JSON lines: blocks of whole lines as batches of columns.

A block is scanned by kernels, which find the values where they stand; the lines that these set aside are parsed one by
one, which says what is wrong with a line, and their rows are put back in order. A field `b` of an object under `a` is
the column `a.b`. `load`, `column_of` and `canonical` are shared with the parser of events.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from model_store.errors import InputError
from model_store.spec.values import INTEGRAL_LIMIT
from trainer.formats.batch import HEAD_BYTES, LazyColumns, Position, RowBatch, is_several
from trainer.formats.cells import CellText
from trainer.formats.cells_kernels import LIST
from trainer.formats.json_kernels import find_lines
from trainer.formats.json_scan import SCALAR, Lines, Path, Paths, is_in_place
from trainer.formats.rejects import Reject
from trainer.formats.row_file import Format, RowFile
from trainer.formats.streams import ALL, Bytes, Feed, Share

ARRAY = re.compile(rb"\s*\[\s*(?:\{|$)")
"""How an array of objects starts: no row, but a file of them."""


class JsonLinesFile(RowFile):
    """One file of JSON objects, one a line.

    columns: the keys met in the first block, in order; left_out: of its first lines, the keys of lists of objects. An
    object is a weighted set (see `kinds`) and becomes a column only if wanted. Raises InputError for a file without an
    object. keys: what is known of the file, whose first block is then not inspected.
    """

    def __init__(self, feed: Feed, keys: Keys | None = None) -> None:
        super().__init__(feed)
        self.columns, self._objects, self.left_out = keys or self._first_keys()
        self.kinds = dict.fromkeys(self._objects, "set")

    def may_have(self, column: str) -> bool:
        """True for `columns`, and for the objects that contain them: an object of numbers is a weighted set."""
        return column in self.columns or column in self._objects

    def batches(self, wanted: Sequence[str], share: Share = ALL) -> Iterator[RowBatch]:
        """The rest of the file. Raises InputError where it is damaged, after the rows before."""
        # A name with many dots may mean more paths than can be looked for in one scan.
        places = {name: tuple(_paths_of(name)) for name in wanted if name.count(".") <= _MOST_DOTS}
        known = (tuple(name.split(".")) for name in self.columns)
        paths = Paths.of({path: SCALAR | LIST for own in places.values() for path in own}, known=known)
        for data in self._feed.blocks(share):
            yield self._batch(data, wanted, places, paths)

    def _batch(
        self, data: Bytes, wanted: Sequence[str], places: Mapping[str, Sequence[Path]], paths: Paths
    ) -> RowBatch:
        feed, room, starts = self._feed, self._feed.room, np.empty(data.size + 2, np.int64)
        count, has_special, has_other = find_lines(room, data.size, starts)
        numbers = np.arange(feed.line, feed.line + count)
        # A last line without a line end may continue when the file grows.
        stop = feed.drop(data.size, count - bool(data[-1] != ord("\n")))
        aside = np.zeros(count, np.bool_)
        lines = Lines(room, starts[: count + 1], paths, aside, is_ascii=not has_other)
        columns = _columns(lines, wanted, places, paths, may_be_odd=has_special or has_other)

        def parsed(some: Iterable[int]) -> RowBatch:
            texts = ((int(numbers[line]), data[starts[line] : starts[line + 1]].tobytes()) for line in some)
            return parse(texts, wanted, stop, self._objects)

        if columns is None:
            return parsed(range(count))
        scanned = RowBatch(LazyColumns(columns), numbers[~aside], feed.name, (), lines.count, stop)
        others = parsed(np.flatnonzero(aside))
        return _interleaved(scanned, others) or parsed(range(count))

    def _first_keys(self) -> Keys:
        name, data = self._feed.name, self._feed.first_lines()
        if ARRAY.match(data[:HEAD_BYTES].tobytes()):
            raise InputError(
                f"{name} is a JSON array; expected one object on each line, as jq -c '.[]' writes them"
            )
        keys = keys_of(data.tobytes())
        if not keys.columns:
            self._feed.check()
            raise InputError(
                f"{name}: found no JSON object; expected one on each line, with values other than objects; jq -c . "
                "writes one a line of objects that share a line or take several, jq -c '.rows[]' those in a list `rows`"
            )
        return keys


def _paths_of(name: str) -> Iterator[Path]:
    """Where a column may be: a member's own name may have dots."""
    yield (name,)
    for at, each in enumerate(name):
        if each == ".":
            yield from ((name[:at], *rest) for rest in _paths_of(name[at + 1 :]))


def _columns(
    lines: Lines,
    wanted: Sequence[str],
    places: Mapping[str, Sequence[Path]],
    paths: Paths,
    *,
    may_be_odd: bool,
) -> dict[str, CellText | pa.Array] | None:
    """The wanted columns of scanned lines; None if a careful parser must say what they are."""
    block, columns = lines.block(may_be_odd=may_be_odd), dict[str, CellText | pa.Array]()
    kinds = block.kinds.tolist() if block.kinds is not None else []
    for name in wanted:
        met = [path for path in places.get(name, ()) if lines.has_met(path)] or places.get(name, ())[:1]
        kind = kinds[paths.leaves[met[0]]] if len(met) == 1 else 0
        if len(met) != 1 or (kind & LIST and kind != LIST):
            return None
        in_place = is_in_place(kind)
        columns[name] = CellText(block, paths.leaves[met[0]]) if in_place else lines.values(met[0]).plain()
    return columns


def _interleaved(scanned: RowBatch, others: RowBatch) -> RowBatch | None:
    """The rows of both in the order of their lines; None if one has lists or maps in a column and the other scalars."""
    columns = scanned.columns
    if others.rows:
        order = np.argsort(np.concatenate([scanned.lines, others.lines]))
        columns = {}
        for name in scanned.columns:
            both = [scanned.columns[name], others.columns[name]]
            kinds = {array.type for array in both if not pa.types.is_null(array.type)} or {pa.null()}
            if len(kinds) == 1:
                kind = kinds.pop()
                whole = [pa.nulls(len(array), kind) if array.type != kind else array for array in both]
                array = pa.concat_arrays(whole)
            elif not all(map(pa.types.is_list, kinds)) and any(map(is_several, kinds)):
                return None
            else:
                array = column_of([value for each in both for value in each.to_pylist()])
            columns[name] = array.take(pa.array(order))
    lines = np.sort(np.concatenate([scanned.lines, others.lines]))
    return RowBatch(columns, lines, scanned.file, others.rejects, lines.size, scanned.stop)


_INT64 = 2**63
_LOOKED_AT = 100  # lines, for what is left out
_MOST_DOTS = 6
_LARGEST = int(sys.float_info.max)
_NAMES = {dict: "an object", list: "a list", str: "a string", type(None): "null", bool: "a boolean"}
_decode = json.JSONDecoder().decode


class BadRow(Exception):
    """A line that is not a row; the message is the reject's reason."""


def parse(
    lines: Iterable[tuple[int, bytes]], wanted: Sequence[str], stop: Position, objects: Container[str] = ()
) -> RowBatch:
    """The rows on these lines, each with its number, parsed one by one; blank lines are skipped.

    A column in `objects` may hold objects of numbers, which become maps.
    """
    values: list[list[Any]] = [[] for _ in wanted]
    numbers, rejects = [], []
    for number, text in lines:
        if not text.strip():
            continue
        try:
            row = _pick(load(text.removesuffix(b"\n")), wanted, objects)
        except BadRow as reason:
            rejects.append(Reject(stop.file, number, str(reason)))
            continue
        numbers.append(number)
        for column, value in zip(values, row, strict=True):
            column.append(value)
    columns = {name: column_of(column) for name, column in zip(wanted, values, strict=True)}
    return RowBatch(columns, np.array(numbers, np.int64), stop.file, tuple(rejects), len(numbers), stop)


class Keys(NamedTuple):
    """What the objects of a log hold.

    columns: the paths of values that can be columns, in order of appearance; objects: the paths where there are only
    objects and null; left_out: of the first lines, those of lists of objects or lists, if they are no column.
    """

    columns: tuple[str, ...]
    objects: frozenset[str]
    left_out: tuple[str, ...]


def keys_of(data: bytes) -> Keys:
    """The keys of the objects on lines; bad lines are skipped."""
    columns, left_out = dict[str, None](), dict[str, None]()
    is_object: dict[str, bool] = {}
    for number, text in enumerate(data.split(b"\n")):
        try:
            values = list(_values(load(text)))
        except BadRow:
            continue
        for path, value in values:
            if value is not None:
                is_object[path] = isinstance(value, dict) and is_object.get(path, True)
            if isinstance(value, list) and any(isinstance(each, dict | list) for each in value):
                left_out |= {path: None} if number < _LOOKED_AT else {}
            elif not isinstance(value, dict):
                columns[path] = None
    always = frozenset(path for path, always in is_object.items() if always)
    return Keys(tuple(columns), always, tuple(path for path in left_out if path not in columns))


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
    if kinds == {int, float} and all(abs(value) < INTEGRAL_LIMIT for value in values if value is not None):
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
    if isinstance(value, float) and value.is_integer() and abs(value) < INTEGRAL_LIMIT:
        return str(int(value))
    return str(value) if isinstance(value, int) else repr(value)


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


def _values(row: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every path and its value, objects before their members."""
    for key, value in row.items():
        yield prefix + key, value
        if isinstance(value, dict):
            yield from _values(value, f"{prefix}{key}.")


FORMATS = (
    Format(
        "jsonl",
        "JSON lines",
        (".jsonl", ".ndjson", ".json"),
        lambda text: text.startswith(b"{") or ARRAY.match(text),
        lambda file: JsonLinesFile(file.feed),
        holds="its lines are JSON objects",
    ),
)
