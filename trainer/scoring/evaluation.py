"""One evaluation: a published model's predictions of every row of a log, judged. The model does not change.

The run has the parts of a training run, with scoring in the place of learning; since scoring changes nothing, the
hashing threads do it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.artefact import Artefact
from model_store.cells import number_column, plain
from model_store.spec import ModelSpec
from trainer.hashing.examples import ExampleMaker, Examples
from trainer.pipeline import default_threads, examples_of
from trainer.rejects import RejectLog
from trainer.requests.whole import WholeRequests
from trainer.scoring.kernels import add_rows
from trainer.scoring.log import LogToScore
from trainer.scoring.predictions import PredictionFile
from trainer.scoring.requests import RequestMetrics, RequestReport
from trainer.scoring.scorer import Scorer, Scores
from trainer.sources import RowBatch
from trainer.watching.metrics import ProgressiveMetrics
from trainer.watching.records import VariantMetrics

Array = npt.NDArray[Any]
SHOWN = "shown order"
_CLOSEST = 1e-15


@dataclass(frozen=True, kw_only=True)
class ScoredExamples(Examples):
    """Examples with their scores. lines: int64[m], their places in the file; positions: float64[m], or empty."""

    scores: Scores
    file: str
    lines: Array
    positions: Array


class ScoringMaker(ExampleMaker):
    """An example maker that also scores what it makes. Stateless, so that any thread may do it."""

    def __init__(self, scorer: Scorer, spec: ModelSpec, position: str | None) -> None:
        super().__init__(spec)
        self._scorer = scorer
        self._position = position

    def make(self, batch: RowBatch) -> ScoredExamples:
        """Hash and score a batch."""
        examples = super().make(batch)
        positions = np.empty(0)
        if self._position is not None:
            positions = number_column(plain(batch.columns[self._position]))[0][examples.rows]
        scores = self._scorer.score(self, examples)
        return ScoredExamples(
            **vars(examples),
            scores=scores,
            file=batch.file,
            lines=batch.lines[examples.rows],
            positions=positions,
        )


@dataclass(frozen=True)
class Evaluation:
    """What a model's predictions were worth on a log.

    variants: of the calibrated click rates; predicted: of the predictions before calibration, None where the model has
    no curves; uncertainty: its mean by variant, empty where the model's learning rates are not known; requests: None
    where rows carry no request.
    """

    rows: int
    rejected: int
    weight: float
    clicks: float
    variants: dict[str, VariantMetrics]
    predicted: dict[str, VariantMetrics] | None
    uncertainty: dict[str, float]
    requests: RequestReport | None


@dataclass(frozen=True)
class Judging:
    """What to judge beside every row's click: NDCG's k, the column of the shown position, the rows to write out."""

    k: int = 10
    position: str | None = None
    predictions: PredictionFile | None = None


def evaluate(
    artefact: Artefact,
    log: LogToScore,
    judging: Judging,
    *,
    rejects: RejectLog,
    threads: int | None = None,
    on_progress: Callable[[int, float | None], None] = lambda rows, logloss: None,
) -> Evaluation:
    """Score every row of a log and judge the scores. A bad row goes to `rejects`.

    Raises SpecError where the model's spec does not fit the log, InputError where the log cannot be read to its end.
    """
    scorer = Scorer(artefact)
    wanted = [judging.position] if judging.position is not None else []
    with log.opened(artefact.spec, wanted) as (spec, batches):
        maker = ScoringMaker(scorer, spec, judging.position)
        judge = _Judge(scorer, maker, judging)
        with examples_of(WholeRequests(spec).of(batches), maker, threads or default_threads()) as stream:
            for examples in stream:
                assert isinstance(examples, ScoredExamples)
                rejects.add_all(examples.rejects)
                judge.add(examples)
                on_progress(judge.metrics.rows, judge.metrics.logloss())
    return judge.evaluation(rejects.count)


class _Judge:
    """The running judgement of an evaluation."""

    def __init__(self, scorer: Scorer, maker: ExampleMaker, judging: Judging) -> None:
        self.metrics = ProgressiveMetrics(scorer.variants)
        self._scorer, self._judging = scorer, judging
        self._raw = ProgressiveMetrics(scorer.variants) if scorer.artefact.calibration is not None else None
        self._uncertainty = np.zeros(len(scorer.variants))
        orders = [*scorer.variants, SHOWN] if judging.position is not None else scorer.variants
        self._requests = RequestMetrics(orders, judging.k) if maker.spec.input.request is not None else None

    def add(self, examples: ScoredExamples) -> None:
        scores = examples.scores
        # Weighed as log-odds again: what the metrics take. Without calibration that is the score itself.
        self.metrics.update(scores.score if self._raw is None else log_odds(scores.ctr), examples)
        if self._raw is not None:
            self._raw.update(scores.score, examples)
        add_rows(scores.uncertainty, self._uncertainty)
        if self._requests is not None:
            self._requests.update(
                examples.requests, self._orders(examples), examples.hashed.labels, examples.stop.number
            )
        if self._judging.predictions is not None:
            self._judging.predictions.add(examples)

    def evaluation(self, rejected: int) -> Evaluation:
        rows = self.metrics.rows
        known = self._scorer.knows_rates and rows > 0
        total = self.metrics.total()
        return Evaluation(
            rows=rows,
            rejected=rejected,
            weight=total.weight,
            clicks=total.clicks,
            variants=total.variants,
            predicted=self._raw.summary() if self._raw is not None else None,
            uncertainty=dict(zip(self._scorer.variants, self._uncertainty / rows, strict=True))
            if known
            else {},
            requests=self._requests.report() if self._requests is not None else None,
        )

    def _orders(self, examples: ScoredExamples) -> Array:
        if not examples.positions.size:
            return examples.scores.score
        shown = -np.where(np.isnan(examples.positions), np.inf, examples.positions)
        return np.column_stack([examples.scores.score, shown])


def log_odds(ctr: Array) -> Array:
    """ln(ctr / (1 - ctr))."""
    inside = np.clip(ctr, _CLOSEST, 1.0 - _CLOSEST)
    return np.asarray(np.log(inside) - np.log1p(-inside))
