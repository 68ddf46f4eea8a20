"""A trainer's inside: sources, join and model as one thing that steps, saves, and can say how it is.

Begun with nothing or from a checkpoint. Who publishes, and how long it goes on, is `trainer.runs.daemon`'s business.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from model_store.errors import OutputError
from model_store.spec.spec import ModelSpec
from model_store.versions.model_versions import ModelVersions
from trainer.checkpoint import Checkpoints
from trainer.events.events import Lag
from trainer.learn.model import LearningModel
from trainer.publish.online_metrics import OnlineAccumulator
from trainer.runs.publish_pacing import GoingOut
from trainer.runs.saved_state import Saved, Saving
from trainer.runs.status import Holds, Quiet, Status
from trainer.runs.stream import Counts, Loop


class Named(Holds, Protocol):
    """What is told of a source."""

    @property
    def name(self) -> str:
        """As it was given."""

    @property
    def lost(self) -> int:
        """Events that were deleted before they were read."""


class Learner:
    """For one thread. `behind`: whether a source is read later than it should be."""

    def __init__(
        self,
        spec: ModelSpec,
        loop: Loop,
        sources: Sequence[Named],
        names: Sequence[str],
        keeper: Checkpoints,
        saved: Saved,
        max_lag_s: float,
        initial: str | None,
        on_warning: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._warn = on_warning
        self._loop = loop
        self._sources = sources
        self._keeper = keeper
        self._max_lag_s = max_lag_s
        self._lags: dict[str, Lag] = {}
        self._said = (time.monotonic(), loop.counts.events)
        self._before_s = saved.checkpoint.description.seconds if saved.checkpoint else 0.0
        self._began = time.monotonic()
        resolved = loop.model.spec
        self._saving = Saving(keeper, spec, resolved, names, loop.letters, self._seconds, initial)
        self._saved_rows = saved.checkpoint.description.rows if saved.checkpoint else -1
        self.behind = False
        self._disk_fails = set[str]()
        self._quiet = Quiet(spec.model.name, sources, loop.counts)

    @property
    def model(self) -> LearningModel:
        """What learns."""
        return self._loop.model

    @property
    def counts(self) -> Counts:
        """What became of the events so far."""
        return self._loop.counts

    @property
    def ended(self) -> bool:
        """True once all that the sources will ever have is taken."""
        return self._loop.ended

    def step(self, wait_s: float) -> bool:
        """Learn from the next events; False if none come within `wait_s` seconds."""
        worked = self._loop.step(wait_s)
        if worked:
            self._on_disk(self._loop.relieve, "rows that wait for their clicks stay in memory")
        return worked

    def finish(self) -> None:
        """Close every window: there will be no more events."""
        self._loop.finish()

    def save_is_due(self) -> bool:
        """True if a checkpoint should be written by now."""
        return self._saving.is_due(self.model.rows)

    def save(self) -> None:
        """Write a checkpoint; first the rows that wait for their clicks, which it names."""
        loop = self._loop
        if not self._on_disk(loop.before_checkpoint, "no checkpoint is written"):
            self._keeper.skip(self.model.rows)
            return
        rows, parts = self.model.rows, {"join": loop.joined()}
        saved = self._saving.save(loop.model, loop.state(), loop.positions(), loop.counts, parts)
        if saved and rows > self._saved_rows:  # one of as many rows replaces the last; those before it stay
            self._saved_rows = rows
            loop.after_checkpoint()

    def _on_disk(self, work: Callable[[], None], otherwise: str) -> bool:
        """Whether it could be done; a disk that is full stops no learning, and is told of once."""
        try:
            work()
        except OutputError as error:
            if otherwise not in self._disk_fails:
                self._warn(f"{error}; {otherwise}, and learning goes on")
            self._disk_fails.add(otherwise)
            return False
        self._disk_fails.discard(otherwise)
        return True

    def chores(self, versions: ModelVersions) -> list[Callable[[], object]]:
        """What is to be done every few seconds with the store."""
        return [self._loop.letters.send, lambda: self._loop.online.flush(versions.online)]

    @property
    def online(self) -> OnlineAccumulator:
        """What the served versions came to."""
        return self._loop.online

    def warnings(self) -> dict[str, str]:
        """What somebody should look at now, by kind. To be asked every second or so."""
        counts, found = self.counts, dict(self.model.warnings.texts)
        self._quiet.look(counts)
        if self._quiet.why:
            found["quiet"] = self._quiet.why
        if counts.minus_labels:
            others = counts.examples - counts.minus_labels - self.model.metrics.clicked
            found["labels"] = "labels are read as -1/+1: -1 is no click" + (
                f", as 0 is ({others:,} rows)" if others else ""
            )
        return found

    def status(self, out: GoingOut | None, *, ended: bool) -> Status:
        """How it is now; asks the sources how far behind they are read."""
        loop, counts = self._loop, self._loop.counts
        self._look_at_lags()
        return Status(
            model=self.model.spec.model.name,
            events=counts.events,
            examples=counts.examples,
            rate=self._rate(),
            keys=self.model.table.used,
            logloss=self.model.metrics.recent_logloss(),
            version=out.version if out is not None else None,
            published=out.publisher.counts.as_dict() if out is not None else {},
            failed_checkpoints=self._keeper.failed,
            dead_letters=loop.letters.count,
            lags=self._lags,
            lost={source.name: source.lost for source in self._sources},
            counts=counts.as_dict(),
            join=loop.joined(),
            behind=self.behind,
            normalized_entropy=self.model.warnings.normalized_entropy,
            withheld=out.publisher.withheld if out is not None else "",
            variants=self.model.metrics.summary() if ended else {},
            ended=ended,
        )

    def _look_at_lags(self) -> None:
        lags = self._loop.lags()
        self._lags = {source.name: lag for source, lag in zip(self._sources, lags, strict=True)}
        self.behind = any((lag.seconds or 0.0) > self._max_lag_s for lag in lags)

    def _rate(self) -> float:
        then, events = self._said
        now = time.monotonic()
        self._said = (now, self.counts.events)
        return (self.counts.events - events) / max(now - then, 1e-9)

    def _seconds(self) -> float:
        return self._before_s + time.monotonic() - self._began
