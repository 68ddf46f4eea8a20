"""Scores every row of a log by a published model, labelled or not.

In: an artefact and a log. Out: the scores of each row, batch by batch, in the order of the log; a row that cannot be
read keeps its place. The model does not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from model_store.artefact.artefact import Artefact
from model_store.spec.spec import ModelSpec
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.examples.open_log import Log, open_log
from trainer.examples.requests import Sample
from trainer.formats.batch import RowBatch
from trainer.formats.rejects import Reject
from trainer.learn.scorer import Scorer, Scores, scoring_spec
from trainer.output import SILENT, Output
from trainer.runs.warmup import compiling_scorer


@dataclass(frozen=True)
class BatchScores:
    """The scores of a batch of rows: float64[rows, variants] each, NaN for a row in `rejects`.

    first_row: the number of rows before the batch. Of events only those count that show items: a bad one has no row.
    """

    first_row: int
    rows: int
    scores: Scores
    rejects: tuple[Reject, ...]


def predict(
    artefact: Artefact,
    log: Log,
    *,
    threads: int | None = None,
    without: Sequence[str] = (),
    output: Output = SILENT,
) -> Iterator[BatchScores]:
    """Score the rows of a log, which needs no labels. A row with a bad value has no scores, and is a reject.

    without: fields and crosses to score without. Raises SpecError if the log lacks a column of a field, InputError if
    it cannot be read to its end.
    """
    scorer = Scorer(artefact)
    spec = scoring_spec(artefact.spec, tuple(without))
    with compiling_scorer(output), open_log(replace(log, unlabelled=True), spec) as opened:
        maker = _UnlabelledMaker(opened.spec, scorer)
        first = 0
        with opened.examples(threads, maker=maker) as stream, output.progress("scoring") as bar:
            for examples in stream:
                assert isinstance(examples, ScoredExamples)
                places, size = _places(examples, counts_unreadable=not opened.is_of_events)
                yield BatchScores(first, size, of_all_rows(examples.scores, places, size), examples.rejects)
                first += size
                bar.update(first, total=opened.expected_rows(first))


@dataclass(frozen=True, kw_only=True)
class ScoredExamples(Examples):
    """Examples with their scores, and the batch that they were made of."""

    scores: Scores
    batch: RowBatch

    @property
    def first(self) -> Any:
        """The first example of each row, the click where it has one: bool[m], or a slice of all."""
        if not self.counts.doubled:
            return slice(None)
        return np.concatenate([[True], self.rows[1:] != self.rows[:-1]])


class ScoringMaker(ExampleMaker):
    """Makes and scores examples, in the hashing threads. Stateless."""

    def __init__(self, spec: ModelSpec, scorer: Scorer) -> None:
        super().__init__(spec)
        self._scorer = scorer

    def make(self, batch: RowBatch) -> ScoredExamples:
        """Hash and score a batch."""
        examples = super().make(batch)
        return ScoredExamples(**vars(examples), scores=self._scorer.score(self, examples), batch=batch)


class PredictingMaker(ExampleMaker):
    """Makes examples to be scored, one of each row, whatever its label."""

    def _outcomes(self, sample: Sample, bad: dict[int, str]) -> tuple[Any, Any, Any]:
        return np.zeros(sample.batch.rows), np.empty(0), np.empty(0, np.int64)

    def _outcomes_of(self, good: Any, labels: Any, weights: Any) -> tuple[Any, Any, Any]:
        return good, labels[good], weights


class _UnlabelledMaker(ScoringMaker, PredictingMaker):
    """Makes and scores an example of each row, whatever its label."""


def _places(examples: ScoredExamples, counts_unreadable: bool) -> tuple[Any, int]:
    """Where each example is among the rows of its batch, and how many they are; with the unreadable ones or without."""
    batch, rows = examples.batch, np.asarray(examples.rows, np.int64)
    if not (counts_unreadable and batch.rejects):
        return rows, batch.rows
    lines = np.union1d(batch.lines, [reject.line for reject in batch.rejects])  # each row has its own
    return np.searchsorted(lines, batch.lines[rows]), lines.size


def of_all_rows(scores: Scores, at: Any, rows: int) -> Scores:
    """Scores of the rows `at` of a batch as those of all its rows, NaN for the others."""
    if at.size == rows:
        return scores
    whole = {}
    for each in fields(Scores):
        known = getattr(scores, each.name)
        whole[each.name] = np.full((rows, known.shape[1]), np.nan)
        whole[each.name][at] = known
    return Scores(**whole)
