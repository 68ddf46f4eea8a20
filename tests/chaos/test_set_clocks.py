"""The wall clock of one process after the other is set an hour ahead, an hour behind, and right again (set_clock.c).

Meanwhile visitors ask and click. What one part decides then is in tests/integration/test_clock_jumps.py, in detail.
"""

from __future__ import annotations

import itertools
import shutil
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ftrie.api.client import Client
from ftrie.api.feedback import Feedback
from ftrie.cli import run
from ftrie.demo.market import Market
from ftrie.demo.processes import free_port
from model_store.store import Store
from tests.chaos.loop import COMPILE_S, FTRIE, MODEL, Process, Valkey, begin, learned, trainer_command
from tests.chaos.test_cluster import ITEMS, items_of, request_of
from tests.waiting import eventually

WINDOW_S = 20
PAUSE_S = 0.04
CLICKED, LAG = 3, 10
"""Of so many answers one is clicked, after so many others."""
HOUR_S = 3600
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler"
    ),
]


def with_a_clock(process: Process, library: Path) -> Process:
    """Run it with a wall clock that `set_clock` sets."""
    process._command[:0] = ["env", f"LD_PRELOAD={library}", f"SET_CLOCK={clock_of(process)}"]
    set_clock(process, 0)
    return process


def clock_of(process: Process) -> Path:
    return process._folder / f"{process.name}.clock"


def set_clock(process: Process, ahead_s: int) -> None:
    """From now on its wall clock is so far ahead of the machine's."""
    with clock_of(process).open("r+b" if clock_of(process).exists() else "wb", buffering=0) as clock:
        clock.write(struct.pack("l", ahead_s))


class Visitors(threading.Thread):
    """Ask one after another, and click, by clocks that are right. `versions`: those that answered, in order."""

    def __init__(self, address: str, market: Market) -> None:
        super().__init__()
        self.asked = self.clicks = 0
        self.versions: list[int] = [0]
        self.failed: Exception | None = None
        self._client, self._market = Client(address, timeout_s=10.0), market
        self._ended = threading.Event()

    def run(self) -> None:
        due = deque[tuple[int, Feedback]]()
        try:
            while not self._ended.wait(PAUSE_S) or due:
                if not self._ended.is_set():
                    self._ask(due)
                while due and (due[0][0] < self.asked or self._ended.is_set()):
                    report = self._client.feedback(MODEL, [due.popleft()[1]])
                    assert (report.accepted, report.rejected) == (1, ()), report
                    self.clicks += 1
        except Exception as error:
            self.failed = error

    def _ask(self, due: deque[tuple[int, Feedback]]) -> None:
        number, cookies = self.asked, self._market.cookies
        answer = self._client.rank(
            MODEL,
            request_id=request_of(number),
            cookie=cookies[number % len(cookies)],
            candidates=items_of(self._market, number),
            context={"device": "phone"},
        )
        assert not answer.degraded, answer
        if answer.version != self.versions[-1]:
            self.versions.append(answer.version)
        self.asked += 1
        if number % CLICKED == 0:
            at = datetime.now(UTC) if number % 2 else None  # the time of the report
            due.append((number + LAG, Feedback(request_of(number), answer.items[0].id, time=at)))

    def sees_more(self) -> None:
        """Answers go on, and come from versions that were published since."""
        asked, version = self.asked, self.versions[-1]
        eventually(lambda: self._has(asked + 20, version + 1), "newer answers", 60.0)

    def _has(self, asked: int, version: int) -> bool:
        assert self.failed is None, self.failed
        return self.asked >= asked and self.versions[-1] >= version

    def end(self) -> None:
        self._ended.set()
        self.join()
        self._client.close()
        assert self.failed is None, self.failed


class System:
    """A store, a server, a trainer and its spare, each with a wall clock of its own; and visitors."""

    def __init__(self, folder: Path) -> None:
        library = folder / "set_clock.so"
        source = Path(__file__).with_name("set_clock.c")
        subprocess.run(["cc", "-O1", "-Wall", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        self.folder, address = folder, f"127.0.0.1:{free_port()}"
        self.valkey = Valkey(folder)
        url, port = self.valkey.url, address.rpartition(":")[2]
        serve = [
            *FTRIE,
            "serve",
            MODEL,
            "--store",
            url,
            "--port",
            port,
            "--impressions",
            "store",
            "--store-budget",
            "1000",
            "--json",
        ]
        self.server = Process("server", folder, serve)
        self.trainers = [
            Process(name, folder, trainer_command(url, name, "--wait", "--say-every", "0.5"))
            for name in ("trainer", "spare")
        ]
        for process in self.all():
            with_a_clock(process, library)
        self.valkey.start()
        market = begin(folder, url, WINDOW_S)
        self.server.start()
        self.trainers[0].start()
        for process in (self.server, self.trainers[0]):
            process.await_up()
        self.trainers[1].start()
        self.store = Store.open(url)
        self.visitors = Visitors(address, market)
        self.visitors.start()

    def all(self) -> list[Process]:
        return [self.valkey, self.server, *self.trainers]

    def holder(self) -> Process:
        """The one trainer that holds the lease; it lives."""
        lease = self.store.client.hgetall(self.store.model(MODEL).keys.trainer)
        (holder,) = [
            each
            for each in self.trainers
            if (owner := self.folder / each.name / "owner").exists()
            and owner.read_bytes().strip() == lease[b"owner"]
        ]
        for process in self.all():
            assert not process.ended_by_itself, process.said()
        return holder

    def check(self, *flags: str) -> int:
        return run(["store", "check", MODEL, "--store", self.valkey.url, *flags])

    def take_down(self) -> None:
        self.visitors._ended.set()
        self.visitors.join()
        self.store.close()
        for process in reversed(self.all()):
            process.kill()


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    made = System(tmp_path)
    try:
        yield made
    finally:
        made.take_down()


def test_whosever_clock_is_set_answers_go_on_and_each_click_is_learned_once(system: System) -> None:
    visitors = system.visitors
    visitors.sees_more()
    first = system.holder()
    for process, ahead_s in itertools.product((system.server, first, system.valkey), (HOUR_S, -HOUR_S, 0)):
        set_clock(process, ahead_s)
        visitors.sees_more()
        visitors.sees_more()
        assert system.holder() is first
    assert visitors.versions == sorted(visitors.versions), "versions only move forward"
    # Ids of entries follow the store's clock only ahead: what is left of its hour is a finding, with its repair.
    assert (system.check(), system.check("--repair"), system.check()) == (5, 0, 0)
    visitors.sees_more()
    visitors.end()
    for process in (system.server, first):
        process.end(COMPILE_S)
    system.trainers[1].kill()
    status = learned(system.folder, system.valkey.url, first.name)
    join = status["join"]
    assert (join["closed"], join["rows"]) == (visitors.asked, ITEMS * visitors.asked)
    assert (join["positives"], join["late"], join["orphans"]) == (visitors.clicks, 0, 0)
    assert (status["dead_letters"], set(status["lost"].values())) == (0, {0})
