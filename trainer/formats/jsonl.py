"""JSON lines: blocks of whole lines as batches of columns.

A block is scanned by kernels, which find the values where they are; the lines that these set aside are parsed one by
one, which says what is wrong with a line, and their rows are put back in order. A field `b` of an object under `a` is
the column `a.b`. `load`, `column_of` and `canonical` are shared with the parser of events.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model_store.errors import InputError
from model_store.spec.values import INTEGRAL_LIMIT
from trainer.formats.batch import HEAD_BYTES, LazyColumns, Position, RowBatch, is_several
from trainer.formats.cells import Block, CellText, text_column
from trainer.formats.cells_kernels import (
    BOOLEAN,
    ESCAPED,
    FLOAT,
    LIST,
    LONG,
    NOT_CANONICAL,
    STRING,
    WHOLE,
)
from trainer.formats.json_kernels import (
    ABSENT,
    DEEPEST,
    ROWS_OR_NULL,
    Scratch,
    Spans,
    Tree,
    find_lines,
    find_members,
    scan,
)
from trainer.formats.rejects import Reject
from trainer.formats.row_file import Format, RowFile
from trainer.formats.streams import ALL, Bytes, Feed, Share

Path = tuple[str, ...]
"""Member names from a line's object inwards."""
Bools = npt.NDArray[np.bool_]
SCALAR = STRING | ESCAPED | WHOLE | LONG | FLOAT | NOT_CANONICAL | BOOLEAN
"""The kinds of all values but lists and objects."""


@dataclass
class _Member:
    """A member: those in it, if it is an object, and its leaf, if it is wanted."""

    path: Path = ()
    members: dict[str, _Member] = field(default_factory=dict)
    leaf: int = -1

    def at(self, path: Path) -> _Member:
        member = self
        for name in path:
            member = member.members.setdefault(name, _Member((*member.path, name)))
        return member


@dataclass(frozen=True)
class Paths:
    """The wanted paths as the arrays that the scan kernel walks.

    leaves, names: the number of the value at each wanted path, and of the last name of each path.
    """

    tree: Tree
    leaves: Mapping[Path, int]
    names: Mapping[Path, int]

    @classmethod
    def of(
        cls,
        allowed: Mapping[Path, int],
        must: Mapping[Path, int] | None = None,
        most: int = 0,
        known: Iterable[Path] = (),
    ) -> Paths:
        """allowed: the kinds that are allowed at each path; must: where there must be an object or rows, as in Tree.

        A line may have `most` rows, whose members have paths that go on from that of the rows. known: other paths that
        lines have, by which a name that is not wanted is told sooner.
        """
        root, must = _Member(), must or {}
        for path in (*known, *must):
            root.at(path)
        for leaf, path in enumerate(allowed):
            root.at(path).leaf = leaf
        objects, first, names, under = [root], [0], list[_Member](), list[int]()
        for each in objects:  # grows: breadth first
            for member in each.members.values():
                names.append(member)
                is_object = bool(member.members) or member.path in must
                under.append(len(objects) if is_object else -1)
                objects += [member] if is_object else []
            first.append(len(names))
        texts = [member.path[-1].encode("utf-8", "surrogatepass") for member in names]
        of_rows = tuple(path for path, what in must.items() if what == ROWS_OR_NULL)
        tree = Tree(
            first=np.array(first, np.int32),
            names=np.frombuffer(b"".join(texts) + bytes(8), np.uint8),
            name_at=np.cumsum([0, *map(len, texts)], dtype=np.int32),
            leaf=np.array([member.leaf for member in names], np.int32),
            under=np.array(under, np.int32),
            must=np.array([must.get(member.path, 0) for member in names], np.uint8),
            allowed=np.array(list(allowed.values()), np.uint8),
            in_row=np.array([path[:1] in of_rows for path in allowed], np.uint8),
            most=most,
        )
        leaves = {path: leaf for leaf, path in enumerate(allowed)}
        return cls(tree, leaves, {member.path: number for number, member in enumerate(names)})


class Lines:
    """Scanned lines.

    Of those that are not set aside, count: how many there are; lengths: the rows of each, -1 without a list of rows.
    """

    def __init__(
        self, data: Bytes, starts: npt.NDArray[np.int64], paths: Paths, aside: Bools, is_ascii: bool = False
    ) -> None:
        """data: with at least 64 bytes after the lines, which begin at `starts`, with their end as the last.

        aside: bool[lines], in and out; a line that is not UTF-8 is set aside. is_ascii: all bytes are.
        """
        if not is_ascii and not is_utf8(data[: starts[-1]]):
            aside |= [not is_utf8(data[a:b]) for a, b in pairwise(starts.tolist())]
        tree, lines, leaves = paths.tree, aside.size, paths.tree.allowed.size
        if tree.most:  # by leaf, as most leaves have no value in a block
            rows = min(int(np.count_nonzero(data == ord("{"))), lines * tree.most)
            ends = np.cumsum([0, *(np.where(tree.in_row == 1, rows, lines) + 1)])
            base, step, size = ends[:-1], np.ones(leaves, np.int64), int(ends[-1])
        else:  # by line, as a `Block` has them
            base, step, size = np.arange(leaves), np.full(leaves, leaves), lines * leaves
        # Zeros that nothing is written over take no memory.
        self._spans = Spans(base, step, np.zeros(size, np.uint8), np.zeros((size, 2), np.int32))
        names, objects = tree.leaf.size, tree.first.size - 1
        containers, numbers, serials, last = np.zeros((4, DEEPEST), np.int64)
        after, seen = np.full(names + objects, -1, np.int64), np.zeros(names, np.int64)
        scratch = Scratch(containers, numbers, serials, last, after, seen, np.zeros(1, np.int64))
        lengths = np.empty(lines + 1, np.int64)
        self._rows = int(scan(data, starts, tree, self._spans, scratch, lengths, aside))
        self.count = lines - int(np.count_nonzero(aside))
        self.lengths = lengths[: self.count]
        self._data, self._paths, self._seen = data, paths, seen

    def has_met(self, path: Path) -> bool:
        """Whether a line has a member at this path, maybe null; lines set aside count too."""
        return bool(self._seen[self._paths.names[path]])

    def values(self, path: Path) -> ValueSpans:
        """The values at a path, one a line or a row."""
        leaf = self._paths.leaves[path]
        first, step = int(self._spans.base[leaf]), int(self._spans.step[leaf])
        count = self._rows if self._paths.tree.in_row[leaf] else self.count
        window = slice(first, first + count * step, step)
        return ValueSpans(self._data, self._spans.kinds[window], self._spans.pairs[window])

    def block(self, *, may_be_odd: bool) -> Block:
        """The values of lines without rows, a column a path. may_be_odd: a byte may be special or no ASCII."""
        columns = len(self._paths.leaves)
        pairs = self._spans.pairs[: self.count * columns]
        kinds = self._spans.kinds[: self.count * columns].reshape(self.count, columns)
        of_columns = np.bitwise_or.reduce(kinds, axis=0)
        longest = int((pairs[:, 1] - pairs[:, 0]).max(initial=0))
        return Block.with_survey(self._data, pairs, self.count, columns, 2, longest, may_be_odd, of_columns)


@dataclass(frozen=True)
class ValueSpans:
    """Where values are in `data`, one a line or a row; kinds and pairs as in the kernels' Spans."""

    data: Bytes
    kinds: Bytes
    pairs: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return self.kinds.size

    @cached_property
    def kind(self) -> int:
        """The bits of all kinds that there are."""
        return int(np.bitwise_or.reduce(self.kinds))

    def or_else(self, others: ValueSpans) -> ValueSpans:
        """These values, and the others' where these are absent."""
        mine = self.kinds != ABSENT
        pairs = np.where(mine[:, np.newaxis], self.pairs, others.pairs)
        return ValueSpans(self.data, np.where(mine, self.kinds, others.kinds), pairs)

    def take(self, rows: npt.NDArray[np.int32]) -> ValueSpans:
        """The values of these rows."""
        return ValueSpans(self.data, self.kinds[rows], self.pairs[rows])

    def written(self) -> pa.Array:
        """Each value as written, without escapes; empty where absent."""
        return self._with(
            self._cells().to_arrow(),
            ESCAPED,
            lambda text: pa.array(
                json.loads(b'["' + b'","'.join(text.to_pylist()) + b'"]'), pa.string()
            ).cast(pa.binary()),
        )

    def canonical(self) -> pa.Array:
        """The canonical text of each, empty where absent."""
        return self._with(
            self.written(), NOT_CANONICAL, lambda text: text_column(text.cast(pa.string()).cast(pa.float64()))
        )

    def canonical_or_null(self) -> pa.Array:
        """The canonical text of each, null where absent."""
        return self.or_null(self.canonical()) if self.kind else pa.nulls(len(self), pa.binary())

    def or_null(self, texts: pa.Array) -> pa.Array:
        """The texts of values, with nulls where they are absent."""
        present = self.kinds != ABSENT
        return texts if present.all() else pc.if_else(pa.array(present), texts, pa.scalar(None, pa.binary()))

    def plain(self) -> pa.Array:
        """The values as an array of a plain type, as `jsonl.column_of` gives; lists only where all values are."""
        kind = self.kind
        if kind == LIST:
            return self.lists(ValueSpans.plain)
        if not is_in_place(kind):
            return self.canonical_or_null().cast(pa.string())
        return self._cells().values()

    def lists(self, of: Callable[[ValueSpans], pa.Array]) -> pa.Array:
        """For lists and ABSENT values only: lists of what `of` makes of their members."""
        is_list = self.kinds == LIST
        most = int((self.pairs[:, 1] - self.pairs[:, 0]).sum()) // 2  # a member has a byte and one beside it
        kinds, pairs, offsets = (
            np.empty(most, np.uint8),
            np.empty((most, 2), np.int32),
            np.empty(len(self) + 1, np.int32),
        )
        find_members(self.data, is_list, np.ascontiguousarray(self.pairs), offsets, kinds, pairs)
        members = ValueSpans(self.data, kinds[: offsets[-1]], pairs[: offsets[-1]])
        return pa.ListArray.from_arrays(pa.array(offsets), of(members), mask=pa.array(~is_list))

    def _cells(self) -> CellText:
        return CellText.of_pairs(self.data, np.ascontiguousarray(self.pairs), self.kind)

    def _with(self, text: pa.Array, kind: int, of: Callable[[pa.Array], pa.Array]) -> pa.Array:
        """The texts, those of values of a kind replaced."""
        if not self.kind & kind:
            return text
        rows = np.flatnonzero(self.kinds & kind)
        order = np.arange(len(self))
        order[rows] = len(self) + np.arange(rows.size)
        return pa.concat_arrays([text, of(text.take(pa.array(rows)))]).take(pa.array(order))


def is_in_place(kind: int) -> bool:
    """Whether a column of values of these kinds needs none of them written differently."""
    return not kind & (ESCAPED | LIST) and not (kind & NOT_CANONICAL and kind & (STRING | BOOLEAN))


def is_utf8(data: Bytes) -> bool:
    """True if the bytes are UTF-8 text."""
    offsets = pa.py_buffer(np.array([0, data.size], np.int32))
    try:
        pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(data)]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


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
