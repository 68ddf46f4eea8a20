"""Which variant a cookie gets. Cookies are fixed and hashing is exact, so each count here is one number for ever."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from itertools import pairwise

import pytest

from model_store.errors import ExperimentError
from model_store.versions.experiments import STOPPED, Experiment
from server.ranking.experiments import Assignment

COOKIES = [f"cookie-{n}" for n in range(5_000)]
NAMES = ("base", "plain", "lean", "rich")
# 99.99 % quantiles of chi-square: what a fair chooser exceeds once in ten thousand salts.
CHI_SQUARE = {1: 15.14, 2: 18.42, 3: 21.11, 9: 33.72}


def of(*shares: float, model: str = "ads", **experiment: object) -> Assignment:
    """An assignment over as many variants as there are shares, with an experiment if parts of one are given."""
    asked = Experiment(**experiment) if experiment else None  # type: ignore[arg-type]
    return Assignment(model, NAMES[: len(shares)], shares, asked)


def distance(counts: Counter[object], expected: dict[object, float]) -> float:
    return sum((counts[key] - e) ** 2 / e for key, e in expected.items())


@pytest.mark.parametrize(
    ("more", "salt"), [({}, "ads"), ({"salt": "autumn"}, "autumn"), ({"model": "shop"}, "shop")]
)
def test_the_split_is_that_of_the_definition(more: dict[str, str], salt: str) -> None:
    assignment = of(0.25, 0.75, **more)  # type: ignore[arg-type]
    for cookie in [*COOKIES[:200], "", "ü", "\x00", "🎈"]:
        point = int.from_bytes(blake2b(f"{salt}\0{cookie}".encode(), digest_size=8).digest(), "big") / 2**64
        assert assignment.choose(cookie) == int(point >= 0.25)
    assert assignment.choose("\ud800") in (0, 1), "any text is a cookie"


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.9, 0.1), (0.2, 0.3, 0.5), (0.25, 0.25, 0.25, 0.25)])
def test_traffic_follows_the_shares(shares: tuple[float, ...]) -> None:
    named = dict(zip(NAMES, shares, strict=False))
    for assignment in (of(*shares), of(*shares[::-1], shares=named)):
        counts = Counter[object](map(assignment.choose, COOKIES))
        expected = {bit: share * len(COOKIES) for bit, share in enumerate(shares)}
        assert distance(counts, dict(expected)) < CHI_SQUARE[len(shares) - 1]


@pytest.mark.parametrize("other", [{"model": "shop"}, {"salt": "autumn"}])
def test_models_and_salts_divide_the_same_cookies_independently(other: dict[str, str]) -> None:
    quarters = (0.25, 0.25, 0.25, 0.25)
    ads, shop = ([each.choose(c) for c in COOKIES] for each in (of(*quarters), of(*quarters, **other)))  # type: ignore[arg-type]
    expected: dict[object, float] = {(a, b): len(COOKIES) / 16 for a in range(4) for b in range(4)}
    joint = distance(Counter(zip(ads, shop, strict=True)), expected)
    alone = sum(distance(Counter(row), dict.fromkeys(range(4), len(COOKIES) / 4)) for row in (ads, shop))
    assert joint - alone < CHI_SQUARE[9]


def test_a_moved_border_moves_only_the_cookies_it_passes() -> None:
    steps = [of(0.5, 0.5, shares={"base": s, "plain": 1 - s}) for s in (0.5, 0.6, 0.95, 1.0)]
    for (before, after), passed in zip(pairwise(steps), (0.1, 0.35, 0.05), strict=True):
        moves = Counter((before.choose(c), after.choose(c)) for c in COOKIES)
        assert moves[0, 1] == 0
        expected = {True: passed * len(COOKIES), False: (1 - passed) * len(COOKIES)}
        moved = Counter[object]({True: moves[1, 0], False: len(COOKIES) - moves[1, 0]})
        assert distance(moved, dict(expected)) < CHI_SQUARE[1]
    before, after = of(0.2, 0.3, 0.5), of(0.4, 0.1, 0.5)
    pairs = {(before.choose(c), after.choose(c)) for c in COOKIES}
    assert {pair for pair in pairs if pair[0] != pair[1]} == {(1, 0)}, "between two of three"


@pytest.mark.parametrize(
    "assignment",
    [of(0.0, 1.0, 0.0), of(0.0, 0.5, 0.0, 0.5), of(0.5, 0.3, 0.2, shares={"lean": 0.5, "base": 0.5})],
)
def test_a_variant_without_a_share_gets_no_traffic(assignment: Assignment) -> None:
    seen = {assignment.choose(c) for c in COOKIES[:1000]}
    assert seen == {bit for bit, share in enumerate(assignment.shares) if share}
    assert of(0.5, 0.3, 0.2, shares={"lean": 0.5, "base": 0.5}).shares == (0.5, 0.0, 0.5)


def test_pins_winners_and_shadows() -> None:
    plain, pinned = of(1.0, 0.0), of(1.0, 0.0, pins={"cookie-7": "plain"})
    assert [c for c in COOKIES if plain.choose(c) != pinned.choose(c)] == ["cookie-7"], "moves nobody else"
    ended = of(0.5, 0.5, state=STOPPED, winner="plain", pins={"cookie-7": "base"}, shadows=("base",))
    assert {ended.choose(c) for c in COOKIES[:1000]} == {1}
    assert ended.shadows == ()
    assignment = of(0.5, 0.3, 0.2, shadows=("lean", "plain"))
    assert assignment.shadows == (2, 1)
    assert [assignment.shadows_beside(bit) for bit in range(3)] == [(2, 1), (2,), (1,)], "not its own"


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        (Experiment(shares={"other": 1.0}), "shares: no variant 'other' in the model; it has: base, plain"),
        (Experiment(pins={"u": "other"}), "pins: no variant 'other'"),
        (Experiment(objective="ctr *"), "objective: "),
    ],
)
def test_what_does_not_fit_is_refused_and_the_last_good_one_stays(asked: Experiment, problem: str) -> None:
    with pytest.raises(ExperimentError):
        Assignment("ads", ("base", "plain"), (0.5, 0.5), asked)
    good = Experiment(shares={"base": 0.1, "plain": 0.9}, revision=3)
    after = of(0.5, 0.5).asked_for(good).asked_for(asked)
    assert after.problem.startswith(problem)
    assert (after.experiment, after.asked, after.shares) == (good, asked, (0.1, 0.9))
    assert of(0.5, 0.5).asked_for(asked, [good]).shares == after.shares, "of a worker that starts now"
    assert after.over(("other", "plain"), (1.0, 0.0)).over(("base", "plain"), (0.5, 0.5)).experiment == good
    assert after.asked_for(None).problem == ""
    assert after.asked_for(None).shares == (0.5, 0.5)


def test_an_experiment_is_asked_again_of_each_version() -> None:
    asked, good = Experiment(shares={"base": 0.5, "lean": 0.5}), Experiment(shares={"plain": 1.0})
    waiting = of(0.5, 0.5).asked_for(asked)
    assert waiting.experiment is None and waiting.problem
    settled = waiting.over(("base", "lean"), (1.0, 0.0))
    assert (settled.experiment, settled.problem, settled.shares) == (asked, "", (0.5, 0.5)), "which it fits"
    names = (*waiting.variants[:1], *waiting.variants[1:])
    same = waiting.over(names, [0.5, 0.5])
    assert same.variants is names
    assert (same.asked, same.problem, same.experiment) == (asked, waiting.problem, None)
    assert [same.choose(c) for c in COOKIES[:500]] == [waiting.choose(c) for c in COOKIES[:500]]
    fallen = of(0.5, 0.5).asked_for(good).over(("other", "another"), (0.25, 0.75))
    assert (fallen.experiment, fallen.asked, fallen.shares) == (None, good, (0.25, 0.75)), "as its spec says"
    assert "no variant 'plain'" in fallen.problem
    assert fallen.over(("plain",), (1.0,)).experiment == good
