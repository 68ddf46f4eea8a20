"""Killed at any moment and started again, a trainer ends with the model of one that was left in peace."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.trainer.runs.running import Trainer, once
from tests.worlds import event_logs

SAME = ("events", "examples", "keys", "dead_letters", "lost", "counts", "join")
REQUESTS = 4000
KILLS = 4


@pytest.mark.slow
def test_killed_again_and_again_the_model_is_bit_identical(tmp_path: Path, store_url: str) -> None:
    sources = [word for path in event_logs(REQUESTS).write(tmp_path) for word in ("--from", str(path))]
    flags = (*sources, "--no-publish", "--every", "3000")
    undisturbed = once(tmp_path, store_url, *flags, "--save", str(tmp_path / "a.arrow"), state="in-peace")
    chance = random.Random(1)
    again = (*flags, "--once", "--save", "b.arrow", "--say-every", "0.1")
    for stop in sorted(chance.randrange(undisturbed["examples"]) for _ in range(KILLS)):
        killed = Trainer(tmp_path, store_url, *again)
        killed.until("examples", stop)
        killed.kill()
    disturbed = Trainer(tmp_path, store_url, *again).last()
    assert {name: disturbed[name] for name in SAME} == {name: undisturbed[name] for name in SAME}
    assert (tmp_path / "a.arrow").read_bytes() == (tmp_path / "b.arrow").read_bytes()


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
