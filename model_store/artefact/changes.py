"""Comparing and merging sorted rows: which rows of two models differ, and one set of rows merged into another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.artefact import changes_kernels
from model_store.artefact.rows import VALUES, Array, Content, ModelRows


@dataclass(frozen=True)
class ChangedRows:
    """The keys whose rows differ, and their values on both sides; a key that one side lacks has zeros there."""

    key_data: Array
    key_offsets: Array
    before: dict[str, Array]
    after: dict[str, Array]

    def content_change(self) -> Content:
        """What to add to the content digest of the rows before to get that of the rows after."""
        keys = self.key_data, self.key_offsets
        return Content.of(*keys, **self.after) - Content.of(*keys, **self.before)


def changed_rows(parent: ModelRows, model: ModelRows, threshold: float) -> ChangedRows:
    """The rows of `model` that differ from `parent` by more than `threshold` (`differing`). O(rows of both)."""
    # Enough even if no key is common; the kernel returns how many pairs it has written.
    pairs = np.empty((parent.rows + model.rows, 2), np.int64)
    columns = (parent.key_data, parent.key_offsets, model.key_data, model.key_offsets)
    pairs = pairs[: changes_kernels.pair_rows(*columns, pairs)]
    before, after = _values(parent, pairs[:, 0]), _values(model, pairs[:, 1])
    pairs = pairs[differing(before, after, threshold)]
    # Gathered again for the rows that differ, which are mostly few.
    before, after = _values(parent, pairs[:, 0]), _values(model, pairs[:, 1])
    keys = _keys(model, parent, np.where(pairs[:, 1] >= 0, pairs[:, 1], -1 - pairs[:, 0]))
    return ChangedRows(*keys, before, after)


def differing(before: dict[str, Array], after: dict[str, Array], threshold: float) -> npt.NDArray[np.bool_]:
    """bool[n]: the rows that differ. Threshold 0: in any bit; else a weight moved by more than the threshold.

    before, after: weight, variants and rate by name; an absent key has zeros. With any threshold, a row whose variants
    changed differs.
    """
    if threshold > 0.0:
        both = (before["variants"] != 0) & (after["variants"] != 0)
        # In float64: a difference rounded to float32 could be on the other side of the threshold.
        distance = np.abs(after["weight"].astype(np.float64) - before["weight"])
        variants_changed = both & (before["variants"] != after["variants"])
        return np.asarray(_any(distance > threshold) | variants_changed)
    # By bits: to == 0.0 is -0.0, and the digest tells them apart.
    differ = [_any(after[name].view(np.uint32) != before[name].view(np.uint32)) for name in VALUES]
    return np.asarray(np.logical_or.reduce(differ))


def merged_rows(first: ModelRows, second: ModelRows, kept: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """The columns of both by key. Of a key in both the second's row is taken, or neither where it is not `kept`."""
    places = np.empty(second.rows, np.int64)
    changes_kernels.find_rows(first.key_data, first.key_offsets, second.key_data, second.key_offsets, places)
    plan = np.empty(first.rows + second.rows, np.int64)
    plan = plan[: changes_kernels.plan_merge(first.rows, places, kept.view(np.uint8), plan)]
    key_data, key_offsets = _keys(first, second, plan)
    of_second = plan < 0
    merged: dict[str, Any] = {"key_data": key_data, "key_offsets": key_offsets}
    for name in VALUES:
        column: Array = getattr(first, name)
        merged[name] = np.empty((plan.size, *column.shape[1:]), column.dtype)
        # As in `_keys`: a negative place is a row of the second.
        merged[name][~of_second] = column[plan[~of_second]]
        merged[name][of_second] = getattr(second, name)[-1 - plan[of_second]]
    return merged


def _any(flags: Array) -> npt.NDArray[np.bool_]:
    return np.asarray(flags.any(axis=1) if flags.ndim == 2 else flags)


def _values(rows: ModelRows, numbers: npt.NDArray[np.int64]) -> dict[str, Array]:
    """The values of these rows, 0 where the number is NONE."""
    there = numbers >= 0
    found: dict[str, Array] = {}
    for name in VALUES:
        column: Array = getattr(rows, name)
        found[name] = np.zeros((numbers.size, *column.shape[1:]), column.dtype)
        found[name][there] = column[numbers[there]]
    return found


def _keys(first: ModelRows, second: ModelRows, plan: npt.NDArray[np.int64]) -> tuple[Array, Array]:
    """The keys that a plan names: row r of the first as r, row s of the second as -1 - s."""
    offsets = np.empty(plan.size + 1, np.int64)
    changes_kernels.merged_offsets(first.key_offsets, second.key_offsets, plan, offsets)
    data = np.empty(int(offsets[-1]), np.uint8)
    columns = (first.key_data, first.key_offsets, second.key_data, second.key_offsets)
    changes_kernels.merged_keys(*columns, plan, data)
    return data, offsets
