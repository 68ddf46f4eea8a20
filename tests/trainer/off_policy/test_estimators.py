"""The estimators with a reward model and those of lists: against the papers' formulas, row by row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from trainer.off_policy.estimates import (
    RATIOS,
    EstimatorOptions,
    checked,
    estimate,
    ratio,
    sums_by_cluster,
    support_of,
)
from trainer.off_policy.logged import LoggedRows
from trainer.off_policy.policies import Candidates, ListOrder, ListWeights, Policies, PolicyWeights, weigh
from trainer.off_policy.rewards import CrossFitted, reward_spec

Array = npt.NDArray[Any]
LIMIT = 2.0


@dataclass(frozen=True)
class World:
    """Contexts of four kinds, five actions with rewards of any size, and what was logged."""

    context: Array
    action: Array
    reward: Array
    logging: Array
    target: Array
    mean: Array
    request: Array

    @classmethod
    def drawn(cls, seed: int, rows: int, per_request: int = 1) -> World:
        random = np.random.default_rng(seed)
        request = np.arange(rows) // per_request
        context = random.integers(0, 4, request.max() + 1)[request]
        tastes = np.random.default_rng(0).normal(10.0, 3.0, (4, 5))
        logging = np.exp(0.1 * tastes)[context]
        target = np.exp(0.3 * tastes)[context]
        logging /= logging.sum(axis=1, keepdims=True)
        target /= target.sum(axis=1, keepdims=True)
        action = (logging.cumsum(axis=1) > random.random((rows, 1))).argmax(axis=1)
        mean = tastes[context]
        reward = mean[np.arange(rows), action] + random.normal(0.0, 1.0, rows)
        return cls(context, action, reward, logging, target, mean, request)

    @property
    def of_row(self) -> Array:
        return np.arange(len(self.action))

    @property
    def propensity(self) -> Array:
        return np.asarray(self.logging[self.of_row, self.action])

    @property
    def truth(self) -> float:
        return float((self.target * self.mean).sum(axis=1).mean())

    def rows(self) -> LoggedRows:
        item = pa.array([f"a{each}".encode() for each in self.action], pa.binary())
        columns = {
            "action": item,
            "kind": pa.array([f"k{each}".encode() for each in self.context], pa.binary()),
        }
        return LoggedRows(
            columns=columns,
            label=self.reward,
            weight=np.ones(len(self.action)),
            propensity=self.propensity,
            item=item,
            position=None,
            request=self.request,
            cluster=self.request,
        )

    def candidates(self, rows: LoggedRows) -> Candidates:
        found = Candidates.of(rows, "action", frozenset(), None)
        assert len(found) == 5
        return found

    def chances(self, candidates: Candidates) -> Array:
        """The target's, in the order of the candidates."""
        return np.asarray(self.target[:, [int(name[1:]) for name in candidates.ids.to_pylist()]])


def test_dm_dr_switch_and_dros_are_their_definitions() -> None:
    """Given any predictions, each estimate is the paper's mean over rows (m: importance)."""
    random = np.random.default_rng(3)
    n = 200
    w, m = random.exponential(1.5, n), random.uniform(0.5, 2.0, n)
    r, q, v = (random.normal(5.0, 3.0, n) for _ in range(3))
    policy = PolicyWeights("it", w, fitted=q, direct=v)
    sums = sums_by_cluster(np.arange(n), r, m, policy, LIMIT)
    names = ("dm", "dr", "switch_dr", "dros")
    found = [ratio(*(sums[each] for each in RATIOS[name]), is_share=False).value for name in names]
    dm = dr = switch = dros = 0.0
    for i in range(n):
        shrunk = LIMIT**2 * w[i] / (w[i] ** 2 + LIMIT**2)
        dm += m[i] * v[i] / m.sum()
        dr += m[i] * (v[i] + w[i] * (r[i] - q[i])) / m.sum()
        switch += m[i] * (v[i] + (w[i] <= LIMIT) * w[i] * (r[i] - q[i])) / m.sum()
        dros += m[i] * (v[i] + shrunk * (r[i] - q[i])) / m.sum()
    assert found == pytest.approx([dm, dr, switch, dros])


def test_the_estimators_of_lists_are_their_definitions() -> None:
    """Given lists of one to four rows in any order of their positions, products run from the top down."""
    random = np.random.default_rng(4)
    sizes = random.integers(1, 5, 60)
    request = np.repeat(np.arange(60), sizes)
    n = request.size
    position = np.concatenate([random.permutation(size) + 1 for size in sizes])
    w, alone = random.exponential(1.0, (2, n))
    r, q, v = (random.normal(2.0, 1.0, n) for _ in range(3))
    rows = replace(World.drawn(1, n).rows(), label=r, request=request, cluster=request)
    rows = replace(rows, position=pa.array([str(each).encode() for each in position], pa.binary()))
    lists = ListOrder.of(rows).weights(PolicyWeights("it", w), alone, None)
    lists = replace(lists, fitted=q, direct=v)
    sums = sums_by_cluster(request, r, np.ones(n), PolicyWeights("it", w, lists=lists), LIMIT)
    found = [
        float(sums[name].sum() / sums["lists"].sum()) for name in ("item_position", "rips", "cascade_dr")
    ]
    independent = rips = cascade = 0.0
    for number in range(60):
        product = 1.0
        for row in sorted(np.flatnonzero(request == number), key=lambda each: position[each]):
            cascade += product * v[row]
            product *= w[row]
            independent += alone[row] * r[row]
            rips += product * r[row]
            cascade += product * (r[row] - q[row])
    assert found == pytest.approx([independent / 60, rips / 60, cascade / 60])


def test_a_row_is_predicted_by_models_that_did_not_learn_its_cluster() -> None:
    """Given another reward in one cluster, its own predictions stay to the last bit, and others change."""
    world = World.drawn(5, 400, per_request=2)
    rows = world.rows()
    candidates = world.candidates(rows)
    mine = rows.cluster == 7
    changed = replace(rows, label=np.where(mine, rows.label.max(), rows.label))
    spec = reward_spec(rows, "action", ("kind",))
    before, after = (CrossFitted(spec, each, candidates).of(world.of_row) for each in (rows, changed))
    fold = rows.cluster % 5 == 7 % 5
    assert np.array_equal(before[fold], after[fold])
    assert not np.array_equal(before[~fold], after[~fold])


def test_the_reward_model_learns_money_and_makes_dr_better_than_ips() -> None:
    """Given rewards around 10 that depend on context and action, DM finds the truth, and DR's error is the least."""
    world = World.drawn(6, 4000)
    rows = world.rows()
    candidates = world.candidates(rows)
    model = CrossFitted(reward_spec(rows, "action", ("kind",)), rows, candidates)
    policy = Policies.given("target", world.chances(candidates))
    (found,) = weigh(rows, rows.decisions("row"), candidates, policy, model.of)
    assert found.weight == pytest.approx(world.target[world.of_row, world.action] / world.propensity)
    (value,) = estimate(rows, [found], EstimatorOptions(bootstrap=0), by_position=False)
    assert value.refused == ()
    of = value.estimates
    assert of["dm"].value == pytest.approx(world.truth, rel=0.05) and of["dm"].error is None
    for name in ("ips", "snips", "dr", "switch_dr", "dros"):
        error = of[name].error
        assert error is not None and abs((of[name].value or 0.0) - world.truth) < 4 * error
        assert name == "ips" or error < 0.5 * (of["ips"].error or 0.0)


def test_cascade_dr_learns_the_rest_of_the_list() -> None:
    """Given lists of three whose rows earn alike, Q of the first row is the reward of all three under the target."""
    world = World.drawn(7, 3000, per_request=3)
    rows = world.rows()
    candidates = world.candidates(rows)
    model = CrossFitted(reward_spec(rows, "action", ("kind",)), rows, candidates)
    policy = Policies.given("target", world.chances(candidates))
    (found,) = weigh(rows, rows.decisions("row"), candidates, policy, model.of, keep=True)
    lists = ListOrder.of(rows).weights(found, None, model.of_lists)
    first = lists.first == 1.0
    assert lists.direct is not None and lists.fitted is not None
    assert lists.direct[first].mean() == pytest.approx(3 * world.truth, rel=0.1)
    (value,) = estimate(rows, [replace(found, lists=lists)], EstimatorOptions(bootstrap=0), by_position=False)
    of = value.estimates
    for name in ("item_position", "rips", "cascade_dr"):
        assert abs((of[name].value or 0.0) - 3 * world.truth) < 4 * (of[name].error or 0.0)
    assert (of["cascade_dr"].error or 0.0) < 0.5 * (of["rips"].error or 0.0)


def test_too_little_support_is_refused_with_its_reason() -> None:
    """Given weights of each fault, the reason names it; given good weights, nothing is refused."""
    n = 1000
    reward = np.ones(n)
    good, few, doubled = np.ones(n), np.zeros(n), np.full(n, 2.0)
    few[:4] = n / 4
    for weight, clicks, unlogged, reason in (
        (good, reward, 0.0, None),
        (few, reward, 0.0, "effective sample is 4.0 of 1,000 rows"),
        (doubled, reward, 0.0, "mean weight is 2.000"),
        (good, np.arange(n) < 2, 0.0, "2.0 effective clicks"),
        (good * 0.7, reward, 0.3, "30.0% of the items it shows"),
    ):
        label = np.asarray(clicks, float)
        sums = sums_by_cluster(np.arange(n), label, np.ones(n), PolicyWeights("it", weight), 10.0)
        found = checked(support_of(PolicyWeights("it", weight), label, sums, 10.0), unlogged, 10.0)[0]
        assert (
            [reason in each and "would help" in each for each in found] == [True] if reason else found == ()
        )


def test_lists_whose_weights_multiply_to_a_few_are_refused_and_their_rows_are_not() -> None:
    """Given lists of 8 rows with weights of 0.1 or 1.9, half each, the product of a list is nearly always 0."""
    random = np.random.default_rng(8)
    rows = World.drawn(8, 1600, per_request=8).rows()
    weight = random.choice([0.1, 1.9], 1600)
    policy = PolicyWeights(
        "it", weight, lists=ListOrder.of(rows).weights(PolicyWeights("it", weight), None, None)
    )
    (found,) = estimate(rows, [policy], EstimatorOptions(bootstrap=0), by_position=False)
    products = weight.reshape(200, 8).prod(axis=1)
    assert found.support.lists == pytest.approx(products.sum() ** 2 / (products**2).sum())
    assert found.support.lists < 30 < found.support.ess
    assert "rips" not in found.estimates and {"snips", "item_position"} <= found.estimates.keys()
    assert any("RIPS and cascade-DR are refused" in each for each in found.warnings)


def test_lists_of_one_row_are_rows() -> None:
    random = np.random.default_rng(9)
    rows = World.drawn(9, 50).rows()
    weight = random.exponential(1.0, 50)
    lists = ListOrder.of(rows).weights(PolicyWeights("it", weight), None, None)
    assert isinstance(lists, ListWeights)
    assert np.array_equal(lists.cascade, weight) and np.array_equal(lists.above, np.ones(50))
