"""The learners under test: parameters, rows, and comparisons. Those of the fast tests are in tests/kernels.py."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from model_store.hash_kernels import hash_keys
from model_store.spec.spec import ModelSpec
from tests.kernels import COARSE, FAST, FOBOS, OGD, OWN, SEED, Pairs, Section, learned
from tests.trainer.oracles.trial import Weights, by_kernel, by_textbook
from tests.worlds import learn, model_of, shop_rows
from trainer.learn.model import LearningModel

TOLERANCE = 1e-9

# The other layouts, and a learner without one of its own, for the slow tests.
SLOW: Pairs = {
    "ogd of own values": (OGD | OWN, 3),  # OwnCounts
    "penalized ogd of own coarse values": (
        OGD | {"rate": "constant", "l1": 0.0213, "l2": 0.3} | OWN | COARSE,
        3,
    ),  # OwnCompact
    "touched ogd": (FOBOS | {"algorithm": "ogd", "l1": 0.0213, "shrink": "touched"}, 3),  # Full
}

# Large enough parameters that weights are cut, come back, and are cut again within some hundred rows.
CASES: dict[str, list[Section]] = {
    "ogd": [
        {},
        {"l2": 0.3},
        {"l1": 0.0213},
        {"l1": 0.0213, "l2": 0.3, "shrink": "touched"},
        {"l1": 0.0513, "l2": 0.9},
    ],
    "truncation": [{"k": 3, "theta": 0.05}, {"k": 1, "theta": 0.02}, {"k": 7, "theta": math.inf}],
    "truncated_gradient": [
        {"k": 3, "theta": 0.3, "l1": 0.05},
        {"k": 3, "theta": 0.3, "l1": 0.02, "shrink": "fixed"},
        {"k": 7, "theta": 0.05, "l1": 0.1},
        {"k": 1, "theta": math.inf, "l1": 0.01},
        {"k": 1, "theta": math.inf, "l1": 0.0005, "shrink": "fixed"},
    ],
    "fobos": [
        {"l1": 0.01, "l2": 0.05},
        {"l1": 0.02},
        {"l1": 0.01, "l2": 0.005, "shrink": "fixed"},
        {"l1": 0.3, "l2": 2.0},
    ],
    "rda": [{"l1": 0.02, "l2": 0.1}, {"l1": 0.01}],
    "ftrl": [{"l1": 0.3}, {"l1": 1.0, "l2": 0.5}, {"l2": 2.0}],
    "adpredictor": [{"forgetting": 0.01, "prior_ctr": 0.1}, {}],
}
EVERY = ("gradients", "counts", "global", "constant")
RATES: dict[str, tuple[str, ...]] = {
    "rda": ("global", "gradients", "constant"),
    "ftrl": ("gradients", "counts", "constant"),
    "adpredictor": ("posterior",),
}
SHARED, ALONE = (3, "single"), (1, "single")
EACH = (3, "per_variant")


def section_of(algorithm: str, rate: str, case: Mapping[str, Any]) -> Section:
    """A learner with parameters under which its weights move."""
    section = {"algorithm": algorithm, "rate": rate, "alpha": 0.3, "beta": 0.7}
    return section | ({} if algorithm == "adpredictor" else {"l1": 0.0}) | dict(case)


def kinds() -> Iterator[tuple[str, str, list[Section]]]:
    """Every learner that has a class of its own at each rate that a spec may name, and its cases there."""
    for algorithm, cases in CASES.items():
        for rate in RATES.get(algorithm, EVERY):
            of_class: dict[str | bool | None, list[Section]] = {}
            for case in cases:
                shrink = case.get("shrink")
                if (algorithm, rate, shrink) != ("ogd", "global", None) or not case.get("l1"):
                    # Fobos alone is one class, however it shrinks.
                    has_own_class = (shrink if algorithm != "fobos" else None) or (
                        algorithm == "ogd" and bool(case)
                    )
                    of_class.setdefault(has_own_class, []).append(section_of(algorithm, rate, case))
            yield from ((algorithm, rate, sections) for sections in of_class.values())


def places_at(algorithm: str, rate: str) -> tuple[int, str]:
    """The number of variants and the values with which the slow tests have a learner at this rate.

    A learner's formulas know its rate, and no loop or layout; a loop knows no learner (docs/adr/0003). So each learner
    is at every rate and in every loop, but not in every loop at every rate: at a constant rate its variants share
    values, at a global one, for which it keeps running totals, each has its own. Truncation's, and those of touched
    gradient descent (SLOW), are shared there too.
    """
    # FAST has FTRL's counts with own values.
    if rate == "constant" or (algorithm, rate) in (("ftrl", "counts"), ("truncation", "global")):
        return SHARED
    return EACH if rate == "global" else ALONE


def named() -> Iterator[Any]:
    """A section and its number of variants: FAST, and, as slow ones, SLOW."""
    for name, each in (FAST | SLOW).items():
        yield pytest.param(*each, id=name, marks=pytest.mark.slow if name in SLOW else ())


def fast_and_slow() -> Iterator[Any]:
    """A section and its number of variants: those `named`, and, as slow ones, every kind at its `places_at`.

    A kind's further cases are at its first and at a global rate. A learner's code is the same at every rate that is
    each key's own, so "counts" and "constant" are tried with plain ogd alone.
    """
    yield from named()
    for algorithm, rate, sections in kinds():
        if rate in ("counts", "constant") and (
            algorithm != "ogd" or sections[0].get("l1") or sections[0].get("l2")
        ):
            continue
        variants, values = places_at(algorithm, rate)
        has_further = rate in (RATES.get(algorithm, EVERY)[0], "global")
        for number, section in enumerate(sections if has_further else sections[:1]):
            name = "-".join([algorithm, *filter(None, [section.get("shrink")]), rate, str(number)])
            yield pytest.param(section | {"values": values}, variants, id=name, marks=pytest.mark.slow)


def resumed(spec: ModelSpec, rows: Sequence[Mapping[str, bytes]], at: int) -> LearningModel:
    """A model of these rows that goes on from the state of one of the first `at`."""
    first, second = learned(spec, rows[:at]), model_of(spec, list(rows[0]))
    second.restore({name: array.copy() for name, array in first.state().items()})
    learn(second, rows[at:])
    return second


def gappy_rows(rows: int, seed: int) -> list[dict[str, bytes]]:
    """Random rows in which most values vanish for long: a brand of each fifth, tags only at both ends."""
    log = shop_rows(rows, seed)
    for index, row in enumerate(log):
        fifth = index * 5 // rows
        if fifth not in (0, 4):
            row["tags"] = b""
        if row["brand"] and fifth in (1, 3):
            row["brand"] = b"odd%d" % fifth
        if 20 < index < rows - 20:
            row["hashes"] = b""
    return log


def assert_same(
    spec: ModelSpec, rows: Sequence[Mapping[str, bytes]], printed: Any = None, **of: Any
) -> Weights:
    """The kernel's scores and weights are the textbook's."""
    if spec.learner.precision == "q2.13":
        of["rounding"] = luck
    scores, weights, _ = by_textbook(spec, rows, printed, **of)
    assert_equal(by_kernel(spec, rows), (scores, weights))
    return weights


def assert_equal(
    found: tuple[Any, Weights], expected: tuple[Any, Weights], tolerance: float = TOLERANCE
) -> None:
    """These scores and weights, of a kernel, are those."""
    np.testing.assert_allclose(found[0], expected[0], rtol=tolerance, atol=tolerance)
    assert found[1].keys() == expected[1].keys()
    for key, weight in expected[1].items():
        assert found[1][key] == pytest.approx(weight, rel=tolerance, abs=tolerance), key


def assert_same_bits(one: LearningModel, other: LearningModel) -> None:
    """The coordinates of both are equal to the last bit."""
    states = one.coordinates.state(), other.coordinates.state()
    assert states[0].keys() == states[1].keys()
    for name, array in states[0].items():
        assert array.tobytes() == states[1][name].tobytes(), name


def hash_of(key: bytes) -> int:
    """A key's hash."""
    out = np.empty(1, np.uint64)
    hash_keys(np.frombuffer(key, np.uint8).copy(), np.array([0, len(key)], np.int64), out)
    return int(out[0])


def luck(key: bytes, t: int, place: int, seed: int = SEED) -> float:
    """The R of a key at example t: splitmix64's finaliser of both and the seed, its upper 32 bits."""
    word = 2**64 - 1
    h = hash_of(key) ^ (t * 0x9E3779B97F4A7C15 & word) ^ seed ^ (place << 40)
    h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9 & word
    h = (h ^ h >> 27) * 0x94D049BB133111EB & word
    return ((h ^ h >> 31) >> 32) / 2**32
