"""Calibration: curves that rise, survive their JSON form, travel with the artefact, and are refused where unsound."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrie.cli import run
from model_store.artefact.artefact import Artefact
from model_store.artefact.calibration import (
    LARGEST_CTR,
    SMALLEST_CTR,
    Calibration,
    Curve,
    IsotonicCurve,
    PowerCurve,
    VariantCurves,
)
from model_store.errors import ArtefactError
from model_store.store import Store
from tests.model_store.models import model

GRID = np.concatenate([[0.0, 1e-300], np.linspace(1e-6, 1 - 1e-6, 1001), [1.0]])
POSITIVE = st.floats(0.01, 8.0)
POWER = st.builds(PowerCurve, POSITIVE, POSITIVE)
INSIDE = st.lists(st.floats(0.001, 0.999), min_size=12, max_size=12, unique=True).map(sorted)
ISOTONIC = st.builds(
    lambda p, ctr, size: IsotonicCurve(tuple(zip(p[:size], ctr[:size], strict=True))),
    INSIDE,
    INSIDE,
    st.integers(1, 12),
)


def of_one(kind: str, curve: Curve, **values: Curve) -> Calibration:
    by_value = {name.encode(): each for name, each in values.items()}
    return Calibration(kind, "age" if values else None, {"base": VariantCurves(curve, by_value)})  # type: ignore[arg-type]


@given(POWER | ISOTONIC)
def test_every_curve_rises_within_zero_and_one(curve: Curve) -> None:
    ctr = curve.apply(GRID)
    assert (np.diff(ctr) >= 0).all()
    assert SMALLEST_CTR <= ctr[0] < ctr[-1] <= LARGEST_CTR


def test_a_power_curve_is_gamma_p_to_the_kappa_and_an_isotonic_one_goes_straight_from_knot_to_knot() -> None:
    assert PowerCurve(1.5, 0.5).apply(np.array([0.04, 0.09])) == pytest.approx([0.3, 0.45])
    curve = IsotonicCurve(((0.2, 0.1), (0.6, 0.5)))
    assert curve.apply(np.array([0.1, 0.2, 0.4, 0.6, 0.8])) == pytest.approx([0.05, 0.1, 0.3, 0.5, 0.75])


@given(POWER, ISOTONIC, st.binary(max_size=5))
def test_curves_survive_their_json_form_exactly(power: Curve, isotonic: Curve, value: bytes) -> None:
    for kind, curve in (("power", power), ("isotonic", isotonic)):
        curves = {"base": VariantCurves(curve, {value: curve}), "plain": VariantCurves(None, {})}
        calibration = Calibration(kind, "age", curves)  # type: ignore[arg-type]
        assert Calibration.from_json(calibration.to_json()) == calibration


def test_the_value_of_the_slicing_field_chooses_the_curve_and_an_artefact_brings_its_calibration() -> None:
    whole, own = PowerCurve(1.0, 1.1), PowerCurve(2.0, 1.0)
    calibration = of_one("power", whole, **{"25": own})
    assert calibration.curve("base", b"25") == own
    assert calibration.curve("base", b"31") == calibration.curve("base") == whole
    assert calibration.curve("plain", b"25") is None
    calibration = of_one("isotonic", IsotonicCurve(((0.2, 0.1),)), **{"25": IsotonicCurve(((0.3, 0.2),))})
    artefact = replace(model(), calibration=calibration)
    assert Artefact.from_bytes(artefact.to_bytes()).calibration == calibration
    assert artefact.sha256 != model().sha256


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"kind": "cubic"}, "kind is 'cubic', expected one of power, isotonic"),
        ({"by": 3}, "by is 3"),
        ({"by": None}, "but no field"),
        ({"by": "brand"}, "'brand', which is not a request field"),
        ({"variants": {"other": {"whole": None, "values": {}}}}, r"\['other'\], which are not variants"),
        ({"variants": {"base": {"whole": [0.0, 1.0], "values": {}}}}, "expected two numbers > 0"),
        ({"variants": {"base": {"whole": [1.0], "values": {}}}}, "cannot be read"),
        ({"variants": {"base": {"values": {}}}}, "cannot be read: KeyError"),
        ({"variants": 7}, "cannot be read"),
        ({"kind": "isotonic"}, "cannot be read"),
    ],
)
def test_a_calibration_that_is_unsound_is_refused_with_its_artefact(
    change: dict[str, object], complaint: str
) -> None:
    sound = of_one("power", PowerCurve(1.5, 1.0), **{"25": PowerCurve(1.0, 1.25)})
    text = json.dumps(json.loads(sound.to_json()) | change)
    with pytest.raises(ArtefactError, match=complaint):
        Artefact.from_bytes(replace(model(), calibration=AsText(text)).to_bytes())  # type: ignore[arg-type]


@pytest.mark.parametrize("knots", [[], [[0.5, 0.5], [0.5, 0.6]], [[0.4, 0.6], [0.5, 0.6]], [[0.4, 1.0]]])
def test_knots_that_do_not_ascend_are_refused(knots: list[list[float]]) -> None:
    text = json.dumps({"kind": "isotonic", "by": None, "variants": {"base": {"whole": knots, "values": {}}}})
    with pytest.raises(ArtefactError, match="knots"):
        Calibration.from_json(text)


class AsText:
    """Stands for a calibration whose JSON form is this text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def to_json(self) -> str:
        return self._text


def test_a_store_gives_the_calibration_back_and_the_json_form_says_that_it_has_no_place_for_it(
    store: Store, store_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calibration, versions = of_one("power", PowerCurve(1.25, 0.875)), store.model("ads")
    version = versions.publish_and_activate(replace(model(), calibration=calibration))
    assert versions.materialise(version).calibration == calibration
    for file, said in ((tmp_path / "ads.json", True), (tmp_path / "ads.arrow", False)):
        assert run(["store", "export", "ads", str(file), "--store", store_url]) == 0
        assert ("no calibration" in capsys.readouterr().err) is said
