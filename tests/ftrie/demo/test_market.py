"""The market's truth: what is clicked is what the stated chances say, and everything follows from the seed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ftrie.demo import market as first_day
from ftrie.demo.market import ABSTAINER, CATEGORIES, CLICKER, Market, Sizes, Tastes, best_clicks, looked_at
from ftrie.demo.visitors import AnsweredVisit, Habits, Reaction, Schedule, visit

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


def test_appeal_is_what_sets_items_of_one_brand_and_price_apart() -> None:
    def apart(appeal: float) -> float:
        market = Market(2, sizes=Sizes(items_per_category=200, appeal=appeal))
        known = first_day.BY_BRAND[market.brand] + first_day.BY_LOG_PRICE * np.log(
            market.price / first_day.TYPICAL_PRICE
        )
        return float((market.item_score - known).std())

    assert apart(0.0) < 1e-12
    assert apart(0.8) == pytest.approx(0.8, rel=0.1)


def test_what_a_visit_is_does_not_depend_on_which_came_before() -> None:
    market = Market(3)
    inside = [next(schedule) for schedule in [Schedule(market, HABITS, 2.0)] for _ in range(5)][3]
    alone = visit(market, HABITS, 203)
    assert inside.number == alone.number and inside.due_s == alone.due_s
    assert np.array_equal(inside.uniform, alone.uniform) and np.array_equal(
        inside.candidates, alone.candidates
    )


def test_visits_come_at_their_rate_in_the_order_of_their_numbers() -> None:
    due = [visit(Market(1), HABITS, number).due_s for number in range(1000)]
    assert due == sorted(due)
    assert abs(due[-1] - 10.0) <= 1.0 / HABITS.rate


def test_clicks_happen_as_often_as_their_chances_say() -> None:
    market = Market(5, sizes=Sizes(bots=0.0))
    answers = [seen(market, number) for number in range(4000)]
    chance = np.concatenate([each.chance for each in answers])
    clicks = sum(int(each.clicked.sum()) for each in answers)
    assert abs(clicks - chance.sum()) < 4 * math.sqrt((chance * (1 - chance)).sum())


def test_each_position_is_looked_at_less_than_the_one_above() -> None:
    looks = looked_at(8)
    assert looks[0] == 1.0
    assert np.all(np.diff(looks) < 0)
    market = Market(5, sizes=Sizes(bots=0.0))
    clicked = np.array([seen(market, number).clicked for number in range(6000)])
    by_position = clicked.mean(axis=0)
    attraction = np.array([seen(market, number).attraction[: HABITS.shown] for number in range(6000)])
    expected = attraction.mean(axis=0) * looked_at(HABITS.shown)
    assert np.abs(by_position - expected).max() < 4 * np.sqrt(0.25 / 6000)


def test_no_order_does_better_than_the_best() -> None:
    random = np.random.default_rng(0)
    attraction = random.random(12)
    best = best_clicks(attraction, 6)
    for _ in range(200):
        shown = random.permutation(12)[:6]
        assert float(attraction[shown] @ looked_at(6)) <= best + 1e-12


def test_tastes_change_at_their_second_and_not_before() -> None:
    market = Market(2, Tastes(change_at=60.0, drift=0.0))
    before, after = market.taste(59.9), market.taste(60.0)
    assert np.array_equal(market.taste(0.0), before)
    games, books = CATEGORIES.index("games"), CATEGORIES.index("books")
    assert np.array_equal(after[:, games], before[:, books])
    assert np.array_equal(after[:, books], before[:, games])


def test_tastes_wander_from_where_the_first_day_left_them() -> None:
    still, wandering = Market(2, Tastes(drift=0.0)), Market(2, Tastes(drift=0.5))
    assert np.array_equal(still.taste(0.0), wandering.taste(0.0))
    moved = wandering.taste(wandering.tastes.period_s / 3) - still.taste(0.0)
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
    reactions = [each for number in range(2000) for each in _by_item(seen(market, number))]
    conversions = [(click, bought) for click, bought in reactions if bought is not None]
    assert 0.05 < len(conversions) / len(reactions) < 0.15
    for click, bought in conversions:
        assert bought.after_s >= click.after_s
        assert bought.value == pytest.approx(market.price[market.skus.index(bought.item)])


def test_the_first_day_has_the_clicks_that_its_tastes_make() -> None:
    market = Market(1)
    table = first_day.first_day(market, 5000, 6)
    assert table.num_rows == 30_000
    assert table.equals(first_day.first_day(Market(1), 5000, 6))
    first_of_each = table["click"].to_numpy().reshape(-1, 6).mean(axis=0)
    assert np.all(first_of_each[0] > first_of_each[3:])


def _by_item(one: AnsweredVisit) -> list[tuple[Reaction, Reaction | None]]:
    reactions = one.reactions()
    bought = {each.item: each for each in reactions if each.event == "conversion"}
    return [(each, bought.get(each.item)) for each in reactions if each.event == "click"]
