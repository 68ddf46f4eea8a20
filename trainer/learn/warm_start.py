"""Starts training from a published model instead of an empty one: `ftrie train --init-from`.

Input: an artefact. Output: coordinates with the state that corresponds to its weights and learning rates
(`learners/registry.py`). Keys whose field or cross is not in the spec, or which no variant uses, are dropped.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from model_store.artefact.artefact import Artefact
from model_store.artefact.inspection import SortedKeys
from model_store.errors import SpecError, listed
from model_store.spec.keys import BIAS
from trainer.examples.hashing import ExampleMaker
from trainer.examples.rules import key_prefixes
from trainer.learn.coordinates import Coordinates, Numbers

NO_FEATURE = -1


def warm_start(coordinates: Coordinates, maker: ExampleMaker, artefact: Artefact) -> int:
    """Admit the keys of `artefact` to empty coordinates, with their state; return how many.

    Raises SpecError for a learner whose state does not follow from a weight, for a model with weights per variant where
    the spec shares them, and for a variant with values of its own that is not in the model.
    """
    links = artefact.spec.learner.link, maker.spec.learner.link
    if links[0] != links[1]:
        raise SpecError(
            f"the initial model's weights are for the {links[0]} link, and this spec's learner has the {links[1]} "
            "link: adpredictor starts from adpredictor, and the other algorithms from each other"
        )
    features = features_of_keys(artefact, maker)
    taken = features >= 0
    taken[taken] = coordinates.margin.learned(maker.rules.masks)[features[taken]] != 0
    learning = tuple(variant.average or name for name, variant in maker.spec.variants.items())
    weight, rate = _columns(coordinates.own, learning, artefact)
    unused = ~_used(coordinates.own, maker, features)
    weight[unused] = rate[unused] = 0.0
    taken &= (weight != 0.0).any(axis=1)
    keys = artefact.key_array().filter(taken)
    offsets = np.zeros(len(keys) + 1, np.int64)
    np.cumsum(np.diff(artefact.key_offsets)[taken], out=offsets[1:])
    data = np.frombuffer(b"".join(keys.to_pylist()), np.uint8)
    coordinates.warm_start(data, offsets, features[taken].astype(np.uint16), weight[taken], rate[taken])
    return len(keys)


def features_of_keys(artefact: Artefact, maker: ExampleMaker) -> npt.NDArray[np.int64]:
    """The number of the feature that each key belongs to, NO_FEATURE where the spec has none: int64[rows].

    Keys are sorted, so each prefix is a range of rows; where prefixes nest, the longest is written last and wins. A
    rule may split raw keys, which can have any prefix; so the keys of fields and crosses are assigned after them.
    """
    rows, prefixes = SortedKeys(artefact), key_prefixes(maker.plan)
    known = [(prefix, len(prefix), feature) for feature, prefix in enumerate(prefixes) if feature > 0]
    for rule in maker.feature_rules.value_rules:
        known.append((prefixes[rule.owner] + rule.start, len(prefixes[rule.owner]), rule.feature))
    found = np.full(artefact.rows, NO_FEATURE, np.int64)
    for prefix, _, feature in sorted(known):
        found[rows.at_least(prefix) : rows.beyond(prefix)] = feature
    found[rows.at_least(BIAS) : rows.at_least(BIAS + b"\0")] = 0
    return found


def _used(own: int, maker: ExampleMaker, features: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Whether a variant with values of its own uses a key, bool[rows, own]; with shared values, whether any does."""
    masks = np.where(features >= 0, maker.rules.masks[features], 0).reshape(-1, 1)
    used: npt.NDArray[np.bool_] = masks != 0 if own == 1 else masks >> np.arange(own) & 1 != 0
    return used


def _columns(own: int, variants: tuple[str, ...], artefact: Artefact) -> tuple[Numbers, Numbers]:
    """Weights and rates of the artefact for each variant with values of its own: float64[rows, own]."""
    weight, rate = artefact.weight.astype(np.float64), artefact.rate.astype(np.float64)
    if weight.ndim == 1 or weight.shape[1] == 1:
        return np.repeat(weight.reshape(-1, 1), own, axis=1), np.repeat(rate.reshape(-1, 1), own, axis=1)
    if own < len(variants):
        raise SpecError(
            "the initial model has a weight for each variant, and this spec's variants share them; "
            'set learner.values = "per_variant", or start from a model with shared values'
        )
    names = list(artefact.spec.variants)
    for name in variants:
        if name not in names:
            raise SpecError(
                f"variants.{name}: the initial model has no such variant; it has {listed(names, name)}"
            )
    columns = [names.index(name) for name in variants]
    return weight[:, columns], rate[:, columns]
