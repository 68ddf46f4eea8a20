"""Growing log files on disk: which files a name stands for, how far each was read, and reading them at any offset.

A Listing orders the files of a name, rotated ones first. A Record says how far a file was read; a file is recognized by
its inode, and if that changes (compressed, or copied and truncated) by the digest of the first bytes of its
uncompressed content. A plain file may grow and is read by its descriptor, even if renamed or unlinked; a compressed one
is assumed complete.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from model_store.errors import InputError
from trainer.formats.batch import HEAD_BYTES, sha256_of
from trainer.formats.streams import ByteStream, is_plain, matches

_PACKED = (".gz", ".zst")
_NUMBERED_DIGITS = 5
_ROTATED = re.compile(r"(?P<base>.+?)[.-](?P<mark>\d[\d_:T.-]*)")
_SKIPPED = (".tmp", ".part", ".swp", "~")
_TRIES = 10

_Key = tuple[str, int, int, str, bool]


@dataclass(frozen=True, slots=True)
class Entry:
    """An existing file, by `stat`."""

    path: str
    inode: int
    size: int
    mtime_ns: int


class Listing:
    """Lists the files of one name, which need not exist yet. For one thread.

    known: paths seen before. FILE may be missing while it is rotated, yet FILE.1 comes after FILE.2; but part.1 comes
    before part.2 if there never was a file `part`.
    """

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        self.name = name
        self._stems = {_stem(path) for path in known}
        self._before: list[tuple[str, int]] = []

    def entries(self) -> list[Entry] | None:
        """All files in order, including empty ones; None if they change too fast to be listed.

        A listing made while files are renamed may show one twice or not at all; so after a change the folder is listed
        until two listings agree.
        """
        entries = self._list()
        for _ in range(_TRIES):
            names = [(each.path, each.inode) for each in entries]
            if names == self._before:
                return entries
            self._before = names
            entries = self._list()
        return None

    def _list(self) -> list[Entry]:
        paths = list(self._paths())
        self._stems.update(map(_stem, paths))
        if self._is_one_file():
            self._stems.add(self.name)
        by_inode = {each.inode: each for each in map(_entry, paths) if each is not None}
        return sorted(by_inode.values(), key=lambda each: _key(each.path, self._stems))

    def _is_one_file(self) -> bool:
        return not glob.has_magic(self.name) and not os.path.isdir(self.name) and not self.name.endswith("/")

    def _paths(self) -> Iterator[str]:
        if glob.has_magic(self.name) and not os.path.lexists(self.name):
            found = matches(self.name)
        elif self._is_one_file():
            folder, base = os.path.split(self.name)
            found = (path if folder else os.path.basename(path) for path in _inside(folder or "."))
            found = (path for path in found if _is_rotated(os.path.basename(path), base))
        else:
            found = _inside(self.name)
        for path in found:
            name = os.path.basename(path)
            if not name.startswith(".") and not name.endswith(_SKIPPED):
                yield path


def without_rotation(path: str) -> str:
    """The original path of a rotated file, as far as its name tells."""
    match = _ROTATED.fullmatch(os.path.basename(_stem(path)))
    return path if match is None else match["base"]


def _inside(folder: str) -> Iterator[str]:
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        yield os.path.join(folder, name)


def _is_rotated(name: str, base: str) -> bool:
    """True for the name of a file and those rotated out of it."""
    stem = _stem(name)
    return base in (name, stem) or _rotated_from(stem, (base,)) is not None


def _entry(path: str) -> Entry | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    is_file = (found.st_mode & 0o170000) == 0o100000
    return Entry(path, found.st_ino, found.st_size, found.st_mtime_ns) if is_file else None


def _stem(path: str) -> str:
    stem, extension = os.path.splitext(path)
    return stem if extension in _PACKED else path


def _rotated_from(stem: str, bases: Sequence[str] | set[str]) -> re.Match[str] | None:
    """The match if the stem is one of `bases` followed by a number or a date."""
    match = _ROTATED.fullmatch(os.path.basename(stem))
    if match is None:
        return None
    return match if os.path.join(os.path.dirname(stem), match["base"]) in bases else None


def _key(path: str, stems: set[str]) -> _Key:
    stem = _stem(path)
    packed = stem != path
    match = _rotated_from(stem, stems)
    if match is None:
        return (stem, 2, 0, "", not packed)
    base = os.path.join(os.path.dirname(stem), match["base"])
    mark = match["mark"]
    if mark.isdigit() and len(mark) <= _NUMBERED_DIGITS:
        return (base, 1, -int(mark), "", packed)
    return (base, 0, 0, mark, packed)


_GLANCE_BYTES = 4096
_PERSISTENT = ("path", "inode", "head_bytes", "head_sha256", "first", "offset", "line", "size", "done")
_PATH, _OFFSET, _LINE = (_PERSISTENT.index(name) for name in ("path", "offset", "line"))


@dataclass(eq=False)
class Record:
    """One file, present or gone. offset: uncompressed bytes taken; line: 1-based, the line that starts there.

    head_sha256: of the first head_bytes bytes; first: a short digest of the first lines, by which similar files are
    found, "" while they are incomplete. size: bytes on disk, as last seen. done: the size of a compressed file when it
    was read to its end, else -1. The other members are not persisted.
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
    """The size of a plain file when only part of a line was left."""
    gone_since_s: float | None = None
    is_given_up: bool = False
    lost: int = 0
    _json: list[Any] | None = None

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name in _PERSISTENT:
            super().__setattr__("_json", None)

    def as_json(self) -> list[Any]:
        """The persistent part. Unchanged records return the same list, since positions of many files hold many."""
        if self._json is None:
            super().__setattr__("_json", [getattr(self, name) for name in _PERSISTENT])
        assert self._json is not None
        return self._json

    @classmethod
    def from_json(cls, values: list[Any]) -> Record:
        """The inverse of `as_json`."""
        record = cls(*values)
        record.is_packed = True if record.done >= 0 else None
        return record

    def look_at(self, head: bytes, whole: bytes, first: str) -> None:
        """Remember the file's start: the digest of its `whole` lines for good, and a few bytes to detect truncation."""
        if len(whole) > self.head_bytes:
            self.head_bytes, self.head_sha256, self.first = len(whole), sha256_of(whole), first
        self.glance = head[: min(self.head_bytes, _GLANCE_BYTES)]

    def begins_as_before(self, opened: Opened) -> bool:
        """False if the first bytes changed, so that bytes read at an offset are of other content."""
        return opened.is_packed or opened.read(0, len(self.glance)) == self.glance

    @property
    def has_unread(self) -> bool:
        """True if there may be bytes after `offset`."""
        if self.is_packed:
            return self.size != self.done
        return self.size > self.offset and self.size != self.stuck

    def close(self) -> None:
        """Close the file, if it is open."""
        if self.opened is not None:
            self.opened.close()
        self.opened = None


def moved_on(values: list[Any], offset: int, line: int) -> list[Any]:
    """A record's JSON with a later offset and line."""
    moved = list(values)
    moved[_OFFSET], moved[_LINE] = offset, line
    return moved


def path_of(values: list[Any]) -> str:
    """The path in a record's JSON."""
    return str(values[_PATH])


def whole_part(head: bytes, least_lines: int) -> bytes:
    """`head` up to its last line end; empty if it has fewer than `least_lines` lines."""
    return head[: head.rfind(b"\n") + 1] if first_lines(head, least_lines) else b""


def first_lines(head: bytes, count: int) -> str:
    """A short digest of the first lines; "" if incomplete. One line is enough for JSON lines, which have no header."""
    end = -1
    for _ in range(1 if head.startswith(b"{") else count):
        end = head.find(b"\n", end + 1)
        if end < 0:
            return ""
    return sha256_of(head[: end + 1])[:16]


_KIND_BYTES = 512


class PlainFile:
    """An open file that is not compressed, read by its descriptor. For one thread."""

    is_packed = False
    failure: InputError | None = None
    """Damage found after the bytes read."""

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd

    def head(self) -> bytes:
        """The first bytes, at most HEAD_BYTES."""
        return self.read(0, HEAD_BYTES)

    def read(self, offset: int, count: int) -> bytes:
        """At most `count` bytes from `offset` on; fewer at its current end, as it may grow or have been truncated."""
        try:
            return os.pread(self._fd, count, offset)
        except OSError as error:
            raise InputError(f"{self._path}: cannot be read at byte {offset:,}: {error.strerror}") from error

    @property
    def size(self) -> int:
        """Its current size, even if renamed or unlinked."""
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        """Close the descriptor. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


class PackedFile:
    """An open file in gzip or zstd, with the methods of a PlainFile; it does not grow.

    Reading backwards restarts at the beginning; one window is kept in memory.
    """

    is_packed = True

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd
        self._stream: ByteStream | None = None
        self._window = b""
        self._start = 0

    def head(self) -> bytes:
        """See PlainFile."""
        return self._opened().head

    def read(self, offset: int, count: int) -> bytes:
        """See PlainFile."""
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
            room = np.empty(count - len(self._window), np.uint8)
            self._window += room[: stream.read_into(room)].tobytes()
        return self._window[:count]

    @property
    def failure(self) -> InputError | None:
        """See PlainFile."""
        return None if self._stream is None else self._stream.failure

    def close(self) -> None:
        """See PlainFile."""
        self._forget()
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _forget(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream, self._window, self._start = None, b"", 0

    def _opened(self) -> ByteStream:
        if self._stream is None:
            os.lseek(self._fd, 0, os.SEEK_SET)
            self._stream = ByteStream(self._path, os.fdopen(os.dup(self._fd), "rb"))
        return self._stream


Opened = PlainFile | PackedFile

KEPT_OPEN = 16
"""Files kept open, so that reading continues if they are deleted."""


def open_file(path: str, inode: int) -> Opened | None:
    """The file at `path` if it still has this inode, else None. Raises InputError if it cannot be opened."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path}: cannot be opened: {error.strerror}") from error
    if os.fstat(fd).st_ino != inode:
        os.close(fd)
        return None
    return (PlainFile if is_plain(os.pread(fd, _KIND_BYTES, 0)) else PackedFile)(path, fd)
