"""q2.13 in the artefact: half the bytes, the same weights, and what does not fit stays whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from model_store.artefact import json_model, rows
from model_store.artefact.artefact import Artefact
from model_store.store import Store
from tests.model_store.models import KEYS, SPEC, model

LEARNER = SPEC.learner.model_copy(update={"precision": "q2.13"})
COMPACT = SPEC.model_copy(update={"learner": LEARNER})
WEIGHTS = [0.5, -4.0, 4.0 - 2**-13, 2**-13, -1.25]


def weight_type(artefact: Artefact) -> pa.DataType:
    return pa.ipc.open_file(artefact.to_bytes()).schema.field("weight").type


def test_a_model_of_q2_13_is_published_in_16_bits_if_they_fit_and_read_as_float32(store: Store) -> None:
    artefact, others = model(KEYS, WEIGHTS, spec=COMPACT), [0.1, 1, 2, 3, 3.5]
    assert weight_type(artefact) == pa.int16()
    for each in (artefact, model(KEYS, WEIGHTS), model(KEYS, others, spec=COMPACT)):
        assert (weight_type(each) == pa.float32()) == (each is not artefact)
        back = Artefact.from_bytes(each.to_bytes())
        assert (back.weight.dtype, back.weight.tolist()) == (np.float32, each.weight.tolist())
        assert back.to_bytes() == each.to_bytes()
    versions = store.model("ads")
    fetched = versions.materialise(versions.publish_and_activate(artefact))
    assert fetched.weight.tolist() == artefact.weight.tolist()
    assert json_model.render(fetched) == json_model.render(model(KEYS, WEIGHTS))
    # A cached form is not carried into a changed model.
    assert artefact.is_compact
    assert not replace(artefact, weight=np.full(5, 0.1, np.float32)).is_compact


@given(st.lists(st.floats(-6, 6, width=32), max_size=20))
def test_the_nearest_step_is_within_half_a_step_or_at_the_end_of_the_range(weights: list[float]) -> None:
    given_weights = np.array(weights, np.float32)
    near = rows.nearest_q213(given_weights)
    assert rows.fits_q213(near)
    inside = np.clip(given_weights, rows.Q213_SMALLEST, rows.Q213_LARGEST)
    assert (np.abs(near - inside) <= rows.Q213_STEP / 2).all()
    assert rows.from_q213(rows.to_q213(near)).tolist() == near.tolist()
    halves = np.array([0.5, 1.5, -2.5], np.float32) * np.float32(rows.Q213_STEP)  # to the even step
    assert (rows.nearest_q213(halves) / rows.Q213_STEP).tolist() == [0.0, 2.0, -2.0]
