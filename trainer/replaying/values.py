"""What candidates are worth to a published model: its click rates as log-odds, for every decision and variant."""

from __future__ import annotations

from typing import Any, Protocol

import numpy.typing as npt

from model_store.artefact import Artefact
from model_store.errors import SpecError
from model_store.spec import ModelSpec
from trainer.hashing.examples import ExampleMaker
from trainer.replaying.candidates import Candidates, expanded
from trainer.replaying.logged import Decisions, LoggedRows
from trainer.scoring.evaluation import log_odds
from trainer.scoring.scorer import Scorer

Array = npt.NDArray[Any]


class Values(Protocol):
    """Values candidates for one policy after another.

    names: of the policies, one a variant. of: int64[k], decisions, in ascending order and whole requests; the answer
    is float64[k, candidates, names]. Called once for every decision, in order.
    """

    names: tuple[str, ...]

    def of(self, rows: LoggedRows, decisions: Decisions, chosen: Array, candidates: Candidates) -> Array:
        """Raises InputError where a candidate does not fit."""


class PublishedValues:
    """A published model's. Without calibration they are its scores; else log-odds of the calibrated click rates."""

    def __init__(
        self, artefact: Artefact, resolved: ModelSpec, name: str, variant: str | None = None
    ) -> None:
        """resolved: the model's spec, by the log's columns. One variant, or all of them. Raises SpecError."""
        self._scorer = Scorer(artefact)
        self._maker = ExampleMaker(resolved)
        self._columns = columns_of(self._scorer.variants, variant, name)
        self.names = tuple(f"{name}@{self._scorer.variants[column]}" for column in self._columns)

    def of(self, rows: LoggedRows, decisions: Decisions, chosen: Array, candidates: Candidates) -> Array:
        """See Values."""
        examples = expanded(self._maker, rows, decisions.first[chosen], candidates)
        scores = self._scorer.score(self._maker, examples)
        values = scores.score if self._scorer.artefact.calibration is None else log_odds(scores.ctr)
        return values[:, self._columns].reshape(len(chosen), len(candidates), len(self._columns))


def columns_of(variants: tuple[str, ...], wanted: str | None, name: str) -> list[int]:
    """The columns of one variant, or of all. Raises SpecError."""
    if wanted is None:
        return list(range(len(variants)))
    if wanted not in variants:
        raise SpecError(f"{name} has no variant {wanted!r}; it has: {', '.join(variants)}")
    return [variants.index(wanted)]
