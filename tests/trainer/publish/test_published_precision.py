"""What a learning model publishes: q2.13 weights in 16 bits whatever the learner keeps; calibration that resumes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from model_store.artefact.artefact import Artefact
from model_store.artefact.rows import Q213_STEP
from model_store.spec.spec import parse_spec
from tests.trainer.click_logs import SPEC, learn, model_of, shop_rows, shop_spec

CALIBRATED = parse_spec(SPEC + '[calibration]\nkind = "isotonic"\nby = "age"\n')


@pytest.mark.slow
@pytest.mark.parametrize(
    ("learner", "values", "rate"),
    [
        ('algorithm = "ftrl"\nl1 = 0.05', "single", "gradients"),
        ('algorithm = "ogd"', "single", "counts"),
        ('algorithm = "ftrl"\nl1 = 0.05', "per_variant", "counts"),
    ],
)
def test_a_model_learned_in_16_bits_is_published_in_16_bits(learner: str, values: str, rate: str) -> None:
    head = SPEC[: SPEC.index("[learner]")]
    section = f'[learner]\n{learner}\nprecision = "q2.13"\nvalues = "{values}"\nrate = "{rate}"\n'
    rows = [row | {"size": b""} for row in shop_rows(600, seed=1)]
    artefact = learn(model_of(parse_spec(head + section), list(rows[0])), rows).artefact()
    kind = pa.ipc.open_file(artefact.to_bytes()).schema.field("weight").type
    assert (kind.value_type if values == "per_variant" else kind) == pa.int16()
    steps = artefact.weight / np.float32(Q213_STEP)
    assert (steps == np.rint(steps)).all()
    assert artefact.weight.reshape(artefact.rows, -1).any(axis=1).all()
    back = Artefact.from_bytes(artefact.to_bytes())
    assert back.weight.tobytes() == artefact.weight.tobytes()


def test_a_model_of_full_precision_is_published_as_ever() -> None:
    rows = shop_rows(100, seed=1)
    artefact = learn(model_of(shop_spec(), list(rows[0])), rows).artefact()
    assert pa.ipc.open_file(artefact.to_bytes()).schema.field("weight").type == pa.float32()


def test_a_calibrated_model_that_was_interrupted_publishes_the_same_bytes() -> None:
    rows = shop_rows(4_500, seed=2)
    whole = learn(model_of(CALIBRATED, list(rows[0])), rows, size=1_000)
    first = learn(model_of(CALIBRATED, list(rows[0])), rows[:2_300], size=700)
    second = model_of(CALIBRATED, list(rows[0]))
    second.restore(first.state())
    learn(second, rows[2_300:], size=1_100)
    assert second.artefact().to_bytes() == whole.artefact().to_bytes()
    assert second.calibrator.report() == whole.calibrator.report()
    assert whole.artefact().calibration.variants["lean"].values
