"""Interleaved variants: the draft against all drafts there are, and what a server with such an experiment answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from ftrie.api.client import Client
from ftrie.api.messages import Thompson
from model_store.store import Store
from model_store.versions.experiments import PROBABILISTIC, TEAM, Experiment
from server.ranking.experiments import Assignment
from server.ranking.select.draft_kernels import DRAWS, draft, ints_for, reals_for
from tests.server import shop
from tests.server.one_process import Server
from tests.waiting import eventually

ALL = list(shop.ITEMS)
NO_CAPS = np.empty(0, np.int64)
List = tuple[int, ...]


def drafted(orders: Sequence[Sequence[int]], top: int, seed: int, by_turns: bool = True) -> tuple[Any, ...]:
    """order, team, credit and propensity."""
    k, candidates = len(orders), len(orders[0])
    order, team = np.empty((2, top), np.int64)
    credit, propensity = np.empty((2, top))
    ints, reals = np.empty(ints_for(k, candidates, top), np.int64), np.empty(reals_for(k, top))
    count = draft(
        np.array(orders, np.int64), candidates, top, by_turns, seed, *[NO_CAPS] * 4, ints, reals,
        np.empty(1, np.uint64), order, team, credit, propensity,
    )  # fmt: skip
    assert count == top
    return tuple(order.tolist()), tuple(team.tolist()), credit.tolist(), propensity.tolist()


def team_drafts(
    orders: Sequence[Sequence[int]], top: int, taken: List = (), teams: List = ()
) -> Iterator[tuple[List, List, float]]:
    """Every list that a team draft can end with, who placed each item, and how likely that is: round by round."""
    if len(taken) == top:
        yield taken, teams, 1.0
        return
    turns = list(permutations(range(len(orders))))
    for turn in turns:
        items, placed = taken, teams
        for team in turn[: top - len(taken)]:
            items = (*items, next(item for item in orders[team] if item not in items))
            placed = (*placed, team)
        for found, who, chance in team_drafts(orders, top, items, placed):
            yield found, who, chance / len(turns)


def credit_of(
    drafts: Sequence[tuple[List, List, float]], found: List, team: int, place: int, teams: int
) -> float:
    """The chance that the team placed this item, given the list up to it, less the mean of the others'."""
    alike = [
        (who[place], chance) for items, who, chance in drafts if items[: place + 1] == found[: place + 1]
    ]
    own = sum(chance for who, chance in alike if who == team) / sum(chance for _, chance in alike)
    return own - (1.0 - own) / (teams - 1)


@pytest.mark.parametrize(
    ("teams", "candidates", "top"), [(2, 6, 5), (2, 4, 4), (2, 7, 3), (3, 5, 4), (4, 4, 3)]
)
def test_a_team_draft_is_one_of_all_there_are_with_their_credits_and_chances(
    teams: int, candidates: int, top: int
) -> None:
    random = np.random.default_rng(teams * 100 + candidates)
    for number in range(8):
        # Orders that differ a little, as those of variants do.
        scores = random.normal(size=candidates) + 0.7 * random.normal(size=(teams, candidates))
        orders = np.argsort(-scores, axis=1)[: teams - number % 2 * (teams > 2)].tolist()
        drafts = list(team_drafts(orders, top))
        chance_of: Counter[tuple[List, List]] = Counter()
        for items, who, chance in drafts:
            chance_of[items, who] += chance
        seen: Counter[tuple[List, List]] = Counter()
        for seed in range(-200, 200):
            found, who, credit, propensity = drafted(orders, top, seed * 7_919)
            seen[found, who] += 1
            expected = [credit_of(drafts, found, t, at, len(orders)) for at, t in enumerate(who)]
            assert credit == pytest.approx(expected, abs=1e-12)
            exact = [sum(c for items, _, c in drafts if item in items) for item in found]
            off = 1e-12 if len(orders) == 2 else 6.0 * np.sqrt(0.25 / DRAWS)
            assert propensity == pytest.approx(exact, abs=off)
        assert seen.keys() <= chance_of.keys()
        for each, chance in chance_of.items():
            assert seen[each] / 400 == pytest.approx(chance, abs=5.0 * np.sqrt(0.25 / 400))


def test_a_probabilistic_draft_draws_by_rank_and_credits_by_what_both_would_have_done() -> None:
    orders, top = ([0, 1, 2, 3], [0, 2, 3, 1]), 2
    weight = np.array([1.0, 1 / 8, 1 / 27, 1 / 64])

    def chances(team: int, taken: Sequence[int]) -> dict[int, float]:
        free = {item: weight[rank] for rank, item in enumerate(orders[team]) if item not in taken}
        return {item: each / sum(free.values()) for item, each in free.items()}

    exact: Counter[List] = Counter()
    for first, second in permutations(range(4), 2):
        own = sum(chances(team, ())[first] for team in (0, 1)) / 2
        exact[first, second] = own * sum(chances(team, (first,))[second] for team in (0, 1)) / 2
    seen: Counter[List] = Counter()
    for seed in range(4_000):
        found, who, credit, propensity = drafted(orders, top, seed, by_turns=False)
        seen[found] += 1
        for place in range(top):
            mine, others = (
                chances(team, found[:place])[found[place]] for team in (who[place], 1 - who[place])
            )
            assert credit[place] == pytest.approx((mine - others) / (mine + others))
        inside = [sum(chance for items, chance in exact.items() if item in items) for item in found]
        assert propensity == pytest.approx(inside, abs=6.0 * np.sqrt(0.25 / DRAWS))
    for items, chance in exact.items():
        assert seen[items] / 4_000 == pytest.approx(chance, abs=5.0 * np.sqrt(chance / 4_000))


def test_random_clicks_favour_no_variant() -> None:
    orders = ([0, 1, 2, 3, 4, 5], [1, 2, 0, 5, 3, 4])
    for by_turns in (True, False):
        gained = np.zeros(2)
        for seed in range(6_000):
            _, who, credit, _ = drafted(orders, 4, seed, by_turns)
            for place, (team, each) in enumerate(zip(who, credit, strict=True)):
                # The first places are looked at more.
                gained[team if each > 0 else 1 - team] += abs(each) / (place + 1)
        assert gained[0] / gained.sum() == pytest.approx(0.5, abs=0.01)


# -- a server


def interleave(store: Store, server: Server, *variants: str, **parts: Any) -> Experiment:
    def edit(before: Experiment) -> Experiment:
        return replace(before.interleaved(variants or ("base", "plain")), **parts)

    record = store.model(shop.NAME).experiments.change(edit)
    eventually(lambda: server.current.assignment.experiment == record)
    return record


def alone(client: Client, variant: str, **more: Any) -> dict[str, Any]:
    return {item.id: item for item in client.rank(candidates=ALL, variant=variant, **more).items}


@pytest.mark.parametrize("draft_of", [TEAM, PROBABILISTIC])
def test_an_interleaved_answer_has_items_of_both_and_says_whose(
    store: Store, server: Server, client: Client, draft_of: str
) -> None:
    interleave(store, server, draft=draft_of)
    of = {variant: alone(client, variant) for variant in shop.VARIANTS}
    whose: Counter[str | None] = Counter()
    for number in range(20):
        answer = client.rank(request_id=f"r{number}", candidates=ALL, top_k=5)
        assert answer.variant == "base+plain" and len({item.id for item in answer.items}) == 5
        for item in answer.items:
            assert item.team is not None and item.credit is not None and item.propensity is not None
            assert (item.score, item.ctr) == (of[item.team][item.id].score, of[item.team][item.id].ctr)
            assert -1.0 <= item.credit <= 1.0 and 0.0 < item.propensity <= 1.0
        whose.update(item.team for item in answer.items)
        again = client.rank(request_id=f"r{number}", candidates=ALL, top_k=5)
        assert again.items == answer.items, "the request's id decides"
        explained = client.explain(request_id=f"r{number}", candidates=ALL, top_k=5)
        assert tuple(each.item for each in explained.items) == answer.items
        for each in explained.items:
            total = 0.0
            for group in each.groups:
                for key in group.keys:
                    total += key.contribution
            assert total == each.item.score, "explained by the variant that placed it"
    assert min(whose["base"], whose["plain"]) > 20


def test_pins_forced_variants_and_exploration_are_answered_by_one_variant_alone(
    store: Store, server: Server, client: Client
) -> None:
    interleave(store, server, pins={"mine": "plain"}, shares={"base": 1.0})
    pinned = client.rank(cookie="mine", candidates=ALL)
    assert pinned.variant == "plain" and {(item.team, item.credit) for item in pinned.items} == {(None, None)}
    assert client.rank(cookie="c", candidates=ALL, variant="base").variant == "base"
    assert client.rank(cookie="c", candidates=ALL, exploration=Thompson(1.0)).variant == "base", (
        "by the shares"
    )
    assert client.rank(cookie="c", candidates=ALL).variant == "base+plain"
    stopped = store.model(shop.NAME).experiments.change(lambda before: before.stopped("plain"))
    eventually(lambda: server.current.assignment.experiment == stopped)
    assert client.rank(cookie="c", candidates=ALL).variant == "plain"


def test_options_apply_to_the_list_and_the_plain_order_is_the_same_through_them(
    store: Store, server: Server, client: Client
) -> None:
    interleave(store, server)
    for number in range(10):
        asked: dict[str, Any] = {"request_id": f"r{number}", "candidates": ALL, "top_k": 6}
        plain, slow = client.rank(**asked), client.rank(**asked, objective="score")
        assert [replace(item, objective=None) for item in slow.items] == list(plain.items)
        assert [item.objective for item in slow.items] == [item.score for item in plain.items]
        capped = client.rank(**asked, caps={"brand": 1})
        brands = [shop.ITEMS[item.id]["brand"] for item in capped.items]
        assert len(set(brands)) == len(brands) and capped.variant == "base+plain"
    unsure = client.rank(**asked, objective="uncertainty")
    for item in unsure.items:
        assert item.team is not None
        own = alone(client, item.team, objective="uncertainty")[item.id]
        assert (item.uncertainty, item.objective) == (own.uncertainty, own.objective), (
            "each by its own weights"
        )


def test_shadows_are_scored_beside_a_draft_which_they_do_not_change() -> None:
    record = Experiment(interleave=("a", "c"), shadows=("a", "b"))
    teams = Assignment("ads", ("a", "b", "c"), (0.5, 0.25, 0.25), record).teams
    assert teams is not None and (teams.variants, teams.shadows) == ((0, 2), (1,))


def test_a_new_version_continues_the_draft(store: Store, server: Server, client: Client) -> None:
    interleave(store, server)
    before = client.rank(request_id="r", candidates=ALL)
    version = store.model(shop.NAME).publish_and_activate(shop.artefact())
    eventually(lambda: client.rank(request_id="r", candidates=ALL).version == version)
    after = client.rank(request_id="r", candidates=ALL)
    assert (after.items, after.variant) == (before.items, "base+plain"), "the same weights, the same coin"
