"""Figures: rates per shown item, people apart from bots, windows that add up."""

from __future__ import annotations

import numpy as np
import pytest

from ftrie.demo.figures import Statistics, Tally
from ftrie.demo.market import Market, Sizes
from ftrie.demo.visitors import AnsweredVisit, Habits, visit

HABITS = Habits()


def seen(market: Market, number: int, ctr: float = 0.2) -> AnsweredVisit:
    one = visit(market, HABITS, number)
    return AnsweredVisit(market, one, np.arange(HABITS.shown), np.full(HABITS.shown, ctr))


def test_rates_are_of_what_people_were_shown() -> None:
    market, tally = Market(1, sizes=Sizes(bots=0.5)), Tally()
    visits = [seen(market, number) for number in range(400)]
    for one in visits:
        tally.add(one)
    people = [one for one in visits if not one.by_bot]
    assert (tally.visits, tally.bots) == (len(people), 400 - len(people))
    rates = tally.rates()
    clicked = np.concatenate([one.clicked for one in people])
    assert rates["ctr"] == pytest.approx(clicked.mean(), abs=1e-6)
    loss = -np.where(clicked, np.log(0.2), np.log(0.8)).mean()
    assert rates["logloss"] == pytest.approx(loss, abs=1e-6)
    assert rates["expected_ctr"] is not None and rates["best_ctr"] is not None
    assert rates["expected_ctr"] <= rates["best_ctr"]


def test_nothing_shown_has_no_rates() -> None:
    assert set(Tally().rates().values()) == {None}


def test_windows_add_up_to_all() -> None:
    market, statistics = Market(1), Statistics()
    for number in range(30):
        statistics.answered("market", number // 10 + 1, seen(market, number), degraded=number % 10 == 0)
        if number % 10 == 9:
            statistics.failed("UNAVAILABLE")
            window = statistics.next_window()
            assert window.visits == 10 and window.versions == {"market": number // 10 + 1}
    statistics.lost()
    statistics.next_window()
    whole = statistics.all()
    assert (whole.visits, whole.degraded, whole.lost) == (30, 3, 1)
    assert whole.failures == {"UNAVAILABLE": 3} and whole.versions == {"market": 3}
