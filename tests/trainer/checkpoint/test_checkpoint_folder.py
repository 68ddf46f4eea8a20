"""A folder of checkpoints: the newest sound one, the last three, one run at a time; and when one is due."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from model_store.errors import CheckpointError, UsageError
from trainer.checkpoint.folder import CheckpointFolder, checkpoints_in
from trainer.settings import Every, Schedule

ROOT = Path(__file__).resolve().parents[3]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "lock")


def filled(folder: Path, *rows: int) -> None:
    with CheckpointFolder(folder, pytest.fail) as opened:
        for each in rows:
            opened.write(each, {"rows": each}, {"a": np.arange(each)})


def newest(folder: Path, on_note: Callable[[str], None] = pytest.fail) -> tuple[int, int] | None:
    """Rows of the newest sound checkpoint, and how many newer ones are damaged."""
    with CheckpointFolder(folder, on_note) as opened:
        found = opened.newest()
        if found is None:
            return None
        _, description, arrays, damaged = found
        assert arrays["a"].size == description["rows"]
        return description["rows"], damaged


def test_the_newest_three_are_kept_and_an_empty_folder_is_made(tmp_path: Path) -> None:
    assert newest(tmp_path / "a" / "b") is None
    filled(tmp_path / "a" / "b", 5, 90, 100, 2000)
    assert names(tmp_path / "a" / "b") == [f"{rows:015}.checkpoint" for rows in (90, 100, 2000)]
    assert newest(tmp_path / "a" / "b") == (2000, 0)


def test_a_damaged_one_is_told_of_and_set_aside(tmp_path: Path) -> None:
    filled(tmp_path, 1, 2, 3)
    latest, middle, _ = checkpoints_in(tmp_path)
    latest.write_bytes(latest.read_bytes()[:-3])
    middle.write_bytes(b"")
    notes: list[str] = []
    assert newest(tmp_path, notes.append) == (1, 2)
    assert [str(path) in text for path, text in zip((latest, middle), notes, strict=True)] == [True, True]
    assert names(tmp_path) == [
        "000000000000001.checkpoint",
        "000000000000002.checkpoint.damaged",
        "000000000000003.checkpoint.damaged",
    ]
    assert newest(tmp_path) == (1, 0)


def test_when_all_are_damaged_nothing_is_touched(tmp_path: Path) -> None:
    filled(tmp_path, 1, 2)
    for path in checkpoints_in(tmp_path):
        path.write_bytes(b"?")
    with pytest.raises(CheckpointError, match=r"all 2 checkpoints in .* are damaged"):
        newest(tmp_path, lambda text: None)
    assert names(tmp_path) == ["000000000000001.checkpoint", "000000000000002.checkpoint"]


def test_half_written_files_of_killed_runs_are_removed_and_other_files_left(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    (tmp_path / "000000000000009.begun").write_bytes(b"half")
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "9.checkpoint").write_text("not of ours")
    assert newest(tmp_path) == (1, 0)
    assert names(tmp_path) == ["000000000000001.checkpoint", "9.checkpoint", "mine.txt"]


HOLD = """
import sys
from pathlib import Path
from trainer.checkpoint.folder import CheckpointFolder
with CheckpointFolder(Path(sys.argv[1]), print):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_two_processes_do_not_share_a_folder_and_a_killed_one_lets_go(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(CheckpointError, match="is in use by another run"):
            newest(tmp_path)
        holder.kill()
    assert newest(tmp_path) is None


def test_a_new_folder_is_open_to_its_owner_only_and_one_that_was_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir(mode=0o755)
    for name, mode in (("new", 0o700), ("shared", 0o755)):
        with CheckpointFolder(tmp_path / name, pytest.fail):
            assert (tmp_path / name).stat().st_mode & 0o777 == mode
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be used for checkpoints: Not a directory"):
        newest(tmp_path / "file" / "below")


def test_rows_and_times_are_told_apart_and_anything_else_is_refused() -> None:
    for text, every in (
        ("100000", Every(100_000, None)),
        ("500ms", Every(None, 0.5)),
        ("30s", Every(None, 30)),
        ("5m", Every(None, 300)),
        ("2h", Every(None, 7200)),
    ):
        assert Every.parse(text) == every
    for text in ("", "0", "0m", "m", "5 m", "-5", "1.5h", "1d", "٣"):
        with pytest.raises(UsageError, match="expected a number of rows such as 100000, or a time"):
            Every.parse(text)


def test_rows_and_time_are_counted_from_the_last_checkpoint() -> None:
    schedule = Schedule(Every.parse("100"), 1000)
    assert [schedule.is_due(rows) for rows in (1000, 1099, 1100, 1250)] == [False, False, True, True]
    schedule.restart(1250)
    assert [schedule.is_due(rows) for rows in (1349, 1350)] == [False, True]
    assert not Schedule(Every.parse("1h"), 0).is_due(10**12)
    assert Schedule(Every(None, 0), 0).is_due(0)
