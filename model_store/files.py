"""Files that processes share: locks, which the kernel releases however a process ends, and files written whole.

A lock is flock on a small file. A file is written to a temporary one beside it, which is synced and renamed; then the
folder is synced: a reader sees it whole or not at all, also after a crash.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EACCES, EMFILE, ENFILE, ENOLCK, ENOMEM, EPERM, EROFS
from pathlib import Path
from typing import BinaryIO

from model_store.errors import OutputError, StoreError


def lock(path: Path, operation: int) -> int:
    """Open `path` and flock it. Each call takes a separate lock, even within one process.

    Raises StoreError if it cannot, BlockingIOError if another has it and `operation` does not wait.
    """
    try:
        # flock belongs to the open file: no other close of the same file gives the lock up, as with fcntl.
        # O_CLOEXEC: a child that inherited it would hold it too (`embedded` passes one on by `pass_fds`).
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        remedy = f"; {path.parent} must be writable" if error.errno in (EACCES, EPERM, EROFS) else ""
        raise StoreError(f"cannot open {path}: {error.strerror}{remedy}") from error
    try:
        fcntl.flock(fd, operation)
    except BlockingIOError:
        os.close(fd)
        raise
    except OSError as error:
        os.close(fd)
        raise StoreError(f"cannot lock {path}: {error.strerror}") from error
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
        # A free lock is held for this moment: a caller that takes it without waiting must try again.
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


def elsewhere(error: OSError, remedy: str) -> str:
    """A remedy by another file or folder, for the end of a message; "" if the process lacks descriptors or memory."""
    return "" if error.errno in (EMFILE, ENFILE, ENOLCK, ENOMEM) else f"; {remedy}"


def port_taken(port: int, error: OSError | None = None) -> str:
    """What a message says of a TCP port that cannot be listened on: who has it, if /proc shows that.

    error: that of the system, where it is known.
    """
    if error and error.errno == EACCES:
        return "ports below 1024 need root or CAP_NET_BIND_SERVICE"
    if error and not elsewhere(error, "another port"):
        return "this process has no descriptors or memory left"
    process = ""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
            for row in rows:
                # Columns of /proc/net/tcp: 1 address and port in hex, 3 state, 9 the inode of the socket.
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
            # Before the rename: a crash could leave the new name with no content otherwise.
            os.fsync(file.fileno())
        temporary.replace(path)
    # BaseException: an interrupt leaves no temporary file either.
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
    # Such as /dev/stdout, which must not be replaced by a file.
    return path.exists() and not (path.is_file() or path.is_dir())


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
