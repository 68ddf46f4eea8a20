"""IPS, clipped IPS and SNIPS: against their definitions, and against the truth of a bandit that is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from trainer.off_policy.estimates import (
    RATIOS,
    Estimate,
    Sums,
    interval,
    ratio,
    resampled,
    sums_by_cluster,
    support_of,
)
from trainer.off_policy.policies import PolicyWeights

Array = npt.NDArray[Any]
LIMIT = 2.0


def estimates_of(
    weight: Array, reward: Array, request: Array | None = None, importance: Array | None = None
) -> dict[str, Estimate]:
    """The three estimates; without requests every row is one, without importance all have 1."""
    sums = sums_of(weight, reward, request, importance)
    return {name: ratio(sums[top], sums[below]) for name, (top, below) in RATIOS.items() if top in sums}


def sums_of(
    weight: Array, reward: Array, request: Array | None = None, importance: Array | None = None
) -> Sums:
    request = np.arange(weight.size) if request is None else request
    importance = np.ones(weight.size) if importance is None else importance
    return sums_by_cluster(request, reward, importance, PolicyWeights("it", weight), LIMIT)


@dataclass(frozen=True)
class Bandit:
    """Three contexts and five items; each policy is a table of chances, and the truth follows from both."""

    clicks: Array
    logging: Array
    target: Array

    @property
    def truth(self) -> float:
        """The target's click rate, contexts being equally likely."""
        return float((self.target * self.clicks).sum(axis=1).mean())

    def log(self, random: np.random.Generator, rows: int) -> tuple[Array, Array]:
        """The weights and rewards of so many rows."""
        context = random.integers(0, len(self.clicks), rows)
        drawn = random.random(rows)[:, None] > np.cumsum(self.logging, axis=1)[context]
        item = np.minimum(drawn.sum(axis=1), self.clicks.shape[1] - 1)
        reward = (random.random(rows) < self.clicks[context, item]).astype(float)
        return self.target[context, item] / self.logging[context, item], reward


@pytest.fixture
def bandit() -> Bandit:
    random = np.random.default_rng(7)
    return Bandit(
        clicks=random.uniform(0.05, 0.5, (3, 5)),
        logging=random.dirichlet(np.full(5, 3.0), 3),
        target=random.dirichlet(np.full(5, 1.0), 3),
    )


def test_the_estimates_are_their_definitions() -> None:
    random = np.random.default_rng(1)
    weight, importance = random.exponential(1.0, 200), random.uniform(0.5, 2.0, 200)
    reward = (random.random(200) < 0.3).astype(float)
    found = estimates_of(weight, reward, importance=importance)
    weighted = weighted_clipped = total = normal = 0.0
    for w, r, m in zip(weight, reward, importance, strict=True):
        weighted += m * w * r
        weighted_clipped += m * min(w, LIMIT) * r
        total += m
        normal += m * w
    assert found["ips"].value == pytest.approx(weighted / total)
    assert found["clipped"].value == pytest.approx(weighted_clipped / total)
    assert found["snips"].value == pytest.approx(weighted / normal)


def test_the_interval_of_ips_over_single_rows_is_that_of_a_mean() -> None:
    random = np.random.default_rng(2)
    weight, reward = random.exponential(1.0, 300), (random.random(300) < 0.4).astype(float)
    found = estimates_of(weight, reward)["ips"]
    error = np.std(weight * reward, ddof=1) / np.sqrt(300)
    assert found.error == pytest.approx(error)
    assert (found.low, found.high) == pytest.approx(
        ((weight * reward).mean() - 1.959964 * error, (weight * reward).mean() + 1.959964 * error)
    )


def test_snips_of_a_constant_reward_is_that_reward_exactly() -> None:
    found = estimates_of(np.random.default_rng(3).pareto(1.5, 500), np.ones(500))
    assert (found["snips"].value, found["snips"].error) == (1.0, 0.0) and found["ips"].value != 1.0


def test_without_a_click_there_is_no_interval_and_without_a_weight_snips_has_no_value() -> None:
    assert all(each == Estimate(0.0) for each in estimates_of(np.ones(10), np.zeros(10)).values())
    found = estimates_of(np.zeros(10), np.ones(10))
    assert found["snips"] == Estimate(None) and found["ips"].value == 0.0


def test_copies_of_rows_within_requests_tell_nothing_new() -> None:
    random = np.random.default_rng(4)
    weight, reward = random.exponential(1.0, 200), (random.random(200) < 0.5).astype(float)
    once = estimates_of(weight, reward)
    thrice = estimates_of(np.repeat(weight, 3), np.repeat(reward, 3), np.repeat(np.arange(200), 3))
    for name, estimate in once.items():
        assert thrice[name].value == pytest.approx(estimate.value)
        assert thrice[name].error == pytest.approx(estimate.error)


def test_estimates_are_unbiased_and_95_of_100_normal_intervals_hold_the_truth(bandit: Bandit) -> None:
    random = np.random.default_rng(8)
    found = [estimates_of(*bandit.log(random, 1000)) for _ in range(600)]
    for name in ("ips", "snips"):
        values = np.array([each[name].value for each in found], float)
        assert abs(values.mean() - bandit.truth) < 4 * values.std() / np.sqrt(len(values))
        inside = sum((each[name].low or 0.0) <= bandit.truth <= (each[name].high or 0.0) for each in found)
        assert 0.925 <= inside / 600 <= 0.975


def test_95_of_100_bootstrapped_intervals_hold_the_truth(bandit: Bandit) -> None:
    random = np.random.default_rng(9)
    top, below = RATIOS["snips"]
    inside = 0
    for run in range(300):
        sums = sums_of(*bandit.log(random, 400))
        drawn = resampled(np.column_stack([sums[top], sums[below]]), 200, seed=run)
        found = interval(*drawn.T)
        assert found is not None
        inside += found[0] <= bandit.truth <= found[1]
    assert 0.91 <= inside / 300 <= 0.985


def test_intervals_hold_where_the_rows_of_a_request_go_together() -> None:
    """Given requests whose three rows are clicked together, rows that count as requests tell too much."""
    random = np.random.default_rng(10)
    inside = {"requests": 0, "rows": 0}
    for _ in range(400):
        clicked = random.random(300) < 0.3
        reward, weight = np.repeat(clicked, 3).astype(float), random.uniform(0.5, 1.5, 900)
        for kind, request in (("requests", np.repeat(np.arange(300), 3)), ("rows", np.arange(900))):
            found = estimates_of(weight, reward, request)["snips"]
            inside[kind] += (found.low or 0.0) <= 0.3 <= (found.high or 0.0)
    assert 0.92 <= inside["requests"] / 400 <= 0.98 and inside["rows"] / 400 < 0.85


def test_the_bootstrap_is_repeatable_and_draws_requests_whole() -> None:
    sums = np.column_stack([np.arange(1.0, 8.0), 2.0 * np.arange(1.0, 8.0)])
    first, second = resampled(sums, 50, seed=3), resampled(sums, 50, seed=3)
    assert np.array_equal(first, second) and not np.array_equal(first, resampled(sums, 50, seed=4))
    assert np.array_equal(2.0 * first[:, 0], first[:, 1])


def test_the_support_of_a_policy() -> None:
    weight, reward = np.array([0.0, 4.0, 1.0, 1.0]), np.array([1.0, 1.0, 0.0, 1.0])
    found = support_of(PolicyWeights("it", weight), reward, sums_of(weight, reward), LIMIT)
    assert (found.rows, found.matched, found.mean) == (4, 0.75, 1.5)
    assert (found.largest, found.clipped) == (4.0, 0.25)
    assert found.error == pytest.approx(np.std(weight, ddof=1) / 2)
    assert found.ess == pytest.approx(36 / 18) and found.clicks == pytest.approx(25 / 17)
