"""A running `ftrie trainer` to break: what it says, its metrics, and simulated events to learn from."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ftrie.demo.processes import free_port
from model_store.errors import StoreError
from model_store.store import Store
from model_store.versions.model_versions import ModelVersions
from tests.degradation.system import COMPILE_S, Valkey, json_lines, metric_at
from tests.trainer.runs.children import Child
from tests.trainer.runs.running import NAME, SPEC
from tests.waiting import eventually
from tests.worlds import event_logs

TAIL_BYTES = 16_384
LONG_S = 90.0  # what waits for a store that stalls is told so only after some seconds, several times over


class Learning:
    """One trainer's process, and those that follow it with the same command line.

    within: a command that runs the command that follows it; without one they are forked, which saves the imports.
    """

    def __init__(
        self,
        folder: Path,
        url: str,
        flags: Sequence[str | Path],
        spec: str = SPEC,
        within: Sequence[str] = (),
    ) -> None:
        (folder / "hotels.toml").write_text(spec)
        self.folder = folder
        self.port = free_port()
        self.state = folder / "state"
        self._within = within
        command = ["trainer", "hotels.toml", "--store", url, "--json"]
        command += ["--say-every", "0.1", "--metrics-port", str(self.port)]
        if "--checkpoint" not in flags:
            command += ["--checkpoint", str(self.state)]
        self._command = [*command, *map(str, flags)]
        self._lives = 0
        self.start()

    def start(self, *flags: str) -> None:
        """Start it, and wait for its first line."""
        self._lives += 1
        self._out = self.folder / f"{self._lives}.out"
        self._err = self.folder / f"{self._lives}.err"
        self.process: Child | subprocess.Popen[bytes]
        command = [*self._command, *flags]
        if not self._within:
            self.process = Child(command, self.folder, self._out, self._err)
            return
        command = [*self._within, sys.executable, "-m", "ftrie", *command]
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(command, cwd=self.folder, stdout=out, stderr=err)

    def lines(self) -> list[dict[str, Any]]:
        return json_lines(self._out)

    def status(self) -> dict[str, Any]:
        """The latest; waits for a first one."""
        eventually(lambda: self._last_line() is not None or self.has_ended(), "a line of status", COMPILE_S)
        status = self._last_line()
        assert status is not None, self.said()
        return status

    def _last_line(self) -> dict[str, Any] | None:
        with self._out.open("rb") as out:
            out.seek(max(0, self._out.stat().st_size - TAIL_BYTES))
            whole = [line for line in out.read().splitlines(keepends=True) if line.endswith(b"}\n")]
        status: dict[str, Any] | None = json.loads(whole[-1]) if whole else None
        return status

    def said(self) -> str:
        return self._err.read_text()

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def has(self, member: str, least: int) -> bool:
        """Whether a member of the status is at least as great by now."""
        assert not self.has_ended(), self.said()
        return (self.status()[member] or 0) >= least

    def metric(self, name: str, **labels: str) -> float:
        return metric_at(f"127.0.0.1:{self.port}", name, labels)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def terminate(self) -> dict[str, Any]:
        """Ask it to end, and see it end well; its last line."""
        self.process.terminate()
        assert self.process.wait(COMPILE_S) == 0, self.said()
        return self.lines()[-1]


def served(url: str, status: dict[str, Any]) -> bool:
    """Whether what had been learned by then is in the active version."""
    try:
        with Store.open(url) as store:
            return is_through(store.model(NAME), status["counts"]["through_us"])
    except StoreError:
        return False


def is_through(versions: ModelVersions, through_us: int) -> bool:
    active = versions.active()
    return active is not None and (versions.manifest(active).through_us or 0) >= through_us


class Day:
    """Hands out the day's impressions, each once. `given` counts them, and whatever else a trainer is to take."""

    def __init__(self) -> None:
        self._lines = iter(event_logs(2000).impressions)
        self.given = 0

    def some(self, count: int = 50) -> list[bytes]:
        self.given += count
        return [next(self._lines) for _ in range(count)]


class OfFiles:
    """A trainer that learns from a file that grows, and publishes to a store of its own."""

    def __init__(self, folder: Path, *flags: str, within: Sequence[str] = (), spec: str = SPEC) -> None:
        self.file = folder / "shown.jsonl"
        self.day = Day()
        self.more()
        sources: list[str | Path] = ["--from", self.file, "--idle", "0.1"]
        self.valkey = Valkey(folder)
        self.trainer = Learning(folder, self.valkey.url, [*sources, *flags], spec, within)

    def more(self) -> None:
        with self.file.open("ab") as log:
            log.writelines(line + b"\n" for line in self.day.some())

    def learns(self) -> None:
        """The file grows, and what it gets is learned."""
        self.more()
        eventually(lambda: self.trainer.has("events", self.day.given), "all events are learned", LONG_S)

    def is_served(self) -> bool:
        return served(self.valkey.url, self.trainer.status())


class OfStreams:
    """A trainer that learns from the streams of its store."""

    def __init__(self, folder: Path, *flags: str, spec: str = SPEC, within: Sequence[str] = ()) -> None:
        self.day = Day()
        self.valkey = Valkey(folder)
        try:
            self.more()
            self.trainer = Learning(folder, self.valkey.url, flags, spec, within)
        except BaseException:
            self.valkey.kill()
            raise

    def more(self, count: int = 50) -> None:
        self.append(self.day.some(count))

    def append(self, payloads: list[bytes]) -> None:
        with Store.open(self.valkey.url) as store:
            store.impressions(NAME).append(payloads)

    def has_learned_all(self, by: Learning | None = None) -> bool:
        """Whether each event that was given is learned, and in the active version; by this trainer or another."""
        trainer = by or self.trainer
        return trainer.has("events", self.day.given) and served(self.valkey.url, trainer.status())


@contextmanager
def ending(system: OfFiles | OfStreams) -> Iterator[None]:
    """Nothing of it runs in the end."""
    try:
        yield
    finally:
        system.valkey.go_on()
        with suppress(ProcessLookupError):
            system.trainer.signal(signal.SIGCONT)
        system.trainer.kill()
        system.valkey.kill()
