"""A coordinate as the loops see it, whatever its layout: its a, its l1, and the learner of its variant."""

from __future__ import annotations

from typing import Any

from model_store.jit import bare_inline, implements, stub
from trainer.learners.learner import pack, unpack, with_own
from trainer.slots.layouts import COMPACT, Full, FullCounts, Own, OwnCompact, OwnCompactCounts, OwnCounts
from trainer.slots.state import put, value_of


@bare_inline
def l1_at(l1: Any, v: Any, feature: Any) -> Any:
    """l1 of a variant and feature; l1: float64[variants, features], or [variants, 1] where no rule sets it."""
    return l1[v, feature if l1.shape[1] > 1 else 0]


@stub
def load(table: Any, slot: Any, v: Any, learner: Any, r: Any) -> Any:
    """a of a coordinate."""


@stub
def save(table: Any, slot: Any, v: Any, learner: Any, a: Any, n: Any, r: Any, t: Any) -> Any:
    """Store a coordinate's a and n; r is the reading of n."""


@implements(load, Full, FullCounts, Own, OwnCounts)
def _load_a(table: Any, slot: Any, v: Any, learner: Any, r: Any) -> Any:
    return value_of(table, slot, v)


@implements(load, *COMPACT, OwnCompact, OwnCompactCounts)
def _load_packed(table: Any, slot: Any, v: Any, learner: Any, r: Any) -> Any:
    return unpack(learner, value_of(table, slot, v), r)


@implements(save, Full, FullCounts, Own, OwnCounts)
def _save_a(table: Any, slot: Any, v: Any, learner: Any, a: Any, n: Any, r: Any, t: Any) -> Any:
    put(table, slot, v, a, n, t)


@implements(save, *COMPACT, OwnCompact, OwnCompactCounts)
def _save_packed(table: Any, slot: Any, v: Any, learner: Any, a: Any, n: Any, r: Any, t: Any) -> Any:
    put(table, slot, v, pack(learner, a, r), n, t)


@bare_inline
def own_learner(learner: Any, parameters: Any, v: Any) -> Any:
    """The learner with variant v's parameters."""
    return with_own(learner, parameters[v, 0], parameters[v, 1], parameters[v, 2], parameters[v, 3])
