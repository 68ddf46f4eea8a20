"""System calls that fail: the n-th write, fsync, rename, lock, send or receive of a block of code, once or for good.

The shim is below everything of ours: files opened for writing, the functions of `os` that change files, `fcntl.flock`,
and the sockets to a store. What C code does by itself (Arrow's own files, memory maps) is not seen, and reads of files
do not fail: damaged files have tests of their own. EINTR is not among the failures, since Python repeats the call.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

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
    # Nothing of it arrives, or the store refuses each of the commands.
    "send": ("ECONNRESET", "OOM", "READONLY"),
    # The store has done it; the answer is lost, or late.
    "receive": ("ECONNRESET", "timeout"),
}
"""How each call can fail. `short`: half of the bytes are written, which is no error: the caller must write the rest."""

REFUSALS = {
    "OOM": b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    "READONLY": b"-READONLY You can't write against a read only replica.\r\n",
}


@dataclass(frozen=True)
class Fault:
    """The call number `at`, counted from 0, fails in this way; `for_good`: and so does each later one of its kind."""

    at: int
    failure: str
    for_good: bool = False


class Failing:
    """What runs inside `with Failing(fault):` meets the fault; without one its calls are counted only.

    calls: the kinds of the calls so far, of all threads, in order. met: whether the fault has happened.
    """

    def __init__(self, fault: Fault | None = None) -> None:
        self.calls: list[Call] = []
        self.met = False
        self._fault = fault
        self._kind: Call | None = None
        self._lock = threading.Lock()
        self._answers: dict[int, bytes] = {}
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
            (socket.socket, "recv_into", self._receiving_into(socket.socket.recv_into)),
        ):
            self._patches.enter_context(patch.object(module, name, replacement))
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.close()

    def _fail(self, kind: Call) -> str | None:
        """Count a call; raises the error of its fault, or returns a fault that is not an error of the call."""
        with self._lock:
            number = len(self.calls)
            self.calls.append(kind)
            fault = self._fault
            if fault is None:
                return None
            if number == fault.at:
                self._kind = kind
            elif not (fault.for_good and self._kind == kind and number > fault.at):
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
            refused = self._fail("send")
            if refused is None:
                return real(wire, data, *flags)
            self._answers[wire.fileno()] = REFUSALS[refused] * _commands_in(bytes(data))
            return None

        return call

    def _receiving(self, real: Callable[..., bytes]) -> Callable[..., bytes]:
        def call(wire: socket.socket, *words: Any) -> bytes:
            if answer := self._answers.pop(wire.fileno(), None):
                return answer
            self._fail("receive")
            return real(wire, *words)

        return call

    def _receiving_into(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(wire: socket.socket, buffer: Any, *words: Any) -> int:
            if answer := self._answers.pop(wire.fileno(), None):
                buffer[: len(answer)] = answer
                return len(answer)
            self._fail("receive")
            return real(wire, buffer, *words)

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


def _commands_in(data: bytes) -> int:
    """How many commands a packed request has: each begins with its number of words."""
    at = count = 0
    while at < len(data):
        end = data.index(b"\r\n", at)
        words = int(data[at + 1 : end])
        at, count = end + 2, count + 1
        for _ in range(words):
            end = data.index(b"\r\n", at)
            at = end + 2 + int(data[at + 1 : end]) + 2
    return count


@contextmanager
def nothing_left(folder: os.PathLike[str] | str | None = None) -> Iterator[None]:
    """Fails if the block leaves threads, descriptors, or files with a temporary name."""
    fds, threads = set(os.listdir("/proc/self/fd")), set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - threads:
        thread.join(5.0)
    left = [each.name for each in set(threading.enumerate()) - threads if each.is_alive()]
    assert not left, f"threads left: {left}"
    opened = {fd: _target(fd) for fd in set(os.listdir("/proc/self/fd")) - fds}
    opened = {fd: target for fd, target in opened.items() if target and "/proc/" not in target}
    assert not opened, f"descriptors left: {opened}"


def _target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""
