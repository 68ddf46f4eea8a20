"""What must be the same learner under two names, and what variants share: kernels against kernels."""

from __future__ import annotations

import numpy as np
import pytest

from model_store.spec.learner_section import LearnerSection
from model_store.spec.sections import Variant
from model_store.spec.spec import ModelSpec
from tests.matrix import slow_except
from tests.trainer.click_logs import learn, model_of, shop_rows, shop_spec
from tests.trainer.learn.test_learners import (
    CASES,
    EVERY,
    RATES,
    assert_same_bits,
    gappy_rows,
    spec_of,
    taken,
)
from tests.trainer.oracles.dense import Learner
from tests.trainer.oracles.trial import by_kernel, by_textbook

TOLERANCE = 1e-10


def assert_equal_learners(one, other, variants=3, values="single"):
    rows = gappy_rows(400, 21)
    scores, weights = by_kernel(spec_of(one, variants, values), rows)
    other_scores, other_weights = by_kernel(spec_of(other, variants, values), rows)
    np.testing.assert_allclose(scores, other_scores, rtol=TOLERANCE, atol=TOLERANCE)
    assert weights.keys() == other_weights.keys()
    for key, weight in weights.items():
        assert other_weights[key] == pytest.approx(weight, rel=TOLERANCE, abs=TOLERANCE), key
    return weights


@pytest.mark.parametrize("values", slow_except(["single"], ["single", "per_variant"]))
def test_ftrl_without_regularization_at_a_constant_rate_is_gradient_descent(values):
    constant = {"rate": "constant", "alpha": 0.2, "beta": 1.6, "l1": 0.0}
    assert_equal_learners(constant | {"algorithm": "ftrl"}, constant | {"algorithm": "ogd"}, values=values)


@pytest.mark.slow
@pytest.mark.parametrize("values", ["single", "per_variant"])
@pytest.mark.parametrize("k", [1, 4])
def test_truncated_gradient_whose_pull_is_theta_is_simple_truncation(k, values):
    constant = {"rate": "constant", "alpha": 0.25, "beta": 0.5, "k": k, "theta": 0.0625}  # eta = 1/2
    truncated = constant | {"algorithm": "truncated_gradient", "l1": 0.0625 * 2 / k}
    weights = assert_equal_learners(truncated, constant | {"algorithm": "truncation"}, values=values)
    assert any(weight == 0.0 for weight in np.concatenate(list(weights.values())))


@pytest.mark.slow
@pytest.mark.parametrize("values", ["single", "per_variant"])
@pytest.mark.parametrize("rate", EVERY)
def test_truncated_gradient_of_every_weight_at_every_example_is_fobos_with_l1(rate, values):
    common = {"rate": rate, "alpha": 0.3, "beta": 0.9, "l1": 0.02}
    unbounded = common | {"algorithm": "truncated_gradient", "theta": float("inf"), "k": 1}
    assert_equal_learners(unbounded, common | {"algorithm": "fobos"}, values=values)


@pytest.mark.slow
@pytest.mark.parametrize("rate", EVERY)
@pytest.mark.parametrize(
    "idle",
    [
        {"algorithm": "fobos"},
        {"algorithm": "truncation", "theta": 0.0, "k": 3},
        {"algorithm": "truncated_gradient", "theta": 1.0, "k": 3},
        {"algorithm": "truncated_gradient", "theta": 1.0, "k": 3, "shrink": "fixed"},
    ],
)
def test_without_regularization_every_descent_is_gradient_descent(idle, rate):
    common = {"rate": rate, "alpha": 0.3, "beta": 0.9}
    assert_equal_learners(common | idle, common | {"algorithm": "ogd"})


@pytest.mark.parametrize("values", slow_except(["single"], ["single", "per_variant"]))
def test_dual_averaging_without_regularization_at_a_constant_rate_is_gradient_descent(values):
    constant = {"rate": "constant", "alpha": 0.2, "beta": 1.6, "l1": 0.0}
    assert_equal_learners(constant | {"algorithm": "rda"}, constant | {"algorithm": "ogd"}, values=values)


@pytest.mark.slow
@pytest.mark.parametrize("values", ["single", "per_variant"])
@pytest.mark.parametrize("rate", EVERY)
def test_truncated_gradient_whose_fixed_pull_is_theta_is_simple_truncation_at_every_rate(rate, values):
    common = {"rate": rate, "alpha": 0.3, "beta": 0.9, "k": 3, "theta": 0.03}
    fixed = common | {"algorithm": "truncated_gradient", "shrink": "fixed", "l1": 0.03}
    weights = assert_equal_learners(fixed, common | {"algorithm": "truncation"}, values=values)
    assert any(weight == 0.0 for weight in np.concatenate(list(weights.values())))


@pytest.mark.parametrize("values", slow_except(["single"], ["single", "per_variant"]))
def test_a_fixed_pull_is_that_of_a_constant_rate(values):
    common = {"algorithm": "truncated_gradient", "rate": "constant", "alpha": 0.3, "beta": 0.9}
    common |= {"k": 3, "theta": 0.5}
    fixed = {"shrink": "fixed", "l1": 3 * (0.3 / 0.9) * 0.02}
    assert_equal_learners(common | fixed, common | {"l1": 0.02}, values=values)


@pytest.mark.slow
@pytest.mark.parametrize("values", ["single", "per_variant"])
def test_gradient_descent_with_l2_is_fobos_with_the_rate_that_its_division_undoes(values):
    eta, l2 = 0.25, 0.4
    common = {"rate": "constant", "beta": 1.0, "l1": 0.0, "l2": l2}
    descent = common | {"algorithm": "ogd", "alpha": eta}
    assert_equal_learners(
        descent, common | {"algorithm": "fobos", "alpha": eta / (1 - eta * l2)}, values=values
    )


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
FOBOS = {"algorithm": "fobos", "rate": "constant", "alpha": 0.3, "beta": 0.6, "l1": 0.01}
RDA = {"algorithm": "rda", "l1": 0.01}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("printed", "with_l2", "ours"),
    [
        # FOBOS divides by 1 + l2: l2 / eta of ours
        (Learner(lambda value, *_: value, fobos_with_unscaled_l2), FOBOS, FOBOS | {"l2": PRINTED_L2 / 0.5}),
        # RDA with gamma in place of gamma / sqrt(t): l2 + gamma of ours
        (dual_average(lambda t, p: p.l2 + GAMMA), RDA, RDA | {"alpha": 1e12, "l2": PRINTED_L2 + GAMMA}),
        # RDA with beta_t = gamma, hence gamma / t: ours at a constant rate
        (
            dual_average(lambda t, p: p.l2 + GAMMA / t),
            RDA,
            RDA | {"rate": "constant", "alpha": 1.0, "beta": GAMMA, "l2": PRINTED_L2},
        ),
    ],
    ids=["fobos-l2", "rda-gamma", "rda-gamma-over-t"],
)
@pytest.mark.parametrize("values", ["single", "per_variant"])
def test_a_form_that_a_source_prints_is_ours_with_other_parameters(printed, with_l2, ours, values):
    rows = gappy_rows(300, 21)
    scores, weights = by_kernel(spec_of(ours, 3, values), rows)
    expected_scores, expected, _ = by_textbook(
        spec_of(with_l2 | {"l2": PRINTED_L2}, 3, values), rows, printed
    )
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-9, atol=1e-9)
    assert weights.keys() == expected.keys()
    for key, weight in expected.items():
        assert weights[key] == pytest.approx(weight, rel=1e-9, abs=1e-9), key


def test_both_parameter_forms_of_the_rate_learn_the_same_bits():
    forms = ({"alpha": 0.125, "beta": 0.25}, {"rate_scale": 0.5, "rate_decay": 4.0})
    assert_same_bits(*(learn(model_of(spec_of(form), list(ROWS[0])), ROWS) for form in forms))


ROWS = shop_rows(300, 13)


def learners():
    """Each algorithm at each of its rates, with one of its cases."""
    for algorithm, cases in CASES.items():
        for rate in RATES.get(algorithm, EVERY):
            case = taken(cases, algorithm, rate)[-1]
            section = {"algorithm": algorithm, "rate": rate, "alpha": 0.3, "beta": 0.7, "l1": 0.0} | case
            quick = algorithm in ("ftrl", "fobos") and rate == RATES.get(algorithm, EVERY)[0]
            marks = () if quick else pytest.mark.slow
            yield pytest.param(section, id=f"{algorithm}-{rate}", marks=marks)


def with_variants(spec: ModelSpec, variants: dict[str, Variant]) -> ModelSpec:
    return spec.model_copy(update={"variants": variants})


@pytest.mark.parametrize("section", list(learners()))
def test_variants_alike_share_one_value_or_have_equal_ones(section):
    alike = {name: Variant(share=0.5) for name in ("a", "b")}
    alone, one = by_kernel(with_variants(spec_of(section, 1), {"a": Variant(share=1.0)}), ROWS)
    for values in ("single", "per_variant"):
        scores, weights = by_kernel(with_variants(spec_of(section, 1, values), alike), ROWS)
        np.testing.assert_allclose(scores, np.repeat(alone, 2, axis=1), rtol=TOLERANCE, atol=TOLERANCE)
        for key, (weight,) in one.items():
            assert weights[key] == pytest.approx((weight,) * len(weights[key]), rel=TOLERANCE, abs=TOLERANCE)


@pytest.mark.parametrize("section", list(learners()))
def test_a_variant_with_a_value_of_its_own_learns_as_if_it_were_alone(section):
    variants = dict(shop_spec(3).variants)
    own: list[dict[str, float]] = [{}, {"alpha": 0.1, "beta": 1.3}, {"alpha": 0.7}]
    allowed = {
        "fobos": ("l1", "l2"),
        "rda": ("l1", "l2"),
        "ftrl": ("l1", "l2"),
        "truncated_gradient": ("l1",),
        "ogd": ("l1", "l2") if section["rate"] != "global" else ("l2",),
    }
    for name in allowed.get(section["algorithm"], ()):
        own[1][name] = 0.03
    own_variants = {
        name: variant.model_copy(update=parameters)
        for (name, variant), parameters in zip(variants.items(), own, strict=True)
    }
    scores, _ = by_kernel(with_variants(spec_of(section, 3, "per_variant"), own_variants), ROWS)
    for index, (name, parameters) in enumerate(zip(variants, own, strict=True)):
        alone = {name: Variant(share=1.0, without=variants[name].without)}
        by_itself, _ = by_kernel(with_variants(spec_of(section | parameters, 1), alone), ROWS)
        np.testing.assert_allclose(scores[:, index], by_itself[:, 0], rtol=TOLERANCE, atol=TOLERANCE)


def test_twice_the_importance_is_twice_the_gradient():
    rows = [row | {"importance": b"1"} for row in ROWS]
    heavy = [row | {"importance": b"2"} for row in rows]
    section = {"algorithm": "ogd", "rate": "constant", "alpha": 0.1}
    _, weights = by_kernel(spec_of(section | {"alpha": 0.2}, 1), rows)
    _, heavier = by_kernel(spec_of(section, 1), heavy)
    for key, weight in weights.items():
        assert heavier[key] == pytest.approx(weight, rel=TOLERANCE)


@pytest.mark.slow
def test_the_rate_of_counts_does_not_depend_on_the_variants():
    section = LearnerSection(rate="counts", values="per_variant")
    alone, shared = (
        learn(model_of(shop_spec(n).model_copy(update={"learner": section}), list(ROWS[0])), ROWS)
        for n in (1, 3)
    )
    counted = []
    for model in (alone, shared):
        keys = model.table.keys()
        held = model.table.slots[keys.slots]
        names = [keys.data.tobytes()[a:b] for a, b in zip(keys.offsets[:-1], keys.offsets[1:], strict=True)]
        counted.append(
            dict(
                zip(
                    names,
                    zip(held["clicked"].tolist(), held["unclicked"].tolist(), strict=True),
                    strict=True,
                )
            )
        )
    assert counted[0] == counted[1]
    clicks = sum(row["click"] in (b"1", b"true") for row in ROWS)
    assert counted[0][b"bias"] == (clicks, len(ROWS) - clicks)
