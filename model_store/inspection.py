"""What `ftrie store inspect` tells of an artefact: its heaviest keys, the keys of each field and cross."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from model_store.artefact import Artefact
from model_store.calibration import Calibration
from model_store.key_ranges import key_ranges


@dataclass(frozen=True)
class OwnerSummary:
    """What a model knows under one field or cross. `weight_sum` is of |w|, over all variants that have their own."""

    name: str
    keys: int
    weight_sum: float
    heaviest: float  # the largest |w|


CURVE_AT = (0.01, 0.03, 0.1, 0.3)


@dataclass(frozen=True)
class CurveLine:
    """A calibration curve by what it makes of CURVE_AT. `value` is `all` for a whole variant; None: as predicted."""

    variant: str
    value: str
    ctr: tuple[float | None, ...]


@dataclass(frozen=True)
class WeightedKey:
    """One key; bytes that are not UTF-8 are shown escaped.

    `variants` are those that use it, `weights` what it weighs for each of them, `weight` the largest of these in size.
    """

    key: str
    weight: float
    variants: tuple[str, ...]
    weights: Mapping[str, float]


def summaries(artefact: Artefact) -> list[OwnerSummary]:
    """Every field and cross that has a key, most keys first."""
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


def heaviest(artefact: Artefact, count: int) -> list[WeightedKey]:
    """The `count` keys of largest |w|, heaviest first; equal ones by key."""
    order = np.argsort(-_sizes(artefact).max(axis=1), kind="stable")[:count]
    return [_weighted(artefact, row) for row in order.tolist()]


def _sizes(artefact: Artefact) -> npt.NDArray[np.float64]:
    """|w| of every key, float64[rows, 1], or [rows, variants] where each variant has its own."""
    sizes = np.abs(artefact.weight.astype(np.float64))
    return sizes if artefact.per_variant else sizes[:, None]


def _weighted(artefact: Artefact, row: int) -> WeightedKey:
    bits = {name: bit for bit, name in enumerate(artefact.spec.variants) if artefact.variants[row] >> bit & 1}
    own = np.atleast_1d(artefact.weight[row]).tolist()
    return WeightedKey(
        key=artefact.key(row).decode("utf-8", "backslashreplace"),
        weight=max(own, key=abs),
        variants=tuple(bits),
        weights={name: own[bit if artefact.per_variant else 0] for name, bit in bits.items()},
    )


def curve_lines(calibration: Calibration) -> list[CurveLine]:
    """Every curve, each variant's whole before those of its values."""
    points = np.array(CURVE_AT)
    return [
        CurveLine(
            name, value, (None,) * len(CURVE_AT) if curve is None else tuple(curve.apply(points).tolist())
        )
        for name, curves in calibration.variants.items()
        for value, curve in [
            ("all", curves.whole),
            *((value.decode("utf-8", "backslashreplace"), curve) for value, curve in curves.values.items()),
        ]
    ]
