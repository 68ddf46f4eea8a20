"""`ftrie live` as a user runs it: five processes close the loop, what is killed comes back, nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.processes import FTRIE
from tests.waiting import eventually

TIMEOUT_S = 170


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Where `ftrie live` makes its temporary folder; short enough for a unix socket."""
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder:
        yield Path(folder)


def live(scratch: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*FTRIE, "live", *words],
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow
def test_the_loop_closes_and_nothing_is_left_behind(scratch: Path) -> None:
    picture = scratch / "loop.svg"
    words = ("--seconds", "14", "--rate", "30", "--picture", str(picture), "--json")
    with live(scratch, *words) as process:
        out, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, errors
    whole = json.loads(out)
    assert set(whole["exit_codes"].values()) == {0}, errors
    assert whole["frozen_version"] is not None and whole["change_at"] == 3.5
    assert whole["last"]["loop"]["shown"] > whole["last"]["frozen"]["shown"] > 0

    traffic, trainer = whole["traffic"], whole["trainer"]
    answered = sum(tally["visits"] + tally["bots"] for tally in traffic["models"].values())
    assert answered + traffic["lost_visits"] == 14 * 30 and traffic["freshness"]["n"] > 0
    assert traffic["versions"]["market"] > 2 and trainer["ended"] and trainer["dead_letters"] == 0
    joined = trainer["join"]
    assert joined["positives"] > 0 and joined["orphans"] == 0
    assert "tastes change" in picture.read_text("utf-8")
    picture.unlink()
    assert list(scratch.iterdir()) == [] and processes(scratch) == {}


@pytest.mark.slow
def test_what_is_killed_comes_back_and_control_c_takes_all_of_it_down(scratch: Path) -> None:
    folder = scratch / "kept"
    words = ("--dir", str(folder), "--rate", "10", "--change-at", "1000", "--frozen", "0", "--json")
    with live(scratch, *words) as process:
        eventually(lambda: running(folder, "simulate"), "traffic", TIMEOUT_S)
        eventually(lambda: newest_checkpoint(folder) > 0.0, "a checkpoint", TIMEOUT_S)
        killed = time.time()
        for name in ("trainer", "serve"):
            os.kill(min(running(folder, name)), signal.SIGKILL)  # the supervisor, if it has one
        eventually(lambda: len(servers(folder)) == 2, "both servers again", TIMEOUT_S)
        eventually(lambda: newest_checkpoint(folder) > killed + 5.0, "the trainer at work", TIMEOUT_S)
        os.killpg(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, errors
    whole = json.loads(out)
    assert whole["restarts"]["trainer"] == 1
    assert whole["restarts"]["server-1"] + whole["restarts"]["server-2"] == 1
    assert whole["trainer"]["ended"] and processes(folder) == {}


def newest_checkpoint(folder: Path) -> float:
    """When the trainer last kept its state; 0 if it never has."""
    return max((path.stat().st_mtime for path in (folder / "trainer").glob("*.checkpoint")), default=0.0)


def processes(folder: Path) -> dict[int, list[str]]:
    """The command of each process that works in a folder, by its number."""
    found = {}
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):  # it has ended meanwhile, or is someone else's
            if os.readlink(link).startswith(str(folder)):
                found[int(link.parent.name)] = (link.parent / "cmdline").read_text().split("\0")
    return found


def running(folder: Path, command: str) -> dict[int, list[str]]:
    """Those of them that are `ftrie <command>`; a server has several processes."""
    return {pid: words for pid, words in processes(folder).items() if words[2:4] == ["ftrie", command]}


def servers(folder: Path) -> set[str]:
    """The state folders of the servers that run."""
    lines = running(folder, "serve").values()
    return {words[words.index("--state") + 1] for words in lines if "--state" in words}
