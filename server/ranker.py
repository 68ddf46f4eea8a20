"""Ranker: the candidates of one request, scored and sorted. A model and a catalogue, bound once.

score = bias + Σ request + Σ item + Σ crosses of both. The request's part is summed once a request; the item's once a
model, here; each cross walks the request's half once and is matched with the candidates by number, in one kernel that
holds no lock. Nothing here reads a store or knows the wire.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.errors import FieldValueError
from model_store.spec_sections import MAX_CROSS_FIELDS
from model_store.values import Value
from server.catalogue import Catalogue, id_tokens
from server.layers.layer import Layer
from server.model import Model
from server.receiving.item_ids import ItemIds
from server.receiving.plain_features import PlainFeatures
from server.scoring.curves import RequestCurves
from server.scoring.items import ItemTable
from server.scoring.kernels import FIRST_SPELLED, NO_ITEM, rank
from server.scoring.tokens import NO_VALUE, TokenWriter
from server.selection.options import Options
from server.selection.selection import Selection

Array = npt.NDArray[Any]
Spelled = tuple[str, Mapping[str, Value]]

# Values of each field whose tokens are kept: most requests bring ages, cities and hours that were just asked for.
REMEMBERED_VALUES = 512
NO_FIELDS: Mapping[str, Value] = {}
SCORES = -4  # in the scratch space: every candidate's score


@dataclass(slots=True)
class Ranking:
    """Places in `candidates`, best first; equal scores in the order of the request. ctrs[i] = τ(σ(scores[i])).

    order int64[k]; ctrs and scores float64[k]; so are objectives, uncertainties and propensities, where they are asked
    for. notes: what the answer's `degraded` must say.
    """

    candidates: Sequence[str]
    order: Array
    ctrs: Array
    scores: Array
    unknown_items: list[str]
    unknown_fields: list[str]
    objectives: Array | None = None
    uncertainties: Array | None = None
    propensities: Array | None = None
    notes: Sequence[str] = ()

    @property
    def has_more(self) -> bool:
        """Whether something is said of the items beside ctr and score."""
        return not (self.objectives is self.uncertainties is self.propensities is None)

    @property
    def ids(self) -> list[str]:
        """The items' ids. O(k)."""
        if isinstance(self.candidates, ItemIds):
            return self.candidates.at(self.order)
        return [self.candidates[place] for place in self.order.tolist()]

    @property
    def ctr(self) -> list[float]:
        """The predicted rate of each. O(k)."""
        rates: list[float] = self.ctrs.tolist()
        return rates

    @property
    def score(self) -> list[float]:
        """The score of each. O(k)."""
        scores: list[float] = self.scores.tolist()
        return scores


class Ranker:
    """Ranks with one model over one catalogue. Any number of threads may use one ranker at a time."""

    def __init__(self, model: Model, catalogue: Catalogue, items: ItemTable | None = None) -> None:
        """`items`: the catalogue's, if they are known; else O(items · fields): every item is summed and coded here."""
        if [field.name for field in catalogue.fields] != [field.name for field in model.plan.item_fields]:
            raise ValueError("the catalogue was built with another plan: build it with model.plan")
        self._model = model
        self._rows_of = catalogue.rows.rows
        variants = range(len(model.plan.variants))
        if items is None:
            items = ItemTable.of(model, catalogue.tokens_with_ids(model.item_id_fields), variants)
        self._items = items
        self._longest_run, self._groups = self._items.longest_run, len(model.terms.groups)
        self._halves = model.halves
        request_fields = model.plan.request_fields
        self._fields = tuple(
            (field.name, field.tokens, lru_cache(REMEMBERED_VALUES)(field.tokens)) for field in request_fields
        )
        self._field_names = frozenset(field.name for field in request_fields)
        self._values = np.arange(len(request_fields), dtype=np.int32).reshape(1, -1)
        codes = self._items.code_arrays
        self._heads = tuple((*model.head(variant), self._items.own[variant], *codes) for variant in variants)
        no_rows = np.empty((0, len(model.plan.item_fields)), np.int32)
        nothing = ItemTable.of(model, TokenWriter().table(no_rows), range(1))
        self._no_spelled = nothing.own[0], *nothing.code_arrays
        self._rate_heads = tuple(
            (*_over_rates(model).head(variant), self._items.unsure[variant], *self._items.without_signs)
            for variant in variants
        )
        self._attributes = catalogue.attributes
        self._curves = RequestCurves(model.calibration, model.plan)
        self._local = threading.local()

    def rank(
        self,
        fields: Mapping[str, Value] | PlainFeatures,
        item_ids: Sequence[str],
        spelled: Sequence[Spelled] = (),
        variant: int = 0,
        top_k: int | None = None,
        *,
        options: Options | None = None,
    ) -> Ranking:
        """Score the items named and the items spelled out (id, features), with the request's `fields`.

        top_k None means all. `options` say what to order by, what to leave out and what to try out. An item that the
        catalogue lacks is scored on what is known, and listed. Raises FieldValueError for a value that does not fit
        its field, and for an item's field among the request's.
        """
        request: tuple[Array, ...]
        if isinstance(fields, PlainFeatures):
            unknown_fields, request, fields = [], fields.arrays, NO_FIELDS
        else:
            unknown_fields = [] if fields.keys() <= self._field_names else self._unknown_fields(fields)
            request = self._request(fields)
        ids, rows, extra, unknown_items = self._candidates(item_ids, spelled)
        others = self._spell(extra, variant) if extra else None
        spelled_arrays = self._no_spelled if others is None else (others.own[0], *others.code_arrays)
        scratch = self._scratch(len(rows), 1 if others is None else others.longest_run)
        top = len(rows) if top_k is None else min(top_k, len(rows))
        arguments = (
            *self._heads[variant], *spelled_arrays, self._values, *request, rows, variant, top, *scratch,
        )  # fmt: skip
        rank(*arguments)
        curve = self._curves.choose(variant, fields)
        if options is not None:
            scores = scratch[SCORES][: len(rows)].copy()
            unsure = (
                self._unsure(request, rows, others, variant, scratch) if options.needs_uncertainty else None
            )
            chosen = options.select(ids, rows, extra, scores, unsure, curve, self._attributes, top_k)
            return _selected(chosen, ids, unknown_items, unknown_fields)
        order, ctr, score = (best[:top].copy() for best in scratch[-3:])
        if curve is not None:
            ctr = curve.apply(ctr)
        return Ranking(ids, order, ctr, score, unknown_items, unknown_fields)

    def _unsure(
        self,
        request: tuple[Array, ...],
        rows: Array,
        others: ItemTable | None,
        variant: int,
        scratch: tuple[Array, ...],
    ) -> Array:
        """Σ rate·|x| of every candidate: what the kernel makes of rates in the weights' place, and no signs."""
        value_start, begin, xs, text = request
        spelled = self._no_spelled if others is None else (others.unsure[0], *others.without_signs)
        tokens = self._values, value_start, begin, np.abs(xs), text
        rank(*self._rate_heads[variant], *spelled, *tokens, rows, variant, 0, *scratch)
        return scratch[SCORES][: len(rows)]

    def _request(self, fields: Mapping[str, Value]) -> tuple[Array, ...]:
        """The request's tokens: all of the group `tokens` but `values`."""
        texts, xs, starts = [], [], [0]
        for name, tokens_of, remembered in self._fields:
            value = fields.get(name)
            if value is not None:
                for text, x in remembered(value) if type(value) is str else tokens_of(value):
                    texts.append(text)
                    xs.append(x)
            starts.append(len(texts))
        begin = [0, *accumulate(len(text) + 1 for text in texts)]
        numbers = np.array(starts + begin, np.int64)
        data = np.frombuffer(bytearray(b"*".join([*texts, b""])), np.uint8)
        return numbers[: len(starts)], numbers[len(starts) :], np.array(xs, np.float64), data

    def _candidates(
        self, item_ids: Sequence[str], spelled: Sequence[Spelled]
    ) -> tuple[Sequence[str], Array, Sequence[Spelled], list[str]]:
        """All ids, their rows, the items to spell out, and the ids that the catalogue lacks."""
        rows, missing = self._rows_of(item_ids)
        if not missing and not spelled:
            return item_ids, rows, (), []
        unknown = np.flatnonzero(rows == NO_ITEM)
        unknown_ids = [item_ids[index] for index in unknown.tolist()]
        extra: list[Spelled] = []
        if self._model.item_id_fields:  # the id is a feature, so something is known after all
            extra += ((item_id, {}) for item_id in unknown_ids)
            rows[unknown] = FIRST_SPELLED - np.arange(len(extra))
        more = FIRST_SPELLED - len(extra) - np.arange(len(spelled), dtype=np.int32)
        ids = [*item_ids, *(item_id for item_id, _ in spelled)]
        return ids, np.concatenate([rows, more]), [*extra, *spelled], list(dict.fromkeys(unknown_ids))

    def _spell(self, items: Sequence[Spelled], variant: int) -> ItemTable:
        """Look up items with the features given, exactly as the catalogue's are looked up."""
        model, writer = self._model, TokenWriter()
        fields, id_fields = model.plan.item_fields, model.item_id_fields
        values = np.empty((len(items), len(fields)), np.int32)
        for row, (item_id, features) in enumerate(items):
            for column, field in enumerate(fields):
                number = writer.add(field.tokens(features.get(field.name)))
                if number == NO_VALUE and field.name in id_fields:
                    number = writer.add(id_tokens(field, item_id))
                values[row, column] = number
        return ItemTable.of(model, writer.table(values), range(variant, variant + 1))

    def _unknown_fields(self, fields: Mapping[str, Value]) -> list[str]:
        for field in self._model.plan.item_fields:
            if field.name in fields:
                raise FieldValueError(
                    f"{field.name}: belongs to the item, and came with the request; give it with an item spelled out"
                )
        return [name for name in fields if name not in self._field_names]

    def _scratch(self, candidates: int, longest_run: int) -> tuple[Array, ...]:
        """This thread's scratch space, as large as this request may need it."""
        halves, groups = self._halves, self._groups
        wanted = min(halves, candidates * groups * max(longest_run, self._longest_run))
        have: tuple[Array, ...] | None = getattr(self._local, "scratch", None)
        if have is None or len(have[1]) < wanted or len(have[-1]) < candidates:
            have = self._local.scratch = (
                np.zeros(halves, np.int32),  # marks
                np.empty(wanted, np.int32),  # wanted
                np.empty(wanted, np.float64),  # sums
                np.empty(groups + 1, np.int64),  # starts
                np.empty(MAX_CROSS_FIELDS, np.int64),  # choice
                np.empty(candidates, np.float64),  # scores
                np.empty(candidates, np.int64),  # order
                np.empty(candidates, np.float64),  # ctr
                np.empty(candidates, np.float64),  # score
            )
        return have


def _over_rates(model: Model) -> Model:
    """The model with its learning rates as weights, over the same keys. O(1)."""

    def layer(of: Layer) -> Layer:
        return replace(of, values=replace(of.values, weights=of.values.rates))

    return replace(model, base=layer(model.base), fresh=layer(model.fresh))


def _selected(
    chosen: Selection, ids: Sequence[str], unknown_items: list[str], unknown_fields: list[str]
) -> Ranking:
    return Ranking(
        ids,
        chosen.order,
        chosen.ctr,
        chosen.score,
        unknown_items,
        unknown_fields,
        chosen.objective,
        chosen.uncertainty,
        chosen.propensity,
        chosen.notes,
    )
