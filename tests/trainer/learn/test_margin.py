"""Base margins, `fixed_weight`: against an oracle with an offset, in every loop and layout, and as published.

A loop adds the margin before a learner has the score: FTRL, and a learner whose untouched weights change.
"""

from __future__ import annotations

import numpy as np
import pytest

from model_store.errors import InputError
from model_store.spec.learner_section import LearnerSection
from model_store.spec.spec import parse_spec
from tests.kernels import FTRL, FTRL_OWN_COARSE, learned
from tests.matrix import slow_except
from tests.trainer.learn.pairs import assert_same
from tests.trainer.oracles.trial import by_kernel, weights_of
from tests.worlds import SPEC, batch_of, learn, model_of, shop_rows
from trainer.examples.hashing import ExampleMaker
from trainer.learn.metrics.regret import RegretRecorder
from trainer.learn.scorer import Scorer
from trainer.publish.delta_chain import DeltaChain

LEARNERS = {
    "ftrl": FTRL,
    "fobos-global": {"algorithm": "fobos", "alpha": 0.3, "rate": "global", "l1": 0.01, "l2": 0.05},
}
GIVEN = (
    'before = { kind = "number", fixed_weight = 0.7 }\nlarge = { kind = "number", fixed_weight = -12.5 }\n'
)


def margin_spec(section, variants=3, values="single", given=GIVEN):
    text = SPEC.replace("[fields]\n", "[fields]\n" + given).replace(
        'without = ["age*brand"]', 'without = ["age*brand", "before"]'
    )
    if variants == 1:
        text = text[: text.index("[variants]")] + text[text.index("[learner]") :]
    learner = LearnerSection.model_validate(section | {"values": values})
    return parse_spec(text).model_copy(update={"learner": learner})


def margin_rows(rows, seed):
    random = np.random.default_rng(seed)
    return [
        row
        | {"before": random.choice([b"", b"0.3", b"-1.7", b"0"]), "large": b"%.3f" % random.normal(0, 0.05)}
        for row in shop_rows(rows, seed)
    ]


@pytest.mark.parametrize(
    ("name", "variants", "values"),
    [
        *(("ftrl", *place) for place in ((1, "single"), (3, "single"), (3, "per_variant"))),
        pytest.param("fobos-global", 3, "per_variant", marks=pytest.mark.slow),
    ],
)
def test_a_learner_with_a_margin_equals_its_textbook_with_an_offset(name, variants, values):
    assert_same(margin_spec(LEARNERS[name], variants, values), margin_rows(300, 1))


@pytest.mark.parametrize("values", slow_except(["single"], ["single", "per_variant"]))
def test_adpredictor_adds_the_margin_to_the_mean_of_the_score(values):
    """The dense oracle has no margins: a certain weight of the margin's size is one, and changes nothing else."""
    section = {"algorithm": "adpredictor", "alpha": 0.1, "prior_ctr": 0.2}
    rows = margin_rows(200, 2)
    plain = [row | {"before": b"", "large": b""} for row in rows]
    scores, weights = by_kernel(margin_spec(section, 3, values), rows)
    without, _ = by_kernel(margin_spec(section, 3, values), plain)
    first = (float(rows[0]["before"] or 0) * np.float64(np.float32(0.7)), float(rows[0]["large"]) * -12.5)
    model = model_of(margin_spec(section, 3, values), list(rows[0]))
    features = model.maker.make(batch_of(rows[:1])).hashed
    for variant, expected in enumerate((sum(first), first[1], sum(first))):
        used = model.maker.rules.masks[features.features] >> variant & 1
        given = model.coordinates.margin.given[features.features]
        spread = 1.0 + 0.1 * float(((features.x**2) * used * ~given).sum())
        assert scores[0, variant] - without[0, variant] == pytest.approx(expected / np.sqrt(spread))
    assert not {b"before=", b"large="} & weights.keys()


BLOOM = {"inclusion": {"kind": "bloom", "count": 2}}
OWN = {"values": "per_variant"}


@pytest.mark.parametrize(
    ("section", "variants"),
    [
        (FTRL, 3),
        (FTRL | OWN, 3),
        (FTRL | {"hash_bits": 20}, 3),
        (FTRL | {"hash_bits": 20} | OWN, 3),
        (FTRL | {"ttl": 50}, 3),
        (FTRL | BLOOM, 1),
        ({"algorithm": "adpredictor"}, 3),
        pytest.param(FTRL | BLOOM | OWN, 3, marks=pytest.mark.slow),
        pytest.param({"algorithm": "adpredictor"} | OWN, 3, marks=pytest.mark.slow),
    ],
)
def test_the_published_model_has_the_margin_as_a_key_and_scores_as_the_trainer(section, variants):
    model = learned(
        margin_spec(section, variants, section.get("values", "single")),
        margin_rows(4200 if "ttl" in section else 300, 3),
    )
    artefact = model.artefact()
    assert not {b"before=", b"large="} & weights_of(model).keys()
    users = (0b101, 0b111) if variants == 3 else (1, 1)
    for key, expected, mask in zip((b"before=", b"large="), np.float32([0.7, -12.5]), users, strict=True):
        row = artefact.key_list().index(key)
        assert artefact.variants[row] == mask and not artefact.rate[row].any()
        for bit in range(variants):
            assert artefact.weights_of(bit)[row] == (expected if mask >> bit & 1 else 0.0)
    maker = ExampleMaker(artefact.spec)
    later = maker.make(batch_of(margin_rows(50, 4)))
    predicted = model.coordinates.predicted(50)
    scores = Scorer(artefact).score(maker, later)
    model.coordinates.learn(later.hashed, 0, 1, predicted)
    np.testing.assert_allclose(scores.latent[0], predicted.scores[0, :variants], rtol=1e-5, atol=1e-6)


def test_a_model_of_16_bits_takes_exact_weights():
    exact = GIVEN.replace("0.7", "1.0").replace("-12.5", "-0.5")
    artefact = learned(margin_spec(FTRL_OWN_COARSE, 3, "per_variant", exact), margin_rows(300, 5)).artefact()
    assert artefact.is_compact
    assert artefact.weight[artefact.key_list().index(b"before=")].max() == 1.0


def test_margins_survive_a_resume_and_deltas_and_are_not_taken_over():
    spec, rows = margin_spec(FTRL, 3, "per_variant"), margin_rows(300, 6)
    whole, first = learned(spec, rows, 50).artefact(), learned(spec, rows[:150], 50)
    second, third = (model_of(spec, list(rows[0])) for _ in range(2))
    second.restore({name: array.copy() for name, array in first.state().items()})
    chain = DeltaChain(second, second.artefact(), 1)
    learn(second, rows[150:], 50)
    assert second.artefact().to_bytes() == whole.to_bytes()
    assert chain.change(last=True).delta.content == str(whole.rows_content())
    third.warm_start(whole)
    assert not {b"before=", b"large="} & weights_of(third).keys()
    assert third.artefact().key_list() == whole.key_list()


def test_regret_is_refused_for_a_margin():
    model = model_of(margin_spec(FTRL), list(margin_rows(1, 1)[0]))
    with pytest.raises(InputError, match=r"fields\.before has a fixed_weight"):
        RegretRecorder(model.spec, model.maker.rules.masks)
