"""One run of off-policy estimation: reads the log, weights its rows for every policy, and estimates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from model_store.errors import InputError, SpecError
from model_store.model_files import NamedModel
from model_store.spec.spec import ModelSpec
from trainer.examples.side_tables import SideTable
from trainer.learn.scorer import scoring_spec
from trainer.off_policy.logged import DECISION_ROW, Layout, LoggedRows
from trainer.off_policy.policies import (
    LEARNING,
    LOGGED,
    UNIFORM,
    EstimatorOptions,
    ItemChoice,
    PolicyName,
    PolicyValue,
    PolicyWeights,
    estimate,
    uniform,
    weigh,
)
from trainer.off_policy.scores import (
    Candidates,
    CandidateScores,
    LearningScores,
    PublishedScores,
    columns_of_items,
)

Progress = Callable[[str, int, int | None], None]
"""Receives a step's name, how much of it is done, and the total, None where unknown."""
Read = Callable[[ModelSpec, Sequence[ModelSpec]], tuple[LoggedRows, Layout, list[ModelSpec]]]
"""Reads the log for a spec and the specs of models: see `LogOfRows.read`."""


@dataclass(frozen=True)
class Estimates:
    """The estimates of all policies, and the rows they are based on.

    decision: row or list; size: mean number of items that a decision shows; unusable: rows left out because they have
    no propensity; rejected: bad rows; limit: the clip limit of weights; notes: remarks on all estimates.
    """

    decision: str
    rows: int
    requests: int
    candidates: int
    size: float
    unusable: int
    rejected: int
    propensity: str | None
    limit: float
    policies: tuple[PolicyValue, ...]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """The JSON form."""
        return asdict(self)


@dataclass(frozen=True)
class EstimationRun:
    """The options of a run. models: the published models among the policies, by name."""

    spec: ModelSpec
    policies: Sequence[PolicyName]
    models: dict[str, NamedModel]
    choices: Sequence[ItemChoice]
    items: SideTable | None
    without: tuple[str, ...]
    decision: str
    options: EstimatorOptions

    @property
    def specs(self) -> dict[str, ModelSpec]:
        """The specs for hashing the log's rows, of the policies that use features."""
        specs = {name: scoring_spec(model.artefact.spec, self.without) for name, model in self.models.items()}
        if any(policy.name == LEARNING for policy in self.policies):
            specs[LEARNING] = self.spec
        return specs

    def run(self, read: Read, on_progress: Progress = lambda step, done, total: None) -> Estimates:
        """Read the log and estimate. Raises SpecError, InputError: see docs/replay.md."""
        rows, layout, resolved = read(self.spec, list(self.specs.values()))
        weighed, candidates = self._weigh(rows, dict(zip(self.specs, resolved, strict=True)), on_progress)

        def drawn(done: int) -> None:
            on_progress("bootstrap", done, self.options.bootstrap)

        by_position = self.decision == DECISION_ROW
        found = estimate(rows, weighed, self.options, by_position=by_position, on_progress=drawn)
        return Estimates(
            decision=self.decision,
            rows=len(rows),
            requests=rows.requests,
            candidates=len(candidates) if candidates is not None else 0,
            size=float(rows.decisions(self.decision).size.mean()),
            unusable=rows.unusable,
            rejected=rows.rejected,
            propensity=layout.propensity,
            limit=self.options.limit or float(np.sqrt(len(rows))),
            policies=tuple(found),
            notes=_notes(rows, candidates),
        )

    def _weigh(
        self, rows: LoggedRows, resolved: dict[str, ModelSpec], on_progress: Progress
    ) -> tuple[list[PolicyWeights], Candidates | None]:
        as_logged = PolicyWeights(LOGGED, np.ones(len(rows)))
        if all(policy.name == LOGGED for policy in self.policies):
            return [as_logged], None
        item = self.spec.input.item
        if item is None:
            raise SpecError("input.item is missing: name the column with the id of a row's item")
        of_items = columns_of_items(*resolved.values())
        candidates = Candidates.of(rows, item, of_items, self.items)
        _check_support(rows, len(candidates))
        decisions, weighed = rows.decisions(self.decision), list[PolicyWeights]()
        for policy in dict.fromkeys(self.policies):
            if policy.name == LOGGED:
                weighed.append(as_logged)
            elif policy.name == UNIFORM:
                weighed.append(uniform(rows, decisions, candidates))
            else:
                scores = self._scores(policy, resolved[policy.name])
                done = partial(_scored, on_progress, policy.name, len(decisions.first) * len(candidates))
                weighed += weigh(rows, decisions, candidates, scores, self.choices, done)
        return weighed, candidates

    def _scores(self, policy: PolicyName, resolved: ModelSpec) -> CandidateScores:
        if policy.name == LEARNING:
            return LearningScores(resolved, LEARNING, policy.variant)
        named = self.models[policy.name]
        return PublishedScores(named.artefact, resolved, named.name, policy.variant)


def _scored(on_progress: Progress, name: str, total: int, done: int) -> None:
    on_progress(name, done, total)


def _check_support(rows: LoggedRows, candidates: int) -> None:
    """Raise InputError for a log from which only its own policy can be estimated."""
    if not rows.has_propensity:
        raise InputError(
            "the log has no propensities (expected propensity in an event's items, or a column propensity_score, "
            "propensity or pscore): only `logged` can be estimated; name the column with --propensity"
        )
    if not len(rows):
        raise InputError(
            f"no row has a propensity in (0, 1] ({rows.unusable:,} have none): nothing can be estimated"
        )
    if candidates > 1 and bool(np.all(rows.propensity == 1.0)):
        raise InputError(
            "every propensity is 1: the logged policy is deterministic, so no other policy can be estimated; log with "
            "exploration (Thompson sampling, or a share of random requests), or estimate `logged` alone"
        )


def _notes(rows: LoggedRows, candidates: Candidates | None) -> tuple[str, ...]:
    found = []
    if rows.unusable:
        found.append(
            f"{rows.unusable:,} rows were left out: they, or other rows of their list, have no propensity in (0, 1]"
        )
    if candidates is not None:
        if candidates.varying:
            found.append(
                f"{', '.join(candidates.varying)}: differs between rows of an item; a candidate has the value of its "
                "first row"
            )
        others = int((candidates.index < 0).sum())
        if others:
            found.append(
                f"{others:,} rows show items that are not candidates; every policy but `logged` has weight 0 there"
            )
    return tuple(found)
