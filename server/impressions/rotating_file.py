"""A file of lines that several processes append to, with a bounded size.

A full FILE becomes FILE.1, that one FILE.2, and so on; the oldest is deleted. Processes take turns by flock. A line is
whole or absent: if the disk is full, the file is truncated back, and a partial line left by a crash is ended first.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class RotatingFile:
    """Append-only. Thread safety: none; any number of processes."""

    def __init__(self, path: str | Path, max_bytes: int, kept: int, mode: int = 0o666) -> None:
        """Keeps `kept` full files beside the present one. mode: of a new file, before the umask. Raises OSError."""
        self._path = Path(path)
        self._mode = mode
        self._max_bytes = max_bytes
        self._kept = kept
        with self._open():
            pass

    def append(self, lines: bytes) -> None:
        """Add lines, each with its end: all or none. More than `max_bytes` get a file of their own. Raises OSError."""
        while not self._fits(lines):
            pass

    def _fits(self, lines: bytes) -> bool:
        """Write; or rename the full files and return False."""
        with self._open() as fd:
            size = os.fstat(fd).st_size
            if size and size + len(lines) >= self._max_bytes:
                self._rotate()
                return False
            whole = not size or os.pread(fd, 1, size - 1) == b"\n"
            _write_all_or_none(fd, size, lines if whole else b"\n" + lines)
            return True

    def _rotate(self) -> None:
        for number in range(self._kept, 1, -1):
            if (older := self._numbered(number - 1)).exists():
                older.replace(self._numbered(number))
        self._path.replace(self._numbered(1))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    @contextmanager
    def _open(self) -> Iterator[int]:
        """The file, locked; opened again each time, since another process may have renamed it."""
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, self._mode)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                if self._is_at_path(fd):
                    yield fd
                    return
            finally:
                os.close(fd)

    def _is_at_path(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(fd))
        except FileNotFoundError:
            return False


def _write_all_or_none(fd: int, size: int, lines: bytes) -> None:
    left = memoryview(lines)
    try:
        while left:
            left = left[os.write(fd, left) :]
    except OSError:
        os.ftruncate(fd, size)
        raise
