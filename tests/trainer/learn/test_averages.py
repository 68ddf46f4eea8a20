"""Averaged variants: against an oracle that averages every weight at every example, and what depends on them."""

from __future__ import annotations

import numpy as np
import pytest

from model_store.errors import SpecError
from model_store.spec.learner_section import Rule
from model_store.spec.spec import parse_spec, spec_from_json
from tests.kernels import learned
from tests.matrix import slow_except
from tests.trainer.learn.pairs import assert_same, gappy_rows, resumed
from tests.worlds import SPEC, learn, model_of
from trainer.learn.learners.registry import untouched_stay
from trainer.learn.scorer import first_rates
from trainer.publish.delta_chain import DeltaChain
from trainer.runs.rounds import check_mergeable

VARIANTS = """
[variants]
mean = { share = 0.1, average = "base" }
base = { share = 0.3 }
recent = { share = 0.2, average = "lean", half_life = 40 }
lean = { share = 0.2, without = ["tags", "hour"], alpha = 0.6 }
slow = { share = 0.2, average = "base", half_life = 3.5 }
"""
LEARNERS = {
    "ftrl": "l1 = 0.3\nl2 = 0.4\n",
    "ogd-global": 'algorithm = "ogd"\nrate = "global"\n',
}


def averaging(learner="ftrl", variants=VARIANTS):
    own = '[learner]\nalpha = 0.3\nbeta = 0.7\nvalues = "per_variant"\n'
    return parse_spec(SPEC[: SPEC.index("[variants]")] + variants + own + LEARNERS[learner])


@pytest.mark.parametrize("learner", slow_except(("ftrl",), LEARNERS))
def test_an_average_equals_that_of_all_weights_at_every_example(learner):
    assert_same(averaging(learner), gappy_rows(300, 1))


def test_batches_hashed_keys_and_a_resume_change_no_bit_of_an_average():
    spec, rows = averaging(), gappy_rows(300, 3)
    whole = learned(spec, rows).artefact()
    assert learned(spec, rows, 7).artefact().to_bytes() == whole.to_bytes()
    assert resumed(spec, rows, 150).artefact().to_bytes() == whole.to_bytes()
    rates = {name: whole.rates_of(bit).tolist() for bit, name in enumerate(spec.variants)}
    assert rates["mean"] == rates["base"] == rates["slow"]
    hashed = spec.model_copy(update={"learner": spec.learner.model_copy(update={"hash_bits": 20})})
    assert learned(hashed, rows).artefact().weight.tolist() == whole.weight.tolist()


def test_an_average_starts_from_the_weights_of_its_variant():
    spec, rows = averaging(), gappy_rows(300, 6)
    second = model_of(spec, list(rows[0]))
    second.warm_start(learned(spec, rows).artefact())
    started = second.artefact()
    numbers = {name: started.weights_of(bit).tolist() for bit, name in enumerate(started.spec.variants)}
    assert numbers["mean"] == numbers["slow"] == numbers["base"]
    assert numbers["recent"] == numbers["lean"] and any(numbers["base"])


def test_deltas_carry_averages_of_keys_that_no_example_touched():
    spec, rows = averaging(), gappy_rows(300, 7)
    assert not untouched_stay(spec)
    model = model_of(spec, list(rows[0]), keep_seen=True)
    learn(model, rows[:100])
    chain = DeltaChain(model, model.artefact(), 1)
    learn(model, [row | {"tags": b""} for row in rows[100:200]])
    delta = chain.change().delta
    assert any(key.startswith(b"tags=") for key in delta.key_list())
    assert delta.content == str(model.artefact().rows_content())


def test_an_average_takes_the_fields_of_its_variant():
    spec = averaging()
    assert spec.variants["recent"].without == ("tags", "hour")
    assert spec_from_json(spec.to_json()).sha256 == spec.sha256
    with pytest.raises(SpecError, match=r"variants\.mean\.average: --partition cannot merge"):
        check_mergeable(spec)


def test_a_key_that_the_model_lacks_has_the_first_rate_of_the_averaged_variant_and_the_largest_alpha():
    spec, base, lean = averaging(), 0.3 / 0.7, 0.6 / 0.7
    np.testing.assert_allclose(first_rates(spec, lambda: ()), [base, base, lean, lean, base])
    ruled = spec.model_copy(update={"rules": {"brand=": Rule(alpha=0.5), "age=": Rule(alpha=0.1)}})
    np.testing.assert_allclose(first_rates(ruled, lambda: ()), [0.5 / 0.7, 0.5 / 0.7, lean, lean, 0.5 / 0.7])
