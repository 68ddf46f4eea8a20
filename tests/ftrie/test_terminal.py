"""Progress, tables and JSON, on a terminal and off."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest

from ftrie import terminal
from model_store.errors import shown


@pytest.fixture(autouse=True)
def _forget_json() -> Iterator[None]:
    yield
    terminal.set_json_output(False)


def test_off_a_terminal_progress_ends_in_a_plain_line(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.progress("train", total=1000) as bar:
        for done in range(0, 1001, 10):
            bar.update(done, logloss=0.38749, keys=1234567)
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("train: 100 % · 1,000 rows · ")
    assert line.endswith("logloss 0.38749 · keys 1,234,567")


def test_long_work_off_a_terminal_says_something_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(100))
    monkeypatch.setattr(terminal.time, "monotonic", lambda: float(next(now)))
    with terminal.progress("load", unit="records") as bar:
        for done in range(20):
            bar.update(done)
    lines = capsys.readouterr().err.splitlines()
    assert 1 < len(lines) < 10
    assert all(line.startswith("load: ") and "records" in line for line in lines)


LONG_WORK = """
from ftrie.terminal import note_parts, print_table, progress
print_table({heads}, [{row}])
print("--")
note_parts({parts!r})
print("--", flush=True)
with progress("train", total=3) as bar:
    for done in range(4):
        bar.update(done, logloss=0.25, keys=123456789, more=10**30)
"""
CORRECTED_ESTIMATE = """
import time
from ftrie.terminal import progress
with progress("train", total=50) as bar:
    for done in range(1, 31):
        bar.update(done, total=50 + done % 3)
        time.sleep(0.06)
"""


def on_80_columns(program: str) -> str:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    with subprocess.Popen([sys.executable, "-c", program], stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = _read_all(ours)
    assert process.returncode == 0
    return shown


def test_a_narrow_terminal_folds_long_heads_and_lines_and_a_bar_leaves_out_what_does_not_fit() -> None:
    heads = ["variant", "log-loss", "difference", "AUC", "calibration", "normalized entropy"]
    row = ["plain", 0.29289, "+0.01793 ± 0.00049", 0.5828, 1.00274, 0.98826]
    parts = "1,234,567 events (12,345/s) · 4,567,890 examples · 123,456 keys · version 12 · lag 0.1 s"
    drawn = on_80_columns(LONG_WORK.format(heads=heads, row=row, parts=parts))
    assert "━" in drawn
    drawn_lines = re.sub("\x1b[^A-Za-z]*[A-Za-z]", "", drawn).splitlines()
    assert max(map(len, drawn_lines)) <= 80
    lines = [line.strip() for line in drawn_lines if line.strip()]
    first, second = (at for at, line in enumerate(lines) if line == "--")
    assert any("0.29289   +0.01793 ± 0.00049   0.58280" in line for line in lines[:first])
    assert second - first > 2 and " · ".join(lines[first + 1 : second]) == parts
    last = lines[-1]
    assert "3 rows" in last and "logloss 0.25000" in last and "more" not in last
    assert re.search(r"in \d:\d\d$", last) and "ETA" not in last


@pytest.mark.slow
def test_an_estimate_that_is_corrected_still_gives_an_eta() -> None:
    assert re.search(r"ETA 0:0\d", on_80_columns(CORRECTED_ESTIMATE))


def test_json_silences_progress_and_notes_and_refuses_a_number_that_is_not_finite(
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal.set_json_output(True)
    with terminal.progress("train") as bar:
        bar.update(5)
    terminal.note("compiling")
    assert capsys.readouterr() == ("", "")
    with pytest.raises(ValueError, match="JSON"):
        terminal.print_json({"ctr": float("nan")})


def test_a_table_in_a_pipe_is_neither_cut_nor_folded_and_values_are_shown_for_reading(
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal.print_table(("item", "ctr"), [("x" * 300, 0.5), ("[red]", 12)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["x" * 300, "0.50000"]
    assert lines[3].split() == ["[red]", "12"]
    values = (None, True, 1234567, 0.387491, 12345.6, "a")
    assert [*map(shown, values)] == ["—", "yes", "1,234,567", "0.38749", "12,346", "a"]


def _read_all(descriptor: int) -> str:
    pieces = []
    try:
        while piece := os.read(descriptor, 4096):
            pieces.append(piece)
    except OSError:  # the other side of a pseudo-terminal closed
        pass
    os.close(descriptor)
    return b"".join(pieces).decode()
