"""The candidates of a search, and the models that learn them: several as variants of one model where possible.

A variant with values of its own (`values = "per_variant"`) learns as if it were alone, and may have its own alpha,
beta, l1 and l2: so 32 candidates share the reading, the hashing and the table's keys.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from model_store.bounded import toml_document
from model_store.errors import SpecError, listed
from model_store.spec.learner_section import LearnerSection
from model_store.spec.spec import MAX_VARIANTS, ModelSpec, spec_from_json

Value = float | int | str
Candidate = Mapping[str, Value]

OF_A_VARIANT = ("alpha", "beta", "l1", "l2")
REGULAR = (*OF_A_VARIANT, "theta")
"""Parameters on a scale of powers, whose grid can be widened."""
OF_AN_ALGORITHM = ("rate", "l1", "l2", "k", "theta", "shrink", "prior_ctr", "forgetting", "prune_kl")
LEAST_STEP, MOST_STEP = 2.0, 10.0
LEAST_BETA = 0.01
"""No smaller beta is tried unless asked for. The sum of g^2 soon exceeds it, so log-losses no longer differ; but the
rate of a key without examples is alpha / beta, and so the uncertainty that is explored by would grow without bound."""
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
        "hash_buckets",
    ),
)


@dataclass(frozen=True)
class CandidateGroup:
    """The candidates, by their index in the list of all, that one model learns, and the model's spec.

    variants: the indexes of the model's variants that are these candidates, in the same order.
    """

    spec: ModelSpec
    candidates: tuple[int, ...]
    variants: tuple[int, ...]


def candidates_of(spec: ModelSpec, tries: Sequence[str]) -> list[Candidate]:
    """Every combination of `tries`, each `NAME=VALUE,VALUE…`; by default, up to 24 around the spec's own values.

    Raises SpecError for a name that cannot be tuned, or a combination that is not a valid learner.
    """
    grid = dict(_parsed(each) for each in tries) or around(spec.learner)
    found = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    for candidate in found:
        with_parameters(spec, candidate)
    return [dict(unique) for unique in dict.fromkeys(tuple(candidate.items()) for candidate in found)]


def with_parameters(spec: ModelSpec, candidate: Candidate) -> ModelSpec:
    """The spec with a candidate's parameters in its `[learner]`; raises SpecError for an invalid combination."""
    return rebuilt(spec, {"learner": learner_with(spec.learner, candidate)})


def learner_with(section: LearnerSection, candidate: Candidate) -> dict[str, object]:
    """The keys that `[learner]` sets, updated with a candidate's.

    A different algorithm starts from its defaults: l1 applies to sums in FTRL, and to means in RDA.
    """
    given = section.model_dump(mode="json", exclude_unset=True)
    if candidate.get("algorithm", section.algorithm) != section.algorithm:
        given = {name: value for name, value in given.items() if name not in OF_AN_ALGORITHM}
    given.pop("auto", None)
    return given | {"alpha": section.alpha, "beta": section.beta} | dict(candidate)


def groups_of(
    spec: ModelSpec, candidates: Sequence[Candidate], indexes: Sequence[int], variant: str
) -> list[CandidateGroup]:
    """The models that learn the candidates with these indexes, each as the spec's `variant`."""
    if not learns_alone(spec):
        column = list(spec.variants).index(variant)
        return [
            CandidateGroup(with_parameters(spec, candidates[index]), (index,), (column,)) for index in indexes
        ]
    alike: dict[tuple[tuple[str, Value], ...], list[int]] = {}
    for index in indexes:
        common = tuple((n, v) for n, v in candidates[index].items() if n not in OF_A_VARIANT)
        alike.setdefault(common, []).append(index)
    return [
        as_variants(spec, candidates, part, variant)
        for together in alike.values()
        for part in (together[at : at + MAX_VARIANTS] for at in range(0, len(together), MAX_VARIANTS))
    ]


def learns_alone(spec: ModelSpec) -> bool:
    """True if a variant's weights do not depend on the other variants."""
    return len(spec.variants) == 1 or spec.learner.values == "per_variant"


def as_variants(
    spec: ModelSpec, candidates: Sequence[Candidate], indexes: Sequence[int], variant: str
) -> CandidateGroup:
    """A model of which each candidate is a variant; all parameters but a variant's are alike."""
    common, variants = dict[str, Value](), dict[str, dict[str, object]]()
    for index in indexes:
        own = candidates[index].items()
        common = {name: value for name, value in own if name not in OF_A_VARIANT}
        variants[f"candidate-{index}"] = {
            "without": spec.variants[variant].without,
            **{name: value for name, value in own if name in OF_A_VARIANT},
        }
    return replace(side_by_side(spec, common, variants), candidates=tuple(indexes))


def side_by_side(
    spec: ModelSpec, parameters: Candidate, variants: Mapping[str, Mapping[str, object]]
) -> CandidateGroup:
    """A model of these variants, each with values of its own: the candidates 0, 1, …"""
    share, every = 1.0 / len(variants), tuple(range(len(variants)))
    sections = {
        "learner": learner_with(spec.learner, parameters) | {"values": "per_variant"},
        "variants": {name: {"share": share, **own} for name, own in variants.items()},
        "calibration": {"kind": "none"},  # the search compares learners, not curves
    }
    return CandidateGroup(rebuilt(spec, sections), every, every)


def rebuilt(spec: ModelSpec, sections: Mapping[str, object]) -> ModelSpec:
    """The spec with these sections, checked again. Raises SpecError."""
    document = spec.model_dump(mode="json", exclude_unset=True) | dict(sections)
    return spec_from_json(json.dumps(document), "tune")


def _parsed(text: str) -> tuple[str, list[Value]]:
    name, equals, values = text.partition("=")
    if not equals or name not in TUNABLE:
        raise SpecError(f"--try {text}: expected NAME=VALUE,VALUE… with a NAME of {listed(TUNABLE, name)}")
    found = list[Value]()
    for each in map(str.strip, values.split(",")):
        if not each:
            raise SpecError(f"--try {text}: a value is missing")
        try:
            value = toml_document(f"value = {each}")["value"]
        except ValueError:
            value = each
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise SpecError(f"--try {text}: {each} is neither a number nor a string")
        found.append(value)
    return name, found


def around(section: LearnerSection) -> dict[str, list[Value]]:
    """Up to 24 candidates, one pass: the step size from a quarter to twice the spec's, how soon it decays, and l1."""
    if section.rate in ("global", "constant"):
        grid = {"alpha": [_round(section.alpha, 2.0**power) for power in range(-7, 5)]}
    else:
        grid = {"alpha": [_round(section.alpha, factor) for factor in (0.25, 0.5, 1.0, 2.0)]}
        least = max(_round(section.beta, 0.1), min(section.beta, LEAST_BETA))
        grid["beta"] = list(dict.fromkeys([least, section.beta])) if section.beta else [0.1, 1.0]
    # Where the spec has no l1, only that of FTRL has a usual size to try.
    if not section.why_not("l1") and (section.l1 or section.algorithm == "ftrl"):
        l1 = [0.0, _round(section.l1, 1.0 / 3.0), section.l1] if section.l1 else [0.0, 0.3, 1.0]
        grid["l1"] = l1 if "beta" in grid else [l1[0], l1[-1]]
    # Nobody knows a usual size but that of FTRL, which adds to (beta + sqrt(n)) / alpha, n up to hundreds.
    if not section.why_not("l2") and (section.l2 or section.algorithm == "ftrl"):
        grid["l2"] = [section.l2]  # `with_l2` tries others, around the best
    return {name: list(values) for name, values in grid.items()}


def with_l2(spec: ModelSpec, best: Candidate) -> list[Candidate]:
    """The best candidate of a default grid with l2 around the spec's, also with twice the alpha, of which l2 takes."""
    if "l2" not in best:
        return []
    l2, alpha = spec.learner.l2, float(best["alpha"])
    sizes = [_round(l2, factor) for factor in (1 / 3, 3.0, 10.0)] if l2 else [1.0, 3.0, 10.0, 30.0]
    found = [{**best, "alpha": _round(alpha, by), "l2": size} for by in (1.0, 2.0) for size in sizes]
    return [each for each in found if _is_valid(spec, each)]


@dataclass(frozen=True)
class Edge:
    """A parameter of which the best candidate has the least or the largest value tried."""

    name: str
    value: float
    side: Literal["least", "largest"]


def edges_of(tried: Sequence[Candidate], best: Candidate) -> tuple[Edge, ...]:
    """The parameters with several values of which the best has one at the edge. Below 0 and LEAST_BETA is no value."""
    edges = list[Edge]()
    for name in REGULAR:
        values = _values_of(name, tried, best)
        value = best.get(name)
        if len(values) < 2 or isinstance(value, str) or value is None:
            continue
        if value == values[-1]:
            edges.append(Edge(name, float(value), "largest"))
        elif value == values[0] and value > (LEAST_BETA if name == "beta" else 0.0):
            edges.append(Edge(name, float(value), "least"))
    return tuple(edges)


def beyond(spec: ModelSpec, tried: Sequence[Candidate], best: Candidate) -> list[Candidate]:
    """The best candidate with values beyond the edges that it lies on: two steps of the grid, all combinations."""
    grid: dict[str, list[Value]] = {}
    for edge in edges_of(tried, best):
        values = _values_of(edge.name, tried, best)
        near, far = (values[-2], values[-1]) if edge.side == "largest" else (values[0], values[1])
        step = min(max(far / near, LEAST_STEP), MOST_STEP) if near > 0.0 else LEAST_STEP
        step = step if edge.side == "largest" else 1.0 / step
        further = (_round(edge.value, step), _round(edge.value, step**2))
        least = LEAST_BETA if edge.name == "beta" else 0.0
        grid[edge.name] = list(dict.fromkeys([best[edge.name], *(max(each, least) for each in further)]))
    found = [{**best, **dict(zip(grid, values, strict=True))} for values in itertools.product(*grid.values())]
    return [each for each in found if each not in tried and _is_valid(spec, each)]


def _values_of(name: str, tried: Sequence[Candidate], best: Candidate) -> list[float]:
    """The numbers tried for a parameter with the best candidate's algorithm and rate, ascending."""
    alike = [each for each in tried if all(each.get(n) == best.get(n) for n in ("algorithm", "rate"))]
    numbers = {each[name] for each in alike if name in each}
    return sorted(float(each) for each in numbers if isinstance(each, int | float))


def _round(value: float, factor: float) -> float:
    """The product, to three digits: nobody wants 0.06999999999999999 in a spec. `value` itself is kept as it is."""
    return value if factor == 1.0 else float(f"{value * factor:.3g}")


def _is_valid(spec: ModelSpec, candidate: Candidate) -> bool:
    try:
        with_parameters(spec, candidate)
    except SpecError:
        return False
    return True
