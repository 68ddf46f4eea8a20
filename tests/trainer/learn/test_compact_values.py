"""Values of 16 bits (q2.13): the kernels against the textbook's rounding, and what chance may and may not do."""

from __future__ import annotations

import numpy as np
import pytest

from model_store.hash_kernels import hash_keys
from model_store.spec.learner_section import LearnerSection
from tests.matrix import slow_except
from tests.trainer.click_logs import learn, model_of, shop_rows, shop_spec
from tests.trainer.learn.test_learners import assert_same_bits, gappy_rows, spec_of
from tests.trainer.oracles.trial import by_kernel, by_textbook, weights_of

STEP = 2.0**-13
SEED = 5
LEARNERS = {
    "ogd": {},
    "penalized ogd": {"algorithm": "ogd", "l1": 0.0213, "l2": 0.3},
    "truncation": {"k": 3, "theta": 0.05},
    "truncated_gradient": {"k": 3, "theta": 0.3, "l1": 0.05},
    "fixed": {"algorithm": "truncated_gradient", "k": 3, "theta": 0.3, "l1": 0.02, "shrink": "fixed"},
    "fobos": {"l1": 0.01, "l2": 0.05},
    "ftrl": {"l1": 0.3, "l2": 0.1},
}


def section_of(algorithm, rate="counts", **more):
    common = {"algorithm": algorithm, "rate": rate, "alpha": 0.3, "beta": 0.7, "l1": 0.0, "seed": SEED}
    return common | LEARNERS[algorithm] | {"precision": "q2.13"} | more


def luck(key: bytes, t: int, place: int, seed: int = SEED) -> float:
    """The R of a key at example t: splitmix64's finaliser of both and the seed, its upper 32 bits."""
    word = 2**64 - 1
    h = hash_of(key) ^ (t * 0x9E3779B97F4A7C15 & word) ^ seed ^ (place << 40)
    h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9 & word
    h = (h ^ h >> 27) * 0x94D049BB133111EB & word
    return ((h ^ h >> 31) >> 32) / 2**32


def hash_of(key: bytes) -> int:
    out = np.empty(1, np.uint64)
    hash_keys(np.frombuffer(key, np.uint8).copy(), np.array([0, len(key)], np.int64), out)
    return int(out[0])


@pytest.mark.parametrize("values", ["single", "per_variant"])
@pytest.mark.parametrize("rate", slow_except(["counts"], ["counts", "constant"]))
@pytest.mark.parametrize("algorithm", slow_except(["ftrl"], LEARNERS))
def test_every_value_is_rounded_as_the_textbook_says(algorithm, rate, values):
    spec, rows = spec_of(section_of(algorithm, rate), 3, values), gappy_rows(200, 17)
    scores, weights = by_kernel(spec, rows)
    expected_scores, expected, _ = by_textbook(spec, rows, rounding=luck)
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-9, atol=1e-9)
    for key, weight in expected.items():
        assert weights[key] == pytest.approx(weight, rel=1e-9, abs=1e-9), key


@pytest.mark.parametrize("rate", slow_except(["counts"], ["gradients", "counts", "constant"]))
@pytest.mark.parametrize("algorithm", slow_except(["ftrl"], LEARNERS))
def test_coarse_values_stay_near_the_exact_ones(algorithm, rate):
    rows = gappy_rows(300, 3)
    coarse, _ = by_kernel(spec_of(section_of(algorithm, rate), 3), rows)
    exact, _ = by_kernel(spec_of(section_of(algorithm, rate, precision="f64"), 3), rows)
    assert 0 < np.abs(coarse - exact).max() < 0.05


def test_a_weight_just_touched_is_a_multiple_of_the_step():
    rows = shop_rows(50, 2)
    weights = weights_of(learn(model_of(spec_of(section_of("ogd"), 1), list(rows[0])), rows))
    steps = np.array([weight for (weight,) in weights.values()]) / STEP
    assert (steps == np.round(steps)).all()
    assert (steps != 0).any()


def test_a_value_beyond_the_range_stays_at_its_end():
    rows = [{"click": b"1", "importance": b"100", "age": b"20"}] * 3
    rows += [{"click": b"0", "importance": b"100", "age": b"30"}] * 9
    spec = shop_spec(1).model_copy(
        update={
            "fields": {"age": shop_spec(1).fields["age"]},
            "crosses": (),
            "learner": spec_of(section_of("ogd", "constant"), 1).learner,
        }
    )
    weights = weights_of(learn(model_of(spec, list(rows[0])), rows))
    assert weights[b"age=20"] == (4.0 - STEP,)
    assert weights[b"age=30"] == (-4.0,)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ogd", "ftrl"])
def test_the_mean_over_seeds_is_the_exact_weight(algorithm):
    """One example, so that nothing learned depends on the rounding: its error must vanish on average."""
    rows = [row | {"importance": b"0.7"} for row in shop_rows(1, 6)]
    exact = by_kernel(spec_of(section_of(algorithm, "constant", precision="f64", l1=0.0), 1), rows)[1]
    seeds = 400
    sums = dict.fromkeys(exact, 0.0)
    for seed in range(seeds):
        section = section_of(algorithm, "constant", seed=seed, l1=0.0)
        model = learn(model_of(spec_of(section, 1), list(rows[0])), rows)
        for key, (weight,) in weights_of(model).items():
            assert abs(weight - exact[key][0]) < STEP
            sums[key] += weight
    of_rounding = 0.5 * STEP / np.sqrt(seeds)  # the largest deviation that a mean of coins can have
    errors = np.array([sums[key] / seeds - exact[key][0] for key in exact])
    assert (np.abs(errors) < 5 * of_rounding).all()
    assert abs(errors.mean()) < 5 * of_rounding / np.sqrt(errors.size)


@pytest.mark.parametrize("values", ["single", "per_variant"])
def test_another_seed_gives_other_bits_and_the_same_seed_the_same(values):
    rows = shop_rows(200, 9)
    one, same, other = (
        learn(model_of(spec_of(section_of("ftrl", seed=seed), 3, values), list(rows[0])), rows, size=size)
        for seed, size in ((1, 1000), (1, 7), (2, 1000))
    )
    assert_same_bits(one, same)
    assert weights_of(one) != weights_of(other)


def test_variants_are_rounded_apart():
    rows = shop_rows(100, 4)
    spec = spec_of(section_of("ogd"), 3, "per_variant")
    alike = {name: variant.model_copy(update={"without": ()}) for name, variant in spec.variants.items()}
    weights = weights_of(learn(model_of(spec.model_copy(update={"variants": alike}), list(rows[0])), rows))
    assert any(len(set(of_variants)) > 1 for of_variants in weights.values())


@pytest.mark.parametrize(
    "section",
    [
        {"algorithm": "rda"},
        {"algorithm": "fobos", "rate": "global"},
        {"algorithm": "ogd", "rate": "global", "l2": 0.1},
    ],
)
def test_learners_that_keep_no_weight_refuse_16_bits(section):
    with pytest.raises(ValueError, match=r"q2\.13"):
        LearnerSection.model_validate(section | {"precision": "q2.13"})
