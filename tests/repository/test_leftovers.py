"""What a failed test started does not outlive the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

FAILS = """
import pathlib, subprocess, pytest

@pytest.fixture
def half_way():
    process = subprocess.Popen(["sleep", "1000"])
    pathlib.Path(__file__).with_name("pid").write_text(str(process.pid))
    raise RuntimeError("the set-up failed")
    yield

def test_that_needs_it(half_way):
    pass
"""


def test_a_process_whose_fixture_failed_half_way_is_ended_with_the_tests(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(FAILS)
    options = ["--rootdir", str(tmp_path), "-c", os.devnull, "-p", "tests.conftest", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, tmp_path], cwd=ROOT, capture_output=True, text=True
    )
    assert "the set-up failed" in ran.stdout
    pid = (tmp_path / "pid").read_text()
    assert not Path(f"/proc/{pid}").exists()
    assert f"ended process {pid}, which a test left running: sleep 1000" in ran.stdout
