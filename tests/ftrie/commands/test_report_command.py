"""`ftrie experiment report` as an operator types it, over what a trainer has written."""

from __future__ import annotations

import time

import pytest

from ftrie.commands.experiment_report import PICTURE_WIDTH, picture
from ftrie.outcomes import outcomes
from model_store.store import Store
from model_store.versions.online_metrics import OnlineSums
from tests.ftrie.conftest import Ask, Say

pytestmark = pytest.mark.usefixtures("ads")
REPORT = ["experiment", "report", "ads"]


def served(requests: int, clicks: int, per_request: int = 10, promised: float | None = None) -> OnlineSums:
    """Requests that show as many items each, of which the first `clicks` have one click."""
    shown, c = requests * per_request, (clicks if promised is None else promised) / requests
    return OnlineSums(
        requests=requests,
        shown=shown,
        clicks=clicks,
        conversions=clicks // 10,
        ctr_nano=round(c * requests / 1e-9),
        shown_squared=shown * per_request,
        clicks_squared=clicks,
        shown_clicks=clicks * per_request,
        ctr_squared=round(c * c * requests / 1e-6),
        ctr_clicks=round(c * clicks / 1e-6),
        positives=clicks,
        positives_squared=clicks,
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
            (now - 9, 1, "base"): served(1_000, 300),
            (now - 9, 1, "plain"): served(1_000, 240),
            (now - 8, 2, "base"): served(1_000, 320),
            (now - 8, 2, "plain"): served(1_000, 250, promised=500),
        }
    )


@pytest.mark.usefixtures("counted")
def test_variants_are_added_up_over_minutes_and_versions(ask: Ask, say: Say, now: int) -> None:
    found = ask(*REPORT)
    assert (found["base"], found["minutes"], found["mismatched"]) == ("base", 2, False)
    base, plain = found["variants"]["base"], found["variants"]["plain"]
    assert (base["requests"], base["shown"], base["clicks"], base["versions"]) == (2_000, 20_000, 620, [1, 2])
    assert base["ctr"] == 0.031
    assert plain["calibration"] == pytest.approx(740 / 490)
    assert plain["difference"]["relative"] == pytest.approx(490 / 620 - 1)
    assert plain["difference"]["p"] < 0.001
    assert base["difference"] is None
    assert found["all"]["requests"] == 4_000

    code, out, err = say(*REPORT, "--effect", "0.1")  # a table, a picture and words
    assert (code, err) == (0, "")
    assert "ads: 4,000 requests from " in out
    assert "2.450 %" in out
    assert "1 to 2, 2" in out
    assert "plain against base: CTR -21.0%" in out
    assert "±10.0% is detected with 80% power by " in out
    bars = {line.split()[0]: line for line in out.splitlines() if "●" in line}
    assert list(bars) == ["base", "plain", "all"]
    assert bars["plain"].index("●") < bars["all"].index("●") < bars["base"].index("●")

    assert ask(*REPORT, "--base", "plain")["variants"]["base"]["difference"]["relative"] > 0.0
    moment = time.strftime("%Y-%m-%dT%H:%M", time.gmtime((now - 8) * 60))
    assert ask(*REPORT, "--since", moment)["all"]["requests"] == 2_000
    found = ask(*REPORT, "--since", "2h", "--until", moment)
    assert found["all"]["requests"] == 4_000  # the minute of the end is in it
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
    ads.online.write({(now - 5, 1, "base"): served(1_000, 90), (now - 5, 1, "plain"): served(800, 80)})
    code, _, err = say(*REPORT)
    assert code == 0
    assert "the requests do not match the shares" in err
    assert "got base 1,000, plain 800, expected base 50.0%, plain 50.0%" in err
    ads.experiments.change(lambda before: before.divided({"base": 0.9, "plain": 0.1}))
    code, _, err = say(*REPORT)
    assert (code, "the shares are not tested" in err, "do not match" in err) == (0, True, False)


def test_few_clicks_are_shown_and_not_compared(say: Say, store: Store, now: int) -> None:
    store.model("ads").online.write({(now - 5, 1, "base"): served(20, 3), (now - 5, 0, ""): served(20, 3)})
    _, out, _ = say(*REPORT)
    assert "(none) against base: not compared before each has 10 clicks" in out
    assert "0.511 % to 4.317 %" in out  # Wilson's of 3 of 200


def test_the_picture_has_one_scale_and_every_interval_within_it() -> None:
    found = outcomes([((1, 1, "all"), served(1_000, 500)), ((1, 1, ""), served(100, 80))], {}, None, 0.05)
    assert set(found.variants) == {"", "all"}  # a variant called all, and one without a name
    assert found.all.sums.requests == 1_100
    _, *lines = picture([("a", found.variants["all"]), ("b", found.variants[""])])
    for line in lines:
        drawn = line.split("  ")[1]
        assert len(drawn) == PICTURE_WIDTH
        assert drawn.index("├") <= drawn.index("●") <= drawn.index("┤")
    assert lines[0].split("  ")[1].startswith("├")
    assert lines[1].endswith("┤")
