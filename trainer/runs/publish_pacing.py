"""When a trainer publishes; what is published and how is `trainer.publish.publisher`'s part.

Not while nothing was learned, nor while too many rows were rejected; at longer intervals while the trainer is behind
its sources; after a failure with a growing pause, so that a store that hangs does not hold up learning; and after a
crash only when the model has learned again what the last published version had.
"""

from __future__ import annotations

import time
from dataclasses import replace

from model_store.waiting import Backoff
from trainer.formats.rejects import too_many_rejected
from trainer.learn.model import LearningModel
from trainer.publish.publisher import Publisher
from trainer.runs.stream import Counts

PAUSE_WHILE_BEHIND = 10.0
"""A trainer that is behind waits this many times as long as its last publication took."""


class PublishPacer:
    """Publishes a trainer's model. For one thread.

    `rows`: examples that the last published version had learned; `version`: that version, if this run published it.
    """

    def __init__(self, publisher: Publisher, rows: int, *, force: bool = False) -> None:
        """rows: those of the version that an earlier run of the same trainer published last, from its lease.

        force: publish however many labelled rows were rejected.
        """
        self.publisher = publisher
        self._force = force
        self._before = Counts()
        self.rows = rows
        self._through_us = self._start_rows = 0
        self.version: int | None = None
        self._backoff = Backoff(first_s=0.5, longest_s=10.0)
        self._not_before = 0.0
        self._store_lost_data = False

    def store_lost_its_data(self) -> None:
        """Publish everything learned again, as soon as that is allowed."""
        self._store_lost_data = True
        self.publisher.restart_chain()

    def begin(self, model: LearningModel, through_us: int = 0, counts: Counts | None = None) -> None:
        """Count from here. through_us: of a resumed run, the time up to which the active version has learned."""
        self._before = replace(counts or Counts())
        self._through_us, self._start_rows = through_us, model.rows
        self.rows = self.rows if model.rows else 0  # a run that starts again may never learn as many
        self.publisher.begin(model)

    def after_step(self, model: LearningModel, all_counts: Counts, behind: bool) -> None:
        """Publish if it is due and there is something new. Raises nothing."""
        through_us = all_counts.through_us
        is_published = (
            model.rows <= self.rows or 0 < through_us <= self._through_us
        )  # labelled rows have no time
        if self._store_lost_data:
            is_published = not model.rows
        if is_published or time.monotonic() < self._not_before:
            return
        self.publisher.through_us = through_us
        self.publisher.withheld = self._withheld(all_counts)
        counts = self.publisher.counts
        published, failed, began = counts.snapshots + counts.deltas, counts.failed, time.monotonic()
        self.publisher.after_batch(model)
        if counts.failed > failed:
            self._not_before = time.monotonic() + self._backoff.failed()
        elif counts.snapshots + counts.deltas > published:
            self._note_published(model, all_counts)
            took = time.monotonic() - began
            self._not_before = began + took * (1.0 + PAUSE_WHILE_BEHIND if behind else 1.0)

    def finish(self, model: LearningModel, counts: Counts) -> int | None:
        """Publish all remaining changes; None if nothing was learned.

        Raises what prevents that, or the activation of the last version.
        """
        through_us = counts.through_us
        # This run has learned nothing, and an earlier one has published what the checkpoint holds.
        is_published = (
            model.rows == self._start_rows
            and 0 < through_us <= self._through_us
            and not self._store_lost_data
        )
        if not model.rows or model.rows < self.rows or is_published:
            return self.version
        self.publisher.through_us = through_us
        self.publisher.withheld = self._withheld(counts)
        self.version = self.publisher.finish(model)
        self.rows = model.rows
        self.publisher.check_activated()
        return self.version

    def _withheld(self, counts: Counts) -> str:
        """Why nothing may be published: too many of the labelled rows since the last version were rejected."""
        if self._force or not counts.rows:
            return ""
        bad = counts.bad_rows - self._before.bad_rows
        rows = counts.rows - self._before.rows
        name = self.publisher.model_name
        where = [
            f"of the rows since the last publication; `ftrie store dead {name}` lists them with their reasons"
        ]
        return too_many_rejected(bad / rows if rows else 0.0, bad, where, "then start the trainer again")

    def _note_published(self, model: LearningModel, counts: Counts) -> None:
        self._before = replace(counts)
        self._backoff.succeeded()
        self._store_lost_data = False
        self.rows = model.rows
        self._through_us = 0
        self.version = self.publisher.version
