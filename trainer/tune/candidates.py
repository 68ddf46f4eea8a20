"""The candidates of a search, and the models that learn them: several as variants of one model where possible.

A variant with values of its own (`values = "per_variant"`) learns as if it were alone, and may have its own alpha,
beta, l1 and l2: so 32 candidates share the reading, the hashing and the table's keys.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from model_store.bounded import toml_document
from model_store.errors import SpecError
from model_store.spec.learner_section import LearnerSection
from model_store.spec.spec import MAX_VARIANTS, ModelSpec, spec_from_json

Value = float | int | str
Candidate = Mapping[str, Value]

OF_A_VARIANT = ("alpha", "beta", "l1", "l2")
OF_AN_ALGORITHM = ("rate", "l1", "l2", "k", "theta", "shrink", "prior_ctr", "forgetting", "prune_kl")
TUNABLE = (
    *(
        "algorithm",
        "rate",
        "precision",
        *OF_A_VARIANT,
        "k",
        "theta",
        "shrink",
        "prior_ctr",
        "forgetting",
        "ttl",
        "hash_bits",
    ),
)


@dataclass(frozen=True)
class Group:
    """The candidates, by their index in the list of all, that one model learns, and the model's spec.

    variants: the indexes of the model's variants that are these candidates, in the same order.
    """

    spec: ModelSpec
    candidates: tuple[int, ...]
    variants: tuple[int, ...]


def candidates_of(spec: ModelSpec, tries: Sequence[str]) -> list[Candidate]:
    """Every combination of `tries`, each `NAME=VALUE,VALUE…`; by default, twelve around the spec's own values.

    Raises SpecError for a name that cannot be tuned, or a combination that is not a valid learner.
    """
    grid = dict(_parsed(each) for each in tries) or _around(spec.learner)
    found = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    for candidate in found:
        with_parameters(spec, candidate)
    return [dict(unique) for unique in dict.fromkeys(tuple(candidate.items()) for candidate in found)]


def with_parameters(spec: ModelSpec, candidate: Candidate) -> ModelSpec:
    """The spec with a candidate's parameters in its `[learner]`; raises SpecError for an invalid combination."""
    return _rebuilt(spec, {"learner": learner_with(spec.learner, candidate)})


def learner_with(section: LearnerSection, candidate: Candidate) -> dict[str, object]:
    """The keys that `[learner]` sets, updated with a candidate's.

    A different algorithm starts from its defaults: l1 applies to sums in FTRL, and to means in RDA.
    """
    given = section.model_dump(mode="json", exclude_unset=True)
    if candidate.get("algorithm", section.algorithm) != section.algorithm:
        given = {name: value for name, value in given.items() if name not in OF_AN_ALGORITHM}
    return given | {"alpha": section.alpha, "beta": section.beta} | dict(candidate)


def groups_of(
    spec: ModelSpec, candidates: Sequence[Candidate], indexes: Sequence[int], variant: str
) -> list[Group]:
    """The models that learn the candidates with these indexes, each as the spec's `variant`."""
    if not learns_alone(spec):
        column = list(spec.variants).index(variant)
        return [Group(with_parameters(spec, candidates[index]), (index,), (column,)) for index in indexes]
    alike: dict[tuple[tuple[str, Value], ...], list[int]] = {}
    for index in indexes:
        common = tuple((n, v) for n, v in candidates[index].items() if n not in OF_A_VARIANT)
        alike.setdefault(common, []).append(index)
    return [
        _as_variants(spec, candidates, part, variant)
        for together in alike.values()
        for part in _parts(together, MAX_VARIANTS)
    ]


def learns_alone(spec: ModelSpec) -> bool:
    """True if a variant's weights do not depend on the other variants."""
    return len(spec.variants) == 1 or spec.learner.values == "per_variant"


def _as_variants(
    spec: ModelSpec, candidates: Sequence[Candidate], indexes: Sequence[int], variant: str
) -> Group:
    first = candidates[indexes[0]]
    common = {name: value for name, value in first.items() if name not in OF_A_VARIANT}
    without = spec.variants[variant].without
    variants = {
        f"candidate-{index}": {
            "share": 1.0 / len(indexes),
            "without": without,
            **{name: value for name, value in candidates[index].items() if name in OF_A_VARIANT},
        }
        for index in indexes
    }
    learner = learner_with(spec.learner, common) | {"values": "per_variant"}
    calibration = {"kind": "none"}  # the search compares learners, not curves
    rebuilt = _rebuilt(spec, {"learner": learner, "variants": variants, "calibration": calibration})
    return Group(rebuilt, tuple(indexes), tuple(range(len(indexes))))


def _rebuilt(spec: ModelSpec, sections: Mapping[str, object]) -> ModelSpec:
    document = spec.model_dump(mode="json", exclude_unset=True) | dict(sections)
    return spec_from_json(json.dumps(document), "tune")


def _parsed(text: str) -> tuple[str, list[Value]]:
    name, equals, values = text.partition("=")
    if not equals or name not in TUNABLE:
        raise SpecError(f"--try {text}: expected NAME=VALUE,VALUE… with a NAME of {', '.join(TUNABLE)}")
    return name, [_value(each.strip(), text) for each in values.split(",")]


def _value(text: str, given: str) -> Value:
    if not text:
        raise SpecError(f"--try {given}: a value is missing")
    try:
        value = toml_document(f"value = {text}")["value"]
    except ValueError:
        return text
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise SpecError(f"--try {given}: {text} is neither a number nor a string")
    return value


def _around(section: LearnerSection) -> dict[str, list[Value]]:
    """Twelve candidates: the step size from a quarter to twice the spec's, and how soon it decays."""
    if section.rate in ("global", "constant"):
        return {"alpha": [section.alpha * 2.0**power for power in range(-7, 5)]}
    betas = [section.beta * factor for factor in (0.1, 0.3, 1.0)] if section.beta else [0.1, 0.3, 1.0]
    return {"alpha": [section.alpha * factor for factor in (0.25, 0.5, 1.0, 2.0)], "beta": list(betas)}


def _parts(indexes: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (indexes[start : start + size] for start in range(0, len(indexes), size))
