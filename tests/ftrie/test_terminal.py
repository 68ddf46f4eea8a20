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

LONG_WORK = """
from ftrie.terminal import progress
with progress("train", total=3) as bar:
    for done in range(4):
        bar.update(done, logloss=0.25)
"""


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


def test_on_a_terminal_progress_is_a_bar() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", LONG_WORK], stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = _read_all(ours)
    assert process.returncode == 0
    assert "━" in shown
    assert "3 rows" in shown


def _on_80_columns(program: str) -> str:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    with subprocess.Popen([sys.executable, "-c", program], stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = _read_all(ours)
    assert process.returncode == 0
    return re.sub("\x1b[^A-Za-z]*[A-Za-z]", "", shown)


def test_a_narrow_terminal_folds_long_heads_and_no_figures() -> None:
    heads = ["variant", "log-loss", "difference", "AUC", "calibration", "normalized entropy"]
    row = ["plain", 0.29289, "+0.01793 ± 0.00049", 0.5828, 1.00274, 0.98826]
    lines = _on_80_columns(f"from ftrie.terminal import print_table; print_table({heads}, [{row}])")
    assert "0.29289   +0.01793 ± 0.00049   0.58280" in lines
    assert max(map(len, lines.splitlines())) <= 80


def test_a_bar_on_a_narrow_terminal_leaves_out_what_does_not_fit() -> None:
    program = LONG_WORK.replace("logloss=0.25", "logloss=0.25, keys=123456789, more=10**30")
    last = [line for line in _on_80_columns(program).splitlines() if line.strip()][-1]
    assert "logloss 0.25000" in last
    assert "more" not in last
    assert re.search(r"in \d:\d\d$", last.rstrip()) and "ETA" not in last
    assert all(len(line) <= 80 for line in _on_80_columns(program).splitlines())


def test_a_line_of_parts_is_broken_between_them() -> None:
    parts = " · ".join(
        ["1,234,567 events (12,345/s)", "4,567,890 examples", "123,456 keys", "version 12", "lag 0.1 s"]
    )
    shown = _on_80_columns(f"from ftrie.terminal import note_parts; note_parts({parts!r})")
    lines = [line for line in shown.splitlines() if line.strip()]
    assert len(lines) > 1 and max(map(len, lines)) <= 80
    assert " · ".join(line.strip() for line in lines) == parts


CORRECTED_ESTIMATE = """
import time
from ftrie.terminal import progress
with progress("train", total=50) as bar:
    for done in range(1, 31):
        bar.update(done, total=50 + done % 3)
        time.sleep(0.06)
"""


@pytest.mark.slow
def test_an_estimate_that_is_corrected_still_gives_an_eta() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", CORRECTED_ESTIMATE], stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        shown = _read_all(ours)
    assert process.returncode == 0
    assert re.search(r"ETA 0:0\d", shown)


def test_json_silences_progress_and_notes(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.set_json_output(True)
    with terminal.progress("train") as bar:
        bar.update(5)
    terminal.note("compiling")
    assert capsys.readouterr() == ("", "")


def test_json_refuses_a_number_that_is_not_finite() -> None:
    with pytest.raises(ValueError, match="JSON"):
        terminal.print_json({"ctr": float("nan")})


def test_a_table_in_a_pipe_is_neither_cut_nor_folded(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_table(("item", "ctr"), [("x" * 300, 0.5), ("[red]", 12)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["x" * 300, "0.50000"]
    assert lines[3].split() == ["[red]", "12"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "—"),
        (True, "yes"),
        (1234567, "1,234,567"),
        (0.387491, "0.38749"),
        (12345.6, "12,346"),
        ("a", "a"),
    ],
)
def test_values_are_shown_for_reading(value: object, text: str) -> None:
    assert shown(value) == text


def _read_all(descriptor: int) -> str:
    pieces = []
    try:
        while piece := os.read(descriptor, 4096):
            pieces.append(piece)
    except OSError:  # the other side of a pseudo-terminal closed
        pass
    os.close(descriptor)
    return b"".join(pieces).decode()
