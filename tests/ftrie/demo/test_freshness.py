"""Freshness: a click waits until an answer comes from a version that has learned through its report."""

from __future__ import annotations

import pytest

from ftrie.demo.figures import Freshness, Reported, quantiles


@pytest.mark.parametrize("known", [{7: 1_000, 8: 2_000}, {7: 1_500, 8: 1_501}, {8: 9_000}])
def test_a_click_is_in_the_first_version_that_has_learned_through_its_report(known: dict[int, int]) -> None:
    """Not yet in one of the very moment of the report, nor in one that says nothing."""
    fresh = Freshness(1, known.get)
    fresh.reported(Reported(began_s=10.0, known_us=1_500))
    fresh.answered(0, 7, 10.5)
    assert fresh.next_window() == []
    fresh.answered(0, 8, 11.0)
    assert fresh.next_window() == [1.0]


def test_every_server_is_waited_for() -> None:
    fresh = Freshness(2, {7: 5_000}.get)
    fresh.reported(Reported(10.0, 1_000))
    fresh.answered(0, 7, 11.0)
    fresh.answered(1, 7, 12.5)
    assert fresh.next_window() == [1.0, 2.5]
    assert fresh.all() == [1.0, 2.5]


def test_answers_of_an_earlier_version_change_nothing() -> None:
    fresh = Freshness(1, {7: 5_000, 8: 6_000}.get)
    fresh.answered(0, 8, 10.0)
    fresh.reported(Reported(10.5, 5_500))
    fresh.answered(0, 7, 11.0)
    assert fresh.next_window() == []
    assert quantiles([]) == {"n": 0, "p50": None, "p95": None, "max": None}
    assert quantiles([1.0, 2.0, 3.0])["p50"] == 2.0
