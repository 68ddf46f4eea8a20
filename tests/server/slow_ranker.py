"""The slow, obvious ranker: every key of every candidate from FeaturePlan.keys, looked up in a dict."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from model_store.artefact.artefact import Artefact
from model_store.features.features import FeaturePlan
from model_store.spec.spec import ModelSpec
from model_store.spec.values import Value

# key → its weight, or each variant's own, and the variants' bits
Weights = Mapping[bytes, tuple[float | tuple[float, ...], int]]


def artefact_of(spec: ModelSpec, weights: Weights) -> Artefact:
    keys = sorted(weights)
    return Artefact.from_columns(
        key_data=np.frombuffer(b"".join(keys), np.uint8),
        key_offsets=np.cumsum([0, *map(len, keys)], dtype=np.int64),
        weight=own_values(spec, [weights[key][0] for key in keys]),
        variants=np.array([weights[key][1] for key in keys], np.uint32),
        rate=np.ones_like(own_values(spec, [weights[key][0] for key in keys])),
        spec=spec,
        metrics={},
    )


def own_values(spec: ModelSpec, numbers: Sequence[float | tuple[float, ...]]) -> npt.NDArray[np.float32]:
    """The numbers as an artefact has them: [rows], or [rows, variants] for values = "per_variant"."""
    own = [len(spec.variants)] if spec.learner.values == "per_variant" else []
    return np.array(numbers, np.float32).reshape([len(numbers), *own])


def slow_score(spec: ModelSpec, weights: Weights, example: Mapping[str, Value], variant: int) -> float:
    total = 0.0
    for key, x, mask in FeaturePlan.of(spec).keys(example):
        weight, bits = weights.get(key, (0.0, 0))
        if (mask & bits) >> variant & 1:
            total += float(np.float32(weight[variant] if isinstance(weight, tuple) else weight)) * x
    return total


def slow_knows_user(spec: ModelSpec, weights: Weights, request: Mapping[str, Value], variant: int) -> bool:
    """Whether a model knows a user, as docs/metrics.md defines it."""
    plan = FeaturePlan.of(spec)
    tokens = {field.name: field.tokens(request.get(field.name)) for field in plan.request_fields}
    terms = [((field,), field.prefix, field.mask) for field in plan.fields if field.spec.main]
    terms += [(cross.fields, cross.prefix, cross.mask) for cross in plan.crosses]
    for fields, prefix, mask in terms:
        if not mask >> variant & 1 or not any(field.side == "user" for field in fields):
            continue
        own = [field for field in fields if field.side != "item"]
        for chosen in itertools.product(*(tokens[field.name] for field in own)):
            key = prefix + b"*".join(token.text for token in chosen)
            with_item = any(each.startswith(key + b"*") for each in weights)
            alone = weights.get(key, (0.0, 0))[1] >> variant & 1 == 1
            if alone if len(own) == len(fields) else with_item:
                return True
    return False


def slow_scores(
    spec: ModelSpec,
    weights: Weights,
    request: Mapping[str, Value],
    items: Sequence[Mapping[str, Value]],
    variant: int,
) -> list[float]:
    return [slow_score(spec, weights, {**request, **item}, variant) for item in items]
