"""Answers that are computed before they are shown: `ftrie serve`, `ftrie trainer` and a client, each a process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from ftrie.api.client import Client
from ftrie.api.feedback import Feedback
from model_store.store import Store
from tests.chaos.loop import COMPILE_S, FTRIE, Process
from tests.integration.processes import ftrie, serving
from tests.waiting import eventually

WINDOW_S = 3.0
ITEMS = ["a", "b", "c"]
SPEC = f"""
[model]
name = "pages"
[input]
label = "click"
timestamp = "ts"
request = "request_id"
item = "item"
[fields]
item = {{ side = "item" }}
[join]
window = "{WINDOW_S:g}s"
lateness = "1s"
[learner]
l1 = 0.0
"""


@pytest.mark.slow
def test_a_deferred_answer_is_learned_if_it_is_activated_in_time(
    store: Store, store_url: str, tmp_path: Path
) -> None:
    """Given answers that are activated once, twice, too late or never, the first two are learned, each once."""
    spec = tmp_path / "pages.toml"
    spec.write_text(SPEC)
    rows = "".join(f"{n % 2},r{n},{n},{ITEMS[n % 3]}\n" for n in range(12))
    (tmp_path / "first.csv").write_text(f"click,request_id,ts,item\n{rows}")
    ftrie("train", spec, tmp_path / "first.csv", "--store", store_url, "--activate")
    command = [*FTRIE, "trainer", spec, "--store", store_url, "--checkpoint", "state", "--json"]
    trainer = Process("trainer", tmp_path, [*command, "--init-from", "active", "--say-every", "0.2"])
    trainer.start()
    try:
        trainer.await_up()
        with (
            serving("pages", store_url, "--impressions", "store") as address,
            Client(address, 20.0) as client,
        ):
            shown = _asked_and_told(client, lambda: trainer.lines()[-1])
        eventually(lambda: trainer.lines()[-1]["join"]["impressions"] == shown, "all impressions", COMPILE_S)
        trainer.end(COMPILE_S)
    finally:
        trainer.kill()
    last = trainer.lines()[-1]
    join = last["join"]
    assert join["rows"] == len(ITEMS) * shown
    assert (join["positives"], join["unactivated"], join["unseen"]) == (3, 2, 2 * len(ITEMS))
    assert join["negatives"] + join["pending_rows"] == len(ITEMS) * (shown - 2) - 3
    assert last["counts"]["examples"] == join["positives"] + join["negatives"]
    assert (join["activated"], join["duplicate_feedback"], join["late"], join["orphans"]) == (5, 1, 1, 1)
    assert last["dead_letters"] == 0


def _asked_and_told(client: Client, status: Any) -> int:
    """Ask and report until the trainer has closed all that is not activated; returns how many answers there were."""
    shown = 0

    def ask(deferred: bool = False) -> str:
        nonlocal shown
        shown += 1
        return client.rank("pages", candidates=ITEMS, deferred=deferred).request_id

    def tell(*events: Feedback) -> None:
        report = client.feedback("pages", events)
        assert (report.accepted, report.rejected) == (len(events), ())

    once, twice, late, never = (ask(deferred=True) for _ in range(4))
    tell(*(Feedback(request, "b") for request in (once, twice, late, never, ask())))
    activated = [Feedback(request, event="activated") for request in (once, twice, "never-answered")]
    # The service takes the same event once; this is another one that says the same.
    tell(*activated, Feedback(twice, event="activated", event_id="again"))
    eventually(lambda: status()["join"]["positives"] == 3, "what was clicked and shown is learned", COMPILE_S)
    time.sleep(WINDOW_S)
    tell(Feedback(late, event="activated"))

    def is_over() -> bool:
        ask()  # only events move the trainer's time
        join = status()["join"]
        return bool(join["unactivated"] == 2 and join["orphans"] == 1 and join["late"] == 1)

    eventually(is_over, "the rest is closed", COMPILE_S)
    return shown
