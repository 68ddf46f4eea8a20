"""Sums of groups of rows: what `metrics_kernels` adds up, the figures of a group, and bins for reliability diagrams.

Slices (`--slice`) are the groups of each value of a field, or of each key under a prefix, in bounded memory: a group
for each of the first SLICE_VALUES values in order of arrival, and one for all later values. Of a whole field the rows
without a value are a group too, whose value is "".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from model_store.errors import SpecError, listed
from model_store.features.features import FeaturePlan, FieldPlan
from model_store.spec.keys import unescape
from model_store.spec.sections import MAX_CROSS_FIELDS
from trainer.examples.hashing import Examples, cross_fields
from trainer.formats.cells import text_places
from trainer.learn.metrics.figures import NORMAL_95, Floats, VariantSums, computed, figures_of, ratio
from trainer.learn.metrics.metrics_kernels import (
    CLICKED,
    CLICKS,
    CLUSTERS,
    COUNTS,
    LOSS,
    NO_TOKEN,
    OPEN,
    OPEN_WEIGHT,
    PREDICTED,
    PRODUCTS,
    ROWS,
    SCORE_RANGE,
    SQUARED_WEIGHT,
    SQUARES,
    SUMS,
    WEIGHT,
    Conditions,
    Tally,
    Values,
    add_slices,
    digest_of,
)
from trainer.learn.metrics.records import Bin, DifferenceFromBase, GroupMetrics, SliceMetrics, VariantMetrics
from trainer.learn.predictions_kernels import Predictions, probabilities

RELIABILITY_BINS = 20
SLICE_VALUES = 256
SLICE_BUCKETS = 512


def new_tally(groups: int, variants: int, buckets: int) -> Tally:
    """The sums of `groups` groups, all 0; `buckets` divide the scores from -16 to 16."""
    return Tally(
        counts=np.zeros((groups, COUNTS)),
        sums=np.zeros((groups, SUMS, variants)),
        positives=np.zeros((groups, variants, buckets)),
        negatives=np.zeros((groups, variants, buckets)),
        requests=np.zeros(groups, np.uint64),
    )


@dataclass(frozen=True)
class GroupSums:
    """A copy of the sums of one group of rows; a later copy minus an earlier one has the sums of the rows between.

    squares, products, squared_weight are over clusters, as in `Tally`. loss, predicted, squares, products:
    float64[variants]; positives, negatives: float64[variants, buckets].
    """

    rows: float
    clicked: float
    weight: float
    clicks: float
    clusters: float
    squared_weight: float
    loss: Floats
    predicted: Floats
    squares: Floats
    products: Floats
    positives: Floats
    negatives: Floats

    @classmethod
    def of(cls, tally: Tally, group: int = 0) -> Self:
        """Copy a group's sums, its open cluster included."""
        counts, sums = tally.counts[group], tally.sums[group]
        pending, weight = sums[OPEN], counts[OPEN_WEIGHT]
        return cls(
            rows=float(counts[ROWS]),
            clicked=float(counts[CLICKED]),
            weight=float(counts[WEIGHT]),
            clicks=float(counts[CLICKS]),
            clusters=float(counts[CLUSTERS]),
            squared_weight=float(counts[SQUARED_WEIGHT] + weight * weight),
            loss=sums[LOSS].copy(),
            predicted=sums[PREDICTED].copy(),
            squares=sums[SQUARES] + pending * pending,
            products=sums[PRODUCTS] + pending * weight,
            positives=tally.positives[group].copy(),
            negatives=tally.negatives[group].copy(),
        )

    def __add__(self, other: GroupSums) -> GroupSums:
        """The sums of both groups' rows."""
        return GroupSums(
            **{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        )

    def __sub__(self, earlier: GroupSums) -> GroupSums:
        """The sums of the rows after `earlier`.

        Differences of weights have rounding errors where no row was added; the numbers of rows are exact.
        """
        sums = {each.name: getattr(self, each.name) - getattr(earlier, each.name) for each in fields(self)}
        if sums["clicked"] == 0.0:
            sums |= {"clicks": 0.0, "positives": np.zeros_like(self.positives)}
        elif sums["clicked"] == sums["rows"]:
            sums |= {"clicks": sums["weight"], "negatives": np.zeros_like(self.negatives)}
        return GroupSums(**sums)

    def metrics(self, variants: Sequence[str]) -> GroupMetrics:
        """All figures of the group; `variants` are names, the base first."""
        figures = [figures_of(self._variant(index)) for index in range(len(variants))]
        differences = [self._difference(index, figures) if index else None for index in range(len(variants))]
        made = zip(variants, figures, differences, strict=True)
        return GroupMetrics(
            rows=round(self.rows),
            weight=self.weight,
            clicks=self.clicks,
            click_rate=ratio(self.clicks, self.weight),
            variants={name: VariantMetrics(**own, difference=each) for name, own, each in made},
        )

    def _variant(self, index: int) -> VariantSums:
        sums = float(self.loss[index]), float(self.predicted[index])
        return VariantSums(self.weight, self.clicks, *sums, self.positives[index], self.negatives[index])

    def _difference(self, index: int, figures: Sequence[dict[str, float | None]]) -> DifferenceFromBase:
        mean = ratio(float(self.loss[index] - self.loss[0]), self.weight)
        half = None if mean is None else self._half_interval(index, mean)
        return DifferenceFromBase(
            logloss=mean,
            low=None if mean is None or half is None else mean - half,
            high=None if mean is None or half is None else mean + half,
            auc_loss_percent=_percent(figures[index]["auc"], figures[0]["auc"]),
        )

    def _half_interval(self, index: int, mean: float) -> float | None:
        """Half the 95 % interval of a ratio of sums over clusters, linearised (Cochran 1977, section 6.3).

        The residual of cluster c is D_c - mean W_c; its expanded square needs only sums that do not depend on the mean.
        """
        if self.clusters < 2:
            return None
        squares = self.squares[index] - 2.0 * mean * self.products[index] + mean * mean * self.squared_weight
        variance = max(float(squares), 0.0) * self.clusters / (self.clusters - 1.0)
        return NORMAL_95 * math.sqrt(variance) / self.weight


def equal_weights(weight: Floats, count: int) -> npt.NDArray[np.int64]:
    """The number of each bucket's bin, of `count` bins of about equal weight: int64[buckets]."""
    before = np.cumsum(weight) - weight
    bins = np.minimum((before + 0.5 * weight) / weight.sum() * count, count - 1)
    return np.asarray(bins, np.int64)


def reliability(positives: Floats, negatives: Floats) -> list[Bin]:
    """Up to 20 bins of equal weight by prediction, each with its weight, sum of p and clicks.

    A row's p is taken at the middle of its score's bucket: within a factor exp(half a bucket) of its own, 0.2 % with
    the 8192 buckets of all rows.
    """
    weight = positives + negatives
    if float(weight.sum()) <= 0.0:
        return []
    bucket = 2.0 * SCORE_RANGE / weight.size
    middles: npt.NDArray[Any] = (np.arange(weight.size) + 0.5) * bucket - SCORE_RANGE
    predicted = weight * computed(probabilities, middles)
    bins = equal_weights(weight, RELIABILITY_BINS)
    columns = [np.bincount(bins, each, RELIABILITY_BINS) for each in (weight, predicted, positives)]
    return [Bin(weight=w, predicted=p, clicks=y) for w, p, y in zip(*columns, strict=True) if w > 0.0]


def _percent(own: float | None, base: float | None) -> float | None:
    if own is None or base is None or base >= 1.0:
        return None
    return 100.0 * ((1.0 - own) / (1.0 - base) - 1.0)


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
        raw = [field for field in plan.fields if field.kind.whole_keys]
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
    if any(field.kind.whole_keys for field in fields):
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
