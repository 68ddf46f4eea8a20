"""Servers as processes of their own, on cores of their own, and what they cost: CPU seconds and memory.

A benchmark of serving gives the workers one core and everything else the other: load, Valkey, and the supervisor, which
answers no call. On a machine with one core nothing is pinned.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, LOAD_CORE = CORES[0], CORES[-1]
ALL_CORES = tuple(CORES)
STOP_S = 20.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Memory:
    """Bytes of a process: all, with shared pages by its part (PSS), and those that are its own."""

    whole: int
    own: int


@dataclass(frozen=True)
class Running:
    """A server that answers at `address`; its first process is `pid`."""

    address: str
    pid: int

    @property
    def pids(self) -> list[int]:
        """The process and its children, theirs included."""
        found = [self.pid]
        for pid in found:
            with suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    found += map(int, (task / "children").read_text().split())
        return found

    def cpu_s(self) -> float:
        """CPU seconds of all its processes so far."""
        return sum(cpu_s(pid) for pid in self.pids)

    def memory(self) -> list[Memory]:
        """Of each process, the first one's first."""
        return [pss(pid) for pid in self.pids]


@contextmanager
def process(*arguments: str, cores: Sequence[int] = (SERVER_CORE,)) -> Iterator[Running]:
    """`python -m ARGUMENTS…` on the given cores; its first line ends with its address.

    Raises RuntimeError with what it wrote to stderr where it ends before that.
    """
    command = ["taskset", "-c", ",".join(map(str, cores)), sys.executable, "-m", *arguments]
    with tempfile.TemporaryFile("w+") as errors:
        running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            yield Running(_address(running, errors, arguments), running.pid)
        finally:
            _stop(running)


@contextmanager
def served(*arguments: str, workers: int = 1, pinned: bool = True) -> Iterator[Running]:
    """`ftrie serve ARGUMENTS… --port 0`. Pinned: the workers on the server's core, the supervisor on the load's."""
    cores = (SERVER_CORE,) if pinned else ALL_CORES
    words = ("ftrie", "serve", *arguments, "--port", "0", "--workers", str(workers))
    with process(*words, cores=cores) as running:
        if pinned:
            pin(running.pid, LOAD_CORE)
        yield running


def pin(pid: int, *cores: int) -> None:
    """Move all threads of a process to the cores."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), cores)


def cpu_s(pid: int) -> float:
    """CPU seconds of one process, user and system; 0 of one that has ended."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / _TICKS


def pss(pid: int) -> Memory:
    """One process's memory, what it shares with others by its part; nothing of one that has ended."""
    sizes = {"Pss": 0, "Pss_Anon": 0}
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in sizes:
                sizes[name] = int(rest.split()[0]) * 1024
    return Memory(sizes["Pss"], sizes["Pss_Anon"])


def _address(running: subprocess.Popen[str], errors: IO[str], arguments: Sequence[str]) -> str:
    assert running.stdout is not None
    line = running.stdout.readline()
    if not line:
        running.wait(STOP_S)
        errors.seek(0)
        raise RuntimeError(f"{' '.join(arguments)} ended before it served:\n{errors.read()[-4000:]}")
    return line.split()[-1]


def _stop(running: subprocess.Popen[str]) -> None:
    """Ask it to end, then end what is left of it and its children."""
    family = Running("", running.pid).pids[1:]
    running.terminate()
    try:
        running.wait(STOP_S)
    except subprocess.TimeoutExpired:
        running.kill()
        running.wait()
    for pid in family:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if running.stdout is not None:
        running.stdout.close()
