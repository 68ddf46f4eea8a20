"""`ftrie trainer` as a process that can be killed, and a spec for the event logs of tests/simulated.py."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

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


class Trainer:
    """One process."""

    def __init__(
        self, folder: Path, store_url: str, *flags: str | Path, state: str = "state", spec_end: str = ""
    ) -> None:
        (folder / "hotels.toml").write_text(SPEC + spec_end)
        command = [sys.executable, "-m", "ftrie", "trainer", "hotels.toml", "--store", store_url, "--json"]
        command += ["--checkpoint", state, "--say-every", "0.2", *map(str, flags)]
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
