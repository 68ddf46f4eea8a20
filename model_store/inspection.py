"""What `ftrie store inspect` tells of an artefact: its heaviest keys, the keys of each field and cross."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from model_store.artefact import Artefact
from model_store.key_ranges import key_ranges


@dataclass(frozen=True)
class OwnerSummary:
    """What a model knows under one field or cross. `weight_sum` is of |w|."""

    name: str
    keys: int
    weight_sum: float
    heaviest: float  # the largest |w|


@dataclass(frozen=True)
class WeightedKey:
    """One key; bytes that are not UTF-8 are shown escaped."""

    key: str
    weight: float
    variants: tuple[str, ...]


def summaries(artefact: Artefact) -> list[OwnerSummary]:
    """Every field and cross that has a key, most keys first."""
    size = np.abs(artefact.weight.astype(np.float64))
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
    order = np.argsort(-np.abs(artefact.weight), kind="stable")[:count]
    names = tuple(artefact.spec.variants)
    return [
        WeightedKey(
            artefact.key(row).decode("utf-8", "backslashreplace"),
            float(artefact.weight[row]),
            tuple(name for bit, name in enumerate(names) if int(artefact.variants[row]) >> bit & 1),
        )
        for row in order.tolist()
    ]
