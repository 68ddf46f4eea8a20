"""Processes are killed at random under traffic; afterwards every entry of the streams is accounted for.

And the model is that of a clean run over the same streams, to the last bit.

`pytest tests/chaos --chaos-seconds 600` disturbs for ten minutes; by default it is well below one.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from model_store.artefact.artefact import Artefact
from model_store.store import Store
from tests.chaos.loop import COMPILE_S, MODEL, WINDOW_S, Process, Server, WholeLoop, begin, learned
from tests.waiting import eventually

RATE = 40.0


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[WholeLoop]:
    """The loop with a first model that both servers serve; not yet any traffic."""
    whole = WholeLoop(tmp_path, RATE)
    try:
        whole.valkey.start()
        begin(tmp_path, whole.valkey.url, WINDOW_S)
        for process in (*whole.servers, whole.trainer):
            process.start()
        for server in whole.servers:
            server.await_up()
        yield whole
    finally:
        whole.take_down()


def disturb(whole: WholeLoop, seconds: float, chance: random.Random) -> None:
    """Kill one process after the other, and start it again after a moment: each kind once, then any, for so long.

    A server's worker is killed alone at times: then its supervisor starts the next one.
    """
    ends = time.monotonic() + seconds
    kills: list[tuple[Process, bool]] = [(process, False) for process in whole.everything()]
    kills += [(server, True) for server in whole.servers]
    once = chance.sample(kills, len(kills))
    while once or time.monotonic() < ends:
        time.sleep(chance.uniform(0.2, 1.2))
        victim, worker_alone = once.pop() if once else chance.choice(kills)
        if isinstance(victim, Server) and worker_alone:
            victim.kill_worker()
        else:
            victim.kill()
            time.sleep(chance.uniform(0.0, 0.8))
            victim.start()
        for process in whole.everything():
            assert not process.ended_by_itself, process.said()


def settle(whole: WholeLoop) -> None:
    """Let all come up again, then end all but the store in good order, what makes events first."""
    ending = (whole.traffic, *whole.servers, whole.trainer)
    for process in ending:
        process.await_up()
    for process in ending:
        process.end(COMPILE_S)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_after_random_kills_all_is_accounted_for_and_the_model_is_that_of_a_clean_replay(
    loop: WholeLoop, request: pytest.FixtureRequest
) -> None:
    seconds = request.config.getoption("--chaos-seconds")
    chance = random.Random(request.config.getoption("--chaos-seed"))
    loop.traffic.start()
    eventually(lambda: published(loop) > 1, "a version learned from the traffic", COMPILE_S)
    disturb(loop, seconds, chance)
    settle(loop)

    where = loop.folder, loop.valkey.url
    disturbed = learned(*where, "state", "--save", "disturbed.arrow")
    clean = learned(*where, "clean", "--no-publish", "--save", "clean.arrow")

    killed = {process.name: process.kills for process in loop.everything()}
    assert min(killed.values()) >= 1 and sum(killed.values()) >= seconds / 5, killed
    balance(loop, disturbed)
    for part in ("counts", "join", "dead_letters", "lost"):
        assert disturbed[part] == clean[part], part
    assert (loop.folder / "disturbed.arrow").read_bytes() == (loop.folder / "clean.arrow").read_bytes()
    clean_model = Artefact.read(loop.folder / "clean.arrow")
    with Store.open(loop.valkey.url) as store:
        served = store.model(MODEL)
        assert served.materialise(served.active_or_fail()).content == clean_model.content


def balance(loop: WholeLoop, status: dict[str, dict[str, int]]) -> None:
    """Every entry of both streams was learned from, was a duplicate, or is a dead letter; nothing is left over.

    It begins at the streams: what a server that is killed had answered and not yet logged is nowhere. Of servers that
    end well, answers = logged + dropped and logged = entries: tests/server/events/test_logged.py.
    """
    with Store.open(loop.valkey.url) as store:
        impressions, clicks = store.impressions(MODEL).info(), store.clicks(MODEL).info()
    counts, join = status["counts"], status["join"]
    assert (
        counts["impressions"] + counts["feedback"] + counts["bad_events"] == impressions.added + clicks.added
    )
    assert impressions.added == counts["impressions"] > RATE
    assert clicks.added == counts["feedback"] > 0
    assert set(status["lost"].values()) == {0}
    assert join["pending"] == 0
    assert join["impressions"] == counts["impressions"] == join["closed"] + join["duplicate_impressions"]
    assert join["rows"] == join["positives"] + join["negatives"]
    assert join["rows"] + join["corrections"] == (
        counts["examples"] + counts["bad_rows"] + counts["subsampled"] + counts["unknown_items"]
    )


def published(loop: WholeLoop) -> int:
    with Store.open(loop.valkey.url) as store:
        return store.model(MODEL).active() or 0
