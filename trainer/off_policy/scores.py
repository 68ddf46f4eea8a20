"""The candidates of the decisions, and their scores by a published model or by a model that learns along the log.

All decisions have the same candidates: the items of the log, or of a file. A log does not say which items were
eligible, so this is an assumption; a mean weight far from 1 shows where it is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model_store.artefact.artefact import Artefact
from model_store.errors import InputError, SpecError, listed
from model_store.spec.spec import ModelSpec
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.examples.side_tables import SideTable
from trainer.learn.model import LearningModel
from trainer.learn.scorer import Scorer, log_odds
from trainer.off_policy.logged import Decisions, LoggedRows

Array = npt.NDArray[Any]


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
        varying = tuple(sorted(name for name in columns if _varies(rows.columns[name], index, columns[name])))
        if table is not None:
            columns |= table.columns
        logged = np.zeros(len(ids), bool)
        logged[index[index >= 0]] = True
        return cls(ids, {**columns, item: ids}, index, logged, varying)


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


def _varies(column: Any, index: Array, of_items: Any) -> bool:
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


class CandidateScores(Protocol):
    """Scores candidates for one or more policies. names: of the policies, one per variant."""

    names: tuple[str, ...]

    def of(self, rows: LoggedRows, decisions: Decisions, chosen: Array, candidates: Candidates) -> Array:
        """Scores of the candidates in the chosen decisions: float64[k, candidates, names].

        chosen: int64[k], ascending, whole requests; each decision is passed once, in order. Raises InputError where a
        candidate's values are not valid for the model's fields.
        """


class PublishedScores:
    """By a published model: its scores; with calibration or the probit link, the log-odds of the click rates."""

    def __init__(
        self, artefact: Artefact, resolved: ModelSpec, name: str, variant: str | None = None
    ) -> None:
        """resolved: the model's spec against the log's columns; variant: None for all. Raises SpecError."""
        self._scorer = Scorer(artefact)
        self._maker = ExampleMaker(resolved)
        self._columns = columns_of(self._scorer.variants, variant, name)
        self.names = tuple(f"{name}@{self._scorer.variants[column]}" for column in self._columns)

    def of(self, rows: LoggedRows, decisions: Decisions, chosen: Array, candidates: Candidates) -> Array:
        """See CandidateScores."""
        examples = expanded(self._maker, rows, decisions.first[chosen], candidates)
        scores = self._scorer.score(self._maker, examples)
        artefact = self._scorer.artefact
        are_log_odds = artefact.calibration is None and artefact.spec.learner.link == "logit"
        chosen_scores = scores.score if are_log_odds else log_odds(scores.ctr)
        return chosen_scores[:, self._columns].reshape(len(chosen), len(candidates), len(self._columns))


def columns_of(variants: tuple[str, ...], wanted: str | None, name: str) -> list[int]:
    """The column of one variant, or all columns. Raises SpecError."""
    if wanted is None:
        return list(range(len(variants)))
    if wanted not in variants:
        raise SpecError(f"{name} has no variant {wanted!r}; it has: {listed(variants, wanted)}")
    return [variants.index(wanted)]


class LearningScores:
    """By a model that learns every request of the log after scoring it: float64 scores before calibration.

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
        """See CandidateScores. Learns the requests of the chosen decisions."""
        pairs = expanded(self._maker, rows, decisions.first[chosen], candidates)
        first, last = np.searchsorted(decisions.of_row, [chosen[0], chosen[-1] + 1])
        shown = self._maker.make(rows.batch(np.arange(first, last)))
        request = rows.request[first:last]
        borders = np.flatnonzero(np.diff(request, prepend=-1, append=request[-1] + 1))
        starts = np.searchsorted(chosen, decisions.of_row[first + borders[:-1]])
        scores = np.empty((len(chosen), len(candidates), len(self._columns)))
        for begin, end, start, stop in zip(
            borders[:-1], borders[1:], starts, [*starts[1:], len(chosen)], strict=True
        ):
            size = len(candidates)
            own = self._scores(pairs.part(start * size, stop * size))
            scores[start:stop] = own.reshape(stop - start, size, -1)
            self.model.learn(shown.part(*np.searchsorted(shown.rows, [begin, end]).tolist()))
        return scores

    def _scores(self, pairs: Examples) -> Array:
        """The scores of pairs: float64[pairs, names]."""
        predicted = self.model.coordinates.predict(pairs.hashed)
        is_probit = self._maker.spec.learner.link == "probit"
        scores = log_odds(predicted.probabilities) if is_probit else predicted.scores
        return scores[:, self._columns]
