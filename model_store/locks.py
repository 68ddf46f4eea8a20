"""Locks between processes by flock, which the kernel releases however the holder ends; who holds a file or a port."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


def holder(path: Path) -> str:
    """The process that has this file open, as in `process 12 (ftrie serve shop)`; "" if /proc shows none."""
    return _process_with(str(path.resolve()))


def address_of(host: str, port: int) -> str:
    """HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def port_taken(port: int) -> str:
    """What a message says of a TCP port that cannot be listened on: who has it, if /proc shows that."""
    process = ""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
            for row in rows:
                if row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port:
                    process = process or _process_with(f"socket:[{row[9]}]")
    return (
        f"{process} has the port" if process else "is the port taken, or the host not one of this machine's?"
    )


_LISTENING = "0A"


def _process_with(target: str) -> str:
    for pid in sorted(int(each.name) for each in Path("/proc").glob("[0-9]*")):
        with suppress(OSError):  # it has ended, or is another user's
            folder = Path(f"/proc/{pid}")
            if any(os.readlink(each) == target for each in (folder / "fd").iterdir()):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                return f"process {pid} ({command.strip()})"
    return ""
