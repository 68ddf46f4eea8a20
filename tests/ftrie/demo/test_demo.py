"""The demo, run as a user runs it: what it shows must be true, and nothing may stay behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from ftrie.demo.market import Shop

DEMO = (sys.executable, "-m", "ftrie", "demo", "--rows")
TIMEOUT_S = 150


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Where the demo makes its temporary folder; short enough for a unix socket."""
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder:
        yield Path(folder)


@pytest.mark.slow
def test_the_demo_learns_the_shop_and_the_server_follows_its_tastes(scratch: Path) -> None:
    finished = subprocess.run(
        [*DEMO, "60000", "--json"],
        env=_environment(scratch),
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr.decode()
    answer = json.loads(finished.stdout)

    for day in answer["days"]:
        loss = day["logloss"]
        assert loss["truth"] < loss["base"] < 1.02 * loss["truth"]
        assert loss["base"] < loss["plain"]
    *first, after = answer["visits"]
    assert [visit["version"] for visit in first] == [1, 1, 1]
    assert after["version"] == 2
    assert [item["id"] for item in after["items"]] != [item["id"] for item in first[0]["items"]]
    for visit in answer["visits"]:
        true = np.array([item["true_ctr"] for item in visit["items"]])
        base = np.array([item["ctr"]["base"] for item in visit["items"]])
        assert np.abs(true - base).max() < 0.08
        assert np.all(np.diff(base) <= 0)
    _nothing_is_left(scratch)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_demo_leaves_nothing_behind(scratch: Path, number: signal.Signals, code: int) -> None:
    """Ctrl-C reaches every process of the group."""
    with subprocess.Popen(
        [*DEMO, "20000"],
        env=_environment(scratch),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        assert any("ranks:" in line for line in demo.stdout), "the demo ended before it ranked"
        (os.killpg if number == signal.SIGINT else os.kill)(demo.pid, number)
        demo.stdout.read()
        assert demo.wait(TIMEOUT_S) == code
    _nothing_is_left(scratch)


def test_the_same_seed_is_the_same_shop_and_clicks_happen_at_the_true_rate() -> None:
    days = [Shop(seed=7).clicks(1, 500) for _ in range(2)]
    assert days[0].log.equals(days[1].log)
    assert not days[0].log.equals(Shop(seed=8).clicks(1, 500).log)
    day = Shop(seed=3).clicks(1, 100_000)
    standard_error = np.sqrt((day.true_ctr * (1 - day.true_ctr)).sum())
    assert abs(day.clicked.sum() - day.true_ctr.sum()) < 4 * standard_error


def _environment(scratch: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(scratch)}


def _nothing_is_left(scratch: Path) -> None:
    assert list(scratch.iterdir()) == []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):  # the process ended meanwhile, or is someone else's
            assert not os.readlink(link).startswith(str(scratch)), link
