"""Coordinates: the value table, the learner that updates it, and the admission policy.

Bit-identical for the same examples in the same order. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.features.features import FeaturePlan
from model_store.spec.kinds import KINDS
from model_store.spec.learner_section import LearnerSection
from model_store.spec.spec import ModelSpec
from trainer.examples.examples_kernels import HashedRows
from trainer.examples.rules import FeatureRules
from trainer.learn import loops_kernels as loops
from trainer.learn.admission import Admission
from trainer.learn.buckets import Buckets
from trainer.learn.coordinates_kernels import (
    Alphas,
    Averages,
    FakeNegatives,
    Learning,
    OneAlpha,
    Variants,
    catch_up,
    keep_of,
    rates_of,
    reset_all,
    save_each,
    weights_of,
)
from trainer.learn.learners.operations import LAZY_SIZE
from trainer.learn.learners.registry import (
    RateParameters,
    algorithm,
    learner_of,
    n_of_rate,
    needs_seen,
    state_of_weight,
    weight_of_state,
)
from trainer.learn.predictions_kernels import split_rows
from trainer.learn.simd_kernels import LANES
from trainer.learn.slots_kernels import layout_of
from trainer.learn.table import TableKeys, ValueTable, part_of
from trainer.learn.table_kernels import has_repeats

Numbers = npt.NDArray[np.float64]
"""Kinds of fields whose keys may be twice in a row."""


class Coordinates:
    """The state of every admitted key, updated in place.

    `own`: the number of variants with values of their own, 1 where all share them. `examples`: how many were learned.
    """

    def __init__(
        self, spec: ModelSpec, masks: npt.NDArray[np.uint32], rules: FeatureRules, *, keep_seen: bool = False
    ) -> None:
        """masks: uint32[features], bit v set where variant v uses the feature's keys.

        keep_seen: slots store the last example that touched them, even if the learner does not need it.
        """
        section = self._section = spec.learner
        self._masks = masks
        self.margin = Margin.of(spec, masks, rules)
        """The keys whose weight is given: none of them is in the table."""
        masks = self.margin.learned(masks)
        several = len(spec.variants)
        self.own = several if section.values == "per_variant" else 1
        layout = layout_of("per_variant" if self.own > 1 else "single", section.precision, section.rate)
        self.admission = Admission.of(rules, section.seed)
        self.variants = _variants(spec, masks, rules, self.own)
        alpha, beta, _, l2 = self.variants.parameters[0]
        own = self.variants.parameters[: self.own]
        if algorithm(section.algorithm).prior_mean is not None:
            l1 = _prior_means(section, own, masks, rules)
        else:
            l1 = _by_feature(own[:, 2], rules.l1)
        lazy = np.zeros((self.own, LAZY_SIZE))
        self._of = Learning(learner_of(spec, alpha, beta, l2), l1, lazy, self.variants)
        self._averaged = averaged_by(spec) if self.own > 1 else np.full(1, -1)
        # What a bucket's keys have in common beside the variants: l1, and alpha where rules set it.
        settings = l1
        if rules.alpha is not None:
            settings = np.vstack([np.broadcast_to(l1, (self.own, masks.size)), self.variants.alphas.of])
        self.table = ValueTable(
            layout,
            variants=self.own,
            keep_seen=keep_seen or needs_seen(spec),
            seed=section.seed,
            buckets=None
            if section.buckets is None
            else Buckets.of(section.buckets, section.hashing, masks, settings),
        )
        self._may_repeat = section.buckets is not None or any(
            KINDS[field.kind].is_list for field in spec.fields.values()
        )
        reset_all(self._of.learner, lazy)
        self._loop = (
            loops.learn_own if self.own > 1 else loops.learn_shared if several > 1 else loops.learn_one
        )
        self.examples = 0

    def correct_fake_negatives(self) -> None:
        """Learn from now on as of examples that come as negatives first, see `coordinates_kernels.FakeNegatives`."""
        self._of = self._of._replace(labels=FakeNegatives())

    def predicted(self, rows: int) -> loops.Predicted:
        """Output arrays for `learn`: each row's score and probability before it is learned."""
        columns = int(self.variants.uses.shape[1])
        shape = rows, columns
        return loops.Predicted(np.empty(shape), np.empty(shape), self.margin.room(*shape))

    def learn(
        self, rows: HashedRows, begin: int, end: int, predicted: loops.Predicted, *, enters: bool = True
    ) -> tuple[npt.NDArray[np.int64], int]:
        """Predict and learn rows begin to end in turn; return the new keys' positions, int64[k], and the next row.

        It stops before `end` if coordinates must catch up before the new keys are in the arena. Rows of weight 0 are
        predicted alone, and are no examples. enters: whether keys that share buckets are known from now on.
        """
        if begin == end:
            return np.empty(0, np.int64), end
        rows, positions = self.margin.split(rows, begin, end, predicted.margins)
        keys, buckets = rows, self.table.buckets
        if buckets is not None:
            rows = buckets.fold(rows, begin, end)
        first = int(rows.starts[begin])
        added = np.empty(int(rows.starts[end]) - first, np.int64)
        longest = int(np.diff(rows.starts[begin : end + 1]).max(initial=0))
        classes, columns = self.variants.uses.shape
        work = loops.Work.of(longest, columns, classes, self.own)
        repeats = self._may_repeat
        if repeats:
            last = np.full(1 << min(20, (16 * max(longest, 1)).bit_length()), -1, np.int64)
            repeats = bool(has_repeats(rows, begin, end, last))
        row, count = begin, 0
        while row < end:
            limits = loops.Limits(row, self.examples + 1, end, count, count + self.table.room, repeats)
            row, following, total = self._loop(
                self.table.layout, rows, limits, self.admission.parameters, self._of, predicted, added, work
            )
            self.table.used += total - count
            self.examples, count = following - 1, total
            if row < end and not self._make_room(int(rows.starts[row + 1] - rows.starts[row]), count):
                break
        new = added[:count]
        if buckets is not None and enters:
            new = buckets.enter(keys.hashes, keys.features, int(keys.starts[begin]), int(keys.starts[row]))
        return (new if positions is None else positions[new]), row

    def predict(self, rows: HashedRows) -> loops.Predicted:
        """Predict rows and learn none of them."""
        size = int(rows.labels.size)
        predicted = self.predicted(size)
        # The bytes of a key are written where it is new, so a key that is only looked at must stay new.
        self.learn(rows._replace(weights=np.zeros(size)), 0, size, predicted, enters=False)
        return predicted

    def weights(self, keys: TableKeys) -> Numbers:
        """The weight of every key: float64[keys, own]."""
        out = np.empty((keys.slots.size, self.own))
        weights_of(self.table.layout, keys.slots, keys.features, self._of, self.examples + 1, out)
        return out

    def rates(self, keys: TableKeys) -> Numbers:
        """The present learning rate of every key: float64[keys, own]."""
        out = np.empty((keys.slots.size, self.own))
        rates_of(self.table.layout, keys.slots, keys.features, self._of, max(self.examples, 1), out)
        return out

    def divergence(self, keys: TableKeys) -> Numbers:
        """The Kullback-Leibler divergence of every key's posterior from its prior, in nats: float64[keys, own].

        For adpredictor alone.
        """
        alpha = self.variants.parameters[: self.own, 0]
        prior = np.stack([self._l1_of(v, keys.features) for v in range(self.own)], axis=1)
        learned = self.rates(keys) / alpha
        moved = np.square(self.weights(keys) - prior) / alpha
        found: Numbers = 0.5 * (learned + moved - 1.0 - np.log(learned))
        return found

    def masks_of(self, keys: TableKeys) -> npt.NDArray[np.uint32]:
        """Which variants use each key, one bit each: uint32[keys]."""
        return self._masks[keys.features]

    def warm_start(
        self,
        data: npt.NDArray[np.uint8],
        offsets: npt.NDArray[np.int64],
        features: npt.NDArray[np.uint16],
        weight: Numbers,
        rate: Numbers,
    ) -> None:
        """Admit keys with the state that yields these weights and rates, float64[n, own]. The table must be empty.

        A bucket gets the mean weight and rate of its keys.
        """
        slots = self.table.add(data, offsets, features)
        if self.table.buckets is not None:
            slots, first, of_key = np.unique(slots, return_index=True, return_inverse=True)
            features = features[first]
            weight, rate = _means(weight, of_key, slots.size), _means(rate, of_key, slots.size)
        # An average begins with the weights of its variant: the state is 0.
        learning = np.flatnonzero(self._averaged < 0)
        n_of = {
            v: n_of_rate(self._section, rate[:, v], self._rate_of(v, features)) for v in learning.tolist()
        }
        if self._section.rate == "counts":
            # The variants share a key's counts, of which those that do not use the key tell nothing.
            shared = np.max(list(n_of.values()), axis=0)
            shared = np.floor(2.0 * shared + 0.5) / 2.0  # the values that equal counts can yield
            n_of = dict.fromkeys(n_of, shared)
        for v, n in n_of.items():
            of, l2 = self._rate_of(v, features), self.variants.parameters[v, 3]
            a = state_of_weight(self._section, weight[:, v], n, of, self._l1_of(v, features), l2)
            save_each(self.table.layout, slots, features, v, self._of, a, n)

    def weight_of_state(self, v: int, features: npt.NDArray[np.uint16], a: Numbers, n: Numbers) -> Numbers:
        """The weights in variant v of keys with this state: see `registry.weight_of_state`."""
        of, l2 = self._rate_of(v, features), self.variants.parameters[v, 3]
        return weight_of_state(self._section, a, n, of, self._l1_of(v, features), l2)

    def state_of_weight(
        self, v: int, features: npt.NDArray[np.uint16], weight: Numbers, n: Numbers, within: Numbers
    ) -> Numbers:
        """a in variant v of keys with these weights and n; within: a, where FTRL's weight is 0 and does not give it."""
        of, l2 = self._rate_of(v, features), self.variants.parameters[v, 3]
        return state_of_weight(self._section, weight, n, of, self._l1_of(v, features), l2, within)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Everything that later rows depend on, as arrays."""
        state = {f"table.{name}": array for name, array in self.table.state().items()}
        state |= {f"admission.{name}": array for name, array in self.admission.state().items()}
        return state | {"marks": self._of.lazy, "examples": np.array([self.examples], np.int64)}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore a `state` of the same spec."""
        self.table.restore(part_of(state, "table."))
        self.admission.restore(part_of(state, "admission."))
        self._of.lazy[:] = state["marks"]
        self.examples = int(state["examples"][0])

    def _l1_of(self, v: int, features: npt.NDArray[np.uint16]) -> Numbers:
        l1: Numbers = self._of.l1[v, features if self._of.l1.shape[1] > 1 else np.zeros_like(features)]
        return l1

    def _rate_of(self, v: int, features: npt.NDArray[np.uint16]) -> RateParameters:
        alpha, beta = self.variants.parameters[v, :2].tolist()
        alphas = self.variants.alphas
        return RateParameters(alphas.of[v, features] if isinstance(alphas, Alphas) else alpha, beta)

    def _make_room(self, keys: int, added: int) -> bool:
        """Resolve what stopped the loop: no room for a row of `keys` keys, or a lazy state that needs a rebase.

        A rebase reads every key from the arena; returns False if keys of `added` new slots must be written to it first.
        """
        if self.table.room >= keys:
            if added:
                return False
            catch_up(self.table.layout, *self.table.used_slots(), self._of, self.examples + 1)
            reset_all(self._of.learner, self._of.lazy)
        while self.table.room < keys:
            self.table.grow()
        return True


class Margin:
    """Base margins: number fields whose weight is given by the spec, `fixed_weight`, and not learned.

    Their part of the score, weight * x, is where the learner starts from: it fits the rest. The keys are not in the
    value table, so nothing admits, regularizes or evicts them; `rows` adds them to what is published, like any other
    key, with a rate of 0. `weights`: float64[features], 0 elsewhere, as float32 has them.
    """

    def __init__(
        self, weights: npt.NDArray[np.float64], masks: npt.NDArray[np.uint32], variants: int
    ) -> None:
        self.weights, self.masks, self._variants = weights, masks, variants
        self.given = weights != 0.0
        self.exists = bool((self.given & (masks != 0)).any())

    @classmethod
    def of(cls, spec: ModelSpec, masks: npt.NDArray[np.uint32], rules: FeatureRules) -> Margin:
        """masks: uint32[features], bit v set where variant v uses the feature."""
        weights = np.zeros(masks.size)
        for index, field in enumerate(spec.fields.values()):
            # The server has the published weight, a float32: so does the trainer.
            weights[rules.owner == index + 1] = np.float32(field.fixed_weight or 0.0)
        return cls(weights, masks, len(spec.variants))

    def learned(self, masks: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """The masks, 0 for features whose weight is not learned."""
        return np.where(self.given, np.uint32(0), masks) if self.exists else masks

    def room(self, rows: int, lanes: int) -> npt.NDArray[np.float64]:
        """The array for the margins of so many rows."""
        return np.zeros((rows if self.exists else 0, lanes))

    def split(
        self, rows: HashedRows, begin: int, end: int, margins: npt.NDArray[np.float64]
    ) -> tuple[HashedRows, npt.NDArray[np.int64] | None]:
        """Rows begin to end without these keys, and where theirs are in `rows`; None: they are `rows` itself."""
        if not self.exists:
            return rows, None
        size = int(rows.starts[end] - rows.starts[begin])
        places = np.empty(size, np.int64)
        out = rows._replace(
            starts=np.zeros_like(rows.starts),
            hashes=np.empty(size, np.uint64),
            features=np.empty(size, np.uint16),
            x=np.empty(max(size, 1) if rows.x.size else 0),
        )
        split_rows(rows, begin, end, self.weights, self.masks, self._variants, out, places, margins)
        return out, places

    def rows(
        self, plan: FeaturePlan, own: int
    ) -> tuple[list[bytes], npt.NDArray[np.float32], npt.NDArray[np.uint32]]:
        """The keys to publish, their weights float32[keys, own], and who uses them, uint32[keys]."""
        fields = [each for each in plan.fields if self.given[each.index + 1] and each.mask]
        masks = np.array([each.mask for each in fields], np.uint32)
        weight: Any = np.array([self.weights[each.index + 1] for each in fields]).reshape(-1, 1)
        if own > 1:
            weight = weight * (masks.reshape(-1, 1) >> np.arange(own, dtype=np.uint32) & np.uint32(1))
        return [each.prefix for each in fields], weight.astype(np.float32), masks


def _means(numbers: Numbers, of_row: npt.NDArray[np.int64], size: int) -> Numbers:
    """The mean of the rows of each number in `of_row`: float64[size, columns]."""
    sums = np.zeros((size, numbers.shape[1]))
    np.add.at(sums, of_row, numbers)
    return sums / np.bincount(of_row, minlength=size).reshape(-1, 1)


def _variants(spec: ModelSpec, masks: npt.NDArray[np.uint32], rules: FeatureRules, own: int) -> Variants:
    """Which variants learn which features, and each variant's parameters."""
    several = len(spec.variants)
    of = averaged_by(spec)
    learning = np.uint32(sum(1 << bit for bit in range(several) if of[bit] < 0))
    distinct, class_of = np.unique(masks & learning, return_inverse=True)
    uses = np.zeros((distinct.size, 1 if several == 1 else -(-several // LANES) * LANES))
    for row, mask in zip(uses, distinct, strict=True):
        row[:several] = [(int(mask) >> bit) & 1 for bit in range(several)]
    names = ("alpha", "beta", "l1", "l2")
    parameters = np.array(
        [
            [variant.own_parameters.get(name, getattr(spec.learner, name)) for name in names]
            for variant in spec.variants.values()
        ]
    )
    alphas = OneAlpha() if rules.alpha is None else Alphas(_by_feature(parameters[:own, 0], rules.alpha))
    averages = Averages(np.empty(0, np.int64), np.empty(0), np.empty(0, np.int64))
    if (of >= 0).any():
        lives = np.array([variant.half_life or np.nan for variant in spec.variants.values()])
        keep = np.empty(several)
        keep_of(lives, keep)
        averages = Averages(of, keep, (1.0 / (1.0 - keep)).astype(np.int64))
    using = uses.sum(axis=1)
    classes = class_of.reshape(-1).astype(np.int64)
    inverse = 1.0 / np.maximum(using, 1.0)
    return Variants(classes, uses, using, inverse, *_shorter(uses[:, :several]), parameters, alphas, averages)


def _shorter(uses: Numbers) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """`counts`, `adds` and `members` of `Variants`; uses: float64[classes, variants]."""
    uses = np.vstack([uses, np.ones(uses.shape[1])])
    adds = 2 * uses.sum(axis=1) <= uses.shape[1]
    adds[-1] = True
    listed = uses == adds[:, None]
    return listed.sum(axis=1), adds, np.argsort(~listed, axis=1, kind="stable")


def averaged_by(spec: ModelSpec) -> npt.NDArray[np.int64]:
    """The number of the variant that each variant averages, -1 for one that learns: int64[variants]."""
    names = list(spec.variants)
    of = [variant.average for variant in spec.variants.values()]
    return np.array([-1 if name is None else names.index(name) for name in of], np.int64)


def _prior_means(
    section: LearnerSection, parameters: Numbers, masks: npt.NDArray[np.uint32], rules: FeatureRules
) -> Numbers:
    """The prior means of adpredictor's weights, where other learners have l1: 0, except for the bias, feature 0.

    The bias is such that an example with one value in every field and cross of the variant has the rate prior_ctr.
    """
    prior_mean: Any = algorithm(section.algorithm).prior_mean
    means = np.zeros((len(parameters), masks.size))
    for v, (alpha, beta) in enumerate(parameters[:, :2]):
        keys = np.unique(rules.owner[masks >> np.uint32(v) & np.uint32(1) != 0]).size
        means[v, 0] = prior_mean(section, alpha, beta, keys)
    return means


def _by_feature(of_variants: Numbers, of_features: Numbers | None) -> Numbers:
    """A number by variant and feature, float64[own, features], or [own, 1] where no rule sets it."""
    if of_features is None:
        return of_variants.reshape(-1, 1).copy()
    return np.where(np.isnan(of_features), of_variants.reshape(-1, 1), of_features)
