"""Labelled rows in growing files as a source: CSV, TSV or JSON lines, parsed as `ftrie train` parses them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from model_store.errors import InputError
from trainer.events.events import SourcePosition
from trainer.formats import registry
from trainer.formats.batch import RowBatch
from trainer.formats.csv import DelimitedFile
from trainer.formats.jsonl import JsonLinesFile, Keys, keys_of
from trainer.formats.reader import columns_in_path, no_column
from trainer.formats.registry import FORMATS, format_by_name, misnamed
from trainer.formats.row_file import Header
from trainer.formats.streams import Window
from trainer.sources.file_tracker import FileChain, Taken
from trainer.sources.open_files import Opened, Record, without_rotation

_NO_KNOWLEDGE = Header()


@dataclass(frozen=True)
class RowsRead:
    """A batch and the positions before and after it."""

    batch: RowBatch
    before: SourcePosition
    after: SourcePosition


class RowSource(FileChain[RowsRead]):
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
        super().__init__(name, position, on_note, once=once, least_lines=2)
        self._header = header
        self._noted: set[str] = set()
        self._optional = optional
        self._objects = objects
        self._files: dict[Record, _Followed] = {}
        self._wanted: Sequence[str] = ()

    @property
    def columns_without_header(self) -> tuple[str, ...] | None:
        """The columns of the files without a header; None while no such file was met."""
        return self._header.columns

    def columns(self) -> tuple[str, ...] | None:
        """The first file's columns, for JSON lines those in its first 64 KiB; None while there is no file."""
        found = self._first()
        if found is None:
            return None
        own = self._followed(*found).columns
        return (*own, *columns_in_path(found[0].path, own))

    def read(self, wanted: Sequence[str]) -> RowsRead | None:
        """The next rows of one file, about READ_BYTES, with the `wanted` columns; None if there are none now.

        Raises SpecError for a file whose header lacks a column, InputError for a format that cannot be followed.
        """

        self._wanted = wanted
        return self._next()

    def _taken(self, record: Record, opened: Opened, window: bytes, is_all: bool) -> Taken[RowsRead] | None:
        if not window:
            return None
        file = self._followed(record, opened)
        path = columns_in_path(record.path, file.columns)
        there = self._there(record, file, path)
        feed = Window(record.path, window, is_all, record.offset, record.line)
        if file.lines is None:
            batch = next(JsonLinesFile(feed, Keys(file.columns, self._objects, ())).batches(there), None)
        else:
            if record.offset == 0:
                feed.drop(file.offset - feed.offset, file.line - 1)
            batch = next(file.lines.continued(feed).batches(there), None)
        if batch is None:
            return None
        if others := set(self._wanted) - batch.columns.keys():
            rest = {name: _repeated(path.get(name), batch.rows) for name in others}
            batch = replace(batch, columns={**batch.columns, **rest})
        stop = batch.stop
        rows = None
        if batch.rows or batch.rejects:
            before = self._here()
            after = self._after(before, self._records.index(record), stop.offset, stop.line)
            rows = RowsRead(batch, before, after)
        return Taken(rows, stop.offset - record.offset, stop.line - record.line)

    def _followed(self, record: Record, opened: Opened) -> _Followed:
        """The file's beginning. Raises InputError for a format that cannot be followed."""
        if record not in self._files:
            path, head = record.path, opened.head()
            name = format_of(path, head)
            if name == "jsonl":
                self._files = {record: _Followed(keys_of(head).columns, None)}
            elif FORMATS[name].separator:
                feed = Window(path, head, is_all=False)
                file = DelimitedFile(feed, name, self._header)
                if not file.has_header:
                    self._header = replace(self._header, columns=file.columns)
                for kind, text in {"format": misnamed(without_rotation(path), name), **file.notes}.items():
                    if text and kind not in self._noted:
                        self._noted.add(kind)
                        self._on_note(text)
                self._files = {record: _Followed(file.columns, file, feed.offset, feed.line)}
            else:
                raise InputError(
                    f"{path} is {name}: a trainer reads rows on from CSV, TSV and JSON lines; `ftrie train` reads the "
                    "others"
                )
        return self._files[record]

    def _there(self, record: Record, file: _Followed, path: Iterable[str]) -> Sequence[str]:
        """The wanted columns that the file has, and its path has not. Raises SpecError."""
        wanted = [name for name in self._wanted if name not in path]
        if file.lines is None:
            return wanted
        there = [name for name in wanted if name in file.columns]
        missing = [name for name in wanted if name not in there and name not in self._optional]
        if missing:
            raise no_column(record.path, missing, (*file.columns, *path))
        return there


def _repeated(value: bytes | None, rows: int) -> pa.Array:
    return pa.nulls(rows) if value is None else pa.repeat(pa.scalar(value, pa.binary()), rows)


@dataclass(frozen=True)
class _Followed:
    """What the beginning of a file tells, by which its rows are read from any offset.

    columns: for JSON lines those of the beginning. lines: the file's own reader, if all its rows have these columns.
    offset, line: of the first row.
    """

    columns: tuple[str, ...]
    lines: DelimitedFile | None
    offset: int = 0
    line: int = 1


def format_of(path: str, head: bytes) -> str:
    """The format of a file that starts with `head`. Raises InputError if neither name nor content tells it."""
    name = without_rotation(path)
    return registry.format_of(path if format_by_name(name) is None else name, head)
