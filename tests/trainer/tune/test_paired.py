"""Paired differences: block sums against a slow loop, intervals against the truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.ratios import t_quantile
from trainer.tune.passes import FIRST_BLOCK_ROWS, MOST_BLOCKS, BlockSums, PairedDifference


@given(st.lists(st.integers(0, 3000), max_size=8), st.integers(0, 2**32 - 1))
def test_blocks_have_the_sums_of_their_rows_whatever_the_batches(sizes, seed):
    numbers = np.random.default_rng(seed).integers(-9, 9, (sum(sizes), 2)).astype(float)
    sums = BlockSums(2)
    for part in np.split(numbers, np.cumsum(sizes)[:-1]) if sizes else []:
        sums.add(part)
    size = sums.block_rows
    expected = [numbers[at : at + size].sum(axis=0) for at in range(0, len(numbers), size)]
    assert np.array_equal(sums.sums(), np.array(expected).reshape(-1, 2))
    assert len(expected) <= MOST_BLOCKS
    assert size == FIRST_BLOCK_ROWS or len(expected) > MOST_BLOCKS / 2


def test_a_difference_has_the_mean_by_weight_and_the_error_of_a_ratio():
    random = np.random.default_rng(5)
    one, other, weights = random.random(40), random.random(40), random.uniform(1, 2, 40)
    found = PairedDifference.of(one, other, weights)
    mean = (one.sum() - other.sum()) / weights.sum()
    residuals = [a - b - mean * w for a, b, w in zip(one, other, weights, strict=True)]
    error = np.sqrt(sum(each**2 for each in residuals) * 40 / 39) / weights.sum()
    assert (found.mean, found.error) == (pytest.approx(mean), pytest.approx(error))


def test_a_95_percent_interval_holds_the_truth_in_95_of_100_logs_also_if_rows_depend_on_neighbours():
    random, inside = np.random.default_rng(1), 0
    for _ in range(400):
        blocks = BlockSums(2)
        lasting = np.repeat(random.normal(0.3, 1.0, 400), 10)  # ten rows in a row have the same noise
        blocks.add(np.column_stack([lasting, np.ones(4000)]))
        sums, weights = blocks.sums().T
        low, high = PairedDifference.of(sums, np.zeros_like(sums), weights).interval()
        inside += low <= 0.3 <= high
    assert 0.92 <= inside / 400 <= 0.98


def test_few_blocks_have_no_interval_and_are_never_distinguishable():
    found = PairedDifference.of(np.ones(7), np.zeros(7), np.ones(7))
    assert (found.interval(), found.may_be_zero, found.is_above_zero(0.05)) == (None, True, False)


@pytest.mark.parametrize(
    ("p", "freedom", "expected"),
    [
        (0.975, 10, 2.2281),
        (0.975, 127, 1.9788),
        (0.995, 7, 3.4995),
        (0.999, 30, 3.3852),
        (0.9999, 127, 3.8302),
    ],
)
def test_quantiles_of_t_are_those_of_the_tables(p, freedom, expected):
    assert t_quantile(p, freedom) == pytest.approx(expected, rel=0.01 if freedom < 10 else 5e-4)
