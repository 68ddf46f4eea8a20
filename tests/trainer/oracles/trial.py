"""A trial: the same rows through a kernel and its oracle, and what each says of scores and final weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.features.features import FeaturePlan
from model_store.spec.learner_section import LearnerSection
from model_store.spec.spec import ModelSpec
from tests.trainer.oracles import learner_of
from tests.trainer.oracles.adpredictor import AdPredictorOracle, Prior
from tests.trainer.oracles.dense import Learner, Oracle, Parameters
from tests.worlds import learn, model_of
from trainer.learn.model import LearningModel
from trainer.learn.predictions_kernels import Predictions

Rows = Sequence[Mapping[str, bytes]]
Key = tuple[bytes, float, int]
Weights = dict[bytes, tuple[float, ...]]


class Recorder:
    """Replaces the metrics of a model, and keeps every row's scores."""

    def __init__(self, variants: int) -> None:
        self._variants = variants
        self._parts: list[npt.NDArray[np.float64]] = []

    def update(self, predictions: Predictions, *_: Any) -> None:
        self._parts.append(predictions.scores[:, : self._variants].copy())

    @property
    def scores(self) -> npt.NDArray[np.float64]:
        """All scores so far: float64[rows, variants]."""
        return np.concatenate(self._parts)


def by_kernel(spec: ModelSpec, rows: Rows, size: int = 97) -> tuple[npt.NDArray[np.float64], Weights]:
    """Learn rows in batches of `size`; return the scores and every key's weight in each variant that uses it."""
    model = model_of(spec, list(rows[0]))
    recorder = Recorder(len(model.maker.plan.variants))
    model.metrics = recorder  # type: ignore[assignment]
    if spec.join.late == "weigh":
        model.correct_fake_negatives()
    learn(model, rows, size)
    return recorder.scores, weights_of(model)


def by_textbook(
    spec: ModelSpec,
    rows: Rows,
    printed: Learner | None = None,
    placed: Callable[[list[Key]], list[Key]] = list,
    **of: Any,
) -> tuple[npt.NDArray[np.float64], Weights, Any]:
    """The same by an oracle, in plain Python; scores as `Predicted` has them.

    printed: replaces the spec's learner; placed: what takes the place of a row's keys.
    """
    plan, learner = FeaturePlan.of(spec.resolve(list(rows[0]))), spec.learner
    oracle: Oracle | AdPredictorOracle
    if learner.algorithm == "adpredictor":
        oracle = AdPredictorOracle(priors_of(spec, plan), learner.forgetting, learner.values == "per_variant")
    else:
        oracle = Oracle(
            printed or learner_of(learner.algorithm, learner.rate),
            [parameters_of(learner, variant.own_parameters) for variant in spec.variants.values()],
            learner.rate,
            per_variant=learner.values == "per_variant",
            rules={
                prefix.encode(): rule.model_dump(exclude={"inclusion"}, exclude_none=True)
                for prefix, rule in spec.rules.items()
            },
            fixed={
                field.prefix: float(np.float32(field.spec.fixed_weight))
                for field in plan.fields
                if field.spec.fixed_weight is not None
            },
            averages={
                number: (list(spec.variants).index(variant.average), variant.half_life)
                for number, variant in enumerate(spec.variants.values())
                if variant.average is not None
            },
            fake_negatives=spec.join.late == "weigh",
            **of,
        )
    scores = []
    for row in rows:
        label = 1.0 if row["click"] in (b"1", b"true") else 0.0
        keys = [key for key in plan.keys(row) if key[2]]
        omega = float(row.get("importance", b"1"))
        of = oracle if omega else copy.deepcopy(oracle)  # a row of weight 0 is predicted alone
        scores.append(of.learn(placed(keys), label, omega or 1.0))
    weights = {
        key: tuple(oracle.weight(key, variant) for variant in known.users)
        for key, known in oracle.coordinates.items()
    }
    return np.array(scores), weights, oracle


def priors_of(spec: ModelSpec, plan: FeaturePlan) -> list[Prior]:
    """Each variant's prior; that of its bias gives an example with every field and cross the rate prior_ctr."""
    learner, priors = spec.learner, []
    for bit, variant in enumerate(spec.variants.values()):
        alpha, beta = (variant.own_parameters.get(name, getattr(learner, name)) for name in ("alpha", "beta"))
        keys = 1 + sum(each.mask >> bit & 1 for each in (*plan.fields, *plan.crosses))
        bias = NormalDist().inv_cdf(learner.prior_ctr) * math.sqrt(beta**2 + keys * alpha)
        priors.append(Prior(alpha, beta, bias))
    return priors


def parameters_of(learner: LearnerSection, own: Mapping[str, float]) -> Parameters:
    """The spec's parameters, those of the variant before those of the learner."""
    theta = learner.theta if learner.theta is not None else 0.0
    every = {name: getattr(learner, name) for name in ("alpha", "beta", "l1", "l2", "k", "shrink")}
    return Parameters(**(every | {"theta": theta} | dict(own)))


def weights_of(model: LearningModel) -> Weights:
    """Every key's weight in each variant that uses it, at the end."""
    keys = model.table.keys()
    data, weights = keys.data.tobytes(), model.coordinates.weights(keys)
    found = {}
    for index, mask in enumerate(model.coordinates.masks_of(keys).tolist()):
        users = [variant for variant in range(len(model.spec.variants)) if mask >> variant & 1]
        key = data[keys.offsets[index] : keys.offsets[index + 1]]
        found[key] = tuple(float(weights[index, variant if weights.shape[1] > 1 else 0]) for variant in users)
    return found
