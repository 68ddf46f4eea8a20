"""The shadow log: whole lines of JSON, bounded, never in a call's way."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from model_store.errors import OutputError
from server.impressions.shadows import Seen, ShadowLog
from server.ranking.query import ShadowRanking
from server.telemetry.families import SHADOW_DROPPED, SHADOW_LOGGED
from tests.waiting import eventually


def seen(request_id: str = "r1") -> Seen:
    """An answer of two items, with one shadow."""
    shadow = ShadowRanking(1, ["b", "\udcff"], [0.25, -1.5], [0.1, 0.25])
    return Seen(1e9, request_id, "ads", 7, ("base", "plain"), 0, ["a", "b"], [0.5, 1 / 3], [shadow])


class Counts(Counter[str]):
    """Counts as the meter does."""

    def __call__(self, metric: str, model: str) -> None:
        assert model == "ads"
        self[metric] += 1


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_holds_the_answer_and_what_each_shadow_makes_of_it(tmp_path: Path) -> None:
    counts = Counts()
    log = ShadowLog(tmp_path / "shadows.jsonl", counts)
    log.offer(seen())
    log.close()
    assert read(tmp_path / "shadows.jsonl") == [
        {
            "time": "2001-09-09T01:46:40.000Z",
            "request_id": "r1",
            "model": "ads",
            "version": 7,
            "variant": "base",
            "ids": ["a", "b"],
            "scores": [0.5, 1 / 3],
            "shadows": {
                "plain": {"ids": ["b", "\udcff"], "scores": [0.25, -1.5], "shown_scores": [0.1, 0.25]}
            },
        }
    ]
    assert counts == {SHADOW_LOGGED: 1}


def test_a_disk_that_hangs_costs_lines_that_are_counted_and_no_caller_waits(tmp_path: Path) -> None:
    fifo = tmp_path / "hanging"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)  # nobody reads: the pipe fills, and the writer hangs
    counts = Counts()
    log = ShadowLog(fifo, counts, waiting=3)
    offered = 2000
    for n in range(offered):
        log.offer(seen(f"r{n}"))
    assert counts[SHADOW_DROPPED] > 0
    os.close(reader)
    log.close()


def test_what_a_full_disk_does_not_take_is_counted_told_once_and_got_over(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    counts = Counts()
    log = ShadowLog(folder / "shadows.jsonl", counts)
    (folder / "shadows.jsonl").unlink()
    folder.rmdir()
    with capture_logs() as told:
        for n in range(3):
            log.offer(seen())
            eventually(lambda n=n: counts[SHADOW_DROPPED] == n + 1)  # type: ignore[misc]
    assert [line["event"] for line in told] == ["shadow log not written"]
    folder.mkdir()
    log.offer(seen())
    log.close()
    assert len(read(folder / "shadows.jsonl")) == 1
    assert counts == {SHADOW_DROPPED: 3, SHADOW_LOGGED: 1}


def test_many_threads_offer_at_once(tmp_path: Path) -> None:
    counts = Counts()
    log = ShadowLog(tmp_path / "log", counts, waiting=10_000, max_bytes=50_000, kept=100)

    def offer(name: str) -> None:
        for n in range(100):
            log.offer(seen(f"{name}{n}"))

    threads = [threading.Thread(target=offer, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    written = [line["request_id"] for path in tmp_path.iterdir() for line in read(path)]
    assert sorted(written) == sorted(f"{name}{n}" for name in "abcd" for n in range(100))  # type: ignore[type-var]


def test_the_sample_is_a_fraction_of_requests_chosen_by_their_ids(tmp_path: Path) -> None:
    ids = [f"request {n}" for n in range(2_000)]
    for sample in (0.0, 0.25, 1.0):
        one, other = (ShadowLog(tmp_path / "log", Counts(), sample=sample) for _ in range(2))
        wanted = [one.wants(each) for each in ids]
        assert wanted == [other.wants(each) for each in ids]
        assert abs(sum(wanted) - sample * len(ids)) <= 70  # 3.5 standard deviations
        one.close()
        other.close()
    with pytest.raises(OutputError, match=r"cannot write the shadow log .*nowhere"):
        ShadowLog(tmp_path / "nowhere" / "log", Counts())
