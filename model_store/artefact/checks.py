"""What must hold of an artefact or a delta, checked before anything uses it. The invariants stand in the classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from model_store.artefact.calibration import check_fits
from model_store.artefact.rows import OWN_VALUES, Content
from model_store.errors import ArtefactError
from model_store.spec.keys import MAX_KEY_BYTES

if TYPE_CHECKING:
    from model_store.artefact.artefact import Artefact, Delta
    from model_store.artefact.rows import ModelRows


def check(artefact: Artefact) -> None:
    """Raise ArtefactError unless every invariant of `Artefact` holds. O(rows)."""
    _check_rows(artefact)
    check_source(artefact)


def check_delta(delta: Delta) -> None:
    """Raise ArtefactError unless every invariant of `Delta` holds. O(rows)."""
    _check_rows(delta)
    for content in (delta.content, delta.parent_content):
        Content.parse(content)
    numbers = (delta.weight != 0) | (delta.rate != 0)
    left = (numbers.any(axis=1) if delta.per_variant else numbers) & (delta.variants == 0)
    if left.any():
        row = int(np.argmax(left))
        raise ArtefactError(
            f"the delta takes out key {delta.key(row)!r} and gives it weight {delta.weight[row]} and rate "
            f"{delta.rate[row]}; expected 0"
        )


def _check_rows(artefact: ModelRows) -> None:
    check_shapes(artefact)
    keys = artefact.key_array()
    if not is_sorted(keys):
        _raise_disorder(keys)
    bad = ~(np.isfinite(artefact.weight) & np.isfinite(artefact.rate))
    if bad.any():
        row, *bit = np.unravel_index(int(np.argmax(bad)), bad.shape)
        whose = f" for variant {list(artefact.spec.variants)[bit[0]]!r}" if bit else ""
        raise ArtefactError(
            f"key {artefact.key(int(row))!r} has weight {artefact.weight[row, *bit]} and rate "
            f"{artefact.rate[row, *bit]}{whose}; expected finite numbers"
        )
    count = len(artefact.spec.variants)
    if artefact.rows and int(np.bitwise_or.reduce(artefact.variants)) >> count:
        raise ArtefactError(f"a key is used by a variant beyond the {count} of the spec")
    _check_users(artefact)
    if artefact.calibration is not None:
        fields = artefact.spec.fields.items()
        request_fields = [name for name, field in fields if field.side != "item"]
        check_fits(artefact.calibration, artefact.spec.variants, request_fields)


def check_shapes(artefact: ModelRows) -> None:
    """Raise ArtefactError unless the columns fit together, rows in any order. O(rows)."""
    rows, offsets = artefact.rows, artefact.key_offsets
    for name in ("variants", "rate"):
        if len(getattr(artefact, name)) != rows:
            raise ArtefactError(
                f"{rows} weights, but {len(getattr(artefact, name))} values in column {name!r}"
            )
    _check_widths(artefact)
    if len(offsets) != rows + 1 or offsets[0] != 0 or offsets[-1] != len(artefact.key_data):
        raise ArtefactError(
            f"the key offsets do not span {rows} keys of {len(artefact.key_data)} bytes in all"
        )
    lengths = np.diff(offsets)
    if rows and not 0 < lengths.min() <= lengths.max() <= MAX_KEY_BYTES:
        row = int(np.argmax((lengths < 1) | (lengths > MAX_KEY_BYTES)))
        raise ArtefactError(f"key {row} has {lengths[row]} bytes; expected 1 to {MAX_KEY_BYTES}")


def check_source(artefact: Artefact) -> None:
    """Raise ArtefactError unless what JSON said, if there is any, is of as many rows."""
    source, rows = artefact.source, artefact.rows
    if source is not None and not len(source.fid) == len(source.value) == len(source.order) == rows:
        raise ArtefactError(f"the JSON columns do not have {rows} rows each")


def _check_widths(artefact: ModelRows) -> None:
    """Raise ArtefactError unless weights and rates are as the spec's `learner.values` says.

    They are [rows, variants] with values = "per_variant", else [rows]; [rows] too for a model that came from JSON,
    whose one weight serves every variant.
    """
    values, count = artefact.spec.learner.values, len(artefact.spec.variants)
    expected = (artefact.rows, count) if artefact.expects_own else (artefact.rows,)
    if artefact.variants.ndim != 1:
        raise ArtefactError(
            f"column 'variants' has the shape {artefact.variants.shape}; expected one number a key"
        )
    for name in OWN_VALUES:
        shape = getattr(artefact, name).shape
        if shape != expected:
            raise ArtefactError(
                f"column {name!r} has the shape {shape}; the spec has {count} variants and learner.values = "
                f'"{values}": expected {expected}'
            )


def _check_users(artefact: ModelRows) -> None:
    """Raise ArtefactError unless a key's weight is 0 for every variant that does not use it. O(rows · variants)."""
    if not artefact.per_variant:
        return
    for bit, name in enumerate(artefact.spec.variants):
        weighed = (artefact.weight[:, bit] != 0) & ~artefact.used_by(bit)
        if weighed.any():
            row = int(np.argmax(weighed))
            raise ArtefactError(
                f"key {artefact.key(row)!r} has weight {artefact.weight[row, bit]} for variant {name!r}, which does "
                "not use it; expected 0"
            )


def is_sorted(keys: pa.LargeBinaryArray) -> bool:
    """True if each key is less than the next one, as unsigned bytes."""
    if len(keys) < 2:
        return True
    return bool(pc.all(pc.less(keys.slice(0, len(keys) - 1), keys.slice(1))).as_py())


def _raise_disorder(keys: pa.LargeBinaryArray) -> None:
    row = pc.index(pc.less(keys.slice(0, len(keys) - 1), keys.slice(1)), False).as_py()
    first, second = keys[row].as_py(), keys[row + 1].as_py()
    what = "occurs twice" if first == second else f"stands before {second!r}; keys must ascend"
    raise ArtefactError(f"key {first!r} (row {row}) {what}")
