"""What a spec says of keys, as arrays that kernels take: made once, used for every batch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.features.cells import addresses
from model_store.features.columns import TokenColumn
from model_store.features.features import FeaturePlan
from model_store.hash_kernels import digest_columns, hash_keys, prefix_state
from model_store.spec.keys import BIAS
from model_store.spec.sections import MAX_CROSS_FIELDS
from trainer.examples import hashing_kernels as kernels
from trainer.examples.hashing_kernels import KeyRules, TokenLayout, ValueRules
from trainer.examples.rules import FeatureRules


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


# --- The tokens of a batch, laid out as kernels take them: first the fields with one place a row, then the
# lists ---


_NO_NUMBERS = np.empty(0)


def lay_out(columns: Sequence[TokenColumn], rows: int, raw: Any, crosses: Any, owner: Any) -> TokenLayout:
    """Digest every token of a batch. raw: uint8[fields], see `KeyRules`; crosses and owner as in `TokenLayout`."""
    dense = [i for i, column in enumerate(columns) if column.starts is None]
    lists = [i for i, column in enumerate(columns) if column.starts is not None]
    sizes = [len(column.text) for column in columns]
    base, list_of = np.zeros(len(columns), np.int64), np.full(len(columns), -1, np.int64)
    digests = np.empty(sum(sizes), np.uint64)
    _digest(dense, columns, raw, digests[: len(dense) * rows].reshape(len(dense), rows))
    for place, index in enumerate(dense):
        base[index] = place * rows
    at = len(dense) * rows
    for place, index in enumerate(lists):
        base[index], list_of[index] = at, place
        _digest([index], columns, raw, digests[at : at + sizes[index]].reshape(1, -1))
        at += sizes[index]
    starts = np.zeros((max(len(lists), 1), rows + 1), np.int32)
    for place, index in enumerate(lists):
        starts[place] = _starts_of(columns[index])
    values = _values(columns, base, digests)
    return TokenLayout(digests, values, base, list_of, starts, crosses, owner)


def _digest(chosen: Sequence[int], columns: Sequence[TokenColumn], raw: Any, out: Any) -> None:
    if chosen and out.shape[1]:
        data, offsets = addresses([columns[index].text for index in chosen])
        digest_columns(data, offsets, out.shape[1], raw[list(chosen)], out)


def _values(columns: Sequence[TokenColumn], base: Any, digests: Any) -> npt.NDArray[np.float64]:
    """The x of every token where some field has one; a real number's text is empty, but it is there."""
    if all(column.x is None for column in columns):
        return _NO_NUMBERS
    values = np.ones(digests.size)
    empty = np.uint64(kernels.digest_of_nothing())
    for index, column in enumerate(columns):
        if column.x is not None:
            part = slice(int(base[index]), int(base[index]) + column.x.size)
            if column.starts is not None:
                values[part] = column.x
                continue
            absent = np.isnan(column.x)
            values[part] = np.where(absent, 0.0, column.x)
            digests[part] = np.where(absent, np.uint64(0), empty)
    return values


def _starts_of(column: TokenColumn) -> npt.NDArray[np.int32]:
    assert column.starts is not None
    return column.starts
