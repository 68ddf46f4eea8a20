"""Training runs in processes of their own that are killed: at any time, at a byte of a file, at an operation on files.

They are forked from a server that has imported everything and compiled the kernels once, so that they start at once.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.trainer.runs.warm"])

OPERATIONS = ("open", "os.rename", "os.remove", "os.truncate")


def start(
    arguments: Sequence[str], said: Path, *, file_bytes: int | None = None, operation: int | None = None
) -> ForkServerProcess:
    """Start `ftrie` with these arguments; what it says on stderr goes to the file `said`.

    file_bytes: the kernel kills the process when it has written that many bytes of a file. operation: it kills itself
    just before this operation, from 1, on the files of its checkpoints, rejects and metrics.
    """
    process = CONTEXT.Process(target=_run, args=(list(arguments), said, file_bytes, operation))
    process.start()
    return process


def finish(arguments: Sequence[str], said: Path, **how: Any) -> int:
    """Start `ftrie`, wait for its end, return its exit code; a signal's number negated."""
    process = start(arguments, said, **how)
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _run(arguments: list[str], said: Path, file_bytes: int | None, operation: int | None) -> None:
    from ftrie.cli import main

    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if operation is not None:
        _die_before(operation, arguments)
    if file_bytes is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, resource.RLIM_INFINITY))
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
