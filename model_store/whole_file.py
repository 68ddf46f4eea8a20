"""Files that readers see whole or not at all, also after a crash: written beside, flushed to disk, renamed.

Nothing here knows what the bytes mean.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from model_store.errors import OutputError


def write_whole(path: Path, data: bytes | memoryview) -> None:
    """Write a file; until that has succeeded the old one stays. Raises OutputError.

    The target of a link is written, not the link; a device or a pipe is written to, never replaced.
    """
    try:
        if _is_special(path):
            path.write_bytes(data)
        else:
            _replace(path.resolve(), data)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from error


def check_writable(path: Path) -> None:
    """Raise OutputError where `write_whole` is bound to fail, so that it is known before there is something to lose."""
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


def _replace(path: Path, data: bytes | memoryview) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
