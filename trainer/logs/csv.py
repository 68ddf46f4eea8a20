"""CSV and TSV: blocks of whole rows, parsed by Arrow, each row with the line it begins on.

Cells stay the raw bytes that stand in the file; CSV quoting is undone, TSV has none. Arrow parses a block
that is whole rows of the right arity without being told of lines; `find_rows` is called only where that is
not so plain.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

from model_store.errors import InputError
from trainer.logs.batch import Position, RowBatch
from trainer.logs.rejects import Reject
from trainer.logs.rows_kernels import find_rows, survey
from trainer.logs.streams import ALL, Bytes, Feed, Turns, one_array, up_to_last_line_end

_NO_QUOTE = -1


@dataclass(frozen=True)
class _Rows:
    """The rows at the front of a block that are whole and not blank: int64 start, line (from 0), cells."""

    start: npt.NDArray[np.int64]
    line: npt.NDArray[np.int64]
    cells: npt.NDArray[np.int64]
    size: int
    lines: int
    open_quote: bool


class DelimitedFile:
    """One CSV (`quoting`) or TSV file, its header already read.

    `columns` are the header's names, unnamed ones left out. Raises InputError for a file without rows or
    header.
    """

    def __init__(self, feed: Feed, delimiter: str, quoting: bool) -> None:
        self._feed = feed
        self._delimiter = delimiter
        self._quote = '"' if quoting else None
        self._quote_byte = ord('"') if quoting else _NO_QUOTE
        self._header = self._read_header()
        self.columns = tuple(name for name in dict.fromkeys(self._header) if name)
        self.kinds: Mapping[str, str | None] = {}

    def may_have(self, column: str) -> bool:
        """True if the header names the column."""
        return column in self.columns

    def batches(self, wanted: Sequence[str], turns: Turns = ALL) -> Iterator[RowBatch]:
        """The rest of the file. Raises InputError for an ambiguous name, or for damage after the rows before."""
        places = [self._place(name) for name in wanted]
        while True:
            batch = self._next_batch(wanted, places) if turns.mine else None
            if batch is not None:
                yield batch
            if batch is not None or (not turns.mine and self._skip_block()):
                turns.pass_on()
            elif self._feed.ended:
                break
            else:
                self._feed.fetch()
        self._feed.check()

    def go_on(self, position: Position) -> None:
        """Skip what is before a position of an earlier run."""
        self._feed.go_on(position)

    def _next_batch(self, wanted: Sequence[str], places: list[int]) -> RowBatch | None:
        """The whole rows of the unread bytes; None if there are none yet."""
        feeds, quotes, lone_returns = survey(self._feed.unread, self._quote_byte)
        batch = None
        if lone_returns == 0:
            batch = self._plain_batch(feeds, quotes > 0, wanted, places)
        return batch or self._careful_batch(feeds + lone_returns, wanted, places)

    def _skip_block(self) -> bool:
        """Skip what `_next_batch` would take; False if no row is whole yet."""
        feed = self._feed
        feeds, quotes, lone_returns = survey(feed.unread, self._quote_byte)
        if not quotes and not lone_returns:
            data = self._whole_lines()
            feed.drop(data.size, feeds)
            return data.size > 0
        rows = self._find_rows(feed.unread, feeds + lone_returns)
        if rows.size:
            feed.drop(rows.size, rows.lines)
        elif self._is_stuck(rows):
            self._drop_line()
        else:
            return False
        return True

    def _plain_batch(
        self, feeds: int, quotes: bool, wanted: Sequence[str], places: list[int]
    ) -> RowBatch | None:
        """The rows, if every line is a row of the right arity; otherwise None.

        As many rows as lines means that every line but the last ends a row; with quotes, the last one may
        be cut off inside a cell.
        """
        feed = self._feed
        data = self._whole_lines()
        count = feeds + bool(feed.final and data.size > 0 and data[-1] != ord("\n"))
        table = self._parse(data, places) if count else None
        if table is None or table.num_rows != count or (quotes and not self._ends_with_row(data)):
            return None
        lines = np.arange(feed.line, feed.line + count, dtype=np.int64)
        return RowBatch(_columns(table, wanted), lines, feed.name, (), count, feed.drop(data.size, feeds))

    def _whole_lines(self) -> Bytes:
        return self._feed.unread if self._feed.final else up_to_last_line_end(self._feed.unread)

    def _ends_with_row(self, data: Bytes) -> bool:
        """True if the last line of `data`, taken for a row, ends outside quotes."""
        last = data[up_to_last_line_end(data[:-1]).size :]
        rows = self._find_rows(last, 1)
        return len(rows.start) == 1 and rows.size == last.size

    def _careful_batch(self, ends: int, wanted: Sequence[str], places: list[int]) -> RowBatch | None:
        """The rows of a block with bad lines, blank lines or rows of several lines; None if no row is whole yet."""
        feed = self._feed
        rows = self._find_rows(feed.unread, ends)
        if rows.size == 0:
            return self._reject_open_quote(wanted) if self._is_stuck(rows) else None
        good = rows.cells == len(self._header)
        table = self._parse(_pieces(feed.unread[: rows.size], rows.start, good), places)
        if table is None or table.num_rows != np.count_nonzero(good):
            raise InputError(f"{feed.name}:{feed.line}: the rows from here on cannot be told apart")
        return RowBatch(
            columns=_columns(table, wanted),
            lines=rows.line[good] + feed.line,
            file=feed.name,
            rejects=tuple(self._wrong_arity(rows.line[~good], rows.cells[~good])),
            rows=table.num_rows,
            # Last, because the lines above are counted from where the feed stands.
            stop=feed.drop(rows.size, rows.lines),
        )

    def _find_rows(self, data: Bytes, ends: int) -> _Rows:
        start, line, cells = (np.empty(ends + 1, np.int64) for _ in range(3))
        count, size, lines, open_quote = find_rows(
            data, ord(self._delimiter), self._quote_byte, self._feed.final, start, line, cells
        )
        return _Rows(start[:count], line[:count], cells[:count], size, lines, open_quote)

    def _parse(self, data: Bytes, places: list[int]) -> pa.Table | None:
        """The rows of `data` as binary columns named by index; None if a row has a wrong number of cells."""
        if data.size == 0:
            return pa.table({str(place): pa.array([], pa.binary()) for place in places})
        try:
            return pa.csv.read_csv(
                pa.BufferReader(pa.py_buffer(data)),
                read_options=pa.csv.ReadOptions(
                    use_threads=False,
                    block_size=data.size + 1,
                    column_names=[str(place) for place in range(len(self._header))],
                ),
                parse_options=pa.csv.ParseOptions(
                    delimiter=self._delimiter,
                    quote_char=self._quote or False,
                    newlines_in_values=self._quote is not None,
                ),
                convert_options=pa.csv.ConvertOptions(
                    check_utf8=False,
                    strings_can_be_null=False,
                    include_columns=[str(place) for place in places],
                    column_types={str(place): pa.binary() for place in places},
                ),
            )
        except pa.ArrowInvalid:
            return None

    def _is_stuck(self, rows: _Rows) -> bool:
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

    def _wrong_arity(self, lines: npt.NDArray[np.int64], cells: npt.NDArray[np.int64]) -> Iterator[Reject]:
        for line, count in zip(lines.tolist(), cells.tolist(), strict=True):
            reason = f"wrong number of columns: got {count}, expected {len(self._header)}"
            yield Reject(self._feed.name, self._feed.line + line, reason)

    def _place(self, name: str) -> int:
        if self._header.count(name) > 1:
            raise InputError(f"{self._feed.name}: the header names column {name!r} more than once")
        return self._header.index(name)

    def _read_header(self) -> tuple[str, ...]:
        feed = self._feed
        while True:
            feeds, _, lone_returns = survey(feed.unread, self._quote_byte)
            rows = self._find_rows(feed.unread, feeds + lone_returns)
            if len(rows.start) or feed.ended:
                break
            feed.fetch()
        if not len(rows.start):
            feed.check()
            raise InputError(
                f"{feed.name} is empty; expected a header line that names the columns, then rows"
            )
        text, size, lines = _first_row(feed.unread, rows)
        feed.drop(size, lines)
        return self._names(text)

    def _names(self, text: bytes) -> tuple[str, ...]:
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if self._quote else csv.QUOTE_NONE
        try:
            reader = csv.reader([text.decode()], delimiter=self._delimiter, quoting=quoting)
            names = tuple(next(reader))
        except (UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{self._feed.name}: the header line cannot be read: {error}") from error
        if _is_data(names):
            shown = self._delimiter.join(names[:5])
            raise InputError(
                f"{self._feed.name}: its first line looks like data, not like column names: {shown!r}…; "
                "the first line must be a header"
            )
        return names


def _first_row(data: Bytes, rows: _Rows) -> tuple[bytes, int, int]:
    """The first row's bytes, and the bytes and line ends up to the second row."""
    size, lines = rows.size, rows.lines
    if len(rows.start) > 1:
        size, lines = int(rows.start[1]), int(rows.line[1])
    return data[rows.start[0] : size].tobytes().strip(b"\r\n"), size, lines


def _is_data(names: Sequence[str]) -> bool:
    """True if most names are numbers, unless they count the columns, as a data frame without names does."""
    numbers = [name for name in names if _is_number(name)]
    counting = [str(place) for place in range(len(numbers))]
    return 2 * len(numbers) > len(names) and numbers != counting


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _pieces(data: Bytes, start: npt.NDArray[np.int64], good: npt.NDArray[np.bool_]) -> Bytes:
    """The bytes of the good rows, end to end."""
    if good.all():
        return data
    # Runs of good rows: a run begins where `good` turns true, and ends where the next bad row begins.
    edges = np.flatnonzero(np.diff(good, prepend=False, append=False))
    bounds = np.append(start, data.size)[edges]
    runs = [data[first:last] for first, last in bounds.reshape(-1, 2)]
    return np.concatenate(runs) if runs else data[:0]


def _columns(table: pa.Table, wanted: Sequence[str]) -> dict[str, pa.Array]:
    return {name: one_array(column) for name, column in zip(wanted, table.columns, strict=True)}
