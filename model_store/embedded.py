"""`embedded:DIR`: a Valkey in a directory, started by the first process that opens it, stopped by the last.

Three files in DIR are locked with flock, which the kernel releases however a process ends: `start.lock`
exclusively while the server is being started or stopped, `users.lock` shared for as long as a process uses the
server, `server.lock` by the server and its guardian. A process that leaves and then gets `users.lock` exclusively was
the last one, and shuts the server down. After a `kill -9` of the last user the guardian does so within seconds
(`valkey_guardian`), unless another process joins before.

A new DIR is open to its owner only (0700), and so is all that the server writes below it, also in a DIR that existed.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from model_store.errors import StoreError
from model_store.file_lock import is_held, lock, locked
from model_store.valkey_server import LOG, SOCKET, answers, start, stop

MAX_SOCKET_PATH_BYTES = 103  # sun_path holds 108 bytes on Linux, 104 on macOS, with the closing NUL


class EmbeddedValkey:
    """A hold on the Valkey of one directory. Thread safety: `close` may be called from any thread.

    `EmbeddedValkey.join(DIR)` returns when the server answers; `close` gives the hold back, and stops the
    server (its data flushed to disk) if nobody else holds it. Runs at exit too.
    """

    def __init__(self, directory: Path, socket: Path, users_fd: int) -> None:
        self.directory = directory
        self.socket = socket
        self._users_fd: int | None = users_fd
        atexit.register(self.close)

    @classmethod
    def join(cls, directory: str | os.PathLike[str]) -> EmbeddedValkey:
        """Join the server of `directory`; start it if there is none. Raises StoreError, StoreUnavailable."""
        home = _prepare(Path(directory))
        socket = home / SOCKET if _fits(home / SOCKET) else _short_path(home) / SOCKET
        # Held before the server is there: it cannot be stopped under us, and it is stopped if we are interrupted.
        hold = cls(home, socket, lock(home / "users.lock", fcntl.LOCK_SH))
        try:
            with locked(home / "start.lock"):
                if not answers(socket):
                    start(home, socket)
        except BaseException:
            hold.close()
            raise
        return hold

    def close(self) -> None:
        """Give the hold back; the last holder stops the server and returns when it is gone. Idempotent."""
        users_fd, self._users_fd = self._users_fd, None
        if users_fd is None:
            return
        atexit.unregister(self.close)
        if not self.directory.exists():
            os.close(users_fd)
            return
        with locked(self.directory / "start.lock"):
            os.close(users_fd)
            if not is_held(self.directory / "users.lock"):
                stop(self.directory, self.socket)


def _prepare(directory: Path) -> Path:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        home = directory.resolve()
        for kept in (home / LOG, home / "appendonlydir"):  # of a ftrie that left them readable to others
            if kept.exists():
                kept.chmod(0o700 if kept.is_dir() else 0o600)
        return home
    except OSError as error:
        raise StoreError(
            f"expected a directory for the embedded store, got {directory}: {error.strerror}; "
            "name another with --store embedded:DIR"
        ) from error


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES


def _short_path(home: Path) -> Path:
    """A symbolic link to `home` in the temporary directory: the kernel takes only short socket paths."""
    name = hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
    link = Path(tempfile.gettempdir()) / f"ftrie-{os.getuid()}-{name}"
    with suppress(FileExistsError):
        link.symlink_to(home, target_is_directory=True)
    # The temporary directory is everyone's: a link that someone else laid there is not followed.
    if not link.is_symlink() or link.lstat().st_uid != os.getuid() or link.readlink() != home:
        raise StoreError(
            f"expected {link} to be our link to {home}; remove it, or choose a shorter directory"
        )
    if not _fits(link / SOCKET):
        raise StoreError(
            f"a unix socket's path may have {MAX_SOCKET_PATH_BYTES} bytes; choose a shorter directory"
        )
    return link
