"""The queue before the writer: bounded, counted, and holding nothing that a new version must wait for."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from ctr.v1.ranking_pb2 import RankRequest
from server.impressions import lines as lines_module
from server.impressions import log as log_module
from server.impressions import sinks
from server.impressions.lines import Lines, Shown
from server.impressions.log import ImpressionLog
from server.telemetry.families import IMPRESSIONS_DROPPED, IMPRESSIONS_LOGGED
from server.telemetry.meter import Meter
from tests.server.impressions import whole_spec


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "impressions.jsonl"


@pytest.fixture
def meter() -> Meter:
    return Meter()


def counted(meter: Meter) -> dict[tuple[str, ...], float]:
    return {(name, *labels): number for name, labels, number in meter.take()["counts"]}


def in_file(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def offered(log: ImpressionLog, count: int, message_bytes: int = 0) -> None:
    served = whole_spec.served()
    request = RankRequest(item_ids=["i1", "x" * message_bytes] if message_bytes else ["i1"])
    query = whole_spec.query(served, request, None, plain=True)
    for n in range(count):
        log.offer(served, query._replace(request_id=f"r{n}"), served.ranker.rank(query))


def test_a_writer_that_is_behind_costs_impressions_that_are_counted_and_told_once(
    file: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "LINGER_S", 60.0)  # it is busy until the end
    with capture_logs() as told:
        log = ImpressionLog([sinks.FileSink(str(file), 1 << 30, 1)], meter, most=5)
        offered(log, 40)
        log.close()
    counts = counted(meter)
    logged = counts.pop((IMPRESSIONS_LOGGED, "whole", "file"))
    assert logged == len(in_file(file)) == 5
    assert logged + sum(counts.values()) == 40
    assert counts[IMPRESSIONS_DROPPED, "whole", "file", "queue"] == 35
    assert "impressions dropped: too many wait for the writer" in [line["event"] for line in told]
    file.unlink()
    monkeypatch.setattr(log_module, "MOST_BYTES", 10_000)  # few long ones wait where many short ones may
    log = ImpressionLog([sinks.FileSink(str(file), 1 << 30, 1)], meter, most=1000)
    offered(log, 40, message_bytes=1000)
    log.close()
    assert 8 <= len(in_file(file)) <= 9


def test_an_impression_that_waits_keeps_no_version_in_memory() -> None:
    served = whole_spec.served()
    request = RankRequest(item_ids=["i1", "new"], cookie="c1")
    left = whole_spec.shown(served, whole_spec.query(served, request, None, plain=True))
    model = weakref.ref(served.model)
    del served
    gc.collect()
    assert model() is None
    assert json.loads(left.lines.line(left))["version"] == 7


def test_items_whose_values_are_not_known_yet_are_told_and_counted(file: Path, meter: Meter) -> None:
    with capture_logs() as told:
        log = ImpressionLog([sinks.FileSink(str(file), 1 << 30, 1)], meter, most=5)
        served = whole_spec.served(with_fragments=False)
        query = whole_spec.query(served, RankRequest(item_ids=["i1"]), None, plain=True)
        for _ in range(3):
            log.offer(served, query, served.ranker.rank(query))
        log.close()
    assert counted(meter) == {(IMPRESSIONS_DROPPED, "whole", "file", "catalogue"): 3}
    assert [line["event"] for line in told] == ["impressions dropped: no line of them"]


def test_a_line_that_cannot_be_made_costs_itself_only(
    file: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Lines.line

    def fails(self: Lines, left: Shown) -> bytes:
        if left.query.request_id == "r1":
            raise ValueError("a fault")
        return make(self, left)

    monkeypatch.setattr(lines_module.Lines, "line", fails)
    with capture_logs() as told:
        log = ImpressionLog([sinks.FileSink(str(file), 1 << 30, 1)], meter, most=50)
        offered(log, 3)
        log.close()
    assert [line["event"] for line in told] == ["impressions dropped: no line of them"]
    assert [event["request_id"] for event in in_file(file)] == ["r0", "r2"]
    assert counted(meter)[IMPRESSIONS_DROPPED, "whole", "file", "failed"] == 1
