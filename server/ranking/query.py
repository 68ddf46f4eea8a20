"""What goes into the ranker and what comes out of it: `Query` and `Ranking`, with the parts they are made of.

`resolve` makes a Query from a message, validated whole. Ranking, explanation, impression lines and shadows read the
Query and the Ranking, never the message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy.typing as npt

from model_store.spec.values import Value
from server.errors import Degradation
from server.model.columns import InlineItem, ItemIds
from server.model.tokens import TokenTable
from server.ranking.select.selection import Options, OwnOrder, Spent
from server.ranking.teams import Teams

Array = npt.NDArray[Any]
TokenArrays = tuple[Array, Array, Array, Array]


class RequestFeatures(NamedTuple):
    """The features of the user and the context, with the user's stored ones beneath, for one feature plan.

    tokens: value_start, begin, x and text of a `TokenTable` with one value for each of plan.request_fields. unknown:
    the names that the plan does not have. values: computes the features by name; it may parse the request again, so
    that a call that needs tokens only makes no Python object for a value.
    """

    tokens: TokenArrays
    unknown: Sequence[str]
    values: Callable[[], Mapping[str, Value]]


class Candidates(NamedTuple):
    """The candidates of a request, located in one catalogue.

    rows int32, one for each of ids: its row in the catalogue, FIRST_INLINE - r for items[r], or NO_ITEM if nothing is
    known of it. items: inline items, and unknown ones where the id is a feature; item_tokens: theirs. unknown: the
    named ids that the catalogue lacks, each once.
    """

    ids: Sequence[str]
    rows: Array
    items: Sequence[InlineItem] = ()
    item_tokens: TokenTable | None = None
    unknown: Sequence[str] = ()
    stored: Array | None = None
    """int32, one for each of ids: the catalogue's row of those that became inline items because values were computed
    over them, else as in rows; None if there are none."""
    computed: Mapping[str, Array] = {}
    """float64 by field, one for each of ids: the values that were computed with the request, NaN for none."""

    def ids_at(self, places: Array) -> list[str]:
        """The ids at these places, an array of integers."""
        ids = self.ids
        return ids.at(places) if isinstance(ids, ItemIds) else [ids[place] for place in places.tolist()]


class OtherModel(NamedTuple):
    """What another model that the objective names predicts: ctr and score float64, one for each candidate.

    version: None for a model that does not answer here now; its predictions are NaN.
    """

    version: int | None
    variant: str
    ctr: Array
    score: Array

    def at(self, places: Array) -> OtherModel:
        """The predictions at these places."""
        return self._replace(ctr=self.ctr[places], score=self.score[places])


class Query(NamedTuple):
    """One validated request, bound to the plan and the catalogue of the version that ranks it. Immutable.

    top_k: None for all. options: None for the plain order by score. shadows: variants that are scored as well.
    unknown_fields: feature names that the model does not have, of the request and of its inline items, and
    unknown_items: named ids that neither catalogue nor store has; both as the answer lists them. degraded: what was
    left out or is stale. is_forced: the request named its variant. size: bytes of the message. store_ns: how long
    completing the user's features took; completed_ns: when that ended (perf_counter_ns). time_us: since 1970, the time
    that histories were taken at; 0 without any. others: by name, the models that the objective names. teams: the
    variants that are interleaved, of which `variant` is the first; None where it answers alone.
    """

    features: RequestFeatures
    candidates: Candidates
    variant: int = 0
    top_k: int | None = None
    options: Options | None = None
    shadows: Sequence[int] = ()
    request_id: str = ""
    cookie: str = ""
    unknown_fields: Sequence[str] = ()
    unknown_items: Sequence[str] = ()
    degraded: Sequence[Degradation] = ()
    is_forced: bool = False
    no_log: bool = False
    deferred: bool = False
    size: int = 0
    store_ns: int = 0
    completed_ns: int = 0
    time_us: int = 0
    others: Mapping[str, OtherModel] = {}
    teams: Teams | None = None

    def variant_of(self, names: Sequence[str]) -> str:
        """The name of what answers, among those of the model's variants: several in the place of one interleaved."""
        return names[self.variant] if self.teams is None else self.teams.together


@dataclass(slots=True)
class ShadowRanking:
    """How a variant that does not answer ranks a request: its own best items, best first, and their scores.

    As many items as the answer has, of all candidates. shown: its score of each item of the answer, in the answer's
    order.
    """

    variant: int
    ids: list[str]
    score: list[float]
    shown: list[float]


@dataclass(slots=True)
class Ranking:
    """Places in `candidates`, best first; equal scores keep the order of the request. ctrs[i] = τ(σ(scores[i])).

    order int64[k]; ctrs and scores float64[k], and so are objectives, uncertainties and propensities where they are
    asked for. notes: what the answer's `degraded` must say of them. teams int64[k]: which of the query's teams placed
    each item, and credits float64[k], how much a click on it counts for that team (`draft_kernels`); None unless
    variants are interleaved. knows_user: whether the model has a key of the user's fields (`scoring_kernels.rank`).
    others: predictions of the items by the other models that answered. spent: with a budget for exploration; own: in
    apprentice mode.
    """

    candidates: Candidates
    order: Array
    ctrs: Array
    scores: Array
    objectives: Array | None = None
    uncertainties: Array | None = None
    propensities: Array | None = None
    notes: Sequence[Degradation] = ()
    spent: Spent | None = None
    own: OwnOrder | None = None
    teams: Array | None = None
    credits: Array | None = None
    shadows: Sequence[ShadowRanking] = ()
    knows_user: bool = True
    others: Mapping[str, OtherModel] = field(default_factory=dict)

    @property
    def has_more(self) -> bool:
        """Whether items carry more than ctr and score."""
        return not (self.objectives is self.uncertainties is self.propensities is None)

    @property
    def ids(self) -> list[str]:
        """The items' ids. O(k)."""
        return self.candidates.ids_at(self.order)

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
