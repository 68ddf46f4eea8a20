"""How far each file was read, and how a file is known again whatever it is called. Opens nothing.

A file is known by its inode, and where that changed (it was compressed, or copied and cut back) by the digest of the
first bytes of its uncompressed content.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from model_store.errors import InputError
from trainer.logs.file_listing import Entry
from trainer.logs.positions import HEAD_BYTES
from trainer.logs.streams import ByteStream

_GLANCE_BYTES = 4096
_PERSISTENT = ("path", "inode", "head_bytes", "head_sha256", "first", "offset", "line", "size", "done")
_PATH, _OFFSET, _LINE = (_PERSISTENT.index(name) for name in ("path", "offset", "line"))


@dataclass(eq=False)
class Record:
    """One file, present or gone. offset: uncompressed bytes taken; line: 1-based, the one that begins there.

    head_sha256 is that of the first head_bytes bytes; first, by which files that may be alike are found, is the
    beginning of that of the first lines alone, "" where they are not ended. size: bytes on disk, as last seen. done: of
    a compressed file, its size when it was read to its end, else -1. The rest is of this run alone.
    """

    path: str
    inode: int
    head_bytes: int
    head_sha256: str
    first: str
    offset: int = 0
    line: int = 1
    size: int = 0
    done: int = -1
    entry: Entry | None = None
    checked: Entry | None = None
    opened: Opened | None = None
    is_packed: bool | None = None
    glance: bytes = b""
    stuck: int = -1
    """Of a plain file: its size when only a part of a line was left."""
    gone_since_s: float | None = None
    is_given_up: bool = False
    lost: int = 0
    _json: list[Any] | None = None

    @classmethod
    def new(cls, entry: Entry, head: bytes, first: str) -> Record:
        """A file met for the first time."""
        return cls(entry.path, entry.inode, len(head), digest(head), first, size=entry.size)

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name in _PERSISTENT:
            super().__setattr__("_json", None)

    def as_json(self) -> list[Any]:
        """The persistent part; the same list as long as it is the same, since places of many files are many."""
        if self._json is None:
            super().__setattr__("_json", [getattr(self, name) for name in _PERSISTENT])
        assert self._json is not None
        return self._json

    @classmethod
    def from_json(cls, values: list[Any]) -> Record:
        """The opposite of `as_json`."""
        record = cls(*values)
        record.is_packed = True if record.done >= 0 else None
        return record

    def is_in(self, head: bytes) -> bool:
        """True if content that begins with `head` is this file's."""
        return len(head) >= self.head_bytes and digest(head[: self.head_bytes]) == self.head_sha256

    def look_at(self, head: bytes, whole: bytes, first: str) -> None:
        """Remember the beginning: `whole`, the lines of it that are ended, for ever; a glance of it to see cuts."""
        if len(whole) > self.head_bytes:
            self.head_bytes, self.head_sha256, self.first = len(whole), digest(whole), first
        self.glance = head[: min(self.head_bytes, _GLANCE_BYTES)]

    def begins_as_before(self, opened: Opened) -> bool:
        """False if the first bytes changed, so that what was read from an offset is of other content."""
        return opened.is_packed or opened.read(0, len(self.glance)) == self.glance

    @property
    def has_unread(self) -> bool:
        """True if there may be something behind `offset`."""
        if self.is_packed:
            return self.size != self.done
        return self.size > self.offset and self.size != self.stuck

    def close(self) -> None:
        """Close the file, if it is open."""
        if self.opened is not None:
            self.opened.close()
        self.opened = None


def moved_on(values: list[Any], offset: int, line: int) -> list[Any]:
    """What `as_json` gave, of the same file read farther."""
    moved = list(values)
    moved[_OFFSET], moved[_LINE] = offset, line
    return moved


def path_of(values: list[Any]) -> str:
    """The file's path in what `as_json` gave."""
    return str(values[_PATH])


def digest(head: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(head).hexdigest()


def whole_part(head: bytes, least_lines: int) -> bytes:
    """The front of `head` that ends with a line end; empty if it has fewer than `least_lines` lines."""
    return head[: head.rfind(b"\n") + 1] if first_lines(head, least_lines) else b""


def first_lines(head: bytes, count: int) -> str:
    """A short digest of the first lines; "" if they are not ended. Of JSON lines one is enough: none is a header."""
    end = -1
    for _ in range(1 if head.startswith(b"{") else count):
        end = head.find(b"\n", end + 1)
        if end < 0:
            return ""
    return digest(head[: end + 1])[:16]


def begin_alike(records: Sequence[Record], head: bytes) -> list[Record]:
    """The records of files that begin with the same content; one digest for each length of a beginning."""
    sizes = {each.head_bytes for each in records}
    digests = {size: digest(head[:size]) for size in sizes if size <= len(head)}
    return [each for each in records if digests.get(each.head_bytes) == each.head_sha256]


# --- One file that is open, read at any offset of its uncompressed bytes. Which files there are is known
# elsewhere ---
#
# A plain file may grow, and is read by its descriptor, so that it can be moved or deleted meanwhile. A
# compressed one is taken to be closed: whoever compresses a log has done with it.


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


# --- Files that are held open, the last few; and what is wrong with those that cannot be read, said once ---


KEPT_OPEN = 16
"""Files that stay open, so that what is read, or next, can be read on when it is deleted."""


class Handles:
    """Opens files for records. One thread only."""

    def __init__(self, on_note: Callable[[str], None]) -> None:
        self._on_note = on_note
        self._held: list[Record] = []
        self._faults: dict[int, Entry] = {}

    def open(self, entry: Entry) -> Opened | None:
        """The file, if it is still there; None, and said once, if it cannot be opened."""
        try:
            return open_file(entry.path, entry.inode)
        except InputError as error:
            self.report(entry, error)
            return None

    def hold(self, record: Record, opened: Opened) -> None:
        """Keep a record's file open until enough others have been opened."""
        record.opened, record.is_packed = opened, opened.is_packed
        self._held = [each for each in self._held if each is not record] + [record]
        for each in self._held[:-KEPT_OPEN]:
            each.close()
        del self._held[:-KEPT_OPEN]

    def head(self, opened: Opened, entry: Entry) -> bytes:
        """The first bytes; none, and said once, of a file of a kind that is not read."""
        try:
            return opened.head()
        except InputError as error:
            self.report(entry, error)
            return b""

    def is_faulty(self, entry: Entry) -> bool:
        """True if it was said that the file, as it is now, cannot be read."""
        return self._faults.get(entry.inode) == entry

    def report(self, entry: Entry, error: InputError) -> None:
        """Say what is wrong with a file; once as long as it stays as it is."""
        if not self.is_faulty(entry):
            self._faults[entry.inode] = entry
            self._on_note(f"{error}; passed over until it changes")
