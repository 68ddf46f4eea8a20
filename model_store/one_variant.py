"""One variant of a model as a model of its own: what it weighs, its calibration, and a spec without the others."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.arrow_columns import columns_of
from model_store.errors import SpecError
from model_store.spec import ModelSpec, spec_from_json

if TYPE_CHECKING:
    from model_store.artefact import Artefact


def one_variant(artefact: Artefact, name: str) -> Artefact:
    """The variant `name` as a model of its own: the keys that have a weight for it, a spec without the others.

    The keys' numbers are unchanged, so it scores as the variant does. Raises SpecError for a name the spec lacks.
    """
    spec, calibration = artefact.spec, artefact.calibration
    if name not in spec.variants:
        raise SpecError(f"no variant {name!r}; the model has: {', '.join(spec.variants)}")
    bit = list(spec.variants).index(name)
    kept = _kept(artefact, bit)
    key_data, key_offsets = columns_of(artefact.key_array().filter(pa.array(kept)))
    return replace(
        artefact,
        key_data=key_data,
        key_offsets=key_offsets,
        weight=artefact.weights_of(bit)[kept],
        variants=np.ones(int(kept.sum()), np.uint32),
        rate=artefact.rates_of(bit)[kept],
        spec=_spec_of(spec, name),
        metrics={name: artefact.metrics.get(name, {})},
        source=artefact.source if kept.all() else None,
        calibration=None if calibration is None else calibration.of_variants([name]),
    )


def _kept(artefact: Artefact, bit: int) -> npt.NDArray[np.bool_]:
    """bool[rows]: the keys that the variant uses and, where each has its own weights, weighs other than 0."""
    used = artefact.used_by(bit)
    return used & (artefact.weight[:, bit] != 0) if artefact.per_variant else used


def _spec_of(spec: ModelSpec, name: str) -> ModelSpec:
    """The spec with this variant only, its own parameters put in the learner's place."""
    document, variant = spec.model_dump(mode="json"), spec.variants[name]
    document["variants"] = {name: {"share": 1.0, "without": list(variant.without)}}
    document["learner"] |= {**variant.own_parameters, "values": "single"}
    return spec_from_json(json.dumps(document))
