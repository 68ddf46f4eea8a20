"""A trainer's status: how far behind it is, a full disk, and docs/trainer.md member by member and metric by metric."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from ftrie.demo.processes import free_ports
from tests.trainer.runs.running import COMPILE_S, SPEC
from tests.trainer.runs.test_warnings import a_status
from tests.worlds import event_logs
from trainer.events.events import Lag
from trainer.events.join import EventCounts
from trainer.runs.status import Status


@pytest.mark.parametrize(
    ("lags", "said"),
    [
        ([Lag()], "lag unknown"),
        ([Lag(0, 0, 0.0)], "lag 0 events, 0.0 s"),
        ([Lag(3, 10, 1.5), Lag(4, 10, 0.5)], "lag 7 events, 1.5 s"),
        ([Lag(bytes=2_500_000)], "lag 2.5 MB"),
        ([Lag(3, 10, 1.5), Lag(bytes=2_500_000)], "lag 3 events, 2.5 MB, 1.5 s"),
    ],
)
def test_a_file_whose_events_nobody_has_counted_is_behind_by_bytes(lags: list[Lag], said: str) -> None:
    named = {str(number): lag for number, lag in enumerate(lags)}
    assert said in a_status(lags=named).line().split(" · ")


@pytest.mark.slow
def test_a_disk_that_stays_full_is_told_of_once(store_url: str, tmp_path: Path) -> None:
    impressions, clicks = event_logs(1000).write(tmp_path)
    (tmp_path / "hotels.toml").write_text(SPEC)
    (tmp_path / "disk").mkdir()
    small = 'mount -t tmpfs -o size=2m tmpfs disk && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", small, "sh"]
    command += [sys.executable, "-m", "ftrie", "trainer", "hotels.toml", "--store", store_url, "--once"]
    command += ["--no-publish", "--checkpoint", "disk/state", "--every", "500", "--memory", "1"]
    command += ["--from", str(impressions), "--from", str(clicks)]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=COMPILE_S, check=False
    )
    assert done.returncode == 7, done.stderr  # the last checkpoint could not be written
    for otherwise in ("no checkpoint is written", "rows waiting for their clicks stay in memory"):
        assert done.stderr.count(f"; {otherwise}, and learning continues") <= 1, done.stderr
    assert "No space left on device" in done.stderr


PAGE = (Path(__file__).resolve().parents[3] / "docs/trainer.md").read_text("utf-8")


def test_a_line_of_status_is_documented_member_by_member() -> None:
    section = PAGE.split("\n### Status\n")[1].split("\n### ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [field.name for field in fields(Status)]


def test_every_count_is_named() -> None:
    (row,) = re.findall(r"^\| `counts` \|.*$", PAGE, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)) == {"counts", *(field.name for field in fields(EventCounts))}


SERVES_METRICS = """
import os, resource, socket, sys, time
from trainer.runs.status import serve_metrics
serve_metrics("127.0.0.1", int(sys.argv[1]))
ends = [socket.socket() for _ in range(3)]
resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), 4096))
for end in ends:
    end.connect(("127.0.0.1", int(sys.argv[1])))
began_s = time.process_time()
time.sleep(1.0)
print(time.process_time() - began_s)
"""
"""A page of metrics that has no descriptor free; its three connections stay. Prints the CPU seconds of one second."""


@pytest.mark.slow
def test_the_page_of_a_trainer_does_not_try_all_the_time() -> None:
    command = [sys.executable, "-c", SERVES_METRICS, *map(str, free_ports(1))]
    assert float(subprocess.check_output(command)) < 0.2
