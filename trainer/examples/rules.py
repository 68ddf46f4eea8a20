"""Resolves `[rules]`, which go by key prefix, to feature numbers: which settings hold for which feature.

A feature is the bias, a field or a cross. A rule whose prefix reaches into values (`device_id=a99`, `P_N_T_1_` of raw
keys) splits its field or cross: the keys it matches get a feature number of their own, after all others. So the
settings of a key are an array look-up by its feature, and only specs with such rules compare bytes.

The longest prefix wins, for each setting: one that a rule leaves out comes from the next shorter prefix, finally from
`[learner]`. The bias is always admitted, unless a rule names exactly `bias`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from model_store.artefact.inspection import PrefixRules
from model_store.errors import SpecError
from model_store.features.features import FeaturePlan
from model_store.spec.keys import BIAS
from model_store.spec.learner_section import Inclusion, Rule
from model_store.spec.spec import ModelSpec

MOST_FEATURES = 1 << 16


@dataclass(frozen=True)
class ValueRule:
    """A rule on values of a feature: its keys continue with `start` after the feature's prefix."""

    owner: int
    feature: int
    start: bytes


@dataclass(frozen=True)
class FeatureRules:
    """The settings of each feature.

    owner: int64[features], the bias, field or cross it belongs to; inclusions, and where in the spec each is set; l1,
    alpha: float64[features], NaN where no rule sets it, None if no rule sets it at all; value_rules: of an owner, the
    longest `start` first.
    """

    owner: npt.NDArray[np.int64]
    inclusions: tuple[Inclusion, ...]
    sources: tuple[str, ...]
    l1: npt.NDArray[np.float64] | None
    value_rules: tuple[ValueRule, ...]
    alpha: npt.NDArray[np.float64] | None = None

    @classmethod
    def of(cls, spec: ModelSpec, plan: FeaturePlan) -> FeatureRules:
        """Resolve a spec's rules. Raises SpecError for a rule that no key of the spec can match."""
        prefixes = key_prefixes(plan)
        rules = {name.encode(): rule for name, rule in spec.rules.items()}
        value_rules = _value_rules(rules, plan, prefixes)
        _check_all_match(rules, prefixes, value_rules)
        chains = [[BIAS] if BIAS in rules else [], *(_chain(rules, prefix) for prefix in prefixes[1:])]
        chains += [_chain(rules, prefixes[rule.owner] + rule.start) for rule in value_rules]
        resolved = [_inclusion(spec, rules, chain, index == 0) for index, chain in enumerate(chains)]
        return cls(
            owner=np.array([*range(len(prefixes)), *(rule.owner for rule in value_rules)], np.int64),
            inclusions=tuple(inclusion for inclusion, _ in resolved),
            sources=tuple(source for _, source in resolved),
            l1=_numbers("l1", rules, chains),
            value_rules=tuple(value_rules),
            alpha=_numbers("alpha", rules, chains),
        )


def key_prefixes(plan: FeaturePlan) -> list[bytes]:
    """The prefix of every owner of keys: the bias, the fields, the crosses."""
    return [BIAS, *(field.prefix for field in plan.fields), *(cross.prefix for cross in plan.crosses)]


def _value_rules(rules: dict[bytes, Rule], plan: FeaturePlan, prefixes: Sequence[bytes]) -> list[ValueRule]:
    """The pairs of an owner and a rule that splits it, the longest first within an owner."""
    found: list[ValueRule] = []
    for owner, prefix in enumerate(prefixes[1:], start=1):
        inside = [rule for rule in rules if rule.startswith(prefix) and rule != prefix]
        if owner <= len(plan.fields) and plan.fields[owner - 1].spec.is_number:
            continue  # a real number is in x; its key ends with `=`
        for rule in sorted(inside, key=lambda rule: (-len(rule), rule)):
            found.append(ValueRule(owner, len(prefixes) + len(found), rule[len(prefix) :]))
    if len(prefixes) + len(found) > MOST_FEATURES:
        raise SpecError(
            f"rules: {len(found)} pairs of a rule and a field or cross it reaches into; "
            f"with {len(prefixes) - 1} fields and crosses at most {MOST_FEATURES - len(prefixes)} are possible"
        )
    return found


def _check_all_match(
    rules: dict[bytes, Rule], prefixes: Sequence[bytes], value_rules: Sequence[ValueRule]
) -> None:
    reached = {prefixes[rule.owner] + rule.start for rule in value_rules}
    for rule in rules:
        if rule in reached or rule == BIAS or any(prefix.startswith(rule) for prefix in prefixes[1:]):
            continue
        known = ", ".join(prefix.decode() for prefix in prefixes if prefix)
        raise SpecError(
            f'rules."{rule.decode()}": no key begins with it; keys begin with {known} '
            "(names and values as they stand in keys, see docs/formats/keys.md)"
        )


def _chain(rules: dict[bytes, Rule], key: bytes) -> list[bytes]:
    """The rules that are a prefix of `key`, the longest first."""
    chain: list[bytes] = []
    by_prefix = PrefixRules((rule, rule.decode()) for rule in rules)
    owner = by_prefix.owner(key)
    while owner is not None:
        chain.append(owner.encode())
        owner = by_prefix.owner(chain[-1][:-1]) if chain[-1] else None
    return chain


def _inclusion(
    spec: ModelSpec, rules: dict[bytes, Rule], chain: Sequence[bytes], is_bias: bool
) -> tuple[Inclusion, str]:
    for prefix in chain:
        inclusion = rules[prefix].inclusion
        if inclusion is not None:
            return inclusion, f'rules."{prefix.decode()}".inclusion'
    return (Inclusion() if is_bias else spec.learner.inclusion), "learner.inclusion"


def _numbers(
    name: str, rules: dict[bytes, Rule], chains: Sequence[Sequence[bytes]]
) -> npt.NDArray[np.float64] | None:
    """What the rules set `name` to for each chain's keys: NaN where none does, None if no rule sets it at all."""
    set_by = {prefix: getattr(rule, name) for prefix, rule in rules.items()}
    if all(number is None for number in set_by.values()):
        return None
    given = [[number for prefix in chain if (number := set_by[prefix]) is not None] for chain in chains]
    return np.array([numbers[0] if numbers else np.nan for numbers in given])
