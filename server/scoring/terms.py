"""Terms: a plan's fields and crosses as rows of numbers, each with its prefix walked once in both layers' tries.

A term whose prefix leads to no key in either is left out here, so that no request spends anything on it. Nothing here
scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.features import FeaturePlan, FieldPlan
from model_store.keys import BIAS
from server.interning.halves import group_of, groups_of, is_mixed
from server.layers.layer import Layer
from server.scoring.choices.kernels import BASE, COUNT, FIELD, FRESH, GROUP, MASK, TERM_COLUMNS
from server.trie import Cursor, FlatTrie

Array = npt.NDArray[Any]
Tries = tuple[FlatTrie, FlatTrie]
_ALL_VARIANTS = 2**32 - 1


@dataclass(frozen=True, eq=False)
class Terms:
    """int64[terms, TERM_COLUMNS] each; the columns are named in `server/scoring/choices/kernels.py`.

    request: the bias, fields and crosses of the request alone, fields numbered as in plan.request_fields.
    item: those of the item alone, fields numbered as in plan.item_fields. mixed: crosses of both, with their request
    fields. groups: a row for each group of item halves that has any, with its item fields.
    """

    request: Array
    item: Array
    mixed: Array
    groups: Array

    @classmethod
    def of(cls, plan: FeaturePlan, base: Layer, fresh: Layer) -> Terms:
        """Walk every prefix of the plan. O(bytes of the prefixes)."""
        tries = base.trie, fresh.trie
        groups = [*_groups(plan, base, fresh)]
        return cls(
            request=_array([_row(_prefix(tries, BIAS)), *_alone(plan, tries, plan.request_fields)]),
            item=_array([*_alone(plan, tries, plan.item_fields)]),
            mixed=_array([*_mixed(plan, tries, [names for names, _ in groups])]),
            groups=_array([row for _, row in groups]),
        )


def _alone(plan: FeaturePlan, tries: Tries, side: Sequence[FieldPlan]) -> Iterator[list[int]]:
    """The fields of one side, then the crosses among them."""
    for field in side:
        yield _row(_prefix(tries, field.prefix), _numbers([field], side), field.mask)
    for cross in plan.crosses:
        if all(field in side for field in cross.fields):
            yield _row(_prefix(tries, cross.prefix), _numbers(cross.fields, side), cross.mask)


def _mixed(plan: FeaturePlan, tries: Tries, groups: list[tuple[str, ...]]) -> Iterator[list[int]]:
    for cross in plan.crosses:
        if is_mixed(cross) and group_of(cross) in groups:
            numbers = _numbers(cross.request_fields, plan.request_fields)
            yield _row(_prefix(tries, cross.prefix), numbers, cross.mask, groups.index(group_of(cross)))


def _groups(plan: FeaturePlan, base: Layer, fresh: Layer) -> Iterator[tuple[tuple[str, ...], list[int]]]:
    for number, names in enumerate(groups_of(plan)):
        fields = [field for name in names for field in plan.item_fields if field.name == name]
        places = base.halves.cursor(number), fresh.halves.cursor(number)
        if any(places):
            yield names, _row(places, _numbers(fields, plan.item_fields))


def _numbers(fields: Sequence[FieldPlan], side: Sequence[FieldPlan]) -> list[int]:
    return [side.index(field) for field in fields]


def _prefix(tries: Tries, prefix: bytes) -> tuple[Cursor | None, Cursor | None]:
    base, fresh = tries
    return base.cursor(prefix), fresh.cursor(prefix)


def _row(
    places: tuple[Cursor | None, Cursor | None],
    fields: Sequence[int] = (),
    mask: int = _ALL_VARIANTS,
    group: int = 0,
) -> list[int]:
    row = [0] * TERM_COLUMNS
    row[COUNT], row[FIELD : FIELD + len(fields)], row[MASK], row[GROUP] = len(fields), fields, mask, group
    for column, cursor in zip((BASE, FRESH), places, strict=True):
        row[column : column + 3] = (cursor.node, cursor.used, cursor.stop) if cursor else (-1, 0, 0)
    return row


def _array(rows: list[list[int]]) -> Array:
    kept = [row for row in rows if row[BASE] >= 0 or row[FRESH] >= 0]
    return np.array(kept, np.int64).reshape(-1, TERM_COLUMNS)
