"""Slices: metrics of each value of a field, or of each key under a prefix, in bounded memory (`--slice`).

A slice has one group for each of its first SLICE_VALUES values in order of arrival, and one for all later values. Of a
whole field the rows without a value are a group too, whose value is "".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from model_store.errors import SpecError, listed
from model_store.features.features import FeaturePlan, FieldPlan
from model_store.spec.keys import unescape
from model_store.spec.sections import MAX_CROSS_FIELDS
from trainer.examples.hashing import Examples, cross_fields
from trainer.formats.cells import text_places
from trainer.learn.metrics.metrics_kernels import NO_TOKEN, Conditions, Values, add_slices, digest_of
from trainer.learn.metrics.records import SliceMetrics
from trainer.learn.metrics.tally import GroupSums, new_tally
from trainer.learn.predictions_kernels import Predictions

SLICE_VALUES = 256
SLICE_BUCKETS = 512


@dataclass(frozen=True)
class Slice:
    """The rows of a slice: one group for each combination of the fields' values that matches.

    exact: the values of the first fields; head: the prefix of the next field's value.
    """

    name: str
    fields: tuple[FieldPlan, ...]
    exact: tuple[bytes, ...] = ()
    head: bytes = b""

    @classmethod
    def of(cls, name: str, plan: FeaturePlan) -> Slice:
        """Parse a field (`device`), a key prefix (`device*os=`, `device*os=ios*1`), or a prefix of raw keys.

        A prefix may combine up to four fields in any order, whether or not the model has that cross. Raises SpecError.
        """
        by_name = {field.name: field for field in plan.fields}
        raw = [field for field in plan.fields if field.kind == "raw"]
        if name in by_name:
            return cls(name, _checked(name, [by_name[name]]))
        names, equals, values = name.encode().partition(b"=")
        parts = [unescape(part).decode() for part in names.split(b"*")]
        if (equals or len(parts) > 1) and all(part in by_name for part in parts):
            return _of_prefix(name, [by_name[part] for part in parts], values)
        if len(raw) == 1 and name:
            return cls(name, (raw[0],), head=name.encode())
        raise SpecError(
            f"--slice {name!r} is neither a field nor a key prefix such as 'device*os='; "
            f"fields: {listed(by_name, name)}"
        )


class SlicedMetrics:
    """Running metrics of slices. Not thread-safe; batch boundaries change no figure."""

    def __init__(self, slices: Sequence[Slice], variants: Sequence[str], limit: int = SLICE_VALUES) -> None:
        self.slices = tuple(slices)
        self.limit = limit
        self._variants = tuple(variants)
        self._fields = cross_fields([each.fields for each in slices])
        self._conditions = _conditions_of(slices)
        size = 1 << (2 * limit - 1).bit_length()
        shape = (len(slices), size)
        self._values = Values(
            np.zeros(shape, np.uint64), np.zeros(shape, np.int64), np.zeros(len(slices), np.int64)
        )
        self._texts: list[list[bytes]] = [[] for _ in slices]
        # Pages of unused groups are never touched, so they take no memory.
        self._tally = new_tally(len(slices) * (limit + 1), len(variants), SLICE_BUCKETS)

    def update(self, predictions: Predictions, examples: Examples, first: int, last: int) -> None:
        """Add rows `first` to `last` (exclusive) of a batch."""
        most = len(self.slices) * self.limit - int(self._values.used.sum())
        arrivals = np.empty((most, 1 + MAX_CROSS_FIELDS), np.int64)
        tokens = examples.tokens._replace(crosses=self._fields)
        new = add_slices(
            *(predictions, examples.rows, first, last, tokens, text_places(examples.texts)),
            *(self._conditions, self._values, arrivals, self._tally),
            np.empty(MAX_CROSS_FIELDS, np.int64),
        )
        for index, *picked in arrivals[:new].tolist():
            self._texts[index].append(_text(self.slices[index], picked, examples))

    def metrics(self) -> dict[str, list[SliceMetrics]]:
        """Of each slice the metrics of its values, most rows first, those beyond the limit last."""
        return {each.name: self._of_slice(index) for index, each in enumerate(self.slices)}

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Everything as arrays, for a checkpoint; only the groups in use."""
        groups = self._groups_in_use()
        texts = [text for values in self._texts for text in values]
        return {
            "names": _bytes("\0".join(each.name for each in self.slices).encode()),
            "used": self._values.used.copy(),
            "identities": self._values.identities.copy(),
            "places": self._values.numbers.copy(),
            "texts": _bytes(b"".join(texts)),
            "text_lengths": np.array([len(text) for text in texts], np.int64),
            **{name: array[groups].copy() for name, array in self._tally._asdict().items()},
        }

    def restore(self, state: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Restore a `state` of the same slices."""
        self._values.used[...] = state["used"]
        self._values.identities[...] = state["identities"]
        self._values.numbers[...] = state["places"]
        ends = np.cumsum(state["text_lengths"]).tolist()
        data = state["texts"].tobytes()
        texts = [
            data[end - size : end] for end, size in zip(ends, state["text_lengths"].tolist(), strict=True)
        ]
        for values, used in zip(self._texts, self._values.used.tolist(), strict=True):
            values[:], texts = texts[:used], texts[used:]
        for name, array in self._tally._asdict().items():
            array[self._groups_in_use()] = state[name]

    def _groups_in_use(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        used = self._values.used.tolist()
        return np.concatenate(
            [index * (self.limit + 1) + np.arange(count + 1) for index, count in enumerate(used)]
        )

    def _of_slice(self, index: int) -> list[SliceMetrics]:
        first = index * (self.limit + 1)
        values = [
            self._of_group(first + number, text.decode(errors="replace"))
            for number, text in enumerate(self._texts[index], start=1)
        ]
        values.sort(key=lambda each: -each.rows)
        other = self._of_group(first, None)
        return [*values, other] if other.rows else values

    def _of_group(self, group: int, value: str | None) -> SliceMetrics:
        metrics = GroupSums.of(self._tally, group).metrics(self._variants)
        return SliceMetrics(value=value, **dict(metrics))


def _of_prefix(name: str, fields: Sequence[FieldPlan], values: bytes) -> Slice:
    if len(fields) > MAX_CROSS_FIELDS:
        raise SpecError(
            f"--slice {name!r} combines {len(fields)} fields; at most {MAX_CROSS_FIELDS} are allowed"
        )
    if any(field.kind == "raw" for field in fields):
        raise SpecError(f"--slice {name!r} combines raw keys, which cannot be crossed")
    *exact, head = values.split(b"*")
    if len(exact) >= len(fields):
        raise SpecError(f"--slice {name!r} has {len(exact) + 1} values for {len(fields)} fields")
    return Slice(name, _checked(name, fields), tuple(exact), head)


def _checked(name: str, fields: Sequence[FieldPlan]) -> tuple[FieldPlan, ...]:
    for field in fields:
        if field.spec.is_number:
            raise SpecError(
                f"--slice {name!r}: {field.name} is a real number and has one key for all its values; "
                'slice by a field of the same column with bucket = "log"'
            )
    return tuple(fields)


def _conditions_of(slices: Sequence[Slice]) -> Conditions:
    """The conditions of the slices' prefixes."""
    digests = np.zeros((len(slices), MAX_CROSS_FIELDS), np.uint64)
    for row, each in zip(digests, slices, strict=True):
        row[: len(each.exact)] = [digest_of(_bytes(text)) for text in each.exact]
    part = np.array([len(each.exact) for each in slices], np.int64)
    starts = np.cumsum([0, *(len(each.head) for each in slices)]).astype(np.int64)
    return Conditions(digests, part, _bytes(b"".join(each.head for each in slices)), starts)


def _bytes(text: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(text, np.uint8).copy()


def _text(each: Slice, picked: Sequence[int], examples: Examples) -> bytes:
    """The values of a key, written as in the key; nothing for the rows without a value."""
    if picked[0] == NO_TOKEN:
        return b""
    tokens = zip(each.fields, picked, strict=False)
    texts, number = examples.texts, examples.tokens.text_number
    return b"*".join(texts[field.index][number(field.index, token)].as_py() for field, token in tokens)
