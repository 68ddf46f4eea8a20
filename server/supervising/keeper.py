"""Keeps each model's last good version and its experiment on disk, by a thread of its own: no delta waits for a disk.

The first version is written at once, of a run of deltas one each half minute at most, the last when the server ends. A
disk that is full or broken costs the copy, says so in the log once a cause, and is tried again after growing pauses.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from model_store.errors import ArtefactError, FtrieError
from model_store.experiments import Experiment
from server.layers.parts import Parts
from server.supervising.distribution import Distribution
from server.supervising.kept_experiments import KeptExperiments
from server.supervising.last_good import LastGood
from server.supervising.pauses import FAILED_SAVE
from server.supervising.priority import yield_to_others
from server.supervising.state_folder import StateFolder

SAVE_EVERY_S = 30.0
SAVE_SHARE = 0.1
"""At most this share of the time goes into writing one model."""

_log = structlog.get_logger(__name__)


class Keeper(threading.Thread):
    """Takes every model's parts from a `Distribution`, and gives them back as soon as they are on disk."""

    def __init__(self, state: StateFolder, models: Sequence[str], distribution: Distribution) -> None:
        super().__init__(name="keep last good", daemon=True)
        self._folder = state.folder
        self._folders = {name: LastGood(state.model(name), name) for name in models}
        self._experiments = KeptExperiments(state.experiments)
        self._told: dict[str, str | None] = {}
        """By model whose experiment is to be written: its record."""
        self._distribution = distribution
        self._changed = threading.Condition()
        self._due: dict[str, float] = {}
        """By model that has changed: when to write it."""
        self._resting: dict[str, float] = {}
        """By model: when it may be written again."""
        self._failures = dict.fromkeys(models, 0)
        """By model: how often in a row it could not be written."""
        self._ending = False
        self.problems: dict[str, str] = {}
        """By model, why its copy could not be written. Replaced by this thread, read by any."""

    # -- a taker, called by the thread that delivers

    def take(self, parts: Parts, serial: int) -> None:
        """Note that there is something to write; which parts, is decided when they are written."""
        self._distribution.given_back(self, serial)
        with self._changed:
            self._due.setdefault(parts.name, max(time.monotonic(), self._resting.get(parts.name, 0.0)))
            self._changed.notify()

    def tell(self, body: Mapping[str, Any]) -> None:
        """Note an experiment that is to be written; nothing else is kept."""
        if body["do"] == "experiment":
            with self._changed:
                self._told[body["model"]] = body["experiment"]
                self._changed.notify()

    # -- for a model that has nothing to serve yet

    def last_good(self, model: str, sha256: str | None = None) -> Parts | None:
        """The parts on disk, verified; None if there are none that are whole, or another version than `sha256`'s."""
        folder = self._folders[model]
        try:
            kept = folder.kept()
            if kept is None or sha256 not in (None, kept.sha256):
                return None
            return folder.load(kept)
        except ArtefactError as error:
            _log.error("the last good model on disk is of no use", model=model, error=str(error))
            return None

    def experiment(self, model: str) -> Experiment | None:
        """The experiment on disk, if there is one that is whole."""
        try:
            return self._experiments.load(model)
        except ArtefactError as error:
            _log.error("the experiment on disk is of no use", model=model, error=str(error))
            return None

    # -- the thread

    def run(self) -> None:
        """Write what is due, until `close`; then once more what has changed since."""
        yield_to_others()
        while (model := self._next()) is not None:
            began = time.monotonic()
            self._save(model)
            self._rest(model, time.monotonic() - began)

    def close(self, end_at_s: float) -> None:
        """Write what has changed, and end, waiting for the disk until `end_at_s` (monotonic) at most."""
        began_s = time.monotonic()
        with self._changed:
            self._ending = True
            self._changed.notify()
        if self.is_alive():
            self.join(max(0.0, end_at_s - began_s))
        if self.is_alive():  # a daemon thread: the process ends without it
            _log.error(
                "the disk does not answer: ending without the last changes on it",
                folder=str(self._folder),
                waited_s=round(time.monotonic() - began_s, 1),
            )

    def _next(self) -> str | None:
        """Wait for a model that is due; None at the end."""
        with self._changed:
            while True:
                self._save_experiments()
                now = time.monotonic()
                for model, due in self._due.items():
                    if self._ending or due <= now:
                        del self._due[model]
                        return model
                if self._ending:
                    return None
                self._changed.wait(min(self._due.values()) - now if self._due else None)

    def _save_experiments(self) -> None:
        """Write those that were told of. Called with `_changed` held, and lets go of it while it writes."""
        while self._told:
            model, experiment = self._told.popitem()
            self._changed.release()
            try:
                self._experiments.save(model, experiment)
            except FtrieError as error:
                _log.error("the experiment could not be kept on disk", model=model, error=str(error))
            finally:
                self._changed.acquire()

    def _save(self, model: str) -> None:
        lent = self._distribution.borrow(self, model)
        if lent is None:
            return
        parts, serial = lent
        try:
            self._folders[model].save(parts)
            self._settle(model, "")
        except (FtrieError, OSError, MemoryError) as error:
            self._settle(model, str(error))
        finally:
            self._distribution.given_back(self, serial)

    def _rest(self, model: str, took_s: float) -> None:
        """Leave a model alone for a while; one that could not be written is tried again after it."""
        failures = self._failures[model]
        pause_s = FAILED_SAVE.after(failures) if failures else SAVE_EVERY_S
        with self._changed:
            self._resting[model] = time.monotonic() + max(pause_s, took_s / SAVE_SHARE)
            if failures and not self._ending:
                self._due[model] = self._resting[model]

    def _settle(self, model: str, problem: str) -> None:
        self._failures[model] = self._failures[model] + 1 if problem else 0
        if problem and self.problems.get(model) != problem:
            _log.error("the last good model could not be kept on disk", model=model, error=problem)
        if not problem and self.problems.get(model):
            _log.info("the last good model is kept on disk again", model=model)
        self.problems = {**self.problems, model: problem}
