"""The merge of partitions' models: the same in all, the identity for one, near what one trainer learns of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.errors import SpecError
from model_store.spec.spec import ModelSpec, parse_spec
from tests.matrix import slow_except
from tests.worlds import SPEC, batch_of, shop_rows, shop_spec
from trainer.examples.hashing import ExampleMaker
from trainer.learn.model import LearningModel
from trainer.runs.rounds import DATA, FEATURES, OFFSETS, VALUES, Reconciler, check_mergeable

FTRL = "alpha = 0.3\nbeta = 0.7\nl1 = 0.05\nl2 = 0.4\n"
LEARNERS = {
    "ftrl": FTRL,
    "ftrl, own values": FTRL + 'values = "per_variant"\n',
    "ftrl, bloom": FTRL + 'inclusion = { kind = "bloom", count = 2 }\n',
    "ogd": 'algorithm = "ogd"\nalpha = 0.3\nl1 = 0.0\nl2 = 0.0\n',
    "adpredictor": 'algorithm = "adpredictor"\nalpha = 0.5\nforgetting = 0.01\n',
}


def spec_of(learner: str) -> ModelSpec:
    return parse_spec(SPEC[: SPEC.index("[learner]")] + "[learner]\n" + LEARNERS[learner])


class Partition:
    def __init__(self, spec: ModelSpec) -> None:
        self.model = LearningModel(ExampleMaker(spec), keep_seen=True)
        self.reconciler = Reconciler(self.model.coordinates)

    def learn(self, rows: int, seed: int) -> None:
        self.model.learn(self.model.maker.make(batch_of(shop_rows(rows, seed))))

    def content(self) -> dict[str, bytes]:
        return {name: array.tobytes() for name, array in self.reconciler.whole().items()}


def merge(partitions: Sequence[Partition]) -> list[dict[str, Any]]:
    changes = [each.reconciler.changes() for each in partitions]
    for each in partitions:
        each.reconciler.merge(changes)
    return changes


@pytest.mark.parametrize("learner", slow_except(["ftrl"], LEARNERS))
def test_all_partitions_hold_the_same_bits_after_each_round(learner: str) -> None:
    partitions = [Partition(spec_of(learner)) for _ in range(3)]
    for number in range(4):
        for index, each in enumerate(partitions):
            each.learn(40 + 7 * index, seed=10 * number + index)
        assert all(each[VALUES].size for each in merge(partitions))
        contents = [each.content() for each in partitions]
        assert contents[0] == contents[1] == contents[2]
    assert [each[VALUES].size for each in merge(partitions)] == [0, 0, 0]


@pytest.mark.parametrize("learner", slow_except(["ftrl"], LEARNERS))
def test_a_merge_of_one_partition_changes_no_bit_and_a_key_that_one_has_changed_gets_its_state(learner):
    spec = spec_of(learner)
    merged, alone, idle, new = (Partition(spec) for _ in range(4))
    for number in range(4):
        for each in (merged, alone):
            each.learn(50, seed=number)
        merge([merged])
        assert merged.content() == alone.content()
    merge([idle, alone])
    assert alone.content() == idle.content() == merged.content()
    if "bloom" not in learner:  # its filters are not in a model
        new.reconciler.merge([merged.reconciler.whole()])
        assert new.content() == merged.content()
        for each in (merged, new):
            each.reconciler.merge([each.reconciler.changes()])
            each.learn(80, seed=4)
        assert new.content() == merged.content()


State = tuple[float, float]
STATES = st.lists(st.tuples(st.floats(-3.0, 3.0), st.floats(0.0, 9.0)), min_size=2, max_size=5)


@given(STATES)
def test_the_weight_is_the_mean_by_growth_of_n_and_n_grows_by_all(states: list[State]) -> None:
    partition, spec = Partition(shop_spec(1)), shop_spec(1)
    data, features = np.frombuffer(b"age=20", np.uint8), np.ones(1, np.uint16)
    key = {DATA: data, OFFSETS: np.array([0, 6]), FEATURES: features}
    partition.reconciler.merge([{**key, VALUES: np.array([state])} for state in states])
    ((a, n),) = partition.reconciler.whole()[VALUES]
    growth = [n for _, n in states]
    shares = [each / sum(growth) if sum(growth) else 1 / len(growth) for each in growth]
    section = spec.learner

    def weight(a: float, n: float) -> float:
        if abs(a) <= section.l1:
            return 0.0
        return -(a - np.copysign(section.l1, a)) / ((section.beta + n**0.5) / section.alpha + section.l2)

    expected = sum(share * weight(*state) for share, state in zip(shares, states, strict=True))
    assert n == pytest.approx(sum(growth), rel=1e-12, abs=0)
    assert weight(a, n) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    if not any(weight(*state) for state in states):
        assert a == pytest.approx(
            sum(share * a for share, (a, _) in zip(shares, states, strict=True)), abs=1e-12
        )


@pytest.mark.parametrize("learner", slow_except(["ftrl"], ["ftrl", "adpredictor"]))
def test_partitions_predict_about_as_well_as_one_trainer_of_all(learner: str) -> None:
    spec = spec_of(learner)
    one, partitions = Partition(spec), [Partition(spec) for _ in range(2)]
    for number in range(10):
        for index, each in enumerate(partitions):
            one.learn(50, seed=2 * number + index)
            each.learn(50, seed=2 * number + index)
        merge(partitions)
    assert sum([loss(each) for each in partitions]) / 2 < 1.02 * loss(one)


def loss(partition: Partition) -> float:
    found = partition.model.metrics.summary()["base"].logloss
    assert found is not None
    return found


@pytest.mark.parametrize(
    "learner",
    [
        'algorithm = "rda"',
        'algorithm = "ogd", rate = "gradients", l1 = 0.1',
        'rate = "global"',
        'rate = "counts"',
        'precision = "q2.13"',
        "hash_bits = 12",
        "ttl = 1000",
    ],
)
def test_models_that_cannot_be_merged_are_refused_by_the_setting(learner: str) -> None:
    given = learner.replace(", ", "\n") + ('\nalgorithm = "ogd"' if "global" in learner else "")
    spec = parse_spec(SPEC[: SPEC.index("[learner]")] + f"[learner]\n{given}\n")
    with pytest.raises(SpecError) as refused:
        check_mergeable(spec)
    assert learner in str(refused.value)
