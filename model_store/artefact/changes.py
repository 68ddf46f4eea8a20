"""What changed between two models, and the model that a change makes of another: exact inverses, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.artefact import changes_kernels as kernels
from model_store.artefact.artefact import Artefact, Delta
from model_store.artefact.rows import Array, Content, ModelRows
from model_store.errors import ArtefactError

VALUES = ("weight", "variants", "rate")


def changes(parent: Artefact, model: Artefact, threshold: float, version: int) -> Delta:
    """The delta that makes `model` of `parent`: see `Artefact.changes_since`."""
    _check_can_change(parent, model)
    pairs = _changed(parent, model, threshold)
    before, after = _values(parent, pairs[:, 0]), _values(model, pairs[:, 1])
    key_data, key_offsets = _keys(model, parent, np.where(pairs[:, 1] >= 0, pairs[:, 1], -1 - pairs[:, 0]))
    gone, come = Content.of(key_data, key_offsets, **before), Content.of(key_data, key_offsets, **after)
    return Delta.from_columns(
        key_data=key_data,
        key_offsets=key_offsets,
        **after,
        spec=model.spec,
        metrics=model.metrics,
        calibration=model.calibration,
        parent=version,
        parent_content=parent.content,
        content=str(Content.parse(parent.content) - gone + come),
    )


def applied(model: Artefact, delta: Delta) -> Artefact:
    """The model that `delta` makes of `model`: see `Artefact.with_changes`."""
    if delta.spec.sha256 != model.spec.sha256:
        raise ArtefactError("the delta is of a model with another spec; load the snapshot of its version")
    _check_follows(model.content, delta)
    made = Artefact(
        **_merged(model, delta, delta.variants != 0),
        spec=delta.spec,
        metrics=delta.metrics,
        calibration=delta.calibration,
    )
    if made.content != delta.content:
        raise ArtefactError(
            f"the delta should make a model of content {delta.content} and makes {made.content}; "
            "load the snapshot of its version"
        )
    return made


def joined(first: Delta, later: Delta) -> Delta:
    """Two deltas in one: see `Delta.followed_by`. A key that is taken out stays in it, to be taken out."""
    _check_follows(first.content, later)
    return replace(
        later,
        **_merged(first, later, np.ones(later.rows, np.bool_)),
        parent=first.parent,
        parent_content=first.parent_content,
    )


def _check_can_change(parent: Artefact, model: Artefact) -> None:
    if parent.spec.sha256 != model.spec.sha256:
        raise ArtefactError("a delta cannot change the spec: publish this model whole")
    if parent.source is not None or model.source is not None:
        raise ArtefactError("a model of the JSON form has no deltas: publish it whole")
    for rows in (parent, model):
        if not rows.variants.all():
            key = rows.key(int(np.argmin(rows.variants)))
            raise ArtefactError(
                f"no variant uses key {key!r}, which in a delta would take it out: leave it out"
            )


def _check_follows(content: str, delta: Delta) -> None:
    if delta.parent_content != content:
        raise ArtefactError(
            f"the delta changes a model of content {delta.parent_content}, and this one has {content}: "
            "a version in between is missing, or it is of another line; load the snapshot of its version"
        )


def _changed(parent: Artefact, model: Artefact, threshold: float) -> npt.NDArray[np.int64]:
    """The rows of both, paired by key, that must go out: int64[n, 2]."""
    pairs = np.empty((parent.rows + model.rows, 2), np.int64)
    columns = (parent.key_data, parent.key_offsets, model.key_data, model.key_offsets)
    pairs = pairs[: kernels.pair_rows(*columns, pairs)]
    before, after = _values(parent, pairs[:, 0]), _values(model, pairs[:, 1])
    return pairs[moved(before, after, threshold)]


def moved(before: dict[str, Array], after: dict[str, Array], threshold: float) -> npt.NDArray[np.bool_]:
    """Which rows go out: bool[n]. With threshold 0 where any bit differs, else where a weight moved by more.

    before, after: weight, variants and rate by name; a key that is not there has zeros. Where other variants use a key
    than did, it goes out with any threshold.
    """
    if threshold > 0.0:
        both = (before["variants"] != 0) & (after["variants"] != 0)
        distance = np.abs(after["weight"].astype(np.float64) - before["weight"])
        users_changed = both & (before["variants"] != after["variants"])
        return np.asarray(_any(distance > threshold) | users_changed)
    differ = [_any(after[name].view(np.uint32) != before[name].view(np.uint32)) for name in VALUES]
    return np.asarray(np.logical_or.reduce(differ))


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


def _merged(first: ModelRows, second: ModelRows, kept: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """The columns of both by key; where both have a key the second's row, or none where it is not `kept`."""
    places = np.empty(second.rows, np.int64)
    kernels.find_rows(first.key_data, first.key_offsets, second.key_data, second.key_offsets, places)
    plan = np.empty(first.rows + second.rows, np.int64)
    plan = plan[: kernels.plan_merge(first.rows, places, kept.view(np.uint8), plan)]
    key_data, key_offsets = _keys(first, second, plan)
    of_second = plan < 0
    merged: dict[str, Any] = {"key_data": key_data, "key_offsets": key_offsets}
    for name in VALUES:
        column: Array = getattr(first, name)
        merged[name] = np.empty((plan.size, *column.shape[1:]), column.dtype)
        merged[name][~of_second] = column[plan[~of_second]]
        merged[name][of_second] = getattr(second, name)[-1 - plan[of_second]]
    return merged


def _keys(first: ModelRows, second: ModelRows, plan: npt.NDArray[np.int64]) -> tuple[Array, Array]:
    """The keys that a plan names: row r of the first as r, row s of the second as -1 - s."""
    offsets = np.empty(plan.size + 1, np.int64)
    kernels.merged_offsets(first.key_offsets, second.key_offsets, plan, offsets)
    data = np.empty(int(offsets[-1]), np.uint8)
    columns = (first.key_data, first.key_offsets, second.key_data, second.key_offsets)
    kernels.merged_keys(*columns, plan, data)
    return data, offsets
