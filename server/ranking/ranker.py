"""Ranker: the candidates of one query, scored and sorted, with a model and a catalogue that are bound once.

score = bias + Σ request + Σ item + Σ crosses of both. The request's part is summed once a request. The item's part is
summed once a model. Each cross walks the request's half once and is matched with the candidates by number, in one
kernel that holds no lock.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.artefact.calibration import Calibration, Curve
from model_store.features.features import FeaturePlan
from model_store.spec.sections import MAX_CROSS_FIELDS
from model_store.spec.values import Value
from server.model.columns import Catalogue, InlineItem, id_tokens
from server.model.items import ItemTable
from server.model.layers import Layer
from server.model.model import Model
from server.model.tokens import NO_VALUE, TokenTable, TokenWriter
from server.ranking.evidence import Evidence
from server.ranking.interleaving_kernels import rank_teams
from server.ranking.multi_variant_kernels import sum_variants
from server.ranking.query import Candidates, Query, Ranking, RequestFeatures, ShadowRanking, TokenArrays
from server.ranking.scoring_kernels import FIRST_INLINE, NO_ITEM, rank
from server.ranking.select.draft_kernels import ints_for, reals_for
from server.ranking.select.exploration import seed
from server.ranking.select.filters import CandidateColumns
from server.ranking.select.selection import PLAIN, Options, Scored
from server.ranking.teams import Teams

Array = npt.NDArray[Any]


class Ranker:
    """Ranks with one model over one catalogue. Any number of threads may use one ranker at a time."""

    def __init__(self, model: Model, catalogue: Catalogue, items: ItemTable | None = None) -> None:
        """`items`: the catalogue's, if they are known; else O(items · fields): every item is summed and coded here."""
        if [field.name for field in catalogue.fields] != [field.name for field in model.plan.item_fields]:
            raise ValueError("the catalogue was built with another plan: build it with model.plan")
        self._model = model
        self._catalogue = catalogue
        self._variants = range(len(model.plan.variants))
        if items is None:
            tokens = catalogue.tokens_of(model.item_id_fields)
            items = ItemTable.of(model, tokens, self._variants)
        nothing = ItemTable.of(model, self.item_tokens(()), self._variants)
        # What a version fixes of the kernel's 43 arguments, bound once instead of in each call.
        self._heads = tuple((*model.head(v), items.own[v], *items.code_arrays) for v in self._variants)
        self._no_inline = nothing.own[0], *nothing.code_arrays
        self._several = _SeveralVariants(model, items, nothing)
        self._halves, self._groups, self._longest_run = (
            model.item_parts,
            len(model.terms.groups),
            items.longest_run,
        )
        self._tokens = model.request_tokens
        self._noises = model.noises.tolist() or [None] * len(self._variants)
        self._curves = RequestCurves(model.calibration, model.plan)
        self._evidence = Evidence(model, catalogue)
        self._user_fields = tuple(
            place for place, field in enumerate(model.plan.request_fields) if field.side == "user"
        )

    def query(
        self,
        fields: Mapping[str, Value],
        item_ids: Sequence[str],
        inline: Sequence[InlineItem] = (),
        variant: int = 0,
        top_k: int | None = None,
        *,
        options: Options | None = None,
        shadows: Sequence[int] = (),
        request_id: str = "",
    ) -> Query:
        """A query without a message. Raises as `features` and `candidates`."""
        features, candidates = self.features(fields), self.candidates(item_ids, inline)
        return Query(features, candidates, variant, top_k, options, shadows, request_id)

    def features(self, fields: Mapping[str, Value]) -> RequestFeatures:
        """The tokens of values by name.

        Raises FieldValueError for a value that does not fit its field and for an item's field, InvalidRequest for sets
        whose crosses are too many keys.
        """
        unknown = self._tokens.unknown(fields)
        return RequestFeatures(self._tokens.of(fields), unknown, lambda: fields)

    def candidates(self, item_ids: Sequence[str], inline: Sequence[InlineItem] = ()) -> Candidates:
        """Locate the items named and the inline items. Raises as `features`.

        An item that the catalogue lacks is scored on what is known, and listed as unknown.
        """
        rows, missing = self._catalogue.rows.rows(item_ids)
        if not missing and not inline:
            return Candidates(item_ids, rows)
        unknown = np.flatnonzero(rows == NO_ITEM)
        unknown_ids = [item_ids[index] for index in unknown.tolist()]
        items: list[InlineItem] = []
        if self._model.knows_unknown_items:
            items += ((item_id, {}) for item_id in unknown_ids)
            rows[unknown] = FIRST_INLINE - np.arange(len(items))
        more = FIRST_INLINE - len(items) - np.arange(len(inline), dtype=np.int32)
        ids = [*item_ids, *(item_id for item_id, _ in inline)]
        rows = np.concatenate([rows, more])
        items += inline
        tokens = self.item_tokens(items) if items else None
        return Candidates(ids, rows, items, tokens, list(dict.fromkeys(unknown_ids)))

    def rank(self, query: Query, until_s: float = math.inf) -> Ranking:
        """Score the candidates of a query that was made for this ranker, and sort them.

        Raises DeadlinePassed where options are still being followed after `until_s` (monotonic).
        """
        candidates, options, shadows = query.candidates, query.options, query.shadows
        if query.teams is not None:
            return self._interleaved(query, query.teams, until_s)
        curve = self._curves.choose(query.variant, query.features.tokens)
        if options is None and not shadows and self._noises[0] is None:
            order, ctr, score, knows_user = self._best(query)
            if curve is not None:
                ctr = curve.apply(ctr)
            return Ranking(candidates, order, ctr, score, knows_user=knows_user)
        (scored, *of_shadows), knows_user = self._scored(query, [curve], [query.variant, *shadows])
        if options is None:
            # Stable: equal scores keep the order of the request.
            order = np.argsort(-scored.latent, kind="stable")[: query.top_k]
            ranking = Ranking(candidates, order, scored.ctr(scored.latent[order]), scored.score[order])
        else:
            columns, ids = self._columns(candidates), candidates.ids
            chosen = options.select(
                scored, columns, ids, query.top_k, query.request_id, until_s, query.others
            )
            ranking = Ranking(candidates, *chosen)
        _add_others(ranking, query)
        ranking.shadows = [_shadow(v, each, ranking) for v, each in zip(shadows, of_shadows, strict=True)]
        ranking.knows_user = knows_user
        return ranking

    def predict(self, query: Query) -> tuple[Array, Array]:
        """Click rate and score of each candidate in order, float64 each, bit for bit as `rank` has them."""
        curve = self._curves.choose(query.variant, query.features.tokens)
        (scored,), _ = self._scored(query, [curve], [query.variant])
        return scored.ctr(scored.latent), scored.score

    def _interleaved(self, query: Query, teams: Teams, until_s: float) -> Ranking:
        """One list of the orders of several variants."""
        candidates, tokens = query.candidates, query.features.tokens
        curves = [self._curves.choose(variant, tokens) for variant in teams.variants]
        if query.options is None and not query.shadows and self._noises[0] is None:
            ranking = self._best_of_teams(query, teams)
            if any(curve is not None for curve in curves):
                for number, curve in enumerate(curves):
                    mine = ranking.teams == number
                    if curve is not None:
                        ranking.ctrs[mine] = curve.apply(ranking.ctrs[mine])
            return ranking
        which = [*teams.variants, *query.shadows]
        if query.options is not None and query.options.needs_uncertainty:
            # Of each: one walk has the first's alone.
            each = [self._scored(query, curves[n : n + 1], [variant]) for n, variant in enumerate(which)]
            scored, knows_user = [scored for (scored,), _ in each], each[0][1]
        else:
            scored, knows_user = self._scored(query, curves, which)
        several, columns = scored[: len(curves)], self._columns(candidates)
        chosen, team, credit = (query.options or PLAIN).interleave(
            several, teams.is_team_draft, columns, query.top_k, query.request_id, until_s, query.others
        )
        ranking = Ranking(candidates, *chosen, teams=team, credits=credit, knows_user=knows_user)
        _add_others(ranking, query)
        of_shadows = zip(query.shadows, scored[len(curves) :], strict=True)
        ranking.shadows = [_shadow(v, each, ranking) for v, each in of_shadows]
        return ranking

    def _best_of_teams(self, query: Query, teams: Teams) -> Ranking:
        """The same for the plain order, in one kernel; the ctr is that before calibration."""
        candidates = query.candidates
        rows, tokens = candidates.rows, candidates.item_tokens
        inline = None if tokens is None else ItemTable.of(self._model, tokens, self._variants)
        space = self._scratch(len(rows), 1 if inline is None else inline.longest_run)
        k, count = len(teams.variants), len(rows)
        top = count if query.top_k is None else min(query.top_k, count)
        # Arrays of their own and not scratch, as in `_best`.
        order, team = np.empty((2, top), np.int64)
        reals = np.empty((4, top))
        knows_user = rank_teams(
            *self._several.arguments(inline), self._tokens.values, *query.features.tokens,
            rows, teams.which, top, teams.is_team_draft, seed(query.request_id),
            *space[:5], *_draft_scratch(len(space[2]), k, count, top, teams.is_team_draft), order, team, reals,
        )  # fmt: skip
        ctr, score, propensity, credit = reals
        return Ranking(
            candidates,
            order,
            ctr,
            score,
            propensities=propensity,
            teams=team,
            credits=credit,
            knows_user=knows_user != 0,
        )

    def _columns(self, candidates: Candidates) -> CandidateColumns:
        of_items = candidates.rows, candidates.items, candidates.stored, candidates.computed
        return CandidateColumns(self._catalogue, candidates.ids, *of_items)

    def names_user(self, query: Query) -> bool:
        """Whether a query says who its user is: by a cookie, or by a value of one of the user's fields.

        Never for a model without such fields.
        """
        starts = query.features.tokens[0]
        return bool(self._user_fields) and (
            bool(query.cookie) or any(starts[at] != starts[at + 1] for at in self._user_fields)
        )

    def _best(self, query: Query) -> tuple[Array, Array, Array, bool]:
        """The order of the best, their ctr before calibration, their scores; whether the model knows the user."""
        rows, tokens, variant = query.candidates.rows, query.candidates.item_tokens, query.variant
        inline, longest_run = self._no_inline, 1
        if tokens is not None:
            table = ItemTable.of(self._model, tokens, range(variant, variant + 1))
            inline, longest_run = (table.own[0], *table.code_arrays), table.longest_run
        space = self._scratch(len(rows), longest_run)
        top = len(rows) if query.top_k is None else min(query.top_k, len(rows))
        # Arrays of their own and not scratch: an impression reads them when this thread ranks the next request.
        order, ctr, score = np.empty(top, np.int64), np.empty(top, np.float64), np.empty(top, np.float64)
        knows_user = rank(
            *self._heads[variant], *inline, self._tokens.values, *query.features.tokens,
            rows, variant, top, *space, order, ctr, score,
        )  # fmt: skip
        return order, ctr, score, knows_user != 0

    def _scored(
        self, query: Query, curves: Sequence[Curve | None], which: Sequence[int]
    ) -> tuple[list[Scored], bool]:
        """The scores of every candidate by the variants `which`; those that answer, which have curves, are the first.

        And whether the first knows the user. Uncertainties are those of the first alone, but for the probit link.
        """
        rows, tokens = query.candidates.rows, query.candidates.item_tokens
        inline = None if tokens is None else ItemTable.of(self._model, tokens, self._variants)
        space = self._scratch(len(rows), 1 if inline is None else inline.longest_run)
        request = (self._tokens.values, *query.features.tokens)
        unsure = query.options is not None and query.options.needs_uncertainty
        evidence = None
        if query.options is not None and query.options.needs_evidence:
            evidence = self._evidence.of(query.candidates, query.variant)
        scores, unsure_of, knows_user = self._several.sums(request, rows, inline, which, unsure, space)
        scored = [
            Scored(
                scores[n],
                unsure_of[n] if n < len(unsure_of) else None,
                curves[n] if n < len(curves) else None,
                self._noises[v],
                evidence if n == 0 else None,
            )
            for n, v in enumerate(which)
        ]
        return scored, knows_user

    def item_tokens(self, items: Sequence[InlineItem]) -> TokenTable:
        """The tokens of inline items, as the catalogue's were made. Raises as `features`."""
        writer = TokenWriter()
        model = self._model
        fields, id_fields = model.plan.item_fields, model.item_id_fields
        values = np.empty((len(items), len(fields)), np.int32)
        keys = 0
        for row, (item_id, features) in enumerate(items):
            for column, field in enumerate(fields):
                number = writer.add(field.tokens(features.get(field.name)))
                if number == NO_VALUE and field.name in id_fields:
                    number = writer.add(id_tokens(field, item_id))
                values[row, column] = number
            if model.item_set_crosses:
                keys = model.item_set_crosses.count(
                    [writer.tokens_of(number) for number in values[row]], keys
                )
        return writer.table(values)

    def _scratch(self, candidates: int, longest_run: int) -> tuple[Array, ...]:
        """This thread's scratch space, as large as this request may need it."""
        longest = max(longest_run, self._longest_run)
        # One more: a half that is not new is written too, behind the last, and overwritten by the next (`_mark`).
        wanted = min(self._halves, candidates * self._groups * longest) + 1
        return scratch(self._halves, wanted, self._groups, candidates)


def _add_others(ranking: Ranking, query: Query) -> None:
    """Add what the other models that answered predict of the items."""
    if query.others:
        answering = {name: each for name, each in query.others.items() if each.version is not None}
        ranking.others = {name: each.at(ranking.order) for name, each in answering.items()}


def _shadow(variant: int, scored: Scored, answer: Ranking) -> ShadowRanking:
    order, scores = np.argsort(-scored.latent, kind="stable")[: len(answer.order)], scored.score
    ids = answer.candidates.ids_at(order)
    return ShadowRanking(variant, ids, scores[order].tolist(), scores[answer.order].tolist())


class _SeveralVariants:
    """A model and what it knows of items, bound for `sum_variants`. Immutable; any number of threads may use it."""

    def __init__(self, model: Model, items: ItemTable, nothing: ItemTable) -> None:
        """`nothing`: a table without rows, for requests without inline items."""
        terms = model.terms.request, model.terms.mixed
        self._head = (*_arrays(model.base), *_arrays(model.fresh), *terms, *_known(items))
        self._nothing, self._priors = nothing, model.priors
        self._without_inline = *self._head, *_known(nothing)

    def arguments(self, inline: ItemTable | None) -> tuple[Array, ...]:
        """The first arguments of the kernels: the model, the items, and those of the request."""
        return self._without_inline if inline is None else (*self._head, *_known(inline))

    def sums(
        self,
        tokens: tuple[Array, ...],
        rows: Array,
        inline: ItemTable | None,
        variants: Sequence[int],
        uncertainty: bool,
        scratch: tuple[Array, ...],
    ) -> tuple[Array, Array, bool]:
        """float64[variants, candidates] in the order of `rows`: the scores by each of `variants`, bit for bit `rank`'s.

        And float64[n, candidates], their uncertainties: with the probit link the standard deviation of every score;
        else with `uncertainty` Σ rate·|x| over the keys that the first variant uses, and without it nothing. And
        whether the first variant knows the user. `inline` has sums of every variant of the model; tokens, rows and
        scratch are as `rank` takes them.
        """
        others = self._nothing if inline is None else inline
        k, probit = len(variants), len(self._priors) > 0
        lanes = 2 * k if probit else k + uncertainty
        marks, wanted, _, starts, choice = scratch[:5]
        summed = 3 * k if probit else lanes
        sums, totals = np.empty((summed, len(wanted)), np.float64), np.empty((summed, 1), np.float64)
        out, made = np.empty((lanes, len(rows)), np.float64), np.empty((k, others.codes.shape[1]), np.float64)
        which = np.array(variants, np.int64)
        knows_user = sum_variants(
            *self._head, *_known(others), self._priors, *tokens,
            rows, which, marks, wanted, starts, choice, sums, totals, made, out,
        )  # fmt: skip
        return out[:k], np.sqrt(out[k:]) if probit else out[k:], knows_user != 0


def _known(items: ItemTable) -> tuple[Array, ...]:
    return items.own, items.unsure, *items.code_arrays, items.unknown


def _arrays(layer: Layer) -> tuple[Array, ...]:
    return *layer.trie.walked, *layer.values.arrays, layer.item_parts.half, layer.item_parts.at


_local = threading.local()
_NO_CAPS = np.empty(0, np.int64)


def scratch(halves: int, wanted: int, groups: int, candidates: int) -> tuple[Array, ...]:
    """marks, wanted, sums, starts, choice, scores; each as large as it is asked for, or larger.

    One set for each thread, whatever version it ranks with: a new version may come every second, and scratch space of
    its own would be memory that is touched for the first time in each. marks is all 0, and kernels leave it so.
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
            # Zeroed only here: kernels set back what they have marked, which is less than all halves.
            np.zeros(halves, np.int32),
            np.empty(wanted, np.int32),
            np.zeros(halves, np.float64),
            np.empty(groups + 1, np.int64),
            np.empty(MAX_CROSS_FIELDS, np.int64),
            np.empty(candidates, np.float64),
        )
    return have


def _draft_scratch(halves: int, teams: int, candidates: int, top: int, by_turns: bool) -> tuple[Array, ...]:
    """The scratch space of `rank_teams` besides `scratch`; this thread's last one, since requests are alike."""
    key = halves, teams, candidates, top, by_turns
    have: tuple[object, tuple[Array, ...]] | None = getattr(_local, "draft", None)
    if have is None or have[0] != key:
        have = _local.draft = (
            key,
            (
                np.empty(halves),
                np.empty((teams, candidates)),
                np.empty((teams, top if by_turns else candidates), np.int64),
                _NO_CAPS,
                np.empty(ints_for(teams, candidates, top), np.int64),
                np.empty(reals_for(teams, top)),
                np.empty(1, np.uint64),
            ),
        )
    return have[1]


class RequestCurves:
    """A model's calibration curves, bound to its plan. Immutable; shared by all threads.

    Curves rise, so an order by the uncalibrated click rate stays an order by ctr.
    """

    def __init__(self, calibration: Calibration | None, plan: FeaturePlan) -> None:
        by = calibration.by if calibration is not None else None
        names = [field.name for field in plan.request_fields]
        self._place = names.index(by) if by in names else None
        self._calibration = calibration
        self._whole = [None if calibration is None else calibration.curve(name) for name in plan.variants]
        self._variants = plan.variants

    def choose(self, variant: int, tokens: TokenArrays) -> Curve | None:
        """The curve for a variant and a request's tokens; None where predictions are not calibrated. O(1)."""
        if self._calibration is None or self._place is None:
            return self._whole[variant]
        value_start, begin, _, text = tokens
        first = value_start[self._place]
        if first == value_start[self._place + 1]:
            return self._whole[variant]
        return self._calibration.curve(
            self._variants[variant], text[begin[first] : begin[first + 1] - 1].tobytes()
        )
