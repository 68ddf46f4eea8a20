"""CSV and TSV: blocks of whole rows, each row with the line it begins on, and where its cells are in the block.

Cells stay the raw bytes of the file; quoting, and what else the `Dialect` says, is undone. A block in which
every line is a row without quotes is taken apart by `Block.of`, which is faster; any other one by `find_rows`.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.errors import InputError
from trainer.formats.batch import HEAD_BYTES, LazyColumns, Position, RowBatch
from trainer.formats.cells import Block, CellText
from trainer.formats.cells_kernels import find_rows, undo_quotes
from trainer.formats.dialect import CSV, TSV
from trainer.formats.rejects import Reject
from trainer.formats.row_file import Format, Header, RowFile
from trainer.formats.streams import ALL, Bytes, Feed, Share

_NO_QUOTE = -1
_SHOWN = 60


@dataclass(frozen=True)
class _RowPlaces:
    """The rows at the front of a block that are whole and not blank: int64 start, line (from 0), cells.

    spans: int32, begin and end of the cells of the rows of the right arity, row by row.
    """

    start: npt.NDArray[np.int64]
    line: npt.NDArray[np.int64]
    cells: npt.NDArray[np.int64]
    spans: npt.NDArray[np.int32]
    size: int
    lines: int
    open_quote: bool


class DelimitedFile(RowFile):
    """One file of the format csv or tsv in any dialect, its header already read.

    names: of all columns, "" for one without a name; columns: the names that occur once. has_header: False if the first
    line is a row. Raises InputError for a file without a row.
    """

    def __init__(self, feed: Feed, format: str, header: Header | None = None) -> None:
        super().__init__(feed)
        given, self._format = header or Header(), format
        self._usual = CSV if format == "csv" else TSV
        known = given.dialect
        self.dialect = known if known.is_recognised else known.with_shape(feed.head, self._usual)
        self._delimiter = str(self.dialect.separator)
        self._quote = self.dialect.quote or None
        self._quote_byte = ord(self._quote) if self._quote else _NO_QUOTE
        self.has_header = True
        self._note = ""
        self.names = self._read_header(given)
        if not known.is_recognised:
            rows = [row for row in self._sample() if len(row) == len(self.names)]
            self.dialect = self.dialect.with_values(self.names, rows[self.has_header :])
        self.columns = tuple(name for name, count in Counter(self.names).items() if name and count == 1)
        twice = ", ".join(sorted({name for name in self.names if name and name not in self.columns}))
        self.notes = {
            f"header {self.has_header}": self._note,
            "twice": f"{feed.name}: left out, as columns that share a name: {twice}" if twice else "",
            "dialect": self._dialect_note(),
        }

    @property
    def own_dialect(self) -> dict[str, Any]:
        """What is not as usual in the format, as `[input]` names it."""
        return self.dialect.differs_from(self._usual)

    def _dialect_note(self) -> str:
        """A remark on a dialect that is not the format's usual one, "" for that."""
        found = self.own_dialect
        if self.dialect.numbers:
            found["numbers in"] = self.dialect.numbers
        said = ", ".join(f"{name} {value!r}" for name, value in found.items())
        return (
            f"{self._feed.name}: read with {said}, as its first lines tell; [input] can name it"
            if said
            else ""
        )

    def may_have(self, column: str) -> bool:
        """True if the header names the column, even twice, which `batches` refuses."""
        return column in self.names

    def batches(self, wanted: Sequence[str], share: Share = ALL) -> Iterator[RowBatch]:
        """The rest of the file. Raises InputError for an ambiguous name, or for damage after the rows before."""
        if twice := next((name for name in wanted if self.names.count(name) > 1), None):
            raise InputError(f"{self._feed.name}: the header names column {twice!r} more than once")
        places = [self.names.index(name) for name in wanted]
        while True:
            batch = self._next_batch(wanted, places) if share.mine else None
            if batch is not None:
                yield batch
            if batch is not None or (not share.mine and self._skip_block()):
                share.count_block()
            elif self._feed.ended:
                break
            else:
                self._feed.fetch()
        self._feed.check()

    def continued(self, feed: Feed) -> DelimitedFile:
        """The reader of a later part of the file, without a header, that has grown."""
        return DelimitedFile(feed, self._format, Header(self.names, is_absent=True, dialect=self.dialect))

    def told_of_others(self, header: Header) -> Header:
        """What is known of the next files of the log, which may lack what tells of words and numbers in this one."""
        told = {name: getattr(self.dialect, name) for name in ("nulls", "decimal", "grouping", "numbers")}
        columns = header.columns if self.has_header else self.columns
        return replace(header, columns=columns, dialect=replace(header.dialect, **told))

    def _next_batch(self, wanted: Sequence[str], places: list[int]) -> RowBatch | None:
        """The whole rows of the unread bytes; None if there are none yet."""
        feed = self._feed
        self.dialect.hide(feed.unread)
        data = feed.whole_lines()
        # A carriage return after the last line feed may end rows too: only `find_rows` finds these.
        is_cut_here = (feed.unread[data.size :] != ord("\r")).all()
        if not data.size and is_cut_here and not (feed.final or feed.full):
            return None
        block = None  # unless every line is a row of the right arity without a quote or a carriage return
        if data.size and is_cut_here:
            if lacks_feed := bool(data[-1] != ord("\n")):
                feed.room[data.size] = ord("\n")
            block = Block.of(feed.room, data.size + lacks_feed, self._delimiter, self._quote, len(self.names))
        if block is not None:
            lines = np.arange(feed.line, feed.line + block.rows, dtype=np.int64)
            ends = block.rows - bool(data[-1] != ord("\n"))
            stop = feed.drop(data.size, ends)
            return RowBatch(self._columns(block, wanted, places), lines, feed.name, (), block.rows, stop)
        rows = self._find_rows(feed.unread, len(self.names))
        if rows.size == 0:
            return self._reject_open_quote(wanted) if self._is_stuck(rows) else None
        good = rows.cells == len(self.names)
        count, spans = int(np.count_nonzero(good)), rows.spans[: 2 * len(self.names) * np.count_nonzero(good)]
        if self._quote:
            undo_quotes(feed.unread, self._quote_byte, spans)
        longest = int((spans[1::2] - spans[::2]).max(initial=0))
        block = Block.with_survey(feed.room, spans, count, len(self.names), 2, longest, has_odd_bytes=True)
        wrong = zip(rows.line[~good].tolist(), rows.cells[~good].tolist(), strict=True)
        reason = f"wrong number of columns: got %d, expected {len(self.names)}"
        return RowBatch(
            columns=self._columns(block, wanted, places),
            lines=rows.line[good] + feed.line,
            file=feed.name,
            rejects=tuple(Reject(feed.name, feed.line + line, reason % cells) for line, cells in wrong),
            rows=count,
            # Last, because the lines above are counted from where the feed is.
            stop=feed.drop(rows.size, rows.lines),
        )

    def _skip_block(self) -> bool:
        """Skip what `_next_batch` would take; False if no row is whole yet."""
        feed = self._feed
        self.dialect.hide(feed.unread)
        if not np.isin(feed.unread, [ord("\r"), self._quote_byte]).any():
            data = feed.whole_lines()
            feed.drop(data.size, int(np.count_nonzero(data == ord("\n"))))
            return data.size > 0
        rows = self._find_rows(feed.unread)
        if rows.size:
            feed.drop(rows.size, rows.lines)
        elif self._is_stuck(rows):
            self._drop_line()
        else:
            return False
        return True

    def _columns(self, block: Block, wanted: Sequence[str], places: list[int]) -> LazyColumns:
        texts = {name: CellText(block, place) for name, place in zip(wanted, places, strict=True)}
        if not self.dialect.has_own_values:
            return LazyColumns(texts)
        return LazyColumns(
            {name: self.dialect.values_of(name, text.to_arrow()) for name, text in texts.items()}
        )

    def _find_rows(self, data: Bytes, columns: int = 0) -> _RowPlaces:
        """The rows, with where the cells of those with as many `columns` begin and end."""
        ends = int(np.count_nonzero(data == ord("\n")) + np.count_nonzero(data == ord("\r")))
        start, line, cells = (np.empty(ends + 1, np.int64) for _ in range(3))
        spans = np.empty(2 * columns * (ends + 1), np.int32)  # of which only what is written takes memory
        count, size, lines, open_quote = find_rows(
            *(data, ord(self._delimiter), self._quote_byte, self._feed.final, columns),
            *(start, line, cells, spans),
        )
        return _RowPlaces(start[:count], line[:count], cells[:count], spans, size, lines, open_quote)

    def _is_stuck(self, rows: _RowPlaces) -> bool:
        """True if a quote is open and no more bytes can close it."""
        return rows.open_quote and (self._feed.final or self._feed.full)

    def _reject_open_quote(self, wanted: Sequence[str]) -> RowBatch:
        """Reject the first line only, so that one stray quote does not swallow the rest of the file."""
        feed = self._feed
        reason = 'quote never closed: a cell on this line opens with " and the file ends inside it'
        reject = Reject(feed.name, feed.line, reason)
        stop = self._drop_line()
        empty = {name: pa.array([], pa.binary()) for name in wanted}
        return RowBatch(empty, np.empty(0, np.int64), feed.name, (reject,), 0, stop)

    def _drop_line(self) -> Position:
        end = np.flatnonzero(self._feed.unread == ord("\n"))
        return self._feed.drop(int(end[0]) + 1 if end.size else self._feed.unread.size, 1)

    def _read_header(self, given: Header) -> tuple[str, ...]:
        """The names of the columns; the feed is at the first row after it."""
        feed = self._feed
        if given.columns is not None and given.is_absent:
            self.has_header = False
            return given.columns
        rows = self._first_rows()
        text, size, lines = _first_row(feed.unread, rows)
        cells = tuple(self._split(text.decode(errors="replace"))[0])
        others = self._sample()
        titles = 0 if given.columns is not None or given.is_absent else _titles(others)
        if titles:
            self._note = f"{feed.name}: {shown(self._delimiter.join(cells))} is a title or comment: skipped"
        for _ in range(titles):
            feed.drop(size, lines)
            rows, others = self._first_rows(), others[1:]
            text, size, lines = _first_row(feed.unread, rows)
            cells = tuple(self._split(text.decode(errors="replace"))[0])
        if given.columns is not None:
            if sorted(cells) == sorted(given.columns):
                self._note = f"{feed.name}: its first line names the columns: read as a header"
            else:
                return self._without_header(given.columns, rows)
        elif given.is_absent:
            return self._without_header(numbered(len(cells)), rows)
        elif not given.known.intersection(cells) and _are_values(cells, others):
            names = numbered(Counter(map(len, others)).most_common(1)[0][0])
            self._note = (
                f"{feed.name}: its first line holds values, not names: {shown(self._delimiter.join(cells))}; read "
                f"as a file without a header, with columns {names[0]} to {names[-1]}, which [input] columns can "
                "name"
            )
            return self._without_header(names, rows)
        feed.drop(size, lines)
        names = self._names(text)
        # Some writers end each row, but not the header, with a separator.
        ended = all(len(row) == len(names) + 1 and not row[-1] for row in others[1:])
        return (*names, "") if ended and len(others) > 1 else names

    def _first_rows(self) -> _RowPlaces:
        """The rows read ahead, at least one."""
        feed = self._feed
        while True:
            data = feed.unread.copy() if self.dialect.escape else feed.unread
            self.dialect.hide(data)
            rows = self._find_rows(data)
            if len(rows.start):
                return rows
            if feed.ended:
                break
            feed.fetch()
        feed.check()
        raise InputError(f"{feed.name} is empty; expected a header line that names the columns, then rows")

    def _without_header(self, names: tuple[str, ...], rows: _RowPlaces) -> tuple[str, ...]:
        """Raises InputError if no row read ahead has as many cells as there are names."""
        if not (rows.cells == len(names)).any():
            raise InputError(
                f"{self._feed.name}: its rows have {rows.cells[0]} cells, but there are {len(names)} names for the "
                f"columns: {', '.join(names)}"
            )
        self.has_header = False
        return names

    def _sample(self) -> list[list[str]]:
        """The rows in the first 64 KiB, the first line's among them."""
        head = self._feed.head
        whole = head[: head.rfind(b"\n") + 1] if len(head) >= HEAD_BYTES else head
        text = (whole or head).decode("utf-8-sig", errors="replace")
        return self._split(text.replace("\\N", "") if self.dialect.escape else text)

    def _split(self, text: str) -> list[list[str]]:
        """The cells of all rows that are not blank. Raises InputError."""
        try:
            reader = csv.reader(io.StringIO(text, newline=""), **self.dialect.csv_options)
            return [cells for cells in reader if cells] or [[""]]
        except csv.Error as error:
            raise InputError(f"{self._feed.name}: the header line cannot be read: {error}") from error

    def _names(self, text: bytes) -> tuple[str, ...]:
        try:
            return tuple(self._split(text.decode())[0])
        except UnicodeDecodeError as error:
            raise InputError(f"{self._feed.name}: the header line cannot be read: {error}") from error


def numbered(count: int) -> tuple[str, ...]:
    """The names of columns that have none."""
    return tuple(f"c{place}" for place in range(1, count + 1))


def _first_row(data: Bytes, rows: _RowPlaces) -> tuple[bytes, int, int]:
    """The first row's bytes, and the bytes and line ends up to the second row."""
    size, lines = rows.size, rows.lines
    if len(rows.start) > 1:
        size, lines = int(rows.start[1]), int(rows.line[1])
    return data[rows.start[0] : size].tobytes().strip(b"\r\n"), size, lines


def shown(text: str) -> str:
    """A text of a log for a message, cut."""
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def _titles(rows: Sequence[Sequence[str]]) -> int:
    """How many rows of one cell come before two rows of several: `sep=,`, comments, a report's title."""
    filled = [sum(map(bool, row)) for row in rows]
    first = next((place for place, count in enumerate(filled) if count > 1), 0)
    return first if len(rows) > first + 1 and filled[first + 1] > 1 else 0


def _are_values(first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """True if the cells of the first line are values rather than names.

    That is if most of them are numbers, or if two or more of them occur again in their column, one that is not a number
    among them. Numbers that count up are names: those of the columns of a data frame without names, or of years.
    """
    numbers = [name for name in first if _is_number(name)]
    counting = [str(place) for place in range(len(numbers))]
    if 2 * len(numbers) > len(first) and numbers != counting:
        return True
    others = [row for row in rows if len(row) == len(first) and tuple(row) != tuple(first)]
    columns = zip(*others, strict=True)
    again = [cell for cell, column in zip(first, columns, strict=False) if cell and cell in column]
    return len(again) >= 2 and (not _count_up(numbers) or not all(map(_is_number, again)))


def _count_up(numbers: Sequence[str]) -> bool:
    """True for whole numbers in ascending order."""
    return all(text.isdecimal() for text in numbers) and all(
        int(low) < int(high) for low, high in itertools.pairwise(numbers)
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _first_line(text: bytes) -> bytes:
    return text.partition(b"\n")[0]


FORMATS = (
    Format(
        "csv",
        "CSV",
        (".csv",),
        lambda text: b"\t" not in _first_line(text) and re.search(rb"[,;|\x01]", _first_line(text)),
        lambda file: DelimitedFile(file.feed, "csv", file.header),
        separator=b",",
        holds="its cells are separated by commas",
    ),
    Format(
        "tsv",
        "TSV",
        (".tsv", ".tab"),
        lambda text: b"\t" in _first_line(text),
        lambda file: DelimitedFile(file.feed, "tsv", file.header),
        separator=b"\t",
        holds="its cells are separated by tabs",
    ),
)
