"""Runs `ftrie` commands as a user would, each in a process of its own, in one folder. It knows no shop."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ftrie.demo.telling import tell
from model_store.errors import FtrieError, ServerError
from model_store.jit import kernels_are_cached
from model_store.terminal import json_asked, note
from server.warming import KERNELS as SERVER_KERNELS

READY_TIMEOUT_S = 180.0  # a first run compiles the kernels
STOP_TIMEOUT_S = 15.0
_FTRIE = (sys.executable, "-m", "ftrie")


@dataclass(frozen=True)
class Commands:
    """`ftrie` in one folder, which also holds the store: embedded:.ftrie, the default."""

    folder: Path

    def run(self, *words: str) -> None:
        """Run a command to its end, its output on this terminal. Raises FtrieError if it fails."""
        tell(f"\n  $ ftrie {' '.join(words)}")
        # With --json this process prints one answer, and a command's own answer is not it.
        output = subprocess.DEVNULL if json_asked() else None
        finished = subprocess.run(
            [*_FTRIE, *words, *_json_flag()], cwd=self.folder, env=_environment(), stdout=output, check=False
        )
        if finished.returncode != 0:
            raise FtrieError(f"ftrie {words[0]} failed with exit code {finished.returncode}; see above")

    @contextmanager
    def serving(self, model: str) -> Iterator[str]:
        """Run `ftrie serve` on a free port while the block runs; gives its address. Raises ServerError."""
        tell(f"\n  $ ftrie serve {model} --port 0 &")
        if not kernels_are_cached(SERVER_KERNELS):
            note("the server compiles its kernels for the first time; some seconds, once")
        log = self.folder / "server.log"
        with (
            log.open("wb") as errors,
            subprocess.Popen(
                [*_FTRIE, "serve", model, "--port", "0", "--json"],
                cwd=self.folder,
                env=_environment(),
                stdout=subprocess.PIPE,
                stderr=errors,
            ) as process,
        ):
            try:
                yield _address(process, log)
            finally:
                _stop(process)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Wait for the line with which the server says that it is ready."""
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], READY_TIMEOUT_S)
    line = process.stdout.readline() if readable else b""
    if not line:
        why = f"stopped; its log ends: {log.read_text('utf-8')[-600:]}" if readable else "did not get ready"
        raise ServerError(f"the server {why}")
    address: str = json.loads(line)["address"]
    return address


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _json_flag() -> tuple[str, ...]:
    return ("--json",) if json_asked() else ()


def _environment() -> dict[str, str]:
    """This environment without FTRIE_… flags, which are meant for other models and stores than the demo's."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FTRIE_")}
