"""Traffic as a user runs it: a real store, real servers, real calls; and what the streams hold afterwards."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ftrie.demo.market import SPEC, Market, write_first_day
from ftrie.demo.processes import end_session, free_port
from ftrie.demo.settings import MODEL
from model_store.store import Store
from tests.degradation.system import Valkey
from tests.integration.processes import FTRIE, ROOT, ftrie

TIMEOUT_S = 60


@pytest.fixture
def market(store_url: str, tmp_path: Path) -> str:
    """The URL of a store with the market's first model."""
    write_first_day(Market(1), 500, 6, tmp_path / "day.csv")
    ftrie("train", SPEC, tmp_path / "day.csv", "--publish", "--activate", "--store", store_url)
    return store_url


@contextmanager
def server(store_url: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server that logs impressions into the store; its process and its address."""
    words = ["serve", MODEL, "--store", store_url, "--port", "0", "--impressions", "store", "--json"]
    with (folder / "server.log").open("a") as errors, started(words, stderr=errors) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())["address"]
        finally:
            process.terminate()
            process.wait(30)


@contextmanager
def traffic(store_url: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A running `ftrie simulate --json`."""
    with started(["simulate", "--store", store_url, "--json", "--every", "0.5", "--load", *words]) as process:
        try:
            yield process
        finally:
            process.kill()


def started(words: list[str], stderr: Any = subprocess.PIPE) -> subprocess.Popen[str]:
    """A command that runs in a session of its own."""
    command = [*FTRIE, *words]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True
    )


def lines(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    return map(json.loads, process.stdout)


def events(store: Store, stream: str) -> list[dict[str, Any]]:
    read = getattr(store, stream)(MODEL).read((0, 0), 100_000)
    return [json.loads(payload) for payload in read.payloads]


@pytest.mark.slow
@pytest.mark.parametrize("feedback", ["service", "stream"])
def test_what_visitors_saw_and_clicked_is_in_the_streams(
    market: str, store: Store, tmp_path: Path, feedback: str
) -> None:
    with server(market, tmp_path) as (_, address):
        words = ("--address", address, "--rate", "60", "--seconds", "2", "--feedback", feedback)
        with traffic(market, *words, "--delay", "0.2", "--explore", "thompson:3") as process:
            *windows, summary = lines(process)
            assert process.wait(TIMEOUT_S) == 0
    assert windows and summary["event"] == "summary"
    tally, sent = summary["models"][MODEL], summary["feedback"]
    answered = tally["visits"] + tally["bots"]
    assert answered + summary["lost_visits"] == 120 and answered > 0
    assert 0.05 < tally["expected_ctr"] <= tally["best_ctr"] < 0.4

    impressions, clicks = events(store, "impressions"), events(store, "clicks")
    shown = {each["request_id"]: {item["id"] for item in each["items"]} for each in impressions}
    assert len(shown) >= answered
    assert len({each["event_id"] for each in clicks}) == len(clicks) == sent["clicks"] + sent["conversions"]
    assert sent["clicks"] > 0
    assert all(each["item"] in shown[each["request_id"]] for each in clicks)


@pytest.mark.slow
def test_a_killed_server_ends_no_visits_and_costs_no_click(market: str, store: Store, tmp_path: Path) -> None:
    with ExitStack() as stack:
        victim, first = stack.enter_context(server(market, tmp_path))
        _, second = stack.enter_context(server(market, tmp_path))
        words = ("--address", first, "--address", second, "--rate", "60", "--delay", "0.2")
        process = stack.enter_context(traffic(market, *words))
        told = lines(process)
        next(told)
        end_session(victim.pid)
        failed = 0
        for window in told:
            failed += sum(window["failures"].values())
            if failed and window["feedback"]["failures"]:
                break
        process.send_signal(signal.SIGTERM)
        *_, summary = told
        assert process.wait(TIMEOUT_S) == 0
    assert summary["models"][MODEL]["visits"] > 0 and summary["feedback"]["unsent"] == 0
    clicks = [each["event_id"] for each in events(store, "clicks")]
    acknowledged = summary["feedback"]["clicks"] + summary["feedback"]["conversions"]
    assert len(clicks) == len(set(clicks)) == acknowledged


@pytest.mark.slow
def test_a_store_that_is_about_to_come_back_is_waited_for(tmp_path: Path) -> None:
    valkey = Valkey(tmp_path)
    valkey.kill()
    words = ["--store", valkey.url, "--address", f"127.0.0.1:{free_port()}", "--seconds", "0.5", "--json"]
    with started(["simulate", *words]) as process:
        assert process.stderr is not None
        assert "waiting for it" in process.stderr.readline()
        valkey.start()
        try:
            process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 0
        finally:
            valkey.kill()
