"""One run of off-policy estimates: which policies, by which choices, on which rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from model_store.errors import SpecError
from model_store.model_files import NamedModel
from model_store.spec.spec import ModelSpec
from trainer.examples.side_tables import SideTable
from trainer.learn.scorer import scoring_spec
from trainer.off_policy.logged import DECISION_ROW, Layout, LoggedRows
from trainer.off_policy.policies import (
    LEARNING,
    LOGGED,
    UNIFORM,
    Choice,
    Judging,
    PolicyName,
    PolicyValue,
    Weighed,
    judge,
    uniform,
    weigh,
)
from trainer.off_policy.scores import Candidates, LearningValues, PublishedValues, Values, columns_of_items
from trainer.off_policy.warnings import check_support

Progress = Callable[[str, int, int | None], None]
"""Told of a step's name, how much of it is done, and of how much, None where that is not known."""
Read = Callable[[ModelSpec, Sequence[ModelSpec]], tuple[LoggedRows, Layout, list[ModelSpec]]]
"""Reads the log for a spec and the specs of models: see `reading.LogOfRows.read`."""


@dataclass(frozen=True)
class Estimates:
    """What was estimated, on what.

    decision: row or list; size: mean number of items that a decision shows; unusable, rejected: rows left out for want
    of a propensity, and bad ones; notes: what is to be known of all of them.
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
class Estimating:
    """What was asked for. models: those of the policies that are models, as they were named."""

    spec: ModelSpec
    policies: Sequence[PolicyName]
    models: dict[str, NamedModel]
    choices: Sequence[Choice]
    items: SideTable | None
    without: tuple[str, ...]
    decision: str
    judging: Judging

    @property
    def specs(self) -> dict[str, ModelSpec]:
        """The specs that the log's rows are hashed by, of policies that look at features."""
        specs = {name: scoring_spec(model.artefact.spec, self.without) for name, model in self.models.items()}
        if any(policy.name == LEARNING for policy in self.policies):
            specs[LEARNING] = self.spec
        return specs

    def run(self, read: Read, on_progress: Progress = lambda step, done, total: None) -> Estimates:
        """Read the log and estimate. Raises SpecError, InputError: docs/replay.md says what is refused."""
        rows, layout, resolved = read(self.spec, list(self.specs.values()))
        weighed, candidates = self._weigh(rows, dict(zip(self.specs, resolved, strict=True)), on_progress)

        def drawn(done: int) -> None:
            on_progress("bootstrap", done, self.judging.bootstrap)

        by_position = self.decision == DECISION_ROW
        found = judge(rows, weighed, self.judging, by_position=by_position, on_progress=drawn)
        return Estimates(
            decision=self.decision,
            rows=len(rows),
            requests=rows.requests,
            candidates=len(candidates) if candidates is not None else 0,
            size=float(rows.decisions(self.decision).size.mean()),
            unusable=rows.unusable,
            rejected=rows.rejected,
            propensity=layout.propensity,
            limit=self.judging.limit or float(np.sqrt(len(rows))),
            policies=tuple(found),
            notes=_notes(rows, candidates),
        )

    def _weigh(
        self, rows: LoggedRows, resolved: dict[str, ModelSpec], on_progress: Progress
    ) -> tuple[list[Weighed], Candidates | None]:
        if all(policy.name == LOGGED for policy in self.policies):
            return [_as_logged(rows)], None
        item = self.spec.input.item
        if item is None:
            raise SpecError("input.item is missing: name the column with the id of the item that a row shows")
        of_items = columns_of_items(*resolved.values())
        candidates = Candidates.of(rows, item, of_items, self.items)
        check_support(rows, len(candidates))
        decisions, weighed = rows.decisions(self.decision), list[Weighed]()
        for policy in dict.fromkeys(self.policies):
            if policy.name == LOGGED:
                weighed.append(_as_logged(rows))
            elif policy.name == UNIFORM:
                weighed.append(uniform(rows, decisions, candidates))
            else:
                values = self._values(policy, resolved[policy.name])
                done = partial(_scored, on_progress, policy.name, len(decisions.first) * len(candidates))
                weighed += weigh(rows, decisions, candidates, values, self.choices, done)
        return weighed, candidates

    def _values(self, policy: PolicyName, resolved: ModelSpec) -> Values:
        if policy.name == LEARNING:
            return LearningValues(resolved, LEARNING, policy.variant)
        named = self.models[policy.name]
        return PublishedValues(named.artefact, resolved, named.name, policy.variant)


def _scored(on_progress: Progress, name: str, total: int, done: int) -> None:
    on_progress(name, done, total)


def _as_logged(rows: LoggedRows) -> Weighed:
    return Weighed(LOGGED, np.ones(len(rows)))


def _notes(rows: LoggedRows, candidates: Candidates | None) -> tuple[str, ...]:
    found = []
    if rows.unusable:
        found.append(
            f"{rows.unusable:,} rows were left out: they, or others of their list, have no propensity in (0, 1]; "
            "the estimates are of the rest"
        )
    if candidates is not None:
        if candidates.varying:
            found.append(
                f"{', '.join(candidates.varying)}: not the same in all rows of an item; a candidate has the value of "
                "its first row"
            )
        strange = int((candidates.place < 0).sum())
        if strange:
            found.append(
                f"{strange:,} rows show items that are no candidates; no policy but `logged` is given them"
            )
    return tuple(found)
