"""Where windows of rows end, of a fixed size and growing."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ftrie.draw.runs import MOST_POINTS, curves, figure_called, read_runs
from tests.trainer.learn.metrics_rows import add_log, made_up
from trainer.learn.metrics.metrics import ProgressiveMetrics, Windows
from trainer.learn.metrics.records import MetricsFile


def ends(windows: Windows, rows: int) -> list[int]:
    found = [0]
    while found[-1] < rows:
        found.append(windows.end(found[-1]))
    return found[1:]


def test_a_fixed_size_is_kept_and_growing_windows_are_1_to_2_percent_of_the_rows_before_them():
    assert ends(Windows(700), 3000) == [700, 1400, 2100, 2800, 3500]
    assert ends(Windows(), 5000) == [1000, 2000, 3000, 4000, 5000]
    for begin, end in pairwise(ends(Windows(), 500_000_000)):
        assert begin < 100_000 or 0.01 <= (end - begin) / begin <= 0.02


@pytest.mark.parametrize(("rows", "count"), [(16_000, 16), (500_000, 213), (10**10, 927)])
def test_the_number_of_growing_windows_is_bounded(rows, count):
    assert len(ends(Windows(), rows)) == count


def test_every_doubling_of_the_rows_is_the_end_of_a_window():
    found = [end for end in ends(Windows(), 10**9) if Windows().doubles(end)]
    assert found == [1000 << times for times in range(20)]


def test_a_short_log_has_a_curve_without_a_flag(tmp_path):
    log = made_up(3_500, variants=1)
    with MetricsFile(tmp_path / "m.jsonl") as file:
        metrics = ProgressiveMetrics(["base"], file=file)
        metrics.begin(log.maker.spec)
        add_log(metrics, log, 333)
        metrics.finish()
    (run,) = read_runs([tmp_path / "m.jsonl"])
    assert [line.rows for line in run.windows] == [1000, 2000, 3000, 3500]
    assert [row["x"] for row in curves([run], figure_called("logloss"))] == [1000, 2000, 3000, 3500]
    assert len(run.windows) < MOST_POINTS


def test_a_file_begun_late_has_all_rows_before_it_in_its_first_window(tmp_path):
    log = made_up(2_500, variants=1)
    first = ProgressiveMetrics(["base"])
    add_log(first, log._replace(cells=log.cells[:1_200], rows=log.rows[:1_200]))
    with MetricsFile(tmp_path / "m.jsonl") as file:
        second = ProgressiveMetrics(["base"], file=file)
        second.restore(first.state())
        second.begin(log.maker.spec)
        add_log(second, log._replace(cells=log.cells[1_200:], rows=log.rows[1_200:]))
        second.finish()
    (run,) = read_runs([tmp_path / "m.jsonl"])
    assert [line.window.rows for line in run.windows] == [2000, 500]
