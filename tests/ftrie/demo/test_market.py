"""The market's truth: what is clicked is what the stated chances say, and everything follows from the seed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ftrie.demo import market as first_day
from ftrie.demo.market import ABSTAINER, CATEGORIES, CLICKER, Market, Sizes, Tastes, best_clicks, looked_at
from ftrie.demo.visitors import AnsweredVisit, Habits, Schedule, visit

HABITS = Habits(rate=100.0)


def seen(market: Market, number: int, habits: Habits = HABITS) -> AnsweredVisit:
    """A visit that is shown its first candidates, in their order."""
    one = visit(market, habits, number)
    return AnsweredVisit(market, one, np.arange(habits.shown), np.full(habits.shown, 0.1))


def test_the_same_seed_is_the_same_market_and_the_same_visits() -> None:
    for number in (0, 1, 12_345):
        one, other = seen(Market(7), number), seen(Market(7), number)
        assert one.visit.user == other.visit.user and one.visit.due_s == other.visit.due_s
        assert one.reactions() == other.reactions()
    assert any(seen(Market(7), n).visit.user != seen(Market(8), n).visit.user for n in range(3))
    # What a visit is does not depend on which came before.
    inside = [visit for visit, _ in zip(Schedule(Market(3), HABITS, 2.0), range(4), strict=False)][3]
    alone = visit(Market(3), HABITS, 203)
    assert inside.number == alone.number and inside.due_s == alone.due_s
    assert np.array_equal(inside.uniform, alone.uniform)
    assert np.array_equal(inside.candidates, alone.candidates)


def test_appeal_is_what_sets_items_of_one_brand_and_price_apart() -> None:
    def apart(appeal: float) -> float:
        market = Market(2, sizes=Sizes(items_per_category=200, appeal=appeal))
        known = first_day.BY_BRAND[market.brand] + first_day.BY_LOG_PRICE * np.log(
            market.price / first_day.TYPICAL_PRICE
        )
        return float((market.item_score - known).std())

    assert apart(0.0) < 1e-12
    assert apart(0.8) == pytest.approx(0.8, rel=0.1)


def test_visits_come_at_their_rate_in_the_order_of_their_numbers() -> None:
    market = Market(1)
    due = [visit(market, HABITS, number).due_s for number in range(200)]
    assert due == sorted(due)
    assert abs(due[-1] - 2.0) <= 1.0 / HABITS.rate


def test_clicks_happen_as_often_as_their_chances_say_and_each_position_is_looked_at_less() -> None:
    market, visits = Market(5, sizes=Sizes(bots=0.0)), 1500
    answers = [seen(market, number) for number in range(visits)]
    chance = np.concatenate([each.chance for each in answers])
    clicks = sum(int(each.clicked.sum()) for each in answers)
    assert abs(clicks - chance.sum()) < 4 * math.sqrt((chance * (1 - chance)).sum())
    looks = looked_at(8)
    assert looks[0] == 1.0
    assert np.all(np.diff(looks) < 0)
    by_position = np.array([each.clicked for each in answers]).mean(axis=0)
    attraction = np.array([each.attraction[: HABITS.shown] for each in answers])
    expected = attraction.mean(axis=0) * looked_at(HABITS.shown)
    assert np.abs(by_position - expected).max() < 4 * np.sqrt(0.25 / visits)


def test_no_order_does_better_than_the_best() -> None:
    random = np.random.default_rng(0)
    attraction = random.random(12)
    best = best_clicks(attraction, 6)
    for _ in range(50):
        shown = random.permutation(12)[:6]
        assert float(attraction[shown] @ looked_at(6)) <= best + 1e-12


def test_tastes_change_at_their_second_and_wander_from_where_the_first_day_left_them() -> None:
    still, wandering = Market(2, Tastes(change_at=60.0, drift=0.0)), Market(2, Tastes(drift=0.5))
    before, after = still.taste(59.9), still.taste(60.0)
    assert np.array_equal(still.taste(0.0), before)
    games, books = CATEGORIES.index("games"), CATEGORIES.index("books")
    assert np.array_equal(after[:, games], before[:, books])
    assert np.array_equal(after[:, books], before[:, games])
    assert np.array_equal(wandering.taste(0.0), before)
    moved = wandering.taste(wandering.tastes.period_s / 3) - before
    assert 0.1 < np.abs(moved).max() <= 1.0


def test_bots_click_everything_or_nothing_and_are_counted_apart() -> None:
    market = Market(4, sizes=Sizes(users=100, bots=1.0))
    assert set(market.bot) == {CLICKER, ABSTAINER}
    for number in range(50):
        one = seen(market, number)
        assert one.by_bot
        assert one.clicked.all() or not one.clicked.any()


@pytest.mark.slow
def test_delays_of_clicks_have_their_mean_and_their_share_beyond_the_window() -> None:
    habits = Habits(rate=100.0, delay=2.0, late=0.05, window=600.0)
    click_s = np.concatenate([visit(Market(1), habits, number).click_s for number in range(3000)])
    late = click_s > habits.window
    assert abs(late.mean() - habits.late) < 4 * math.sqrt(0.05 / click_s.size)
    assert abs(click_s[~late].mean() - habits.delay) < 4 * habits.delay / math.sqrt(click_s.size)


def test_a_conversion_follows_its_click_and_is_worth_the_price() -> None:
    market = Market(1, sizes=Sizes(bots=0.0))
    clicks, conversions = 0, 0
    for number in range(800):
        reactions = seen(market, number).reactions()
        clicked = {each.item: each for each in reactions if each.event == "click"}
        clicks += len(clicked)
        for bought in (each for each in reactions if each.event == "conversion"):
            conversions += 1
            assert bought.after_s >= clicked[bought.item].after_s
            assert bought.value == pytest.approx(market.price[market.skus.index(bought.item)])
    assert 0.05 < conversions / clicks < 0.15


def test_the_first_day_has_the_clicks_that_its_tastes_make() -> None:
    market = Market(1)
    table = first_day.first_day(market, 2000, 6)
    assert table.num_rows == 12_000
    assert table.equals(first_day.first_day(Market(1), 2000, 6))
    first_of_each = table["click"].to_numpy().reshape(-1, 6).mean(axis=0)
    assert np.all(first_of_each[0] > first_of_each[3:])
