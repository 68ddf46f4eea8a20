"""Killed at any moment and started again, a trainer ends with the model of one that was left in peace."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.trainer.daemon.running import Trainer, trivago

SAME = ("events", "examples", "keys", "dead_letters", "lost", "join")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_killed_again_and_again_the_model_is_bit_identical(tmp_path: Path, store_url: str, seed: int) -> None:
    sources = [word for path in trivago(tmp_path) for word in ("--from", str(path))]
    flags = (*sources, "--no-publish", "--once", "--every", "3000")
    undisturbed = Trainer(tmp_path, store_url, *flags, "--save", "a.arrow", state="left-in-peace").last()
    chance = random.Random(seed)
    for _ in range(4):
        killed = Trainer(tmp_path, store_url, *flags, "--save", "b.arrow")
        killed.process.stderr.readline()  # type: ignore[union-attr]  # it runs
        try:
            killed.process.wait(chance.uniform(0.5, 4.0))
        except Exception:
            killed.kill()
    disturbed = Trainer(tmp_path, store_url, *flags, "--save", "b.arrow").last()
    assert {name: disturbed[name] for name in SAME} == {name: undisturbed[name] for name in SAME}
    assert (tmp_path / "a.arrow").read_bytes() == (tmp_path / "b.arrow").read_bytes()
