"""Every learner, rate and value structure: the kernel against the textbook in plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest

from model_store.spec.learner_section import LearnerSection, Rule
from tests.matrix import slow_except
from tests.trainer.click_logs import learn, model_of, shop_rows, shop_spec
from tests.trainer.oracles.trial import by_kernel, by_textbook, weights_of

TOLERANCE = 1e-9

# Large enough parameters that weights are cut, come back, and are cut again within some hundred rows.
CASES = {
    "ogd": [{}]
    + [
        {"l1": l1, "l2": l2}
        for l1, l2 in ((0.0, 0.3), (0.0213, 0.0), (0.00113, 0.05), (0.1713, 0.0), (0.0513, 0.9))
    ],
    "truncation": [
        {"k": k, "theta": theta} for k, theta in ((1, 0.02), (3, 0.05), (7, 0.1), (3, 0.0), (7, math.inf))
    ],
    "truncated_gradient": [
        {"k": k, "theta": theta, "l1": l1}
        for k, theta, l1 in (
            (1, 0.1, 0.02),
            (3, 0.3, 0.05),
            (7, 0.05, 0.1),
            (7, math.inf, 0.03),
            (1, math.inf, 0.01),
            (3, 0.2, 0.0),
        )
    ]
    + [
        {"k": k, "theta": theta, "l1": l1, "shrink": "fixed"}
        for k, theta, l1 in ((1, 0.1, 0.003), (3, 0.3, 0.02), (7, math.inf, 0.01), (1, math.inf, 0.0005))
    ],
    "fobos": [
        {"l1": l1, "l2": l2} for l1, l2 in ((0.0, 0.0), (0.02, 0.0), (0.0, 0.3), (0.01, 0.05), (0.3, 2.0))
    ],
    "rda": [{"l1": l1, "l2": l2} for l1, l2 in ((0.0, 0.0), (0.01, 0.0), (0.02, 0.1), (0.0, 1.0))],
    "ftrl": [{"l1": l1, "l2": l2} for l1, l2 in ((0.0, 0.0), (0.3, 0.0), (1.0, 0.5), (0.0, 2.0))],
    "adpredictor": [{}, {"forgetting": 0.01, "prior_ctr": 0.1}, {"prior_ctr": 0.03}],
}
RATES = {
    "rda": ("global", "gradients", "constant"),
    "ftrl": ("gradients", "counts", "constant"),
    "adpredictor": ("posterior",),
}
QUICK = {"ogd": 0, "truncated_gradient": 6}
EVERY = ("gradients", "counts", "global", "constant")


def taken(cases, algorithm, rate):
    """The cases that the spec accepts at this rate."""
    return [case for case in cases if (algorithm, rate) != ("ogd", "global") or not case.get("l1")]


def sections():
    """Every learner that a spec can name, with each of its rates and some parameters."""
    for algorithm, cases in CASES.items():
        for rate in RATES.get(algorithm, EVERY):
            for index, case in enumerate(taken(cases, algorithm, rate)):
                section = {"algorithm": algorithm, "rate": rate, "alpha": 0.3, "beta": 0.7, "l1": 0.0} | case
                # Each combination of learner and rate compiles loops of its own: seconds where no kernel is cached.
                # The penalties of ogd and the fixed shrinkage compile loops of their own too.
                quick = rate == RATES.get(algorithm, EVERY)[0] and index in (
                    len(cases) // 2,
                    QUICK.get(algorithm),
                )
                marks = () if quick else pytest.mark.slow
                yield pytest.param(section, id=f"{algorithm}-{rate}-{index}", marks=marks)


def spec_of(section, variants=3, values="single"):
    learner = LearnerSection.model_validate(section | {"values": values})
    return shop_spec(variants).model_copy(update={"learner": learner})


def gappy_rows(rows, seed):
    """Random rows in which most values vanish for long: a brand of each fifth, tags only at both ends."""
    log = shop_rows(rows, seed)
    for index, row in enumerate(log):
        fifth = index * 5 // rows
        if fifth not in (0, 4):
            row["tags"] = b""
        if row["brand"] and fifth in (1, 3):
            row["brand"] = b"odd%d" % fifth
        if 20 < index < rows - 20:
            row["hashes"] = b""
    return log


def assert_same(spec, rows):
    scores, weights = by_kernel(spec, rows)
    expected_scores, expected, _ = by_textbook(spec, rows)
    np.testing.assert_allclose(scores, expected_scores, rtol=TOLERANCE, atol=TOLERANCE)
    assert weights.keys() == expected.keys()
    for key, weight in expected.items():
        assert weights[key] == pytest.approx(weight, rel=TOLERANCE, abs=TOLERANCE), key
    return expected


@pytest.mark.parametrize("values", ["single", "per_variant"])
@pytest.mark.parametrize("section", list(sections()))
def test_a_kernel_equals_its_dense_textbook(section, values):
    assert_same(spec_of(section, 3, values), gappy_rows(300, 11))


@pytest.mark.parametrize("section", list(sections()))
def test_a_kernel_of_one_variant_equals_its_dense_textbook(section):
    for seed in (1, 2):
        assert_same(spec_of(section, 1), gappy_rows(300, seed))


def test_the_cases_above_take_weights_past_0():
    """A weight that oscillates about 0 in a key that is not touched, which only the gradient of l1 does."""
    section = {"algorithm": "ogd", "alpha": 0.3, "beta": 0.7} | CASES["ogd"][-1]
    rows = gappy_rows(300, 1)
    signs = {}
    for count in range(100, 140):
        _, weights, _ = by_textbook(spec_of(section, 1), rows[:count])
        for key, (weight,) in weights.items():
            signs.setdefault(key, []).append(weight > 0)
    assert sum(len(set(seen)) == 2 for seen in signs.values()) > len(signs) // 4


@pytest.mark.parametrize("algorithm", ["truncation", "truncated_gradient", "fobos", "rda", "ftrl"])
def test_the_cases_above_cut_weights_and_keep_others(algorithm):
    cut = []
    for case in CASES[algorithm]:
        section = {"algorithm": algorithm, "alpha": 0.3, "beta": 0.7, "l1": 0.0} | case
        _, weights, _ = by_textbook(spec_of(section, 1), gappy_rows(300, 1))
        zeros = sum(weight == (0.0,) for weight in weights.values())
        cut.append(0 < zeros < len(weights))
    assert sum(cut) >= len(cut) // 2


@pytest.mark.parametrize("values", ["single", "per_variant"])
@pytest.mark.parametrize("section", list(sections()))
def test_batch_boundaries_change_no_bit_of_any_learner(section, values):
    rows = gappy_rows(150, 6)
    spec = spec_of(section, 3, values)
    whole = learn(model_of(spec, list(rows[0])), rows)
    for size in (1, 7, 64):
        assert_same_bits(learn(model_of(spec, list(rows[0])), rows, size=size), whole)


def assert_same_bits(one, other):
    one, other = one.coordinates.state(), other.coordinates.state()
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.tobytes() == other[name].tobytes(), name


def test_rows_without_weight_teach_nothing_but_are_examples():
    rows = gappy_rows(200, 4)
    for row in rows[::3]:
        row["importance"] = b"0"
    for algorithm in CASES:
        section = {"algorithm": algorithm, "alpha": 0.3, "beta": 0.7, "l1": 0.0} | CASES[algorithm][-1]
        assert_same(spec_of(section, 3), rows)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fobos", "truncated_gradient", "ogd"])
@pytest.mark.parametrize("rate", ["global", "constant"])
def test_a_key_that_returns_after_thousands_of_rows_has_shrunk_as_the_textbook_says(algorithm, rate):
    parameters = {
        "fobos": {"l1": 0.0002, "l2": 0.01},
        "truncated_gradient": {"l1": 0.0001, "theta": 0.9, "k": 3},
        "ogd": {"l1": 0.0 if rate == "global" else 0.00013, "l2": 0.0001},
    }
    section = {"algorithm": algorithm, "rate": rate, "alpha": 0.5, "beta": 1.0} | parameters[algorithm]
    rows = [row | {"tags": b"", "hashes": b"", "hour": b""} for row in shop_rows(3000, 5)]
    for row in (*rows[:10], *rows[-10:]):
        row["tags"] = b"rare"
    weights = assert_same(spec_of(section, 1), rows)
    assert b"tags=rare" in weights


@pytest.mark.slow
@pytest.mark.parametrize("values", ["single", "per_variant"])
@pytest.mark.parametrize(
    "learner",
    [
        {"algorithm": "fobos", "rate": "constant", "l1": 1e-5, "l2": 1.0},
        {"algorithm": "fobos", "rate": "global", "l1": 1e-5, "l2": 8.0},
        {"algorithm": "ogd", "rate": "constant", "l1": 0.0, "l2": 1.0},
        {"algorithm": "ogd", "rate": "global", "l1": 0.0, "l2": 1.1},
    ],
)
def test_weights_shrink_through_hundreds_of_orders_of_magnitude(learner, values):
    section = {"alpha": 0.9, "beta": 1.0} | learner
    rows = [row | {"tags": b"", "hashes": b"", "hour": b"", "price": b""} for row in shop_rows(4000, 8)]
    for row in (rows[0], rows[2000], rows[-1]):
        row["tags"] = b"rare"
    assert_same(spec_of(section, 3, values), rows)


@pytest.mark.parametrize("values", ["single", "per_variant"])
@pytest.mark.parametrize(
    "algorithm", slow_except(["ftrl"], ["ogd", "truncated_gradient", "fobos", "rda", "ftrl"])
)
def test_l1_of_a_prefix_holds_for_its_keys_alone(algorithm, values):
    section = {"algorithm": algorithm, "alpha": 0.3, "beta": 0.7, "l1": 0.001} | CASES[algorithm][0]
    rules = {"brand=": Rule(l1=0.05), "brand=nike": Rule(l1=0.0), "age*brand=": Rule(l1=0.2)}
    spec = spec_of(section, 3, values).model_copy(update={"rules": rules})
    weights = assert_same(spec, gappy_rows(300, 2))
    without = by_textbook(spec_of(section, 3, values), gappy_rows(300, 2))[1]
    changed = {key for key, weight in weights.items() if weight != pytest.approx(without[key], abs=1e-6)}
    assert any(key.startswith(b"brand=") for key in changed)


@pytest.mark.parametrize("values", ["single", "per_variant"])
@pytest.mark.parametrize("algorithm", slow_except(["ftrl"], ["ogd", "truncated_gradient", "fobos", "ftrl"]))
def test_a_table_that_grows_in_between_changes_no_bit(algorithm, values):
    section = {"algorithm": algorithm, "rate": "gradients", "alpha": 0.3, "beta": 0.7} | CASES[algorithm][1]
    for precision in ("f64", "q2.13"):
        spec = spec_of(section | {"precision": precision}, 3, values)
        rows = gappy_rows(150, 12)
        small, large = (model_of(spec, list(rows[0])) for _ in range(2))
        for _ in range(3):
            large.table.grow()
        learn(small, rows, size=40), learn(large, rows, size=40)
        assert weights_of(small) == weights_of(large)


@pytest.mark.slow
@pytest.mark.parametrize("values", ["single", "per_variant"])
def test_fobos_catches_up_keys_of_the_batch_in_which_its_lazy_state_is_rebased(values):
    section = {"algorithm": "fobos", "rate": "global", "alpha": 1000.0, "l1": 1e-5, "l2": 10.0}
    rows = [row | {"brand": b"b%d" % index} for index, row in enumerate(shop_rows(200, 8))]
    spec = spec_of(section, 3, values)
    models = [learn(model_of(spec, list(rows[0])), rows, size=size) for size in (200, 7)]
    assert_same_bits(*models)
    found, (_, expected, _) = weights_of(models[0]), by_textbook(spec, rows)
    assert found.keys() == expected.keys()
    for key, weight in expected.items():
        assert found[key] == pytest.approx(weight, rel=TOLERANCE, abs=TOLERANCE), key
