"""Intervals, lifts and verdicts: against numpy straight from the definitions, and by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.same_variants import SHARES, Visitors, simulated
from ftrie.outcomes import (
    POWER,
    Outcomes,
    Rate,
    _matched,
    chances_best,
    detectable,
    difference,
    lift,
    mismatch_p,
    outcomes,
    requests_needed,
)
from model_store.ratios import BUCKETS, Interval, Ratio, wilson
from model_store.versions.guard_record import GuardRecord
from model_store.versions.online_metrics import AGREED, CALLER, OWN, OnlineCell, Slot
from tests.worlds import online_cell


def test_the_error_of_a_ratio_is_the_delta_methods_by_definition() -> None:
    random = np.random.default_rng(1)
    x = random.integers(50, 90, BUCKETS)
    y = random.binomial(x, 0.2)
    rate = Ratio.of(y, x)
    assert rate is not None
    n, r, covariance = x.size, y.sum() / x.sum(), np.cov(x, y, ddof=1)
    # Deng et al., equation 3: Var(Y/X) = (Var Y - 2 R Cov + R² Var X) / (n mean(X)²)
    spread = covariance[1, 1] - 2 * r * covariance[0, 1] + r * r * covariance[0, 0]
    assert rate.value == pytest.approx(r)
    assert rate.variance == pytest.approx(spread / (n * x.mean() ** 2))
    half = 1.9983 * math.sqrt(rate.variance or 0.0)  # t of 63 degrees of freedom
    assert rate.interval() == pytest.approx((r - half, r + half), rel=1e-4)


def test_what_cannot_be_told_is_not_told() -> None:
    one, none = np.array([4]), np.array([0])
    assert Ratio.of(none, none) is None
    assert Ratio.of(one, one) == Ratio(1.0, None, 1)
    assert (Ratio(0.4, None, 1).interval(), Ratio(0.4, None, 1).logarithmic()) == (None, None)
    known = Ratio(0.1, 1e-6, 64)
    for unknown in (None, Ratio(0.1, None, 1)):
        assert difference(unknown, known) is None and difference(known, unknown) is None
    for unknown in (None, Ratio(0.1, None, 1), Ratio(0.0, 1e-6, 64)):
        assert lift(unknown, known, 0.05) is None and lift(known, unknown, 0.05) is None
        assert requests_needed(known, unknown, 1_000, 0.05) is None
        assert detectable(known, unknown, 0.05) is None
    # Before all buckets have requests there is a rate without an interval, and no test of the shares.
    few = online_cell(requests=30, shown=300, clicks=40)
    assert few.click_rate is not None and few.click_rate.variance is None
    assert mismatch_p({"base": few}, SHARES) is None
    assert mismatch_p({"base": online_cell(requests=9_000)}, {"base": 1.0, "plain": 0.0}) is None
    assert online_cell(ctr_nano=10, positives=9_000, without_ctr=1).calibration is None


def test_a_bucket_of_heavy_cookies_widens_the_interval_as_repeats_of_it_do_not_narrow_it() -> None:
    even = online_cell(requests=10_000, shown=10_000, clicks=1_000)
    heavy = OnlineCell(even.buckets.copy())
    heavy.buckets[0] *= 100
    heavy["clicks"][0] *= 2
    again = OnlineCell(100 * heavy.buckets)  # the same cookies come back
    errors = [cell.click_rate.error for cell in (even, heavy, again) if cell.click_rate is not None]
    assert errors[1] > 1.2 * errors[0] and errors[2] == pytest.approx(errors[1])


@pytest.mark.parametrize("bots", [0.0, 0.02])
def test_variants_that_do_not_differ_raise_no_alarm_however_often_one_looks(bots: float) -> None:
    runs = 60
    found = simulated(Visitors(2_000, bots), 40_000, runs=runs, looks=20)
    assert found.lift <= 0.05 * runs and found.shares == 0
    assert (
        found.lift_by_request > 0.1 * runs and found.shares_by_request > 0.3 * runs
    )  # what requests would say


def test_a_split_that_is_wrong_and_a_variant_that_is_better_are_found() -> None:
    random, cells = np.random.default_rng(3), {}
    for name, rate in (("base", 0.1), ("plain", 0.13)):
        cells[name] = OnlineCell.empty()
        cells[name]["requests"][:] = cells[name]["shown"][:] = random.poisson(4_000, BUCKETS)
        cells[name]["clicks"][:] = random.binomial(cells[name]["shown"], rate)
    assert mismatch_p(cells, {"base": 0.5, "plain": 0.5}) == pytest.approx(1.0, abs=0.9)
    wrong = mismatch_p(cells, {"base": 0.55, "plain": 0.45})
    assert wrong is not None and wrong < 1e-6
    assert mismatch_p(cells | {"lean": OnlineCell.empty()}, {"base": 0.5, "plain": 0.4, "lean": 0.1}) == 0.0
    found = lift(cells["plain"].click_rate, cells["base"].click_rate, 0.05)
    assert found is not None and found.interval.low < 0.3 < found.interval.high and found.p < 1e-6


def test_with_the_requests_needed_the_lift_is_seen_in_80_of_100_cases() -> None:
    random, effect, runs = np.random.default_rng(6), 0.2, 300

    def rate(requests: int, chance: float) -> Ratio | None:
        shown = random.multinomial(requests, np.full(BUCKETS, 1 / BUCKETS))
        return Ratio.of(random.binomial(shown, chance), shown, BUCKETS)

    pilots = [rate(20_000, 0.1), rate(20_000, 0.1)]
    needed = requests_needed(*pilots, 40_000, effect)
    assert needed is not None
    assert detectable(*pilots, effect) == pytest.approx(effect, rel=1.0)
    looks = (lift(rate(needed // 2, 0.1 * (1 + effect)), rate(needed // 2, 0.1), effect) for _ in range(runs))
    assert sum(each is not None and each.p < 0.05 for each in looks) / runs == pytest.approx(POWER, abs=0.1)


def test_the_lifts_interval_excludes_zero_exactly_if_p_is_below_one_in_twenty() -> None:
    random, seen = np.random.default_rng(3), set()
    for own, base in random.uniform(0.05, 0.2, (60, 2)).tolist():
        effect, level = float(random.uniform(0.001, 1.0)), float(random.choice([0.05, 0.01]))
        rates = (
            Ratio(own, float(random.uniform(1e-7, 1e-4)), 64),
            Ratio(base, float(random.uniform(1e-7, 1e-4)), 64),
        )
        found, once = lift(*rates, effect, level), difference(*rates)
        assert found is not None and once is not None
        excluded = not found.interval.low <= 0.0 <= found.interval.high
        assert (found.p < 0.05) == excluded or abs(found.p - 0.05) <= 1e-6
        assert (
            not excluded or not once.interval.low <= 0.0 <= once.interval.high
        )  # never narrower than for one look
        seen.add(excluded)
    assert seen == {False, True}


def test_wilsons_interval_covers_the_truth_where_clicks_are_few() -> None:
    shown, rate = 60, 0.03
    chance = [math.comb(shown, k) * rate**k * (1 - rate) ** (shown - k) for k in range(shown + 1)]
    intervals = [wilson(k / shown, shown) for k in range(shown + 1)]
    covered = sum(p for p, each in zip(chance, intervals, strict=True) if each.low <= rate <= each.high)
    assert 0.93 <= covered <= 0.99
    assert wilson(0.0, 10).low == 0.0
    assert wilson(1.0, 10).high == 1.0


def test_the_chance_to_be_best_is_that_of_draws() -> None:
    rates = {"a": Ratio(0.1, 9e-6, 64), "b": Ratio(0.104, 9e-6, 64), "c": Ratio(0.115, 5e-5, 64)}
    random = np.random.default_rng(1)
    draws = np.array([random.normal(each.value, each.error or 0.0, 400_000) for each in rates.values()])
    wanted = np.bincount(draws.argmax(0), minlength=3) / 400_000
    found = chances_best(rates)
    assert list(found) == list(rates)
    assert np.allclose(list(found.values()), wanted, atol=0.004)
    assert math.isclose(sum(found.values()), 1.0)
    assert chances_best({"a": Ratio(0.1, 1e-6, 64), "b": None}) == {}


def judged(effect: float = 0.05, since: int = 0, **clicks: int) -> Outcomes:
    """Of variants with 100,000 requests each, in minutes 1 and 2, of which as many are clicked."""
    cells = [
        (Slot(1 + half, 1, name), online_cell(seed=half, requests=50_000, shown=50_000, clicks=number // 2))
        for name, number in clicks.items()
        for half in range(2)
    ]
    return outcomes(cells, dict.fromkeys(clicks, 1.0 / len(clicks)), "base", effect, since)


def test_the_verdict_says_who_wins_or_what_is_missing() -> None:
    won = judged(base=5_000, plain=6_000, lean=5_100)
    assert won.verdict.winner == "plain" and won.verdict.text.startswith("plain wins: +20.")
    kept = judged(base=6_000, plain=5_000, lean=4_000)
    assert kept.verdict.winner == "base" and "against plain" in kept.verdict.text
    open_ = judged(base=5_000, plain=5_010)
    assert open_.verdict.winner is None
    needed = open_.variants["plain"].needed
    assert f"takes about {needed:,} requests of both; there are 200,000" in open_.verdict.text
    assert "would have been seen by now" in judged(effect=0.5, base=5_000, plain=5_010).verdict.text
    assert "needs 10 clicks" in judged(base=5_000, plain=4).verdict.text
    assert "fewer than two variants" in judged(base=5_000).verdict.text
    lost = outcomes([(Slot(1, 1, "base"), online_cell(requests=9_000))], SHARES, None, 0.05)
    assert lost.verdict.is_problem and lost.is_mismatched and "not divided as planned" in lost.verdict.text


def test_shares_are_tested_since_they_hold() -> None:
    before = [(Slot(1, 1, "base"), online_cell(requests=60_000))]
    after = [
        (Slot(2, 60, name), online_cell(requests=requests))
        for name, requests in (("base", 16_000), ("plain", 4_000))
    ]
    assert outcomes(before + after, SHARES, None, 0.05).is_mismatched
    found = outcomes(before + after, SHARES, None, 0.05, since=2)
    assert not found.is_mismatched and found.all.sums.requests == 80_000
    assert isinstance(found.variants["base"].conversion_rate, Rate)


def test_an_interleaving_that_no_request_takes_part_in_is_said() -> None:
    def said(*slots: tuple[int, str]) -> bool:
        cells = [(Slot(minute, 1, name), online_cell(requests=900)) for minute, name in slots]
        found = outcomes(cells, SHARES, None, 0.05, since=2, together="base+plain")
        return "one variant answers a request that explores" in found.verdict.text

    assert said((1, "base"), (2, "base"))
    assert not said((1, "base")) and not said((2, "base"), (3, "base+plain"))


def test_a_difference_by_definition() -> None:
    found = difference(Ratio(0.12, 4e-6, 64), Ratio(0.10, 5e-6, 64))
    assert found is not None and isinstance(found.interval, Interval)
    assert found.absolute == pytest.approx(0.02)
    assert found.interval.low == pytest.approx(0.02 - 1.9983 * 0.003, rel=1e-4)


def test_an_apprentice_is_not_ready_while_its_figures_do_not_speak_for_it() -> None:
    def missing(
        caller: OnlineCell, agreed: OnlineCell, own: OnlineCell, guard: GuardRecord | None = None
    ) -> str:
        cells = {CALLER: caller, AGREED: agreed, OWN: own}
        slots = [(Slot(100, 1, f"base{suffix}"), cell) for suffix, cell in cells.items()]
        found = outcomes(slots, {"base": 1.0}, None, 0.05, guard=guard)
        assert (found.variants, found.all.sums.requests) == ({}, 0), "no answers of a variant"
        return found.apprentices["base"].text

    def served(requests: int, clicks: int, predicted: int, seed: int = 1) -> OnlineCell:
        sums = {"requests": requests, "shown": 10 * requests, "clicks": clicks, "positives": clicks}
        return online_cell(seed=seed, **sums, ctr_nano=10**9 * predicted)

    caller, agreed = served(20_000, 10_000, 10_050), served(8_000, 4_100, 4_000, seed=2)
    own = online_cell(seed=3, requests=20_000, shown=120_000, ctr_nano=10**9 * 11_000)
    assert missing(caller, agreed, own) == "ready to decide"
    for text, cells in {
        "needs 10 clicks": (served(20, 10, 10), agreed, own),
        "predicted clicks a click are 2.00, which must be near 1": (
            served(20_000, 10_000, 20_000),
            agreed,
            own,
        ),
        "it does not expect more clicks of its own order": (caller, agreed, served(20_000, 0, 10_000)),
        "it agrees on the wrong requests": (caller, served(8_000, 2_000, 4_000), own),
    }.items():
        assert missing(*cells).startswith("not ready: ") and text in missing(*cells)
    rolled_back = GuardRecord(when_us=100 * 60_000_000, origin=7, target=6, reason="calibration 2.1")
    assert "the guard went back from version 7 to 6: calibration 2.1" in missing(
        caller, agreed, own, rolled_back
    )
    before = GuardRecord(when_us=99 * 60_000_000, origin=7, target=6)
    assert missing(caller, agreed, own, before) == "ready to decide"


def test_the_rate_where_both_agree_varies_as_a_part_of_the_whole() -> None:
    random = np.random.default_rng(3)
    truth, widths, inside = 1.2, [], 0
    for _ in range(300):
        busy = random.integers(200, 400, BUCKETS)
        some = random.binomial(busy, 0.4)
        hits, rest = random.binomial(some, 0.12), random.binomial(busy - some, (0.1 - 0.4 * 0.12) / 0.6)
        part = OnlineCell.empty()
        part["shown"][:], part["clicks"][:] = some, hits
        whole = OnlineCell.empty()
        whole["shown"][:], whole["clicks"][:] = busy, hits + rest
        found = _matched(part, whole)
        interval = found.interval() if found is not None else None
        assert interval is not None
        inside += interval.low <= truth <= interval.high
        widths.append(interval.high - interval.low)
    assert 0.91 <= inside / 300 <= 0.985
    assert np.mean(widths) < 0.12
