"""What a format of labelled rows is: how its files are recognised, and how an open one is read.

Each format has a file of this folder with its class of RowFile and its entry, a Format, for `trainer.formats.reader`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from trainer.formats.batch import Position, RowBatch
from trainer.formats.dialect import UNKNOWN, Dialect
from trainer.formats.streams import ALL, ByteStream, Feed, Share


class RowFile(ABC):
    """An open file of one format: its columns, and its rows, once."""

    columns: tuple[str, ...] = ()
    """The known columns, in order."""
    kinds: Mapping[str, str | None] = {}
    """The kinds of columns that are not categories: see `ModelSpec.resolve`."""
    left_out: tuple[str, ...] = ()
    """Columns of which nothing can become a feature."""
    notes: Mapping[str, str] = {}
    """Remarks for the user by what they are of, "" for none; the first file of a log says each."""
    is_text: bool = True
    """Whether positions are bytes; else rows."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def may_have(self, column: str) -> bool:
        """True if the column is one of `columns`, or later rows may have it."""
        return column in self.columns

    @abstractmethod
    def batches(self, wanted: Sequence[str], share: Share = ALL) -> Iterator[RowBatch]:
        """The rest of the rows, once, in the blocks of this share. InputError for damage, after the rows before."""

    def go_on(self, position: Position) -> None:
        """Skip what is before a position of an earlier run. Called before `batches`, or not at all."""
        self._feed.go_on(position)


@dataclass(frozen=True)
class Header:
    """What is known of the first line of a file before it is read.

    columns: the names of the columns of a file without a header. Its first line is a row all the same, unless it holds
    these names, in any order. is_absent: the first line is a row, whatever it holds; the columns are c1, c2, … where
    `columns` does not name them. known: names of columns that a header has: a first line with one of them is a header.
    any_label: of sparse text, the label may be any word, as `[input] positive` names one. dialect: what is known of it.
    """

    columns: tuple[str, ...] | None = None
    is_absent: bool = False
    known: frozenset[str] = frozenset()
    any_label: bool = False
    dialect: Dialect = UNKNOWN


@dataclass(frozen=True)
class OpenFile:
    """What a format makes a RowFile of. `stream` has not been read; `feed` begins to.

    header: what is known of the first lines; unlabelled: rows need no label; on_note: receives remarks, with what they
    are of: each kind is said once.
    """

    stream: ByteStream
    batch_bytes: int
    header: Header
    unlabelled: bool = False
    on_note: Callable[[str, str], None] = lambda kind, text: None

    @cached_property
    def feed(self) -> Feed:
        """The stream in blocks of about `batch_bytes`."""
        return Feed(self.stream, self.batch_bytes)


@dataclass(frozen=True)
class Format:
    """A format: its name, and its title in messages; the extensions of its files.

    begins: whether the first 64 KiB of a file are of this format; read: the rows of an open file. separator: of cells,
    in formats that are nothing but lines of cells, and so are tried last. holds: what files of the format hold, where
    their name says otherwise. is_text: False for a format with a beginning that an empty file lacks.
    """

    name: str
    title: str
    extensions: tuple[str, ...]
    begins: Callable[[bytes], object]
    read: Callable[[OpenFile], RowFile]
    separator: bytes = b""
    holds: str = ""
    is_text: bool = True
