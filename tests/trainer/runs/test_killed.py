"""Killed at any moment and started again, a trainer ends with the model of one that was left in peace."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.simulated import event_logs
from tests.trainer.runs.running import Trainer

SAME = ("events", "examples", "keys", "dead_letters", "lost", "counts", "join")
ROWS = 150_000


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_killed_again_and_again_the_model_is_bit_identical(tmp_path: Path, store_url: str, seed: int) -> None:
    sources = [word for path in event_logs(7000).write(tmp_path) for word in ("--from", str(path))]
    flags = (*sources, "--no-publish", "--once", "--every", "3000")
    undisturbed = Trainer(tmp_path, store_url, *flags, "--save", "a.arrow", state="left-in-peace").last()
    chance = random.Random(seed)
    stops = sorted(chance.randrange(ROWS) for _ in range(5))
    for stop in stops:
        killed = Trainer(tmp_path, store_url, *flags, "--save", "b.arrow")
        while (status := killed.line())["examples"] < stop and not status["ended"]:
            pass
        killed.kill()
    disturbed = Trainer(tmp_path, store_url, *flags, "--save", "b.arrow").last()
    assert {name: disturbed[name] for name in SAME} == {name: undisturbed[name] for name in SAME}
    assert (tmp_path / "a.arrow").read_bytes() == (tmp_path / "b.arrow").read_bytes()


@pytest.mark.slow
def test_read_in_other_pieces_the_model_is_the_same(tmp_path: Path, store_url: str) -> None:
    """As files that are complete, as a folder, and as streams of the store: the events and their order are the same."""
    impressions, clicks = event_logs(300).write(tmp_path)
    flags = ("--no-publish", "--once")
    Trainer(
        *(tmp_path, store_url, "--from", impressions, "--from", clicks, *flags),
        *("--save", "files.arrow"),
        state="files",
    ).last()
    folder = tmp_path / "cut"
    folder.mkdir()
    lines = impressions.read_bytes().splitlines(keepends=True)
    for number in range(0, len(lines), 7):
        (folder / f"{number:05d}.jsonl").write_bytes(b"".join(lines[number : number + 7]))
    Trainer(
        *(tmp_path, store_url, "--from", folder, "--from", clicks, *flags),
        *("--save", "folder.arrow"),
        state="folder",
    ).last()
    assert (tmp_path / "files.arrow").read_bytes() == (tmp_path / "folder.arrow").read_bytes()
