"""`ftrie experiment report` as an operator types it, over what a trainer has written."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from ftrie.commands.experiment import PICTURE_WIDTH, picture
from ftrie.outcomes import outcomes
from model_store.store import Store
from model_store.versions.online_metrics import SUMS, OnlineCell, Slot
from tests.ftrie.conftest import Ask, Say
from tests.worlds import online_cell

pytestmark = pytest.mark.usefixtures("ads")
REPORT = ["experiment", "report", "ads"]


def served(
    requests: int, clicks: int, promised: int | None = None, version: int = 1, seed: int = 1
) -> OnlineCell:
    """Requests that show ten items each."""
    return online_cell(
        (version, version),
        seed,
        requests=requests,
        shown=10 * requests,
        clicks=clicks,
        conversions=clicks // 10,
        ctr_nano=10**9 * (clicks if promised is None else promised),
        positives=clicks,
    )


@pytest.fixture
def now() -> int:
    """The minute in which the test begins; the report's `--since` counts back from when it runs."""
    return int(time.time()) // 60


@pytest.fixture
def counted(store: Store, now: int) -> None:
    """Two minutes, two versions: base has 2,000 requests, plain has as many and fewer clicks."""
    store.model("ads").online.write(
        {
            (now - 9, "base"): served(10_000, 3_000),
            (now - 9, "plain"): served(10_000, 2_400, seed=2),
            (now - 8, "base"): served(10_000, 3_200, version=2, seed=3),
            (now - 8, "plain"): served(10_000, 2_500, promised=5_000, version=2, seed=4),
        }
    )


def test_the_share_that_was_seen_is_said_where_something_tells_it(
    say: Say, ask: Ask, store: Store, now: int
) -> None:
    cell = served(1_000, 300)
    store.model("ads").online.write({(now - 9, "base"): cell})
    assert "seen" not in say(*REPORT)[1] and ask(*REPORT)["all"]["seen_share"] is None
    buckets = cell.buckets.copy()
    buckets[0, SUMS.index("unseen")] = 30_000
    store.model("ads").online.write(
        {(now - 9, "base"): OnlineCell(buckets, (1, 1)), (now - 9, "plain"): cell}
    )
    assert "\nseen, of the items in lists: base 25.0%, plain 100.0%, all 40.0%;" in say(*REPORT)[1]
    assert ask(*REPORT)["variants"]["base"]["seen_share"] == 0.25


@pytest.mark.usefixtures("counted")
def test_variants_are_added_up_over_minutes_and_versions(ask: Ask, say: Say, now: int) -> None:
    found = ask(*REPORT)
    assert (found["base"], found["verdict"]["winner"], found["mismatched"]) == ("base", "base", False)
    base, plain = found["variants"]["base"], found["variants"]["plain"]
    assert (base["requests"], base["shown"], base["clicks"], base["versions"]) == (
        20_000,
        200_000,
        6_200,
        [1, 2],
    )
    assert (base["ctr"], base["conversion_rate"]) == (0.031, 0.1)
    assert plain["calibration"] == pytest.approx(7_400 / 4_900)
    assert plain["lift"]["relative"] == pytest.approx(4_900 / 6_200 - 1)
    assert plain["lift"]["p"] < 0.001
    assert base["difference"] is base["lift"] is None
    assert found["all"]["requests"] == 40_000

    code, out, err = say(*REPORT, "--effect", "0.1")  # a verdict, a table, a picture and words
    assert (code, err) == (0, "")
    assert "ads: 40,000 requests from " in out
    assert "\nbase wins: +26.5% (" in out
    assert "2.450 %" in out
    assert "1 to 2" in out
    assert "plain against base: CTR -21.0%, however often one looks" in out
    assert "±10.0% is detected with 80% power by " in out
    bars = {line.split()[0]: line for line in out.splitlines() if "●" in line}
    assert list(bars) == ["base", "plain", "all"]
    assert bars["plain"].index("●") < bars["all"].index("●") < bars["base"].index("●")

    assert ask(*REPORT, "--base", "plain")["variants"]["base"]["lift"]["relative"] > 0.0
    moment = time.strftime("%Y-%m-%dT%H:%M", time.gmtime((now - 8) * 60))
    assert ask(*REPORT, "--since", moment)["all"]["requests"] == 20_000
    found = ask(*REPORT, "--since", "2h", "--until", moment)
    assert found["all"]["requests"] == 40_000  # the minute of the end is in it
    assert ask(*REPORT, "--since", "5m")["all"]["requests"] == 0
    code, _, err = say(*REPORT, "--base", "nobody")
    assert code == 2
    assert "no requests; expected one of" in err and "base, plain" in err


def test_a_time_or_an_effect_that_is_none_is_refused_and_without_requests_it_says_what_is_missing(
    ask: Ask, say: Say
) -> None:
    for words in ("--since yesterday", "--since 1h --until 2h", "--effect 0"):
        assert say(*REPORT, *words.split())[0] == 2
    code, out, _ = say(*REPORT)
    assert code == 0
    assert "no requests counted in this time; is `ftrie trainer` running" in out
    assert ask(*REPORT)["variants"] == {}


def test_requests_that_do_not_fall_as_the_shares_say_are_warned_of_unless_shares_changed_meanwhile(
    say: Say, store: Store, now: int
) -> None:
    ads = store.model("ads")
    ads.online.write({(now - 5, "base"): served(10_000, 900), (now - 5, "plain"): served(8_000, 800)})
    code, _, err = say(*REPORT)
    assert code == 0
    assert "the requests do not match the shares" in err
    assert "got base 10,000, plain 8,000, expected base 50.0%, plain 50.0%" in err
    ads.experiments.change(lambda before: before.divided({"base": 0.9, "plain": 0.1}))
    code, _, err = say(*REPORT)
    assert (code, "they are tested from " in err, "do not match" in err) == (0, True, False)
    ads.experiments.change(lambda before: before.pinned({"u": "base"}))
    assert ads.experiment().assigned < ads.experiment().updated or "they are tested" in say(*REPORT)[2]


def test_interleaved_variants_are_compared_by_credit(ask: Ask, say: Say, store: Store, now: int) -> None:
    def together(base: int, plain: int) -> OnlineCell:
        random = np.random.default_rng(base)
        credit = {
            name: np.stack([random.multinomial(clicks, np.full(64, 1 / 64)) * 10**9, np.zeros(64, int)])
            for name, clicks in (("base", base), ("plain", plain))
        }
        return replace(served(10_000, 3_000), credit=credit)

    store.model("ads").online.write({(now - 6, "base+plain"): together(900, 600)})
    (found,) = ask(*REPORT)["preferences"]
    assert (found["variant"], found["base"], found["share"]) == ("plain", "base", pytest.approx(0.4))
    low, high = found["interval"]
    assert low < 0.4 < high < 0.5 and found["p"] < 0.05
    _, out, _ = say(*REPORT)
    assert "base is preferred: plain has 40.0% of the credit (" in out
    assert "plain against base, interleaved in 10,000 requests: 40.0% of the credit" in out
    (found,) = ask(*REPORT, "--base", "base+plain")["preferences"]
    assert found["base"] == "base", "the report's base is none of the two"
    store.model("ads").online.write({(now - 6, "base+plain"): together(900, 890)})
    verdict = ask(*REPORT)["verdict"]
    assert (verdict["winner"], "takes about " in verdict["text"]) == (None, True)
    store.model("ads").online.write({(now - 6, "base+plain"): together(9, 6)})
    assert "No preference yet: each variant needs a credit of 10 clicks" in ask(*REPORT)["verdict"]["text"]


def test_few_clicks_or_cookies_are_shown_and_not_compared(say: Say, store: Store, now: int) -> None:
    store.model("ads").online.write({(now - 5, "base"): served(20, 3), (now - 5, ""): served(20, 3)})
    _, out, _ = say(*REPORT)
    assert "No winner yet: each variant needs 10 clicks" in out
    assert "(none) against base: not compared before each has 10 clicks" in out
    assert "1.500 %" in out


def test_the_picture_has_one_scale_and_every_interval_within_it() -> None:
    found = outcomes(
        [(Slot(1, 1, "all"), served(10_000, 5_000)), (Slot(1, 1, ""), served(1_000, 800))], {}, None, 0.05
    )
    assert set(found.variants) == {"", "all"}  # a variant called all, and one without a name
    assert found.all.sums.requests == 11_000
    _, *lines = picture([("a", found.variants["all"]), ("b", found.variants[""])])
    for line in lines:
        drawn = line.split("  ")[1]
        assert len(drawn) == PICTURE_WIDTH
        assert drawn.index("├") <= drawn.index("●") <= drawn.index("┤")
    assert lines[0].split("  ")[1].startswith("├")
    assert lines[1].endswith("┤")
