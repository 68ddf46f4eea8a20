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
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from model_store.errors import SpecError
from model_store.spec.sections import Cross, FieldSpec
from model_store.spec.spec import ModelSpec
from trainer.tune.candidates import Candidate, Group, learner_with, rebuilt
from trainer.tune.paired import Difference
from trainer.tune.passes import Outcome, Pass, Repeated

ERROR_RATE = 0.05
LEAST_GAIN = 0.0005
"""A feature that saves a smaller share of the log-loss is not worth its keys, however sure that is."""
PAIRS_PER_PASS = 15
"""With the model without them, 16 variants: with more, each key would have values of variants that do not use it."""

Feature = tuple[str, ...]
"""Two fields: their cross; one: a field of the spec, which is left out unless it is proposed."""


@dataclass(frozen=True)
class Tried:
    """A feature, what it gained beside those proposed before it, and its keys in the table.

    same_as: the field that has a key for each of the cross's, as an item has for it and its brand, "" for none:
    what the cross gains is a faster rate for that field, nothing new.
    """

    fields: Feature
    gain: Difference
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

    proposed: tuple[Tried, ...]
    tried: tuple[Tried, ...]
    too_large: tuple[Tried, ...]
    passes: int

    @property
    def features(self) -> tuple[Feature, ...]:
        """The features proposed."""
        return tuple(each.fields for each in self.proposed)


def propose(
    spec: ModelSpec,
    parameters: Candidate,
    log: Repeated,
    *,
    variant: str,
    features: Sequence[Feature] | None = None,
    budget: int | None = None,
    **compared: int | None,
) -> Proposal:
    """Try features of a resolved spec, by default the pairs of its fields, learned with these parameters.

    budget: keys of all crosses; compared: `rows`, `compare_from` and `ahead` of `Repeated.learn`. Raises SpecError
    where no two fields can be crossed.
    """
    tried = list(pairs_of(spec, variant)) if features is None else features
    if not tried and features is None:
        raise SpecError(
            "--crosses: no two fields of the spec can be crossed that are not crossed already; raw keys, text, and "
            "fields that are computed from one another cannot"
        )
    search = _Search(spec, parameters, log, variant, tried, compared)
    first = search.round((), tried)
    proposed, too_large, left = list[Tried](), list[Tried](), budget
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
    return field.kind not in ("raw", "text") and field.fixed_weight is None


def _sources(spec: ModelSpec, name: str) -> set[str]:
    """The fields that a field is computed from, directly or not."""
    direct = set(spec.fields[name].inputs)
    return direct.union(*(_sources(spec, each) for each in direct if each in spec.fields))


class _Search:
    """Rounds of features, each learned beside those proposed so far."""

    def __init__(
        self,
        spec: ModelSpec,
        parameters: Candidate,
        log: Repeated,
        variant: str,
        features: Sequence[Feature],
        compared: Mapping[str, Any],
    ) -> None:
        self._spec, self._parameters, self._log, self._compared = spec, parameters, log, compared
        self._without = list(spec.variants[variant].without)
        self._features = len(features)
        self._fields = [each[0] for each in features if len(each) == 1]
        self.passes = 0

    def round(self, chosen: Sequence[Feature], features: Sequence[Feature]) -> list[Tried]:
        """Learn every feature beside the chosen ones; the largest gain first."""
        tried = list[Tried]()
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

    def _tried(self, learned: Pass, number: int, feature: Feature, error_rate: float) -> Tried:
        without, having = learned.outcomes[0], learned.outcomes[number]
        gain = Difference.of(without.sums, having.sums, learned.weights)
        known = {**having.fields, **having.crosses}
        keys = sum(known.get(name, 0) for name in {"*".join(feature), "*".join(feature[::-1])})
        same_as = self._same_as(feature, having, keys) if len(feature) > 1 else ""
        worth_it = gain.mean > LEAST_GAIN * float(without.sums.sum() / max(learned.weights.sum(), 1.0))
        passes = worth_it and not same_as and gain.is_above_zero(error_rate)
        return Tried(feature, gain, keys, passes, same_as)

    def _same_as(self, pair: Feature, having: Outcome, keys: int) -> str:
        if any(self._spec.fields[name].is_number for name in pair):
            return ""  # one key, whatever the number
        return next((name for name in pair if 0 < keys <= having.fields.get(name, 0)), "")

    def _group(self, chosen: Sequence[Feature], features: Sequence[Feature]) -> Group:
        """A model whose first variant has the chosen features alone, and each other one more."""
        names = ["*".join(each) for each in features]
        left = {(name,) for name in self._fields} - {*chosen, *features}
        without = [*self._without, *sorted(name for (name,) in left)]
        share = 1.0 / (len(features) + 1)
        variants: dict[str, dict[str, object]] = {"none": {"share": share, "without": [*without, *names]}}
        for number, name in enumerate(names):
            left_out = [*without, *(each for each in names if each != name)]
            variants[f"with-{number}"] = {"share": share, "without": left_out}
        learner = learner_with(self._spec.learner, self._parameters) | {"values": "per_variant"}
        sections = {"learner": learner, "variants": variants, "calibration": {"kind": "none"}}
        pairs = [each for each in (*chosen, *features) if len(each) > 1]
        spec = rebuilt(with_crosses(self._spec, pairs), sections)
        every = tuple(range(len(features) + 1))
        return Group(spec, every, every)
