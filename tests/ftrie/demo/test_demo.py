"""The demo as a user runs it, which shows what is true and leaves nothing behind; and the truth of its markets."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftrie.demo import market as first_day
from ftrie.demo.market import (
    ABSTAINER,
    CATEGORIES,
    CLICKER,
    AnsweredVisit,
    Market,
    Schedule,
    Shop,
    best_clicks,
    looked_at,
    visit,
)
from ftrie.demo.settings import Habits, Sizes, Tastes

DEMO = (sys.executable, "-m", "ftrie", "demo", "--rows")
TIMEOUT_S = 150


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Where the demo makes its temporary folder; short enough for a unix socket."""
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder:
        yield Path(folder)


@pytest.mark.slow
def test_the_demo_learns_the_shop_and_the_server_follows_its_tastes(scratch: Path) -> None:
    command = [*DEMO, "60000", "--json"]
    finished = subprocess.run(command, env=_environment(scratch), capture_output=True, timeout=TIMEOUT_S)
    assert finished.returncode == 0, finished.stderr.decode()
    answer = json.loads(finished.stdout)

    for day in answer["days"]:
        loss = day["logloss"]
        assert loss["truth"] < loss["base"] < 1.02 * loss["truth"]
        assert loss["base"] < loss["plain"]
    *first, after = answer["visits"]
    assert [visit["version"] for visit in first] == [1, 1, 1]
    assert after["version"] == 2
    assert [item["id"] for item in after["items"]] != [item["id"] for item in first[0]["items"]]
    for shown in answer["visits"]:
        true = np.array([item["true_ctr"] for item in shown["items"]])
        base = np.array([item["ctr"]["base"] for item in shown["items"]])
        assert np.abs(true - base).max() < 0.08
        assert np.all(np.diff(base) <= 0)
    _nothing_is_left(scratch)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_demo_leaves_nothing_behind(scratch: Path, number: signal.Signals, code: int) -> None:
    """Ctrl-C reaches every process of the group."""
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    own = {"env": _environment(scratch), "start_new_session": True}
    with subprocess.Popen([*DEMO, "20000"], **pipes, **own) as demo:
        assert demo.stdout is not None
        assert any("ranks:" in line for line in demo.stdout), "the demo ended before it ranked"
        (os.killpg if number == signal.SIGINT else os.kill)(demo.pid, number)
        demo.stdout.read()
        assert demo.wait(TIMEOUT_S) == code
    _nothing_is_left(scratch)


def test_the_same_seed_is_the_same_shop_and_clicks_happen_at_the_true_rate() -> None:
    days = [Shop(seed=7).clicks(1, 500) for _ in range(2)]
    assert days[0].log.equals(days[1].log)
    assert not days[0].log.equals(Shop(seed=8).clicks(1, 500).log)
    day = Shop(seed=3).clicks(1, 100_000)
    standard_error = np.sqrt((day.true_ctr * (1 - day.true_ctr)).sum())
    assert abs(day.clicked.sum() - day.true_ctr.sum()) < 4 * standard_error


def _environment(scratch: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(scratch)}


def _nothing_is_left(scratch: Path) -> None:
    assert list(scratch.iterdir()) == []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):  # the process ended meanwhile, or is someone else's
            assert not os.readlink(link).startswith(str(scratch)), link


HABITS = Habits(rate=100.0)


def seen(market: Market, number: int, habits: Habits = HABITS) -> AnsweredVisit:
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
        dear = np.log(market.price / first_day.TYPICAL_PRICE)
        known = first_day.BY_BRAND[market.brand] + first_day.BY_LOG_PRICE * dear
        return float((market.item_score - known).std())

    assert apart(0.0) < 1e-12
    assert apart(0.8) == pytest.approx(0.8, rel=0.1)


def test_visits_come_at_their_rate_in_order_and_no_order_does_better_than_the_best() -> None:
    market = Market(1)
    due = [visit(market, HABITS, number).due_s for number in range(200)]
    assert due == sorted(due)
    assert abs(due[-1] - 2.0) <= 1.0 / HABITS.rate
    random = np.random.default_rng(0)
    attraction = random.random(12)
    shown = [random.permutation(12)[:6] for _ in range(50)]
    assert max(float(attraction[each] @ looked_at(6)) for each in shown) <= best_clicks(attraction, 6)


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


def test_what_is_looked_at_is_reported_by_choice_and_of_it_clicks_do_not_depend_on_the_position() -> None:
    market, visits = Market(5, sizes=Sizes(bots=0.0)), 3000
    looks, clicks, attraction = (np.zeros(HABITS.shown) for _ in range(3))
    for number in range(visits):
        answer = seen(market, number)
        reactions = answer.reactions(True)
        looked = {each.item for each in reactions if each.event == "seen"}
        assert [each for each in reactions if each.event != "seen"] == answer.reactions()
        assert {each.item for each in answer.reactions()} <= looked
        skus = [market.skus[item] for item in answer.visit.candidates[answer.order].tolist()]
        looks += [sku in looked for sku in skus]
        clicks += answer.clicked
        attraction += answer.attraction[answer.order]
    assert np.abs(looks / visits - looked_at(HABITS.shown)).max() < 4 * math.sqrt(0.25 / visits)
    by_look, true = clicks / looks, attraction / visits
    assert np.all(np.abs(by_look - true) < 4 * np.sqrt(true / looks))


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
    market = Market(1)
    click_s = np.concatenate([visit(market, habits, number).click_s for number in range(3000)])
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
    table = first_day.first_day(Market(1), 2000, 6)
    assert table.num_rows == 12_000
    assert table.equals(first_day.first_day(Market(1), 2000, 6))
    first_of_each = table["click"].to_numpy().reshape(-1, 6).mean(axis=0)
    assert np.all(first_of_each[0] > first_of_each[3:])
