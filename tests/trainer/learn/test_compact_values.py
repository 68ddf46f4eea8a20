"""Values of 16 bits (q2.13): the kernels against the textbook's rounding, and what chance may and may not do."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels import COARSE, FTRL_OWN_COARSE, TRUNCATION_COARSE, learned, spec_of
from tests.trainer.learn.pairs import CASES, assert_same, assert_same_bits, gappy_rows, section_of
from tests.trainer.oracles.trial import by_textbook, weights_of
from tests.worlds import shop_rows

STEP = 2.0**-13


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "rate", "values"),
    [
        ("ogd", "counts", "single"),  # 16 bytes a slot
        ("fobos", "counts", "single"),  # 24, with `seen`
        ("truncated_gradient", "counts", "per_variant"),
        ("ftrl", "constant", "single"),  # z, with the sum of squares beside it
    ],
)
def test_every_value_is_rounded_as_the_textbook_says(algorithm, rate, values):
    """Compact layouts of several variants; FAST has FTRL's counts of each variant and three other learners' values.

    SLOW has the sum of squares beside the values of each variant.
    """
    section = section_of(algorithm, rate, CASES[algorithm][0])
    assert_same(spec_of(section | COARSE | {"values": values}), gappy_rows(200, 17))


def test_a_value_beyond_the_range_stays_at_its_end():
    rows = [{"click": b"1", "importance": b"100", "age": b"20"}] * 3
    rows += [{"click": b"0", "importance": b"100", "age": b"30"}] * 9
    spec = spec_of(TRUNCATION_COARSE | {"alpha": 30.0}, 1)
    spec = spec.model_copy(update={"fields": {"age": spec.fields["age"]}, "crosses": ()})
    found = weights_of(learned(spec, rows))
    assert found[b"age=20"] == (4.0 - STEP,) and found[b"age=30"] == (-4.0,)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ogd", "ftrl"])
def test_the_mean_over_seeds_is_the_exact_weight(algorithm):
    """One example, so that nothing learned depends on the rounding: its error must vanish on average."""
    rows = [row | {"importance": b"0.7"} for row in shop_rows(1, 6)]
    section = section_of(algorithm, "constant", {})
    exact = by_textbook(spec_of(section, 1), rows)[1]
    seeds = 200
    sums = dict.fromkeys(exact, 0.0)
    for seed in range(seeds):
        spec = spec_of(section | {"precision": "q2.13", "seed": seed}, 1)
        for key, (weight,) in weights_of(learned(spec, rows)).items():
            assert abs(weight - exact[key][0]) < STEP
            sums[key] += weight
    of_rounding = 0.5 * STEP / np.sqrt(seeds)  # the largest deviation that a mean of coins can have
    errors = np.array([sums[key] / seeds - exact[key][0] for key in exact])
    assert (np.abs(errors) < 5 * of_rounding).all()
    assert abs(errors.mean()) < 5 * of_rounding / np.sqrt(errors.size)


def test_another_seed_gives_other_bits_and_the_same_seed_the_same():
    rows = shop_rows(200, 9)
    one, same, other = (
        learned(spec_of(FTRL_OWN_COARSE | {"seed": seed}), rows, size)
        for seed, size in ((1, 1000), (1, 7), (2, 1000))
    )
    assert_same_bits(one, same)
    assert weights_of(one) != weights_of(other)
