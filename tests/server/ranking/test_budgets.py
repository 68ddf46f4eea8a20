"""Exploration with a budget: how often each item is returned over many requests, against the propensities given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model_store.artefact.artefact import Artefact
from model_store.errors import ExperimentError
from model_store.features.features import FeaturePlan
from model_store.spec.learner_section import LearnerSection
from model_store.spec.spec import parse_spec
from model_store.versions.experiments import Explore
from server.model.columns import Catalogue
from server.ranking.evidence import Evidence, why_no_evidence
from server.ranking.request import Extras, read_options
from server.ranking.select.filters import CandidateColumns, Cap
from server.ranking.select.selection import Scored, Selection
from tests.server.ranked import ranker_of

PLAN = FeaturePlan.of(
    parse_spec('model = { name = "m" }\ninput = { label = "click" }\nfields = { brand = { side = "item" } }')
)
REQUESTS, TOP, ITEMS = 1_000, 3, 9
IDS = [f"i{at}" for at in range(ITEMS)]
DRAWN = np.random.default_rng(5)
SCORE = DRAWN.normal(-1.0, 1.0, ITEMS)
UNSURE = DRAWN.uniform(0.2, 0.8, ITEMS)
EVIDENCE = np.array([np.inf, 0.0, 5.0, np.inf, 20.0, 0.0, 8.0, np.inf, np.inf])
COLUMNS = CandidateColumns(
    Catalogue.build(PLAN, [(item, {"brand": f"b{at % 4}"}) for at, item in enumerate(IDS)]),
    IDS,
    np.arange(ITEMS, dtype=np.int32),
    [],
)


def selected(explore: Explore, number: int, caps: bool = False) -> Selection:
    extras = Extras(caps=[Cap("brand", 1)] if caps else [])
    options = read_options(extras, "", explore=explore)
    assert options is not None
    scored = Scored(SCORE, UNSURE, None, evidence=EVIDENCE if options.needs_evidence else None)
    return options.select(scored, COLUMNS, IDS, TOP, f"r{number}")


@pytest.mark.parametrize("caps", [False, True])
@pytest.mark.parametrize(
    "explore",
    [
        Explore("thompson", 2.0, share=0.4),
        Explore("ucb", 4.0, share=0.3),
        Explore("thompson", 2.0, cost=0.1),
        Explore("ucb", 4.0, cost=0.05),
        Explore("ucb", 0.0, new_share=0.3, new_below=10.0),
        Explore("thompson", 1.0, new_share=0.5, new_below=10.0),
        Explore("thompson", 3.0, share=0.7, cost=0.15, new_share=0.2, new_below=30.0),
    ],
    ids=str,
)
def test_each_item_is_returned_as_often_as_its_propensity_says_and_the_budget_is_kept(
    explore: Explore, caps: bool
) -> None:
    found = [selected(explore, number, caps) for number in range(REQUESTS)]
    times, given = np.zeros(ITEMS), [list[float]() for _ in IDS]
    for each in found:
        assert each.propensity is not None
        times[each.order] += 1
        for item, propensity in zip(each.order.tolist(), each.propensity.tolist(), strict=True):
            given[item].append(propensity)
    for item, propensities in enumerate(given):
        if propensities:
            # The same for every request, but under caps, where it is counted in draws of the request.
            assert caps or np.ptp(propensities) == 0.0
            mean, frequency = float(np.mean(propensities)), times[item] / REQUESTS
            noise = 4.0 * np.sqrt(max(mean * (1.0 - mean), 1e-3) / REQUESTS) + (0.02 if caps else 0.003)
            assert frequency == pytest.approx(mean, abs=noise), item
    spent = [each.spent for each in found if each.spent is not None]
    assert len(spent) == REQUESTS
    greedy, served = spent[0].greedy, float(np.mean([each.served for each in spent]))
    assert served >= greedy * (1.0 - explore.cost) - 4.0 * np.std([e.served for e in spent]) / REQUESTS**0.5
    explored = np.mean([each.explored for each in spent])
    assert 0.0 < explored <= explore.share + 4.0 * np.sqrt(0.25 / REQUESTS)
    if explore.cost == 1.0:
        assert explored == pytest.approx(explore.share, abs=4.0 * np.sqrt(0.25 / REQUESTS))


def test_new_items_get_their_share_of_places_which_fades_with_evidence() -> None:
    explore = Explore("ucb", 0.0, new_share=1.0 / 3.0, new_below=10.0)
    found = [selected(explore, number) for number in range(REQUESTS)]
    times = np.bincount(np.concatenate([each.order for each in found]), minlength=ITEMS) / REQUESTS
    greedy = set(np.argsort(-SCORE)[:TOP].tolist())
    # Evidence 0, 5, 0 and 8 of 10: weights 1, 0.5, 1 and 0.2 of the one place; those in the greedy list have more.
    weights = dict(zip((1, 2, 5, 6), np.array([1.0, 0.5, 1.0, 0.2]) / 2.7, strict=True))
    for item, weight in weights.items():
        if item not in greedy:
            assert times[item] == pytest.approx(weight, abs=0.04)
    for item in {4, 0, 3, 7, 8} - greedy:
        assert times[item] == 0.0, "enough evidence, or no record: no place of its own"


def test_a_budget_of_nothing_is_the_greedy_order_and_its_propensities_are_one() -> None:
    for explore in (Explore("thompson", 5.0, share=0.0), Explore("thompson", 5.0, cost=0.0)):
        for number in range(20):
            found = selected(explore, number)
            assert found.order.tolist() == np.argsort(-SCORE)[:TOP].tolist()
            assert found.propensity is not None and (found.propensity == 1.0).all()


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ({"policy": "random"}, "got the policy 'random'; expected 'ucb' or 'thompson'"),
        ({"width": float("inf")}, "got width inf; expected a finite number"),
        ({"share": 1.5}, "got share 1.5; expected a number from 0 to 1"),
        ({"cost": "0.1"}, "got cost '0.1'"),
        ({"new_share": 0.1}, "new_below is 0, so no item is new"),
    ],
)
def test_an_exploration_that_cannot_be_followed_is_refused(members: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ExperimentError, match=complaint):
        Explore(**{"policy": "ucb", "width": 1.0, **members})


@pytest.mark.parametrize("algorithm", ["ftrl", "adpredictor"])
def test_evidence_is_what_the_least_known_of_an_items_own_keys_has_learned(algorithm: str) -> None:
    probit = algorithm == "adpredictor"
    spec = parse_spec(
        'model = { name = "m" }\ninput = { label = "click" }\n'
        'fields = { age = { side = "user" }, sku = { side = "item" }, brand = { side = "item" } }\n'
        + ("" if probit else 'rules = { "sku=" = { alpha = 0.2 } }\n')
        + f'[learner]\nalgorithm = "{algorithm}"\nalpha = 0.4\nbeta = 1.5\n'
    ).resolve(["click", "age", "sku", "brand"])
    learned = {b"sku=old": 90.0, b"sku=young": 2.0, b"brand=b": 40.0, b"bias": 500.0}
    alphas = {k: 0.2 if k.startswith(b"sku") and not probit else 0.4 for k in learned}
    rates = {
        k: 1 / (1 / 0.4 + n * 1.702**2 / 1.5**2) if probit else alphas[k] / (1.5 + n**0.5)
        for k, n in learned.items()
    }
    artefact = Artefact.from_columns(
        key_data=np.frombuffer(b"".join(sorted(learned)), np.uint8),
        key_offsets=np.cumsum([0, *map(len, sorted(learned))], dtype=np.int64),
        weight=np.ones(len(learned), np.float32),
        variants=np.ones(len(learned), np.uint32),
        rate=np.array([rates[key] for key in sorted(learned)], np.float32),
        spec=spec,
        metrics={},
    )
    records = [
        ("i1", {"sku": "old", "brand": "b"}),
        ("i2", {"sku": "young", "brand": "b"}),
        ("i3", {"brand": "b"}),
    ]
    ranker = ranker_of(artefact, records)
    candidates = ranker.candidates(["i1", "i2", "i3", "unknown"], [("i4", {"sku": "new", "brand": "b"})])
    found = Evidence(ranker._model, ranker._catalogue).of(candidates, 0)
    assert found.tolist() == pytest.approx([40.0, 2.0, 40.0, np.inf, 0.0], rel=1e-4, abs=1e-4)
    constant = spec.model_copy(update={"learner": LearnerSection(rate="constant")})
    assert 'learner.rate = "constant" says nothing' in why_no_evidence(constant)
