"""The reader the trainer uses: many inputs, one stream of batches. Each format is read in a file beside."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Protocol

from model_store.errors import InputError, SpecError
from trainer.sources.batch import RowBatch
from trainer.sources.delimited import DelimitedFile
from trainer.sources.feed import Feed
from trainer.sources.formats import check_format, format_by_content, format_by_name
from trainer.sources.inputs import STDIN, expand
from trainer.sources.json_lines import JsonLinesFile
from trainer.sources.parquet import ParquetInput
from trainer.sources.streams import ByteStream

BATCH_BYTES = 1024 * 1024


class Source(Protocol):
    """One opened file: the names of its columns, and its rows, once."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that can be wanted."""

    def batches(self, wanted: Sequence[str]) -> Iterator[RowBatch]:
        """The rows, once."""


class LogReader:
    """Reads click logs in the order they are named; a glob stands for its matches, `-` for standard input.

    `format` is csv, tsv, jsonl or parquet; None tells it from each file's name, or else its first bytes.
    About `batch_bytes` bytes of text make a batch; memory depends on it, not on the length of the files.
    Reading and parsing release the GIL, so a thread of its own can read ahead. Raises InputError for an input
    that is not there.
    """

    def __init__(
        self, inputs: Sequence[str], *, format: str | None = None, batch_bytes: int = BATCH_BYTES
    ) -> None:
        self.files = expand(inputs)
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
        """The names of the first file's columns (JSON lines: of its first block). Consumes no row."""
        return self._open().columns

    def batches(self, wanted: Sequence[str]) -> Iterator[RowBatch]:
        """All rows, files in order, holding the `wanted` columns (at least one).

        SpecError for a file that lacks one; InputError, after the rows before it, where a file is damaged.
        """
        while self._next < len(self.files):
            source = self._open()
            self._check(source, wanted)
            yield from source.batches(wanted)
            self._finish()

    def close(self) -> None:
        """Close the open file. May be called twice."""
        if self._stream is not None:
            self._stream.close()

    def __enter__(self) -> LogReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> Source:
        if self._source is None:
            self._stream = ByteStream(self.files[self._next])
            self._source = self._source_of(self._stream)
        return self._source

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
        return DelimitedFile(feed, "\t" if format == "tsv" else ",", quoting=format == "csv")

    def _check(self, source: Source, wanted: Sequence[str]) -> None:
        missing = [name for name in wanted if name not in source.columns]
        if missing:
            raise SpecError(
                f"{self.files[self._next]} has no column {', '.join(map(repr, missing))}; "
                f"it has {', '.join(source.columns)}"
            )

    def _finish(self) -> None:
        stream = self._stream
        if stream is not None:
            stream.close()
            self._stream = None
            self._finished_bytes += stream.consumed
        self._source = None
        self._next += 1
