"""What must be the same learner under two names, and what variants share: kernels against kernels."""

from __future__ import annotations

import numpy as np
import pytest

from model_store.spec.sections import FieldSpec, Variant
from model_store.spec.spec import ModelSpec
from tests.kernels import OWN, TRUNCATED, Section, spec_of
from tests.trainer.learn.pairs import assert_equal, gappy_rows, kinds, places_at
from tests.trainer.oracles.dense import Learner
from tests.trainer.oracles.trial import by_kernel, by_textbook
from tests.worlds import shop_rows, shop_spec

TOLERANCE = 1e-10
ROWS = shop_rows(300, 13)
CONSTANT = {"rate": "constant", "alpha": 0.2, "beta": 1.6, "l1": 0.0}
HALF = {"rate": "constant", "alpha": 0.25, "beta": 0.5, "k": 4, "theta": 0.0625}  # eta = 1/2
GLOBAL = {"rate": "global", "alpha": 0.3, "beta": 0.9}
COUNTS = GLOBAL | {"rate": "counts"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("one", "other"),
    [
        # FTRL, dual averaging and FOBOS without regularization at a constant rate are gradient descent.
        (CONSTANT | {"algorithm": "ftrl"}, CONSTANT | {"algorithm": "ogd"}),
        (CONSTANT | {"algorithm": "rda"}, CONSTANT | {"algorithm": "ogd"}),
        (COUNTS | {"algorithm": "fobos"}, COUNTS | {"algorithm": "ogd"}),
        (GLOBAL | {"algorithm": "truncation", "theta": 0.0, "k": 3}, GLOBAL | {"algorithm": "ogd"}),
        (
            GLOBAL | {"algorithm": "truncated_gradient", "theta": 1.0, "k": 3, "shrink": "fixed"},
            GLOBAL | {"algorithm": "ogd"},
        ),
        # A truncated gradient whose pull is theta is simple truncation.
        (
            HALF | {"algorithm": "truncated_gradient", "l1": 0.0625 * 2 / 4},
            HALF | {"algorithm": "truncation"},
        ),
        (
            COUNTS
            | {"algorithm": "truncated_gradient", "k": 3, "theta": 0.03, "shrink": "fixed", "l1": 0.03},
            COUNTS | {"algorithm": "truncation", "k": 3, "theta": 0.03},
        ),
        # A truncated gradient of every weight at every example is FOBOS with l1.
        (
            GLOBAL | {"algorithm": "truncated_gradient", "theta": float("inf"), "k": 1, "l1": 0.02},
            GLOBAL | {"algorithm": "fobos", "l1": 0.02},
        ),
        # A fixed pull is that of a constant rate.
        (
            TRUNCATED | {"rate": "constant", "shrink": "fixed", "l1": 3 * (0.3 / 0.7) * 0.02},
            TRUNCATED | {"rate": "constant", "l1": 0.02},
        ),
        # Gradient descent with l2 is FOBOS with the rate that its division undoes.
        (
            CONSTANT | {"algorithm": "ogd", "beta": 1.0, "alpha": 0.25, "l2": 0.4},
            CONSTANT | {"algorithm": "fobos", "beta": 1.0, "alpha": 0.25 / (1 - 0.25 * 0.4), "l2": 0.4},
        ),
    ],
    ids=lambda section: f"{section['algorithm']}-{section['rate']}",
)
def test_two_names_of_one_learner_learn_the_same(one, other):
    """The kernel of the one, and the textbook of the other, which test_learners.py compares with its kernel."""
    rows, (variants, values) = gappy_rows(300, 21), places_at(one["algorithm"], one["rate"])
    named = [spec_of(each | {"values": values}, variants) for each in (one, other)]
    found, (scores, weights, _) = by_kernel(named[0], rows), by_textbook(named[1], rows)
    assert_equal(found, (scores, weights))
    if other["algorithm"] == "truncation" and other["theta"]:
        assert any(weight == 0.0 for each in weights.values() for weight in each)


def fobos_with_unscaled_l2(value, w, g, at, p):
    v = value - at.eta * g
    return np.copysign(max(0.0, abs(v) - at.eta * p.l1) / (1.0 + p.l2), v)


def dual_average(denominator):
    """Dual averaging with l1, whose mean gradient is divided by `denominator(t, parameters)`."""

    def weight(value, n, t, p):
        mean = value / t if t else 0.0
        return -np.copysign(max(0.0, abs(mean) - p.l1), mean) / denominator(t, p) if t else 0.0

    return Learner(weight, lambda value, w, g, at, p: value + g)


GAMMA, PRINTED_L2 = 3.0, 0.05
DESCENT = {"algorithm": "fobos", "rate": "constant", "alpha": 0.3, "beta": 0.6, "l1": 0.01}
FALLING = {"algorithm": "fobos", "rate": "global", "alpha": 0.3, "l1": 0.01}
AVERAGE = {"algorithm": "rda", "l1": 0.01}
AT_CONSTANT_RATE = AVERAGE | {"rate": "constant", "alpha": 1.0, "beta": GAMMA, "l2": PRINTED_L2}


@pytest.mark.parametrize(
    ("printed", "with_l2", "ours"),
    [
        # RDA with gamma in place of gamma / sqrt(t): l2 + gamma of ours
        (
            dual_average(lambda t, p: p.l2 + GAMMA),
            AVERAGE,
            AVERAGE | {"alpha": 1e12, "l2": PRINTED_L2 + GAMMA},
        ),
        # FOBOS divides by 1 + l2 at a falling rate: a fixed shrinkage of ours
        (
            Learner(lambda value, *_: value, fobos_with_unscaled_l2),
            FALLING,
            FALLING | {"l2": PRINTED_L2, "shrink": "fixed"},
        ),
        # At a constant rate that is l2 / eta of ours.
        pytest.param(
            Learner(lambda value, *_: value, fobos_with_unscaled_l2),
            DESCENT,
            DESCENT | {"l2": PRINTED_L2 / 0.5},
            marks=pytest.mark.slow,
        ),
        # RDA with beta_t = gamma, hence gamma / t: ours at a constant rate
        pytest.param(
            dual_average(lambda t, p: p.l2 + GAMMA / t),
            AVERAGE,
            AT_CONSTANT_RATE,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["rda-gamma", "fobos-l2", "fobos-l2-constant", "rda-gamma-over-t"],
)
def test_a_form_that_a_source_prints_is_ours_with_other_parameters(printed, with_l2, ours):
    rows = gappy_rows(300, 21)
    expected = by_textbook(spec_of(with_l2 | {"l2": PRINTED_L2}, 1), rows, printed)[:2]
    assert_equal(by_kernel(spec_of(ours, 1), rows), expected)


def learners():
    """FTRL, and, as slow ones, a learner that shrinks, one with a posterior, and FTRL at a constant rate."""
    found: dict[str, list[Section]] = {}
    for algorithm, _, sections in kinds():
        if algorithm in ("ftrl", "fobos", "adpredictor"):
            found.setdefault(algorithm, []).append(sections[0])
    for algorithm, sections in found.items():
        for number, section in enumerate(
            (sections[0], sections[-1]) if algorithm == "ftrl" else sections[:1]
        ):
            marks = () if (algorithm, number) == ("ftrl", 0) else pytest.mark.slow
            yield pytest.param(section, id=f"{algorithm}-{section['rate']}", marks=marks)


def with_variants(spec: ModelSpec, variants: dict[str, Variant]) -> ModelSpec:
    return spec.model_copy(update={"variants": variants})


@pytest.mark.parametrize("section", list(learners()))
def test_a_variant_with_a_value_of_its_own_learns_as_if_it_were_alone(section):
    variants = dict(shop_spec(3).variants)
    own: list[dict[str, float]] = [{}, {"alpha": 0.1, "beta": 1.3}, {"alpha": 0.7}]
    if section["algorithm"] != "adpredictor":
        own[1] |= {"l1": 0.03, "l2": 0.03}
    own_variants = {
        name: variant.model_copy(update=parameters)
        for (name, variant), parameters in zip(variants.items(), own, strict=True)
    }
    scores, _ = by_kernel(with_variants(spec_of(section | OWN), own_variants), ROWS)
    for index, (name, parameters) in enumerate(zip(variants, own, strict=True)):
        alone = {name: Variant(share=1.0, without=variants[name].without)}
        by_itself, _ = by_kernel(with_variants(spec_of(section | parameters), alone), ROWS)
        np.testing.assert_allclose(scores[:, index], by_itself[:, 0], rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("margin", [300.0, 360.0, 372.0, 400.0])
def test_a_row_whose_squared_errors_nearly_vanish_changes_no_weight(margin):
    """The errors of both variants are e^-360, and their squares no normal numbers."""
    field = FieldSpec(kind="number", fixed_weight=-1.0)
    row = {"click": b"1", "x": b"", "age": b"20", "brand": b"nike"}
    log = [row, row | {"click": b"0", "x": b"%g" % margin}, row]
    spec = shop_spec(3)
    fields = {"x": field, "age": spec.fields["age"], "brand": spec.fields["brand"]}
    variants = {"base": Variant(share=0.5), "lean": Variant(share=0.5, without=("brand",))}
    spec = spec.model_copy(update={"fields": fields, "crosses": (), "variants": variants})
    spec = spec.model_copy(update={"input": spec.input.model_copy(update={"weight": None})})
    assert_equal(by_kernel(spec, log), by_textbook(spec, log)[:2])
