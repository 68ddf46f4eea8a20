"""`ftrie trainer` as a process that can be killed, and a spec for the event logs of tests/simulated.py."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from ftrie.cli import run

ROOT = Path(__file__).resolve().parents[3]
COMPILE_S = 150.0
NAME = "hotels"
SPEC = """
[model]
name = "hotels"

[input]
label = "click"
timestamp = "ts"
request = "request_id"
cookie = "cookie"
item = "item"

[fields]
platform = {}
device = {}
position = { kind = "number" }
price = { side = "item", kind = "number", bucket = "log" }

[[crosses]]
fields = ["device", "position"]

[variants]
base = { share = 0.5 }
plain = { share = 0.5, without = ["price"] }

[join]
window = "5m"
lateness = "10s"
"""


def command_of(
    folder: Path, store_url: str, state: str, flags: Sequence[str | Path], spec_end: str
) -> list[str]:
    """The command line of `ftrie trainer` with its spec and its checkpoints in a folder."""
    (folder / "hotels.toml").write_text(SPEC + spec_end)
    command = ["trainer", str(folder / "hotels.toml"), "--store", store_url, "--json", "--say-every", "0.2"]
    return [*command, "--checkpoint", str(folder / state), *map(str, flags)]


def once(
    folder: Path, store_url: str, *flags: str | Path, state: str = "state", spec_end: str = ""
) -> dict[str, Any]:
    """A trainer in this process, until it has read all; its last line."""
    said = io.StringIO()
    with redirect_stdout(said):
        assert run([*command_of(folder, store_url, state, flags, spec_end), "--once"]) == 0
    status: dict[str, Any] = json.loads(said.getvalue().splitlines()[-1])
    assert status["ended"]
    return status


class Trainer:
    """One process."""

    def __init__(
        self, folder: Path, store_url: str, *flags: str | Path, state: str = "state", spec_end: str = ""
    ) -> None:
        command = [sys.executable, "-m", "ftrie", *command_of(folder, store_url, state, flags, spec_end)]
        self.process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self._out = self.process.stdout

    def line(self) -> dict[str, Any]:
        """The next line of its status."""
        text = self._out.readline()
        assert text, self.process.communicate()[1][-3000:]
        status: dict[str, Any] = json.loads(text)
        return status

    def until(self, member: str, least: int) -> dict[str, Any]:
        """Read lines until a member is as great."""
        while ((status := self.line())[member] or 0) < least:
            assert not status["ended"], status
        return status

    def last(self) -> dict[str, Any]:
        """Its last line, once it has ended well."""
        out, err = self.process.communicate(timeout=COMPILE_S)
        assert self.process.returncode == 0, err
        status: dict[str, Any] = json.loads(out.splitlines()[-1])
        assert status["ended"]
        return status

    def failed(self) -> tuple[int, str]:
        """Its exit code and what it said, once it has ended badly."""
        _, err = self.process.communicate(timeout=COMPILE_S)
        assert self.process.returncode != 0
        return self.process.returncode, err

    def kill(self) -> None:
        """At once."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def terminate(self) -> dict[str, Any]:
        """Ask it to end; its last line."""
        self.process.terminate()
        return self.last()
