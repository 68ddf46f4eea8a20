"""Models whose variants have a weight of a key each: the shape such columns must have, and one variant alone.

How the columns are stored is `arrow_format`'s business. Nothing here learns or serves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.errors import ArtefactError, SpecError
from model_store.spec import ModelSpec, spec_from_json

if TYPE_CHECKING:
    from model_store.artefact import Artefact

OWN_VALUES = ("weight", "rate")
"""Columns with a number a key, or with one for each variant."""


def check_widths(artefact: Artefact) -> None:
    """Raise ArtefactError unless weights and rates are as the spec's `learner.values` says.

    They are [rows, variants] with values = "per_variant", else [rows]; [rows] too for a model that came from JSON,
    whose one weight serves every variant.
    """
    values, count = artefact.spec.learner.values, len(artefact.spec.variants)
    own = values == "per_variant" and artefact.source is None
    expected = (artefact.rows, count) if own else (artefact.rows,)
    for name in OWN_VALUES:
        shape = getattr(artefact, name).shape
        if shape != expected:
            raise ArtefactError(
                f"column {name!r} has the shape {shape}; the spec has {count} variants and learner.values = "
                f'"{values}": expected {expected}'
            )


def check_users(artefact: Artefact) -> None:
    """Raise ArtefactError unless a key's weight is 0 for every variant that does not use it. O(rows · variants)."""
    if not artefact.per_variant:
        return
    for bit, name in enumerate(artefact.spec.variants):
        weighed = (artefact.weight[:, bit] != 0) & ~artefact.used_by(bit)
        if weighed.any():
            row = int(np.argmax(weighed))
            raise ArtefactError(
                f"key {artefact.key(row)!r} has weight {artefact.weight[row, bit]} for variant {name!r}, which does "
                "not use it; expected 0"
            )


def one_variant(artefact: Artefact, name: str) -> Artefact:
    """The variant `name` as a model of its own: the keys that have a weight for it, a spec without the others.

    The keys' numbers are unchanged, so it scores as the variant does. Raises SpecError for a name the spec lacks.
    """
    spec = artefact.spec
    if name not in spec.variants:
        raise SpecError(f"no variant {name!r}; the model has: {', '.join(spec.variants)}")
    bit = list(spec.variants).index(name)
    kept = artefact.used_by(bit)
    if artefact.per_variant:
        kept &= artefact.weight[:, bit] != 0
    keys = artefact.key_array().filter(pa.array(kept))
    return _of_rows(artefact, keys, kept, bit, _spec_of(spec, name), {name: artefact.metrics.get(name, {})})


def _of_rows(
    artefact: Artefact,
    keys: pa.LargeBinaryArray,
    kept: npt.NDArray[np.bool_],
    bit: int,
    spec: ModelSpec,
    metrics: Mapping[str, Mapping[str, float]],
) -> Artefact:
    from model_store.artefact import columns_of

    key_data, key_offsets = columns_of(keys)
    return replace(
        artefact,
        key_data=key_data,
        key_offsets=key_offsets,
        weight=artefact.weights_of(bit)[kept],
        variants=np.ones(len(keys), np.uint32),
        rate=artefact.rates_of(bit)[kept],
        spec=spec,
        metrics=metrics,
        source=artefact.source if kept.all() else None,
        calibration=None
        if artefact.calibration is None
        else artefact.calibration.of_variants([*spec.variants]),
    )


def _spec_of(spec: ModelSpec, name: str) -> ModelSpec:
    """The spec with this variant only, its own parameters put in the learner's place."""
    document, variant = spec.model_dump(mode="json"), spec.variants[name]
    document["variants"] = {name: {"share": 1.0, "without": list(variant.without)}}
    document["learner"] |= {**variant.own_parameters, "values": "single"}
    return spec_from_json(json.dumps(document))
