"""Reads click logs: many files of any format as one stream of batches, from the start or from earlier positions.

A file's format is named, else told by its extension, else by its first bytes; FORMATS is the table of all.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, BinaryIO
from urllib.parse import unquote

import pyarrow as pa

from model_store.errors import InputError, SpecError, listed
from trainer.formats import csv, jsonl, parquet, sparse
from trainer.formats.batch import STDIN, LazyColumns, Position, ReadFile, RowBatch, as_stored, begin_alike
from trainer.formats.csv import DelimitedFile
from trainer.formats.row_file import Format, Header, OpenFile, RowFile
from trainer.formats.streams import ALL, BOM, ByteStream, Share, matches, open_input

FORMATS: dict[str, Format] = {
    format.name: format for module in (csv, jsonl, parquet, sparse) for format in module.FORMATS
}
EVENTS = "events"
"""The format of impressions and their feedback, which `trainer.examples.joined` reads."""
_COMPRESSED = (".gz", ".zst")


def check_format(format: str | None) -> str | None:
    """Return `format` if it is known or None, else raise InputError."""
    if format is not None and format not in (EVENTS, *FORMATS):
        raise InputError(
            f"format {format!r} is not known; expected one of {listed([*FORMATS, EVENTS], format)}"
        )
    return format


def format_by_name(name: str) -> str | None:
    """The format by the file's extension, or None."""
    path = PurePath(name.lower())
    if path.suffix in _COMPRESSED:
        path = path.with_suffix("")
    return next((each.name for each in FORMATS.values() if path.suffix in each.extensions), None)


def format_of(name: str, head: bytes) -> str:
    """The format by the file's extension, else by its first bytes. Raises InputError if neither tells it.

    A file called .csv whose cells are separated by tabs is TSV, and the reverse; one that holds Parquet or JSON objects
    is that. `misnamed` says so.
    """
    head = head.removeprefix(BOM)
    named = FORMATS.get(format_by_name(name) or "")
    if named is None or (named.separator and head.startswith((b"PAR1", b'{"'))):
        return _by_content(name, head).name
    if named.separator:
        for other in FORMATS.values():
            if (
                other.separator
                and other is not named
                and _is_separated_by(other.separator, named.separator, head)
            ):
                return other.name
    return named.name


def misnamed(name: str, format: str) -> str:
    """A remark for the user if `format_of` found another format than the name tells, else ""."""
    by_name = format_by_name(name)
    if by_name is None or by_name == format or not FORMATS[by_name].separator:
        return ""
    return f"{name}: {FORMATS[format].holds}: read as {format}; --format {by_name} reads it as its name says"


def _by_content(name: str, head: bytes) -> Format:
    text = head.lstrip()
    for format in sorted(FORMATS.values(), key=lambda each: bool(each.separator)):
        if format.begins(text):
            return format
    raise InputError(
        f"{name}: cannot tell its format from its name or first line; expected one of {', '.join(FORMATS)}, "
        "which --format can name"
    )


def _is_separated_by(theirs: bytes, ours: bytes, head: bytes) -> bool:
    """True if the first line has separators of the other format and none of this one.

    Or if all lines have as many of the other, and fewer than half of them as many of this one as the first.
    """
    lines = [line for line in head[: head.rfind(b"\n") + 1].splitlines() or head.splitlines() if line.strip()]
    others, own = ([line.count(mark) for line in lines] for mark in (theirs, ours))
    if not lines or not others[0]:
        return False
    return not own[0] or (len(set(others)) == 1 and 2 * own.count(own[0]) < len(own))


_PARTITION = re.compile(r"[^\W\d]\w*=")  # as Hive, Spark and DuckDB write folders
_NO_VALUE = b"__HIVE_DEFAULT_PARTITION__"
BATCH_BYTES = 1024 * 1024
_NO_KNOWLEDGE = Header()


class LogReader:
    """Reads click logs in the order given; a glob stands for its matches, `-` for standard input.

    format: a name in FORMATS; None to detect it for each file. About `batch_bytes` bytes of text make a batch; memory
    depends on it, not on the length of the files. Reading and parsing release the GIL, so a thread can read ahead.
    Raises InputError for an input that does not exist.

    read: how far an earlier run read the files; each continues there. `bookmarks` has the same for this run. on_note:
    receives remarks on suspicious files and on columns met too late to become fields. dialect: what is unusual of the
    last delimited file opened, as `[input]` names it. share: which blocks of rows are parsed; the others are read and
    skipped. open_file: opens each file. unlabelled: rows need no label.
    """

    def __init__(
        self,
        inputs: Sequence[str],
        *,
        format: str | None = None,
        batch_bytes: int = BATCH_BYTES,
        read: Sequence[ReadFile] = (),
        on_note: Callable[[str], None] = lambda text: None,
        share: Share = ALL,
        open_file: Callable[[str], BinaryIO] = open_input,
        header: Header = _NO_KNOWLEDGE,
        unlabelled: bool = False,
    ) -> None:
        self.files = expand(inputs)
        self._open_file = open_file
        self._blocks = share
        self.bookmarks = Bookmarks(self.files, read, on_note)
        self._format = check_format(format)
        self._header = header
        self._unlabelled = unlabelled
        self._on_note = on_note
        self._noted: set[str] = set()
        self._found = False  # a file that is not empty
        self.dialect: dict[str, Any] = {}
        self._batch_bytes = batch_bytes
        self._finished_bytes = 0
        self._next = 0
        self._stream: ByteStream | None = None
        self._source: RowFile | None = None

    @property
    def total_bytes(self) -> int | None:
        """Bytes of all files on disk; None with standard input."""
        if STDIN in self.files:
            return None
        return sum(os.path.getsize(name) for name in self.files)

    def bytes_read(self) -> int:
        """Bytes read so far, counted like `total_bytes`. May be called from another thread."""
        stream = self._stream
        return self._finished_bytes + (stream.consumed if stream is not None else 0)

    def columns(self) -> tuple[str, ...]:
        """The first file's columns, and those of its path; where rows name their own, those of its first block.

        Consumes no row.
        """
        source, stream = self._open()
        return (*source.columns, *columns_in_path(stream.name, source.columns))

    def may_have(self, column: str) -> bool:
        """True if the first file or its path has the column, or its later rows may have it."""
        source, stream = self._open()
        return source.may_have(column) or column in columns_in_path(stream.name, source.columns)

    def note_left_out(self) -> None:
        """A remark on the first file's columns of which nothing can become a feature, for who looks at a log."""
        source, stream = self._open()
        if names := ", ".join(source.left_out):
            self._note_once("left out", f"{stream.name}: left out, as lists of objects or the like: {names}")

    @property
    def columns_without_header(self) -> tuple[str, ...] | None:
        """The columns of the files that have no header; None while no such file was opened."""
        return self._header.columns

    def kinds(self) -> Mapping[str, str | None]:
        """The kinds of the first file's columns that are not categories: see `ModelSpec.resolve`."""
        return self._open()[0].kinds

    def batches(self, wanted: Sequence[str]) -> Iterator[RowBatch]:
        """All rows, files in order, with the `wanted` columns (at least one).

        Raises SpecError for a file that lacks a column; InputError where a file is damaged, after the rows before.
        """
        while self._next < len(self.files) and (opened := self._open_next()) is not None:
            yield from self._batches(opened, wanted)

    def close(self) -> None:
        """Close the open file. May be called twice."""
        if self._stream is not None:
            self._stream.close()

    def __enter__(self) -> LogReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> tuple[RowFile, ByteStream]:
        opened = self._open_next()
        if opened is None:
            raise InputError(f"{self.files[-1]} is empty; expected rows")
        return opened

    def _open_next(self) -> tuple[RowFile, ByteStream] | None:
        """The next file that is not empty: where a job writes a folder, some of its parts may be. None without one.

        A log of empty files is an error.
        """
        while self._source is None and self._next < len(self.files):
            name = self.files[self._next]
            self._stream = stream = ByteStream(name, self._open_file(name))
            if (
                stream.head
                or stream.failure is not None
                or (self._next + 1 == len(self.files) and not self._found)
            ):
                self._source = self._source_of(stream)
                self._found = True
                if path := columns_in_path(name, self._source.columns):
                    self._note_once("path", f"{name}: {', '.join(path)} read from its path")
            else:
                self._note_once("empty", f"{name} is empty: skipped, as others like it are")
                stream.close()
                self._next += 1
        return None if self._source is None or self._stream is None else (self._source, self._stream)

    def _batches(self, opened: tuple[RowFile, ByteStream], wanted: Sequence[str]) -> Iterator[RowBatch]:
        """The rest of the open file, each batch with the file's number."""
        source, stream = opened
        path = columns_in_path(stream.name, source.columns)
        if missing := [name for name in wanted if name not in path and not source.may_have(name)]:
            raise no_column(stream.name, missing, (*source.columns, *path))
        read = self.bookmarks.begin(self._next, stream.head)
        stop = read.position
        if read.disk_bytes == stream.size:
            stream.report(stream.size)
        else:
            source.go_on(stop)
            # A source is asked for at least one column, by which it counts its rows.
            inside = [name for name in wanted if name not in path] or list(source.columns[:1])
            for batch in source.batches(inside, self._blocks):
                before = batch.stop.offset if source.is_text else len(stream.head)
                start, stop = stop, stop.followed_by(batch.stop, stream.head[:before])
                batch = replace(batch, columns=_with(path, batch, wanted), start=start, stop=stop)
                line = read.position.first_line  # an earlier run has learned from those before it
                seen = (batch.rows and batch.lines[0] < line) or (
                    batch.rejects and batch.rejects[0].line < line
                )
                yield batch.from_line(line) if seen else batch
        stream.close()
        self.bookmarks.end(stop, stream.consumed)
        self._stream = self._source = None
        self._finished_bytes += stream.consumed
        self._next += 1

    def _source_of(self, stream: ByteStream) -> RowFile:
        named = FORMATS.get(self._format or format_by_name(stream.name) or "")
        if not stream.head.removeprefix(BOM) and (named is None or named.is_text):
            if stream.failure is not None:
                raise stream.failure
            raise InputError(f"{stream.name} is empty; expected rows")
        format = self._format or format_of(stream.name, stream.head)
        if self._format is None:
            self._note_once("format", misnamed(stream.name, format))
        file = OpenFile(stream, self._batch_bytes, self._header, self._unlabelled, self._note_once)
        source = FORMATS[format].read(file)
        for kind, text in source.notes.items():
            self._note_once(kind, text)
        if isinstance(source, DelimitedFile):
            self._header = source.told_of_others(self._header)
            self.dialect = source.own_dialect
        return source

    def _note_once(self, kind: str, text: str) -> None:
        """A note on the first of the files that it holds for."""
        if text and kind not in self._noted:
            self._noted.add(kind)
            self._on_note(text)


def no_column(name: str, missing: Sequence[str], columns: Iterable[str]) -> SpecError:
    """The error for a file that lacks columns."""
    shown = ", ".join(map(repr, missing))
    return SpecError(f"{name} has no column {shown}; it has {listed(tuple(columns), missing[0])}")


def columns_in_path(name: str, own: Sequence[str]) -> Mapping[str, bytes]:
    """The columns that are in a file's path, as `day=2026-11-01/`, and are not the file's own."""
    found = dict(part.split("=", 1) for part in PurePath(name).parts[:-1] if _PARTITION.match(part))
    values = {column: unquote(value).encode() for column, value in found.items() if column not in own}
    return {column: b"" if value == _NO_VALUE else value for column, value in values.items()}


def _with(path: Mapping[str, bytes], batch: RowBatch, wanted: Sequence[str]) -> Mapping[str, pa.Array]:
    if not path.keys() & set(wanted):
        return batch.columns
    rows = {name: pa.repeat(pa.scalar(value, pa.binary()), batch.rows) for name, value in path.items()}
    stored = as_stored(batch.columns)
    return LazyColumns({name: rows[name] if name in rows else stored[name] for name in wanted})


class Bookmarks:
    """How far each of a reader's files was read, by earlier runs (`read`) and by this one.

    The reader calls `begin` and `end` for one file after another; `until` may be called from another thread.
    """

    def __init__(
        self, files: Sequence[str], read: Sequence[ReadFile], on_note: Callable[[str], None]
    ) -> None:
        self._files = tuple(files)
        self._on_note = on_note
        self._elsewhere = list(read)
        self._earlier: list[ReadFile | None] = []
        for path in map(path_of, files):  # in their order, as a file may be named twice
            each = next((one for one in self._elsewhere if one.path == path), None)
            if each is not None:
                self._elsewhere.remove(each)
            self._earlier.append(each)
        self._now: list[ReadFile | None] = [None] * len(self._files)

    def begin(self, number: int, head: bytes) -> ReadFile:
        """How far this file was read; nothing of a file whose `head` is not that of the earlier one."""
        name = self._files[number]
        found = ReadFile(path_of(name), Position(name, number=number))
        earlier = self._earlier[number]
        if earlier is None:
            self._warn_of_copies(found, head)
        elif earlier.position.is_in(head):
            found = replace(earlier, position=replace(earlier.position, file=name, number=number))
        else:
            self._on_note(
                f"{name} begins differently from when it was read before: read whole, as a new file"
            )
        self._now[number] = found
        return found

    def end(self, stop: Position, disk_bytes: int) -> None:
        """Note that a file was read to its end."""
        read = self._now[stop.number]
        assert read is not None
        self._now[stop.number] = replace(read, position=stop, disk_bytes=disk_bytes)

    def until(self, stop: Position | None) -> tuple[ReadFile, ...]:
        """How far every file was read once the rows up to `stop` are learned from; None: once all are.

        Includes files that only earlier runs have read.
        """
        if stop is None:
            read = self._now
        else:
            current = self._now[stop.number]
            assert current is not None
            ahead = self._earlier[stop.number + 1 :]
            read = [*self._now[: stop.number], ReadFile(current.path, stop), *ahead]
        return (*self._elsewhere, *(each for each in read if each is not None))

    def _warn_of_copies(self, found: ReadFile, head: bytes) -> None:
        others = [
            each for each in (*self._elsewhere, *filter(None, self._earlier)) if each.path != found.path
        ]
        alike = begin_alike((each.position for each in others if each.position.head_bytes), head)
        if alike:
            path = next(each.path for each in others if each.position is alike[0])
            self._on_note(
                f"{found.position.file} begins like {path}, read before: read whole, as another file"
            )


def path_of(name: str) -> str:
    """The absolute path of an input; standard input is `-`."""
    return name if name == STDIN else os.path.abspath(name)


def expand(inputs: Sequence[str]) -> tuple[str, ...]:
    """The files that `inputs` name, in the order given; a glob stands for its matches, sorted.

    Raises InputError for a missing file, a glob without matches, a folder, or standard input named twice.
    """
    if not inputs:
        raise InputError("no input: expected one or more files, globs, or - for standard input")
    files = tuple(name for each in inputs for name in _expand_one(each))
    if files.count(STDIN) > 1:
        raise InputError("- (standard input) can be read only once, but stands in the inputs more than once")
    return files


def _expand_one(name: str) -> Iterator[str]:
    path = Path(name)
    if name == STDIN:
        yield name
    elif path.is_dir():
        raise InputError(f"{name} is a folder; name its files, for example {path}/*.csv.gz")
    elif path.exists():
        yield name
    elif glob.has_magic(name):
        files = [each for each in matches(name) if Path(each).is_file()]
        if not files:
            raise InputError(f"{name} matches no file (from the folder {Path.cwd()})")
        # A file that links lead to as well is read once, by its own path, which stays when a link moves on.
        own = sorted(files, key=lambda each: (os.path.realpath(each) != os.path.abspath(each), each))
        once = {(status.st_dev, status.st_ino): each for each in reversed(own) for status in [os.stat(each)]}
        yield from sorted(once.values())
    else:
        raise InputError(f"{name}: there is no such file (from the folder {Path.cwd()})")
