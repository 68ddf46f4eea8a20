"""Calibrated answers: ctr = tau(sigmoid(score)) by the request's own curve; score and order as without one."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from model_store.artefact.calibration import (
    Calibration,
    Curve,
    IsotonicCurve,
    PowerCurve,
    VariantCurves,
)
from server.ranking.query import Ranking
from tests.server import shop
from tests.server.ranked import ranked, ranker_of

HALF, MORNINGS = PowerCurve(0.5, 1.25), PowerCurve(1.5, 2.0)
STEPS = IsotonicCurve(((0.2, 0.1), (0.6, 0.5)))
POWERS = Calibration(
    "power", "hour", {"base": VariantCurves(HALF, {b"8": MORNINGS}), "plain": VariantCurves()}
)
LINES = Calibration("isotonic", None, {"base": VariantCurves(STEPS)})
MORNING, EVENING = ({"age": "20", "hour": hour} for hour in shop.HOURS)


def answered(calibration: Calibration | None, fields: dict[str, str], variant: int = 0) -> Ranking:
    ranker = ranker_of(replace(shop.artefact(), calibration=calibration), shop.ITEMS.items())
    return ranked(ranker, fields, list(shop.ITEMS), variant=variant, top_k=8)


@pytest.mark.parametrize(
    ("calibration", "fields", "curve"),
    [
        (POWERS, MORNING, MORNINGS),
        (POWERS, EVENING, HALF),
        (POWERS, {"age": "20"}, HALF),
        (LINES, EVENING, STEPS),
    ],
)
def test_ctr_goes_through_the_curve_of_the_request_and_score_and_order_stay(
    calibration: Calibration, fields: dict[str, str], curve: Curve
) -> None:
    plain, calibrated = answered(None, fields), answered(calibration, fields)
    assert (calibrated.ids, calibrated.score) == (plain.ids, plain.score)
    sigmoid = np.array([1 / (1 + math.exp(-score)) for score in plain.score])
    assert calibrated.ctr == pytest.approx(curve.apply(sigmoid).tolist(), rel=1e-12)
    assert calibrated.ctr == sorted(calibrated.ctr, reverse=True)


def test_a_variant_without_a_curve_answers_as_it_predicts() -> None:
    calibrated, plain = answered(POWERS, MORNING, variant=1), answered(None, MORNING, variant=1)
    assert (calibrated.ids, calibrated.ctr, calibrated.score) == (plain.ids, plain.ctr, plain.score)


def test_a_curve_that_makes_two_predictions_one_leaves_their_order() -> None:
    steep = Calibration("power", None, {"base": VariantCurves(PowerCurve(1e9, 1.0))})
    plain, calibrated = answered(None, MORNING), answered(steep, MORNING)
    assert len(set(calibrated.ctr)) == 1
    assert calibrated.ids == plain.ids
