"""docs/degradation.md, "The trainer": the disk of its checkpoints is full, or what stands there is damaged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.degradation.learning import LONG_S, OfFiles, OfStreams, ending
from tests.degradation.recovered import Recovered
from tests.degradation.system import COMPILE_S
from tests.waiting import eventually

DISK_BYTES = 64 << 20


def on_a_disk_of_its_own(state: Path) -> list[str]:
    """Runs a command that finds a small file system of its own at `state`."""
    script = f'mount -t tmpfs -o size={DISK_BYTES} tmpfs {state} && exec "$@"'
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]


def fill(file: Path) -> None:
    with suppress(OSError), file.open("wb", buffering=0) as filler:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while filler.write(bytes(size)) == size:
                    pass


def flip_a_bit(file: Path, at: int) -> None:
    with file.open("r+b") as damaged:
        damaged.seek(at, 2 if at < 0 else 0)
        byte = damaged.read(1)[0]
        damaged.seek(-1, 1)
        damaged.write(bytes([byte ^ 1]))


def checkpoints(state: Path) -> list[Path]:
    return sorted(state.glob("*.checkpoint"))


@pytest.mark.slow
def test_disk_of_checkpoints_is_full(tmp_path: Path, recovered: Recovered) -> None:
    state = tmp_path / "state"
    state.mkdir()
    system = OfFiles(tmp_path, "--every", "1s", within=on_a_disk_of_its_own(state))
    with ending(system):
        eventually(system.is_served, "all is served", LONG_S)
        inside = Path(f"/proc/{system.trainer.process.pid}/root{state}")
        eventually(lambda: bool(checkpoints(inside)), "a checkpoint")
        fill(inside / "filler")
        system.learns()
        eventually(lambda: system.trainer.has("failed_checkpoints", 1), "a failed checkpoint")
        eventually(system.is_served, "versions go out all the same", LONG_S)
        assert system.trainer.metric("ftrie_trainer_failed_checkpoints_total") >= 1
        assert "learning continues" in system.trainer.said()
        learned = system.trainer.status()["examples"]
        (inside / "filler").unlink()
        what = "a checkpoint of what was learned"
        recovered.then(lambda: int(checkpoints(inside)[-1].stem) >= learned, what)
        assert not list(inside.glob("*.begun"))


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OfStreams]:
    system = OfStreams(tmp_path_factory.mktemp("ended"), "--every", "1s")
    with ending(system):
        eventually(system.has_learned_all, "all is served", LONG_S)
        eventually(lambda: is_saved(system), "it is in a checkpoint")
        system.more()
        yield system


@pytest.fixture
def stopped(ended: OfStreams) -> OfStreams:
    """A trainer that has ended well, with several checkpoints, and rows that wait for their clicks."""
    eventually(ended.has_learned_all, "all is served", LONG_S)
    ended.trainer.terminate()
    return ended


def is_saved(system: OfStreams) -> bool:
    return bool(int(checkpoints(system.trainer.state)[-1].stem) >= system.trainer.status()["examples"])


@pytest.mark.slow
def test_newest_checkpoint_is_damaged(stopped: OfStreams, recovered: Recovered) -> None:
    newest = checkpoints(stopped.trainer.state)[-1]
    flip_a_bit(newest, 5000)
    recovered.from_now()
    stopped.trainer.start()
    stopped.more()
    recovered.when(stopped.has_learned_all, "it has learned all again, and serves it", COMPILE_S)
    assert stopped.trainer.status()["events"] == stopped.day.given
    assert "trying the checkpoint before it" in stopped.trainer.said()
    assert newest.with_suffix(".checkpoint.damaged").exists()


@pytest.mark.slow
def test_segment_is_damaged(stopped: OfStreams, recovered: Recovered) -> None:
    for segment in stopped.trainer.state.glob("segments/*.rows"):
        flip_a_bit(segment, -100)
    stopped.trainer.start()
    eventually(stopped.trainer.has_ended, "it does not go on", COMPILE_S)
    assert stopped.trainer.process.returncode == 7
    assert "segments" in stopped.trainer.said() and "damaged" in stopped.trainer.said()
    recovered.from_now()
    stopped.trainer.start("--checkpoint", str(stopped.trainer.folder / "anew"), "--init-from", "active")
    stopped.more()
    recovered.when(
        stopped.has_learned_all, "begun again it has learned all that is in the streams", COMPILE_S
    )
