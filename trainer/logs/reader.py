"""Which format a log is in: by the name's extension, else by how its first bytes look."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Protocol

from model_store.errors import InputError, SpecError
from trainer.logs.batch import STDIN, Bookmarks, Position, ReadFile, RowBatch, expand
from trainer.logs.csv import DelimitedFile
from trainer.logs.jsonl import JsonLinesFile
from trainer.logs.parquet import ParquetInput
from trainer.logs.sparse import GRAMMARS, LateNames, SparseFile
from trainer.logs.streams import Bytes, ByteStream, Feed

FORMATS = ("csv", "tsv", "jsonl", "parquet", "vw", "libsvm", "libffm")
EXTENSIONS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".vw": "vw",
    ".libsvm": "libsvm",
    ".svm": "libsvm",
    ".libffm": "libffm",
    ".ffm": "libffm",
}
_COMPRESSED = (".gz", ".zst")
_LOOK_BYTES = 64 * 1024
_NUMBER = rb"[+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?"
# The first line of a log whose rows name their features themselves, and which therefore has no header.
_SPARSE = {
    "vw": re.compile(rb"[+-]?[01](?:\.0*)?(?: +%b){0,2}(?: +'?[^ |\t]*)? *\|" % _NUMBER),
    "libsvm": re.compile(rb"[+-]?[01](?:\.0*)?(?:[ \t]+qid:\S+)?(?:[ \t]+[0-9]+:%b)+\s*(?:#|$)" % _NUMBER),
    "libffm": re.compile(rb"[+-]?[01](?:\.0*)?(?:[ \t]+[0-9]+:[0-9]+:%b)+\s*$" % _NUMBER),
}
# scikit-learn's dump_svmlight_file writes comments first.
_COMMENTED = re.compile(rb"(?:[ \t\r]*+(?:#[^\n]*+)?\n)++" + _SPARSE["libsvm"].pattern, re.MULTILINE)


def format_by_name(name: str) -> str | None:
    """The format that the file's extension tells, or None."""
    path = PurePath(name.lower())
    if path.suffix in _COMPRESSED:
        path = path.with_suffix("")
    return EXTENSIONS.get(path.suffix)


def format_by_content(name: str, data: Bytes) -> str:
    """The format that the first bytes tell; InputError if they do not."""
    head = data[:_LOOK_BYTES].tobytes()
    if head.startswith(b"PAR1"):
        return "parquet"
    text = head.lstrip()
    if text.startswith(b"{"):
        return "jsonl"
    line = text.partition(b"\n")[0]
    for format, pattern in _SPARSE.items():
        if pattern.match(line):
            return format
    if _COMMENTED.match(text):
        return "libsvm"
    if b"\t" in line:
        return "tsv"
    if b"," in line:
        return "csv"
    raise InputError(
        f"{name}: cannot tell its format from its name or first line; expected one of {', '.join(FORMATS)}, "
        "which --format can name"
    )


def check_format(format: str | None) -> str | None:
    """Return `format` if it is known or None, else raise InputError."""
    if format is not None and format not in FORMATS:
        raise InputError(f"format {format!r} is not known; expected one of {', '.join(FORMATS)}")
    return format


# --- The reader the trainer uses: many inputs, one stream of batches. Each format is read in a file beside
# ---


BATCH_BYTES = 1024 * 1024


class Source(Protocol):
    """One opened file: the names of its columns, and its rows, once."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it is known to have."""

    @property
    def kinds(self) -> Mapping[str, str | None]:
        """What the columns are that are no categories: see `ModelSpec.resolve`."""

    def may_have(self, column: str) -> bool:
        """True if the column can be wanted: it is one of `columns`, or rows farther down may have it."""

    def batches(self, wanted: Sequence[str]) -> Iterator[RowBatch]:
        """The rows, once."""

    def go_on(self, position: Position) -> None:
        """Pass over what lies before `position`; called before `batches`, if at all."""


class LogReader:
    """Reads click logs in the order they are named; a glob stands for its matches, `-` for standard input.

    `format` is one of FORMATS; None tells it from each file's name, or else its first bytes.
    About `batch_bytes` bytes of text make a batch; memory depends on it, not on the length of the files.
    Reading and parsing release the GIL, so a thread of its own can read ahead. Raises InputError for an input
    that is not there.

    Files that an earlier run has read, as `read` tells, are read on from where it stopped; `bookmarks` tells the same
    of this run. `on_note` is told of files that may not be what they seem, and of columns met too late to be fields.
    """

    def __init__(
        self,
        inputs: Sequence[str],
        *,
        format: str | None = None,
        batch_bytes: int = BATCH_BYTES,
        read: Sequence[ReadFile] = (),
        on_note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.files = expand(inputs)
        self.bookmarks = Bookmarks(self.files, read, on_note)
        self._late = LateNames(on_note)
        self._format = check_format(format)
        self._batch_bytes = batch_bytes
        self._finished_bytes = 0
        self._next = 0
        self._stream: ByteStream | None = None
        self._source: Source | None = None

    @property
    def total_bytes(self) -> int | None:
        """Bytes of all files as they lie on disk; None if standard input is among them."""
        if STDIN in self.files:
            return None
        return sum(os.path.getsize(name) for name in self.files)

    def bytes_read(self) -> int:
        """Bytes consumed so far, counted like `total_bytes`. May be called from another thread."""
        stream = self._stream
        return self._finished_bytes + (stream.consumed if stream is not None else 0)

    def columns(self) -> tuple[str, ...]:
        """The names of the first file's columns; where each row names its own, those of its first block.

        Consumes no row.
        """
        return self._open()[0].columns

    def may_have(self, column: str) -> bool:
        """True if the first file has the column, or rows farther down in it may have it."""
        return self._open()[0].may_have(column)

    def kinds(self) -> Mapping[str, str | None]:
        """What the first file's columns are that are no categories: see `ModelSpec.resolve`."""
        return self._open()[0].kinds

    def batches(self, wanted: Sequence[str]) -> Iterator[RowBatch]:
        """All rows, files in order, holding the `wanted` columns (at least one).

        SpecError for a file that lacks one; InputError, after the rows before it, where a file is damaged.
        """
        while self._next < len(self.files):
            yield from self._batches(self._open(), wanted)

    def close(self) -> None:
        """Close the open file. May be called twice."""
        if self._stream is not None:
            self._stream.close()

    def __enter__(self) -> LogReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> tuple[Source, ByteStream]:
        if self._source is None or self._stream is None:
            self._stream = ByteStream(self.files[self._next])
            self._source = self._source_of(self._stream)
        return self._source, self._stream

    def _batches(self, opened: tuple[Source, ByteStream], wanted: Sequence[str]) -> Iterator[RowBatch]:
        """What is left of the open file, each batch with the file's number."""
        source, stream = opened
        self._check(source, wanted)
        read = self.bookmarks.begin(self._next, stream.head)
        stop = read.position
        if read.disk_bytes == stream.size:
            stream.report(stream.size)
        else:
            source.go_on(stop)
            for batch in source.batches(wanted):
                before = len(stream.head) if isinstance(source, ParquetInput) else batch.stop.offset
                start, stop = stop, stop.followed_by(batch.stop, stream.head[:before])
                yield _from_line(replace(batch, start=start, stop=stop), read.position.first_line)
        self._finish(stop, stream)

    def _source_of(self, stream: ByteStream) -> Source:
        format = self._format or format_by_name(stream.name)
        if format == "parquet":
            return ParquetInput(stream, self._batch_bytes)
        feed = Feed(stream, self._batch_bytes)
        if not feed.unread.size:
            feed.check()
            raise InputError(f"{stream.name} is empty; expected rows")
        format = format or format_by_content(stream.name, feed.unread)
        if format == "parquet":
            return ParquetInput(stream, self._batch_bytes, ahead=feed.unread.tobytes())
        if format == "jsonl":
            return JsonLinesFile(feed)
        if format in GRAMMARS:
            return SparseFile(feed, GRAMMARS[format], self._late)
        return DelimitedFile(feed, "\t" if format == "tsv" else ",", quoting=format == "csv")

    def _check(self, source: Source, wanted: Sequence[str]) -> None:
        missing = [name for name in wanted if not source.may_have(name)]
        if missing:
            raise SpecError(
                f"{self.files[self._next]} has no column {', '.join(map(repr, missing))}; "
                f"it has {', '.join(source.columns)}"
            )

    def _finish(self, stop: Position, stream: ByteStream) -> None:
        stream.close()
        self.bookmarks.end(stop, stream.consumed)
        self._stream = self._source = None
        self._finished_bytes += stream.consumed
        self._next += 1


def _from_line(batch: RowBatch, line: int) -> RowBatch:
    """The batch without what stands on lines before `line`, which an earlier run has learned from."""
    seen = (batch.rows and batch.lines[0] < line) or (batch.rejects and batch.rejects[0].line < line)
    return batch.from_line(line) if seen else batch
