"""Vowpal Wabbit, libsvm and libffm text: blocks of whole lines as batches, with one column for each namespace."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.errors import InputError
from model_store.spec.spec import WEIGHT
from trainer.formats.batch import LazyColumns, RowBatch
from trainer.formats.cells import OTHER_LABELS, CellSets, CellText, padded_lines
from trainer.formats.cells import Block as Cells
from trainer.formats.rejects import Reject
from trainer.formats.row_file import Format, OpenFile, RowFile
from trainer.formats.sparse_kernels import (
    ANY_LABEL,
    BAD_BASE,
    BAD_FEATURE,
    BAD_LABEL,
    BAD_NUMBER,
    BAD_TEXT,
    COUNTS,
    EXTRA_WORDS,
    FAULTS,
    IMPORTANCE_OF,
    LIBFFM,
    LIBSVM,
    LONGS,
    NEWS,
    NO_BAR,
    NO_LABEL,
    NO_NAME,
    ROWS,
    SCALE_OF,
    UNKNOWN,
    UNWANTED,
    VALUE_OF,
    VW,
    Names,
    Notes,
    ParsedLines,
    Rows,
    Tokens,
    enter_names,
    fill_columns,
    measure_columns,
    read_lines,
    survey_lines,
)
from trainer.formats.streams import ALL, Bytes, Share

_MOST_NAMES = 10_000


class SparseFile(RowFile):
    """One file of rows that name their features one by one.

    columns: those with one value a row, such as `label`; then a map from feature to x for each namespace of the first
    block, in order of appearance. Others may appear later and can be wanted: a row without one has an empty map. The
    first that is not wanted is noted. Raises InputError for a file whose first block has no good row.
    """

    def __init__(self, file: OpenFile, grammar: Grammar) -> None:
        super().__init__(file.feed)
        # Labels are then texts, as `positive` compares them; else 1, 0 or -1.
        self._any_label = file.header.any_label
        self._grammar = grammar if file.unlabelled else replace(grammar, unlabelled=None)
        self._note = file.on_note
        self._known = self._first_names()
        namespaces = [grammar.column_of(name) for name in self._known]
        self.columns = (*grammar.row_columns, *namespaces)
        self.kinds = {
            **dict.fromkeys(grammar.row_columns),
            **dict.fromkeys(namespaces, "set"),
            **({grammar.weight: WEIGHT} if grammar.weight else {}),
        }

    def may_have(self, column: str) -> bool:
        """True for columns with one value a row, such as `label`, and for any possible name of a namespace."""
        return column in self._grammar.row_columns or self._grammar.name_of(column) is not None

    def batches(self, wanted: Sequence[str], share: Share = ALL) -> Iterator[RowBatch]:
        """The rest of the file. Raises InputError where it is damaged, after the rows before."""
        maps = [name for name in wanted if name not in self._grammar.row_columns]
        names = self._table(maps)
        for data in self._feed.blocks(share):
            yield self._batch(data, wanted, maps, names)

    def _batch(self, data: Bytes, wanted: Sequence[str], maps: Sequence[str], names: Names) -> RowBatch:
        feed = self._feed
        block = read_block(data, self._grammar, names, self._any_label)
        columns: dict[str, Any] = dict(zip(maps, block.sets(len(maps)), strict=True))
        columns |= {name: block.row_column(name) for name in wanted if name not in columns}
        rejects = tuple(Reject(feed.name, feed.line + line, reason) for line, reason in block.rejects())
        for line, name in block.news():
            self._note(
                "late",
                f"{feed.name}:{feed.line + line} names {self._grammar.column_of(name)!r}, which the first rows do not: "
                "it is left out, and so are others that come so late; name them in [fields] to learn from them",
            )
        lines = block.rows.line + feed.line
        stop = feed.drop(data.size, block.line_ends)  # a last line without an end may still grow
        ordered = LazyColumns({name: columns[name] for name in wanted})
        return RowBatch(ordered, lines, feed.name, rejects, block.size, stop)

    def _table(self, maps: Sequence[str]) -> Names:
        """All known names: those of wanted columns with their number, the others as UNWANTED."""
        numbers = {self._name(column): number for number, column in enumerate(maps)}
        names = list(dict.fromkeys([*self._known, *numbers]))
        return name_table(names, [numbers.get(name, UNWANTED) for name in names])

    def _name(self, column: str) -> bytes:
        name = self._grammar.name_of(column)
        assert name is not None  # the reader asks `may_have` first
        return name

    def _first_names(self) -> dict[bytes, None]:
        """The names in the good lines of the first block."""
        data = self._feed.first_lines()
        block = read_block(data, self._grammar, name_table([], []), self._any_label)
        if not block.size:
            self._feed.check()
            rejects = block.rejects()
            why = f"; line {self._feed.line + rejects[0][0]}: {rejects[0][1]}" if rejects else ""
            raise InputError(f"{self._feed.name}: found no row of {self._grammar.format} text{why}")
        lines = data.tobytes().split(b"\n")
        good = b"\n".join(lines[line] for line in block.rows.line.tolist())
        names = dict.fromkeys(self._grammar.names_in(good))
        if len(names) > _MOST_NAMES:
            raise InputError(
                f"{self._feed.name}: {len(names):,} namespaces in the first lines; expected a few, each with features"
            )
        return names


_MOST_NEWS = 16  # names of columns not met before that one block may report
_SHOWN = 60

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SparseBlock:
    """A block of lines as read by the kernels: good rows and their tokens, notes, line feeds.

    data: with bytes to read after it (`padded_lines`); has_odd_bytes: some must be escaped, or are not ASCII.
    """

    data: Bytes
    has_odd_bytes: bool
    rows: Rows
    tokens: Tokens
    notes: Notes
    line_ends: int
    any_label: bool

    @property
    def size(self) -> int:
        """The number of good rows."""
        return int(self.rows.line.size)

    def rejects(self) -> list[tuple[int, str]]:
        """The line (from 0) of each bad row, and the reason."""
        ends = np.flatnonzero(self.data == ord("\n")) if self.notes.faults.size else np.empty(0, np.int64)
        return [
            (
                line,
                REASONS[what](self._text(start, stop), start - 1 - int(ends[ends < start].max(initial=-1))),
            )
            for line, what, start, stop in self.notes.faults.tolist()
        ]

    def news(self) -> list[tuple[int, bytes]]:
        """The line (from 0) and name of columns that are not in the table of names, the first few only."""
        return [(line, self.data[start:stop].tobytes()) for line, start, stop in self.notes.news.tolist()]

    def row_column(self, name: str) -> pa.Array:
        """A column with one value a row: the label, the importance, or the text."""
        if name == LABEL:
            return _texts(self.data, self.rows.word) if self.any_label else pa.array(self.rows.label)
        if name == IMPORTANCE:
            return pa.array(self.rows.importance, from_pandas=True)  # NaN: no importance
        return _texts(self.data, self.rows.tag)

    def sets(self, columns: int) -> list[CellSets]:
        """The tokens as columns of weighted sets, in the order of their numbers."""
        members = np.zeros(columns + 1, np.int64)
        longest = measure_columns(self.tokens, int(self.rows.end[-1]) if self.size else 0, members[1:])
        member_from = np.cumsum(members)
        starts = np.empty((columns, self.size + 1), np.int32)
        spans, x = np.empty((member_from[-1], 2), np.int32), np.empty(member_from[-1])
        fill_columns(self.tokens, self.rows.end, member_from, starts, spans, x)
        found = []
        for column, (first, stop) in enumerate(itertools.pairwise(member_from.tolist())):
            block = Cells.with_survey(
                self.data, spans[first:stop], stop - first, 1, 2, longest, self.has_odd_bytes
            )
            found.append(CellSets(CellText(block, 0), starts[column], x[first:stop]))
        return found

    def _text(self, start: int, stop: int) -> str:
        text = self.data[start : min(stop, start + _SHOWN)].tobytes().decode(errors="replace").rstrip("\r")
        return repr(text + "…" if stop > start + _SHOWN else text)


def read_block(data: Bytes, grammar: Grammar, names: Names, any_label: bool = False) -> SparseBlock:
    """Read whole lines."""
    if grammar.unlabelled is not None:
        data = np.frombuffer(grammar.unlabelled.sub(b"0 \\g<0>", data.tobytes()), np.uint8)
    data = padded_lines(data)[0][: data.size] if data.size else data  # a copy, to which the columns refer
    feeds, blanks, bars, escapes, odd = survey_lines(data)
    size, most = feeds + 1, blanks + 1
    line, end, label = np.empty((3, size), np.int64)
    tag, word = np.empty((2, size, 2), np.int32)
    rows = Rows(line, end, label, np.empty(size), tag, word)
    column, start, stop, scale = np.empty((4, most), np.int32)
    tokens = Tokens(column, start, stop, np.empty(most), scale, np.empty(bars + 1))
    notes = Notes(
        faults=np.empty((feeds + 1, 4), np.int64),
        longs=np.empty((blanks + bars + 1, 4), np.int64),
        news=np.empty((_MOST_NEWS, 3), np.int64),
    )
    counts = np.zeros(COUNTS, np.int64)
    counts[ANY_LABEL] = any_label
    read_lines(data, grammar.number, odd, ParsedLines(names, tokens, rows, notes, counts))
    rows = Rows(*(part[: counts[ROWS]] for part in rows))
    notes = Notes(
        notes.faults[: counts[FAULTS]],
        notes.longs[: counts[LONGS]],
        notes.news[: counts[NEWS]],
    )
    _convert_longs(data, notes.longs, rows, tokens)
    return SparseBlock(data, odd or escapes, rows, tokens, notes, feeds, any_label)


def _convert_longs(data: Bytes, longs: Ints, rows: Rows, tokens: Tokens) -> None:
    """Convert the numbers that the kernels could not convert in one exact operation."""
    if not longs.size:
        return
    spans = longs[:, 2:].astype(np.int32)
    spans[:, 0] += data[spans[:, 0]] == ord("+")
    texts = _texts(data, spans).cast(pa.string())
    try:
        numbers = texts.cast(pa.float64()).to_numpy()
    except pa.ArrowInvalid:  # too small for a double: an error in Arrow, 0 in Python
        numbers = np.array([float(text) for text in texts.to_pylist()])
    homes = {
        VALUE_OF: tokens.value,
        SCALE_OF: tokens.scales,
        IMPORTANCE_OF: rows.importance,
    }
    for what, home in homes.items():
        here = longs[:, 0] == what
        home[longs[here, 1]] = numbers[here]


def _texts(data: Bytes, spans: npt.NDArray[np.int32]) -> pa.Array:
    return CellText.of_pairs(data, np.ascontiguousarray(spans)).to_arrow()


# The reason for a bad line, by the bytes at fault and their offset in the line.
REASONS: dict[int, Callable[[str, int], str]] = {
    NO_LABEL: lambda got, at: (
        f"no label: got {got} before the first |, expected 1, 0 or -1; a word that touches | is the tag"
    ),
    BAD_LABEL: lambda got, at: f"bad label: got {got}, expected 1, 0 or -1; {OTHER_LABELS}",
    NO_BAR: lambda got, at: f"no namespace: got {got}, expected a | before the features",
    EXTRA_WORDS: lambda got, at: (
        f"too many words: got {got}, expected at most label, importance, base and 'tag before the first |"
    ),
    BAD_NUMBER: lambda got, at: f"not a number: got {got}",
    BAD_BASE: lambda got, at: f"initial prediction: got {got}, which is not learned from; expected 0 or none",
    NO_NAME: lambda got, at: f"no feature name: got {got}, expected a name before the colon",
    BAD_FEATURE: lambda got, at: f"malformed feature: got {got}",
    BAD_TEXT: lambda got, at: f"invalid UTF-8: a NUL, or no UTF-8, at byte {at + 1} of the line",
}


def name_table(names: Sequence[bytes], columns: Sequence[int]) -> Names:
    """The kernels' table of these names and the numbers of their columns."""
    starts = np.zeros(len(names) + 1, np.int64)
    np.cumsum([len(name) for name in names], out=starts[1:])
    table = Names(
        text=np.frombuffer(b"".join(names) + b"\0", np.uint8).copy(),
        starts=starts,
        column=np.array(columns, np.int32),
        table=np.zeros(1 << (2 * len(names) + 1).bit_length(), np.int32),
        follows=np.full(len(names) + 1, UNKNOWN, np.int32),
    )
    enter_names(table)
    return table


LABEL = "label"
IMPORTANCE = "importance"
TAG = "tag"
QUERY = "qid"
FEATURES = "features"  # libsvm's namespace, and Vowpal Wabbit's nameless one
_OF_THE_ROW = (LABEL, IMPORTANCE, TAG)
_NAMESPACE = re.compile(rb"\|([^ \t\r:|\n]*)")
_FIELD = re.compile(rb"[ \t]0*([0-9]+):[0-9]+:")


@dataclass(frozen=True)
class Grammar:
    """One format. `number` is what the kernels call it.

    row_columns: those with one value a row; text_column and weight: which of them is text, and which is the weight.
    names_in: the names of the other columns, as they are in a text of good lines; name_of and column_of: from what
    a column is called to its name in the text (None: nothing is called so), and back. unlabelled: the start of a line
    without a label, which is read as if it had one; None where that is a bad row.
    """

    format: str
    number: int
    row_columns: tuple[str, ...]
    text_column: str | None
    names_in: Callable[[bytes], Iterator[bytes]]
    name_of: Callable[[str], bytes | None]
    column_of: Callable[[bytes], str]
    weight: str | None = None
    unlabelled: re.Pattern[bytes] | None = None


def _vw_name(column: str) -> bytes | None:
    if column == FEATURES:
        return b""
    name = column[1:] if column.startswith("|") else column
    encoded = name.encode("utf-8", "surrogatepass")
    if not encoded or _NAMESPACE.fullmatch(b"|" + encoded) is None or _vw_column(encoded) != column:
        return None
    return encoded


def _vw_column(name: bytes) -> str:
    """The column of a namespace: its name, with a bar before it if another column has that name."""
    text = name.decode()
    if not text:
        return FEATURES
    return f"|{text}" if text in (*_OF_THE_ROW, FEATURES) else text


def _ffm_name(column: str) -> bytes | None:
    return column.encode() if re.fullmatch("0|[1-9][0-9]*", column, re.ASCII) else None


_NO_LABEL = re.compile(rb"^[ \t]*(?:'[^ \t|\n]*[ \t]*|[^ \t|\n]*)\|", re.MULTILINE)
_NUMBER = rb"[+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?"
# The first line of each format, and comments before it, which scikit-learn's dump_svmlight_file writes.
_FIRST_VW = rb"[+-]?[01](?:\.0*)?(?: +%b){0,2}(?: +'?[^ |\t\n]*)? *\|" % _NUMBER
_FIRST_LIBSVM = rb"[+-]?[01](?:\.0*)?(?:[ \t]+qid:\S+)?(?:[ \t]+[0-9]+:%b)+[^\S\n]*(?:#|$)" % _NUMBER
_FIRST_LIBFFM = rb"[+-]?[01](?:\.0*)?(?:[ \t]+[0-9]+:[0-9]+:%b)+[^\S\n]*$" % _NUMBER
_COMMENTS = rb"(?:(?:[ \t\r]*+(?:#[^\n]*+)?\n)++)?+"

VOWPAL_WABBIT = Grammar(
    "vw",
    VW,
    _OF_THE_ROW,
    TAG,
    lambda text: (found[1] for found in _NAMESPACE.finditer(text)),
    _vw_name,
    _vw_column,
    IMPORTANCE,
    _NO_LABEL,
)
LIBSVM_TEXT = Grammar(
    "libsvm",
    LIBSVM,
    (LABEL, QUERY),
    QUERY,
    lambda text: iter([b""]),
    lambda column: b"" if column == FEATURES else None,
    lambda name: FEATURES,
)
LIBFFM_TEXT = Grammar(
    "libffm",
    LIBFFM,
    (LABEL,),
    None,
    lambda text: (found[1] for found in _FIELD.finditer(text)),
    _ffm_name,
    lambda name: name.decode(),
)


def _format(grammar: Grammar, title: str, extensions: tuple[str, ...], first: bytes) -> Format:
    pattern = re.compile(first, re.MULTILINE)
    return Format(grammar.format, title, extensions, pattern.match, lambda file: SparseFile(file, grammar))


FORMATS = (
    _format(VOWPAL_WABBIT, "Vowpal Wabbit", (".vw",), _FIRST_VW),
    _format(LIBSVM_TEXT, "libsvm", (".libsvm", ".svm"), _COMMENTS + _FIRST_LIBSVM),
    _format(LIBFFM_TEXT, "libffm", (".libffm", ".ffm"), _FIRST_LIBFFM),
)
