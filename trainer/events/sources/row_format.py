"""One file's format, and rows of it from any offset: the parsers of `ftrie train`, over bytes that are at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model_store.errors import InputError
from trainer.events.sources.listing import without_rotation
from trainer.sources import RowBatch, json_rows
from trainer.sources.delimited import DelimitedFile
from trainer.sources.feed import Feed
from trainer.sources.formats import format_by_content, format_by_name
from trainer.sources.json_lines import JsonLinesFile
from trainer.sources.streams import Bytes

_GROWING = ("csv", "tsv", "jsonl")


@dataclass(frozen=True)
class RowFormat:
    """header: the bytes before the first row, on first_line. columns: of JSON lines, those in the beginning."""

    name: str
    header: bytes
    first_line: int
    columns: tuple[str, ...]
    objects: frozenset[str]

    @classmethod
    def of(cls, path: str, head: bytes, objects: frozenset[str]) -> RowFormat:
        """That of a file that begins with `head`. Raises InputError for a format whose rows cannot be read on."""
        name = format_of(path, head)
        if name not in _GROWING:
            raise InputError(
                f"{path} is {name}: a trainer reads rows on from CSV, TSV and JSON lines; `ftrie train` reads the "
                "others"
            )
        if name == "jsonl":
            return cls(name, b"", 1, tuple(json_rows.columns(head)), objects)
        feed = _Window(path, head, is_all=False)
        columns = _delimited(feed, name).columns
        return cls(name, head[: feed.offset], feed.line, columns, objects)

    @property
    def has_header(self) -> bool:
        """True if the columns are the same all over the file."""
        return self.name != "jsonl"

    def parse(
        self, path: str, window: bytes, offset: int, line: int, is_all: bool, wanted: Sequence[str]
    ) -> RowBatch | None:
        """The first batch of a window that begins at `offset`, on `line`; None if no row in it is whole yet.

        is_all: nothing follows the window, so a last row without a line end is one.
        """
        if not self.has_header:
            feed = _Window(path, window, is_all)
            if offset:
                feed.offset, feed.line = offset, line
            return next(JsonLinesFile(feed, self.objects).batches(wanted), None)
        feed = _Window(path, window if offset == 0 else self.header + window, is_all)
        file = _delimited(feed, self.name)
        if offset:
            # Reading the header passes over blank lines behind it, which may be the window's.
            feed.offset, feed.line = (
                feed.offset - len(self.header) + offset,
                feed.line - self.first_line + line,
            )
        return next(file.batches(wanted), None)


def format_of(path: str, head: bytes) -> str:
    """The format of a file that begins with `head`. Raises InputError if neither its name nor `head` tells."""
    return format_by_name(without_rotation(path)) or format_by_content(path, np.frombuffer(head, np.uint8))


def _delimited(feed: Feed, name: str) -> DelimitedFile:
    return DelimitedFile(feed, "\t" if name == "tsv" else ",", quoting=name == "csv")


class _Window(Feed):
    """Bytes at hand as a feed. Not `final` while a file may grow: its last row is then not over."""

    def __init__(self, path: str, data: bytes, is_all: bool) -> None:
        self._is_all = is_all
        super().__init__(_AtHand(path, data), len(data) + 1)

    @property
    def final(self) -> bool:
        """See Feed."""
        return self._is_all


class _AtHand:
    """Bytes as a stream."""

    failure = None

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self._data = np.frombuffer(data, np.uint8)

    def read_into(self, buffer: Bytes) -> int:
        """See Stream."""
        count = min(self._data.size, buffer.size)
        buffer[:count] = self._data[:count]
        self._data = self._data[count:]
        return count

    def skip(self, size: int) -> None:
        """See Stream."""
        self._data = self._data[size:]
