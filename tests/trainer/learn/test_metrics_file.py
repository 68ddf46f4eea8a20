"""The metrics file: what it holds while it grows, how a run goes on with it, and what cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_store.errors import OutputError
from tests.trainer.learn.metrics_rows import add_rows, made_up
from tests.trainer.learn.test_metrics import NAMES, lines_of, windows_of
from trainer.learn.metrics.metrics import ProgressiveMetrics
from trainer.learn.metrics.records import End, MetricsFile, MetricsHeader


def test_every_line_is_on_disk_when_its_window_ends(tmp_path):
    log = made_up(100)
    path = tmp_path / "m.jsonl"
    with MetricsFile(path) as file:
        metrics = ProgressiveMetrics(NAMES, window=20, file=file)
        metrics.begin(log.maker.spec)
        kinds = []
        for first in range(0, 100, 20):
            add_rows(metrics, log, first, first + 20)
            kinds.append([line["kind"] for line in lines_of(path)])
            assert path.stat().st_size == file.offset
    whole, long = ["window"], ["window", "detail"]
    assert kinds[-1] == ["header", *long, *long, *whole, *long, *whole]
    assert kinds[0] == ["header", *long]


def test_the_first_line_says_what_is_watched_and_the_last_hold_the_open_window_and_the_end(tmp_path):
    log = made_up(50)
    windows_of(log, 40, tmp_path / "m.jsonl")
    first, *_, window, detail, end = lines_of(tmp_path / "m.jsonl")
    header = MetricsHeader.model_validate(first)
    assert (header.format, header.version, header.model) == ("ftrie-metrics", 1, "shop")
    assert (header.variants, header.window, header.slices) == (list(NAMES), 40, ["brand"])
    assert header.spec_sha256 == log.maker.spec.sha256
    assert (window["rows"], window["window"]["rows"]) == (50, 10)
    assert sum(each["rows"] for each in detail["slices"]["brand"]) <= 50
    weight = sum(each["weight"] for each in detail["reliability"]["base"])
    assert weight == pytest.approx(window["total"]["weight"]) and end == End(rows=50).model_dump()


def test_a_file_that_is_shorter_than_the_checkpoint_knows_or_cannot_be_written_is_refused(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text("{}\n")
    with pytest.raises(OutputError, match="has 3 bytes, fewer than the 100 in the checkpoint"):
        MetricsFile(path, resume_at=100)
    assert path.read_text() == "{}\n"
    with pytest.raises(OutputError, match="cannot write the metrics to .*nowhere.*: No such file"):
        MetricsFile(tmp_path / "nowhere" / "m.jsonl")


def test_a_full_disk_is_named():
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    file = MetricsFile(full)
    with pytest.raises(OutputError, match="cannot write the metrics to /dev/full: No space left"):
        file.write(End(rows=1))
    file.close()
