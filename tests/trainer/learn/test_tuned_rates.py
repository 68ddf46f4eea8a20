"""`[rules]` alpha: against the textbook, and what it leaves as it was."""

from __future__ import annotations

import numpy as np
import pytest

from model_store.spec.learner_section import Rule
from tests.kernels import COARSE, FTRL, learned, spec_of
from tests.trainer.learn.pairs import assert_equal, assert_same, gappy_rows
from tests.trainer.oracles.trial import by_kernel
from tests.worlds import model_of, shop_rows

RULES = {
    "": Rule(alpha=0.2),
    "bias": Rule(alpha=0.05),
    "brand=": Rule(alpha=0.9),
    "tags=a": Rule(alpha=0.1, l1=0.01),
    "age*brand=": Rule(alpha=0.6),
    "P_N_1": Rule(alpha=0.02),
}
OGD = {"algorithm": "ogd", "alpha": 0.3, "beta": 0.7}
TRUNCATION = {"algorithm": "truncation", "alpha": 0.3, "beta": 0.7, "k": 3, "theta": 0.05}
FOBOS = {"algorithm": "fobos", "alpha": 0.3, "beta": 0.7, "l1": 0.01, "l2": 0.05}
ONE, SHARED, EACH = (1, "single"), (3, "single"), (3, "per_variant")

COARSE_CONSTANT = COARSE | {"rate": "constant"}
# One variant of FTRL is the pair that the fast tests compile. Learners call the rate of a rule as any other: FTRL has
# all of them; of the others those that catch up what a key has missed, with a closed form or a total. Each loop once.
RULED = [
    (FTRL, *ONE),
    (FTRL | COARSE_CONSTANT, *ONE),
    (FTRL | {"rate": "counts"}, *EACH),
    (OGD | {"l1": 0.01, "l2": 0.1}, *ONE),
    (TRUNCATION, *SHARED),
    (FOBOS, *EACH),
]


def quick(cases):
    """The first case is fast."""
    for section, variants, values in cases:
        name = "-".join(
            (
                section["algorithm"],
                section.get("rate", ""),
                section.get("precision", ""),
                str(variants),
                values,
            )
        )
        marks = () if (section, variants) == (FTRL, 1) else pytest.mark.slow
        yield pytest.param(section | {"values": values}, variants, id=name, marks=marks)


def ruled(section, variants=1):
    without = {"l1": None} if section["algorithm"] == "truncation" else {}
    rules = {prefix: rule.model_copy(update=without) for prefix, rule in RULES.items()}
    return spec_of(section, variants, rules)


@pytest.mark.parametrize(("section", "variants"), list(quick(RULED)))
def test_a_learner_with_rates_by_prefix_equals_its_dense_textbook(section, variants):
    assert_same(ruled(section, variants), gappy_rows(300, 11))


@pytest.mark.parametrize(
    "more", [{}, pytest.param(COARSE_CONSTANT, marks=pytest.mark.slow)], ids=["f64", "q2.13"]
)
def test_rules_for_all_keys_are_a_learner_with_that_alpha(more):
    """To the bit, also of a key that a row has twice."""
    rows = shop_rows(300, 3)
    for row in rows:
        if row["brand"] == b"nike":
            row["hashes"] = b"brand=nike"
    ruled = spec_of(FTRL | more | {"alpha": 0.01}, 1, dict.fromkeys(("", "bias"), Rule(alpha=FTRL["alpha"])))
    assert_equal(by_kernel(ruled, rows), by_kernel(spec_of(FTRL | more, 1), rows), 0.0)


def test_hashed_keys_with_different_rates_share_no_bucket():
    columns = list(shop_rows(1, 1)[0])

    def groups(rules):
        return model_of(spec_of(FTRL | {"hash_bits": 12}, 3, rules), columns).table.buckets.groups

    # Raw keys, which all variants use, may begin with the prefix of `tags`, which two use: a group of its own.
    assert groups({"brand=": Rule(alpha=0.9), "tags=": Rule(alpha=0.2)}) == groups({}) + 3


def test_a_published_rate_gives_back_its_n():
    """A model that starts from another has its weights and rates, whatever alpha the keys have."""
    spec, rows = ruled(FTRL), shop_rows(300, 4)
    first, second = learned(spec, rows).artefact(), model_of(spec, list(rows[0]))
    second.warm_start(first)
    again = second.artefact()
    assert again.key_list() == first.key_list()
    np.testing.assert_allclose(again.weight, first.weight, rtol=1e-5)
    np.testing.assert_allclose(again.rate, first.rate, rtol=1e-5)
