"""What the demo tells: figures of people apart from bots, freshness of models, and the picture."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from ftrie.demo.figures import Freshness, Reported, Statistics, Tally, quantiles
from ftrie.demo.live import Windows, picture, total
from ftrie.demo.market import AnsweredVisit, Market, visit
from ftrie.demo.settings import FROZEN, MODEL, Habits, LiveOptions, Sizes

HABITS = Habits()


def seen(market: Market, number: int, ctr: float = 0.2) -> AnsweredVisit:
    one = visit(market, HABITS, number)
    return AnsweredVisit(market, one, np.arange(HABITS.shown), np.full(HABITS.shown, ctr))


def test_rates_are_of_what_people_were_shown_and_there_are_none_of_nothing() -> None:
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


@pytest.mark.parametrize("known", [{7: 1_000, 8: 2_000}, {7: 1_500, 8: 1_501}, {8: 9_000}])
def test_a_click_is_in_the_first_version_that_has_learned_through_its_report(known: dict[int, int]) -> None:
    """Not yet in one of the very moment of the report, nor in one that says nothing."""
    fresh = Freshness(1, known.get)
    fresh.reported(Reported(began_s=10.0, known_us=1_500))
    fresh.answered(0, 7, 10.5)
    assert fresh.next_window() == []
    fresh.answered(0, 8, 11.0)
    assert fresh.next_window() == [1.0]


def test_every_server_is_waited_for_and_answers_of_an_earlier_version_change_nothing() -> None:
    fresh = Freshness(2, {7: 5_000}.get)
    fresh.reported(Reported(10.0, 1_000))
    fresh.answered(0, 7, 11.0)
    fresh.answered(1, 7, 12.5)
    assert fresh.next_window() == [1.0, 2.5]
    assert fresh.all() == [1.0, 2.5]
    # Answers of an earlier version change nothing.
    fresh = Freshness(1, {7: 5_000, 8: 6_000}.get)
    fresh.answered(0, 8, 10.0)
    fresh.reported(Reported(10.5, 5_500))
    fresh.answered(0, 7, 11.0)
    assert fresh.next_window() == []
    assert quantiles([]) == {"n": 0, "p50": None, "p95": None, "max": None}
    assert quantiles([1.0, 2.0, 3.0])["p50"] == 2.0


SVG = "{http://www.w3.org/2000/svg}"


def window(second: int, *, frozen: bool = True, shown: int = 60) -> dict[str, Any]:
    tally = {"shown": shown, "clicks": 9, "expected_ctr": 0.14, "best_ctr": 0.2} if shown else {"shown": 0}
    models = {MODEL: tally} | ({FROZEN: {**tally, "expected_ctr": 0.1}} if frozen and shown else {})
    return {"event": "window", "second": float(second), "seconds": 1.0, "models": models}


def names(svg: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_the_loop_the_frozen_model_the_best_and_the_change_are_pictured_as_far_as_they_are_there() -> None:
    said = names(picture([window(second) for second in range(1, 121)], change_at=60.0))
    assert {"best possible", "the loop", "frozen before the change", "tastes change"} <= set(said)
    assert "0.00" in said  # the rates' axis begins at 0
    assert "tastes change" not in names(picture([window(second) for second in range(1, 20)], change_at=60.0))
    windows = [window(second, frozen=False, shown=60 * (second % 3 > 0)) for second in range(1, 40)]
    said = names(picture(windows, change_at=20.0))
    assert "the loop" in said and "frozen before the change" not in said
    assert [LiveOptions(seconds=seconds).change_at for seconds in (None, 270.0, 60.0, 1.0)] == [
        60.0,
        60.0,
        15.0,
        0.25,
    ]


def test_windows_of_a_time_are_added_up() -> None:
    windows = Windows()
    for second in range(1, 11):
        windows.add(window(second))
    some = windows.rates(4.0, 8.0)
    assert some["loop"]["shown"] == some["frozen"]["shown"] == 4 * 60
    assert some["loop"]["ctr"] == 0.15
    assert total([window(1, shown=0)], MODEL).shown == 0
