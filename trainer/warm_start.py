"""A run that begins with a published model instead of with none: `ftrie train --init-from`.

A weight and its learning rate tell the state that they came from (`trainer/learners/learners.py` says how). Keys whose
field or cross the spec does not have, or which no variant uses, are left behind. Nothing here reads files or stores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from model_store.artefact import Artefact
from model_store.errors import SpecError
from model_store.key_ranges import SortedKeys
from model_store.keys import BIAS
from trainer.hashing.compiled import key_prefixes
from trainer.hashing.examples import ExampleMaker

if TYPE_CHECKING:
    from trainer.model import LearningModel

NO_FEATURE = -1


def warm_start(model: LearningModel, artefact: Artefact) -> int:
    """Give an untrained model the keys of `artefact`, with the state that they stand for; return how many.

    Raises SpecError for learners whose state a weight does not tell, for a model with a weight for each variant where
    the spec shares them, and where the spec's variants with weights of their own are not in the model.
    """
    features = features_of_keys(artefact, model.maker)
    taken = features >= 0
    taken[taken] = model.maker.rules.masks[features[taken]] != 0
    weight, rate = _columns(model, artefact)
    unused = ~_used(model, features)
    weight[unused] = rate[unused] = 0.0
    taken &= (weight != 0.0).any(axis=1)
    keys = artefact.key_array().filter(taken)
    offsets = np.zeros(len(keys) + 1, np.int64)
    np.cumsum(np.diff(artefact.key_offsets)[taken], out=offsets[1:])
    data = np.frombuffer(b"".join(keys.to_pylist()), np.uint8)
    numbers = (features[taken].astype(np.uint16), weight[taken], rate[taken])
    model.coordinates.warm_start(data, offsets, *numbers)
    return len(keys)


def features_of_keys(artefact: Artefact, maker: ExampleMaker) -> npt.NDArray[np.int64]:
    """The number of the feature that each key belongs to, NO_FEATURE where the spec has none: int64[rows].

    Keys are sorted, so each prefix has a range of rows; where prefixes nest, the longest is written last and stays. A
    rule splits raw keys too, which may begin like anything: what a field or cross says of its own keys comes after.
    """
    rows = SortedKeys(artefact)
    found = np.full(artefact.rows, NO_FEATURE, np.int64)
    for prefix, _, feature in sorted(_prefixes(maker)):
        found[rows.at_least(prefix) : rows.beyond(prefix)] = feature
    found[rows.at_least(BIAS) : rows.at_least(BIAS + b"\0")] = 0
    return found


def _prefixes(maker: ExampleMaker) -> list[tuple[bytes, int, int]]:
    """Each feature's prefix, how much of it is the field's or cross's own, and the feature."""
    prefixes = key_prefixes(maker.plan)
    known = [(prefix, len(prefix), feature) for feature, prefix in enumerate(prefixes) if feature > 0]
    return known + [
        (prefixes[rule.owner] + rule.start, len(prefixes[rule.owner]), rule.feature)
        for rule in maker.feature_rules.value_rules
    ]


def _used(model: LearningModel, features: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Whether a variant with values of its own uses a key, bool[rows, own]; where all share them, whether any does."""
    masks = np.where(features >= 0, model.maker.rules.masks[features], 0).reshape(-1, 1)
    own = model.coordinates.own
    used: npt.NDArray[np.bool_] = masks != 0 if own == 1 else masks >> np.arange(own) & 1 != 0
    return used


def _columns(
    model: LearningModel, artefact: Artefact
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Weights and rates of the artefact for each variant with values of its own: float64[rows, own]."""
    own = model.coordinates.own
    if artefact.weight.ndim == 1 or artefact.weight.shape[1] == 1:
        return _repeated(artefact.weight, own), _repeated(artefact.rate, own)
    if own < len(model.spec.variants):
        raise SpecError(
            "the model to begin with has a weight for each variant, and this spec's variants share them; "
            'set learner.values = "per_variant", or begin with a model of shared values'
        )
    places = [_place(name, tuple(artefact.spec.variants)) for name in model.spec.variants]
    return artefact.weight[:, places].astype(np.float64), artefact.rate[:, places].astype(np.float64)


def _repeated(column: npt.NDArray[np.float32], times: int) -> npt.NDArray[np.float64]:
    return np.repeat(column.astype(np.float64).reshape(-1, 1), times, axis=1)


def _place(name: str, names: tuple[str, ...]) -> int:
    if name not in names:
        raise SpecError(
            f"variants.{name}: the model to begin with has no such variant; it has {', '.join(names)}"
        )
    return names.index(name)
