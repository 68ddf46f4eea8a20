"""A model's experiment in Redis: read whole and checked, replaced whole by one script (experiment.lua).

A change is made from a revision, and refused if another operator was faster; servers are told through the model's
event stream. What an experiment may say is `experiments`' business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from model_store.connection import StoreConnection
from model_store.errors import ExperimentChanged, ExperimentError, StoreError
from model_store.experiments import MAX_PINS, Experiment
from model_store.manifest import now
from model_store.redis_keys import ModelKeys

ANY = "any"
ATTEMPTS = 5
FIXED = ("format", "revision", "state", "winner", "shares", "salt", "shadows", "objective", "updated")


class StoredExperiment:
    """The experiment of one model. Every method raises StoreUnavailable if the store does not answer."""

    def __init__(self, connection: StoreConnection, keys: ModelKeys, model: str) -> None:
        self._store = connection
        self._keys = keys
        self._model = model
        self._replace = connection.script("experiment")
        self._last: tuple[tuple[Any, ...], Experiment] | None = None

    def read(self) -> Experiment | None:
        """The record, or None if there is none. Raises StoreError naming what is wrong with it, and the remedy.

        Pins are read again only when the revision, another field or their number has changed: a server asks each
        second, and there may be 10,000 of them.
        """
        with (
            self._store.answers(self._keys.experiment),
            self._store.client.pipeline(transaction=True) as pipe,
        ):
            pipe.hmget(self._keys.experiment, *FIXED)
            pipe.hlen(self._keys.experiment)
            fixed, size = pipe.execute()
        if not size:
            return None
        seen = (*fixed, size)
        if self._last is None or self._last[0] != seen:
            self._last = seen, self._whole(size)
        return self._last[1]

    def write(self, changed: Experiment) -> Experiment:
        """Replace the record that `changed.revision` names; returns what is stored now, with its own revision.

        Raises ExperimentChanged if the record is another one by now; then nothing has changed.
        """
        return self._put(changed, str(changed.revision))

    def change(self, edit: Callable[[Experiment], Experiment], revision: int | None = None) -> Experiment:
        """Read, edit, write; again if another operator was faster. Returns what is stored now.

        `revision`: change that one or none (ExperimentChanged). `edit` is given an empty Experiment where there is no
        record, and may raise ExperimentError.
        """
        for attempt in range(ATTEMPTS):
            before = self.read() or Experiment()
            if revision is not None and revision != before.revision:
                raise self._changed(revision, before.revision)
            try:
                return self.write(replace(edit(before), revision=before.revision))
            except ExperimentChanged:
                if attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("the loop returns or raises")

    def clear(self) -> Experiment:
        """Back to the spec: an empty record over whatever there is, readable or not."""
        return self._put(Experiment(), ANY)

    def _put(self, experiment: Experiment, revision: str) -> Experiment:
        fresh = replace(experiment, updated=now())
        words = [word for pair in fresh.to_hash().items() for word in pair]
        answer = self._replace([self._keys.experiment, self._keys.events], [revision, *words])
        if answer[0] == b"changed":
            raise self._changed(experiment.revision, answer[1].decode())
        return replace(fresh, revision=int(answer[1]))

    def _whole(self, size: int) -> Experiment:
        try:
            if size > MAX_PINS + len(FIXED):
                raise ExperimentError(
                    f"pins: about {size - len(FIXED):,} of them; expected at most {MAX_PINS:,}"
                )
            with self._store.answers():
                fields = self._store.client.hgetall(self._keys.experiment)
            return Experiment.from_hash(fields)
        except ExperimentError as error:
            raise StoreError(
                f"{self._keys.experiment}: {error}; `ftrie experiment clear {self._model}` makes it new"
            ) from None

    def _changed(self, expected: int, there: int | str) -> ExperimentChanged:
        return ExperimentChanged(
            f"the experiment of {self._model} has changed: expected revision {expected}, it is at {there}; "
            f"look at `ftrie experiment show {self._model}` and try again"
        )
