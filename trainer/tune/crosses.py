"""Proposes crosses: pairs of fields whose conjunction lowers the log-loss by more than chance would, one after another.

Every pair is a variant of one model: the spec without any proposed pair, or with one more. All learn the same rows in
the same pass, and each row is predicted before it is learned from, so the mean difference of their losses is the gain
that the cross would have had. A cross without effect costs a little: its expected gain is below 0. Fields of which it
is not known whether they help are proposed in the same way.

Of P pairs some look good by chance. A pair is proposed only if a one-sided t test of its gain, over blocks of rows
(`paired.py`), passes at 5 % / P (Bonferroni): at most one search in twenty proposes anything where no pair has an
effect. A pair that has no more keys than one of its fields alone says nothing new, and is not proposed. The
first round tries all pairs. The pair with the largest gain of those that pass joins the spec; the others that passed
are tried again beside it, and so on until none passes. The first round alone decides who may pass, so the later rounds
add no chance of an error, and test at 5 %.

Where there are too many pairs to learn each, `screened` ranks them. A model without crosses predicts each tenth of the
rows by those before it. What it leaves over is added up by the pair's values on the first half of the rows, as one
Newton step from 0 with a prior; the gain of that step on the second half, to the second order, ranks the pairs. So a
pair costs two sums over the rows instead of a variant that learns; after FAST (Lou, Caruana, Gehrke & Hooker, "Accurate
Intelligible Models with Pairwise Interactions", KDD 2013, section 4).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.errors import SpecError
from model_store.spec.kinds import KINDS
from model_store.spec.sections import Cross, FieldSpec
from model_store.spec.spec import ModelSpec
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.learn.model import LearningModel
from trainer.tune.candidates import Candidate, CandidateGroup, rebuilt, side_by_side, with_parameters
from trainer.tune.passes import FirstRows, Outcome, PairedDifference, Pass, RepeatedLog, cut

ERROR_RATE = 0.05
LEAST_GAIN = 0.0005
"""A feature that saves a smaller share of the log-loss is not worth its keys, however sure that is."""
PAIRS_PER_PASS = 15
"""With the model without them, 16 variants: with more, each key would have values of variants that do not use it."""

Feature = tuple[str, ...]
"""Two fields: their cross; one: a field of the spec, which is left out unless it is proposed."""


@dataclass(frozen=True)
class Trial:
    """A feature, what it gained beside those proposed before it, and its keys in the table.

    same_as: the field that has a key for each of the cross's, as an item has for it and its brand, "" for none:
    what the cross gains is a faster rate for that field, nothing new.
    """

    fields: Feature
    gain: PairedDifference
    keys: int
    passes_test: bool
    same_as: str = ""

    def as_dict(self) -> dict[str, object]:
        """The JSON form."""
        own = {"fields": list(self.fields), "gain": self.gain.as_dict(), "keys": self.keys}
        return own | ({"same_as": self.same_as} if self.same_as else {})


@dataclass(frozen=True)
class Proposal:
    """The features proposed, in this order; all as the first round found them, best first; the passes made.

    too_large: crosses that passed but whose keys exceeded what the budget had left.
    """

    proposed: tuple[Trial, ...]
    tried: tuple[Trial, ...]
    too_large: tuple[Trial, ...]
    passes: int

    @property
    def features(self) -> tuple[Feature, ...]:
        """The features proposed."""
        return tuple(each.fields for each in self.proposed)


def propose(
    spec: ModelSpec,
    parameters: Candidate,
    log: RepeatedLog,
    *,
    variant: str,
    features: Sequence[Feature] | None = None,
    budget: int | None = None,
    **compared: int | None,
) -> Proposal:
    """Try features of a resolved spec, by default the pairs of its fields, learned with these parameters.

    budget: keys of all crosses; compared: `rows`, `compare_from` and `ahead` of `RepeatedLog.learn`. Raises SpecError
    where no two fields can be crossed.
    """
    tried = list(pairs_of(spec, variant)) if features is None else features
    if not tried and features is None:
        raise SpecError(
            "--crosses: no two fields of the spec can be crossed that are not crossed already; raw keys, text, and "
            "fields that are computed from one another cannot"
        )
    search = _FeatureSearch(spec, parameters, log, variant, tried, compared)
    first = search.round((), tried)
    proposed, too_large, left = list[Trial](), list[Trial](), budget
    latest = [each for each in first if each.passes_test]
    while latest:
        fitting = [each for each in latest if left is None or each.keys <= left]
        too_large += [each for each in latest if each not in fitting]
        if not fitting:
            break
        best = fitting[0]
        proposed.append(best)
        left = None if left is None else left - best.keys
        chosen, others = [each.fields for each in proposed], [each.fields for each in fitting[1:]]
        latest = [each for each in search.round(chosen, others) if each.passes_test]
    return Proposal(tuple(proposed), tuple(first), tuple(too_large), search.passes)


def pairs_of(spec: ModelSpec, variant: str) -> Iterator[Feature]:
    """The pairs of a resolved spec's fields that are worth a cross in this variant, without those that it has."""
    present = {frozenset(cross.fields) for cross in spec.crosses}
    fields = [each for each in spec.fields.items() if each[0] not in spec.variants[variant].without]
    for (one, first), (other, second) in itertools.combinations(fields, 2):
        if not (_fits(first) and _fits(second)) or (first.is_number and second.is_number):
            continue
        same_column = (first.column or one) == (second.column or other)
        if same_column and not (first.kind == second.kind == "time"):
            continue
        if one in _sources(spec, other) or other in _sources(spec, one) or {one, other} in present:
            continue
        yield one, other


def with_crosses(spec: ModelSpec, pairs: Sequence[Feature]) -> ModelSpec:
    """The spec with these crosses after its own."""
    crosses = [*spec.crosses, *(Cross(fields=pair) for pair in pairs)]
    return rebuilt(spec, {"crosses": [each.model_dump(mode="json") for each in crosses]})


def _fits(field: FieldSpec) -> bool:
    """Raw keys cannot be crossed; every word of a text with every value would be too many keys; a margin has no key."""
    return not KINDS[field.kind].whole_keys and field.kind != "text" and field.fixed_weight is None


def _sources(spec: ModelSpec, name: str) -> set[str]:
    """The fields that a field is computed from, directly or not."""
    direct = set(spec.fields[name].inputs)
    return direct.union(*(_sources(spec, each) for each in direct if each in spec.fields))


class _FeatureSearch:
    """Rounds of features, each learned beside those proposed so far."""

    def __init__(
        self,
        spec: ModelSpec,
        parameters: Candidate,
        log: RepeatedLog,
        variant: str,
        features: Sequence[Feature],
        compared: Mapping[str, Any],
    ) -> None:
        self._spec, self._parameters, self._log, self._compared = spec, parameters, log, compared
        self._without = list(spec.variants[variant].without)
        self._features = len(features)
        self._fields = [each[0] for each in features if len(each) == 1]
        self.passes = 0

    def round(self, chosen: Sequence[Feature], features: Sequence[Feature]) -> list[Trial]:
        """Learn every feature beside the chosen ones; the largest gain first."""
        tried = list[Trial]()
        for at in range(0, len(features), PAIRS_PER_PASS):
            part = features[at : at + PAIRS_PER_PASS]
            learned = self._log.learn([self._group(chosen, part)], **self._compared)
            self.passes += 1
            if learned.outcomes:  # none if the log has no rows
                error_rate = ERROR_RATE if chosen else ERROR_RATE / self._features
                tried += [
                    self._tried(learned, number, each, error_rate)
                    for number, each in enumerate(part, start=1)
                ]
        return sorted(tried, key=lambda each: (-each.gain.mean, each.fields))

    def _tried(self, learned: Pass, number: int, feature: Feature, error_rate: float) -> Trial:
        without, having = learned.outcomes[0], learned.outcomes[number]
        gain = PairedDifference.of(without.sums, having.sums, learned.weights)
        known = {**having.fields, **having.crosses}
        keys = sum(known.get(name, 0) for name in {"*".join(feature), "*".join(feature[::-1])})
        same_as = self._same_as(feature, having, keys) if len(feature) > 1 else ""
        worth_it = gain.mean > LEAST_GAIN * float(without.sums.sum() / max(learned.weights.sum(), 1.0))
        passes = worth_it and not same_as and gain.is_above_zero(error_rate)
        return Trial(feature, gain, keys, passes, same_as)

    def _same_as(self, pair: Feature, having: Outcome, keys: int) -> str:
        if any(self._spec.fields[name].is_number for name in pair):
            return ""  # one key, whatever the number
        return next((name for name in pair if 0 < keys <= having.fields.get(name, 0)), "")

    def _group(self, chosen: Sequence[Feature], features: Sequence[Feature]) -> CandidateGroup:
        """A model whose first variant has the chosen features alone, and each other one more."""
        names = ["*".join(each) for each in features]
        left = {(name,) for name in self._fields} - {*chosen, *features}
        without = [*self._without, *sorted(name for (name,) in left)]
        variants = {"none": {"without": [*without, *names]}}
        for number, name in enumerate(names):
            left_out = [*without, *(each for each in names if each != name)]
            variants[f"with-{number}"] = {"without": left_out}
        pairs = [each for each in (*chosen, *features) if len(each) > 1]
        return side_by_side(with_crosses(self._spec, pairs), self._parameters, variants)


# --- Which pairs to try ---


_BITS = np.uint64(64 - 18)
"""Pairs of values are counted in 2^18 buckets: two that share one add noise, which costs a place in the ranking."""
_ODD = np.uint64(0x9E3779B97F4A7C15)
_PRIOR = 4.0
"""The precision of a weight before it is seen: 4 clicks at a rate of a half make it half its size."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Digests = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class _Tokens:
    """A field's tokens: the row of each, ascending, and its digest. dense: token i is of row i."""

    rows: Ints
    digests: Digests
    dense: bool


def screened(
    log: FirstRows,
    spec: ModelSpec,
    parameters: Candidate,
    pairs: Sequence[Feature],
    most: int,
    end: int,
    ahead: int,
) -> list[Feature]:
    """The `most` best of the pairs by the first `end` rows, in their order. ahead: see `RepeatedLog.learn`."""
    if len(pairs) <= most:
        return [*pairs]
    maker = ExampleMaker(with_parameters(spec, parameters))
    model, found = LearningModel(maker), list[Floats]()
    examples, learned, held = list[Examples](), 0, 0
    with log.examples(maker.spec) as (*_, stream):
        for each in cut(stream, ahead):
            if learned == end:
                break
            part = each if learned + each.rows.size <= end else each.part(0, end - learned)
            examples.append(part)
            found.append(model.coordinates.predict(part.hashed).probabilities[:, 0].copy())
            learned += part.rows.size
            if learned % ahead == 0:
                for one in examples[held:]:
                    model.learn_judged(one)
                held = len(examples)
    ctr = np.concatenate(found)
    left = np.concatenate([each.hashed.labels for each in examples]) - ctr
    curve = ctr * (1.0 - ctr)
    left[:ahead] = curve[:ahead] = 0.0  # predicted by a model of nothing
    index = {each.name: each.index for each in maker.plan.fields}
    tokens = {name: _tokens(examples, index[name]) for name in {name for pair in pairs for name in pair}}
    gains = [_gain(tokens[one], tokens[other], left, curve) for one, other in pairs]
    kept = sorted(range(len(pairs)), key=lambda at: (-gains[at], at))[:most]
    return [pairs[at] for at in sorted(kept)]


def _tokens(examples: Sequence[Examples], field: int) -> _Tokens:
    rows, digests, first = list[Ints](), list[Digests](), 0
    dense = all(each.tokens.list_of[field] < 0 for each in examples)
    for each in examples:
        own, layout = each.rows.astype(np.int64), each.tokens
        place = int(layout.list_of[field])
        if place < 0:
            counts = np.ones(own.size, np.int64)
            digests.append(layout.of_rows(field, own))
        else:
            starts = layout.starts[place].astype(np.int64)
            counts = starts[own + 1] - starts[own]
            at = np.repeat(starts[own] - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
            digests.append(layout.digests[layout.base[field] + at])
        rows.append(first + np.repeat(np.arange(own.size), counts))
        first += own.size
    return _Tokens(np.concatenate(rows), np.concatenate(digests), dense)


def _gain(one: _Tokens, other: _Tokens, left: Floats, curve: Floats) -> float:
    rows, first, second = _joined(one, other)
    first = first * _ODD
    keys = ((first ^ (first >> np.uint64(29)) ^ second) * _ODD >> _BITS).astype(np.int64)
    half = np.searchsorted(rows, left.size // 2)
    size = 1 << 18
    sums = np.bincount(keys[:half], left[rows[:half]], size)
    weights = sums / (np.bincount(keys[:half], curve[rows[:half]], size) + _PRIOR)
    step = np.bincount(rows[half:], weights[keys[half:]], left.size)
    return float(left @ step - 0.5 * (curve @ (step * step)))


def _joined(one: _Tokens, other: _Tokens) -> tuple[Ints, Digests, Digests]:
    """Every pair of tokens of a row: the rows, ascending, and the digests of both."""
    if other.dense:
        return one.rows, one.digests, other.digests[one.rows]
    if one.dense:
        return other.rows, one.digests[other.rows], other.digests
    size = int(max(one.rows.max(initial=-1), other.rows.max(initial=-1))) + 1
    counts = np.bincount(other.rows, minlength=size)
    starts, of_each = np.cumsum(counts) - counts, counts[one.rows]
    at = np.repeat(starts[one.rows] - (np.cumsum(of_each) - of_each), of_each) + np.arange(int(of_each.sum()))
    mine = np.repeat(np.arange(one.rows.size), of_each)
    return one.rows[mine], one.digests[mine], other.digests[at]
