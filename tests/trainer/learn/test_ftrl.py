"""The kernel against the oracle, and what must not change the result."""

from __future__ import annotations

import numpy as np
import pytest

from model_store.spec.learner_section import LearnerSection
from model_store.spec.spec import parse_spec
from tests.trainer.click_logs import batch_of, learn, model_of, shop_rows, shop_spec, state_of
from tests.trainer.learn.ftrl_oracle import FtrlOracle

TOLERANCE = 1e-12


def oracle_of(rows, model):
    f = model.spec.learner
    plan = model.maker.plan
    oracle = FtrlOracle(f.alpha, f.beta, f.l1, f.l2, len(plan.variants))
    scores = []
    for row in rows:
        label = 1.0 if row["click"] in (b"1", b"true") else 0.0
        keys = [key for key in plan.keys(row) if key[2]]
        scores.append(oracle.learn(keys, label, float(row["importance"])))
    return oracle, np.array(scores)


@pytest.mark.parametrize("variants", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_kernel_equals_the_textbook(variants, seed):
    rows = shop_rows(600, seed)
    model = learn(model_of(shop_spec(variants), list(rows[0])), rows, size=100)
    oracle, _ = oracle_of(rows, model)
    state = state_of(model)
    assert set(state) == set(oracle.z)
    for key, (z, n) in state.items():
        assert z == pytest.approx(oracle.z[key], rel=TOLERANCE, abs=TOLERANCE)
        assert n == pytest.approx(oracle.n[key], rel=TOLERANCE, abs=TOLERANCE)
    weights = model.coordinates.weights(model.table.keys())
    for weight, key in zip(weights[:, 0], state, strict=True):
        assert weight == pytest.approx(oracle.weight(key), rel=TOLERANCE, abs=TOLERANCE)


@pytest.mark.parametrize("variants", [1, 3])
def test_progressive_metrics_equal_the_textbook_scores(variants):
    rows = shop_rows(500, 9)
    model = learn(model_of(shop_spec(variants), list(rows[0])), rows)
    _, scores = oracle_of(rows, model)
    labels = np.array([row["click"] in (b"1", b"true") for row in rows], float)
    weights = np.array([float(row["importance"]) for row in rows])
    for index, metrics in enumerate(model.metrics.summary().values()):
        p = 1 / (1 + np.exp(-scores[:, index]))
        losses = -np.where(labels == 1, np.log(p), np.log1p(-p))
        assert metrics.logloss == pytest.approx(np.average(losses, weights=weights), rel=1e-9)
        assert metrics.calibration == pytest.approx((weights * p).sum() / (weights * labels).sum(), rel=1e-9)
        assert metrics.auc == pytest.approx(exact_auc(scores[:, index], labels, weights), abs=1e-3)
        rate = np.average(labels, weights=weights)
        entropy = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
        assert metrics.normalized_entropy == pytest.approx(metrics.logloss / entropy, rel=1e-9)


def exact_auc(scores, labels, weights):
    positive, negative = labels == 1, labels == 0
    wins = (scores[positive][:, None] > scores[negative]) + 0.5 * (
        scores[positive][:, None] == scores[negative]
    )
    pairs = weights[positive][:, None] * weights[negative]
    return (wins * pairs).sum() / pairs.sum()


def test_variants_alone_and_together_agree_where_they_use_the_same_keys():
    rows = shop_rows(300, 4)
    one = learn(model_of(shop_spec(1), list(rows[0])), rows)
    text = '[model]\nname = "shop"\n[input]\nlabel = "click"\nweight = "importance"\n[variants]\na = {}\nb = {}\n'
    alike = model_of(parse_spec(text), list(rows[0]))
    alone = model_of(parse_spec(text.replace("a = {}\nb = {}", "a = {}")), list(rows[0]))
    learn(alike, rows), learn(alone, rows)
    assert one.table.used > 0
    for key, (z, n) in state_of(alike).items():
        assert (z, n) == pytest.approx(state_of(alone)[key], rel=TOLERANCE)


@pytest.mark.parametrize("size", [1, 7, 64])
def test_batch_boundaries_change_nothing(size):
    rows = shop_rows(200, 6)
    whole = learn(model_of(shop_spec(), list(rows[0])), rows)
    parts = learn(model_of(shop_spec(), list(rows[0])), rows, size=size)
    assert parts.artefact().sha256 == whole.artefact().sha256


def test_growing_in_the_middle_of_a_batch_changes_nothing():
    rows = shop_rows(400, 7)
    small, large = (model_of(shop_spec(), list(rows[0])) for _ in range(2))
    from trainer.learn.table import ValueTable

    small.coordinates.table = ValueTable(capacity=64)
    learn(small, rows), learn(large, rows)
    small.table._check()
    assert small.table.slots.size < large.table.slots.size
    assert small.artefact().sha256 == large.artefact().sha256


def test_a_weight_inside_the_l1_ball_is_zero_and_is_not_published():
    rows = shop_rows(50, 8)
    text = shop_spec().model_copy(update={"learner": LearnerSection(l1=1000.0)})
    model = learn(model_of(text, list(rows[0])), rows)
    assert model.table.used > 0
    assert model.artefact().rows == 0


def test_missing_values_make_no_key():
    rows = [row | {"age": b"", "brand": b"", "tags": b""} for row in shop_rows(20, 1)]
    state = state_of(learn(model_of(shop_spec(), list(rows[0])), rows))
    assert not [key for key in state if key.startswith((b"age", b"brand", b"tags"))]


def test_bad_rows_are_left_out_and_named():
    rows = shop_rows(8, 2)
    rows[1] |= {"click": b"maybe"}
    rows[2] |= {"price": b"cheap"}
    rows[3] |= {"age": b"\xff"}
    rows[4] |= {"price": b"nan"}
    rows[5] |= {"brand": b"x" * 5000}
    rows[6] |= {"importance": b"-1"}
    model = model_of(shop_spec(), list(rows[0]))
    examples = model.maker.make(batch_of(rows))
    assert examples.rows.tolist() == [0, 7]
    reasons = {reject.line: reject.reason for reject in examples.rejects}
    assert reasons[3].startswith("click: got 'maybe', expected 1, 0, -1, true or false;")
    assert reasons[4] == "price: got 'cheap', expected a number"
    assert reasons[5].startswith("age: got bytes that are not UTF-8 (byte 0)")
    assert reasons[6].endswith("expected a finite number")
    assert reasons[7] == "brand: the key would be 5006 bytes long; the limit is 4096"
    assert reasons[8] == "importance: got -1, expected a weight >= 0"


def test_the_other_rate_form_is_the_same_learner():
    section = LearnerSection.model_validate({"rate_scale": 0.5, "rate_decay": 4.0})
    assert (section.alpha, section.beta) == (0.125, 0.25)
