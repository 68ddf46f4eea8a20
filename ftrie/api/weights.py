"""The keys of a model as a table, and what differs between two models."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ftrie.draw.notebook import SHOWN, arrow_html, details, paragraph
from model_store.artefact.artefact import Artefact
from model_store.artefact.changes import ChangedRows, changed_rows
from model_store.artefact.inspection import key_ranges
from model_store.artefact.rows import ModelRows
from model_store.errors import UsageError, listed

_CHUNK = 1 << 16
Array = npt.NDArray[Any]


def weights_table(artefact: Artefact) -> pa.Table:
    """A line a key, in the order of the keys: key, field, weight and learning_rate, variants.

    key: its text, bytes that are not UTF-8 escaped; field: the field or cross that owns it, "bias", or "other";
    variants: the names of those that use it. Where each variant has its own values (learner.values = "per_variant"),
    `weight.NAME` and `learning_rate.NAME` for each; null where the variant does not use the key. O(keys).
    """
    columns: dict[str, Any] = {"key": key_texts(artefact), "field": _owners(artefact)}
    names = list(artefact.spec.variants)
    for what, numbers in (("weight", artefact.weight), ("learning_rate", artefact.rate)):
        if not artefact.per_variant:
            columns[what] = pa.array(numbers)
            continue
        for bit, name in enumerate(names):
            columns[f"{what}.{name}"] = pa.array(numbers[:, bit], mask=~artefact.used_by(bit))
    columns["variants"] = _users(artefact.variants, names)
    return pa.table(columns)


def key_texts(rows: ModelRows | ChangedRows) -> pa.Array:
    """The keys as text; bytes that are not UTF-8 are escaped."""
    buffers = [None, pa.py_buffer(rows.key_offsets), pa.py_buffer(rows.key_data)]
    keys = pa.LargeBinaryArray.from_buffers(pa.large_binary(), rows.key_offsets.size - 1, buffers)
    # In chunks: only those with bytes that are not UTF-8 are decoded key by key in Python.
    chunks = [keys.slice(first, _CHUNK) for first in range(0, max(len(keys), 1), _CHUNK)]
    return pa.concat_arrays([_texts(chunk) for chunk in chunks])


def _texts(keys: pa.LargeBinaryArray) -> pa.Array:
    try:
        return keys.cast(pa.large_string())
    except pa.ArrowInvalid:
        return pa.array(
            [key.decode("utf-8", "backslashreplace") for key in keys.to_pylist()], pa.large_string()
        )


def _owners(artefact: Artefact) -> pa.Array:
    ranges = key_ranges(artefact)
    names = list(dict.fromkeys(name for name, _, _ in ranges))
    counts = np.array([end - begin for _, begin, end in ranges], np.int64)
    indices = np.repeat(np.array([names.index(name) for name, _, _ in ranges], np.int32), counts)
    # As a dictionary: millions of keys have a few owners.
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), pa.array(names, pa.string()))


def _users(masks: Array, names: list[str]) -> pa.Array:
    # Many keys have the same mask: its text is made once.
    distinct, inverse = np.unique(masks, return_inverse=True)
    lists = [
        ", ".join(name for bit, name in enumerate(names) if mask >> bit & 1) for mask in distinct.tolist()
    ]
    return pa.DictionaryArray.from_arrays(
        pa.array(inverse.reshape(-1).astype(np.int32)), pa.array(lists, pa.string())
    )


@dataclass(frozen=True)
class ModelDiff:
    """How one variant of a model differs from another model's.

    keys: those of both models together; added, removed: keys that only the newer or only the older model has; changed:
    keys of both whose weight differs. `table` lists all of them, the largest change of weight first.
    """

    variant: str
    keys: int
    added: int
    removed: int
    changed: int
    _keys: pa.Array
    _before: Array
    _after: Array

    @cached_property
    def table(self) -> pa.Table:
        """key, before, after, change: a line a key that differs; before and after are null where a model lacks it."""
        before, after = self._before.astype(np.float64), self._after.astype(np.float64)
        # A key that a model lacks has the weight 0 there.
        change = np.nan_to_num(after) - np.nan_to_num(before)
        order = np.argsort(-np.abs(change), kind="stable")
        numbers = {"before": before[order], "after": after[order], "change": change[order]}
        return pa.table(
            {"key": self._keys.take(pa.array(order))}
            | {name: pa.array(each, from_pandas=True) for name, each in numbers.items()}
        )

    @property
    def largest(self) -> float:
        """The largest change of a weight."""
        return float(np.max(np.abs(np.nan_to_num(self._after) - np.nan_to_num(self._before)), initial=0.0))

    def __str__(self) -> str:
        return (
            f"variant {self.variant}: {self.keys:,} keys, {self.added:,} added, {self.removed:,} removed, "
            f"{self.changed:,} changed; the largest change of a weight is {self.largest:.5g}"
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return paragraph(str(self)) + details("the largest changes", arrow_html(self.table.slice(0, SHOWN)))


def diff_of(older: Artefact, newer: Artefact, variant: str) -> ModelDiff:
    """How `variant` differs between two models. O(keys of both). Raises UsageError if one of them lacks it."""
    bits = []
    for artefact in (older, newer):
        names = list(artefact.spec.variants)
        if variant not in names:
            raise UsageError(f"no variant {variant!r} in both models; one has: {listed(names, variant)}")
        bits.append(names.index(variant))
    rows = [_of_variant(artefact, bit) for artefact, bit in zip((older, newer), bits, strict=True)]
    found = changed_rows(rows[0], rows[1], 0.0)
    had, has = found.before["variants"] != 0, found.after["variants"] != 0
    differ = (had != has) | (found.before["weight"] != found.after["weight"])
    added, removed = int(np.count_nonzero(has & ~had)), int(np.count_nonzero(had & ~has))
    keys = key_texts(found)
    return ModelDiff(
        variant=variant,
        keys=int(np.count_nonzero(rows[0].variants)) + added,
        added=added,
        removed=removed,
        changed=int(np.count_nonzero(had & has & differ)),
        _keys=keys.filter(pa.array(differ)),
        _before=np.where(had, found.before["weight"], np.nan)[differ],
        _after=np.where(has, found.after["weight"], np.nan)[differ],
    )


def _of_variant(artefact: Artefact, bit: int) -> ModelRows:
    """The rows with the weights of one variant, and 1 in `variants` where it uses the key."""
    used = artefact.used_by(bit).astype(np.uint32)
    return ModelRows(
        key_data=artefact.key_data,
        key_offsets=artefact.key_offsets,
        weight=artefact.weights_of(bit).astype(np.float32),
        variants=used,
        # Alike in both models: only weights are compared here.
        rate=np.zeros(artefact.rows, np.float32),
        spec=artefact.spec,
        metrics={},
    )


def heaviest(artefact: Artefact, variant: int, count: int) -> tuple[list[str], list[float]]:
    """The keys with the largest |weight| of a variant, and their weights. O(keys)."""
    weights = artefact.weights_of(variant)
    sizes = np.abs(weights)
    kept = np.arange(sizes.size)
    if 0 < count < sizes.size:
        # O(keys), where a sort would be O(keys log keys); ties with the last one are cut below.
        kept = np.flatnonzero(sizes >= np.partition(sizes, -count)[-count])
    first = kept[np.argsort(-sizes[kept], kind="stable")][: max(count, 0)]
    keys = [artefact.key(int(row)).decode("utf-8", "backslashreplace") for row in first]
    return keys, [float(weights[row]) for row in first]
