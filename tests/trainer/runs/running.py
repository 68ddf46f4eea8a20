"""`ftrie trainer` as a process that can be killed, and a spec for the event logs of tests/worlds.py."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from ftrie.cli import run
from tests.trainer.runs.children import Child
from tests.waiting import eventually

COMPILE_S = 150.0
NAME = "hotels"
BEFORE = {
    "events": 0,
    "examples": 0,
    "version": None,
    "active": None,
    "round": 0,
    "dead_letters": 0,
    "warnings": [],
}
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
    folder: Path, store_url: str, state: str = "state", flags: Sequence[str | Path] = (), spec_end: str = ""
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
    """One process; what it says goes to files, so that it never waits for a reader."""

    def __init__(
        self, folder: Path, store_url: str, *flags: str | Path, state: str = "state", spec_end: str = ""
    ) -> None:
        self._out, self._err = folder / f"{state}.out", folder / f"{state}.err"
        self.process = Child(
            command_of(folder, store_url, state, flags, spec_end), folder, self._out, self._err
        )

    def said(self) -> str:
        return self._err.read_text()

    def status(self) -> dict[str, Any]:
        """Its latest status; before the first, nothing learned."""
        whole = self._out.read_text().rpartition("\n")[0]
        status: dict[str, Any] = json.loads(whole.rpartition("\n")[2]) if whole else BEFORE
        return status

    def until(self, member: str, least: int) -> dict[str, Any]:
        """Wait until a member of its status is as great, or it has ended; its status then."""

        def is_there() -> bool:
            return (self.status()[member] or 0) >= least or self.process.poll() is not None

        eventually(is_there, f"{member} {least}", COMPILE_S)
        return self.status()

    def wait(self) -> int:
        return self.process.wait(COMPILE_S)

    def last(self) -> dict[str, Any]:
        """Its last status, once it has ended well."""
        assert self.wait() == 0, self.said()
        assert self.status()["ended"]
        return self.status()

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def terminate(self) -> dict[str, Any]:
        """Ask it to end; its last status."""
        self.process.terminate()
        return self.last()
