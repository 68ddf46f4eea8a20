"""Model: one published version, ready to score: its keys and values in two layers, and its plan's terms over both."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy.typing as npt

from model_store.artefact import Artefact
from model_store.calibration import Calibration
from model_store.features import FeaturePlan
from model_store.spec import ModelSpec
from server.interning.halves import Halves
from server.layers.base import Base
from server.layers.layer import Layer
from server.layers.values import Values
from server.scoring.request_tokens import RequestTokens
from server.scoring.set_crosses import SetCrosses
from server.scoring.terms import Terms
from server.trie import FlatTrie

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Entry:
    """What a model says of a key: its weight and learning rate for one variant."""

    weight: float
    rate: float


@dataclass(frozen=True, eq=False)
class Model:
    """A version of a model. Immutable; shared by all threads. Each key lies in `base` or in `fresh`, never in both."""

    version: int
    spec: ModelSpec
    plan: FeaturePlan
    request_tokens: RequestTokens
    item_set_crosses: SetCrosses
    base: Layer
    fresh: Layer
    terms: Terms
    calibration: Calibration | None

    @classmethod
    def build(cls, artefact: Artefact, version: int) -> Model:
        """Build from a verified artefact. O(key bytes + weights). Raises ArtefactError for unsorted keys.

        Shares the artefact's arrays, but turns a column of weights a variant into a row, so that a request's reads,
        which are of one variant, lie together.
        """
        trie = FlatTrie.build(artefact.key_data, artefact.key_offsets)
        base = Base.of_spec(artefact.spec, trie, Halves.of(FeaturePlan.of(artefact.spec), trie))
        values = Values.of(artefact)
        fresh = Layer.none(values, len(base.halves.trie))
        return cls.of(version, base, values, fresh, artefact.calibration)

    @classmethod
    def of(
        cls, version: int, base: Base, values: Values, fresh: Layer, calibration: Calibration | None
    ) -> Model:
        """Bind layers that are built. O(bytes of the plan's prefixes)."""
        layer = Layer(base.trie, base.halves, values)
        terms = Terms.of(base.plan, layer, fresh)
        of_plan = base.spec, base.plan, base.request_tokens, base.item_set_crosses
        return cls(version, *of_plan, layer, fresh, terms, calibration)

    @property
    def halves(self) -> int:
        """How many item halves both layers have. O(1)."""
        return self.fresh.halves.stop

    def look_up(self, key: bytes, variant: int) -> Entry | None:
        """What `variant` knows of a key; None if it does not use it. O(L). Raises IndexError for no such variant."""
        for layer in (self.base, self.fresh):
            slot, values = layer.trie.get(key), layer.values
            if slot >= 0 and values.uses(slot, variant):
                whose = variant if values.width > 1 else 0
                return Entry(float(values.weights[whose, slot]), float(values.rates[whose, slot]))
        return None

    def head(self, variant: int) -> tuple[Array, ...]:
        """What each call of the kernel `rank` begins with, for one variant. Raises IndexError for no such variant."""
        base, fresh = self.base, self.fresh
        whose, plane = variant if base.values.width > 1 else 0, variant >> 3
        return (
            *base.trie.walked, base.values.weights[whose], base.values.variants[plane], base.halves.half,
            *fresh.trie.walked, fresh.values.weights[whose], fresh.values.variants[plane],
            fresh.halves.half, fresh.halves.at,
            self.terms.request, self.terms.mixed,
        )  # fmt: skip

    @cached_property
    def item_id_fields(self) -> tuple[str, ...]:
        """Item fields that stand for the item itself: an item without a value there has its own id as value."""
        return id_fields(self.spec, self.plan)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays. O(1)."""
        return self.base.nbytes + self.fresh.nbytes


def id_fields(spec: ModelSpec, plan: FeaturePlan) -> tuple[str, ...]:
    """Item fields that stand for the item itself."""
    column = spec.input.item
    return tuple(f.name for f in plan.item_fields if column is not None and column in (f.name, f.column))
