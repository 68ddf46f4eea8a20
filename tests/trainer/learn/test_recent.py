"""The window of examples learned last, against the same figures straight from their definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model_store.spec.spec import parse_spec
from model_store.versions.manifest import RecentFigures
from tests.worlds import SPEC as SHOP
from tests.worlds import batch_of, learn, model_of, shop_rows
from trainer.examples.hashing import Examples
from trainer.learn.metrics.recent import Recent
from trainer.learn.predictions_kernels import Predictions

SPEC = parse_spec(SHOP + "[guard]\n")
ROWS = 20_000
SEED = 7


def stream(weighted: bool = True) -> tuple[Any, Any, Any]:
    """Scores of two variants, labels and weights."""
    random = np.random.default_rng(SEED)
    scores = random.normal(-1.0, 1.5, (ROWS, 2))
    labels = (random.random(ROWS) < 0.3).astype(np.float64)
    return scores, labels, random.integers(1, 4, ROWS).astype(np.float64) if weighted else np.empty(0)


def fed(examples: int, sizes: Any, weighted: bool = True, of_views: bool = False) -> Recent:
    recent, template = Recent(("base", "plain"), examples, of_views), examples_of_one_row()
    scores, labels, weights = stream(weighted)
    begin = 0
    for size in sizes:
        end = min(ROWS, begin + size)
        hashed = template.hashed._replace(labels=labels[begin:end], weights=weights[begin:end])
        recent.update(Predictions.of_scores(scores[begin:end], hashed, template.requests, 2))
        begin = end
    assert begin == ROWS
    return recent


def examples_of_one_row() -> Examples:
    rows = shop_rows(1, seed=1)
    return model_of(SPEC, tuple(rows[0])).maker.make(batch_of(rows))


@pytest.mark.parametrize("of_views", [False, True])
def test_the_figures_are_those_of_the_last_examples_by_definition(of_views: bool) -> None:
    figures = fed(10_000, [ROWS], of_views=of_views).figures(keys=42)
    assert 10_000 <= figures.examples <= 10_000 + 10_000 // 32
    last = slice(ROWS - figures.examples, ROWS)
    scores, labels, weights = (each[last] for each in stream())
    squares = weights if of_views else weights**2
    for column, name in enumerate(("base", "plain")):
        p = 1.0 / (1.0 + np.exp(-scores[:, column]))
        loss = -np.log(np.where(labels == 1.0, p, 1.0 - p))
        mean = np.average(loss, weights=weights)
        error = np.sqrt(np.sum(squares * (loss - mean) ** 2)) / weights.sum()
        found = figures.variants[name]
        assert (found.logloss, found.logloss_error) == pytest.approx((mean, error))
        assert found.predicted == pytest.approx(np.sum(weights * p))
        assert found.predicted_variance == pytest.approx(np.sum(squares * p))
    assert figures.clicks == pytest.approx(np.sum(weights * labels))
    assert figures.weight == pytest.approx(np.sum(weights))
    assert figures.click_rate == figures.clicks / figures.weight and figures.keys == 42


@pytest.mark.parametrize("examples", [100, 10_000])
def test_batches_change_no_bit(examples: int) -> None:
    random = np.random.default_rng(SEED)
    whole = fed(examples, [ROWS]).state()
    for most in (37, 5_000):
        pieces = random.integers(1, most, ROWS)
        state = fed(examples, pieces[: 1 + int(np.searchsorted(np.cumsum(pieces), ROWS))]).state()
        assert all(np.array_equal(state[name], whole[name]) for name in whole)


def test_rows_without_weights_count_one_each_and_a_window_not_yet_full_holds_what_there_is() -> None:
    figures = fed(1_000, [ROWS], weighted=False).figures(0)
    _, labels, _ = stream()
    assert figures.clicks == labels[ROWS - figures.examples :].sum()
    assert fed(1_000_000, [ROWS]).figures(0).examples == ROWS


def test_figures_come_back_from_a_checkpoint_and_a_manifest_as_they_were() -> None:
    before, after = fed(1_000, [ROWS]), Recent(("base", "plain"), 1_000)
    after.restore(before.state())
    figures = before.figures(3)
    assert after.figures(3) == figures and RecentFigures.from_json(figures.to_json()) == figures


@pytest.mark.parametrize(
    "state", [{}, Recent(("base", "plain"), 2_000).state(), Recent(("base",), 1_000).state()]
)
def test_a_window_that_was_not_kept_or_is_another_begins_anew(state: Any) -> None:
    recent = Recent(("base", "plain"), 1_000)
    recent.restore(state)
    assert recent.figures(0).examples == 0


def test_a_row_of_many_views_is_judged_as_these_views_written_out() -> None:
    text = '[model]\nname = "v"\n[input]\nlabel = "click"\n{}[fields]\nsite = {{}}\n[guard]\n'
    template, found = examples_of_one_row(), []
    for line, weights, labels in (
        ('views = "shown"\n', [300.0, 9_700.0], [1.0, 0.0]),
        ("", [], [1.0] * 300 + [0.0] * 9_700),
    ):
        recent = Recent.of(parse_spec(text.format(line)))
        assert recent is not None
        hashed = template.hashed._replace(labels=np.array(labels), weights=np.array(weights))
        scores = np.full((len(labels), 1), -3.0)
        recent.update(Predictions.of_scores(scores, hashed, template.requests, 1))
        variant = recent.figures(0).variants["base"]
        found.append([variant.logloss, variant.logloss_error, variant.predicted, variant.predicted_variance])
    assert found[0] == pytest.approx(found[1])


def test_a_model_watches_what_it_predicted_before_it_learned() -> None:
    rows = shop_rows(500, seed=3)
    model = model_of(SPEC, tuple(rows[0]))
    learn(model, rows, 100)
    assert model.recent is not None
    figures = model.recent.figures(model.table.used)
    metrics = model.metrics.summary()
    for name, figure in figures.variants.items():
        assert figure.logloss == pytest.approx(metrics[name].logloss)
        assert figure.predicted / figures.clicks == pytest.approx(metrics[name].calibration)
