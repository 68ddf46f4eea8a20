"""System calls that fail: the n-th write, fsync, rename, lock, send or receive of a block of code, once or for good.

The shim is below everything of ours: files opened for writing, the functions of `os` that change files, `fcntl.flock`,
and the sockets to a store. What C code does by itself (Arrow's own files, memory maps) is not seen, and reads of files
do not fail: damaged files have tests of their own. EINTR is not among the failures: Python repeats each of these calls
(PEP 475), as test_interrupted.py shows. A store that refuses does so itself: it is made full (maxmemory), or a
replica, and back.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import gc
import io
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from redis import Redis

Call = str
"""What a call does: one of FAILURES."""

FAILURES: dict[Call, tuple[str, ...]] = {
    "open": ("EACCES", "EMFILE", "ENOSPC"),
    "write": ("ENOSPC", "EIO", "short"),
    "sync": ("EIO",),
    "rename": ("EACCES", "ENOSPC"),
    "remove": ("EACCES",),
    "resize": ("ENOSPC",),
    "lock": ("ENOLCK",),
    "connect": ("ECONNREFUSED",),
    # Nothing of it arrives, or the store refuses the commands that write.
    "send": ("ECONNRESET", "OOM", "READONLY"),
    # The store has done it; the answer is lost, or late.
    "receive": ("ECONNRESET", "timeout"),
}
"""How each call can fail. `short`: half of the bytes are written, which is no error: the caller must write the rest."""

REFUSALS = {
    "OOM": (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
    "READONLY": (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
}
"""How a store is made to refuse, and to take writes again. A replica of nothing keeps its data."""


@dataclass(frozen=True)
class Fault:
    """The call number `at`, counted from 0, fails in this way; `for_good`: and so does each later one of its kind.

    Where the calls are not quite the same the next time, the first of this kind from there on.
    """

    at: int
    kind: Call
    failure: str
    for_good: bool = False


class Failing:
    """What runs inside `with Failing(fault):` meets the fault; without one its calls are counted only.

    calls: the kinds of the calls so far, of all threads, in order. met: whether the fault has happened.
    """

    def __init__(self, fault: Fault | None = None, store: Redis[bytes] | None = None) -> None:
        """store: that whose clients meet it; needed where it refuses."""
        self.calls: list[Call] = []
        self.met = False
        self._fault, self._store = fault, store
        self._is_refusing = self._is_ours = False
        self._lock = threading.Lock()
        self._patches = ExitStack()

    def __enter__(self) -> Failing:
        opened, os_open = io.open, os.open

        def open_file(file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **named: Any) -> Any:
            is_written = not isinstance(file, int) and set(mode) & set("wax+")
            if not is_written:
                return opened(file, mode, buffering, *rest, **named)
            self._fail("open")
            return self._wrapped(file, mode, buffering, *rest, **named)

        def open_fd(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            if flags & (os.O_CREAT | os.O_RDWR | os.O_WRONLY):
                self._fail("open")
            return os_open(path, flags, *rest, **named)

        def fdopen(fd: int, mode: str = "r", buffering: int = -1, *rest: Any, **named: Any) -> Any:
            if set(mode) & set("wax+"):
                return self._wrapped(fd, mode, buffering, *rest, **named)
            return opened(fd, mode, buffering, *rest, **named)

        for module, name, replacement in (
            (io, "open", open_file),
            (builtins, "open", open_file),
            (os, "open", open_fd),
            (os, "fdopen", fdopen),
            (os, "write", self._writing(os.write)),
            (os, "pwrite", self._writing(os.pwrite)),
            (os, "fsync", self._before("sync", os.fsync)),
            (os, "replace", self._before("rename", os.replace)),
            (os, "rename", self._before("rename", os.rename)),
            (os, "unlink", self._before("remove", os.unlink)),
            (os, "remove", self._before("remove", os.remove)),
            (os, "truncate", self._before("resize", os.truncate)),
            (os, "ftruncate", self._before("resize", os.ftruncate)),
            (os, "mkdir", self._before("open", os.mkdir)),
            (fcntl, "flock", self._before("lock", fcntl.flock)),
            (socket.socket, "connect", self._connecting(socket.socket.connect)),
            (socket.socket, "sendall", self._sending(socket.socket.sendall)),
            (socket.socket, "send", self._sending(socket.socket.send)),
            (socket.socket, "recv", self._receiving(socket.socket.recv)),
            (socket.socket, "recv_into", self._receiving(socket.socket.recv_into)),
        ):
            self._patches.enter_context(patch.object(module, name, replacement))
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.close()
        self._refuse(False)

    def _refuse(self, is_refusing: bool) -> None:
        """Make the store refuse what writes, or take it again. These calls are not counted."""
        if is_refusing != self._is_refusing:
            assert self._fault is not None and self._store is not None
            self._is_ours = True
            self._store.execute_command(*REFUSALS[self._fault.failure][0 if is_refusing else 1])
            self._is_ours, self._is_refusing = False, is_refusing

    def _fail(self, kind: Call) -> str | None:
        """Count a call; raises the error of its fault, or returns a fault that is not an error of the call."""
        if self._is_ours:
            return None
        with self._lock:
            number = len(self.calls)
            self.calls.append(kind)
            fault = self._fault
            if fault is None or kind != fault.kind or number < fault.at or (self.met and not fault.for_good):
                return None
            self.met = True
        if fault.failure in REFUSALS or fault.failure == "short":
            return fault.failure
        if fault.failure == "timeout":
            raise TimeoutError("timed out")
        code = getattr(errno, fault.failure)
        raise OSError(code, os.strerror(code))

    def _before(self, kind: Call, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any, **named: Any) -> Any:
            self._fail(kind)
            return real(*words, **named)

        return call

    def _writing(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(fd: int, data: Any, *at: int) -> int:
            is_short = self._fail("write") is not None
            view = memoryview(data).cast("B")
            return real(fd, view[: (len(view) + 1) // 2] if is_short else view, *at)

        return call

    def _connecting(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(wire: socket.socket, address: Any) -> Any:
            self._fail("connect")
            return real(wire, address)

        return call

    def _sending(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(wire: socket.socket, data: Any, *flags: int) -> Any:
            failure = self._fail("send")
            is_answered = failure is not None and self._refused(wire, data, failure)
            return None if is_answered else real(wire, data, *flags)

        return call

    def _refused(self, wire: socket.socket, data: Any, failure: str) -> bool:
        """Have the store refuse this; True if the answers are there and nothing is to be sent."""
        self._refuse(True)
        return False

    def _receiving(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(wire: socket.socket, *words: Any) -> Any:
            self._fail("receive")
            answer = real(wire, *words)
            if self._is_refusing and not self._is_ours and self._fault and not self._fault.for_good:
                self._refuse(False)
            return answer

        return call

    def _wrapped(
        self,
        file: Any,
        mode: str,
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        """The same as `open`, whose bytes are written by a class of Python's, which can be made to fail."""
        failing = self

        class File(io.FileIO):
            def write(self, data: Any) -> int:
                is_short = failing._fail("write") is not None
                view = memoryview(data).cast("B")
                return super().write(view[: (len(view) + 1) // 2] if is_short else view)

            def truncate(self, size: int | None = None) -> int:
                failing._fail("resize")
                return super().truncate(size)

        raw = File(file, mode.replace("b", "").replace("t", ""), closefd, opener)
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        if "b" in mode:
            return buffered
        return io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=buffering == 1)


@contextmanager
def nothing_left() -> Iterator[None]:
    """Fails if the block leaves threads or descriptors."""
    fds, threads = set(os.listdir("/proc/self/fd")), set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - threads:
        thread.join(5.0)
    left = [each.name for each in set(threading.enumerate()) - threads if each.is_alive()]
    assert not left, f"threads left: {left}"
    if _opened_since(fds):
        gc.collect()  # memory maps close their files when they are freed
    opened = _opened_since(fds)
    assert not opened, f"descriptors left: {opened}"


def _opened_since(fds: set[str]) -> list[str]:
    targets = [_target(fd) for fd in set(os.listdir("/proc/self/fd")) - fds]
    return [target for target in targets if target and "/proc/" not in target]


def _target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""
