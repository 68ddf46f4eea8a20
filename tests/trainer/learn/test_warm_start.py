"""Beginning with a published model: the state that its weights stand for."""

from __future__ import annotations

import numpy as np
import pytest

from model_store.errors import SpecError
from model_store.spec.sections import Variant
from model_store.spec.spec import parse_spec
from tests.kernels import FTRL, FTRL_OWN_COARSE, OWN, TRUNCATED, learned, spec_of
from tests.trainer.learn.pairs import CASES, section_of
from tests.worlds import SPEC, model_of, shop_rows

ROWS = shop_rows(400, 3)


def weights_by_key(artefact):
    return dict(zip(artefact.key_list(), artefact.weight.tolist(), strict=True))


def begun_with(spec, published):
    model = model_of(spec, list(ROWS[0]))
    model.warm_start(published)
    return model


@pytest.mark.parametrize(
    ("section", "variants"),
    [
        (FTRL, 3),
        (FTRL | OWN, 3),
        *(
            pytest.param(each, 1, marks=pytest.mark.slow)
            for each in (
                section_of("ogd", "gradients", {}),
                section_of("ogd", "gradients", CASES["ogd"][-1]),
                section_of("truncation", "gradients", CASES["truncation"][0]),
                section_of("fobos", "gradients", CASES["fobos"][0]),
                TRUNCATED,
            )
        ),
    ],
)
def test_a_model_that_was_taken_over_is_the_model_that_was_published(section, variants):
    spec = spec_of(section, variants)
    published = learned(spec, ROWS).artefact()
    begun = model_of(spec, list(ROWS[0]))
    assert begun.warm_start(published) == published.rows
    begun.table._check()
    again = begun.artefact()
    assert again.key_list() == published.key_list()
    assert np.allclose(again.weight, published.weight, rtol=1e-5, atol=1e-7)
    assert np.allclose(again.rate, published.rate, rtol=1e-5)
    assert (again.variants == published.variants).all()


@pytest.mark.parametrize(
    "section", [FTRL_OWN_COARSE, pytest.param(FTRL | {"rate": "counts"}, marks=pytest.mark.slow)]
)
def test_counts_begin_near_the_rate_that_was_published(section):
    spec = spec_of(section)
    published = learned(spec, shop_rows(800, 3)).artefact()
    again = weights_by_key(begun_with(spec, published).artefact())
    for key, weight in weights_by_key(published).items():
        found = again.get(key, np.zeros(np.shape(weight)).tolist())
        assert found == pytest.approx(weight, abs=2e-3)


def test_keys_of_fields_that_the_spec_lacks_are_left_behind():
    published = learned(spec_of(FTRL), ROWS).artefact()
    text = '[model]\nname = "shop"\n[input]\nlabel = "click"\n[fields]\nbrand = {}\nage = {}\n'
    begun = model_of(parse_spec(text), list(ROWS[0]))
    taken = begun.warm_start(published)
    names = {key.partition(b"=")[0] for key in begun.artefact().key_list()}
    assert names <= {b"bias", b"brand", b"age"} and 0 < taken < published.rows


def test_a_rule_that_reaches_into_values_holds_for_keys_taken_over():
    published = learned(spec_of(FTRL), ROWS).artefact()
    ruled = parse_spec(SPEC + '[rules."brand=nike"]\nl1 = 1000.0\n')
    taken, before = weights_by_key(begun_with(ruled, published).artefact()), weights_by_key(published)
    assert taken[b"brand=puma"] == pytest.approx(before[b"brand=puma"], rel=1e-5)
    assert taken[b"brand=nike"] == pytest.approx(before[b"brand=nike"], rel=1e-3)


def test_what_a_model_cannot_tell_is_a_spec_error():
    shared, own = (learned(spec_of(each), ROWS).artefact() for each in (FTRL, FTRL | OWN))
    with pytest.raises(SpecError, match="rda"):
        begun_with(spec_of({"algorithm": "rda", "alpha": 0.3}), shared)
    with pytest.raises(SpecError, match="a weight for each variant"):
        begun_with(spec_of(FTRL), own)
    other = SPEC.replace("lean =", "slim =").replace("[learner]", '[learner]\nvalues = "per_variant"')
    with pytest.raises(SpecError, match=r"variants\.slim"):
        begun_with(parse_spec(other), own)


def test_rules_into_raw_keys_leave_the_keys_of_fields_theirs():
    spec = parse_spec(SPEC + 'values = "per_variant"\n[rules."tags="]\ninclusion = { kind = "none" }\n')
    lean = Variant(share=0.2, without=("tags", "hashes"))
    spec = spec.model_copy(update={"variants": spec.variants | {"lean": lean}})
    published = learned(spec, ROWS).artefact()
    assert (begun_with(spec, published).artefact().variants == published.variants).all()


def test_a_variant_that_does_not_use_a_key_is_given_no_weight_of_it():
    again = begun_with(spec_of(FTRL | OWN), learned(spec_of(FTRL), ROWS).artefact()).artefact()
    used = (again.variants[:, None] >> np.arange(3)) & 1 != 0
    assert used.all(axis=1).any() and not used.all() and (again.weight[~used] == 0.0).all()


@pytest.mark.parametrize("from_several", [True, False])
def test_one_variant_begins_with_its_own_weights_whoever_was_learned_beside_it(from_several):
    several = spec_of(FTRL | OWN)
    alone = several.model_copy(update={"variants": {"base": Variant(share=1.0)}})
    published = learned(several if from_several else alone, ROWS).artefact()
    first = dict(zip(published.key_list(), published.weight[:, 0].tolist(), strict=True))
    for key, (weight,) in weights_by_key(begun_with(alone, published).artefact()).items():
        assert weight == pytest.approx(first[key], rel=1e-5, abs=1e-7)
