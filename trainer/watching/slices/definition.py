"""What `--slice` names: the values of a field, or the keys under a prefix. Counting is elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model_store.errors import SpecError
from model_store.features import FeaturePlan, FieldPlan
from model_store.keys import unescape
from model_store.spec_sections import MAX_CROSS_FIELDS
from trainer.watching.slices.kernels import Conditions, digest_of


@dataclass(frozen=True)
class Slice:
    """The rows to watch apart: one group for each combination of the fields' values whose text fits.

    exact: texts that the first fields' values must be; head: what the next field's text must begin with.
    """

    name: str
    fields: tuple[FieldPlan, ...]
    exact: tuple[bytes, ...] = ()
    head: bytes = b""

    @classmethod
    def of(cls, name: str, plan: FeaturePlan) -> Slice:
        """Read a field (`device`), a key prefix (`device*os=`, `device*os=ios*1`), or the beginning of raw keys.

        A prefix may join up to four fields in any order, also where the model has no such cross. Raises SpecError.
        """
        by_name = {field.name: field for field in plan.fields}
        raw = [field for field in plan.fields if field.kind == "raw"]
        if name in by_name:
            return cls(name, _watchable(name, [by_name[name]]))
        names, equals, values = name.encode().partition(b"=")
        parts = [unescape(part).decode() for part in names.split(b"*")]
        if (equals or len(parts) > 1) and all(part in by_name for part in parts):
            return _of_prefix(name, [by_name[part] for part in parts], values)
        if len(raw) == 1 and name:
            return cls(name, (raw[0],), head=name.encode())
        raise SpecError(
            f"--slice {name!r} is no field and no key prefix such as 'device*os='; "
            f"fields: {', '.join(by_name)}"
        )


def _of_prefix(name: str, fields: Sequence[FieldPlan], values: bytes) -> Slice:
    if len(fields) > MAX_CROSS_FIELDS:
        raise SpecError(f"--slice {name!r} joins {len(fields)} fields; up to {MAX_CROSS_FIELDS} are allowed")
    if any(field.kind == "raw" for field in fields):
        raise SpecError(f"--slice {name!r} joins raw keys, which cannot be crossed")
    *exact, head = values.split(b"*")
    if len(exact) >= len(fields):
        raise SpecError(f"--slice {name!r} has {len(exact) + 1} values for {len(fields)} fields")
    return Slice(name, _watchable(name, fields), tuple(exact), head)


def _watchable(name: str, fields: Sequence[FieldPlan]) -> tuple[FieldPlan, ...]:
    for field in fields:
        if field.kind == "number" and field.spec.bucket is None:
            raise SpecError(
                f"--slice {name!r}: {field.name} is a real number and has one key for all its values; "
                'slice by a field of the same column with bucket = "log"'
            )
    return tuple(fields)


def field_table(slices: Sequence[Slice]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """The fields of each slice, int64[slices, 4], padded with -1: what a token layout has as its crosses."""
    table = np.full((len(slices), MAX_CROSS_FIELDS), -1, np.int64)
    for row, each in zip(table, slices, strict=True):
        row[: len(each.fields)] = [field.index for field in each.fields]
    return table


def conditions_of(slices: Sequence[Slice]) -> Conditions:
    """What the slices' prefixes ask, as their kernel takes it."""
    digests = np.zeros((len(slices), MAX_CROSS_FIELDS), np.uint64)
    for row, each in zip(digests, slices, strict=True):
        row[: len(each.exact)] = [digest_of(_bytes(text)) for text in each.exact]
    part = np.array([len(each.exact) for each in slices], np.int64)
    starts = np.cumsum([0, *(len(each.head) for each in slices)]).astype(np.int64)
    return Conditions(digests, part, _bytes(b"".join(each.head for each in slices)), starts)


def _bytes(text: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(text, np.uint8).copy()
