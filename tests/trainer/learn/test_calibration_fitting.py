"""Curves against slow obvious oracles: pooling by definition, likelihood by a grid, recovery of a known distortion."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.artefact.calibration import Calibration, IsotonicCurve, PowerCurve, VariantCurves
from trainer.examples.examples_kernels import HashedRows
from trainer.learn import calibration as fitting
from trainer.learn.predictions_kernels import BUCKETS, BUCKETS_PER_UNIT, RANGE, Predictions, count_by_score

WEIGHTED = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5)), min_size=1, max_size=12)


def counts_of(scores: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    counts = np.zeros((1, 1, BUCKETS, 3))
    nothing = np.empty(0)
    rows = HashedRows(*[nothing] * 4, labels, nothing if weights is None else weights)
    predictions = Predictions.of_scores(scores.reshape(-1, 1), rows, np.empty(0, np.uint64), 1)
    count_by_score(predictions, np.empty(0, np.int64), 0, labels.size, counts)
    return counts[0, 0]


def clicks_by(
    true_rate: np.ndarray, examples: int = 400_000, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predictions p and clicks that come with probability true_rate(p)."""
    random = np.random.default_rng(seed)
    scores = random.normal(-2.0, 1.0, examples)
    p = 1 / (1 + np.exp(-scores))
    return scores, p, (random.random(examples) < true_rate(p)).astype(float)


def naive_means(values: list[float], weights: list[float]) -> list[float]:
    """Isotonic regression by its min-max formula: the max over a <= i of the min over b >= i of mean(a..b)."""

    def mean(a: int, b: int) -> float:
        return np.average(values[a : b + 1], weights=weights[a : b + 1])

    size = len(values)
    return [max(min(mean(a, b) for b in range(i, size)) for a in range(i + 1)) for i in range(size)]


@given(WEIGHTED)
def test_pooling_adjacent_violators_is_the_min_max_formula(points: list[tuple[int, int]]) -> None:
    values = np.array([value for value, _ in points], float)
    weights = np.array([weight for _, weight in points], float)
    runs = fitting.pool(values, weights)
    pooled = [np.average(values[a:b], weights=weights[a:b]) for a, b in runs for _ in range(a, b)]
    assert pooled == pytest.approx(naive_means(values.tolist(), weights.tolist()))
    assert list(itertools.chain.from_iterable(range(a, b) for a, b in runs)) == list(range(len(values)))
    means = [np.average(values[a:b], weights=weights[a:b]) for a, b in runs]
    assert all(a < b for a, b in itertools.pairwise(means))


def test_counts_are_of_examples_clicks_and_probabilities_by_score() -> None:
    scores = np.array([-100.0, 0.01, 0.02, 100.0])
    counts = counts_of(scores, np.array([0.0, 1.0, 0.0, 1.0]), np.array([1.0, 2.0, 3.0, 0.5]))
    middle = int(RANGE * BUCKETS_PER_UNIT)
    sigmoid = [1 / (1 + math.exp(-score)) for score in (0.01, 0.02)]
    assert counts[middle].tolist() == pytest.approx([5.0, 2.0, 2 * sigmoid[0] + 3 * sigmoid[1]])
    assert counts[0].tolist() == pytest.approx([1.0, 0.0, 0.0])
    assert counts[-1].tolist() == pytest.approx([0.5, 0.5, 0.5])


@pytest.mark.parametrize(("gamma", "kappa"), [(1.0, 1.0), (0.6, 0.8), (1.4, 1.3)])
def test_power_finds_the_distortion_that_was_put_in(gamma: float, kappa: float) -> None:
    scores, _, labels = clicks_by(
        lambda p: gamma * p**kappa * (gamma * p**kappa < 1) + (gamma * p**kappa >= 1)
    )
    curve = fitting.fit("power", counts_of(scores, labels))
    assert isinstance(curve, PowerCurve) and curve.gamma == pytest.approx(gamma, rel=0.05)
    assert curve.kappa == pytest.approx(kappa, rel=0.03)


def test_no_pair_near_the_power_fit_is_likelier() -> None:
    scores, p, labels = clicks_by(lambda p: 0.7 * p**0.9, examples=20_000)
    counts = counts_of(scores, labels)
    curve = fitting.power(counts[counts[:, 0] > 0])

    def likelihood(gamma: float, kappa: float) -> float:
        return float((labels * np.log(gamma * p**kappa) - gamma * p**kappa).sum())

    best = likelihood(curve.gamma, curve.kappa)
    for gamma, kappa in itertools.product((-0.02, 0.0, 0.02), repeat=2):
        assert likelihood(curve.gamma * (1 + gamma), curve.kappa * (1 + kappa)) <= best + 0.05


def test_isotonic_follows_a_bent_distortion_that_power_cannot() -> None:
    def bent(p: np.ndarray) -> np.ndarray:
        return np.where(p < 0.15, 0.5 * p, 0.075 + 1.2 * (p - 0.15)).clip(0, 0.95)

    scores, _, labels = clicks_by(bent)
    counts = counts_of(scores, labels)
    isotonic, power = (fitting.fit(kind, counts) for kind in ("isotonic", "power"))
    assert isinstance(isotonic, IsotonicCurve) and 10 < len(isotonic.knots) <= fitting.MAX_BINS
    grid = np.linspace(0.02, 0.5, 25)
    assert np.abs(isotonic.apply(grid) - bent(grid)).max() < 0.02
    plain, corrected, by_power = (fitting.logloss(curve, counts)[0] for curve in (None, isotonic, power))
    assert corrected < by_power < plain


@pytest.mark.parametrize("kind", ["power", "isotonic"])
def test_a_fit_brings_the_sum_of_predictions_to_the_sum_of_clicks(kind: str) -> None:
    scores, _, labels = clicks_by(lambda p: 0.5 * p, examples=100_000)
    counts = counts_of(scores, labels)
    expected = fitting.logloss(fitting.fit(kind, counts), counts)[1]
    assert expected / labels.sum() == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("kind", ["power", "isotonic"])
def test_too_few_clicks_or_too_few_others_give_no_curve(kind: str) -> None:
    scores = np.linspace(-3, 0, 1000)
    for clicks in (0, 99, 901, 1000):
        assert fitting.fit(kind, counts_of(scores, (np.arange(1000) < clicks).astype(float))) is None
    assert fitting.fit(kind, np.zeros((BUCKETS, 3))) is None


@pytest.mark.parametrize("kind", ["power", "isotonic"])
@pytest.mark.parametrize("score", [-800.0, 0.0, 800.0])
def test_one_score_for_all_gives_a_curve_all_the_same(kind: str, score: float) -> None:
    labels = (np.arange(1000) % 4 == 0).astype(float)
    curve = fitting.fit(kind, counts_of(np.full(1000, score), labels))
    p = 1 / (1 + math.exp(-score)) if score > -700 else 0.0
    if score == 0.0:
        assert curve.apply(np.array([p]))[0] == pytest.approx(0.25, abs=0.001)
    assert 0 < curve.apply(np.array([p]))[0] < 1


def test_a_model_that_is_wrong_way_round_gets_a_flat_curve_that_still_rises() -> None:
    scores, _, labels = clicks_by(lambda p: 0.5 - 0.4 * p, examples=50_000)
    for kind in ("power", "isotonic"):
        ctr = fitting.fit(kind, counts_of(scores, labels)).apply(np.array([0.05, 0.1, 0.3, 0.5]))
        assert (np.diff(ctr) > 0).all()


SCORES = st.sampled_from([-1e30, -800.0, -40.0, -16.0, -3.0, -3.0 + 1e-12, 0.0, 17.0, 40.0, 1e30])
GROUPS = st.tuples(SCORES, st.sampled_from([1e-20, 1.0, 200.0, 1e24]), st.booleans())


@pytest.mark.parametrize("kind", ["power", "isotonic"])
@given(st.lists(GROUPS, min_size=1, max_size=6))
def test_whatever_was_predicted_there_is_no_curve_or_one_that_can_be_read_again(kind, groups):
    scores, weights, labels = (np.array(column, float) for column in zip(*groups, strict=True))
    curve = fitting.fit(kind, counts_of(scores, labels, weights))  # type: ignore[arg-type]
    if curve is None:
        return
    calibration = Calibration(kind, None, {"base": VariantCurves(curve)})  # type: ignore[arg-type]
    assert Calibration.from_json(calibration.to_json()) == calibration
    assert np.isfinite(curve.apply(np.array([0.0, 1e-300, 0.5, 1.0]))).all()
    assert np.isfinite(fitting.logloss(curve, counts_of(scores, labels, weights))).all()
