"""`[rules]` alpha and decay, and `[learner] warmup`: against the textbook, and what they leave as it was."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.errors import SpecError
from model_store.spec.learner_section import LearnerSection, Rule
from model_store.spec.spec import parse_spec
from tests.matrix import slow_except
from tests.trainer.click_logs import learn, model_of, shop_rows, shop_spec
from tests.trainer.learn.test_learners import assert_same, gappy_rows, spec_of
from tests.trainer.oracles.trial import by_kernel, weights_of
from trainer.learn.learners.rates import powers_of
from trainer.learn.warm_start import warm_start

RULES = {
    "": Rule(decay=0.4),
    "bias": Rule(alpha=0.05, decay=0.0),
    "brand=": Rule(alpha=0.9),
    "tags=": Rule(decay=1.0),
    "tags=a": Rule(alpha=0.1, decay=0.8, l1=0.01),
    "age*brand=": Rule(alpha=0.6, decay=0.5),
    "P_N_1": Rule(alpha=0.02),
}
ALPHAS = {prefix: rule.model_copy(update={"decay": None}) for prefix, rule in RULES.items()}
FTRL = {"algorithm": "ftrl", "alpha": 0.3, "beta": 0.7, "l1": 0.2, "l2": 0.3}
RULED = {
    "ftrl": FTRL,
    "ftrl-counts": FTRL | {"rate": "counts"},
    "ftrl-constant": FTRL | {"rate": "constant"},
    "ogd": {"algorithm": "ogd", "alpha": 0.3, "beta": 0.7},
    "ogd-l1": {"algorithm": "ogd", "alpha": 0.3, "beta": 0.7, "l1": 0.01, "l2": 0.1},
    "truncated_gradient": {"algorithm": "truncated_gradient", "alpha": 0.3, "k": 3, "theta": 0.3, "l1": 0.05},
    "truncation": {"algorithm": "truncation", "alpha": 0.3, "beta": 0.7, "k": 3, "theta": 0.05},
    "fobos": {"algorithm": "fobos", "alpha": 0.3, "beta": 0.7, "l1": 0.01, "l2": 0.05},
    "rda": {"algorithm": "rda", "rate": "gradients", "alpha": 0.3, "beta": 0.7, "l1": 0.01},
}
WARM = {
    "ftrl": FTRL,
    "ftrl-l1": FTRL | {"l1": 1.0, "l2": 0.0},
    "ftrl-counts": FTRL | {"rate": "counts"},
    "ftrl-constant": FTRL | {"rate": "constant"},
    "ogd": {"algorithm": "ogd", "alpha": 0.3, "beta": 0.7},
    "ogd-global": {"algorithm": "ogd", "alpha": 0.3, "rate": "global", "l2": 0.3},
    "fobos-global": {"algorithm": "fobos", "alpha": 0.3, "rate": "global", "l1": 0.01, "l2": 0.05},
    "truncation": {"algorithm": "truncation", "alpha": 0.3, "k": 3, "theta": 0.05},
    "truncated_gradient": {"algorithm": "truncated_gradient", "k": 3, "theta": 0.3, "l1": 0.02, "shrink": "fixed"},
    "truncated_gradient-global": {
        "algorithm": "truncated_gradient", "k": 3, "theta": 0.3, "l1": 0.05, "rate": "global", "alpha": 0.3
    },
}  # fmt: skip
QUICK = ("ftrl", "ogd")


def ruled(section, variants=3, values="single"):
    rules = ALPHAS if section.get("rate") == "constant" else RULES
    if section["algorithm"] == "truncation":
        rules = {prefix: rule.model_copy(update={"l1": None}) for prefix, rule in rules.items()}
    return spec_of(section, variants, values).model_copy(update={"rules": rules})


@pytest.mark.parametrize("values", ["single", "per_variant"])
@pytest.mark.parametrize("name", slow_except(QUICK, RULED))
def test_a_learner_with_rates_by_prefix_equals_its_dense_textbook(name, values):
    assert_same(ruled(RULED[name], 3, values), gappy_rows(300, 11))


@pytest.mark.parametrize("name", slow_except(("ftrl",), RULED))
def test_a_learner_of_one_variant_with_rates_by_prefix_equals_its_dense_textbook(name):
    assert_same(ruled(RULED[name], 1), gappy_rows(300, 2))


@pytest.mark.parametrize("values", ["single", "per_variant"])
@pytest.mark.parametrize("warmup", [2, 170, 400])
@pytest.mark.parametrize("name", slow_except(QUICK, WARM))
def test_a_learner_that_warms_up_equals_its_dense_textbook(name, warmup, values):
    assert_same(spec_of(WARM[name] | {"warmup": warmup}, 3, values), gappy_rows(300, 11))


@pytest.mark.parametrize("name", slow_except(("ftrl",), WARM))
def test_a_learner_of_one_variant_that_warms_up_equals_its_dense_textbook(name):
    assert_same(spec_of(WARM[name] | {"warmup": 170}, 1), gappy_rows(300, 2))


def test_rates_by_prefix_and_a_warmup_go_together():
    assert_same(ruled(FTRL | {"warmup": 170}), gappy_rows(300, 5))


def test_rules_that_repeat_the_learner_and_a_warmup_of_one_example_change_no_bit():
    rows = shop_rows(300, 3)
    plain = by_kernel(spec_of(FTRL, 1), rows)
    same = spec_of(FTRL, 1).model_copy(update={"rules": {"": Rule(alpha=FTRL["alpha"], decay=0.5)}})
    for spec in (same, spec_of(FTRL | {"warmup": 1}, 1)):
        scores, weights = by_kernel(spec, rows)
        assert scores.tobytes() == plain[0].tobytes()
        assert weights == plain[1]


def test_hashed_keys_with_different_rates_share_no_bucket():
    columns = list(shop_rows(1, 1)[0])

    def groups(rules):
        spec = spec_of(FTRL | {"hash_bits": 12}).model_copy(update={"rules": rules})
        return model_of(spec, columns).table.buckets.groups

    # Raw keys, which all variants use, may begin with the prefix of `tags`, which two use: a group of its own.
    assert groups({"brand=": Rule(alpha=0.9), "tags=": Rule(decay=0.2)}) == groups({}) + 3


def test_a_published_rate_gives_back_its_n():
    """A model that starts from another has its weights and rates, whatever the decay."""
    spec = ruled(FTRL | {"warmup": 50}, 1)
    rows = shop_rows(300, 4)
    first = learn(model_of(spec, list(rows[0])), rows)
    second = model_of(spec, list(rows[0]))
    warm_start(second.coordinates, second.maker, first.artefact())
    again = second.artefact()
    assert again.key_list() == first.artefact().key_list()
    np.testing.assert_allclose(again.weight, first.artefact().weight, rtol=1e-5)
    decays = RULES["bias"].decay
    assert decays == 0.0  # its rate is constant and tells no n
    np.testing.assert_allclose(again.rate, first.artefact().rate, rtol=1e-5)


@given(st.lists(st.tuples(st.floats(0, 1e12), st.floats(0, 1)), min_size=1, max_size=50))
def test_the_power_of_n_is_that_of_the_c_library_to_a_few_bits(pairs):
    n, p = (np.array(each) for each in zip(*pairs, strict=True))
    n[n < 2.3e-308] = 0.0  # what is not a normal number counts as 0
    out = np.empty(n.size)
    powers_of(n, p, out)
    np.testing.assert_allclose(out, n**p, rtol=1e-13, atol=1e-300)


SPEC = """
[model]
name = "shop"
[input]
label = "click"
[fields]
brand = {{}}
[learner]
{learner}
[rules]
{rules}
"""


@pytest.mark.parametrize(
    ("learner", "rules", "expected"),
    [
        ('algorithm = "adpredictor"', '"brand=" = { alpha = 0.1 }', "whose rate is a variance"),
        ('algorithm = "rda"', '"brand=" = { alpha = 0.1 }', 'got rate = "global"'),
        ('rate = "constant"', '"brand=" = { decay = 0.3 }', 'expected "gradients" or "counts"'),
        ("", '"brand=" = { decay = 1.5 }', "less than or equal to 1"),
        ('algorithm = "ogd"\nl2 = 0.5', '"brand=" = { alpha = 3.0 }', "eta l2 must be below 1"),
        ('algorithm = "adpredictor"\nwarmup = 5', "", "prior variance"),
        ('algorithm = "rda"\nwarmup = 5', "", "all gradients so far"),
        ('algorithm = "fobos"\nwarmup = 5', "", 'take rate = "global"'),
        ('algorithm = "ogd"\nl1 = 0.1\nwarmup = 5', "", 'take rate = "global"'),
        ('algorithm = "ogd"\nwarmup = 5', '"brand=" = { l1 = 0.1 }', 'take rate = "global"'),
        ("warmup = -1", "", "greater than or equal to 0"),
    ],
)
def test_rates_that_have_no_meaning_are_refused(learner, rules, expected):
    with pytest.raises(SpecError, match=expected):
        parse_spec(SPEC.format(learner=learner, rules=rules))


def test_specs_without_them_keep_their_hash():
    spec = parse_spec(SPEC.format(learner="", rules='"brand=" = { l1 = 0.5 }'))
    for word in ("warmup", "decay", "average", "half_life"):
        assert word not in spec.to_json()
    tuned = parse_spec(SPEC.format(learner="warmup = 9", rules='"brand=" = { alpha = 0.5, decay = 0.2 }'))
    assert '"warmup":9' in tuned.to_json()
    assert '"alpha":0.5,"decay":0.2' in tuned.to_json()
    assert LearnerSection(warmup=0) == LearnerSection()
    assert shop_spec().sha256 == shop_spec().sha256


def test_weights_of_untouched_keys_stay_during_a_warmup():
    spec = spec_of(FTRL | {"warmup": 1000}, 1)
    rows = gappy_rows(200, 6)
    model = model_of(spec, list(rows[0]))
    learn(model, rows[:100])
    touched = {key for key in weights_of(model) if key.startswith(b"tags=")}
    before = {key: weights_of(model)[key] for key in touched}
    rest = [row | {"tags": b""} for row in rows[100:]]
    learn(model, rest)
    assert before == {key: weights_of(model)[key] for key in touched}
    assert any(weight != (0.0,) for weight in before.values())
