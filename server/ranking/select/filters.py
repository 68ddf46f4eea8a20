"""Filters and caps: the fields of a request's candidates as columns, conditions on them, and caps on shared values."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model_store.spec.values import Value, text_of
from server.model.columns import NO_TEXT, Catalogue, Column, InlineItem, number_of
from server.ranking.scoring_kernels import FIRST_INLINE
from server.ranking.select.select_kernels import count_taken, take

Array = npt.NDArray[Any]

FEW = 64
_EMPTY = pa.array([], pa.large_binary())

ID = "id"
"""The candidate's own id, unless the catalogue's records have a field of this name."""


@dataclass(frozen=True, eq=False)
class Texts:
    """The candidates' texts in one field: candidate owner[i] has the text code[i]. Both int64, owner ascending."""

    owner: Array
    code: Array
    numbered: Mapping[bytes, int]
    column: Column | None

    def among(self, wanted: Collection[str | bytes]) -> Array:
        """bool[len(owner)]: whether each text is one of those wanted.

        A few are looked up among the catalogue's texts, each O(log texts) in Python. Many are put into a hash table, in
        which every distinct text of the candidates is looked up: O(texts + wanted), by Arrow and without the GIL.
        """
        if len(wanted) <= FEW:
            return np.isin(self.code, [self.code_of(text) for text in wanted])
        texts, place = self.distinct
        found = pc.is_in(texts, value_set=pa.array(wanted, pa.large_binary()))
        return np.asarray(found.to_numpy(zero_copy_only=False))[place]

    def code_of(self, text: str | bytes) -> int:
        """The code of a text; NO_TEXT if no candidate has it."""
        text = text.encode() if isinstance(text, str) else text
        code = NO_TEXT if self.column is None else self.column.code(text)
        return self.numbered.get(text, NO_TEXT) if code == NO_TEXT else code

    @cached_property
    def distinct(self) -> tuple[pa.Array, Array]:
        """Each text once, in the order of the codes, and the index in it of each of `code`."""
        codes, place = np.unique(self.code, return_inverse=True)
        texts = _EMPTY if self.column is None else self.column.texts
        if self.numbered:
            texts = pa.concat_arrays([texts, pa.array(self.numbered, pa.large_binary())])
        return texts.take(pa.array(codes)), place


class CandidateColumns:
    """Columns over the candidates of one request, each made when it is first used. For one thread."""

    def __init__(
        self,
        catalogue: Catalogue,
        ids: Sequence[str],
        rows: Array,
        items: Sequence[InlineItem],
        stored: Array | None = None,
        computed: Mapping[str, Array] | None = None,
    ) -> None:
        """`rows` int32[candidates] as the ranking kernel has them; FIRST_INLINE - r means items[r].

        stored, computed: see `Candidates`; all other fields of such items are read from the catalogue.
        """
        self._computed = computed or {}
        self._places = rows
        # Items over which values were computed are inline only for the scores: all other fields are read by their rows.
        rows = rows if stored is None else stored
        self._catalogue = catalogue
        self._ids = ids
        self._rows = rows
        self._items = items
        self._numbers: dict[str, Array] = {}
        self._texts: dict[str, Texts] = {}
        self._at = np.flatnonzero(rows <= FIRST_INLINE) if items else np.empty(0, np.int64)
        self._known = rows >= 0

    def __len__(self) -> int:
        return len(self._rows)

    def numbers(self, name: str) -> Array:
        """float64[candidates], NaN where a candidate has no number in this field, or has several values."""
        if name not in self._numbers:
            self._numbers[name] = self._numbers_of(name)
        return self._numbers[name]

    def texts(self, name: str) -> Texts:
        """Every text of every candidate in this field."""
        if name not in self._texts:
            self._texts[name] = self._texts_of(name)
        return self._texts[name]

    def _numbers_of(self, name: str) -> Array:
        if name in self._computed:
            return self._computed[name]
        found = np.full(len(self), np.nan)
        column = self._catalogue.columns.get(name)
        if column is not None:
            found[self._known] = column.numbers_in(self._rows[self._known])
        for at, features in self._inline_items():
            found[at] = number_of(features.get(name))
        return found

    def _texts_of(self, name: str) -> Texts:
        computed, numbered = self._computed.get(name), dict[bytes, int]()
        column = self._catalogue.columns.get(name) if computed is None else None
        if column is None and computed is None and name == ID:
            return self._own_ids()
        if computed is None:
            owner, code = self._catalogued(column)
        else:
            owner = np.flatnonzero(self._known & ~np.isnan(computed))
            distinct, code = np.unique(computed[owner], return_inverse=True)
            numbered = {text_of(number): place for place, number in enumerate(distinct.tolist())}
        more: list[tuple[int, int]] = []
        first = 0 if column is None else column.count
        for at, features in self._inline_items():
            for text in self._catalogue.members(name, features.get(name)):
                known = NO_TEXT if column is None else column.code(text)
                if known == NO_TEXT:
                    known = numbered.setdefault(text, first + len(numbered))
                more.append((at, known))
        if more:
            pairs = np.array(more, np.int64)
            owner, code = np.concatenate([owner, pairs[:, 0]]), np.concatenate([code, pairs[:, 1]])
            order = np.argsort(owner, kind="stable")
            owner, code = owner[order], code[order]
        return Texts(owner, code, numbered, column)

    def _catalogued(self, column: Column | None) -> tuple[Array, Array]:
        """Owners and codes of the candidates that the catalogue knows."""
        if column is None:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        owner = np.flatnonzero(self._known)
        if column.is_set:
            place, code = column.members_in(self._rows[owner])
            return owner[place], code
        code = column.texts_in(self._rows[owner])
        has_text = code != NO_TEXT
        return owner[has_text], code[has_text]

    def _own_ids(self) -> Texts:
        numbered: dict[bytes, int] = {}
        texts = (item_id.encode("utf-8", "surrogatepass") for item_id in self._ids)
        code = np.array([numbered.setdefault(text, len(numbered)) for text in texts], np.int64)
        return Texts(np.arange(len(code)), code, numbered, None)

    def _inline_items(self) -> Iterator[tuple[int, Mapping[str, Value]]]:
        for at in self._at.tolist():
            yield at, self._items[FIRST_INLINE - int(self._places[at])][1]


# -- conditions: a candidate that fails one is left out before the order is made


@dataclass(frozen=True)
class AnyOf:
    """The field has one of these texts; of a set, some member is one of them."""

    field: str
    texts: Collection[str | bytes]

    def passes(self, candidates: CandidateColumns) -> Array:
        """bool[candidates]."""
        return _has(candidates.texts(self.field), self.texts, len(candidates))


@dataclass(frozen=True)
class NoneOf:
    """The field has none of these texts; a candidate without a value passes."""

    field: str
    texts: Collection[str | bytes]

    def passes(self, candidates: CandidateColumns) -> Array:
        """bool[candidates]."""
        return ~_has(candidates.texts(self.field), self.texts, len(candidates))


@dataclass(frozen=True)
class InRange:
    """The field's number lies between two bounds, both allowed."""

    field: str
    least: float = -math.inf
    most: float = math.inf

    def passes(self, candidates: CandidateColumns) -> Array:
        """bool[candidates]; False where there is no number."""
        numbers = candidates.numbers(self.field)
        return (numbers >= self.least) & (numbers <= self.most)


Condition = AnyOf | NoneOf | InRange


def _has(found: Texts, wanted: Collection[str | bytes], count: int) -> Array:
    has = np.zeros(count, np.bool_)
    has[found.owner[found.among(wanted)]] = True
    return has


# -- caps, taken greedily: best first, an item is taken if each of its values has room


@dataclass(frozen=True)
class Cap:
    """A limit on the items of one value of a field; items without a value are not bounded."""

    field: str
    at_most: int


@dataclass(frozen=True, eq=False)
class Groups:
    """Which candidates share a bounded value: candidate c is in the groups[start[c] : start[c + 1]], all int64."""

    start: Array
    groups: Array
    limits: Array

    @classmethod
    def of(cls, caps: Sequence[Cap], candidates: CandidateColumns) -> Groups:
        """One group for each value of each cap. O(candidates · caps), and a sort."""
        owners, groups, limits = [np.empty(0, np.int64)], [np.empty(0, np.int64)], list[int]()
        for cap in caps:
            texts = candidates.texts(cap.field)
            values, group = np.unique(texts.code, return_inverse=True)
            owners.append(texts.owner)
            groups.append(group + len(limits))
            limits += [cap.at_most] * len(values)
        owner = np.concatenate(owners)
        order = np.argsort(owner, kind="stable")
        start = np.searchsorted(owner[order], np.arange(len(candidates) + 1))
        return cls(start.astype(np.int64), np.concatenate(groups)[order], np.array(limits, np.int64))

    def take(self, order: Array, top: int) -> Array:
        """The first `top` candidates of `order` (int64) for which there is room, int64[≤ top]."""
        taken = np.empty(top, np.int64)
        found = take(order, self.start, self.groups, self.limits, np.empty_like(self.limits), top, taken)
        return taken[:found]

    def count_taken(self, orders: Array, top: int) -> Array:
        """How many rows of `orders` (int64[draws, n]) each candidate is taken from; int64, a number a candidate."""
        hits, taken = np.zeros(len(self.start) - 1, np.int64), np.empty(top, np.int64)
        scratch = np.empty_like(self.limits)
        count_taken(orders, self.start, self.groups, self.limits, scratch, top, taken, hits)
        return hits
