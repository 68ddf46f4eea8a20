"""Deltas: what they make of a model is, bit for bit, the model they were made for."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.artefact import json_model
from model_store.artefact.arrow_format import weight_type
from model_store.artefact.artefact import Artefact, Delta
from model_store.artefact.calibration import Calibration, PowerCurve, VariantCurves
from model_store.errors import ArtefactError
from model_store.spec.spec import ModelSpec, parse_spec
from tests.model_store.models import KEYS, OWN_SPEC, SPEC, SPEC_TEXT, large_model, model, own_model

COMPACT = parse_spec(SPEC_TEXT + '[learner]\nalgorithm = "ftrl"\nprecision = "q2.13"\n')
SPECS = {"single": SPEC, "per_variant": OWN_SPEC, "q2.13": COMPACT}

# Few keys, often prefixes of each other, so that what is drawn meets what was there.
KEY = st.text("a=*\0\xff", min_size=1, max_size=3).map(lambda text: text.encode("latin-1"))
FLOAT32 = st.floats(allow_nan=False, allow_infinity=False, width=32)
STEPS = st.integers(-(1 << 15), (1 << 15) - 1).map(lambda steps: steps / 8192)
Rows = dict[bytes, tuple[Any, int, Any]]


def row(kind: str) -> st.SearchStrategy[tuple[Any, int, Any]]:
    if kind == "per_variant":
        used = st.integers(1, 7)
        return st.tuples(st.tuples(*[FLOAT32] * 3), used, st.tuples(*[FLOAT32] * 3))
    return st.tuples(STEPS if kind == "q2.13" else FLOAT32, st.integers(1, 3), FLOAT32)


def artefact(rows: Rows, spec: ModelSpec, loss: float) -> Artefact:
    shape = (len(rows), len(spec.variants)) if spec.learner.values == "per_variant" else (len(rows),)
    weight = np.array([each[0] for each in rows.values()], np.float32).reshape(shape)
    variants = np.array([each[1] for each in rows.values()], np.uint32)
    if weight.ndim == 2:
        weight[variants[:, None] >> np.arange(shape[1]) & 1 == 0] = 0
    rate = np.array([each[2] for each in rows.values()], np.float32).reshape(shape)
    metrics = {"base": {"logloss": loss}}
    return model(list(rows), weight=weight, variants=variants, rate=rate, spec=spec, metrics=metrics)


@st.composite
def histories(draw: st.DrawFn, kind: str) -> list[Artefact]:
    """Models one after the other: keys come, go, change in one number or in all."""
    rows: Rows = draw(st.dictionaries(KEY, row(kind), max_size=12))
    made = [artefact(rows, SPECS[kind], 0.0)]
    for step in range(draw(st.integers(1, 4))):
        gone = draw(st.lists(st.sampled_from(sorted(rows)), max_size=4)) if rows else []
        come: Rows = draw(st.dictionaries(KEY, row(kind), max_size=4))
        rated = draw(st.lists(st.sampled_from(sorted(rows)), max_size=2)) if rows else []
        rows = {key: value for key, value in rows.items() if key not in gone} | come
        rows |= {key: (*rows[key][:2], draw(row(kind))[2]) for key in rated if key in rows}
        made.append(artefact(rows, SPECS[kind], step + 1.0))
    return made


def taken_out(before: Artefact, delta: Delta) -> Artefact:
    """The rows of a model that a delta changes."""
    touched = set(delta.key_list())
    old = [row for row, key in enumerate(before.key_list()) if key in touched]
    columns = {name: getattr(before, name)[old] for name in ("weight", "variants", "rate")}
    return model([before.key(row) for row in old], spec=before.spec, **columns)


@pytest.mark.parametrize("kind", SPECS)
@given(data=st.data())
def test_deltas_applied_one_by_one_or_joined_are_the_snapshots_to_the_bit(kind: str, data: Any) -> None:
    history = data.draw(histories(kind))
    served, joined = history[0], None
    for number, (before, after) in enumerate(pairwise(history), 1):
        delta = Delta.from_bytes(after.changes_since(before, version=number).to_bytes())
        assert (delta.parent, delta.parent_content, delta.content) == (number, before.content, after.content)
        gone = taken_out(before, delta).rows_content()
        assert str(before.rows_content() - gone + delta.rows_content()) == after.content
        served, joined = served.with_changes(delta), joined.followed_by(delta) if joined else delta
        assert served.to_bytes() == after.to_bytes()
    assert joined is not None
    assert history[0].with_changes(joined).to_bytes() == history[-1].to_bytes()


@given(data=st.data(), threshold=st.floats(0.001, 3.0))
def test_a_threshold_holds_back_small_moves_and_no_others(data: st.DataObject, threshold: float) -> None:
    before, after, *_ = data.draw(histories("single"))
    made = before.with_changes(after.changes_since(before, threshold))
    three = (before, after, made)
    old, new, now = (dict(zip(each.key_list(), each.weight.tolist(), strict=True)) for each in three)
    masks = [dict(zip(each.key_list(), each.variants.tolist(), strict=True)) for each in (before, after)]
    for key in {*old, *new}:
        moved = abs(new.get(key, 0.0) - old.get(key, 0.0)) > threshold
        moved |= key in old and key in new and masks[0][key] != masks[1][key]
        assert now.get(key) == (new if moved else old).get(key), key
    assert made.metrics == after.metrics


def test_moves_held_back_go_out_with_what_they_have_added_up_to() -> None:
    """Small steps against what was published, not against the model before: no drift is lost."""
    published, sent = model([b"age=25"], [0.0]), []
    for step in range(1, 11):
        delta = model([b"age=25"], [step * 0.125]).changes_since(published, threshold=0.3)
        published = published.with_changes(delta)
        sent.append(delta.weight.tolist())
    assert sent == [[], [], [0.375], [], [], [0.75], [], [], [1.125], []]


def test_a_small_change_of_a_large_model_is_a_small_file_and_none_an_empty_delta() -> None:
    delta = model().changes_since(model())
    assert (delta.rows, delta.content) == (0, model().content)
    assert model().with_changes(delta).to_bytes() == model().to_bytes()
    large = large_model(20_000)
    weight = large.weight.copy()
    weight[::1000] += 1
    delta = replace(large, weight=weight).changes_since(large)
    assert delta.rows == 20
    assert len(delta.to_bytes()) < len(large.to_bytes()) / 20


def test_calibration_and_16_bit_weights_come_with_a_delta_too() -> None:
    curve = Calibration("power", None, {"base": VariantCurves(PowerCurve(1.1, 0.9), {})})
    before, after = model(), replace(model(), calibration=curve)
    made = before.with_changes(after.changes_since(before)).to_bytes()
    assert made == after.to_bytes() != before.to_bytes()
    before, after = model(weights=[0.5] * 5, spec=COMPACT), model(weights=[0.5, 1, 2, 3, 3.5], spec=COMPACT)
    schema = pa.ipc.open_file(after.changes_since(before).to_bytes()).schema
    assert weight_type(schema) == (pa.int16(), None)


def test_a_delta_of_another_model_or_spec_or_of_a_wrong_result_is_refused() -> None:
    one, other, third = model(KEYS[:2]), model(KEYS[:3]), model(KEYS[:4])
    delta = third.changes_since(other)
    with pytest.raises(ArtefactError, match=r"a version in between is missing.*load the snapshot"):
        one.with_changes(delta)
    with pytest.raises(ArtefactError, match=r"a version in between is missing"):
        delta.followed_by(delta)
    wrong = replace(other.changes_since(one), content="0" * 32)
    says = f"should produce a model with content {'0' * 32} and produces {other.content}"
    with pytest.raises(ArtefactError, match=says):
        one.with_changes(wrong)
    with pytest.raises(ArtefactError, match="cannot change the spec; publish a snapshot"):
        own_model().changes_since(model())
    with pytest.raises(ArtefactError, match="another spec"):
        model().with_changes(own_model().changes_since(own_model()))


def test_what_has_no_deltas_or_is_none_is_refused() -> None:
    text = b'{"list": [{"fid": "0", "key": "age=25", "value": 0.5}], "type": "x"}'
    json_form = json_model.to_artefact(json_model.parse(text), SPEC)
    for pair in ((json_form, model()), (model(), json_form)):
        with pytest.raises(ArtefactError, match="JSON form cannot have deltas"):
            pair[0].changes_since(pair[1])
    # A key that no variant uses would be mistaken for one taken out.
    unused = model(KEYS, variants=np.array([1, 1, 0, 1, 1], np.uint32))
    with pytest.raises(ArtefactError, match=r"no variant uses key b'age=31'|no variant uses key b'age=25'"):
        unused.changes_since(model())
    delta = model(KEYS[:3]).changes_since(model())
    with pytest.raises(ArtefactError, match="got a delta"):
        Artefact.from_bytes(delta.to_bytes())
    with pytest.raises(ArtefactError, match="got a whole model; expected a delta"):
        Delta.from_bytes(model().to_bytes())


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"weight": np.ones(3, np.float32)}, "removes key .* expected 0"),
        ({"rate": np.ones(3, np.float32)}, "removes key .* expected 0"),
        ({"weight": np.array([np.nan, 0, 0], np.float32)}, "expected finite numbers"),
        ({"content": "x"}, "expected 32 hexadecimal digits"),
        ({"parent_content": ""}, "expected 32 hexadecimal digits"),
        ({"variants": np.full(3, 4, np.uint32)}, "beyond the 2 of the spec"),
    ],
)
def test_a_delta_that_breaks_an_invariant_is_refused_where_it_is_read(
    change: dict[str, Any], complaint: str
) -> None:
    out = model(KEYS[:2]).changes_since(model())
    assert out.rows == 3
    assert not out.variants.any()
    with pytest.raises(ArtefactError, match=complaint):
        Delta.from_bytes(replace(out, **change).to_bytes())
