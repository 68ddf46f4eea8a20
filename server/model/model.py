"""One published version, ready to score: its keys and values in two layers, and the plan's terms over both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.artefact.artefact import Artefact
from model_store.artefact.calibration import Calibration
from model_store.features.features import FeaturePlan, FieldPlan
from model_store.spec.keys import BIAS
from model_store.spec.spec import ModelSpec
from model_store.trie.trie import Cursor, FlatTrie
from server.model.items_kernels import BASE, COUNT, FIELD, FRESH, GROUP, MASK, OF_USER, TERM_COLUMNS
from server.model.layers import Base, ItemParts, Layer, group_of, groups_of, is_mixed
from server.model.tokens import RequestTokens, SetCrosses
from server.model.values import Values

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Entry:
    """What a model says of a key: its weight and learning rate for one variant; with the probit link, a variance."""

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

        Shares the artefact's values, but each variant's column of weights becomes a row: a request, which reads one
        variant, then reads memory that is close together.
        """
        keys = artefact.key_data, artefact.key_offsets
        trie = FlatTrie.build(*keys)
        base = Base.of_spec(artefact.spec, trie, ItemParts.of(FeaturePlan.of(artefact.spec), trie, *keys))
        values = Values.of(artefact)
        fresh = Layer.none(values, len(base.item_parts.trie))
        return cls.of(version, base, values, fresh, artefact.calibration)

    @classmethod
    def of(
        cls, version: int, base: Base, values: Values, fresh: Layer, calibration: Calibration | None
    ) -> Model:
        """Bind layers that are built. O(bytes of the plan's prefixes)."""
        layer = Layer(base.trie, base.item_parts, values)
        terms = Terms.of(base.plan, layer, fresh, whole=base.spec.learner.link == "probit")
        of_plan = base.spec, base.plan, base.request_tokens, base.item_set_crosses
        return cls(version, *of_plan, layer, fresh, terms, calibration)

    @cached_property
    def priors(self) -> Array:
        """float64[variants]: the variance of a weight that the model does not have; empty unless the link is probit."""
        return self._parameters("alpha")

    @cached_property
    def noises(self) -> Array:
        """float64[variants]: the standard deviation of the noise; empty unless the link is probit."""
        return self._parameters("beta")

    def _parameters(self, name: str) -> Array:
        learner, variants = self.spec.learner, self.spec.variants.values()
        if learner.link != "probit":
            return np.empty(0)
        return np.array([each.own_parameters.get(name, getattr(learner, name)) for each in variants])

    @property
    def item_parts(self) -> int:
        """How many item parts both layers have. O(1)."""
        return self.fresh.item_parts.stop

    def look_up(self, key: bytes, variant: int) -> Entry | None:
        """A key's entry for `variant`; None if it does not use the key. O(L). Raises IndexError."""
        for layer in (self.base, self.fresh):
            slot, values = layer.trie.get(key), layer.values
            if slot >= 0 and values.uses(slot, variant):
                whose = variant if values.width > 1 else 0
                return Entry(float(values.weights[whose, slot]), float(values.rates[whose, slot]))
        return None

    def head(self, variant: int) -> tuple[Array, ...]:
        """The first arguments of the kernel `rank`, for one variant. Raises IndexError for an unknown variant."""
        base, fresh = self.base, self.fresh
        # The variant's weights and its plane of bits are chosen here, so that the kernel reads both by slot alone.
        whose, plane = variant if base.values.width > 1 else 0, variant >> 3
        return (
            *base.trie.walked, base.values.weights[whose], base.values.variants[plane], base.item_parts.half,
            *fresh.trie.walked, fresh.values.weights[whose], fresh.values.variants[plane],
            fresh.item_parts.half, fresh.item_parts.at,
            self.terms.request, self.terms.mixed,
        )  # fmt: skip

    @cached_property
    def item_id_fields(self) -> tuple[str, ...]:
        """Item fields that mean the item itself: an item without a value there has its own id as value."""
        return id_fields(self.spec, self.plan)

    @cached_property
    def knows_unknown_items(self) -> bool:
        """Whether an item without a record has keys: those of its id, or of missing values."""
        return bool(self.item_id_fields) or any(field.spec.missing for field in self.plan.item_fields)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays. O(1)."""
        return self.base.nbytes + self.fresh.nbytes


def id_fields(spec: ModelSpec, plan: FeaturePlan) -> tuple[str, ...]:
    """Item fields that mean the item itself: those of the spec's item column, or of its name."""
    column = spec.input.item
    return tuple(f.name for f in plan.item_fields if column is not None and column in (f.name, f.column))


Tries = tuple[FlatTrie, FlatTrie]
_ALL_VARIANTS = 2**32 - 1


@dataclass(frozen=True, eq=False)
class Terms:
    """A plan's fields and crosses as rows of numbers, each with its prefix walked in the tries of both layers.

    int64[terms, TERM_COLUMNS] each; `server/model/items_kernels.py` names the columns. A term whose prefix leads to no
    key in either trie is left out, so that requests spend nothing on it; not with the probit link, where keys that a
    model lacks have a variance.

    request: the bias, fields and crosses of the request alone, fields numbered as in plan.request_fields.
    item: those of the item alone, fields numbered as in plan.item_fields. mixed: crosses of both, with their request
    fields, sorted by group. groups: a row for each group of item parts that has any, with its item fields.
    """

    request: Array
    item: Array
    mixed: Array
    groups: Array

    @classmethod
    def of(cls, plan: FeaturePlan, base: Layer, fresh: Layer, *, whole: bool = False) -> Terms:
        """Walk every prefix of the plan. O(bytes of the prefixes). whole: keep terms that lead to no key."""
        tries = base.trie, fresh.trie
        groups = [*_groups(plan, base, fresh)]
        groups = groups if whole else [(names, row) for names, row in groups if _leads_on(row)]

        def array(rows: Iterable[list[int]]) -> Array:
            kept = [row for row in rows if whole or _leads_on(row)]
            return np.array(kept, np.int64).reshape(-1, TERM_COLUMNS)

        return cls(
            request=array([_row(_prefix(tries, BIAS)), *_alone(plan, tries, plan.request_fields)]),
            item=array(_alone(plan, tries, plan.item_fields)),
            # By group, as the kernel sums them. The sort is stable: crosses of one group stay in the spec's order, and
            # sums keep their bits.
            mixed=array(sorted(_mixed(plan, tries, [names for names, _ in groups]), key=itemgetter(GROUP))),
            groups=array(row for _, row in groups),
        )

    @property
    def know_items(self) -> bool:
        """Whether any key of the model has a field of the item."""
        return any(_leads_on(row) for rows in (self.item, self.groups) for row in rows)


def _alone(plan: FeaturePlan, tries: Tries, side: Sequence[FieldPlan]) -> Iterator[list[int]]:
    """The fields of one side, then the crosses among them."""
    for field in (each for each in side if each.spec.main):
        yield _row(_prefix(tries, field.prefix), [field], side, field.mask)
    for cross in plan.crosses:
        if all(field in side for field in cross.fields):
            yield _row(_prefix(tries, cross.prefix), cross.fields, side, cross.mask)


def _mixed(plan: FeaturePlan, tries: Tries, groups: list[tuple[str, ...]]) -> Iterator[list[int]]:
    for cross in plan.crosses:
        if is_mixed(cross) and group_of(cross) in groups:
            group = groups.index(group_of(cross))
            prefix = _prefix(tries, cross.prefix)
            yield _row(prefix, cross.request_fields, plan.request_fields, cross.mask, group)


def _groups(plan: FeaturePlan, base: Layer, fresh: Layer) -> Iterator[tuple[tuple[str, ...], list[int]]]:
    for number, names in enumerate(groups_of(plan)):
        fields = [field for name in names for field in plan.item_fields if field.name == name]
        places = base.item_parts.cursor(number), fresh.item_parts.cursor(number)
        yield names, _row(places, fields, plan.item_fields)


def _prefix(tries: Tries, prefix: bytes) -> tuple[Cursor | None, Cursor | None]:
    base, fresh = tries
    return base.cursor(prefix), fresh.cursor(prefix)


def _row(
    places: tuple[Cursor | None, Cursor | None],
    fields: Sequence[FieldPlan] = (),
    side: Sequence[FieldPlan] = (),
    mask: int = _ALL_VARIANTS,
    group: int = 0,
) -> list[int]:
    """The row of a term over these of one side's fields."""
    row, numbers = [0] * TERM_COLUMNS, [side.index(field) for field in fields]
    row[COUNT], row[FIELD : FIELD + len(numbers)], row[MASK], row[GROUP] = len(numbers), numbers, mask, group
    row[OF_USER] = int(any(field.side == "user" for field in fields))
    for column, cursor in zip((BASE, FRESH), places, strict=True):
        row[column : column + 3] = (cursor.node, cursor.used, cursor.stop) if cursor else (-1, 0, 0)
    return row


def _leads_on(row: Sequence[int]) -> bool:
    """Whether a term's prefix leads to a key."""
    return row[BASE] >= 0 or row[FRESH] >= 0
