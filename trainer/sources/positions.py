"""Where reading stands in a log, and how a file that was read before is known again. Opens nothing itself.

A position is told in the uncompressed stream, so that it holds however the file is compressed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from trainer.sources.inputs import STDIN

HEAD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two rows of one file.

    `offset`: bytes of the uncompressed stream before it, or rows of a Parquet file. `line`: the 1-based physical line
    that begins there (Parquet: row). Rows and rejects of lines before `first_line` are passed over: a batch that was
    cut inside has no offset of its own there, so its position is the one before it, `until` the first row left over.
    `file` is the name as it was given, `number` its place among the reader's files (the same file may be read twice).
    """

    file: str
    offset: int = 0
    line: int = 1
    first_line: int = 0
    number: int = 0

    def until(self, line: int) -> Position:
        """The place of the row on `line`, to be found by reading from this position on."""
        return replace(self, first_line=line)


@dataclass(frozen=True, slots=True)
class ReadFile:
    """How far one file was read.

    `path` is absolute. `head_sha256` is that of the first `head_bytes` bytes of the uncompressed stream (at most
    HEAD_BYTES; fewer if there were no more then): a file of the same path and head is the same file, perhaps grown.
    `disk_bytes` is the size on disk of a file read to its end, else None: at that size it has nothing new.
    """

    path: str
    position: Position
    head_sha256: str
    head_bytes: int
    disk_bytes: int | None = None

    def begins(self, head: bytes) -> bool:
        """True if a stream that begins with `head` is the one that was read."""
        return len(head) >= self.head_bytes and _sha256(head[: self.head_bytes]) == self.head_sha256


class Bookmarks:
    """What was read of each of a reader's files, by earlier runs (`read`) and by this one.

    The reader calls `begin` and `end` for one file after another; `until` may be called from another thread. `on_note`
    is told of files that may not be what they seem.
    """

    def __init__(
        self, files: Sequence[str], read: Sequence[ReadFile], on_note: Callable[[str], None]
    ) -> None:
        self._files = tuple(files)
        self._on_note = on_note
        self._earlier, self._elsewhere = _matched(files, read)
        self._now: list[ReadFile | None] = [None] * len(self._files)

    def begin(self, number: int, head: bytes) -> ReadFile:
        """What was read of this file, known by the `head` of its stream; nothing of a new one."""
        start = Position(self._files[number], number=number)
        found = ReadFile(path_of(start.file), start, _sha256(head), len(head))
        earlier = self._earlier[number]
        if earlier is None:
            self._warn_of_copies(found)
        elif earlier.begins(head):
            position = replace(earlier.position, file=start.file, number=number)
            found = replace(found, position=position, disk_bytes=earlier.disk_bytes)
        else:
            self._on_note(
                f"{start.file} begins otherwise than when it was read before: read whole, as a new file"
            )
        self._now[number] = found
        return found

    def end(self, stop: Position, disk_bytes: int) -> None:
        """A file has been read to its end."""
        read = self._now[stop.number]
        assert read is not None
        self._now[stop.number] = replace(read, position=stop, disk_bytes=disk_bytes)

    def until(self, stop: Position | None) -> tuple[ReadFile, ...]:
        """What has been read of every file once the rows up to `stop` are learned from; None: once all are.

        A file that only earlier runs have read stands in it as they left it.
        """
        if stop is None:
            read = self._now
        else:
            current = self._now[stop.number]
            assert current is not None
            ahead = self._earlier[stop.number + 1 :]
            read = [*self._now[: stop.number], replace(current, position=stop, disk_bytes=None), *ahead]
        return (*self._elsewhere, *(each for each in read if each is not None))

    def unfinished(self) -> list[str]:
        """The files that earlier runs have read in part and that are not read on now."""
        return [each.position.file for each in self._elsewhere if each.disk_bytes is None]

    def _warn_of_copies(self, found: ReadFile) -> None:
        for each in (*self._elsewhere, *filter(None, self._earlier)):
            same = (each.head_sha256, each.head_bytes) == (found.head_sha256, found.head_bytes)
            if same and each.position.offset and each.path != found.path:
                self._on_note(
                    f"{found.position.file} begins like {each.path}, which was read before: read whole, as another file"
                )
                return


def path_of(name: str) -> str:
    """The absolute path of an input; standard input is `-`."""
    return name if name == STDIN else os.path.abspath(name)


def _matched(files: Sequence[str], read: Sequence[ReadFile]) -> tuple[list[ReadFile | None], list[ReadFile]]:
    """For each of `files` what was read of it, by path and in order; and what was read of files not among them."""
    left = list(read)
    found: list[ReadFile | None] = []
    for path in map(path_of, files):
        each = next((one for one in left if one.path == path), None)
        if each is not None:
            left.remove(each)
        found.append(each)
    return found, left


def _sha256(head: bytes) -> str:
    return hashlib.sha256(head).hexdigest()
