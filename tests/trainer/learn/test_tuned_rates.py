"""`[rules]` alpha and decay, and `[learner] warmup`: against the textbook, and what they leave as it was."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from model_store.spec.learner_section import Rule
from tests.kernels import FTRL, learned, spec_of
from tests.trainer.learn.pairs import assert_equal, assert_same, gappy_rows
from tests.trainer.oracles.trial import by_kernel
from tests.worlds import model_of, shop_rows
from trainer.learn.learners.rates import powers_of

RULES = {
    "": Rule(decay=0.4),
    "bias": Rule(alpha=0.05, decay=0.0),
    "brand=": Rule(alpha=0.9),
    "tags=": Rule(decay=1.0),
    "tags=a": Rule(alpha=0.1, decay=0.8, l1=0.01),
    "age*brand=": Rule(alpha=0.6, decay=0.5),
    "P_N_1": Rule(alpha=0.02),
}
OGD = {"algorithm": "ogd", "alpha": 0.3, "beta": 0.7}
TRUNCATION = {"algorithm": "truncation", "alpha": 0.3, "beta": 0.7, "k": 3, "theta": 0.05}
TRUNCATED = {"algorithm": "truncated_gradient", "alpha": 0.3, "k": 3, "theta": 0.3, "l1": 0.05}
FOBOS = {"algorithm": "fobos", "alpha": 0.3, "beta": 0.7, "l1": 0.01, "l2": 0.05}
WARM = {"warmup": 170}
ONE, SHARED, EACH = (1, "single"), (3, "single"), (3, "per_variant")

# One variant of FTRL is the pair that the fast tests compile. Learners call a tuned rate as any other: FTRL has all of
# them; of the others those that catch up what a key has missed, with a closed form or a total.
RULED = [
    (FTRL, *ONE),
    (FTRL | WARM, *ONE),
    (FTRL, *SHARED),
    (FTRL | {"rate": "counts"}, *EACH),
    (FTRL | {"rate": "constant"}, *ONE),
    (OGD | {"l1": 0.01, "l2": 0.1}, *ONE),
    (TRUNCATION, *SHARED),
    (FOBOS, *EACH),
]
WARMING = [
    (FTRL | {"warmup": 2}, *ONE),
    (FTRL | WARM, *ONE),
    (FTRL | {"l1": 1.0, "l2": 0.0, "warmup": 400}, *ONE),
    (FTRL | WARM, *SHARED),
    (FTRL | WARM | {"rate": "counts"}, *EACH),
    (FTRL | WARM | {"rate": "constant"}, *ONE),
    (FOBOS | WARM | {"rate": "global"}, *EACH),
    (TRUNCATION | WARM, *SHARED),
    (TRUNCATED | WARM | {"l1": 0.02, "shrink": "fixed"}, *EACH),
]


def quick(cases):
    """The cases of one variant of FTRL are fast."""
    for section, variants, values in cases:
        name = f"{section['algorithm']}-{section.get('rate', '')}-{section.get('warmup', '')}-{variants}-{values}"
        quick = (section["algorithm"], variants) == ("ftrl", 1) and "rate" not in section
        marks = () if quick else pytest.mark.slow
        yield pytest.param(section | {"values": values}, variants, id=name, marks=marks)


def ruled(section, variants=1):
    without = {"constant": {"decay": None}}.get(section.get("rate", ""), {})
    without |= {"l1": None} if section["algorithm"] == "truncation" else {}
    rules = {prefix: rule.model_copy(update=without) for prefix, rule in RULES.items()}
    return spec_of(section, variants, rules)


@pytest.mark.parametrize(("section", "variants"), list(quick(RULED)))
def test_a_learner_with_rates_by_prefix_equals_its_dense_textbook(section, variants):
    assert_same(ruled(section, variants), gappy_rows(300, 11))


@pytest.mark.parametrize(("section", "variants"), list(quick(WARMING)))
def test_a_learner_that_warms_up_equals_its_dense_textbook(section, variants):
    assert_same(spec_of(section, variants), gappy_rows(300, 11))


def test_rules_that_repeat_the_learner_and_a_warmup_of_one_example_change_no_bit():
    rows = shop_rows(300, 3)
    plain = by_kernel(spec_of(FTRL, 1), rows)
    same = spec_of(FTRL, 1, {"": Rule(alpha=FTRL["alpha"], decay=0.5)})
    for spec in (same, spec_of(FTRL | {"warmup": 1}, 1)):
        assert_equal(by_kernel(spec, rows), plain, 0.0)


def test_hashed_keys_with_different_rates_share_no_bucket():
    columns = list(shop_rows(1, 1)[0])

    def groups(rules):
        return model_of(spec_of(FTRL | {"hash_bits": 12}, 3, rules), columns).table.buckets.groups

    # Raw keys, which all variants use, may begin with the prefix of `tags`, which two use: a group of its own.
    assert groups({"brand=": Rule(alpha=0.9), "tags=": Rule(decay=0.2)}) == groups({}) + 3


def test_a_published_rate_gives_back_its_n():
    """A model that starts from another has its weights and rates, whatever the decay."""
    spec, rows = ruled(FTRL | {"warmup": 50}), shop_rows(300, 4)
    first, second = learned(spec, rows).artefact(), model_of(spec, list(rows[0]))
    second.warm_start(first)
    again = second.artefact()
    assert again.key_list() == first.key_list()
    np.testing.assert_allclose(again.weight, first.weight, rtol=1e-5)
    assert RULES["bias"].decay == 0.0  # its rate is constant and tells no n
    np.testing.assert_allclose(again.rate, first.rate, rtol=1e-5)


def test_the_power_of_n_is_that_of_the_c_library_to_a_few_bits():
    numbers = (0.0, 1e-320, 2.3e-308, 1e-9, 0.3, 1.0, 1.5, 2.0, 77.7, 1e12)
    n, p = np.array(list(itertools.product(numbers, np.linspace(0.0, 1.0, 41)))).T.copy()
    n[n < 2.3e-308] = 0.0  # what is not a normal number counts as 0
    out = np.empty(n.size)
    powers_of(n, p, out)
    np.testing.assert_allclose(out, n**p, rtol=1e-13, atol=1e-300)
