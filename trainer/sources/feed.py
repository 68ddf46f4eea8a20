"""The unread bytes of one stream, for readers of rows: they look at them, and say how many they took.

Knows nothing of rows but that they are not endless.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from model_store.errors import InputError
from trainer.sources.positions import Position
from trainer.sources.streams import Bytes

MAX_ROW_BYTES = 64 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"


class Stream(Protocol):
    """What a feed reads from: a ByteStream, or bytes that are at hand."""

    @property
    def name(self) -> str:
        """Of the input, for messages."""

    @property
    def failure(self) -> InputError | None:
        """Damage that ended the stream."""

    def read_into(self, buffer: Bytes) -> int:
        """Fill `buffer` as far as the stream goes."""

    def skip(self, size: int) -> None:
        """Pass over `size` bytes."""


class Feed:
    """A window that moves over a stream.

    `unread` begins where the reader left off, at physical line `line`, `offset` bytes into the stream.
    `ended` says that no bytes follow `unread`; if that is because the stream broke, `final` is False and
    `check()` raises what happened, so that the whole rows before the damage can be delivered first. One
    buffer is reused: views of `unread` are void after `fetch()`.
    """

    def __init__(self, stream: Stream, block_bytes: int) -> None:
        self.name = stream.name
        self.line = 1
        self.offset = 0
        self.ended = False
        self._stream = stream
        self._block_bytes = block_bytes
        self._buffer = np.empty(block_bytes, np.uint8)
        self._start = 0
        self._stop = 0
        self.fetch()
        if self.unread[:3].tobytes() == _BOM:
            self.drop(3, 0)

    @property
    def unread(self) -> Bytes:
        """uint8 view of the bytes read ahead."""
        return self._buffer[self._start : self._stop]

    @property
    def final(self) -> bool:
        """True if `unread` is all that is left of a sound stream, so its last line may lack a line end."""
        return self.ended and self._stream.failure is None

    @property
    def full(self) -> bool:
        """True if `unread` is as long as one row may be."""
        return self._stop - self._start >= MAX_ROW_BYTES

    def fetch(self) -> None:
        """Read about one block more. InputError if `unread` is already as long as a row may be."""
        if self.full:
            raise InputError(
                f"{self.name}:{self.line}: a row longer than {MAX_ROW_BYTES >> 20} MiB begins here; "
                "is this a log with one row a line?"
            )
        self._make_room()
        count = self._stream.read_into(self._buffer[self._stop : self._stop + self._block_bytes])
        self._stop += count
        self.ended = count < self._block_bytes

    def drop(self, size: int, lines: int) -> Position:
        """Move on by `size` bytes, in which `lines` physical lines ended; returns the position behind them.

        Views of `unread` that were taken before stay good until `fetch()`.
        """
        self._start += size
        self.offset += size
        self.line += lines
        return Position(self.name, self.offset, self.line)

    def go_on(self, position: Position) -> None:
        """Move on to a position of an earlier run, unless the reader is behind it already (a header lies before it).

        InputError if the stream ends before it.
        """
        if position.offset <= self.offset:
            return
        ahead = len(self.unread)
        if position.offset <= self.offset + ahead:
            self._start += position.offset - self.offset
        else:
            self._stream.skip(position.offset - self.offset - ahead)
            self._start = self._stop = 0
            self.fetch()
        self.offset, self.line = position.offset, position.line

    def check(self) -> None:
        """Raise the InputError of a broken stream; do nothing if it is sound."""
        if self._stream.failure is not None:
            raise self._stream.failure

    def _make_room(self) -> None:
        rest = self.unread
        if len(rest) + self._block_bytes > len(self._buffer):
            self._buffer = np.empty(len(rest) + 2 * self._block_bytes, np.uint8)
        self._buffer[: len(rest)] = rest
        self._start, self._stop = 0, len(rest)
