"""Intervals, differences and sample sizes: against numpy straight from the definitions, and by simulation."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import pytest

from ftrie.outcomes import (
    Ratio,
    calibration,
    chi_square_tail,
    click_rate,
    click_rate_interval,
    detectable,
    difference,
    mismatch_p,
    requests_needed,
    wilson,
)
from model_store.versions.online_metrics import OnlineSums

Floats = npt.NDArray[np.float64]
Z = NormalDist().inv_cdf(0.975)


def requests(count: int, rate: float, random: np.random.Generator) -> tuple[Floats, Floats, Floats]:
    """Shown, clicked and predicted of each request; users differ, so that clicks of a request go together."""
    shown = random.integers(1, 11, count).astype(np.float64)
    own = random.beta(rate * 5.0, (1.0 - rate) * 5.0, count)
    return shown, random.binomial(shown.astype(int), own).astype(np.float64), shown * rate


def sums(shown: Floats, clicks: Floats, predicted: Floats) -> OnlineSums:
    return OnlineSums(
        requests=shown.size,
        shown=int(shown.sum()),
        clicks=int(clicks.sum()),
        ctr_nano=round(predicted.sum() / 1e-9),
        shown_squared=int((shown**2).sum()),
        clicks_squared=int((clicks**2).sum()),
        shown_clicks=int((shown * clicks).sum()),
        ctr_squared=round((predicted**2).sum() / 1e-6),
        ctr_clicks=round((predicted * clicks).sum() / 1e-6),
        positives=int(clicks.sum()),
        positives_squared=int((clicks**2).sum()),
    )


def test_the_errors_of_click_rate_and_calibration_are_the_delta_methods_by_definition() -> None:
    shown, clicks, predicted = requests(500, 0.2, np.random.default_rng(1))
    drawn, n = sums(shown, clicks, predicted), shown.size
    rate, found = click_rate(drawn), calibration(drawn)
    assert rate is not None and found is not None
    r = clicks.mean() / shown.mean()
    covariance = np.cov(shown, clicks, ddof=1)
    # Deng et al., equation 3: Var(Y/X) = (Var Y - 2 R Cov + R² Var X) / (n mean(X)²)
    spread = covariance[1, 1] - 2 * r * covariance[0, 1] + r * r * covariance[0, 0]
    assert rate.value == pytest.approx(r)
    assert rate.variance == pytest.approx(spread / (n * shown.mean() ** 2))
    residuals = predicted - found.value * clicks
    error = math.sqrt(n / (n - 1) * (residuals**2).sum()) / clicks.sum()
    assert found.value == pytest.approx(predicted.sum() / clicks.sum())
    assert found.error == pytest.approx(error, rel=1e-5)
    assert calibration(OnlineSums(**{**vars(drawn), "without_ctr": 1})) is None


def test_what_nothing_or_one_request_cannot_tell_is_not_told() -> None:
    assert click_rate(OnlineSums()) is None
    assert click_rate_interval(OnlineSums()) is None
    rate = Ratio.of(1, 10, 4, 100, 16, 40)
    assert rate == Ratio(0.4, None, 1)
    assert (rate.normal(), rate.logarithmic()) == (None, None)
    assert mismatch_p([10], [1.0]) is None
    assert mismatch_p([0, 0], [0.5, 0.5]) is None


def test_the_interval_covers_the_truth_in_95_of_100_cases_though_clicks_of_a_request_go_together() -> None:
    random, rate, runs = np.random.default_rng(4), 0.1, 2_000
    covered = naive = calibrated = 0
    for _ in range(runs):
        drawn = sums(*requests(400, rate, random))
        interval = click_rate_interval(drawn)
        assert interval is not None
        covered += interval.low <= rate <= interval.high
        alone = wilson(drawn.clicks, drawn.shown)
        naive += alone.low <= rate <= alone.high
        ratio = calibration(drawn)
        of = ratio.logarithmic() if ratio else None
        calibrated += of is not None and of.low <= 1.0 <= of.high
    assert 0.935 <= covered / runs <= 0.965
    assert 0.935 <= calibrated / runs <= 0.965
    assert naive / runs < 0.92  # what taking the items of a request as independent would give


def test_wilsons_interval_covers_the_truth_where_clicks_are_few() -> None:
    shown, rate = 60, 0.03
    chance = [math.comb(shown, k) * rate**k * (1 - rate) ** (shown - k) for k in range(shown + 1)]
    intervals = [wilson(k, shown) for k in range(shown + 1)]
    covered = sum(p for p, each in zip(chance, intervals, strict=True) if each.low <= rate <= each.high)
    assert 0.93 <= covered <= 0.99
    assert wilson(0, 10).low == 0.0
    assert wilson(10, 10).high == 1.0


def test_few_clicks_or_few_shows_without_one_have_wilsons_interval() -> None:
    squares = {"shown_squared": 90, "clicks_squared": 3, "shown_clicks": 5}
    for clicks, shown in ((0, 50), (9, 5_000), (49, 50)):
        drawn = OnlineSums(requests=30, shown=shown, clicks=clicks, **squares)
        assert click_rate_interval(drawn) == wilson(clicks, shown)


def test_a_difference_by_definition() -> None:
    own, base = Ratio(0.12, 4e-6, 1_000), Ratio(0.10, 5e-6, 1_000)
    found = difference(own, base)
    assert found is not None
    assert found.absolute == pytest.approx(0.02)
    assert found.absolute_interval.low == pytest.approx(0.02 - Z * 0.003)
    assert found.relative == pytest.approx(0.2)
    spread = math.sqrt(4e-6 / 0.12**2 + 5e-6 / 0.10**2)
    assert found.relative_interval.high == pytest.approx(1.2 * math.exp(Z * spread) - 1.0)
    assert found.p == pytest.approx(2 * (1 - NormalDist().cdf(0.02 / 0.003)), rel=1e-6)


@pytest.mark.parametrize("unknown", [None, Ratio(0.1, None, 1), Ratio(0.0, 1e-6, 10)])
def test_what_is_not_known_well_enough_is_not_compared(unknown: Ratio | None) -> None:
    known = Ratio(0.1, 1e-6, 100)
    assert difference(unknown, known) is None
    assert difference(known, unknown) is None
    assert requests_needed(known, unknown, 0.05) is None
    assert detectable(known, unknown) is None


def test_with_the_requests_needed_the_effect_is_seen_in_80_of_100_cases() -> None:
    random, rate, effect = np.random.default_rng(6), 0.1, 0.2
    pilot = [click_rate(sums(*requests(4_000, rate, random))) for _ in range(2)]
    needed = requests_needed(*pilot, effect)
    assert needed is not None
    seen, runs = 0, 400
    for _ in range(runs):
        base = click_rate(sums(*requests(needed // 2, rate, random)))
        own = click_rate(sums(*requests(needed // 2, rate * (1 + effect), random)))
        found = difference(own, base)
        seen += found is not None and found.p < 0.05
    assert 0.72 <= seen / runs <= 0.88


def test_what_can_be_detected_needs_no_more_and_the_chi_square_tail_is_that_of_the_tables() -> None:
    own, base = Ratio(0.12, 4e-6, 700), Ratio(0.10, 5e-6, 1_300)
    effect = detectable(own, base)
    assert effect is not None
    assert requests_needed(own, base, effect) == pytest.approx(2_000, abs=1)
    table = {3.841: 1, 5.991: 2, 7.815: 3, 9.488: 4, 18.307: 10}
    for statistic, freedom in table.items():
        assert chi_square_tail(statistic, freedom) == pytest.approx(0.05, rel=0.01)
    assert chi_square_tail(10.828, 1) == pytest.approx(0.001, rel=0.01)


def test_requests_that_fall_as_they_should_are_told_as_mismatched_as_often_as_p_says() -> None:
    random, runs = np.random.default_rng(7), 4_000
    shares = [0.5, 0.3, 0.2]
    below = 0
    for _ in range(runs):
        p = mismatch_p(random.multinomial(900, shares).tolist(), shares)
        below += p is not None and p < 0.05
    assert below / runs == pytest.approx(0.05, abs=0.012)
