"""Atomic writes: a reader sees a file whole or not at all, also after a crash.

The bytes go to a temporary file beside it, which is synced and renamed; then the folder is synced.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from model_store.errors import OutputError


def write_whole(path: Path, data: bytes | memoryview) -> None:
    """Write a file atomically; on failure the old one stays. Raises OutputError.

    A symbolic link is followed: its target is replaced. A device or a pipe is written to, never replaced.
    """
    try:
        if _is_special(path):
            path.write_bytes(data)
            return
        with whole_file(path.resolve()) as file:
            file.write(data)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from error


@contextmanager
def whole_file(path: Path, temporary: Path | None = None) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` when the block ends, and is deleted if it raises. Raises OSError.

    temporary: its name until then, in the same folder; for callers that delete what a killed process left.
    """
    temporary = temporary or path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def check_writable(path: Path) -> None:
    """Raise OutputError if `write_whole` is certain to fail; call it before long work."""
    target = path.resolve()
    if _is_special(path):
        return
    if target.is_dir():
        reason = errno.EISDIR
    elif not target.parent.is_dir():
        reason = errno.ENOENT
    elif not os.access(target.parent, os.W_OK):
        reason = errno.EACCES
    else:
        return
    raise OutputError(f"cannot write {path}: {os.strerror(reason)}")


def _is_special(path: Path) -> bool:
    return path.exists() and not (path.is_file() or path.is_dir())


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
