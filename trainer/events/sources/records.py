"""How far each file was read, and how a file is known again whatever it is called. Opens nothing.

A file is known by its inode, and where that changed (it was compressed, or copied and cut back) by the digest of the
first bytes of its uncompressed content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainer.events.sources.listing import Entry
from trainer.events.sources.opened import Opened

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
