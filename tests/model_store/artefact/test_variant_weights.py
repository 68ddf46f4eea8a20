"""Artefacts whose variants have a weight of a key each: read back bit for bit or refused; and one variant alone."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from model_store.artefact import json_model
from model_store.artefact.artefact import Artefact, JsonSource
from model_store.artefact.calibration import Calibration, PowerCurve, VariantCurves
from model_store.artefact.inspection import one_variant
from model_store.artefact.json_model import JsonModel
from model_store.errors import ArtefactError, SpecError
from model_store.spec.spec import parse_spec
from tests.model_store.models import KEYS, OWN, OWN_NAMES, OWN_SPEC, SPEC, SPEC_TEXT, model, own_model


def read_back(artefact: Artefact) -> None:
    assert Artefact.from_bytes(artefact.to_bytes()).to_bytes() == artefact.to_bytes()


def test_any_arrow_library_reads_the_weights_as_lists_in_16_bits_too() -> None:
    table = pa.ipc.open_file(own_model().to_bytes()).read_all()
    rows = dict(zip(table["key"].to_pylist(), table["weight"].to_pylist(), strict=True))
    assert rows == dict(zip(KEYS, OWN.tolist(), strict=True))
    learner = '[learner]\nvalues = "per_variant"\nprecision = "q2.13"\n'
    compact = parse_spec(f"{SPEC_TEXT}lean = {{ share = 0.0 }}\n{learner}")
    artefact = own_model(weight=OWN.clip(-1, 1), spec=compact)
    assert artefact.is_compact
    table = pa.ipc.open_file(artefact.to_bytes()).read_all()
    assert str(table["weight"].type) == "fixed_size_list<item: int16 not null>[3]"
    read_back(artefact)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"weight": OWN[:, :2]}, r"column 'weight' has the shape \(5, 2\); the spec has 3 variants"),
        ({"weight": OWN[:, 0]}, r"column 'weight' has the shape \(5,\).* expected \(5, 3\)"),
        ({"rate": np.ones(5, np.float32)}, r"column 'rate' has the shape \(5,\)"),
        ({"rate": np.ones((5, 4), np.float32)}, r"column 'rate' has the shape \(5, 4\)"),
        ({"spec": SPEC}, r'learner.values = "single": expected \(5,\)'),
        ({"variants": np.full(5, 7)[:4]}, "5 weights, but 4 values in column 'variants'"),
        ({"variants": np.full(5, 8)}, "beyond the 3 of the spec"),
        ({"variants": np.full((5, 3), 1)}, r"column 'variants' has the shape \(5, 3\)"),
        ({"variants": np.full(5, 3)}, r"weight 0\.25 for variant 'lean', which does not use it; expected 0"),
    ],
)
def test_columns_that_do_not_fit_the_spec_are_refused(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ArtefactError, match=complaint):
        own_model(**{"variants": np.full(5, 7), **change})


def test_a_number_that_is_not_finite_is_refused_in_every_variant_s_column() -> None:
    for column, variant, number in product(("weight", "rate"), range(3), (math.nan, math.inf)):
        numbers = OWN.copy()
        numbers[3, variant] = number
        with pytest.raises(ArtefactError, match=f"'{OWN_NAMES[variant]}'; expected finite numbers"):
            own_model(variants=np.full(5, 7), **{column: numbers})


def test_a_file_of_another_format_and_null_lists_are_refused() -> None:
    with pytest.raises(ArtefactError, match=r"metadata is damaged \(format 1, missing \[\]\)"):
        Artefact.from_bytes(rewritten(own_model(), {b"ftrie.format": b"1"}))
    kind = pa.ipc.open_file(own_model().to_bytes()).schema.field("weight").type
    holes = pa.array([None, *OWN.tolist()[1:]], kind)
    with pytest.raises(ArtefactError, match="column 'weight' has 1 nulls"):
        Artefact.from_bytes(rewritten(own_model(), {}, weight=holes))


def rewritten(artefact: Artefact, metadata: dict[bytes, bytes], **columns: pa.Array) -> bytes:
    """The artefact's file with other metadata and columns, its digest left as it was."""
    table = pa.ipc.open_file(artefact.to_bytes()).read_all()
    arrays = {name: columns.get(name, table[name].combine_chunks()) for name in table.schema.names}
    schema = table.schema.with_metadata(table.schema.metadata | metadata)
    out = io.BytesIO()
    with pa.ipc.new_file(out, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(list(arrays.values()), schema=schema))
    return out.getvalue()


def test_one_variant_keeps_what_it_weighs_and_learns_by_its_own_parameters() -> None:
    curves = {name: VariantCurves(PowerCurve(gamma, 1.0)) for name, gamma in [("base", 0.5), ("lean", 0.25)]}
    artefact = own_model(calibration=Calibration("power", None, curves))
    lean = one_variant(artefact, "lean")
    expected = {key: row[2] for key, row in zip(KEYS, OWN.tolist(), strict=True) if row[2]}
    assert dict(zip(lean.key_list(), lean.weight.tolist(), strict=True)) == expected
    assert lean.variants.tolist() == [1] * len(expected)
    assert lean.rate.tolist() == [np.float32(0.1)] * len(expected)
    assert list(lean.spec.variants) == ["lean"]
    assert lean.spec.variants["lean"].share == 1.0
    learner = lean.spec.learner
    assert (learner.values, learner.alpha, learner.l1, learner.beta) == ("single", 0.5, 3.0, 1.0)
    assert lean.metrics == {"lean": {"logloss": 0.2}}
    assert lean.calibration is not None and lean.calibration.variants == {"lean": curves["lean"]}
    read_back(artefact)
    read_back(lean)


def test_one_variant_of_adpredictor_keeps_a_mean_of_0_and_one_of_shared_weights_the_keys_it_uses() -> None:
    text = SPEC_TEXT + '[learner]\nalgorithm = "adpredictor"\nvalues = "per_variant"\n'
    weight = np.array([[0.5, 0.0], [0.0, 0.25]], np.float32)
    artefact = replace(
        model([b"a", b"b"], variants=np.full(2, 3, np.uint32)),
        spec=parse_spec(text),
        weight=weight,
        rate=np.full((2, 2), 0.02, np.float32),
    )
    plain = one_variant(artefact, "plain")
    assert dict(zip(plain.key_list(), plain.weight.tolist(), strict=True)) == {b"a": 0.0, b"b": 0.25}
    plain = one_variant(model(variants=np.array([3, 2, 1, 3, 1], np.uint32)), "plain")
    assert sorted(plain.key_list()) == sorted([KEYS[0], KEYS[1], KEYS[3]])
    assert plain.spec.variants["plain"].without == ("age*brand",)


def test_a_json_model_serves_every_variant_by_its_one_weight_also_under_such_a_spec() -> None:
    imported = json_model.to_artefact(JsonModel("ps", [b"age=25"], ['"0"'], [0.5]), OWN_SPEC)
    assert not imported.per_variant
    assert [imported.weights_of(bit).tolist() for bit in range(3)] == [[0.5]] * 3
    assert isinstance(one_variant(imported, "lean").source, JsonSource)
    with pytest.raises(ArtefactError, match=r"expected \(1, 3\)"):
        Artefact.from_bytes(replace(imported, source=None).to_bytes())


def test_the_json_form_of_own_weights_asks_for_a_variant() -> None:
    with pytest.raises(SpecError, match=r"one value per key: choose one with --variant base\|plain\|lean"):
        json_model.render(own_model())
    read = json_model.parse(json_model.render(one_variant(own_model(), "plain")))
    assert dict(zip(read.keys, read.values, strict=True)) == {KEYS[2]: 2.0, KEYS[3]: 4.0}
