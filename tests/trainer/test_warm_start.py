"""Beginning with a published model: the state that its weights stand for."""

from __future__ import annotations

import numpy as np
import pytest

from model_store.errors import SpecError
from model_store.spec import parse_spec
from tests.trainer.logs import SPEC, learn, model_of, shop_rows

LEARNERS = ["ogd", "truncation", "truncated_gradient", "fobos", "ftrl"]


def spec_of(learner: str, values: str = "single", more: str = ""):
    text = SPEC[: SPEC.index("[learner]")] + "[learner]\nalpha = 0.3\nbeta = 0.7\n"
    text += f'algorithm = "{learner}"\nvalues = "{values}"\n'
    text += {"ftrl": "l1 = 0.05\nl2 = 0.4\n", "fobos": "l1 = 1e-3\n"}.get(learner, "")
    text += "theta = 0.01\nk = 5\n" if learner.startswith("trunc") else ""
    return parse_spec(text + more)


def weights_by_key(artefact):
    return dict(zip(artefact.key_list(), artefact.weight.tolist(), strict=True))


@pytest.mark.parametrize("values", ["single", "per_variant"])
@pytest.mark.parametrize("learner", LEARNERS)
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
