"""Progressive metrics against the oracle: in all, per window, and wherever batches end."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from model_store.errors import CheckpointError
from tests.trainer.learn import metrics_oracle as oracle
from tests.trainer.learn.metrics_rows import add_log, add_rows, made_up
from tests.worlds import batch_of
from trainer.examples.examples_kernels import HashedRows
from trainer.learn.metrics import metrics_kernels as kernels
from trainer.learn.metrics.figures import auc
from trainer.learn.metrics.metrics import AUC_BUCKETS, ProgressiveMetrics
from trainer.learn.metrics.records import MetricsFile, MetricsWindow
from trainer.learn.metrics.tally import SLICE_BUCKETS, GroupSums, new_tally, reliability
from trainer.learn.predictions_kernels import Predictions, logarithms

NAMES = ("base", "plain", "lean")


def close_to(value: float):
    return pytest.approx(value, rel=1e-9, abs=1e-12)


def assert_metrics_are(metrics, rows, *, auc_within: float) -> None:
    assert metrics.rows == len(rows) and metrics.weight == close_to(sum(row.weight for row in rows))
    assert metrics.clicks == close_to(sum(row.weight * row.label for row in rows))
    assert metrics.click_rate == close_to(oracle.mean(rows, lambda row: row.label))
    for index, (name, found) in enumerate(metrics.variants.items()):
        assert name == NAMES[index] and found.logloss == close_to(oracle.logloss(rows, index))
        assert found.mean_prediction == close_to(oracle.mean(rows, lambda row, i=index: row.probability(i)))
        if any(row.label for row in rows):
            assert found.calibration == close_to(oracle.calibration(rows, index))
        if 0 < metrics.click_rate < 1:
            assert found.normalized_entropy == close_to(oracle.normalized_entropy(rows, index))
            assert found.auc == pytest.approx(oracle.auc(rows, index), abs=auc_within)
        else:
            assert found.auc is None and found.normalized_entropy is None
        assert (found.difference is None) == (index == 0)


def assert_differences_are(metrics, rows) -> None:
    for index, name in enumerate(NAMES[1:], start=1):
        found = metrics.variants[name].difference
        assert found.logloss == close_to(oracle.logloss(rows, index) - oracle.logloss(rows, 0))
        assert (found.low, found.high) == close_to(oracle.interval(rows, index))
        losses = [1.0 - metrics.variants[each].auc for each in (name, "base")]
        assert found.auc_loss_percent == close_to(100.0 * (losses[0] / losses[1] - 1.0))


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def windows_of(log, window, path, sizes=(10**9,)):
    """Watch a log in batches of these sizes, over and over, and return the bytes of the metrics file."""
    with MetricsFile(path) as file:
        metrics = ProgressiveMetrics(NAMES, window=window, file=file, slices=[log.slice("brand")])
        metrics.begin(log.maker.spec)
        first = turn = 0
        while first < len(log.rows):
            last = min(first + sizes[turn % len(sizes)], len(log.rows))
            add_rows(metrics, log, first, last)
            first, turn = last, turn + 1
        metrics.finish()
    return path.read_bytes()


def test_all_rows_are_as_the_oracle_says():
    log = made_up(400)
    metrics = ProgressiveMetrics(NAMES)
    add_log(metrics, log, 64)
    total = GroupSums.of(metrics._tally).metrics(NAMES)
    assert_metrics_are(total, log.rows, auc_within=2e-4)
    assert_differences_are(total, log.rows)
    assert metrics.summary() == total.variants


def test_rows_without_a_request_are_each_their_own_cluster_and_rows_of_one_are_not_independent():
    log = made_up(200, rows_per_request=1)
    alone = [oracle.Row(row.scores, row.label, row.weight, number) for number, row in enumerate(log.rows)]
    metrics = ProgressiveMetrics(NAMES)
    add_log(metrics, log, 70, requests=False)
    assert_differences_are(GroupSums.of(metrics._tally).metrics(NAMES), alone)
    fourfold = log._replace(
        rows=[row for row in log.rows for _ in range(4)], cells=[cell for cell in log.cells for _ in range(4)]
    )
    with_ids, without = ProgressiveMetrics(NAMES), ProgressiveMetrics(NAMES)
    add_log(with_ids, fourfold), add_log(without, fourfold, requests=False)
    honest, sure = (each.summary()["plain"].difference for each in (with_ids, without))
    assert honest.high - honest.low == pytest.approx(2 * (sure.high - sure.low), rel=0.01)


@pytest.mark.parametrize("window", [7, 100])
def test_each_window_is_as_the_oracle_says(window, tmp_path):
    log = made_up(300, seed=window)
    windows_of(log, window, tmp_path / "m.jsonl", sizes=(33, 90))
    lines = [line for line in lines_of(tmp_path / "m.jsonl") if line["kind"] == "window"]
    assert [line["rows"] for line in lines] == [*range(window, 300, window), 300]
    for first, line in zip(range(0, 300, window), map(MetricsWindow.model_validate, lines), strict=True):
        rows = log.rows[first : first + window]
        # In a handful of rows one pair that shares a bucket of scores is much.
        assert_metrics_are(line.window, rows, auc_within=1e-2 if window >= 100 else 0.5)
        assert line.total.rows == first + len(rows)
        assert line.time == f"1970-01-01T00:{line.rows // 60:02}:{line.rows % 60:02}+00:00"
        if window >= 100:
            assert_differences_are(line.window, rows)
            assert_metrics_are(line.total, log.rows[: first + len(rows)], auc_within=1e-3)


@pytest.mark.parametrize(
    ("size", "window", "sizes"),
    [
        (1, 1, (1,)),
        (60, 1, (7,)),
        (60, 80, (1,)),
        (120, 30, (30,)),
        (120, 30, (29, 1, 31)),
        (149, 7, (60, 1, 6)),
    ],
)
def test_where_batches_end_changes_no_byte(size, window, sizes, tmp_path):
    log = made_up(size, seed=size)
    whole = windows_of(log, window, tmp_path / "whole.jsonl")
    assert windows_of(log, window, tmp_path / "parts.jsonl", sizes) == whole


@pytest.mark.parametrize(
    ("cut", "window"), [(0, 50), (49, 50), (50, 50), (51, 50), (120, 50), (33, 1), (77, 7)]
)
def test_a_restored_watcher_goes_on_as_if_never_stopped(cut, window, tmp_path):
    log = made_up(120, seed=9)
    path, slices = tmp_path / "parts.jsonl", [log.slice("brand")]
    with MetricsFile(path) as file:
        before = ProgressiveMetrics(NAMES, window=window, file=file, slices=slices)
        before.begin(log.maker.spec)
        add_rows(before, log, 0, cut)
        state, offset = before.state(), file.offset
        add_rows(before, log, cut, min(cut + 60, 120))  # what a checkpoint does not know is taken back
        before.finish()
    with MetricsFile(path, resume_at=offset) as file:
        after = ProgressiveMetrics(NAMES, window=window, file=file, slices=slices)
        after.restore(state)
        after.begin(log.maker.spec)
        add_rows(after, log, cut, 120)
        after.finish()
    assert path.read_bytes() == windows_of(log, window, tmp_path / "whole.jsonl")


@pytest.mark.parametrize("other", [{"window": 9}, {"slices": ()}])
def test_metrics_of_other_options_are_not_restored(other):
    asked = {"window": 10, "slices": [made_up(10).slice("brand")]}
    state = ProgressiveMetrics(NAMES, **asked).state()
    with pytest.raises(
        CheckpointError, match="was started with --window 10 --slice brand and is resumed with"
    ):
        ProgressiveMetrics(NAMES, **(asked | other)).restore(state)


def test_the_recent_logloss_is_that_of_the_last_whole_window():
    log = made_up(130)
    metrics = ProgressiveMetrics(NAMES, window=50)
    assert metrics.recent_logloss() is None
    add_rows(metrics, log, 0, 40)
    assert metrics.recent_logloss() == close_to(oracle.logloss(log.rows[:40], 0))
    add_rows(metrics, log, 40, 130)
    assert metrics.recent_logloss() == close_to(oracle.logloss(log.rows[50:100], 0))


def test_one_variant_has_no_difference_and_the_same_figures():
    log = made_up(200, variants=1)
    metrics = ProgressiveMetrics(["base"])
    add_log(metrics, log, 31)
    assert_metrics_are(GroupSums.of(metrics._tally).metrics(["base"]), log.rows, auc_within=1e-3)
    (nothing,) = ProgressiveMetrics(["base"]).summary().values()
    assert set(nothing.numbers()) == set()


@pytest.mark.parametrize(("buckets", "error"), [(AUC_BUCKETS, 2e-5), (SLICE_BUCKETS, 5e-4)])
def test_the_histogram_auc_is_within_its_documented_error_of_exact(buckets, error):
    random = np.random.default_rng(5)
    for spread in (0.3, 1.0, 2.5):
        scores = random.normal(-3.0, spread, 200_000)
        clicked = random.random(scores.size) < 1 / (1 + np.exp(-scores))
        places = np.clip((scores + 16.0) * buckets / 32.0, 0, buckets - 1).astype(int)
        histograms = [np.bincount(places[chosen], minlength=buckets) * 1.0 for chosen in (clicked, ~clicked)]
        assert auc(*histograms) == pytest.approx(rank_auc(scores, clicked), abs=error)


def rank_auc(scores, clicked):
    """AUC by the ranks of distinct scores (Mann-Whitney)."""
    ranks = np.empty(scores.size)
    ranks[np.argsort(scores)] = np.arange(1, scores.size + 1)
    positives = clicked.sum()
    return (ranks[clicked].sum() - positives * (positives + 1) / 2) / (positives * (~clicked).sum())


def test_reliability_bins_hold_all_rows_and_their_own_predictions():
    random = np.random.default_rng(2)
    scores = random.normal(-3.0, 1.2, 50_000)
    p = 1 / (1 + np.exp(-scores))
    clicked = random.random(scores.size) < p
    places = ((scores + 16.0) * 256).astype(int)
    counts = [np.bincount(places[chosen], minlength=AUC_BUCKETS) * 1.0 for chosen in (clicked, ~clicked)]
    bins = reliability(*counts)
    assert len(bins) == 20 and sum(each.weight for each in bins) == scores.size
    assert sum(each.clicks for each in bins) == clicked.sum()
    at = np.cumsum([0, *(round(each.weight) for each in bins)])
    ordered = np.sort(p)
    for each, first, last in zip(bins, at[:-1], at[1:], strict=True):
        assert each.weight == pytest.approx(scores.size / 20, rel=0.05)
        assert each.predicted == pytest.approx(ordered[first:last].sum(), rel=2e-3)


def test_a_window_behind_a_billion_rows_keeps_its_precision():
    random = np.random.default_rng(0)
    scores = random.normal(-3.0, 1.0, (100_000, 2))
    labels = (random.random(100_000) < 0.05).astype(float)
    windows = []
    for loss_before in (0.0, 2.5e8):
        tally = new_tally(1, 2, AUC_BUCKETS)
        tally.sums[0, kernels.LOSS], tally.counts[0, kernels.ROWS] = loss_before * 1.01, 4.0 * loss_before
        before = GroupSums.of(tally)
        rows = HashedRows(*[np.empty(0)] * 4, labels, np.empty(0))
        predictions = Predictions.of_scores(scores, rows, np.empty(0, np.uint64), 2)
        kernels.add_all(predictions, 0, labels.size, tally)
        windows.append((GroupSums.of(tally) - before).metrics(["a", "b"]))
    alone, behind = windows
    assert behind.rows == alone.rows and behind.variants["a"].auc == alone.variants["a"].auc
    for name in ("a", "b"):
        assert behind.variants[name].logloss == pytest.approx(alone.variants[name].logloss, rel=1e-9)
    changes = [each.variants["b"].difference.logloss for each in (behind, alone)]
    assert changes[0] == pytest.approx(changes[1], rel=1e-6)


def test_our_logarithm_is_the_logarithm():
    random = np.random.default_rng(0)
    numbers = np.concatenate([
        np.exp(random.uniform(-34.5, 0.0, 10_000)), 1.0 - np.exp(random.uniform(-36.0, -0.1, 10_000)),
        random.uniform(0.5, 1e6, 1000), [1e-15, 0.5, math.sqrt(0.5), 1.0, 2.0],
    ])  # fmt: skip
    found = np.empty_like(numbers)
    logarithms(numbers, found)
    expected = np.log(numbers)
    assert found[numbers == 1.0].tolist() == [0.0] * int((numbers == 1.0).sum())
    assert (np.abs(found - expected) <= 2 * np.spacing(np.abs(expected))).all()


def test_equal_variants_are_paired_with_the_first_one():
    log = made_up(50)
    examples = log.maker.make(batch_of(log.cells))
    scores = np.array([row.scores for row in log.rows])[:, [0, 1, 0, 2, 1, 0]].copy()
    metrics = ProgressiveMetrics(tuple("abcdef"))
    metrics.update(Predictions.of_scores(scores, examples.hashed, examples.requests, 6), examples)
    assert metrics.equal_variants() == [(0, 2), (1, 4), (0, 5)]
