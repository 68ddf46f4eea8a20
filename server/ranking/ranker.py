"""Ranker: the candidates of one request, scored and sorted. A model and a catalogue, bound once.

score = bias + Σ request + Σ item + Σ crosses of both. The request's part is summed once a request; the item's once a
model, here; each cross walks the request's half once and is matched with the candidates by number, in one kernel that
holds no lock. Nothing here reads a store or knows the wire.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from model_store.artefact.calibration import Calibration, Curve
from model_store.features.features import FeaturePlan
from model_store.features.values import Value
from model_store.spec.sections import MAX_CROSS_FIELDS
from server.errors import Degradation
from server.model.catalogue import Catalogue
from server.model.item_ids import ItemIds
from server.model.items import ItemTable
from server.model.model import Model
from server.ranking.features import PlainFeatures
from server.ranking.inline_items import Spelled, spelled_out
from server.ranking.multi_variant import LaneScorer
from server.ranking.scoring_kernels import FIRST_SPELLED, NO_ITEM, rank
from server.ranking.select.options import Options
from server.ranking.select.select_kernels import click_rates
from server.ranking.select.selection import Selection

Array = npt.NDArray[Any]

NO_FIELDS: Mapping[str, Value] = {}


@dataclass(slots=True)
class ShadowRanking:
    """What a variant that does not answer makes of a request: its own best items, best first, and what it scores them.

    As many as the answer has, of all candidates; shown: its score of each item of the answer, in the answer's order.
    """

    variant: int
    ids: list[str]
    score: list[float]
    shown: list[float]


@dataclass(slots=True)
class Ranking:
    """Places in `candidates`, best first; equal scores in the order of the request. ctrs[i] = τ(σ(scores[i])).

    order int64[k]; ctrs and scores float64[k]; so are objectives, uncertainties and propensities, where they are asked
    for. notes: what the answer's `degraded` must say. rows int32: the row of each candidate in the catalogue, or
    FIRST_SPELLED - r where it is extra[r], (id, features), or NO_ITEM where nothing is known of it.
    """

    candidates: Sequence[str]
    order: Array
    ctrs: Array
    scores: Array
    unknown_items: list[str]
    unknown_fields: list[str]
    rows: Array
    extra: Sequence[Spelled]
    objectives: Array | None = None
    uncertainties: Array | None = None
    propensities: Array | None = None
    notes: Sequence[Degradation] = ()
    shadows: Sequence[ShadowRanking] = ()

    @property
    def has_more(self) -> bool:
        """Whether something is said of the items beside ctr and score."""
        return not (self.objectives is self.uncertainties is self.propensities is None)

    @property
    def ids(self) -> list[str]:
        """The items' ids. O(k)."""
        return _ids_at(self.candidates, self.order)

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
        self._attributes = catalogue.attributes
        self._variants = range(len(model.plan.variants))
        if items is None:
            tokens = catalogue.tokens_with_ids(model.item_id_fields)
            items = ItemTable.of(model, tokens, self._variants)
        nothing = spelled_out(model, (), self._variants)
        self._heads = tuple((*model.head(v), items.own[v], *items.code_arrays) for v in self._variants)
        self._no_spelled = nothing.own[0], *nothing.code_arrays
        self._lanes = LaneScorer(model, items, nothing)
        self._halves, self._groups, self._longest_run = (
            model.halves,
            len(model.terms.groups),
            items.longest_run,
        )
        self._tokens = model.request_tokens
        self._curves = RequestCurves(model.calibration, model.plan)

    def rank(
        self,
        fields: Mapping[str, Value] | PlainFeatures,
        item_ids: Sequence[str],
        spelled: Sequence[Spelled] = (),
        variant: int = 0,
        top_k: int | None = None,
        *,
        options: Options | None = None,
        shadows: Sequence[int] = (),
        until_s: float = math.inf,
    ) -> Ranking:
        """Score the items named and the items spelled out (id, features), with the request's `fields`.

        top_k None means all. `options` say what to order by, what to leave out and what to try out; `shadows` are
        variants to score as well, from the same walk. An item that the catalogue lacks is scored on what is known, and
        listed. Raises FieldValueError for a value that does not fit its field, and for an item's field among the
        request's; DeadlinePassed where `options` are still followed after `until_s` (monotonic).
        """
        request: tuple[Array, ...]
        if isinstance(fields, PlainFeatures):
            unknown_fields, request, fields = [], fields.arrays, NO_FIELDS
        else:
            unknown_fields, request = self._tokens.unknown(fields), self._tokens.of(fields)
        candidates = self._candidates(item_ids, spelled)
        curve = self._curves.choose(variant, fields)
        if options is None and not shadows:
            order, ctr, score = self._best(request, candidates, variant, top_k)
            if curve is not None:
                ctr = curve.apply(ctr)
            return Ranking(
                candidates.ids,
                order,
                ctr,
                score,
                candidates.unknown,
                unknown_fields,
                candidates.rows,
                candidates.extra,
            )
        unsure = options is not None and options.needs_uncertainty
        sums = self._sums(request, candidates, [variant, *shadows], unsure)
        if options is None:
            ranking = _by_score(sums[0], candidates, curve, top_k)
        else:
            uncertainty = sums[-1] if unsure else None
            ids, rows, extra = candidates.ids, candidates.rows, candidates.extra
            chosen = options.select(
                ids, rows, extra, sums[0], uncertainty, curve, self._attributes, top_k, until_s
            )
            ranking = _selected(chosen, candidates)
        ranking.unknown_fields = unknown_fields
        ranking.shadows = [_shadow(v, sums[1 + n], ranking) for n, v in enumerate(shadows)]
        return ranking

    def _best(
        self, request: tuple[Array, ...], candidates: _Candidates, variant: int, top_k: int | None
    ) -> tuple[Array, Array, Array]:
        """The order of the best, their ctr before calibration and their scores."""
        rows, extra = candidates.rows, candidates.extra
        spelled, longest_run = self._no_spelled, 1
        if extra:
            others = spelled_out(self._model, extra, range(variant, variant + 1))
            spelled, longest_run = (others.own[0], *others.code_arrays), others.longest_run
        space = self._scratch(len(rows), longest_run)
        top = len(rows) if top_k is None else min(top_k, len(rows))
        arguments = (
            *self._heads[variant], *spelled, self._tokens.values, *request, rows, variant, top, *space,
        )  # fmt: skip
        rank(*arguments)
        return space[-3][:top].copy(), space[-2][:top].copy(), space[-1][:top].copy()

    def _sums(
        self, request: tuple[Array, ...], candidates: _Candidates, variants: Sequence[int], unsure: bool
    ) -> Array:
        """Scores of every candidate by several variants; with `unsure`, a last row of the first's uncertainty."""
        rows, extra = candidates.rows, candidates.extra
        others = spelled_out(self._model, extra, self._variants) if extra else None
        space = self._scratch(len(rows), 1 if others is None else others.longest_run)
        return self._lanes.sums((self._tokens.values, *request), rows, others, variants, unsure, space)

    def _candidates(self, item_ids: Sequence[str], spelled: Sequence[Spelled]) -> _Candidates:
        rows, missing = self._rows_of(item_ids)
        if not missing and not spelled:
            return _Candidates(item_ids, rows, (), [])
        unknown = np.flatnonzero(rows == NO_ITEM)
        unknown_ids = [item_ids[index] for index in unknown.tolist()]
        extra: list[Spelled] = []
        if self._model.item_id_fields:  # the id is a feature, so something is known after all
            extra += ((item_id, {}) for item_id in unknown_ids)
            rows[unknown] = FIRST_SPELLED - np.arange(len(extra))
        more = FIRST_SPELLED - len(extra) - np.arange(len(spelled), dtype=np.int32)
        ids = [*item_ids, *(item_id for item_id, _ in spelled)]
        rows = np.concatenate([rows, more])
        return _Candidates(ids, rows, [*extra, *spelled], list(dict.fromkeys(unknown_ids)))

    def _scratch(self, candidates: int, longest_run: int) -> tuple[Array, ...]:
        """This thread's scratch space, as large as this request may need it."""
        longest = max(longest_run, self._longest_run)
        wanted = min(self._halves, candidates * self._groups * longest)
        return scratch(self._halves, wanted, self._groups, candidates)


class _Candidates(NamedTuple):
    """All ids; int32 their rows, FIRST_SPELLED - r for extra[r]; the items to spell out; those the catalogue lacks."""

    ids: Sequence[str]
    rows: Array
    extra: Sequence[Spelled]
    unknown: list[str]


def _by_score(scores: Array, candidates: _Candidates, curve: Curve | None, top_k: int | None) -> Ranking:
    order = np.argsort(-scores, kind="stable")[:top_k]
    best, ctr = scores[order], np.empty(len(order))
    click_rates(best, ctr)
    if curve is not None:
        ctr = curve.apply(ctr)
    return Ranking(
        candidates.ids, order, ctr, best, candidates.unknown, [], candidates.rows, candidates.extra
    )


def _selected(chosen: Selection, candidates: _Candidates) -> Ranking:
    return Ranking(
        candidates.ids,
        chosen.order,
        chosen.ctr,
        chosen.score,
        candidates.unknown,
        [],
        candidates.rows,
        candidates.extra,
        chosen.objective,
        chosen.uncertainty,
        chosen.propensity,
        chosen.notes,
    )


def _shadow(variant: int, scores: Array, answer: Ranking) -> ShadowRanking:
    order = np.argsort(-scores, kind="stable")[: len(answer.order)]
    ids = _ids_at(answer.candidates, order)
    return ShadowRanking(variant, ids, scores[order].tolist(), scores[answer.order].tolist())


def _ids_at(candidates: Sequence[str], order: Array) -> list[str]:
    if isinstance(candidates, ItemIds):
        return candidates.at(order)
    return [candidates[place] for place in order.tolist()]


# --- Scratch space for the ranking kernels: one set a thread, for whatever model or version it ranks with ---
#
# A new version comes every second where deltas are published; scratch space of its own would be memory that
# is touched for the first time in each.


_local = threading.local()


def scratch(halves: int, wanted: int, groups: int, candidates: int) -> tuple[Array, ...]:
    """marks, wanted, sums, starts, choice, scores, order, ctr, score; each as large as it is asked for, or larger.

    marks is all 0, and kernels leave it so.
    """
    have: tuple[Array, ...] | None = getattr(_local, "scratch", None)
    if (
        have is None
        or len(have[0]) < halves
        or len(have[1]) < wanted
        or len(have[3]) <= groups
        or len(have[-1]) < candidates
    ):
        if have is not None:  # what was large enough before stays so
            halves, wanted = max(halves, len(have[0])), max(wanted, len(have[1]))
            groups, candidates = max(groups, len(have[3]) - 1), max(candidates, len(have[-1]))
        have = _local.scratch = (
            np.zeros(halves, np.int32),
            np.empty(wanted, np.int32),
            np.empty(wanted, np.float64),
            np.empty(groups + 1, np.int64),
            np.empty(MAX_CROSS_FIELDS, np.int64),
            np.empty(candidates, np.float64),
            np.empty(candidates, np.int64),
            np.empty(candidates, np.float64),
            np.empty(candidates, np.float64),
        )
    return have


# --- Which calibration curve a request's predictions go through. Curves rise, so an order by score stays one
# by ctr ---


class RequestCurves:
    """A model's curves, bound to its plan. Immutable; shared by all threads."""

    def __init__(self, calibration: Calibration | None, plan: FeaturePlan) -> None:
        by = calibration.by if calibration is not None else None
        self._field = plan.field(by) if by is not None else None
        self._calibration = calibration
        self._whole = [None if calibration is None else calibration.curve(name) for name in plan.variants]
        self._variants = plan.variants

    def choose(self, variant: int, fields: Mapping[str, Value]) -> Curve | None:
        """The curve for a variant and a request's fields; None where predictions stand as they are. O(1)."""
        if self._calibration is None or self._field is None:
            return self._whole[variant]
        value = fields.get(self._field.name)
        tokens = self._field.tokens(value) if value is not None else ()
        if not tokens:
            return self._whole[variant]
        return self._calibration.curve(self._variants[variant], tokens[0].text)
