"""One file of Vowpal Wabbit, libsvm or libffm text: blocks of whole lines as batches, one column a namespace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from model_store.errors import InputError
from model_store.spec import WEIGHT
from trainer.rejects import Reject
from trainer.sources.batch import RowBatch
from trainer.sources.blocks import up_to_last_line_end
from trainer.sources.feed import Feed
from trainer.sources.positions import Position
from trainer.sources.sparse.block import name_table, read_block
from trainer.sources.sparse.grammars import Grammar
from trainer.sources.sparse.rows.kernels import UNWANTED, Names
from trainer.sources.streams import Bytes

_MOST_NAMES = 10_000


class LateNames:
    """Tells of columns that rows name when it is too late to make fields of them: of the first one, for all."""

    def __init__(self, on_note: Callable[[str], None]) -> None:
        self._on_note = on_note
        self._told = False

    def tell(self, file: str, line: int, column: str) -> None:
        """A row names a column that is neither wanted nor in the first block of its file."""
        if not self._told:
            self._told = True
            self._on_note(
                f"{file}:{line} names {column!r}, which the first rows do not: it is left out, and so are others that "
                "come so late; name them in [fields] to learn from them"
            )


class SparseFile:
    """One file of rows that name their features one by one.

    `columns`: those with one value a row, such as `label`; then one map from feature to x for each namespace of the
    first block, in order of appearance. Others may turn up later, and can be wanted: a row without one has an empty
    map. `late` is told of those that nobody wanted. Raises InputError for a file whose first block holds no good row.
    """

    def __init__(self, feed: Feed, grammar: Grammar, late: LateNames) -> None:
        self._feed = feed
        self._grammar = grammar
        self._late = late
        self._known = self._first_names()
        namespaces = [grammar.column_of(name) for name in self._known]
        self.columns = (*grammar.row_columns, *namespaces)
        self.kinds: Mapping[str, str | None] = {
            **dict.fromkeys(grammar.row_columns),
            **dict.fromkeys(namespaces, "set"),
            **({grammar.weight: WEIGHT} if grammar.weight else {}),
        }

    def may_have(self, column: str) -> bool:
        """True for `label` and the like, and for whatever a namespace may be called."""
        return column in self._grammar.row_columns or self._grammar.name_of(column) is not None

    def go_on(self, position: Position) -> None:
        """Pass over what lies before `position`."""
        self._feed.go_on(position)

    def batches(self, wanted: Sequence[str]) -> Iterator[RowBatch]:
        """The rest of the file; InputError where it is damaged, after the rows before."""
        maps = [name for name in wanted if name not in self._grammar.row_columns]
        names = self._table(maps)
        while True:
            data = self._lines()
            if data.size:
                yield self._batch(data, wanted, maps, names)
            elif self._feed.ended:
                break
            else:
                self._feed.fetch()
        self._feed.check()

    def _lines(self) -> Bytes:
        return self._feed.unread if self._feed.final else up_to_last_line_end(self._feed.unread)

    def _batch(self, data: Bytes, wanted: Sequence[str], maps: Sequence[str], names: Names) -> RowBatch:
        feed = self._feed
        block = read_block(data, self._grammar, names)
        columns = dict(zip(maps, block.maps(len(maps)), strict=True))
        columns |= {name: block.row_column(name) for name in wanted if name not in columns}
        rejects = tuple(Reject(feed.name, feed.line + line, reason) for line, reason in block.rejects())
        for line, name in block.news():
            self._late.tell(feed.name, feed.line + line, self._grammar.column_of(name))
        lines = block.rows.line + feed.line
        stop = feed.drop(data.size, block.line_ends)  # a last line without an end may still grow
        ordered = {name: columns[name] for name in wanted}
        return RowBatch(ordered, lines, feed.name, rejects, block.size, stop)

    def _table(self, maps: Sequence[str]) -> Names:
        """Every name known: those of the wanted columns with their number, the others as unwanted."""
        numbers = {self._name(column): number for number, column in enumerate(maps)}
        names = list(dict.fromkeys([*self._known, *numbers]))
        return name_table(names, [numbers.get(name, UNWANTED) for name in names])

    def _name(self, column: str) -> bytes:
        name = self._grammar.name_of(column)
        assert name is not None  # the reader asks `may_have` first
        return name

    def _first_names(self) -> dict[bytes, None]:
        """The names in the good lines of the first block."""
        while not self._lines().size and not self._feed.ended:
            self._feed.fetch()
        data = self._lines()
        block = read_block(data, self._grammar, name_table([], []))
        if not block.size:
            self._feed.check()
            rejects = block.rejects()
            why = f"; line {self._feed.line + rejects[0][0]}: {rejects[0][1]}" if rejects else ""
            raise InputError(f"{self._feed.name}: found no row of {self._grammar.format} text{why}")
        names = dict.fromkeys(self._grammar.names_in(_good_lines(data, block.rows.line)))
        if len(names) > _MOST_NAMES:
            raise InputError(
                f"{self._feed.name}: {len(names):,} namespaces in the first lines; expected a few, each with features"
            )
        return names


def _good_lines(data: Bytes, good: npt.NDArray[np.int64]) -> bytes:
    split = data.tobytes().split(b"\n")
    return b"\n".join(split[line] for line in good.tolist())
