"""Terms: a plan's fields and crosses as rows of numbers, each with its prefix walked once in the trie.

A term whose prefix leads to no key is left out here, so that no request spends anything on it. Nothing here scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.features import FeaturePlan, FieldPlan
from model_store.keys import BIAS
from server.interning.halves import Halves, group_of, is_mixed
from server.scoring.kernels import COUNT, FIELD, GROUP, MASK, NODE, STOP, TERM_COLUMNS, USED
from server.trie import Cursor, FlatTrie

Array = npt.NDArray[Any]
_ALL_VARIANTS = 2**32 - 1


@dataclass(frozen=True, eq=False)
class Terms:
    """int64[terms, TERM_COLUMNS] each; the columns are named in `server/scoring/kernels.py`.

    request: the bias, fields and crosses of the request alone, fields numbered as in plan.request_fields.
    item: those of the item alone, fields numbered as in plan.item_fields. mixed: crosses of both, with their request
    fields. groups: a row for each group of item halves, with its item fields.
    """

    request: Array
    item: Array
    mixed: Array
    groups: Array

    @classmethod
    def of(cls, plan: FeaturePlan, trie: FlatTrie, halves: Halves) -> Terms:
        """Walk every prefix of the plan. O(bytes of the prefixes)."""
        return cls(
            request=_array([_row(trie.cursor(BIAS)), *_alone(plan, trie, plan.request_fields)]),
            item=_array([*_alone(plan, trie, plan.item_fields)]),
            mixed=_array([*_mixed(plan, trie, halves)]),
            groups=_array([*_groups(plan, halves)], keep_absent=True),
        )


def _alone(plan: FeaturePlan, trie: FlatTrie, side: Sequence[FieldPlan]) -> Iterator[list[int]]:
    """The fields of one side, then the crosses among them."""
    for field in side:
        yield _row(trie.cursor(field.prefix), _numbers([field], side), field.mask)
    for cross in plan.crosses:
        if all(field in side for field in cross.fields):
            yield _row(trie.cursor(cross.prefix), _numbers(cross.fields, side), cross.mask)


def _mixed(plan: FeaturePlan, trie: FlatTrie, halves: Halves) -> Iterator[list[int]]:
    for cross in plan.crosses:
        if is_mixed(cross) and group_of(cross) in halves.groups:
            numbers = _numbers(cross.request_fields, plan.request_fields)
            yield _row(trie.cursor(cross.prefix), numbers, cross.mask, halves.groups.index(group_of(cross)))


def _groups(plan: FeaturePlan, halves: Halves) -> Iterator[list[int]]:
    for number, names in enumerate(halves.groups):
        fields = [field for name in names for field in plan.item_fields if field.name == name]
        yield _row(halves.cursor(number), _numbers(fields, plan.item_fields))


def _numbers(fields: Sequence[FieldPlan], side: Sequence[FieldPlan]) -> list[int]:
    return [side.index(field) for field in fields]


def _row(
    cursor: Cursor | None, fields: Sequence[int] = (), mask: int = _ALL_VARIANTS, group: int = 0
) -> list[int]:
    row = [0] * TERM_COLUMNS
    row[COUNT], row[FIELD : FIELD + len(fields)], row[MASK], row[GROUP] = len(fields), fields, mask, group
    row[NODE], row[USED], row[STOP] = (cursor.node, cursor.used, cursor.stop) if cursor else (-1, 0, 0)
    return row


def _array(rows: list[list[int]], keep_absent: bool = False) -> Array:
    kept = [row for row in rows if keep_absent or row[NODE] >= 0]
    return np.array(kept, np.int64).reshape(-1, TERM_COLUMNS)
