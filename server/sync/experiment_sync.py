"""Follows the experiment of one model in the store; one that cannot be used is logged, and the last usable one stays.

Workers are sent the record as the store holds it, and those that were in force before. Each makes its own assignment
from them, by the same rules as the assignment kept here for the status.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from model_store.errors import StoreError, StoreUnavailable
from model_store.versions.experiments import Experiment
from model_store.versions.model_versions import ModelVersions
from server.ranking.experiments import Assignment
from server.telemetry.meter import Meter, declare

REVISION = declare(
    "ftrie_experiment_revision", ("model",), "the experiment in force; 0 for the spec's shares"
)
REFUSED = declare("ftrie_experiment_refused", ("model",), "1 while the store's experiment cannot be used")

_log = structlog.get_logger(__name__)


class ExperimentSync:
    """For the one thread that follows the store; `assignment` and `problem` may be read by any."""

    def __init__(
        self,
        model: str,
        deliver: Callable[[Experiment, Sequence[Experiment]], None],
        meter: Meter | None = None,
    ) -> None:
        """`deliver` is called with each experiment that the store asks for, whether it can be used or not.

        And with those that are in force where it does not fit: `earlier` of `Assignment`.
        """
        self.assignment = Assignment(model, (), ())
        """What is in force, over the variants of the served version."""
        self._deliver = deliver
        self._unreadable = ""
        if meter is not None:
            meter.gauge(REVISION, model, read=lambda: self.revision)
            meter.gauge(REFUSED, model, read=lambda: bool(self.problem))

    @property
    def revision(self) -> int:
        """The revision in force; 0 for the shares of the spec."""
        held = self.assignment.experiment
        return held.revision if held is not None else 0

    @property
    def asked(self) -> Experiment | None:
        """The experiment that the store asked for last."""
        return self.assignment.asked

    @property
    def problem(self) -> str:
        """Why the experiment in the store is not in force; empty if it is."""
        return self._unreadable or self.assignment.problem

    def check(self, versions: ModelVersions) -> None:
        """Read the record, and deliver it if it has changed. Raises StoreUnavailable.

        Call it only while the store names a version, readable or not: a store that names none may have lost the record
        with everything else.
        """
        before, asked, unreadable = self.problem, self.asked, ""
        try:
            asked = versions.experiment()
            if asked is None and self.asked is not None:  # records are never deleted: the store lost its data
                asked = self.asked
                unreadable = (
                    f"the store has lost the experiment; revision {asked.revision} stays: set it again"
                )
        # It is a StoreError too, but says nothing of the record.
        except StoreUnavailable:
            raise
        except StoreError as error:
            unreadable = str(error)
        self._unreadable = unreadable
        if asked is not None and asked is not self.asked and asked != self.asked:
            self.assignment = self.assignment.asked_for(asked)
            self._deliver(asked, self.assignment.earlier)
            _log.info("experiment", model=self.assignment.model, **_facts(asked))
        self._tell(before)

    def restore(self, kept: Sequence[Experiment]) -> None:
        """Start with the first of these, and the others as `earlier`, until the store is read for the first time."""
        if kept:
            # The first was in force if it fitted: whether it did is known once a version is served.
            self.assignment = self.assignment.asked_for(kept[0], kept)
            self._deliver(kept[0], kept[1:])

    def served(self, variants: Sequence[str], shares: Sequence[float]) -> None:
        """Note that another version is served, with these variants and shares of its spec."""
        before = self.problem
        self.assignment = self.assignment.over(variants, shares)
        self._tell(before)

    def _tell(self, before: str) -> None:
        """Log a change of the problem."""
        # Before the first version an experiment cannot fit, which is no problem of its own.
        if self.problem == before or not self.assignment.variants:
            return
        if self.problem:
            _log.error(
                "experiment refused",
                model=self.assignment.model,
                error=self.problem,
                in_force=self.revision or "the shares of the spec",
            )
        else:
            _log.info("experiment in force", model=self.assignment.model)


def _facts(asked: Experiment) -> dict[str, object]:
    return {
        "revision": asked.revision,
        "state": asked.state,
        "shares": dict(asked.shares) or "of the spec",
        "pins": len(asked.pins),
        "shadows": list(asked.shadows),
        **({"interleave": list(asked.interleave), "draft": asked.draft} if asked.interleave else {}),
    }
