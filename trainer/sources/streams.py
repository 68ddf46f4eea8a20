"""Opens one input as a stream of decompressed bytes, and counts the compressed bytes that were read.

Compression is known by the first bytes, never by the name, so a mislabelled file still reads.
"""

from __future__ import annotations

import os
import sys
import zlib
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.errors import InputError
from trainer.sources.inputs import STDIN
from trainer.sources.positions import HEAD_BYTES

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_OTHERS = {b"PK\x03\x04": "a zip archive", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"Obj\x01": "Avro"}
_PROMISED = {".gz": (_GZIP, "gzip"), ".zst": (_ZSTD, "zstd")}
_MAGIC_BYTES = 6
_PIECE_BYTES = 64 * 1024
_WHOLE = 1 << 62
_ALL_BLOCK_BYTES = 16 * 1024 * 1024
_SCRATCH_BYTES = 1024 * 1024

Bytes = npt.NDArray[np.uint8]


class ByteStream:
    """Reads one file, or standard input, decompressed. `consumed` may be asked from another thread.

    `head` is the beginning of the stream, up to HEAD_BYTES, which is looked at and still to be read.

    Raises InputError, naming the input, where it cannot be opened or is of a kind not read here. Damage met
    later ends the stream and stands in `failure`, so that what came before it is not lost.
    """

    def __init__(self, name: str, file: BinaryIO | None = None) -> None:
        """`file`: what lies at `name`, if it is open already; it is closed with the stream."""
        self.name = name
        self.failure: InputError | None = None
        self._file = _Rewound(name, file if file is not None else _open(name))
        self._decoder = _decoder(name, self._file)
        # A decoder loses the piece in which it meets damage, so pieces are small; a plain file needs none.
        self._piece_bytes = _PIECE_BYTES if self._decoder is not self._file else _WHOLE
        self._ahead = np.empty(0, np.uint8)
        self.head = self._read_head()

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
        """Fill `buffer`, which must not be empty, as far as the stream goes; fewer bytes mean its end."""
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
        """The rest of the stream, in memory. Raises the InputError of a damaged one."""
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
        """Pass over `size` bytes; a plain file is not read for that. InputError if there are fewer, or damage."""
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

    def _read_head(self) -> bytes:
        room = np.empty(HEAD_BYTES, np.uint8)
        self._ahead = room[: self.read_into(room)]
        return self._ahead.tobytes()

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
    """A binary file whose first bytes have been looked at and are given out once more."""

    def __init__(self, name: str, file: BinaryIO) -> None:
        self._file = file
        self._keep_open = name == STDIN
        self.head = _first_bytes(file)
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
        """Pass over `size` bytes unread; returns how many of them the file is too short for."""
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
    """The error of a log that ends before the place where reading should go on."""
    return InputError(
        f"{name} is shorter than what was read of it before; was it cut back? "
        "Begin anew with another folder of checkpoints, or restore the file"
    )


def _first_bytes(file: BinaryIO) -> bytes:
    """Up to _MAGIC_BYTES; a pipe may bring them one by one."""
    head = b""
    while len(head) < _MAGIC_BYTES and (more := file.read(_MAGIC_BYTES - len(head))):
        head += more
    return head


def _open(name: str) -> BinaryIO:
    if name == STDIN:
        # Not through its buffer, which is locked while a thread waits in it, and then keeps the process from ending.
        raw: BinaryIO = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
        return raw
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise InputError(f"{name}: cannot be opened: {error.strerror}") from error


def _decoder(name: str, file: _Rewound) -> _Decoder:
    _refuse_unknown(name, file.head)
    if file.head.startswith(_GZIP):
        return _Gzip(file)
    if file.head.startswith(_ZSTD):
        decoder: _Decoder = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")
        return decoder
    return file


def _refuse_unknown(name: str, head: bytes) -> None:
    for magic, kind in _OTHERS.items():
        if head.startswith(magic):
            raise InputError(
                f"{name} is {kind}; expected CSV, TSV, JSON lines, Parquet, Vowpal Wabbit, libsvm or libffm text, "
                "plain or in gzip or zstd"
            )
    magic, kind = _PROMISED.get(Path(name).suffix.lower(), (b"", ""))
    if head and not head.startswith(magic):
        raise InputError(f"{name} is not {kind}, as its name says: it begins with {head!r}")
