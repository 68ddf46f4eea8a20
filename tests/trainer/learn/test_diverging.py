"""Learners driven beyond all measure: what they publish is finite, or an error says what to do."""

from __future__ import annotations

import numpy as np
import pytest

from model_store.errors import FtrieError
from model_store.spec.spec import parse_spec
from tests.worlds import learn, model_of
from trainer.learn.model import LearningModel

SPEC = """
[model]
name = "m"
[input]
label = "click"
weight = "importance"
[fields]
p = { kind = "number" }
VARIANTS[learner]
"""
# At a global rate, test_learners.py compiles the loop for values of each variant, else that of one variant.
EACH = "[variants]\nbase = { share = 0.5 }\nplain = { share = 0.5 }\n"


def learned(learner: str, importance: bytes, x: bytes, variants: str = "") -> LearningModel:
    """A model of 20 rows that all have this importance and x."""
    log = [{"click": b"%d" % (row % 3 == 0), "importance": importance, "p": x} for row in range(20)]
    model = model_of(parse_spec(SPEC.replace("VARIANTS", variants) + learner), list(log[0]))
    learn(model, log)
    return model


def test_a_weight_beyond_a_float32_is_an_error_that_names_the_key_and_a_remedy():
    model = learned('algorithm = "fobos"\nrate = "global"\nalpha = 1000', b"1e24", b"1e24")
    with pytest.raises(FtrieError, match=r"diverges: key b'p=' has the weight .*; lower learner.alpha"):
        model.artefact()


@pytest.mark.slow
@pytest.mark.parametrize(
    "learner",
    [
        "alpha = 1e12\nbeta = 0\nl2 = 1e-12\nl1 = 0",
        "alpha = 1e-12\nbeta = 1e12\nl2 = 1e24\nl1 = 1e24",
        'algorithm = "fobos"\nrate = "global"\nalpha = 1e12\nl2 = 1e24\nl1 = 1e24',
        'algorithm = "fobos"\nalpha = 1e12\nbeta = 1e-12\nl2 = 1e24\nl1 = 1e24',
        'algorithm = "rda"\nrate = "gradients"\nalpha = 1e12\nbeta = 1e-12',
        'algorithm = "ogd"\nalpha = 1e12\nbeta = 1e-12\nl1 = 1e24\nl2 = 9e-25',
        'algorithm = "ogd"\nrate = "global"\nalpha = 1e12\nl2 = 9e-13',
        'algorithm = "truncated_gradient"\nl1 = 1e24\ntheta = inf\nshrink = "fixed"',
        'algorithm = "truncated_gradient"\nrate = "global"\nalpha = 1e12\nl1 = 1e24\ntheta = inf\nk = 1000000000000000',
        'algorithm = "adpredictor"\nalpha = 1e12\nbeta = 1e-12\nforgetting = 0.5',
        'algorithm = "adpredictor"\nalpha = 1e-12\nbeta = 1e12\nprior_ctr = 1e-300',
    ],
)
@pytest.mark.parametrize(("importance", "x"), [(b"1e24", b"1e24"), (b"1e-300", b"1e-300"), (b"0", b"-1e24")])
def test_no_figure_of_the_farthest_parameters_is_nan_or_infinite(learner, importance, x):
    more = ('values = "per_variant"', EACH) if "global" in learner else ("", "")
    model = learned(f"{learner}\n{more[0]}", importance, x, more[1])
    model.metrics.total()  # refuses what is not finite
    keys = model.table.keys()
    assert np.isfinite(model.coordinates.weights(keys)).all()
    if (np.abs(model.coordinates.weights(keys)) <= np.finfo(np.float32).max).all():
        artefact = model.artefact()
        assert np.isfinite(artefact.weight).all() and np.isfinite(artefact.rate).all()
