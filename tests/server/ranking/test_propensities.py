"""Propensities against large simulations of what they are the chance of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from server.ranking.select.exploration import EXACT_UP_TO, integrated, simulated
from server.ranking.select.filters import Groups

Array = Any
Valued = Callable[[Array], Array]
DRAWS = 40_000


def plain(score: Array) -> Array:
    return score


def frequencies(score: Array, deviation: Array, valued: Valued, top: int, draws: int = DRAWS) -> Array:
    """How often each candidate is among the first `top`, equal ones in their order."""
    moves = np.random.default_rng(7).standard_normal((draws, len(score)))
    orders = np.argsort(-valued(score + deviation * moves), axis=1, kind="stable")[:, :top]
    return np.bincount(orders.ravel(), minlength=len(score)) / draws


def shop(candidates: int) -> tuple[Array, Array]:
    draw = np.random.default_rng(candidates)
    return draw.normal(size=candidates), draw.uniform(0.0, 1.0, size=candidates)


def assert_as_simulated(
    score: Array, deviation: Array, valued: Valued, top: int, off: float = 0.003, draws: int = DRAWS
) -> None:
    everyone = np.arange(len(score))[::-1].copy()  # in whatever order they are asked for
    expected = frequencies(score, deviation, valued, top, draws)[everyone]
    found = integrated(score, deviation, valued, everyone, top)
    noise = 5.0 * np.sqrt(expected * (1.0 - expected) / draws) + 5.0 / draws
    assert (np.abs(found - expected) <= noise + np.minimum(off, 0.002 + 0.02 * expected)).all()
    assert found.sum() == pytest.approx(top, rel=0.01), "as many as are returned"


@pytest.mark.parametrize(("candidates", "top"), [(2, 1), (3, 2), (10, 3), (50, 49), (120, 10)])
def test_normal_scores(candidates: int, top: int) -> None:
    assert_as_simulated(*shop(candidates), plain, top)
    found = integrated(np.array([0.3, 0.0]), np.array([0.4, 0.3]), plain, np.array([0, 1]), 1)
    assert found == pytest.approx([0.72575, 0.27425], abs=1e-3), "Phi(0.3 / 0.5): that one is ahead"


BID = np.random.default_rng(3).uniform(0.5, 2.0, size=30)


@pytest.mark.parametrize(
    ("candidates", "valued", "top", "off"),
    [
        pytest.param(30, lambda s: BID / (1.0 + np.exp(-s)), 4, 0.003, id="weighs each candidate"),
        pytest.param(12, lambda s: -s, 3, 0.003, id="falls"),
        pytest.param(12, lambda s: -((s - 0.2) ** 2), 3, 0.003, id="turns"),
        pytest.param(12, lambda s: np.minimum(s, 0.4), 3, 0.003, id="clips, so that many are equal"),
        pytest.param(12, lambda s: np.minimum(s, 1.0), 1, 0.003, id="clips the best"),
        pytest.param(12, lambda s: np.clip(s, -0.3, 0.4), 6, 0.003, id="clips from both sides"),
        pytest.param(12, lambda s: np.where(s > 0.3, 1.0, 0.0), 3, 0.003, id="jumps"),
        pytest.param(
            100, lambda s: np.minimum(s, 1.5), 4, 0.003, id="clips many, more than are returned or fewer"
        ),
        pytest.param(
            100, lambda s: np.minimum(s, 0.0), 10, 0.003, id="clips more than are returned for sure"
        ),
    ],
)
def test_objectives(candidates: int, valued: Callable[[Array], Array], top: int, off: float) -> None:
    assert_as_simulated(*shop(candidates), valued, top, off)


def test_an_objective_that_does_not_see_the_draw() -> None:
    value = np.array([1.0, 3.0, 2.0, 3.0, 0.0, 3.0])
    found = integrated(*shop(6), lambda s: np.broadcast_to(value, s.shape), np.arange(6), 2)
    assert found == pytest.approx([0, 1, 0, 1, 0, 0], abs=1e-9), "equal ones in their order"


def test_candidates_that_the_model_is_sure_of_among_others() -> None:
    score, deviation = shop(20)
    deviation[::2] = 0.0
    assert_as_simulated(score, deviation, plain, 5)
    assert_as_simulated(np.repeat([0.0, 1.0], 10), deviation, plain, 5)
    assert_as_simulated(np.zeros(20), deviation, plain, 15)
    assert_as_simulated(np.array([0.3, 0.0, 0.0, 0.0]), np.array([1e-4, 1.0, 1.0, 30.0]), plain, 2)


def test_what_has_no_value_stands_last_in_a_propensity_too() -> None:
    score, deviation = shop(6)
    valued = lambda s: np.where(np.arange(6) < 2, -1e300 * (2.0 - s / (1 + np.abs(s))), s)  # noqa: E731
    found = integrated(score, deviation, valued, np.arange(6), 5)
    assert found[2:] == pytest.approx([1.0] * 4, abs=1e-9)
    assert found[:2].sum() == pytest.approx(1.0, abs=1e-3)
    assert_as_simulated(score, deviation, valued, 5)


def test_many_candidates_take_the_nearly_normal_way_and_stay_near() -> None:
    score, deviation = shop(1500)
    top = 400
    assert len(score) * top > EXACT_UP_TO
    assert_as_simulated(score, deviation, plain, top, off=0.01, draws=2000)
    clips = lambda s: np.minimum(s, 0.0)  # noqa: E731
    assert_as_simulated(score, deviation, clips, top, off=0.01, draws=1000)
    score, deviation = shop(400)
    exact = integrated(score, deviation, plain, np.arange(400), 60)
    nearly = integrated(score, deviation, plain, np.arange(400), 60, exact_up_to=0)
    assert np.abs(exact - nearly).max() < 0.003, "where both ways can be taken"


def test_under_caps_it_is_counted_in_simulated_draws() -> None:
    score, deviation = np.array([1.0, 1.0, 0.0]), np.array([1.0, 1.0, 0.0])
    pair = Groups(np.array([0, 1, 2, 2]), np.array([0, 0]), np.array([1]))
    found = simulated(score, deviation, plain, np.array([0, 1, 2]), 2, pair, seed=1)
    # One of the pair alone may be returned: the greater. The third is then always the second.
    assert found == pytest.approx([0.5, 0.5, 1.0], abs=0.06)
    assert found[2] == 1.0
    assert (found > 0.0).all()
