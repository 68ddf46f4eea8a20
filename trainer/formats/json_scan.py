"""Lines of JSON scanned for the values at some paths: where these stand, and the arrays that become of them.

No Python runs per line. Lines that need judgement are set aside for a careful parser, which gives the same values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

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
    find_members,
    scan,
)

Path = tuple[str, ...]
"""Member names from a line's object inwards."""
Bytes = npt.NDArray[np.uint8]
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

    def values(self, path: Path) -> Values:
        """The values at a path, one a line or a row."""
        leaf = self._paths.leaves[path]
        first, step = int(self._spans.base[leaf]), int(self._spans.step[leaf])
        count = self._rows if self._paths.tree.in_row[leaf] else self.count
        window = slice(first, first + count * step, step)
        return Values(self._data, self._spans.kinds[window], self._spans.pairs[window])

    def block(self, *, may_be_odd: bool) -> Block:
        """The values of lines without rows, a column a path. may_be_odd: a byte may be special or no ASCII."""
        columns = len(self._paths.leaves)
        pairs = self._spans.pairs[: self.count * columns]
        kinds = self._spans.kinds[: self.count * columns].reshape(self.count, columns)
        of_columns = np.bitwise_or.reduce(kinds, axis=0)
        longest = int((pairs[:, 1] - pairs[:, 0]).max(initial=0))
        return Block.with_survey(self._data, pairs, self.count, columns, 2, longest, may_be_odd, of_columns)


@dataclass(frozen=True)
class Values:
    """Where values stand in `data`, one a line or a row; kinds and pairs as in the kernels' Spans."""

    data: Bytes
    kinds: Bytes
    pairs: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return self.kinds.size

    @cached_property
    def kind(self) -> int:
        """The bits of all kinds that there are."""
        return int(np.bitwise_or.reduce(self.kinds))

    def or_else(self, others: Values) -> Values:
        """These values, and the others' where these are absent."""
        mine = self.kinds != ABSENT
        pairs = np.where(mine[:, np.newaxis], self.pairs, others.pairs)
        return Values(self.data, np.where(mine, self.kinds, others.kinds), pairs)

    def take(self, rows: npt.NDArray[np.int32]) -> Values:
        """The values of these rows."""
        return Values(self.data, self.kinds[rows], self.pairs[rows])

    def written(self) -> pa.Array:
        """Each value as written, without escapes; empty where absent."""
        return self._with(self._cells().to_arrow(), ESCAPED, _unescaped)

    def canonical(self) -> pa.Array:
        """The canonical text of each, empty where absent."""
        return self._with(self.written(), NOT_CANONICAL, _of_numbers)

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
            return self.lists(Values.plain)
        if not is_in_place(kind):
            return self.canonical_or_null().cast(pa.string())
        return self._cells().values()

    def lists(self, of: Callable[[Values], pa.Array]) -> pa.Array:
        """For lists and ABSENT values only: lists of what `of` makes of their members."""
        is_list = self.kinds == LIST
        most = int((self.pairs[:, 1] - self.pairs[:, 0]).sum()) // 2  # a member has a byte and one beside it
        kinds, pairs, offsets = (
            np.empty(most, np.uint8),
            np.empty((most, 2), np.int32),
            np.empty(len(self) + 1, np.int32),
        )
        find_members(self.data, is_list, np.ascontiguousarray(self.pairs), offsets, kinds, pairs)
        members = Values(self.data, kinds[: offsets[-1]], pairs[: offsets[-1]])
        return pa.ListArray.from_arrays(pa.array(offsets), of(members), mask=pa.array(~is_list))

    def _cells(self) -> CellText:
        none, kinds = np.zeros(1, np.uint8), np.array([self.kind], np.uint8)
        pairs = np.ascontiguousarray(self.pairs)
        return CellText(Block(self.data, pairs, len(self), 1, 2, none, none, 0, kinds), 0)

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


def _unescaped(text: pa.Array) -> pa.Array:
    return pa.array(json.loads(b'["' + b'","'.join(text.to_pylist()) + b'"]'), pa.string()).cast(pa.binary())


def _of_numbers(text: pa.Array) -> pa.Array:
    return text_column(text.cast(pa.string()).cast(pa.float64()))


def is_utf8(data: Bytes) -> bool:
    """True if the bytes are UTF-8 text."""
    offsets = pa.py_buffer(np.array([0, data.size], np.int32))
    try:
        pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(data)]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
