"""The lift's interval stays valid however often one looks, and the probability to be best is what simulation says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ftrie.outcomes import Ratio, chances_best, difference, lift

BASE, LOOKS, STEP, RUNS = 0.1, 60, 500, 300


def rate(clicks: int, shown: int) -> Ratio:
    """A click rate of independent requests with one item each."""
    found = Ratio.of(shown, shown, clicks, shown, clicks, clicks)
    assert found is not None
    return found


def ever_excludes_zero(effect: float, seed: int) -> tuple[bool, bool]:
    """Whether the lift's interval and the fixed one exclude 0 at any of many looks at a run without a difference."""
    clicks = np.random.default_rng(seed).binomial(STEP, BASE, size=(LOOKS, 2)).cumsum(0)
    valid = fixed = False
    for look, (own, base) in enumerate(clicks.tolist(), 1):
        shown = look * STEP
        rates = rate(own, shown), rate(base, shown)
        found, once = lift(*rates, effect), difference(*rates)
        assert found is not None and once is not None
        valid = valid or not found.interval.low <= 0.0 <= found.interval.high
        fixed = fixed or not once.relative_interval.low <= 0.0 <= once.relative_interval.high
    return valid, fixed


@pytest.mark.parametrize("effect", [0.02, 0.1])
def test_looking_often_errs_in_at_most_one_of_twenty_runs(effect: float) -> None:
    outcomes = [ever_excludes_zero(effect, seed) for seed in range(RUNS)]
    valid, fixed = (sum(each) / RUNS for each in zip(*outcomes, strict=True))
    # 3 standard errors above 5 %; the interval for one look errs several times as often.
    assert valid <= 0.05 + 3.0 * math.sqrt(0.05 * 0.95 / RUNS)
    assert fixed > 0.15


def test_the_interval_excludes_zero_exactly_if_p_is_below_one_in_twenty() -> None:
    random = np.random.default_rng(3)
    seen = set()
    for own, base in random.integers(20, 5_000, (60, 2)).tolist():
        shown, effect = int(random.integers(10_000, 1_000_000)), float(random.uniform(0.001, 1.0))
        found = lift(rate(own, shown), rate(base, shown), effect)
        once = difference(rate(own, shown), rate(base, shown))
        assert found is not None and once is not None
        assert found.relative == once.relative
        excluded = not found.interval.low <= 0.0 <= found.interval.high
        assert (found.p < 0.05) == excluded or abs(found.p - 0.05) <= 1e-6
        seen.add(excluded)
        # It is never narrower than the interval for one look.
        assert found.interval.low <= once.relative_interval.low + 1e-12
        assert found.interval.high >= once.relative_interval.high - 1e-12
    assert seen == {False, True}


def test_the_chance_to_be_best_is_that_of_draws() -> None:
    rates = {"a": rate(1_000, 10_000), "b": rate(1_040, 10_000), "c": rate(230, 2_000)}
    random = np.random.default_rng(1)
    draws = np.array([random.normal(each.value, each.error or 0.0, 400_000) for each in rates.values()])
    wanted = np.bincount(draws.argmax(0), minlength=3) / 400_000
    found = chances_best(rates)
    assert list(found) == list(rates)
    assert np.allclose(list(found.values()), wanted, atol=0.004)
    assert math.isclose(sum(found.values()), 1.0)
    assert chances_best({"a": rate(100, 1_000), "b": None}) == {}
