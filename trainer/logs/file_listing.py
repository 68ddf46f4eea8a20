"""Which files a name stands for, in the order in which they are read. Opens none of them.

A name is a file with what was rotated out of it, a folder, or a glob. Files are in the order of their names; those
rotated out of FILE come before it, oldest first: FILE-20260131, FILE.2.gz, FILE.1, FILE.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

_PACKED = (".gz", ".zst")
_NUMBERED_DIGITS = 5
_ROTATED = re.compile(r"(?P<base>.+?)[.-](?P<mark>\d[\d_:T.-]*)")
_PASSED_OVER = (".tmp", ".part", ".swp", "~")
_TRIES = 10

_Key = tuple[str, int, int, str, bool]


@dataclass(frozen=True, slots=True)
class Entry:
    """A file that is there: what `stat` says of it."""

    path: str
    inode: int
    size: int
    mtime_ns: int


class Listing:
    """Lists the files of one name, which need not be there yet. One thread only.

    known: paths that were there before. FILE may be missing just when it is rotated; FILE.1 comes after FILE.2 all the
    same, but part.1, where there never was a part, before part.2.
    """

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        self.name = name
        self._stems = {_stem(path) for path in known}
        self._before: list[tuple[str, int]] = []

    def entries(self) -> list[Entry] | None:
        """Every file there is, in order, empty ones too; None if they move on too fast to be seen.

        A folder that is listed while files in it are renamed may show one twice or not at all; so where anything has
        moved since the last time, it is listed until two listings agree.
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
            found: Iterator[str] = iter(glob.glob(self.name, recursive=True))
        elif self._is_one_file():
            folder, base = os.path.split(self.name)
            found = (path for path in _inside(folder or ".") if _belongs(os.path.basename(path), base))
            found = (path if folder else os.path.basename(path) for path in found)
        else:
            found = _inside(self.name)
        for path in found:
            name = os.path.basename(path)
            if not name.startswith(".") and not name.endswith(_PASSED_OVER):
                yield path


def without_rotation(path: str) -> str:
    """The path that a rotated file had at first, as far as its name tells."""
    match = _ROTATED.fullmatch(os.path.basename(_stem(path)))
    return path if match is None else match["base"]


def _inside(folder: str) -> Iterator[str]:
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        yield os.path.join(folder, name)


def _belongs(name: str, base: str) -> bool:
    stem = _stem(name)
    return name == base or stem == base or _rotated_from(stem, (base,)) is not None


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
    """The match if the stem is one of `bases` with a number or a date behind it."""
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
