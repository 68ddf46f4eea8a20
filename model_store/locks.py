"""Locks between processes: flock on small files. The kernel releases a lock however its holder ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from model_store.errors import StoreError


def lock(path: Path, operation: int) -> int:
    """Open `path` and flock it. Each call takes a separate lock, even within one process."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(
            f"cannot open {path}: {error.strerror}; the directory of an embedded store must be writable"
        ) from error
    try:
        fcntl.flock(fd, operation)
    except OSError:
        os.close(fd)
        raise
    return fd


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold `path` exclusively, waiting without limit."""
    fd = lock(path, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(fd)


def is_held(path: Path) -> bool:
    """True if `path` is locked, shared or exclusively."""
    try:
        os.close(lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB))
    except BlockingIOError:
        return True
    return False
