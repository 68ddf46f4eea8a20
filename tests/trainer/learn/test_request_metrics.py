"""Ranking metrics against every order that equal scores allow; requests that batches cut."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from model_store.errors import SpecError
from tests.kernels import FAST, spec_of
from tests.trainer.learn import naive_metrics
from tests.trainer.learn.pairs import assert_same_bits
from tests.worlds import batch_of, learn, model_of, shop_rows
from trainer.examples.hashing import Examples
from trainer.examples.requests import MOST_ROWS
from trainer.learn.metrics.requests import RequestMeasure, RequestMetrics
from trainer.learn.model import whole_requests
from trainer.learn.predictions_kernels import Predictions


def rows_of(requests: list[list[tuple[int, bool]]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    ids = np.repeat(np.arange(1, len(requests) + 1, dtype=np.uint64), [len(each) for each in requests])
    rows = [row for each in requests for row in each]
    scores = np.array([[score, -score] for score, _ in rows], float)
    return ids, scores, np.array([clicked for _, clicked in rows], float)


@pytest.mark.parametrize("seed", range(40))
def test_metrics_are_the_mean_over_all_orders_wherever_batches_end(seed: int) -> None:
    random = np.random.default_rng(seed)
    k, size = int(random.integers(1, 5)), int(random.integers(1, 8))
    requests = [
        [(int(random.integers(4)), bool(random.random() < 0.4)) for _ in range(random.integers(1, 7))]
        for _ in range(random.integers(1, 6))
    ]
    ids, scores, labels = rows_of(requests)
    metrics = RequestMetrics(["up", "down"], k)
    for begin in range(0, len(ids), size):
        part = slice(begin, begin + size)
        metrics.update(ids[part], scores[part], labels[part])
    report = metrics.report()
    clicked = [each for each in requests if any(click for _, click in each)]
    judged = [each for each in clicked if not all(click for _, click in each)]
    single = sum(len(each) == 1 for each in requests)
    assert (report.requests, report.clicked, report.k) == (len(requests), len(clicked), k)
    assert (report.judged, report.single, report.too_long) == (len(judged), single, 0)
    for name, sign in (("up", 1), ("down", -1)):
        pairs = [([sign * s for s, _ in each], [float(c) for _, c in each]) for each in judged]
        if not pairs:
            assert report.orders[name].mrr is None and report.orders[name].ndcg is None
            continue
        assert report.orders[name].mrr == pytest.approx(
            np.mean([naive_metrics.reciprocal_rank(*p) for p in pairs])
        )
        assert report.orders[name].ndcg == pytest.approx(np.mean([naive_metrics.ndcg(*p, k) for p in pairs]))
        hits = [np.mean([naive_metrics.hit(*p, within) for p in pairs]) for within in (1, 3, 10)]
        found = report.orders[name]
        assert [found.hit_1, found.hit_3, found.hit_10] == pytest.approx(hits)
        assert found.auc == pytest.approx(np.mean([naive_metrics.request_auc(*p) for p in pairs]))


@pytest.mark.parametrize(
    ("updates", "expected"),
    [
        ([], (0, 0, 0, 0, 0)),
        ([([], [])], (0, 0, 0, 0, 0)),
        ([([1], [0]), ([1], [1])], (2, 1, 2, 0, 1)),  # each in a file of its own, with which it ends
        ([([1, 2, 1], [1, 1, 1])], (3, 3, 3, 0, 1)),  # one that comes again later is another one
    ],
)
def test_requests_are_counted(updates: Any, expected: tuple[int, ...]) -> None:
    metrics = RequestMetrics(["base"], 10)
    for file, (ids, labels) in enumerate(updates):
        metrics.update(np.array(ids, np.uint64), np.zeros((len(ids), 1)), np.array(labels, float), file)
    report = metrics.report()
    found = report.requests, report.clicked, report.single, report.judged, report.resumed
    assert found == expected and report.orders["base"].mrr is None


def test_a_request_without_end_is_left_out_and_keeps_few_rows_in_memory() -> None:
    metrics = RequestMetrics(["base"], 10)
    size = MOST_ROWS // 2
    labels = np.zeros(size)
    labels[0] = 1
    for _ in range(9):
        metrics.update(np.ones(size, np.uint64), np.zeros((size, 1)), labels)
        assert metrics._open is not None and metrics._open[0].size <= MOST_ROWS + 1
    metrics.update(np.array([2, 2], np.uint64), np.array([[1.0], [0.0]]), np.array([1.0, 0.0]))
    report = metrics.report()
    assert (report.requests, report.clicked, report.judged, report.too_long) == (2, 1, 1, 1)
    assert report.orders["base"].mrr == 1.0


def test_a_request_of_many_candidates_all_alike_has_the_expected_rank_of_chance() -> None:
    size = 10_000
    labels = np.zeros(size)
    labels[7] = 1
    metrics = RequestMetrics(["base"], 10)
    metrics.update(np.ones(size, np.uint64), np.zeros((size, 1)), labels)
    assert metrics.report().orders["base"].mrr == pytest.approx(np.mean(1 / np.arange(1, size + 1)))


def test_a_measure_is_told_by_its_name_and_needs_requests() -> None:
    assert RequestMeasure.parse("ndcg@5") == RequestMeasure("ndcg", 5)
    assert RequestMeasure.parse("mrr") == RequestMeasure("mrr", 10)
    assert RequestMeasure.parse("logloss") is None and RequestMeasure.parse("auc") is None
    with pytest.raises(SpecError, match="expected ndcg@K with K from 1"):
        RequestMeasure.parse("ndcg@0")
    with pytest.raises(
        SpecError, match="mrr is a mean over requests, and the spec names none: set input.request"
    ):
        RequestMeasure("mrr").check(None)


def test_progressive_measures_are_those_of_the_variants_wherever_batches_end() -> None:
    ids, scores, labels = rows_of([[(2, False), (1, True), (0, False)], [(1, True), (0, False)]])
    whole, cut = RequestMetrics(["a", "b"]), RequestMetrics(["a", "b"])
    none = np.empty(0)
    whole.update_before(Predictions(scores, scores, scores, labels, none, ids, scores))
    for row in range(ids.size):
        part = slice(row, row + 1)
        wide = np.column_stack([scores[part], [[9.0]]])  # a column beyond the variants
        cut.update_before(Predictions(wide, wide, wide, labels[part], none, ids[part], wide))
    report = cut.report()
    assert report == whole.report()
    assert report.orders["a"].mrr == (1 / 2 + 1) / 2 and report.orders["a"].hit_1 == 0.5
    assert RequestMeasure("request_auc").of(report.orders["b"]) == (0.5 + 0.0) / 2


@pytest.mark.parametrize(("section", "variants"), FAST.values(), ids=FAST)
def test_requests_are_predicted_whole_and_learned_row_by_row_as_ever(section: Any, variants: int) -> None:
    spec, rows, random = spec_of(section, variants), shop_rows(120, 4), np.random.default_rng(1)
    ids = np.repeat(np.arange(60, dtype=np.uint64), random.integers(1, 9, 60))[: len(rows)]
    model, before = model_of(spec, list(rows[0])), list[np.ndarray]()
    update = model.metrics.update

    def updated(predictions: Predictions, examples: Examples) -> None:
        before.append(predictions.before[:, :variants])
        update(predictions, examples)

    model.metrics.update = updated  # type: ignore[method-assign]
    plain = model_of(spec, list(rows[0]))
    batches = [
        replace(model.maker.make(batch_of(rows[at : at + size])), requests=ids[at : at + size])
        for at, size in ((0, 50), (50, 2), (52, 2), (54, 66))
    ]
    for parts in whole_requests(batches):
        model.learn_requests(parts)
    for each in batches:
        plain.learn(each)
    assert_same_bits(model, plain)
    assert model.metrics.summary() == plain.metrics.summary()
    assert sum(map(len, before)) == len(rows)
    for begin in (4, 51, 53, 70):  # in the first batch, and across the borders of the others
        first, last = np.flatnonzero(ids == ids[begin])[[0, -1]].tolist()
        earlier = model_of(spec, list(rows[0]))
        learn(earlier, rows[:first])
        for row in (first, begin, last):
            alone = earlier.maker.make(batch_of(rows[row : row + 1])).hashed
            found = np.concatenate(before)[row]
            assert found.tolist() == earlier.coordinates.predict(alone).scores[0, :variants].tolist()
