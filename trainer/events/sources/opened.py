"""One file that is open, read at any offset of its uncompressed bytes. Which files there are is known elsewhere.

A plain file may grow, and is read by its descriptor, so that it can be moved or deleted meanwhile. A compressed one is
taken to be closed: whoever compresses a log has done with it.
"""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np

from model_store.errors import InputError
from trainer.sources.positions import HEAD_BYTES
from trainer.sources.streams import ByteStream

_MAGIC = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"BZh", b"\xfd7zXZ")


class Opened(Protocol):
    """An open file. One thread only."""

    is_packed: bool
    """Compressed: it does not grow."""

    def head(self) -> bytes:
        """Its first bytes, at most HEAD_BYTES."""

    def read(self, offset: int, count: int) -> bytes:
        """At most `count` bytes from `offset` on; fewer at the end there is now, or before damage."""

    @property
    def failure(self) -> InputError | None:
        """The damage that was met, behind what was read."""

    def close(self) -> None:
        """Give the descriptor back. May be called twice."""


def open_file(path: str, inode: int) -> Opened | None:
    """The file at `path` if it is still the one of this inode, else None. InputError if it may not be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path}: cannot be opened: {error.strerror}") from error
    if os.fstat(fd).st_ino != inode:
        os.close(fd)
        return None
    return (PackedFile if os.pread(fd, 6, 0).startswith(_MAGIC) else PlainFile)(path, fd)


class PlainFile:
    """An uncompressed file, by its descriptor."""

    is_packed = False
    failure = None

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd

    def head(self) -> bytes:
        """See Opened."""
        return self.read(0, HEAD_BYTES)

    def read(self, offset: int, count: int) -> bytes:
        """See Opened. Reads what is there, not what was: the file may have been cut back meanwhile."""
        try:
            return os.pread(self._fd, count, offset)
        except OSError as error:
            raise InputError(f"{self._path}: cannot be read at byte {offset:,}: {error.strerror}") from error

    @property
    def size(self) -> int:
        """Bytes it has now, wherever it lies and be it deleted."""
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        """See Opened."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


class PackedFile:
    """A file in gzip or zstd; reading backwards begins anew. Kept in memory: one window of what was read."""

    is_packed = True

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd
        self._stream: ByteStream | None = None
        self._window = b""
        self._start = 0

    def head(self) -> bytes:
        """See Opened."""
        return self._opened().head

    def read(self, offset: int, count: int) -> bytes:
        """See Opened."""
        stream = self._opened()
        if offset < self._start:
            self._forget()
            stream = self._opened()
        end = self._start + len(self._window)
        if offset > end:
            self._window, self._start = b"", end
            stream.skip(offset - end)
        self._window = self._window[max(0, offset - self._start) :]
        self._start = offset
        if len(self._window) < count:
            self._window += self._more(stream, count - len(self._window))
        return self._window[:count]

    @property
    def failure(self) -> InputError | None:
        """See Opened."""
        return None if self._stream is None else self._stream.failure

    def close(self) -> None:
        """See Opened."""
        self._forget()
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _forget(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream, self._window, self._start = None, b"", 0

    def _more(self, stream: ByteStream, count: int) -> bytes:
        room = np.empty(count, np.uint8)
        return room[: stream.read_into(room)].tobytes()

    def _opened(self) -> ByteStream:
        if self._stream is None:
            os.lseek(self._fd, 0, os.SEEK_SET)
            self._stream = ByteStream(self._path, os.fdopen(os.dup(self._fd), "rb"))
        return self._stream
