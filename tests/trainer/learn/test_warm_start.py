"""Beginning with a published model: the state that its weights stand for."""

from __future__ import annotations

import numpy as np
import pytest

from model_store.errors import SpecError
from model_store.spec.sections import Variant
from model_store.spec.spec import parse_spec
from tests.matrix import slow_except
from tests.trainer.click_logs import SPEC, learn, model_of, shop_rows

LEARNERS = ["ogd", "penalized ogd", "truncation", "truncated_gradient", "fobos", "ftrl"]


def spec_of(learner: str, values: str = "single", more: str = ""):
    text = SPEC[: SPEC.index("[learner]")] + "[learner]\nalpha = 0.3\nbeta = 0.7\n"
    text += f'algorithm = "{learner.removeprefix("penalized ")}"\nvalues = "{values}"\n'
    text += {
        "ftrl": "l1 = 0.05\nl2 = 0.4\n",
        "fobos": "l1 = 1e-3\n",
        "penalized ogd": "l1 = 1e-3\nl2 = 0.01\n",
    }.get(learner, "")
    text += "theta = 0.01\nk = 5\n" if learner.startswith("trunc") else ""
    return parse_spec(text + more)


def weights_by_key(artefact):
    return dict(zip(artefact.key_list(), artefact.weight.tolist(), strict=True))


@pytest.mark.parametrize("values", ["single", "per_variant"])
@pytest.mark.parametrize("learner", slow_except(["ftrl"], LEARNERS))
def test_a_model_that_was_taken_over_is_the_model_that_was_published(learner, values):
    rows = shop_rows(400, 3)
    spec = spec_of(learner, values)
    published = learn(model_of(spec, list(rows[0])), rows).artefact()
    begun = model_of(spec, list(rows[0]))
    assert begun.warm_start(published) == published.rows
    begun.table._check()
    again = begun.artefact()
    assert again.key_list() == published.key_list()
    assert np.allclose(again.weight, published.weight, rtol=1e-5, atol=1e-7)
    assert np.allclose(again.rate, published.rate, rtol=1e-5)
    assert (again.variants == published.variants).all()


@pytest.mark.parametrize("more", ['rate = "counts"\n', 'precision = "q2.13"\nrate = "counts"\n'])
def test_counts_begin_near_the_rate_that_was_published(more):
    rows = shop_rows(800, 3)
    spec = spec_of("ftrl", more=more)
    published = learn(model_of(spec, list(rows[0])), rows).artefact()
    begun = model_of(spec, list(rows[0]))
    begun.warm_start(published)
    again = weights_by_key(begun.artefact())
    for key, weight in weights_by_key(published).items():
        assert again.get(key, 0.0) == pytest.approx(weight, abs=2e-3)


def test_learning_goes_on_from_where_the_model_was():
    rows = shop_rows(1200, 3)
    spec = spec_of("ftrl")
    whole = learn(model_of(spec, list(rows[0])), rows)
    first = learn(model_of(spec, list(rows[0])), rows[:600])
    second = model_of(spec, list(rows[0]))
    second.warm_start(first.artefact())
    learn(second, rows[600:])
    expected, got = weights_by_key(whole.artefact()), weights_by_key(second.artefact())
    common = sorted(expected.keys() & got.keys())
    difference = [abs(expected[key] - got[key]) for key in common]
    assert len(common) > 0.8 * len(expected)
    assert np.mean(difference) < 0.1 * np.mean([abs(weight) for weight in expected.values()])


def test_keys_of_fields_that_the_spec_lacks_are_left_behind():
    rows = shop_rows(300, 5)
    published = learn(model_of(spec_of("ftrl"), list(rows[0])), rows).artefact()
    text = '[model]\nname = "shop"\n[input]\nlabel = "click"\n[fields]\nbrand = {}\nage = {}\n'
    begun = model_of(parse_spec(text), list(rows[0]))
    taken = begun.warm_start(published)
    names = {key.partition(b"=")[0] for key in begun.artefact().key_list()}
    assert names <= {b"bias", b"brand", b"age"}
    assert 0 < taken < published.rows


def test_a_rule_that_reaches_into_values_holds_for_keys_taken_over():
    rows = shop_rows(300, 5)
    published = learn(model_of(spec_of("ftrl"), list(rows[0])), rows).artefact()
    ruled = spec_of("ftrl", more='[rules."brand=nike"]\nl1 = 1000.0\n')
    begun = model_of(ruled, list(rows[0]))
    begun.warm_start(published)
    taken = weights_by_key(begun.artefact())
    before = weights_by_key(published)
    assert taken[b"brand=puma"] == pytest.approx(before[b"brand=puma"], rel=1e-5)
    assert taken[b"brand=nike"] == pytest.approx(before[b"brand=nike"], rel=1e-3)
    learn(begun, rows[:1])
    assert begun.coordinates.weights(begun.table.keys()).shape[1] == 1


def test_what_a_model_cannot_tell_is_a_spec_error():
    rows = shop_rows(200, 5)
    shared = learn(model_of(spec_of("ftrl"), list(rows[0])), rows).artefact()
    own = learn(model_of(spec_of("ftrl", "per_variant"), list(rows[0])), rows).artefact()
    averaged = parse_spec(SPEC.replace("alpha = 0.3", 'algorithm = "rda"\nalpha = 0.3'))
    with pytest.raises(SpecError, match="rda"):
        model_of(averaged, list(rows[0])).warm_start(shared)
    with pytest.raises(SpecError, match="a weight for each variant"):
        model_of(spec_of("ftrl"), list(rows[0])).warm_start(own)
    other = parse_spec(
        SPEC.replace("lean =", "slim =").replace("[learner]", '[learner]\nvalues = "per_variant"')
    )
    with pytest.raises(SpecError, match=r"variants\.slim"):
        model_of(other, list(rows[0])).warm_start(own)


def test_rules_into_raw_keys_leave_the_keys_of_fields_theirs():
    rows = shop_rows(400, 3)
    spec = spec_of("ogd", "per_variant", '[rules."tags="]\ninclusion = { kind = "none" }\n')
    spec = spec.model_copy(
        update={"variants": spec.variants | {"lean": Variant(share=0.2, without=("tags", "hashes"))}}
    )
    published = learn(model_of(spec, list(rows[0])), rows).artefact()
    begun = model_of(spec, list(rows[0]))
    begun.warm_start(published)
    assert (begun.artefact().variants == published.variants).all()


def test_a_variant_that_does_not_use_a_key_is_given_no_weight_of_it():
    rows = shop_rows(400, 3)
    shared = learn(model_of(spec_of("ftrl"), list(rows[0])), rows).artefact()
    begun = model_of(spec_of("ftrl", "per_variant"), list(rows[0]))
    begun.warm_start(shared)
    again = begun.artefact()
    used = (again.variants[:, None] >> np.arange(3)) & 1 != 0
    assert used.all(axis=1).any() and not used.all()
    assert (again.weight[~used] == 0.0).all()


@pytest.mark.parametrize("from_several", [True, False])
def test_one_variant_begins_with_its_own_weights_whoever_was_learned_beside_it(from_several):
    rows = shop_rows(400, 3)
    several = spec_of("ftrl", "per_variant")
    alone = several.model_copy(update={"variants": {"base": Variant(share=1.0)}})
    published = learn(model_of(several if from_several else alone, list(rows[0])), rows).artefact()
    begun = model_of(alone, list(rows[0]))
    begun.warm_start(published)
    first = dict(zip(published.key_list(), published.weight[:, 0].tolist(), strict=True))
    for key, (weight,) in weights_by_key(begun.artefact()).items():
        assert weight == pytest.approx(first[key], rel=1e-5, abs=1e-7)
