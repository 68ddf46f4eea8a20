"""Labelled rows in growing files as a source: CSV, TSV or JSON lines, parsed as `ftrie train` parses them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from model_store.errors import InputError, SpecError, listed
from trainer.events.events import Lag, SourcePosition
from trainer.formats.batch import RowBatch
from trainer.formats.csv import DelimitedFile, Header
from trainer.formats.dialect import UNKNOWN, Dialect
from trainer.formats.jsonl import JsonLinesFile, Keys, keys_of
from trainer.formats.reader import columns_in_path, format_by_name, misnamed
from trainer.formats.reader import format_of as _format_of
from trainer.formats.streams import Window
from trainer.sources.file_tracker import FileChain
from trainer.sources.files import held_in
from trainer.sources.open_files import Opened, Record, without_rotation

_NO_KNOWLEDGE = Header()


@dataclass(frozen=True)
class Rows:
    """A batch and the positions before and after it."""

    batch: RowBatch
    before: SourcePosition
    after: SourcePosition


@dataclass(frozen=True)
class _Parsed:
    rows: Rows | None
    size: int
    lines: int


class RowSource:
    """Reads rows from a position on, which is like that of a FileSource. For one thread.

    A file is read up to its last whole row; with `once`, and of compressed files, bytes after that are a row too.
    objects: columns that may hold an object of numbers, a weighted set, in JSON lines. optional: columns that a file
    may lack; its rows are null there. header: what is known of the files' first lines, as in a LogReader.
    """

    def __init__(
        self,
        name: str,
        position: SourcePosition,
        on_note: Callable[[str], None],
        *,
        once: bool = False,
        objects: frozenset[str] = frozenset(),
        optional: frozenset[str] = frozenset(),
        header: Header = _NO_KNOWLEDGE,
    ) -> None:
        self.name = name
        self._header = header
        self._on_note = on_note
        self._noted: set[str] = set()
        self._optional = optional
        self._objects = objects
        self._chain = FileChain(name, position, on_note, once=once, least_lines=2)
        self._formats: dict[Record, RowFormat] = {}
        self.start = self._chain.start

    @property
    def lost(self) -> int:
        """Rows lost before they were read, estimated."""
        return self._chain.lost

    @property
    def ended(self) -> bool:
        """With `once`: all is read."""
        return self._chain.ended

    @property
    def columns_without_header(self) -> tuple[str, ...] | None:
        """The columns of the files without a header; None while no such file was met."""
        return self._header.columns

    def columns(self) -> tuple[str, ...] | None:
        """The first file's columns, for JSON lines those in its first 64 KiB; None while there is no file."""
        found = self._chain.first()
        if found is None:
            return None
        own = self._format(*found).columns
        return (*own, *columns_in_path(found[0].path, own))

    def read(self, wanted: Sequence[str]) -> Rows | None:
        """The next rows of one file, about READ_BYTES, with the `wanted` columns; None if there are none now.

        Raises SpecError for a file whose header lacks a column, InputError for a format that cannot be followed.
        """

        def take(record: Record, opened: Opened, window: bytes, is_all: bool) -> _Parsed | None:
            return self._take(record, opened, window, is_all, wanted)

        while True:
            found = self._chain.next(take)
            if found is None or found.rows is not None:
                return None if found is None else found.rows

    def lag(self) -> Lag:
        """Unread bytes; their age is unknown."""
        return self._chain.lag()

    def holds(self) -> str:
        """Whether the file exists; see Source."""
        return held_in(self.name)

    def close(self) -> None:
        """Close all files. May be called twice."""
        self._chain.close()

    def _take(
        self, record: Record, opened: Opened, window: bytes, is_all: bool, wanted: Sequence[str]
    ) -> _Parsed | None:
        if not window:
            return None
        format = self._format(record, opened)
        path = columns_in_path(record.path, format.columns)
        there = self._there(record, format, wanted, path)
        batch = format.parse(record.path, window, record.offset, record.line, is_all, there)
        if batch is None:
            return None
        if others := set(wanted) - batch.columns.keys():
            rest = {name: _repeated(path.get(name), batch.rows) for name in others}
            batch = replace(batch, columns={**batch.columns, **rest})
        stop = batch.stop
        parsed = _Parsed(None, stop.offset - record.offset, stop.line - record.line)
        if not batch.rows and not batch.rejects:
            return parsed
        before = self._chain.position()
        after = self._chain.position_after(before, self._chain.number(record), stop.offset, stop.line)
        return _Parsed(Rows(batch, before, after), parsed.size, parsed.lines)

    def _format(self, record: Record, opened: Opened) -> RowFormat:
        if record not in self._formats:
            format = RowFormat.of(record.path, opened.head(), self._objects, self._header)
            if not format.has_header and format.is_delimited:
                self._header = replace(self._header, columns=format.columns)
            for kind, text in format.notes.items():
                if text and kind not in self._noted:
                    self._noted.add(kind)
                    self._on_note(text)
            self._formats = {record: format}
        return self._formats[record]

    def _there(
        self, record: Record, format: RowFormat, wanted: Sequence[str], path: Iterable[str]
    ) -> Sequence[str]:
        """The wanted columns that the file has, and its path has not. Raises SpecError."""
        wanted = [name for name in wanted if name not in path]
        if not format.is_delimited:
            return wanted
        there = [name for name in wanted if name in format.columns]
        missing = [name for name in wanted if name not in there and name not in self._optional]
        if missing:
            raise SpecError(
                f"{record.path} has no column {', '.join(map(repr, missing))}; "
                f"it has {listed((*format.columns, *path), missing[0])}"
            )
        return there


def _repeated(value: bytes | None, rows: int) -> pa.Array:
    return pa.nulls(rows) if value is None else pa.repeat(pa.scalar(value, pa.binary()), rows)


_GROWING = ("csv", "tsv", "jsonl")


@dataclass(frozen=True)
class RowFormat:
    """The format of one file, which parses rows from any offset.

    header: the bytes before the first row, which is on first_line; columns: for JSON lines, those of the file's start;
    notes: remarks for the user, by what they are of.
    """

    name: str
    header: bytes
    first_line: int
    columns: tuple[str, ...]
    names: tuple[str, ...]
    objects: frozenset[str]
    has_header: bool = False
    dialect: Dialect = UNKNOWN
    notes: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, path: str, head: bytes, objects: frozenset[str], header: Header = _NO_KNOWLEDGE) -> RowFormat:
        """The format of a file that starts with `head`. Raises InputError for a format that cannot be followed."""
        name = format_of(path, head)
        if name not in _GROWING:
            raise InputError(
                f"{path} is {name}: a trainer reads rows on from CSV, TSV and JSON lines; `ftrie train` reads the "
                "others"
            )
        if name == "jsonl":
            return cls(name, b"", 1, keys_of(head).columns, (), objects)
        feed = Window(path, head, is_all=False)
        file = DelimitedFile(feed, name, header)
        notes = {"format": misnamed(without_rotation(path), name), f"header {file.has_header}": file.note}
        notes["dialect"] = file.dialect_note
        return cls(
            *(name, head[: feed.offset], feed.line, file.columns, file.names, objects),
            has_header=file.has_header,
            dialect=file.dialect,
            notes=notes,
        )

    @property
    def is_delimited(self) -> bool:
        """True if all rows of the file have the same columns."""
        return self.name != "jsonl"

    def parse(
        self, path: str, window: bytes, offset: int, line: int, is_all: bool, wanted: Sequence[str]
    ) -> RowBatch | None:
        """The first batch of a window that starts at `offset`, on `line`; None if it has no whole row yet.

        is_all: nothing follows the window, so a last row without a line end counts.
        """
        feed = Window(path, window, is_all, offset, line)
        if not self.is_delimited:
            return next(JsonLinesFile(feed, Keys(self.columns, self.objects, ())).batches(wanted), None)
        if offset == 0:
            feed.drop(len(self.header) - feed.offset, self.first_line - 1)
        file = DelimitedFile(feed, self.name, Header(self.names, is_absent=True, dialect=self.dialect))
        return next(file.batches(wanted), None)


def format_of(path: str, head: bytes) -> str:
    """The format of a file that starts with `head`. Raises InputError if neither name nor content tells it."""
    name = without_rotation(path)
    return _format_of(path if format_by_name(name) is None else name, np.frombuffer(head, np.uint8))
