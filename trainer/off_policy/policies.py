"""Policies: how they are named, which items they may choose, how they score and choose them, and each row's weight.

All decisions have the same candidates: the items of the log, or of a file. A log does not say which items were
eligible, so this is an assumption; a mean weight far from 1 shows where it is wrong. Candidates are scored by a
published model or by one that learns along the log.

A choice is given by its probabilities: float64[decisions, candidates], how likely each candidate is among the `size`
items shown. Candidates with equal scores have equal probabilities, so the order of a file has no effect. Each row of
the log counts with the weight w = (probability that the policy shows the row's item) / (its logged propensity).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model_store.artefact.artefact import Artefact
from model_store.errors import InputError, SpecError, listed
from model_store.features.objective import Objective, order_key
from model_store.spec.spec import ModelSpec
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.examples.side_tables import SideTable
from trainer.formats.cells import number_column, plain
from trainer.learn.model import LearningModel
from trainer.learn.scorer import PredictingMaker, Scorer, Scores, log_odds
from trainer.off_policy.logged import Decisions, LoggedRows

Array = npt.NDArray[Any]
LOGGED, UNIFORM, LEARNING = "logged", "uniform", "learning"
PAIRS_AT_ONCE = 1 << 17
_CLOSE = 1e-6

Predict = Callable[[Array], Array]
"""From chosen rows to the predicted reward of every candidate in their place: int64[k] to float64[k, candidates]."""
PredictLists = Callable[[Array, Array, Array], tuple[Array, Array]]
"""See `rewards.CrossFitted.of_lists`."""


@dataclass(frozen=True)
class PolicyName:
    """`logged`, `uniform`, `learning` or a model as `read_named` takes it; variant: None for all."""

    name: str
    variant: str | None

    @property
    def is_model(self) -> bool:
        """True if it names a published model."""
        return self.name not in (LOGGED, UNIFORM, LEARNING)

    @classmethod
    def parse(cls, text: str) -> PolicyName:
        """NAME, NAME:VERSION or FILE.arrow, optionally with @VARIANT; or `learning`, `uniform`, `logged`.

        Raises InputError.
        """
        name, at, variant = text.rpartition("@") if "@" in text else (text, "", "")
        if not name or (at and not variant):
            raise InputError(
                f"--policy {text}: expected MODEL, MODEL:VERSION or FILE.arrow, optionally with @VARIANT"
            )
        if at and name in (LOGGED, UNIFORM):
            raise InputError(f"--policy {text}: {name} has no variants")
        return cls(name, variant or None)


@dataclass(frozen=True)
class ItemChoice:
    """How items are chosen by their scores.

    greedy: those with the highest scores; epsilon: with probability `value` all are drawn uniformly, else greedily;
    softmax: one item, item a with a probability proportional to exp(score of a / value).
    """

    kind: Literal["greedy", "epsilon", "softmax"] = "greedy"
    value: float = 0.0

    @property
    def name(self) -> str:
        """The choice as written on the command line."""
        return self.kind if self.kind == "greedy" else f"{self.kind}:{self.value:g}"

    @classmethod
    def parse(cls, text: str) -> ItemChoice:
        """greedy, softmax:T or epsilon:E. Raises InputError."""
        kind, _, number = text.partition(":")
        try:
            value = float(number) if number else None
        except ValueError:
            value = None
        if kind == "greedy" and not number:
            return cls()
        if kind == "softmax" and value is not None and 0.0 < value < float("inf"):
            return cls("softmax", value)
        if kind == "epsilon" and value is not None and 0.0 <= value <= 1.0:
            return cls("epsilon", value)
        raise InputError(
            f"--choose {text}: expected greedy, softmax:T with a temperature above 0, or epsilon:E with E from 0 to 1"
        )

    def probabilities(self, scores: Array, size: Array) -> Array:
        """scores: float64[decisions, candidates], higher is better; size: int64[decisions], how many are shown.

        Raises InputError for a softmax of lists: their probabilities have no closed form.
        """
        if self.kind == "greedy":
            return _greedy(scores, size)
        if self.kind == "epsilon":
            drawn = self.value * at_random(scores.shape[1], size)
            return (1.0 - self.value) * _greedy(scores, size) + drawn
        if size.size and int(size.max()) > 1:
            raise InputError(
                "softmax chooses one item, and the log's decisions show several: use greedy or epsilon:E"
            )
        raised = np.exp((scores - scores.max(axis=1, keepdims=True)) / self.value)
        return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def _greedy(scores: Array, size: Array) -> Array:
    """1 for those above the last one shown; those equal to it share the remaining positions."""
    chances = np.empty_like(scores)
    for items in np.unique(size):
        rows = np.flatnonzero(size == items)
        mine = scores[rows]
        if items >= mine.shape[1]:
            chances[rows] = 1.0
            continue
        last = -np.partition(-mine, items - 1, axis=1)[:, items - 1 : items]
        above, equal = mine > last, mine == last
        left = items - above.sum(axis=1, keepdims=True)
        chances[rows] = above + equal * (left / equal.sum(axis=1, keepdims=True))
    return chances


def at_random(candidates: int, size: Array) -> Array:
    """The probability of every candidate under the uniform policy: float64[decisions, 1]."""
    return np.minimum(size / candidates, 1.0)[:, None]


@dataclass(frozen=True)
class Candidates:
    """The candidates of every decision.

    ids: text, distinct; columns: the items' columns, over the ids; index: int64[rows], the candidate that a row shows,
    -1 for an item that is not a candidate; logged: bool[candidates], whether the log ever shows it; varying: columns
    that differ between rows of one item.
    """

    ids: Any
    columns: Mapping[str, Any]
    index: Array
    logged: Array
    varying: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of(cls, rows: LoggedRows, item: str, of_items: frozenset[str], table: SideTable | None) -> Candidates:
        """The items of the table, or without one those of the log. of_items: the columns of items.

        A column that only the log has is taken from the item's first row; `varying` lists those that differ elsewhere.
        """
        ids = table.ids if table is not None else pc.unique(rows.item)
        first = pc.index_in(ids, value_set=rows.item)
        index = np.asarray(pc.index_in(rows.item, value_set=ids).fill_null(-1), np.int64)
        columns = {name: rows.columns[name].take(first) for name in of_items & rows.columns.keys()}
        varying = tuple(sorted(name for name in columns if varies(rows.columns[name], index, columns[name])))
        if table is not None:
            columns |= table.columns
        logged = np.zeros(len(ids), bool)
        logged[index[index >= 0]] = True
        return cls(ids, {**columns, item: ids}, index, logged, varying)

    def numbers(self, name: str, spec: ModelSpec) -> Array:
        """float64[candidates] of a field of the model, or another column; NaN where there is no number."""
        field = spec.fields.get(name)
        column = (field.column if field is not None else None) or name
        if column not in self.columns:
            raise SpecError(
                f"--objective: no candidate has {name!r}; candidates have: {listed(self.columns, name)}; --items may "
                "name a file with it"
            )
        return number_column(plain(self.columns[column]))[0]


def columns_of_items(*specs: ModelSpec) -> frozenset[str]:
    """The log columns of fields with side = "item". Raises SpecError for a spec without any."""
    found: set[str] = set()
    for spec in specs:
        columns = {field.column or name for name, field in spec.fields.items() if field.side == "item"}
        if not columns:
            raise SpecError(
                f'the model {spec.model.name!r} has no field with side = "item", so all candidates would have the '
                "same score; set side for the item's fields in the spec"
            )
        found |= columns
    return frozenset(found)


def expanded(maker: ExampleMaker, rows: LoggedRows, chosen: Array, candidates: Candidates) -> Examples:
    """Every chosen row with its item replaced by every candidate, hashed: row by row, candidates in order.

    Raises InputError where a candidate's values are not valid for the model's fields.
    """
    size = len(candidates)
    spread = pa.array(np.tile(np.arange(size), len(chosen)))
    wanted = {*maker.spec.wanted_columns(), *rows.columns.keys()}
    values = {name: column.take(spread) for name, column in candidates.columns.items() if name in wanted}
    batch = rows.batch(np.repeat(chosen, size), values)
    examples = maker.make(batch)
    if examples.rows.size != batch.rows:
        good = np.zeros(batch.rows, bool)
        good[examples.rows] = True
        worst = int(np.flatnonzero(~good)[0])
        item = candidates.ids[worst % size].as_py().decode("utf-8", "replace")
        raise InputError(f"item {item!r} cannot be a candidate: {examples.rejects[0].reason}")
    return examples


def varies(column: Any, index: Array, of_items: Any) -> bool:
    """True if some row's value differs from its item's."""
    known = np.flatnonzero(index >= 0)
    own = column.take(pa.array(known))
    if pa.types.is_nested(own.type) or pa.types.is_null(own.type):
        return False
    theirs = of_items.take(pa.array(index[known]))
    differs = pc.not_equal(own, theirs).fill_null(False)
    return bool(
        pc.any(differs).as_py() or not pc.equal(own.is_null(), theirs.is_null()).to_numpy(False).all()
    )


class Ordering(NamedTuple):
    """An objective, and the scores of one variant of each other model that it names."""

    objective: Objective
    others: Mapping[str, PublishedScores]


class _Predicted(NamedTuple):
    """What a model predicts of every candidate: float64[k, candidates, variants]."""

    score: Array
    ctr: Array


class PublishedScores:
    """Scores by a published model: its scores; with calibration or the probit link, the log-odds of the click rates.

    With an objective, what a server orders by. names: of the policies, one per variant.
    """

    def __init__(
        self,
        artefact: Artefact,
        resolved: ModelSpec,
        name: str,
        variant: str | None = None,
        ordering: Ordering | None = None,
    ) -> None:
        """resolved: the model's spec against the log's columns; variant: None for all. Raises SpecError."""
        self._scorer, self._ordering = Scorer(artefact), ordering
        self._maker = PredictingMaker(resolved)
        self._columns = columns_of(self._scorer.variants, variant, name)
        by = f" by {ordering.objective.text}" if ordering is not None else ""
        self.names = tuple(f"{name}@{self._scorer.variants[column]}{by}" for column in self._columns)

    def of(self, rows: LoggedRows, decisions: Decisions, chosen: Array, candidates: Candidates) -> Array:
        """Scores of the candidates in the chosen decisions: float64[k, candidates, names].

        chosen: int64[k], ascending, whole requests; each decision is passed once, in order. Raises InputError where a
        candidate's values are not valid for the model's fields, SpecError where no candidate has a field of the
        objective.
        """
        first = decisions.first[chosen]
        scores = self._scores(rows, first, candidates)
        artefact = self._scorer.artefact
        are_log_odds = artefact.calibration is None and artefact.spec.learner.link == "logit"
        latent = self._shaped(scores.score if are_log_odds else log_odds(scores.ctr), candidates)
        if self._ordering is None:
            return latent
        objective, others = self._ordering
        value = objective.evaluate(
            self._shaped(scores.score, candidates),
            self._shaped(scores.ctr, candidates),
            self._shaped(scores.uncertainty, candidates),
            lambda name: candidates.numbers(name, artefact.spec)[:, None],
            {name: other.predicted(rows, first, candidates) for name, other in others.items()},
        )
        return order_key(value, latent)

    def predicted(self, rows: LoggedRows, first: Array, candidates: Candidates) -> _Predicted:
        """Predictions for every candidate in the place of rows `first`."""
        scores = self._scores(rows, first, candidates)
        return _Predicted(self._shaped(scores.score, candidates), self._shaped(scores.ctr, candidates))

    def _scores(self, rows: LoggedRows, first: Array, candidates: Candidates) -> Scores:
        return self._scorer.score(self._maker, expanded(self._maker, rows, first, candidates))

    def _shaped(self, values: Array, candidates: Candidates) -> Array:
        return values[:, self._columns].reshape(-1, len(candidates), len(self._columns))


class LearningScores:
    """Scores by a model that learns every request of the log after scoring it: float64 scores before calibration.

    Unlike a trainer it knows each request's outcome at once. The policy changes from request to request, but depends
    on earlier requests alone, which keeps importance weights unbiased.
    """

    def __init__(self, resolved: ModelSpec, name: str = "learning", variant: str | None = None) -> None:
        """resolved: the spec against the log's columns; its subsampling is ignored. Raises SpecError."""
        learner = resolved.learner.model_copy(update={"subsample": None})
        self._maker = ExampleMaker(resolved.model_copy(update={"learner": learner}))
        self.model = LearningModel(self._maker)
        variants = tuple(resolved.variants)
        self._columns = columns_of(variants, variant, name)
        self.names = tuple(f"{name}@{variants[column]}" for column in self._columns)

    def of(self, rows: LoggedRows, decisions: Decisions, chosen: Array, candidates: Candidates) -> Array:
        """See PublishedScores. Learns the requests of the chosen decisions."""
        pairs = expanded(self._maker, rows, decisions.first[chosen], candidates)
        first, last = np.searchsorted(decisions.of_row, [chosen[0], chosen[-1] + 1])
        shown = self._maker.make(rows.batch(np.arange(first, last)))
        request = rows.request[first:last]
        borders = np.flatnonzero(np.diff(request, prepend=-1, append=request[-1] + 1))
        starts = np.searchsorted(chosen, decisions.of_row[first + borders[:-1]])
        size, is_probit = len(candidates), self._maker.spec.learner.link == "probit"
        scores = np.empty((len(chosen), size, len(self._columns)))
        for begin, end, start, stop in zip(
            borders[:-1], borders[1:], starts, [*starts[1:], len(chosen)], strict=True
        ):
            predicted = self.model.coordinates.predict(pairs.part(start * size, stop * size).hashed)
            own = log_odds(predicted.probabilities) if is_probit else predicted.scores
            scores[start:stop] = own[:, self._columns].reshape(stop - start, size, -1)
            self.model.learn(shown.part(*np.searchsorted(shown.rows, [begin, end]).tolist()))
        return scores


def columns_of(variants: tuple[str, ...], wanted: str | None, name: str) -> list[int]:
    """The column of one variant, or all columns. Raises SpecError."""
    if wanted is None:
        return list(range(len(variants)))
    if wanted not in variants:
        raise SpecError(f"{name} has no variant {wanted!r}; it has: {listed(variants, wanted)}")
    return [variants.index(wanted)]


@dataclass(frozen=True)
class Policies:
    """Policies that are computed together: their names, and from chosen decisions to the probabilities of each.

    chances: of int64[k], ascending, whole requests, each decision once and in order, for each policy
    float64[k, candidates].
    """

    names: tuple[str, ...]
    chances: Callable[[Array], list[Array]]

    @classmethod
    def given(cls, name: str, chances: Array) -> Policies:
        """One whose probabilities are known: float64[decisions, candidates]."""
        return cls((name,), lambda chosen: [chances[chosen]])

    @classmethod
    def by_scores(
        cls,
        scores: PublishedScores | LearningScores,
        choices: Sequence[ItemChoice],
        *of: *tuple[LoggedRows, Decisions, Candidates],
    ) -> Policies:
        """Each of the choices by the scores of each variant."""
        rows, decisions, candidates = of

        def chances(chosen: Array) -> list[Array]:
            found, size = scores.of(rows, decisions, chosen, candidates), decisions.size[chosen]
            variants = range(found.shape[2])
            return [choice.probabilities(found[:, :, each], size) for each in variants for choice in choices]

        return cls(tuple(f"{name} {choice.name}" for name in scores.names for choice in choices), chances)


@dataclass(frozen=True)
class ListWeights:
    """A policy's weights on lists, over their rows in the order shown.

    first: 1.0 in the first row of a list, 0.0 elsewhere. alone: the weight of the item at its position, whatever is
    above it; cascade, above: the product of the conditional weights of the rows from the first to this one, and to the
    one above it; whole: that of each list, float64[lists]. fitted, direct: the fitted reward of the list from this row
    on, given the row's item, and on average over the items that the policy would put there; None without a model.
    """

    first: Array
    alone: Array
    cascade: Array
    above: Array
    whole: Array
    fitted: Array | None = None
    direct: Array | None = None


@dataclass(frozen=True)
class PolicyWeights:
    """A policy's weight for every row, float64[rows]; unlogged: its share of items that the log never shows.

    fitted: a reward model's prediction for the row's item; direct: the sum of the predictions of all candidates, each
    times its probability, in the first row of each decision, 0 in the others; both None without a model.
    """

    name: str
    weight: Array
    unlogged: float = 0.0
    fitted: Array | None = None
    direct: Array | None = None
    lists: ListWeights | None = None
    chances: Array | None = None


@dataclass(frozen=True)
class ListOrder:
    """The rows of requests from the top down: by position, or without one in the order of the log.

    rank: int64[rows], from 0; above, following: the row above and below each, -1 for none.
    """

    rank: Array
    above: Array
    following: Array

    @classmethod
    def of(cls, rows: LoggedRows) -> ListOrder:
        """The order of the rows of each request."""
        position = np.arange(len(rows), dtype=float)
        if rows.position is not None:
            numbers, _ = number_column(rows.position)
            position = position if np.isnan(numbers).any() else numbers
        order = np.lexsort((position, rows.request))
        first = np.searchsorted(rows.request, rows.request)  # requests are ascending
        rank, above, following = np.empty(len(rows), np.int64), np.full(len(rows), -1), np.full(len(rows), -1)
        rank[order] = np.arange(len(rows)) - first
        goes_on = rank[order[1:]] > 0
        above[order[1:][goes_on]] = order[:-1][goes_on]
        following[order[:-1][goes_on]] = order[1:][goes_on]
        return cls(rank, above, following)

    def weights(
        self, policy: PolicyWeights, alone: Array | None, predict: PredictLists | None
    ) -> ListWeights:
        """A policy's weights on the lists. alone: the weights of items at their positions; None: the rows' own."""
        cascade, before = policy.weight.copy(), np.ones_like(policy.weight)
        for rank in range(1, int(self.rank.max()) + 1):
            mine = np.flatnonzero(self.rank == rank)
            before[mine] = cascade[self.above[mine]]
            cascade[mine] *= before[mine]
        first = (self.rank == 0).astype(float)
        alone = policy.weight if alone is None else alone
        found = ListWeights(first, alone, cascade, before, cascade[self.following < 0])
        if predict is None or policy.chances is None:
            return found
        rest, direct = predict(self.rank, self.following, policy.chances)
        return replace(found, fitted=rest, direct=direct)


def weigh(
    rows: LoggedRows,
    decisions: Decisions,
    candidates: Candidates,
    policies: Policies,
    predict: Predict | None = None,
    *,
    keep: bool = False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[PolicyWeights]:
    """The weights of each policy; keep: its chances too, float64[decisions, candidates]."""
    count, size = len(policies.names), len(candidates)
    chance, unlogged = np.zeros((count, len(rows))), np.zeros(count)
    fitted, direct = np.zeros((2, count, len(rows)))
    kept = np.zeros((count, len(decisions.first), size)) if keep else None
    for chosen, mine in _chunks(rows, decisions, size):
        of_row, index = decisions.of_row[mine] - chosen[0], candidates.index[mine]
        predicted = predict(decisions.first[chosen]) if predict is not None else None
        for number, chances in enumerate(policies.chances(chosen)):
            chance[number, mine] = np.where(index >= 0, chances[of_row, index], 0.0)
            missing = np.minimum(decisions.size[chosen], size) - chances.sum(
                axis=1
            )  # of items that a table names
            unlogged[number] += chances[:, ~candidates.logged].sum() + missing[missing > _CLOSE].sum()
            if predicted is not None:
                fitted[number, mine] = predicted[of_row, index]
                direct[number, decisions.first[chosen]] = (chances * predicted).sum(axis=1)
            if kept is not None:
                kept[number, chosen] = chances
        on_progress(int(chosen[-1] + 1) * size, len(decisions.first) * size)
    shown, fits = float(decisions.size.sum()), predict is not None
    return [
        PolicyWeights(
            name,
            chance[number] / rows.propensity,
            unlogged[number] / shown,
            fitted[number] if fits else None,
            direct[number] if fits else None,
            chances=kept[number] if kept is not None else None,
        )
        for number, name in enumerate(policies.names)
    ]


def _chunks(rows: LoggedRows, decisions: Decisions, candidates: int) -> Iterator[tuple[Array, slice]]:
    """Chunks of decisions, whole requests each, with their rows."""
    per = max(1, PAIRS_AT_ONCE // max(1, candidates))
    of_request = np.flatnonzero(np.diff(rows.request[decisions.first], prepend=-1))
    borders = [*of_request.tolist(), len(decisions.first)]
    begin = 0
    for number, end in enumerate(borders[1:], 1):
        following = borders[number + 1] if number + 1 < len(borders) else None
        if following is not None and following - begin <= per:
            continue
        chosen = np.arange(begin, end)
        first, last = np.searchsorted(decisions.of_row, [begin, end])
        yield chosen, slice(int(first), int(last))
        begin = end
