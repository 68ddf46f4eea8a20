"""What a spec says of keys, as arrays that kernels take: made once, used for every batch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from model_store.features import FeaturePlan
from model_store.kernels import hash_keys, prefix_state
from model_store.keys import BIAS
from model_store.spec_sections import MAX_CROSS_FIELDS
from trainer.admission.rules import FeatureRules
from trainer.hashing.kernels import KeyRules
from trainer.hashing.value_rules.kernels import ValueRules


def key_prefixes(plan: FeaturePlan) -> list[bytes]:
    """The prefix of every owner of keys: the bias, the fields, the crosses."""
    return [BIAS, *(field.prefix for field in plan.fields), *(cross.prefix for cross in plan.crosses)]


def key_rules(plan: FeaturePlan, owner: npt.NDArray[np.int64]) -> KeyRules:
    """How keys are hashed, and who uses them; owner: int64[features], see `FeatureRules`."""
    masks = [plan.all_variants, *(f.mask for f in plan.fields), *(c.mask for c in plan.crosses)]
    return KeyRules(
        bias=_hash(BIAS),
        states=np.array([_state(prefix) for prefix in key_prefixes(plan)[1:]], np.uint64),
        raw=np.array([field.kind == "raw" for field in plan.fields], np.uint8),
        masks=np.array(masks, np.uint32)[owner],
    )


def value_rules(rules: FeatureRules, owners: int) -> ValueRules | None:
    """The rules that reach into values, owner by owner; None where there is none."""
    if not rules.value_rules:
        return None
    per_owner = np.bincount([rule.owner for rule in rules.value_rules], minlength=owners)
    text, starts = prefix_table([rule.start for rule in rules.value_rules])
    return ValueRules(
        first=np.concatenate([[0], np.cumsum(per_owner)]).astype(np.int64),
        features=np.array([rule.feature for rule in rules.value_rules], np.uint16),
        text=text,
        starts=starts,
    )


def cross_fields(plan: FeaturePlan) -> npt.NDArray[np.int64]:
    """The fields of every cross: int64[crosses, 4], padded with -1."""
    fields = np.full((len(plan.crosses), MAX_CROSS_FIELDS), -1, np.int64)
    for row, cross in zip(fields, plan.crosses, strict=True):
        row[: len(cross.fields)] = [field.index for field in cross.fields]
    return fields


def prefix_table(prefixes: Sequence[bytes]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """All prefixes end to end, and where each begins: the form in which `write_keys` takes them."""
    starts = np.array([0, *itertools.accumulate(len(prefix) for prefix in prefixes)], np.int64)
    return _bytes(b"".join(prefixes)), starts


def _bytes(text: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(text, np.uint8).copy()


def _state(prefix: bytes) -> np.uint64:
    return np.uint64(prefix_state(_bytes(prefix)))


def _hash(key: bytes) -> np.uint64:
    out = np.empty(1, np.uint64)
    hash_keys(_bytes(key), np.array([0, len(key)], np.int64), out)
    return np.uint64(out[0])
