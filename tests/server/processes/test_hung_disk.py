"""A disk that does not answer: the end of a server is bounded, and says what it did not wait for."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from model_store.store import Store
from server.processes.takeover import Inherited
from server.settings import Settings
from server.sync.state_folder import StateFolder
from tests.server import shop
from tests.server.one_process import Server
from tests.waiting import eventually


class HungDisk:
    """`os.fsync` does not return before `answers` is set; `asked` is set by its first call."""

    def __init__(self) -> None:
        self.asked, self.answers = threading.Event(), threading.Event()

    def fsync(self, descriptor: int) -> None:
        """In place of `os.fsync`."""
        self.asked.set()
        self.answers.wait()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[HungDisk]:
    hung = HungDisk()
    monkeypatch.setattr(os, "fsync", hung.fsync)
    yield hung
    hung.answers.set()


def test_a_server_ends_within_its_drain_time_and_logs_what_is_not_on_disk(
    shop_store: Store, store_url: str, tmp_path: Path, disk: HungDisk
) -> None:
    server = Server(Settings((shop.NAME,), store_url, drain_s=0.3, state=str(tmp_path)))
    server.startup()
    assert server.ready.wait(180)
    assert disk.asked.wait(20)
    with capture_logs() as logged:
        server.drain()
        server.shutdown()
    [line] = [line for line in logged if line["event"].startswith("the disk does not answer")]
    assert (line["log_level"], line["folder"]) == ("error", str(tmp_path))


def test_the_workers_are_written_down_once_the_disk_answers_and_nobody_waits_for_it(
    tmp_path: Path, disk: HungDisk
) -> None:
    state, inherited = StateFolder(tmp_path), Inherited((), 0)
    with capture_logs() as logged:
        inherited.remember(state, "127.0.0.1:1", [])
        inherited.remember(state, "127.0.0.1:2", [])  # returns at once: one thread waits already
    assert [line["event"].partition(":")[0] for line in logged] == ["the disk does not answer"]
    disk.answers.set()

    def written_down() -> bool:
        inherited.remember(state, "127.0.0.1:2", [])
        return state.left_behind()[0] == "127.0.0.1:2"

    eventually(written_down)
    state.close()
