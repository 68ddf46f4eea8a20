"""Calibrated answers: ctr = tau(sigmoid(score)) by the request's own curve; score and order as without one."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from model_store.artefact.calibration import Calibration, Curve, IsotonicCurve, PowerCurve, VariantCurves
from server.model.catalogue import Catalogue
from server.model.model import Model
from server.ranking.query import Ranking
from server.ranking.ranker import Ranker
from tests.server import shop

POWERS = Calibration(
    "power",
    "hour",
    {"base": VariantCurves(PowerCurve(0.5, 1.25), {b"8": PowerCurve(1.5, 2.0)}), "plain": VariantCurves()},
)
LINES = Calibration("isotonic", None, {"base": VariantCurves(IsotonicCurve(((0.2, 0.1), (0.6, 0.5))))})
MORNING, EVENING = ({"age": "20", "hour": hour} for hour in shop.HOURS)


def ranked(
    calibration: Calibration | None, fields: dict[str, str], variant: int = 0, top_k: int = 8
) -> Ranking:
    model = Model.build(replace(shop.artefact(), calibration=calibration), version=1)
    ranker = Ranker(model, Catalogue.build(model.plan, shop.ITEMS.items()))
    return ranker.rank(ranker.query(fields, list(shop.ITEMS), variant=variant, top_k=top_k))


@pytest.mark.parametrize(
    ("calibration", "fields", "curve"),
    [
        (POWERS, MORNING, POWERS.variants["base"].values[b"8"]),
        (POWERS, EVENING, POWERS.variants["base"].whole),
        (POWERS, {"age": "20"}, POWERS.variants["base"].whole),
        (LINES, EVENING, LINES.variants["base"].whole),
    ],
)
def test_ctr_goes_through_the_curve_of_the_request_and_score_and_order_stay(
    calibration: Calibration, fields: dict[str, str], curve: Curve
) -> None:
    plain, calibrated = ranked(None, fields), ranked(calibration, fields)
    assert calibrated.ids == plain.ids
    assert calibrated.score == plain.score
    sigmoid = np.array([1 / (1 + math.exp(-score)) for score in plain.score])
    assert calibrated.ctr == pytest.approx(curve.apply(sigmoid).tolist(), rel=1e-12)
    assert calibrated.ctr == sorted(calibrated.ctr, reverse=True)


def test_a_variant_without_a_curve_answers_as_it_predicts() -> None:
    calibrated, plain = ranked(POWERS, MORNING, variant=1), ranked(None, MORNING, variant=1)
    assert (calibrated.ids, calibrated.ctr, calibrated.score) == (plain.ids, plain.ctr, plain.score)


def test_a_curve_that_makes_two_predictions_one_leaves_their_order() -> None:
    steep = Calibration("power", None, {"base": VariantCurves(PowerCurve(1e9, 1.0))})
    plain, calibrated = ranked(None, MORNING), ranked(steep, MORNING)
    assert len(set(calibrated.ctr)) == 1
    assert calibrated.ids == plain.ids
