"""How a trainer begins, ends, and goes on when the store does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from model_store.artefact.artefact import Artefact
from model_store.store import Store
from model_store.versions.model_versions import ModelVersions
from tests.degradation.system import Valkey
from tests.integration.processes import ftrie
from tests.simulated import event_logs
from tests.trainer.runs.running import NAME, Trainer
from tests.waiting import eventually


@pytest.mark.slow
def test_sigterm_saves_publishes_and_gives_the_lease_back(
    store: Store, store_url: str, tmp_path: Path
) -> None:
    impressions, clicks = event_logs(500).write(tmp_path)
    trainer = Trainer(tmp_path, store_url, "--from", impressions, "--from", clicks, "--publish-every", "1h")
    trainer.until("examples", 1)
    last = trainer.terminate()
    artefact = store.model(NAME).materialise(store.model(NAME).active_or_fail())
    assert artefact.rows > 0
    assert last["version"] == store.model(NAME).active()
    # Another folder's trainer need not wait, and the same folder's has nothing left to do.
    other = Trainer(
        tmp_path, store_url, "--from", impressions, "--from", clicks, "--no-activate", state="other"
    )
    other.until("examples", last["examples"])
    other.terminate()
    flags = ("--from", impressions, "--from", clicks, "--once", "--no-publish")
    again = Trainer(tmp_path, store_url, *flags).last()
    assert again["events"] == 1000


@pytest.mark.slow
def test_without_a_store_it_waits_and_then_begins(tmp_path: Path) -> None:
    valkey = Valkey(tmp_path)
    valkey.kill()
    impressions, clicks = event_logs(100).write(tmp_path)
    trainer = Trainer(tmp_path, valkey.url, "--from", impressions, "--from", clicks, "--once")
    assert trainer.process.stderr is not None
    assert "waiting for it" in trainer.process.stderr.readline()
    valkey.start()
    try:
        assert trainer.last()["examples"] > 0
        with Store.open(valkey.url) as store:
            assert store.model(NAME).active() is not None
    finally:
        valkey.kill()


@pytest.mark.slow
def test_while_the_store_is_away_it_learns_on_and_then_publishes_what_it_has(tmp_path: Path) -> None:
    valkey = Valkey(tmp_path)
    impressions, clicks = event_logs(400).write(tmp_path)
    shown = impressions.read_bytes().splitlines(keepends=True)
    impressions.write_bytes(b"".join(shown[:200]))
    trainer = Trainer(tmp_path, valkey.url, "--from", impressions, "--from", clicks, "--idle", "0.1")
    try:
        before = trainer.until("version", 1)
        valkey.kill()
        with impressions.open("ab") as log:
            log.writelines(shown[200:])
        away = trainer.until("events", 800)
        assert away["examples"] > before["examples"]
        valkey.start()
        with Store.open(valkey.url) as store:
            through_us = away["counts"]["through_us"]
            eventually(lambda: is_through(store.model(NAME), through_us), "a version of what was learned")
        trainer.terminate()
    finally:
        valkey.kill()


def is_through(versions: ModelVersions, through_us: int) -> bool:
    """Whether the active version has learned from all events up to then."""
    active = versions.active()
    return active is not None and (versions.manifest(active).through_us or 0) >= through_us


@pytest.mark.slow
def test_what_cannot_be_learned_is_a_dead_letter_once_also_after_a_kill(
    store: Store, store_url: str, tmp_path: Path
) -> None:
    good = event_logs(20).impressions
    wrong = json.loads(good[3])
    wrong["items"][0]["features"]["price"] = "cheap"
    bad = [b"not JSON", b'{"request_id": "r"}', b'{"request_id": "r", "ts": 1, "items": [{"id": ""}]}']
    stream = store.impressions(NAME)
    stream.append([*good[:3], json.dumps(wrong).encode(), *bad, *good[4:]])
    killed = Trainer(tmp_path, store_url, "--no-publish", "--every", "1h")
    killed.until("dead_letters", 3)
    eventually(lambda: len(list(store.dead_letters(NAME).latest(10))) == 3, "three letters")
    killed.kill()
    last = Trainer(tmp_path, store_url, "--no-publish", "--once").last()
    assert last["dead_letters"] == 4
    letters = [letter for _, letter in store.dead_letters(NAME).latest(10)][::-1]
    assert [letter.json for letter in letters[:3]] == bad
    ids = stream.read((0, 0), 7).ids[4:].tolist()
    assert [letter.place for letter in letters[:3]] == [f"{ms}-{seq}" for ms, seq in ids]
    assert letters[3].source == "join"
    assert "price" in letters[3].reason and "cheap" in letters[3].reason
    counts = last["counts"]
    assert counts["bad_events"] == 3 and counts["bad_rows"] == 1
    join = last["join"]
    assert join["positives"] + join["negatives"] == counts["examples"] + counts["bad_rows"]


@pytest.mark.slow
def test_what_an_earlier_run_has_published_is_not_published_again(
    store: Store, store_url: str, tmp_path: Path
) -> None:
    impressions, clicks = event_logs(100).write(tmp_path)
    flags = ("--from", impressions, "--from", clicks)
    first = Trainer(tmp_path, store_url, *flags)
    first.until("events", 200)
    version = first.terminate()["version"]
    again = Trainer(tmp_path, store_url, *flags)
    again.until("events", 200)
    assert again.terminate()["version"] is None
    kept = json.loads(ftrie("checkpoint", tmp_path / "state", "--json"))[0]["stream"]
    assert kept["sources"] == [str(impressions), str(clicks)]
    assert kept["counts"]["impressions"] == kept["join"]["impressions"] == 100
    assert store.model(NAME).active() == version


@pytest.mark.slow
def test_what_once_closes_goes_out_though_no_event_came(store: Store, store_url: str, tmp_path: Path) -> None:
    impressions, clicks = event_logs(100).write(tmp_path)
    flags = ("--from", impressions, "--from", clicks)
    first = Trainer(tmp_path, store_url, *flags)
    first.until("events", 200)
    left_open = first.terminate()
    assert left_open["join"]["pending"] > 0
    closed = Trainer(tmp_path, store_url, *flags, "--once", "--save", "closed.arrow").last()
    assert closed["examples"] > left_open["examples"]
    versions = store.model(NAME)
    served = versions.materialise(versions.active_or_fail())
    assert served.content == Artefact.read(tmp_path / "closed.arrow").content
