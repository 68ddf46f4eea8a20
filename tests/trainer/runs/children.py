"""Runs in processes of their own that are killed: at any time, or at an operation on files.

They are forked from a server that has imported everything and compiled the kernels once, so that they start at once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.trainer.runs.warm", "ftrie.commands.trainer", "trainer.runs.trainer"])

OPERATIONS = ("open", "os.rename", "os.remove", "os.truncate")


class Child:
    """`ftrie` in a folder, its output in files; with what tests use of `subprocess.Popen`."""

    def __init__(self, arguments: Sequence[str], folder: Path, out: Path, err: Path) -> None:
        for path in (out, err):
            path.write_text("")
        words = list(arguments), dict(os.environ), folder, out, err
        # daemon: what a failed test leaves is ended with this process, which would wait for it otherwise.
        self._process = CONTEXT.Process(target=_run_in, args=words, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout_s: float | None = None) -> int:
        self._process.join(timeout_s)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("ftrie", timeout_s or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run_in(arguments: list[str], environment: dict[str, str], folder: Path, out: Path, err: Path) -> None:
    from ftrie.cli import main

    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY), number)
    sys.argv = ["ftrie", *arguments]
    main()


def start(arguments: Sequence[str], said: Path, *, operation: int | None = None) -> ForkServerProcess:
    """Start `ftrie` with these arguments; what it says on stderr goes to the file `said`.

    operation: it kills itself just before this operation, from 1, on the files of its checkpoints, rejects and metrics.
    """
    process = CONTEXT.Process(target=_run, args=(list(arguments), said, operation))
    process.start()
    return process


def finish(arguments: Sequence[str], said: Path, **how: Any) -> int:
    """Start `ftrie`, wait for its end, return its exit code; a signal's number negated."""
    process = start(arguments, said, **how)
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _run(arguments: list[str], said: Path, operation: int | None) -> None:
    from ftrie.cli import main

    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if operation is not None:
        _die_before(operation, arguments)
    sys.argv = ["ftrie", *arguments]
    main()


def _die_before(operation: int, arguments: list[str]) -> None:
    folders = [os.path.dirname(each.partition("=")[2]) for each in arguments if each.startswith("--rejects")]
    left = operation

    def count(event: str, details: tuple[Any, ...]) -> None:
        nonlocal left
        if event in OPERATIONS and any(str(details[0]).startswith(folder) for folder in folders):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
