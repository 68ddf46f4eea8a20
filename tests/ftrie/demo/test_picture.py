"""The picture: three curves and a mark, whatever the windows are like."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from ftrie.demo.live_crew import FROZEN, default_change_at
from ftrie.demo.live_output import Rates, Windows, picture
from ftrie.demo.market import MODEL

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
    assert [default_change_at(seconds) for seconds in (None, 270.0, 60.0, 1.0)] == [60.0, 60.0, 15.0, 0.25]


def test_windows_of_a_time_are_added_up() -> None:
    windows = Windows()
    for second in range(1, 11):
        windows.add(window(second))
    some = windows.between(4.0, 8.0)
    assert some["loop"].shown == some["frozen"].shown == 4 * 60
    assert some["loop"].as_json()["ctr"] == 0.15
    assert Rates.of(window(1, shown=0), MODEL).shown == 0
