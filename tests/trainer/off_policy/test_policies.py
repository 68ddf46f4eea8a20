"""The chances that policies give to what was shown: against scores and choices computed row by row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

from ftrie.api.ranker import Ranker
from model_store.artefact.artefact import Artefact
from model_store.features.features import FeaturePlan
from model_store.features.objective import Objective
from model_store.model_files import NamedModel
from model_store.spec.keys import BIAS
from model_store.spec.spec import parse_spec
from tests.trainer.off_policy.rows import CHANCES, ITEMS, SPEC, Row, rows_of, write_items, write_rows
from tests.worlds import model_of
from trainer.examples.open_log import Log
from trainer.examples.side_tables import SideTable
from trainer.formats.rejects import RejectLog
from trainer.off_policy.estimates import Estimates, EstimationRun, EstimatorOptions
from trainer.off_policy.logged import DECISION_ROW, LogOfRows
from trainer.off_policy.policies import ItemChoice, PolicyName
from trainer.runs.train import train

LOG = rows_of(300, seed=3, per_request=2)


@pytest.fixture(scope="module")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Artefact:
    log = write_rows(tmp_path_factory.mktemp("before") / "log.csv", rows_of(400, seed=1))
    return train(parse_spec(SPEC), Log([str(log)]), rejects=RejectLog()).model.artefact()


def estimated(
    folder: Path,
    policies: list[str],
    choices: list[ItemChoice],
    model: Artefact | None = None,
    rows: list[Row] = LOG,
    text: str = SPEC,
) -> Estimates:
    """What is estimated on the log, without a bootstrap."""
    spec = parse_spec(text)
    table = SideTable.of_items(write_items(folder / "items.csv"), spec.input)
    log = LogOfRows(
        Log([str(write_rows(folder / "log.csv", rows))], tables=[table]), None, None, DECISION_ROW
    )
    names = [PolicyName.parse(each) for each in policies]
    models = {each.name: NamedModel(model, each.name) for each in names if each.is_model and model}
    options = EstimatorOptions(bootstrap=0)
    return EstimationRun(spec, names, models, choices, table, (), DECISION_ROW, options).run(log.read)


class Slow:
    """A model as a dict of keys, with the definition of a score."""

    def __init__(self, artefact: Artefact, variant: int) -> None:
        self._plan, self._bit = FeaturePlan.of(artefact.spec), variant
        weights = artefact.weights_of(variant).tolist()
        rates = artefact.rates_of(variant).tolist()
        self._known = {artefact.key(row): (weights[row], rates[row]) for row in range(artefact.rows)}
        learner = self._learner = artefact.spec.learner
        plans = [*self._plan.fields, *self._plan.crosses]
        given = [each for each in self._plan.fields if each.spec.fixed_weight is not None]
        keys = 1 + sum(each.mask >> variant & 1 for each in plans if each not in given)
        # Before the first example the bias is such that an example of new keys has the rate prior_ctr.
        spread = math.sqrt(learner.beta**2 + keys * learner.alpha)
        prior = NormalDist().inv_cdf(learner.prior_ctr) * spread
        if learner.algorithm == "adpredictor":
            self._known.setdefault(BIAS, (prior, learner.alpha))

    def scores(self, row: Mapping[str, object]) -> dict[str, float]:
        """The score of every item in the row's place; with AdPredictor the log-odds of its click rate."""
        own = {item: {"item": item, "brand": ITEMS[item], "propensity": CHANCES[item]} for item in ITEMS}
        return {item: self._score({**row, **own[item]}) for item in ITEMS}

    def _score(self, row: Mapping[str, object]) -> float:
        example = {field.name: str(row[field.column]) for field in self._plan.fields}
        keys = [(key, x) for key, x, mask in self._plan.keys(example) if mask >> self._bit & 1]
        found = [(*self._known.get(key, (0.0, self._learner.alpha)), x) for key, x in keys]
        score = float(sum(weight * x for weight, _, x in found))
        if self._learner.algorithm != "adpredictor":
            return score
        variance = sum(rate * x * x for _, rate, x in found)
        ctr = NormalDist().cdf(score / math.sqrt(self._learner.beta**2 + variance))
        return math.log(ctr / (1.0 - ctr))


def slow_chance(choice: ItemChoice, scores: dict[str, float], item: str) -> float:
    if choice.kind == "softmax":
        raised = {name: np.exp(score / choice.value) for name, score in scores.items()}
        return float(raised[item] / sum(raised.values()))
    best = max(scores, key=lambda name: scores[name])
    epsilon = choice.value if choice.kind == "epsilon" else 0.0
    return float((1 - epsilon) * (item == best) + epsilon / len(scores))


PRICES = {"a": 1.0, "b": 9.0, "d": 30.0, "e": 4.0}
"""Of all items but c, which has no value by its price and is last."""
WORTH = "ctr * purchase.ctr * price"


def test_what_an_objective_orders_first_is_what_a_server_does(artefact: Artefact, tmp_path: Path) -> None:
    """Given models of clicks and of purchases, the estimate is that of each row's first item by the server's code."""
    alone = SPEC[: SPEC.index("[variants]")].replace('"shop"', '"purchase"') + "[learner]\nl1 = 0.0\n"
    log = write_rows(tmp_path / "before.csv", rows_of(400, seed=9))
    other = train(parse_spec(alone), Log([str(log)]), rejects=RejectLog()).model.artefact()
    items = {item: {"brand": ITEMS[item], "price": PRICES.get(item)} for item in ITEMS}
    ranker = Ranker(artefact, items, beside={"purchase": Ranker(other, items)})
    lines = [f"{item},{ITEMS[item]},{PRICES.get(item, '')}\n" for item in ITEMS]
    (tmp_path / "priced.csv").write_text("item,brand,price\n" + "".join(lines))
    spec = parse_spec(SPEC)
    table = SideTable.of_items(tmp_path / "priced.csv", spec.input)
    of_rows = Log([str(write_rows(tmp_path / "log.csv", LOG))], tables=[table])
    objectives = [Objective.of("ctr"), Objective.of(WORTH)]
    found = EstimationRun(
        *(spec, [PolicyName("shop.arrow", "plain")], {"shop.arrow": NamedModel(artefact, "shop.arrow")}),
        *([ItemChoice()], table, (), DECISION_ROW, EstimatorOptions(bootstrap=0)),
        objectives=objectives,
        beside={"purchase": (None, NamedModel(other, "purchase.arrow"))},
    ).run(LogOfRows(of_rows, None, None, DECISION_ROW).read)
    assert [each.name for each in found.policies] == [
        "shop.arrow@plain by ctr greedy",
        f"shop.arrow@plain by {WORTH} greedy",
    ]
    for policy, objective in zip(found.policies, objectives, strict=True):
        weights = []
        for row in LOG:
            asked = {
                "user": {"age": row["age"]},
                "context": {"place": row["position"], "position": row["position"]},
            }
            answer = ranker.rank(
                candidates=[*ITEMS], objective=objective.text, variant="plain", top_k=1, **asked
            )
            weights.append((answer.items[0].id == row["item"]) / row["propensity"])
        clicks = sum(w * row["click"] for w, row in zip(weights, LOG, strict=True))
        assert 0 < sum(w > 0 for w in weights) < len(LOG)
        assert policy.estimates["ips"].value == pytest.approx(clicks / len(LOG))
        assert policy.estimates["snips"].value == pytest.approx(clicks / sum(weights))


def test_a_models_estimates_are_those_of_scores_taken_row_by_row(artefact: Artefact, tmp_path: Path) -> None:
    rows, choices = LOG, [ItemChoice(), ItemChoice("softmax", 0.7), ItemChoice("epsilon", 0.25)]
    found = {
        each.name: each for each in estimated(tmp_path, ["shop.arrow"], choices, artefact, rows).policies
    }
    assert len(found) == 6
    for number, variant in enumerate(("base", "plain")):
        slow = Slow(artefact, number)
        scores = [slow.scores(row) for row in rows]
        for choice in choices:
            weights = [
                slow_chance(choice, of, row["item"]) / row["propensity"]
                for of, row in zip(scores, rows, strict=True)
            ]
            clicks = sum(w * row["click"] for w, row in zip(weights, rows, strict=True))
            policy = found[f"shop.arrow@{variant} {choice.name}"]
            assert policy.estimates["ips"].value == pytest.approx(clicks / len(rows))
            assert policy.estimates["snips"].value == pytest.approx(clicks / sum(weights))
            assert policy.support.ess == pytest.approx(sum(weights) ** 2 / sum(w * w for w in weights))
    (one,) = estimated(tmp_path, ["shop.arrow@plain"], [ItemChoice()], artefact, rows).policies
    assert one == found[f"shop.arrow@plain {ItemChoice().name}"]


def test_uniform_and_logged_are_their_definitions(tmp_path: Path) -> None:
    uniform, logged = estimated(tmp_path, ["uniform", "logged"], []).policies
    weights = np.array([1 / 5 / CHANCES[row["item"]] for row in LOG])
    clicks = np.array([row["click"] for row in LOG])
    assert uniform.estimates["snips"].value == pytest.approx((weights * clicks).sum() / weights.sum())
    assert uniform.estimates["ips"].value == pytest.approx((weights * clicks).mean())
    assert {name: each.value for name, each in logged.estimates.items()} == pytest.approx(
        dict.fromkeys(("ips", "clipped", "snips"), clicks.mean())
        | dict.fromkeys(("item_position", "rips"), 2 * clicks.mean())  # of lists of two
    )
    assert (logged.support.largest, logged.difference.value) == (1.0, 0.0)


def test_the_rates_of_places_are_those_of_their_rows(tmp_path: Path) -> None:
    (uniform,) = estimated(tmp_path, ["uniform"], []).policies
    for place in (1, 2):
        rows = [row for row in LOG if row["position"] == place]
        (alone,) = estimated(tmp_path, ["uniform"], [], rows=rows).policies
        assert uniform.positions[str(place)]["snips"] == alone.estimates["snips"]
    assert list(uniform.positions) == ["1", "2"]


ADPREDICTOR = 'algorithm = "adpredictor"\nalpha = 0.3\nprior_ctr = 0.2\n'
BRAND = 'brand = { side = "item" }\n'
FIXED = BRAND + 'usual = { column = "propensity", side = "item", kind = "number", fixed_weight = 5.0 }\n'


@pytest.mark.parametrize("fields", [BRAND, FIXED])
@pytest.mark.parametrize("learner", ["alpha = 0.3\n", ADPREDICTOR])
def test_a_learning_policy_judges_every_request_before_it_learns_from_it(
    tmp_path: Path, learner: str, fields: str
) -> None:
    """Given requests of two rows, when a row is judged, the model is that of all requests before."""
    rows = LOG[:100]
    text = SPEC.replace("alpha = 0.3\n", learner).replace(BRAND, fields)
    (policy,) = estimated(
        tmp_path, ["learning@base"], [ItemChoice("softmax", 1.0)], rows=rows, text=text
    ).policies
    weights, slow = [], Slow(model_of(parse_spec(text), tuple(rows[0])).artefact(), 0)
    for first in range(0, len(rows), 2):
        if first:
            log = write_rows(tmp_path / f"before-{first}.csv", rows[:first])
            slow = Slow(train(parse_spec(text), Log([str(log)]), rejects=RejectLog()).model.artefact(), 0)
        for row in rows[first : first + 2]:
            scores = slow.scores(row)
            weights.append(slow_chance(ItemChoice("softmax", 1.0), scores, row["item"]) / row["propensity"])
    expected = (np.array(weights) * np.array([row["click"] for row in rows])).mean()
    found = policy.estimates["ips"].value
    assert found == pytest.approx(expected, rel=1e-6)  # a model is published in float32


def test_a_better_model_is_estimated_to_be_better_than_the_log(artefact: Artefact, tmp_path: Path) -> None:
    """Given clicks that depend on the item, when a model of them chooses, its rate is that of the best item."""
    rows = rows_of(4000, seed=11)
    greedy = estimated(tmp_path, ["shop.arrow@base"], [ItemChoice()], artefact, rows=rows).policies[0]
    snips = greedy.estimates["snips"]
    best = 0.5 * (1.5 + 1 + 1) / 3  # item a, over the three ages
    assert snips.low is not None and snips.high is not None and snips.low <= best <= snips.high
    assert greedy.difference.low is not None and greedy.difference.low > 0.0


def test_wrong_propensities_and_items_that_the_log_never_shows_are_told(tmp_path: Path) -> None:
    """Given a log without item a, when uniform is estimated, a fifth of its choices is unknown."""
    halved = [{**row, "propensity": row["propensity"] / 2} for row in LOG]
    without = [row for row in LOG if row["item"] != "a"]
    right, wrong, lacking = (
        estimated(tmp_path, ["uniform"], [], rows=rows).policies[0] for rows in (LOG, halved, without)
    )
    assert right.warnings == () and any("mean weight" in warning for warning in wrong.warnings)
    assert lacking.unlogged == pytest.approx(0.2)
    assert any("20.0%" in warning for warning in lacking.warnings)
