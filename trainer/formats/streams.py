"""Inputs as streams of decompressed bytes, and a Feed: a moving window over a stream, for readers of rows.

Compression is detected by the first bytes, not by the name, so a mislabelled file can still be read.
"""

from __future__ import annotations

import glob
import io
import os
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.errors import InputError
from trainer.formats.batch import HEAD_BYTES, STDIN, Position
from trainer.formats.cells_kernels import BLOCK

_STEP = 1024


def up_to_last_line_end(data: Bytes) -> Bytes:
    """The front of `data` that ends with its last line feed; empty if there is none."""
    step, stop = _STEP, len(data)
    while stop:
        start = max(stop - step, 0)
        found = data[start:stop].tobytes().rfind(b"\n")
        if found >= 0:
            return data[: start + found + 1]
        step, stop = 2 * step, start
    return data[:0]


_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_UNPACK = "unpack it first"
_TABLE = "write it as Parquet, or pass the table to ftrie in Python"
_OTHERS = (
    (rb"PK\x03\x04", "a zip archive", _UNPACK),
    (rb"7z\xbc\xaf", "a 7z archive", _UNPACK),
    (rb".{257}ustar", "a tar archive", _UNPACK),
    (rb"BZh[1-9]1AY&SY", "bzip2", _UNPACK),
    (rb"\xfd7zXZ", "xz", _UNPACK),
    (rb"\x04\x22\x4d\x18", "lz4", _UNPACK),
    (rb"\xff\x06\x00\x00sNaPpY", "Snappy", _UNPACK),
    (rb"Obj\x01", "Avro", _TABLE),
    (rb"ARROW1|\xff{4}[^\xff]", "Arrow or Feather", _TABLE),
    (rb"ORC.*\x00", "ORC", _TABLE),
    (rb"\x80[\x02-\x05]", "a pickle", _TABLE),
    (rb"SQLite format 3", "an SQLite database", _TABLE),
    (rb".{8}DUCK", "a DuckDB database", _TABLE),
    (rb"\x89HDF", "HDF5", _TABLE),
    (rb"\x93NUMPY", "a NumPy array", _TABLE),
    (rb"\xd0\xcf\x11\xe0", "an Excel workbook", _TABLE),
    (rb"%PDF", "PDF", _TABLE),
    (rb"\xff\xfe|\xfe\xff|[!-~]\x00[!-~]\x00", "UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8"),
    (rb"\s*<(?i:!doctype|html|\?xml)", "a page of HTML or XML", "the log may not be what was downloaded"),
)
_OTHER_KINDS = tuple((re.compile(start, re.DOTALL), kind, remedy) for start, kind, remedy in _OTHERS)
_PROMISED = {".gz": (_GZIP, "gzip"), ".zst": (_ZSTD, "zstd")}
_MAGIC_BYTES = 6
_PIECE_BYTES = 64 * 1024
_WHOLE = 1 << 62
_ALL_BLOCK_BYTES = 16 * 1024 * 1024
_SCRATCH_BYTES = 1024 * 1024

Bytes = npt.NDArray[np.uint8]


class ByteStream:
    """Reads one file, or standard input, decompressed. `consumed` may be read from another thread.

    head: the first bytes of the stream, up to HEAD_BYTES, which are still to be read. Raises InputError if the input
    cannot be opened or is of an unsupported kind, also inside gzip or zstd. Damage found later ends the stream and is
    kept in `failure`, so that the bytes before it are not lost.
    """

    def __init__(self, name: str, file: BinaryIO | None = None) -> None:
        """file: the open file, if `name` is open already; it is closed with the stream."""
        self.name = name
        self.failure: InputError | None = None
        self._file = _Rewound(name, file if file is not None else open_input(name))
        self._decoder = _decoder(name, self._file)
        # A decoder loses the piece in which it finds damage, so pieces are small; a plain file needs none.
        self._piece_bytes = _PIECE_BYTES if self._decoder is not self._file else _WHOLE
        self._ahead = np.empty(0, np.uint8)
        room = np.empty(HEAD_BYTES, np.uint8)
        self._ahead = room[: self.read_into(room)]
        self.head = self._ahead.tobytes()
        _refuse_unknown(name, self.head)

    @property
    def consumed(self) -> int:
        """Compressed bytes read so far."""
        return self._file.consumed

    @property
    def is_plain_file(self) -> bool:
        """True for an uncompressed file on disk, which can also be read by its name."""
        return self._decoder is self._file and self.name != STDIN

    @property
    def size(self) -> int:
        """Bytes of the file on disk; 0 for standard input."""
        return 0 if self.name == STDIN else Path(self.name).stat().st_size

    def read_into(self, buffer: Bytes) -> int:
        """Fill `buffer`, which must not be empty; returns the number of bytes, fewer at the end of the stream."""
        filled = min(len(self._ahead), len(buffer))
        buffer[:filled] = self._ahead[:filled]
        self._ahead = self._ahead[filled:]
        while filled < len(buffer) and self.failure is None:
            count = self._read_piece(buffer[filled : filled + self._piece_bytes])
            if count == 0:
                break
            filled += count
        return filled

    def read_all(self) -> bytes:
        """The rest of the stream, in memory. Raises InputError if it is damaged."""
        blocks = []
        while True:
            block = np.empty(_ALL_BLOCK_BYTES, np.uint8)
            count = self.read_into(block)
            blocks.append(block[:count])
            if count < len(block):
                break
        if self.failure is not None:
            raise self.failure
        return np.concatenate(blocks).tobytes()

    def skip(self, size: int) -> None:
        """Skip `size` bytes; seeks in a plain file. Raises InputError if there are fewer, or damage."""
        ahead = min(len(self._ahead), size)
        self._ahead = self._ahead[ahead:]
        size -= ahead
        if self.is_plain_file and self._file.seekable():
            size = self._file.pass_over(size)
        scratch = np.empty(min(size, _SCRATCH_BYTES), np.uint8)
        while size and (count := self.read_into(scratch[:size])):
            size -= count
        if size:
            raise self.failure or too_short(self.name)

    def report(self, consumed: int) -> None:
        """Set `consumed`, for a reader that reads the file by its name."""
        self._file.consumed = consumed

    def _read_piece(self, piece: Bytes) -> int:
        try:
            return self._decoder.readinto(piece.data)
        except (OSError, zlib.error, EOFError, pa.ArrowException) as error:
            self.failure = InputError(
                f"{self.name}: damaged or cut short, about {self.consumed:,} bytes into the file: {error}"
            )
            return 0

    def close(self) -> None:
        """Close the file; `consumed` stays."""
        self._file.close()


class _Decoder(Protocol):
    def readinto(self, buffer: memoryview, /) -> int: ...


class _Rewound:
    """A binary file whose first bytes were inspected and are returned again."""

    def __init__(self, name: str, file: BinaryIO) -> None:
        self._file = file
        self._keep_open = name == STDIN
        self.head = b""  # a pipe may bring the bytes one by one
        while len(self.head) < _MAGIC_BYTES and (more := file.read(_MAGIC_BYTES - len(self.head))):
            self.head += more
        self._ahead = self.head
        self.consumed = 0
        self.closed = False

    def read(self, size: int) -> bytes:
        if self._ahead:
            data, self._ahead = self._ahead[:size], self._ahead[size:]
        else:
            data = self._file.read(size) or b""
        self.consumed += len(data)
        return data

    def readinto(self, buffer: memoryview, /) -> int:
        if self._ahead:
            data = self.read(len(buffer))
            buffer[: len(data)] = data
            return len(data)
        count: int = self._file.readinto(buffer) or 0  # type: ignore[attr-defined]
        self.consumed += count
        return count

    def seekable(self) -> bool:
        return self._file.seekable()

    def pass_over(self, size: int) -> int:
        """Skip `size` bytes unread; returns how many of them are beyond the end of the file."""
        end = self._file.seek(0, os.SEEK_END)
        target = min(self.consumed + size, end)
        missing = self.consumed + size - target
        self._file.seek(target)
        self._ahead, self.consumed = b"", target
        return missing

    def close(self) -> None:
        self.closed = True
        if not self._keep_open:
            self._file.close()


class _Gzip:
    """Decodes gzip of one or many members. Unlike Arrow's decoder it loses nothing before a cut-off end."""

    def __init__(self, file: _Rewound) -> None:
        self._file = file
        self._member = zlib.decompressobj(wbits=31)
        self._waiting = b""

    def readinto(self, buffer: memoryview, /) -> int:
        while True:
            if not self._waiting and not self._more():
                return 0
            data = self._member.decompress(self._waiting, len(buffer))
            self._waiting = b"" if self._member.eof else self._member.unconsumed_tail
            if data:
                buffer[: len(data)] = data
                return len(data)

    def _more(self) -> bool:
        if self._member.eof:
            # Some writers pad the end of the file with zero bytes.
            self._waiting = self._member.unused_data.lstrip(b"\0")
            self._waiting = self._waiting or self._file.read(_PIECE_BYTES).lstrip(b"\0")
            if self._waiting:
                self._member = zlib.decompressobj(wbits=31)
            return bool(self._waiting)
        self._waiting = self._file.read(_PIECE_BYTES)
        if not self._waiting:
            raise EOFError("the gzip data is cut short")
        return True


def too_short(name: str) -> InputError:
    """The error of a log that ends before the position where reading should continue."""
    return InputError(
        f"{name} is shorter than what was read of it before; was it cut back? "
        "Start over with another folder of checkpoints, or restore the file"
    )


def open_input(name: str) -> BinaryIO:
    """Open a file, or standard input. Raises InputError."""
    if name == STDIN:
        # Not through the buffer: its lock, held by a waiting thread, would keep the process from exiting.
        raw: BinaryIO = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
        return raw
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise InputError(f"{name}: cannot be opened: {error.strerror}") from error


def matches(pattern: str) -> Iterator[str]:
    """The paths that a glob stands for. `**` enters each folder once, as a link may lead back to one above it."""
    parts = re.split(r"(?:^|(?<=/))\*\*(?:/|$)", pattern, maxsplit=1)
    if len(parts) == 1:
        yield from glob.glob(pattern)
        return
    top, rest = parts
    for root in glob.glob(top) if top else [""]:
        entered: set[tuple[int, int]] = set()
        for folder, inner, _ in os.walk(root or ".", followlinks=True):
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in entered:
                inner.clear()
                continue
            entered.add((status.st_dev, status.st_ino))
            visible = sorted(name for name in inner if not name.startswith("."))
            inner[:] = sorted(visible, key=lambda name: os.path.islink(os.path.join(folder, name)))
            yield from matches(os.path.join(glob.escape(folder if root else folder[2:]), rest or "*"))


def is_pipe(name: str) -> bool:
    """True for standard input, and for what has a name and can be read only once: a FIFO, a process substitution."""
    return name == STDIN or (os.path.exists(name) and not (os.path.isfile(name) or os.path.isdir(name)))


class ReadTwice:
    """Opens inputs for two readers, one after the other.

    Of standard input and pipes, which can be read only once, the bytes that the first takes are kept for the second.
    """

    def __init__(self) -> None:
        self._kept: dict[str, _KeptBytes] = {}

    def open(self, name: str) -> BinaryIO:
        """Open an input, for the first or the second reader. Raises InputError."""
        if not is_pipe(name):
            return open_input(name)
        if name in self._kept:
            self._kept[name].begin_again()
        else:
            self._kept[name] = _KeptBytes(open_input(name))
        return cast(BinaryIO, self._kept[name])


class _KeptBytes(io.RawIOBase):
    """A file that keeps what is read of it, until `begin_again`. `close` leaves it open before that."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._taken: list[bytes] | None = []
        self._ahead = memoryview(b"")

    def begin_again(self) -> None:
        """Return the bytes again that were read, then those that follow."""
        self._ahead, self._taken = memoryview(b"".join(self._taken or [])), None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        data = self._ahead[: len(buffer)] or memoryview(self._file.read(len(buffer)) or b"")
        self._ahead = self._ahead[len(data) :]
        if self._taken is not None:
            self._taken.append(bytes(data))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if self._taken is None:
            self._file.close()
            super().close()


def _decoder(name: str, file: _Rewound) -> _Decoder:
    _refuse_unknown(name, file.head)
    magic, kind = _PROMISED.get(Path(name).suffix.lower(), (b"", ""))
    if file.head and not file.head.startswith(magic):
        raise InputError(f"{name} is not {kind}, as its name says: it begins with {file.head!r}")
    if file.head.startswith(_GZIP):
        return _Gzip(file)
    if file.head.startswith(_ZSTD):
        decoder: _Decoder = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")
        return decoder
    return file


def _refuse_unknown(name: str, head: bytes) -> None:
    for start, kind, remedy in _OTHER_KINDS:
        if start.match(head):
            raise InputError(
                f"{name} is {kind}; expected CSV, TSV, JSON lines, Parquet, Vowpal Wabbit, libsvm or libffm text, "
                f"plain or in gzip or zstd: {remedy}"
            )


def is_plain(head: bytes) -> bool:
    """True if a file that starts so is neither compressed nor of a kind that a ByteStream refuses."""
    return not head.startswith((_GZIP, _ZSTD)) and not any(each.match(head) for each, *_ in _OTHER_KINDS)


MAX_ROW_BYTES = 64 * 1024 * 1024
PADDING = 2 * BLOCK
BOM = b"\xef\xbb\xbf"


class Share:
    """Which blocks of whole rows a reader parses where several readers share a log: each takes every `of`-th block.

    The blocks are those that a reader of all makes batches of, in all files; all readers count the same ones.
    """

    def __init__(self, number: int = 0, of: int = 1) -> None:
        """number: of this reader, from 0."""
        self.of = of
        self._number = number
        self._block = 0

    @property
    def mine(self) -> bool:
        """Whether this reader parses the next block."""
        return self._block % self.of == self._number

    def count_block(self) -> None:
        """A block was parsed or skipped."""
        self._block += 1


ALL = Share()


class Feed:
    """A window that moves over a stream.

    `unread` starts where the reader left off, at physical line `line`, `offset` bytes into the stream. `ended`: no
    bytes follow `unread`. If the stream broke, `final` is False and `check()` raises the error, so that whole rows
    before the damage can be delivered first. Views of `unread` stay valid, as each `fetch()` fills another buffer.
    """

    def __init__(self, stream: ByteStream, block_bytes: int) -> None:
        self.name = stream.name
        self.line = 1
        self.offset = 0
        self.ended = False
        self._stream = stream
        self._block_bytes = block_bytes
        self._buffer = np.empty(0, np.uint8)
        self._start = 0
        self._stop = 0
        self.fetch()
        if self.unread[:3].tobytes() == BOM:
            self.drop(3, 0)

    @property
    def head(self) -> bytes:
        """The first bytes of the stream, up to HEAD_BYTES."""
        return self._stream.head

    @property
    def unread(self) -> Bytes:
        """uint8 view of the bytes read ahead."""
        return self._buffer[self._start : self._stop]

    @property
    def room(self) -> Bytes:
        """uint8 view of `unread` and of what follows it in memory: at least PADDING bytes, which may be written."""
        return self._buffer[self._start :]

    @property
    def final(self) -> bool:
        """True if `unread` is the rest of an intact stream, so that its last line may lack a line end."""
        return self.ended and self._stream.failure is None

    @property
    def full(self) -> bool:
        """True if `unread` is as long as one row may be."""
        return self._stop - self._start >= MAX_ROW_BYTES

    def fetch(self) -> None:
        """Read about one more block. Raises InputError if `unread` is already as long as a row may be."""
        if self.full:
            raise InputError(
                f"{self.name}:{self.line}: a row longer than {MAX_ROW_BYTES >> 20} MiB begins here; "
                "is this a log with one row a line?"
            )
        rest = self.unread
        self._buffer = np.empty(len(rest) + self._block_bytes + PADDING, np.uint8)
        self._buffer[: len(rest)] = rest
        self._start, self._stop = 0, len(rest)
        count = self._stream.read_into(self._buffer[self._stop : self._stop + self._block_bytes])
        self._stop += count
        self.ended = count < self._block_bytes

    def drop(self, size: int, lines: int) -> Position:
        """Advance by `size` bytes with `lines` line ends; returns the position after them."""
        self._start += size
        self.offset += size
        self.line += lines
        return Position(self.name, self.offset, self.line)

    def whole_lines(self) -> Bytes:
        """The front of `unread` up to its last line end; all of it at the end of an intact stream."""
        return self.unread if self.final else up_to_last_line_end(self.unread)

    def first_lines(self) -> Bytes:
        """Whole lines, read if there are none yet; empty for a stream without any."""
        while not self.whole_lines().size and not self.ended:
            self.fetch()
        return self.whole_lines()

    def blocks(self, share: Share = ALL) -> Iterator[Bytes]:
        """The blocks of whole lines of this share, each to be dropped before the next. The others are skipped.

        Raises InputError where the stream is damaged, after the blocks before.
        """
        while True:
            data = self.whole_lines()
            if data.size:
                if share.mine:
                    yield data
                else:
                    self.drop(data.size, int(np.count_nonzero(data == ord("\n"))))
                share.count_block()
            elif self.ended:
                break
            else:
                self.fetch()
        self.check()

    def go_on(self, position: Position) -> None:
        """Advance to a position of an earlier run, unless already past it (after a header).

        Raises InputError if the stream ends before it.
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
        """Raise the InputError of a broken stream."""
        if self._stream.failure is not None:
            raise self._stream.failure


class Window(Feed):
    """A part of a file, in memory, as a feed: `data` begins at `offset` of the file, on `line`.

    Not `final` while the file may grow (`is_all`: nothing follows): its last row may be incomplete.
    """

    def __init__(self, name: str, data: bytes, is_all: bool, offset: int = 0, line: int = 1) -> None:
        self.name, self.offset, self.line, self.ended = name, offset, line, True
        self._head, self._is_all = data[:HEAD_BYTES], is_all
        self._start, self._stop = 0, len(data)
        self._buffer = np.empty(len(data) + PADDING, np.uint8)
        self._buffer[: len(data)] = np.frombuffer(data, np.uint8)
        if not offset and data.startswith(BOM):  # inside a file it is none
            self.drop(len(BOM), 0)

    @property
    def head(self) -> bytes:
        """See Feed."""
        return self._head

    @property
    def final(self) -> bool:
        """See Feed."""
        return self._is_all

    def check(self) -> None:
        """Nothing: no stream can break."""
