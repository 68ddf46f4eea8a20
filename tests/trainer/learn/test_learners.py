"""Every learner, rate and value structure: the kernel against the textbook in plain Python."""

from __future__ import annotations

import numpy as np
import pytest

from model_store.spec.learner_section import LearnerSection, Rule
from model_store.spec.sections import JoinSection
from tests.kernels import OWN, learned, spec_of
from tests.trainer.learn.pairs import (
    ALONE,
    CASES,
    EACH,
    RATES,
    SHARED,
    assert_same,
    assert_same_bits,
    fast_and_slow,
    gappy_rows,
    named,
    places_at,
    section_of,
)
from tests.trainer.oracles.trial import by_kernel, by_textbook, weights_of
from tests.worlds import batch_of, learn, model_of, shop_rows, shop_spec
from trainer.learn.learners.registry import needs_seen
from trainer.learn.table import ValueTable


@pytest.mark.parametrize(("section", "variants"), list(fast_and_slow()))
def test_a_kernel_equals_its_dense_textbook_wherever_batches_end(section, variants):
    """Rows of weight 0 are predicted, and leave every bit as it was."""
    spec, rows = spec_of(section, variants), gappy_rows(160, 11)
    for row in rows[::7]:
        row["importance"] = b"0"
    assert_same(spec, rows)
    whole = learned(spec, rows)
    for size in (1, 64):
        assert_same_bits(learned(spec, rows, size), whole)
    assert_same_bits(learned(spec, [row for row in rows if row["importance"] != b"0"]), whole)


@pytest.mark.parametrize(
    ("variants", "values"), [ALONE, *(pytest.param(*each, marks=pytest.mark.slow) for each in (SHARED, EACH))]
)
def test_examples_that_were_negatives_first_are_weighed_by_what_each_variant_predicts(variants, values):
    """Given each click after a negative of the same row, the rate learned is that of clicks, not p / (1 + p)."""
    spec = spec_of({"alpha": 0.3, "l1": 0.0, "values": values}, variants)
    spec = spec.model_copy(update={"join": JoinSection(late="weigh")})
    rows = gappy_rows(160, 11)
    assert_same(spec, [each for row in rows for each in with_its_negative(row)])
    one = [{**rows[0], "click": b"1" if n % 5 == 0 else b"0"} for n in range(1000)]
    scores, _ = by_kernel(spec, [each for row in one for each in with_its_negative(row)])
    assert (1.0 / (1.0 + np.exp(-scores[-300:])).mean(axis=0)) == pytest.approx(0.2, abs=0.02)


def with_its_negative(row):
    return [{**row, "click": b"0"}, *([row] if row["click"] in (b"1", b"true") else [])]


def test_the_cases_above_take_weights_past_0():
    """A weight that oscillates about 0 in a key that is not touched, which only the gradient of l1 does."""
    spec, rows, signs = spec_of(section_of("ogd", "gradients", CASES["ogd"][-1]), 1), gappy_rows(300, 1), {}
    for count in range(100, 140, 3):
        _, weights, _ = by_textbook(spec, rows[:count])
        for key, (weight,) in weights.items():
            signs.setdefault(key, []).append(weight > 0)
    assert sum(len(set(seen)) == 2 for seen in signs.values()) > len(signs) // 4


@pytest.mark.parametrize("algorithm", ["truncation", "truncated_gradient", "fobos", "rda", "ftrl"])
def test_the_cases_above_cut_weights_and_keep_others(algorithm):
    cut = []
    for case in CASES[algorithm]:
        section = section_of(algorithm, RATES.get(algorithm, ("gradients",))[0], case)
        _, weights, _ = by_textbook(spec_of(section, 1), gappy_rows(200, 1))
        cut.append(0 < sum(weight == (0.0,) for weight in weights.values()) < len(weights))
    assert sum(cut) >= len(cut) // 2


@pytest.mark.slow
@pytest.mark.parametrize("rate", ["global", "constant"])
@pytest.mark.parametrize(
    ("algorithm", "parameters"),
    [
        ("fobos", {"l1": 0.0002, "l2": 0.01}),
        ("truncated_gradient", {"l1": 0.0001, "theta": 0.9, "k": 3}),
        ("ogd", {"l1": 0.0, "l2": 0.0001}),
    ],
)
def test_a_key_that_returns_after_thousands_of_rows_has_shrunk_as_the_textbook_says(
    algorithm, parameters, rate
):
    section = {"algorithm": algorithm, "rate": rate, "alpha": 0.5, "beta": 1.0} | parameters
    section |= OWN if rate == "global" else {}
    rows = [row | {"tags": b"", "hashes": b"", "hour": b""} for row in shop_rows(2000, 5)]
    for row in (*rows[:10], *rows[-10:]):
        row["tags"] = b"rare"
    assert b"tags=rare" in assert_same(spec_of(section), rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    "learner",
    [
        {"algorithm": "fobos", "rate": "constant", "l1": 1e-5, "l2": 1.0},
        {"algorithm": "fobos", "rate": "global", "l1": 1e-5, "l2": 8.0},
        {"algorithm": "ogd", "rate": "constant", "l1": 0.0, "l2": 1.0},
        {"algorithm": "ogd", "rate": "global", "l1": 0.0, "l2": 1.1},
    ],
)
def test_weights_shrink_through_hundreds_of_orders_of_magnitude(learner):
    rows = [row | {"tags": b"", "hashes": b"", "hour": b"", "price": b""} for row in shop_rows(2000, 8)]
    for row in (rows[0], rows[1000], rows[-1]):
        row["tags"] = b"rare"
    _, values = places_at(learner["algorithm"], learner["rate"])
    assert_same(spec_of({"alpha": 0.9, "beta": 1.0, "values": values} | learner), rows)


@pytest.mark.parametrize(
    ("algorithm", "variants", "values"),
    [
        ("ftrl", *SHARED),
        ("ftrl", *EACH),
        *(
            pytest.param(algorithm, *ALONE, marks=pytest.mark.slow)
            for algorithm in ("ogd", "truncated_gradient", "fobos", "rda")
        ),
    ],
)
def test_l1_of_a_prefix_holds_for_its_keys_alone(algorithm, variants, values):
    section = {"algorithm": algorithm, "alpha": 0.3, "beta": 0.7} | CASES[algorithm][0] | {"l1": 0.001}
    rules = {"brand=": Rule(l1=0.05), "brand=nike": Rule(l1=0.0), "age*brand=": Rule(l1=0.2)}
    section["values"], rows = values, gappy_rows(200, 2)
    weights = assert_same(spec_of(section, variants, rules), rows)
    without = by_textbook(spec_of(section, variants), rows)[1]
    changed = {key for key, weight in weights.items() if weight != pytest.approx(without[key], abs=1e-6)}
    assert any(key.startswith(b"brand=") for key in changed)


@pytest.mark.parametrize(("section", "variants"), list(named()))
def test_a_table_that_grows_in_between_changes_no_bit(section, variants):
    spec, rows = spec_of(section, variants), gappy_rows(120, 12)
    small, large = (model_of(spec, list(rows[0])) for _ in range(2))
    layout, own = type(small.table.layout), small.coordinates.own
    small.coordinates.table = ValueTable(
        layout, variants=own, keep_seen=needs_seen(spec), capacity=64, seed=spec.learner.seed
    )
    for _ in range(3):
        large.table.grow()
    learn(small, rows, size=40), learn(large, rows, size=40)
    small.table._check()
    assert 64 < small.table.slots.size < large.table.slots.size
    assert weights_of(small) == weights_of(large)


@pytest.mark.parametrize("values", ["single", pytest.param("per_variant", marks=pytest.mark.slow)])
def test_fobos_catches_up_keys_of_the_batch_in_which_its_lazy_state_is_rebased(values):
    section = {"algorithm": "fobos", "rate": "global", "alpha": 1000.0, "l1": 1e-5, "l2": 10.0}
    rows = [row | {"brand": b"b%d" % index} for index, row in enumerate(shop_rows(200, 8))]
    spec = spec_of(section | {"values": values}, 1 if values == "single" else 3)
    assert_same(spec, rows)
    assert_same_bits(learned(spec, rows, 200), learned(spec, rows, 7))


def test_a_weight_inside_the_l1_ball_is_zero_and_is_not_published():
    model = learned(spec_of({"l1": 1000.0}), shop_rows(50, 8))
    assert model.table.used > 0 and model.artefact().rows == 0


def test_bad_rows_are_left_out_and_named():
    rows = shop_rows(8, 2)
    bad = (
        {"click": b"maybe"},
        {"price": b"cheap"},
        {"age": b"\xff"},
        {"price": b"nan"},
        {"brand": b"x" * 5000},
    )
    for row, cells in zip(rows[1:], (*bad, {"importance": b"-1"}), strict=False):
        row |= cells
    examples = model_of(shop_spec(), list(rows[0])).maker.make(batch_of(rows))
    assert examples.rows.tolist() == [0, 7]
    reasons = {reject.line: reject.reason for reject in examples.rejects}
    assert reasons[3].startswith("click: got 'maybe', expected 1, 0, -1, true or false;")
    assert reasons[4] == "price: got 'cheap', expected a number"
    assert reasons[5].startswith("age: got bytes that are not UTF-8 (byte 0)")
    assert reasons[6].endswith("expected a finite number")
    assert reasons[7] == "brand: the key would be 5006 bytes long; the limit is 4096"
    assert reasons[8] == "importance: got -1, expected a weight >= 0"


def test_the_other_rate_form_is_the_same_learner():
    section = LearnerSection.model_validate({"rate_scale": 0.5, "rate_decay": 4.0})
    assert section == LearnerSection(alpha=0.125, beta=0.25)
