"""How policies choose: chances that add up, equals that share, names that are understood or refused."""

from __future__ import annotations

import numpy as np
import pytest

from model_store.errors import InputError
from trainer.off_policy.policies import ItemChoice, at_random


@pytest.mark.parametrize("choice", [ItemChoice(), ItemChoice("epsilon", 0.3), ItemChoice("softmax", 0.5)])
def test_the_chances_of_a_list_add_up_to_its_length(choice: ItemChoice) -> None:
    random = np.random.default_rng(2)
    values, size = random.integers(0, 4, (60, 7)).astype(float), random.integers(1, 10, 60)
    size = np.ones(60, np.int64) if choice.kind == "softmax" else size
    chances = choice.probabilities(values, size)
    assert chances.sum(axis=1) == pytest.approx(np.minimum(size, 7)) and (chances >= 0.0).all()


def test_greedy_takes_the_best_and_equals_share() -> None:
    values = np.array([[3.0, 1.0, 2.0, 2.0], [1.0, 1.0, 1.0, 1.0]])
    assert ItemChoice().probabilities(values, np.array([2, 1])).tolist() == [
        [1.0, 0.0, 0.5, 0.5],
        [0.25, 0.25, 0.25, 0.25],
    ]


def test_a_softmax_is_greedy_when_cold_and_even_when_hot() -> None:
    values, one = np.array([[800.0, -900.0, 790.0]]), np.array([1])
    assert ItemChoice("softmax", 0.01).probabilities(values, one).tolist() == [[1.0, 0.0, 0.0]]
    assert ItemChoice("softmax", 1e9).probabilities(values, one) == pytest.approx(
        np.full((1, 3), 1 / 3), abs=1e-5
    )


def test_a_softmax_is_its_definition() -> None:
    values = np.array([[0.2, -1.0, 0.7]])
    raised = np.exp(values / 0.5)
    assert ItemChoice("softmax", 0.5).probabilities(values, np.array([1])) == pytest.approx(
        raised / raised.sum()
    )


def test_epsilon_mixes_the_best_with_all() -> None:
    chances = ItemChoice("epsilon", 0.2).probabilities(np.array([[1.0, 0.0, 0.0, 0.0]]), np.array([1]))
    assert chances == pytest.approx(np.array([[0.85, 0.05, 0.05, 0.05]]))


def test_a_softmax_of_lists_is_refused() -> None:
    with pytest.raises(InputError, match="epsilon:E"):
        ItemChoice("softmax", 1.0).probabilities(np.zeros((1, 3)), np.array([2]))


def test_at_random_a_list_may_be_longer_than_the_candidates() -> None:
    assert at_random(4, np.array([1, 2, 9])).tolist() == [[0.25], [0.5], [1.0]]


@pytest.mark.parametrize("text", ["greedy", "softmax:0.5", "epsilon:0.1"])
def test_a_choice_is_called_as_it_was_asked_for(text: str) -> None:
    assert ItemChoice.parse(text).name == text


@pytest.mark.parametrize(
    "text",
    ["", "best", "greedy:1", "softmax", "softmax:0", "softmax:x", "softmax:nan", "epsilon:1.5", "epsilon:"],
)
def test_a_choice_that_is_none_is_refused_with_what_is_expected(text: str) -> None:
    with pytest.raises(InputError, match="expected greedy, softmax:T"):
        ItemChoice.parse(text)
