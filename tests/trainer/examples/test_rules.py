"""`[rules]`: the longest prefix wins, key by key, in what kernels look up by feature number."""

from __future__ import annotations

import numpy as np
import pytest

from model_store.artefact.inspection import PrefixRules
from model_store.errors import SpecError
from model_store.spec.spec import parse_spec
from tests.matrix import slow_except
from tests.worlds import SPEC, batch_of, learn, model_of, shop_rows
from trainer.examples.hashing import ExampleMaker

PREFIXES = """
age age= age=2 age=20 age=4%2A0 age*brand= age*brand=20* age*brand=20*nike age*brand=3 tags tags=a%2A tags*brand*size=a
tags*brand*size=a*puma* brand=b2%252A price=- P_N_ P_N_2 P*N=3 b bias
"""


def spec_of(rules, extra="", shop=SPEC):
    lines = [f"[rules.'{prefix}']\nl1 = {l1}\n" for prefix, l1 in rules.items()]
    return parse_spec(shop + extra + "".join(lines))


def maker_of(rules, extra="", shop=SPEC) -> ExampleMaker:
    return ExampleMaker(spec_of(rules, extra, shop).resolve(list(shop_rows(1, 0)[0])))


@pytest.mark.parametrize("seed", slow_except(range(4), range(8)))
def test_every_key_has_the_l1_of_the_longest_prefix(seed):
    random = np.random.default_rng(seed)
    prefixes = ["", *PREFIXES.split(), "brand=" + "x" * 29, "brand=" + "x" * 31]
    chosen = [prefix for prefix in prefixes if random.random() < 0.5]
    rules = {prefix: 10.0 + place for place, prefix in enumerate(random.permutation(chosen))}
    maker = maker_of(rules)
    rows = shop_rows(100, seed)
    examples = maker.make(batch_of(rows))
    oracle = PrefixRules((prefix.encode(), prefix) for prefix in rules)
    at = 0
    for row in rows:
        for key, _, mask in maker.plan.keys(row):
            if not mask:
                continue
            feature = examples.hashed.features[at]
            owner = oracle.owner(key) if key != b"bias" else ("bias" if "bias" in rules else None)
            expected = rules[owner] if owner is not None else np.nan
            np.testing.assert_equal(maker.feature_rules.l1[feature], expected, str(key))
            assert maker.rules.masks[feature] == mask
            at += 1
    assert at == examples.hashed.starts[-1] and maker_of({}).feature_rules.l1 is None


def test_a_setting_that_the_longest_rule_leaves_out_comes_from_the_next_shorter_one():
    extra = """
[rules."age="]
inclusion = { kind = "bloom", count = 3 }
[rules."age=2"]
l1 = 7.0
"""
    rules = maker_of({}, extra).feature_rules
    (apart,) = (rule.feature for rule in rules.value_rules if rule.owner == 1)
    assert (np.isnan(rules.l1[1]), rules.l1[apart]) == (True, 7.0)
    assert rules.inclusions[1] == rules.inclusions[apart] and rules.inclusions[1].count == 3
    assert rules.sources[apart] == 'rules."age=".inclusion'


def test_the_bias_is_admitted_unless_a_rule_names_it():
    inclusion = 'inclusion = { kind = "poisson", p = 0.1 }\n'
    kinds = [each.kind for each in maker_of({}, inclusion).feature_rules.inclusions]
    assert kinds == ["none", *["poisson"] * 9]
    for prefix, kind in (("bias", "poisson"), ("b", "none")):
        found = maker_of({}, f"{inclusion}[rules.{prefix}]\n{inclusion}").feature_rules.inclusions
        assert found[0].kind == kind


def test_only_rules_that_reach_into_values_set_keys_apart():
    whole = maker_of({"age=": 1.0, "tags": 2.0}).feature_rules.value_rules
    assert [rule.owner for rule in whole] == [7, 7]  # any text may begin a raw key
    apart = maker_of({"age*brand=20*": 1.0, "age=2": 2.0}).feature_rules.value_rules
    raw_and = [(7, 11, b"age*brand=20*"), (7, 12, b"age=2"), (8, 13, b"20*")]
    assert [(rule.owner, rule.feature, rule.start) for rule in apart] == [(1, 10, b"2"), *raw_and]


def test_a_rule_that_no_key_matches_or_no_learner_knows_is_a_spec_error():
    shop = SPEC.replace('hashes = { kind = "raw", separator = " " }\n', "")
    for prefix in ("colour=", "brand*age=", "size=1", "ages", "biased=x"):
        with pytest.raises(SpecError, match=r"no key begins with it; keys begin with bias, .*age\*brand="):
            maker_of({prefix: 1.0}, shop=shop)
    text = '[model]\nname = "m"\n[input]\nlabel = "y"\n[learner]\nalgorithm = "truncation"\ntheta = 0.1\n'
    with pytest.raises(SpecError, match=r'rules\."a="\.l1: .*"truncation"'):
        spec_of({"a=": 1.0}, shop=text)


def published(rules):
    """The published weight of every key of a model learned under these rules, and all keys of its table."""
    rows = shop_rows(400, 21)
    model = learn(model_of(spec_of(rules), list(rows[0])), rows, size=90)
    model.table._check()
    artefact = model.artefact()
    return dict(zip(artefact.key_list(), artefact.weight.tolist(), strict=True)), model.table.keys()


VALUE_RULES = ("age=2", "age*brand=20*", "tags=a%2A", "tags*brand*size=a*", "P_N_", "brand=b2%252A")


def test_keys_set_apart_are_written_whole_and_learned_alike_or_emptied_by_their_l1():
    plain, before = published({})
    apart, after = published(dict.fromkeys(VALUE_RULES, 0.05))
    assert plain == apart and before.data.tobytes() == after.data.tobytes()
    assert before.features.max() == 9 < after.features.max()
    ruled, _ = published(dict.fromkeys(VALUE_RULES, 1e6))
    under = tuple(prefix.encode() for prefix in VALUE_RULES)
    assert sum(key.startswith(under) for key in plain) > 10
    assert not [key for key in ruled if key.startswith(under)]
    others = {key for key in plain if not key.startswith(under)}
    assert len(others & set(ruled)) > 0.9 * len(others)
