"""Views of an artefact: one variant as a model of its own, and the figures that `ftrie store inspect` shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.artefact.artefact import Artefact
from model_store.artefact.calibration import Calibration
from model_store.artefact.key_ranges import key_ranges
from model_store.artefact.rows import columns_of
from model_store.errors import SpecError, listed
from model_store.spec.spec import ModelSpec, spec_from_json


def one_variant(artefact: Artefact, name: str) -> Artefact:
    """The variant `name` as a model of its own: the keys with a weight for it, and a spec without other variants.

    Weights are unchanged, so it scores as the variant does. Raises SpecError for a name the spec lacks.
    """
    spec, calibration = artefact.spec, artefact.calibration
    if name not in spec.variants:
        raise SpecError(f"no variant {name!r}; the model has: {listed(spec.variants, name)}")
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
    """bool[rows]: the keys that the variant uses and, with per-variant weights, that weigh other than 0.

    With the probit link also those that weigh 0: their variances count.
    """
    used = artefact.used_by(bit)
    if not artefact.per_variant or artefact.spec.learner.link == "probit":
        return used
    return np.asarray(used & (artefact.weight[:, bit] != 0))


def _spec_of(spec: ModelSpec, name: str) -> ModelSpec:
    """The spec with this variant only; its own parameters replace the learner's."""
    document, variant = spec.model_dump(mode="json"), spec.variants[name]
    document["variants"] = {name: {"share": 1.0, "without": list(variant.without)}}
    document["learner"] |= {**variant.own_parameters, "values": "single"}
    return spec_from_json(json.dumps(document))


# -- figures


@dataclass(frozen=True)
class OwnerSummary:
    """The keys of one field or cross. `weight_sum` is that of |w|, over all variants where each has its own weights."""

    name: str
    keys: int
    weight_sum: float
    heaviest: float  # the largest |w|


CURVE_AT = (0.01, 0.03, 0.1, 0.3)


@dataclass(frozen=True)
class CurveLine:
    """A calibration curve evaluated at CURVE_AT. `value` is `all` for a whole variant; None: predictions unchanged."""

    variant: str
    value: str
    ctr: tuple[float | None, ...]


@dataclass(frozen=True)
class WeightedKey:
    """One key; bytes that are not UTF-8 are escaped.

    `variants` are those that use it, `weights` its weight for each of them, `weight` the largest of these by size.
    """

    key: str
    weight: float
    variants: tuple[str, ...]
    weights: Mapping[str, float]


def summaries(artefact: Artefact) -> list[OwnerSummary]:
    """Every field and cross that has keys, most keys first."""
    size = _sizes(artefact)
    found: dict[str, OwnerSummary] = {}
    for name, begin, end in key_ranges(artefact):
        before = found.get(name, OwnerSummary(name, 0, 0.0, 0.0))
        found[name] = OwnerSummary(
            name,
            before.keys + end - begin,
            before.weight_sum + float(size[begin:end].sum()),
            max(before.heaviest, float(size[begin:end].max())),
        )
    return sorted(found.values(), key=lambda summary: (-summary.keys, summary.name))


def heaviest(artefact: Artefact, count: int, begin: int = 0, stop: int | None = None) -> list[WeightedKey]:
    """The `count` keys of largest |w| among rows begin to stop, heaviest first; ties in key order."""
    sizes = _sizes(artefact)[begin:stop].max(axis=1)
    kept = np.arange(sizes.size)
    if 0 < count < sizes.size:
        kept = np.flatnonzero(sizes >= np.partition(sizes, -count)[-count])
    order = kept[np.argsort(-sizes[kept], kind="stable")][:count]
    return [weighted_key(artefact, begin + row) for row in order.tolist()]


def key_text(key: bytes) -> str:
    """A key for a reader; bytes that are not UTF-8 are escaped."""
    return key.decode("utf-8", "backslashreplace")


def _sizes(artefact: Artefact) -> npt.NDArray[np.float64]:
    """|w| of every key, float64[rows, 1], or [rows, variants] where each variant has its own."""
    sizes = np.abs(artefact.weight.astype(np.float64))
    return sizes if artefact.per_variant else sizes[:, None]


def weighted_key(artefact: Artefact, row: int) -> WeightedKey:
    """The key of a row with its weights."""
    bits = {name: bit for bit, name in enumerate(artefact.spec.variants) if artefact.variants[row] >> bit & 1}
    own = np.atleast_1d(artefact.weight[row]).tolist()
    return WeightedKey(
        key=key_text(artefact.key(row)),
        weight=max(own, key=abs),
        variants=tuple(bits),
        weights={name: own[bit if artefact.per_variant else 0] for name, bit in bits.items()},
    )


def curve_lines(calibration: Calibration) -> list[CurveLine]:
    """Every curve; of each variant the whole one first, then those of values."""
    points = np.array(CURVE_AT)
    return [
        CurveLine(
            name, value, (None,) * len(CURVE_AT) if curve is None else tuple(curve.apply(points).tolist())
        )
        for name, curves in calibration.variants.items()
        for value, curve in [
            ("all", curves.whole),
            *((key_text(value), curve) for value, curve in curves.values.items()),
        ]
    ]
