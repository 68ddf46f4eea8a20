"""How a trainer begins, ends, and goes on when the store does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftrie.cli import run
from model_store.artefact.artefact import Artefact
from model_store.errors import Pinned
from model_store.store import Store
from tests.degradation.system import Valkey
from tests.integration.processes import ftrie
from tests.trainer.runs.running import COMPILE_S, NAME, Trainer, command_of, once
from tests.waiting import eventually
from tests.worlds import event_logs


@pytest.mark.slow
def test_sigterm_saves_publishes_and_gives_the_lease_back_and_once_closes_what_is_open(
    store: Store, store_url: str, tmp_path: Path
) -> None:
    impressions, clicks = event_logs(100).write(tmp_path)
    flags, versions = ("--from", impressions, "--from", clicks), store.model(NAME)
    trainer = Trainer(tmp_path, store_url, *flags, "--publish-every", "1h")
    trainer.until("events", 200)
    last = trainer.terminate()
    assert versions.materialise(versions.active_or_fail()).rows > 0
    assert last["version"] == versions.active() and last["join"]["pending"] > 0
    # What an earlier run has published is not published again.
    again = Trainer(tmp_path, store_url, *flags)
    again.until("events", 200)
    assert again.terminate()["version"] is None and versions.active() == last["version"]
    kept = json.loads(ftrie("checkpoint", tmp_path / "state", "--json"))[0]["stream"]
    assert kept["sources"] == [str(impressions), str(clicks)]
    assert kept["counts"]["impressions"] == kept["join"]["impressions"] == 100
    # Another folder's trainer need not wait; what `--once` closes goes out though no event came.
    once(tmp_path, store_url, *flags, "--no-activate", state="other")
    saved = tmp_path / "closed.arrow"
    closed = once(tmp_path, store_url, *flags, "--save", saved)
    assert (closed["events"], closed["examples"] > last["examples"]) == (200, True)
    assert versions.materialise(versions.active_or_fail()).content == Artefact.read(saved).content


@pytest.mark.slow
def test_a_last_checkpoint_that_cannot_be_written_is_said_and_the_exit_code_tells(
    store: Store, store_url: str, tmp_path: Path
) -> None:
    impressions, clicks = event_logs(100).write(tmp_path)
    trainer = Trainer(tmp_path, store_url, "--from", impressions, "--from", clicks, "--every", "1h")
    rows = trainer.until("events", 200)["examples"]
    (tmp_path / "state" / f"{rows:015d}.checkpoint" / "in the way").mkdir(parents=True)
    trainer.process.terminate()
    assert trainer.wait() == 7 and "the last checkpoint could not be written" in trainer.said()
    assert trainer.status()["ended"] and trainer.status()["version"] == store.model(NAME).active()


@pytest.mark.slow
def test_without_a_store_it_waits_and_then_begins(tmp_path: Path) -> None:
    valkey = Valkey(tmp_path)
    valkey.kill()
    impressions, clicks = event_logs(100).write(tmp_path)
    trainer = Trainer(tmp_path, valkey.url, "--from", impressions, "--from", clicks, "--once")
    eventually(lambda: "waiting for it" in trainer.said(), "it says so", COMPILE_S)
    valkey.start()
    try:
        assert trainer.last()["examples"] > 0
        with Store.open(valkey.url) as store:
            assert store.model(NAME).active() is not None
    finally:
        valkey.kill()


@pytest.mark.slow
def test_what_cannot_be_learned_is_a_dead_letter_once_also_after_a_kill(store, store_url, tmp_path):
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
    last = once(tmp_path, store_url, "--no-publish")
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


def test_a_rollback_holds_over_restarts_until_versions_may_go_on(store, store_url, tmp_path, capsys):
    versions, lines = store.model(NAME), iter(event_logs(400).impressions)

    def learned() -> int:
        store.impressions(NAME).append([next(lines) for _ in range(40)])
        return run(command_of(tmp_path, store_url, flags=["--once"]))

    assert (learned(), learned()) == (0, 0) and versions.active() == 2
    versions.rollback(1)
    for newest in (3, 4):
        capsys.readouterr()
        assert learned() == Pinned.exit_code
        said = capsys.readouterr().err
        assert "stays inactive: an operator has pinned version 1" in said
        assert "ftrie store resume hotels" in said
        assert (versions.versions()[-1].version, versions.active()) == (newest, 1)
    versions.resume()
    assert (learned(), versions.active()) == (0, 5)


def test_read_in_other_pieces_the_model_is_the_same(tmp_path: Path, store_url: str) -> None:
    """As files that are complete, and as a folder: the events and their order are the same."""
    impressions, clicks = event_logs(100).write(tmp_path)
    folder = tmp_path / "cut"
    folder.mkdir()
    lines = impressions.read_bytes().splitlines(keepends=True)
    for number in range(0, len(lines), 7):
        (folder / f"{number:05d}.jsonl").write_bytes(b"".join(lines[number : number + 7]))
    saved = [tmp_path / "files.arrow", tmp_path / "folder.arrow"]
    for source, file in zip((impressions, folder), saved, strict=True):
        flags = ("--from", source, "--from", clicks, "--no-publish", "--save", file)
        lags = once(tmp_path, store_url, *flags, state=file.stem)["lags"]
        assert not any(lag["bytes"] for lag in lags.values())  # files read to their end are not behind
    assert saved[0].read_bytes() == saved[1].read_bytes()
