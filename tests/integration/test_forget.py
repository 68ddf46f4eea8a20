"""`ftrie store forget` while a trainer runs: it forgets without stopping, in its checkpoints too, and for good."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from ftrie.api.client import Client
from ftrie.api.feedback import Feedback
from ftrie.cli import run
from model_store.keys import history_key
from model_store.store import Store
from tests.integration.processes import serving
from tests.model_store.models import model
from tests.trainer.runs.running import NAME, Trainer, once
from tests.waiting import eventually
from tests.worlds import event_logs

SPEC_END = """
[fields.seen]
side = "user"
kind = "number"
bucket = "log"
history = "seen"
measure = "count"
"""
REQUESTS = 200


def requests_of(lines: list[bytes], cookie: str) -> list[str]:
    return [event["request_id"] for event in map(json.loads, lines) if event["cookie"] == cookie]


@pytest.fixture
def cookie() -> str:
    """One with a request that is still pending when all events are read."""
    return str(json.loads(event_logs(REQUESTS).impressions[-1])["cookie"])


@pytest.mark.slow
def test_a_running_trainer_forgets_a_person_and_remembers_to_after_a_kill(
    store: Store, store_url: str, tmp_path: Path, cookie: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given a trainer with waiting rows and histories, theirs are gone everywhere, and the counts add up."""
    logs = event_logs(REQUESTS)
    store.impressions(NAME).append(logs.impressions)
    trainer = Trainer(tmp_path, store_url, "--every", "100000", spec_end=SPEC_END)
    before = trainer.until("events", REQUESTS)
    theirs = requests_of(logs.impressions, cookie)
    assert run(["store", "forget", cookie, "--store", store_url, "--wait", "60", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [(each["process"].split()[0], each["forgot"]) for each in answer["trainers"]] == [
        (str(trainer.process.pid), True)
    ]
    assert answer["models"][0]["impressions"] == len(theirs)
    folder = tmp_path / "state"
    assert len(list(folder.glob("*.checkpoint"))) == 1
    for path in [*folder.glob("*.checkpoint"), *folder.glob("segments/*")]:
        assert cookie.encode() not in path.read_bytes()
    assert not store.client.exists(history_key(NAME, cookie.encode()))
    trainer.kill()
    assert before["join"]["pending"]

    # Their clicks join nothing any more; those of all others do.
    store.clicks(NAME).append(logs.clicks)
    store.impressions(NAME).append(event_logs(REQUESTS + 1).impressions[-1:])
    after = once(tmp_path, store_url, spec_end=SPEC_END)
    counts = after["join"]
    clicks = sum(json.loads(line)["request_id"] in theirs for line in logs.clicks)
    assert counts["impressions"] == counts["closed"] + counts["duplicate_impressions"] == REQUESTS + 1
    assert counts["rows"] == counts["positives"] + counts["negatives"]
    assert clicks and counts["unknown_item"] >= clicks
    assert after["lost"] == dict.fromkeys(after["lost"], 0)
    assert not store.client.exists(history_key(NAME, cookie.encode()))
    assert store.check([NAME]) == []


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_partitions_forget_at_the_beginning_of_a_round(
    store: Store, store_url: str, tmp_path: Path, cookie: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given two partitions and a trainer that does not publish, all forget, and those that have a lease say so."""
    store.impressions(NAME).append(event_logs(REQUESTS).impressions)
    flags = ("--reconcile", "2s", "--every", "1s")
    both = [Trainer(tmp_path, store_url, "--partition", f"{n}/2", *flags, state=str(n)) for n in (1, 2)]
    trial = Trainer(tmp_path, store_url, "--no-publish", "--every", "100000", state="trial")
    for trainer in both:
        trainer.until("round", 1)
    trial.until("events", REQUESTS)
    assert run(["store", "forget", cookie, "--store", store_url, "--wait", "120", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["trainers"]
    assert [(each["partition"], each["forgot"]) for each in found] == [(1, True), (2, True)]
    written = tmp_path / "trial"
    eventually(
        lambda: any(b'"forgotten"' in path.read_bytes() for path in written.glob("*.checkpoint")),
        "the checkpoint of the trainer without a lease",
        30.0,
    )
    for trainer in (*both, trial):
        trainer.terminate()
    paths = [path for path in tmp_path.rglob("*") if path.suffix in (".checkpoint", ".rows")]
    assert len(paths) >= 3
    assert not any(cookie.encode() in path.read_bytes() for path in paths)


@pytest.mark.slow
def test_what_a_server_wrote_is_forgotten_while_it_serves(
    store: Store, store_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given a server's impressions, recorded requests and shadows of two persons, one's are gone from all files."""
    ads = store.model("ads")
    ads.publish_and_activate(model())
    ads.experiments.change(lambda before: replace(before, shadows=("plain",), shares={"base": 1.0}))
    store.records.put_users([(each, {"age": "25"}) for each in ("ann", "bob")])
    recorded, shadows = tmp_path / "requests.jsonl", tmp_path / "shadows.jsonl"
    flags = ("--impressions", "store", "--record", str(recorded), "--shadow-log", str(shadows))
    words = [
        "store",
        "forget",
        "ann",
        "--store",
        store_url,
        "--file",
        str(recorded),
        "--file",
        str(shadows),
        "--json",
    ]
    with serving("ads", store_url, *flags) as address, Client(address, timeout_s=20) as client:

        def rank(cookie: str) -> str:
            return client.rank("ads", cookie=cookie, candidates=["a", "b"]).request_id

        def written() -> list[int]:
            files = [path.read_bytes().count(b"\n") for path in (recorded, shadows) if path.exists()]
            return [store.impressions("ads").info().length, *files]

        asked = {cookie: [rank(cookie) for _ in range(3)] for cookie in ("ann", "bob")}
        client.feedback("ads", [Feedback(asked[cookie][0], "a") for cookie in asked])
        views = [Feedback("", "a", "view", event_id=cookie * 2, cookie=cookie) for cookie in asked]
        assert client.feedback("ads", views).accepted == 2
        eventually(lambda: written() == [6, 6, 6], "all that is written", 30.0)
        mode = recorded.stat().st_mode
        assert run([*words, "--dry-run"]) == 0 and written() == [6, 6, 6]
        capsys.readouterr()
        assert run(words) == 0
        answer = json.loads(capsys.readouterr().out)
        assert (answer["record"], answer["models"][0]["impressions"], answer["models"][0]["clicks"]) == (
            True,
            3,
            2,  # a click, and a view
        )
        assert answer["files"] == {str(recorded): 3, str(shadows): 3}
        asked["bob"].append(rank("bob"))
        eventually(lambda: written() == [4, 4, 4], "what the server wrote since", 30.0)
    assert recorded.stat().st_mode == mode
    clicks = repr(store.client.xrange("ftrie:{ads}:clicks"))
    assert clicks.count("bobbob") == 1
    left = (
        recorded.read_text()
        + shadows.read_text()
        + repr(store.client.xrange("ftrie:{ads}:impressions"))
        + clicks
    )
    assert "ann" not in left and not any(request in left for request in asked["ann"])
    assert all(left.count(request) >= 2 for request in asked["bob"])
    packed = tmp_path / "old.jsonl.gz"
    packed.write_bytes(gzip.compress(b"{}"))
    assert run([*words, "--file", str(packed)]) == 3
    assert "is compressed" in capsys.readouterr().err
