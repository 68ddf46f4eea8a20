"""One step of a trainer that learns from labelled rows: files of a log that grow. There is nothing to join."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.daemon.letters import Letters
from trainer.daemon.loop import Arrays, Counts
from trainer.events.events import Lag, Place
from trainer.events.sources.rows import Rows, RowSource
from trainer.model import LearningModel
from trainer.online.online import Online

LOOK_EVERY_S = 0.05


class RowLoop:
    """Learns from rows in the order of their files. For one thread. See `trainer.daemon.loop.Loop` for the methods.

    In its counts bad rows are also those that are none, such as a line with too few columns.
    """

    def __init__(
        self,
        source: RowSource,
        places: Sequence[Place],
        model: LearningModel,
        letters: Letters,
        counts: Counts,
        *,
        once: bool = False,
    ) -> None:
        self.model = model
        self.letters = letters
        self.counts = counts
        self.online = Online()
        self._source = source
        self._place = places[0] if places else source.start
        self._wanted = model.spec.wanted_columns()
        self._once = once
        self._pause = threading.Event()

    def step(self, wait_s: float = 0.0) -> bool:
        """Learn from the next rows; False if there are none within `wait_s` seconds. Raises what the source raises."""
        rows = self._source.read(self._wanted)
        if rows is None and wait_s and not self.ended:
            self._pause.wait(min(wait_s, LOOK_EVERY_S))
            rows = self._source.read(self._wanted)
        if rows is None:
            return False
        self._learn(rows)
        return True

    def finish(self) -> None:
        """There is nothing that waits."""

    @property
    def ended(self) -> bool:
        """With `once`: all was read."""
        return self._source.ended

    def places(self) -> list[Place]:
        """Where the source is to be read on."""
        return [self._place]

    def lags(self) -> list[Lag]:
        """How far behind the source is read."""
        return [self._source.lag()]

    def relieve(self) -> None:
        """Nothing is kept."""

    def before_checkpoint(self) -> None:
        """All is in the model."""

    def after_checkpoint(self) -> None:
        """There are no files besides."""

    def joined(self) -> dict[str, int]:
        """Nothing is joined."""
        return {}

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays of the model."""
        return self.model.state()

    def restore(self, arrays: Arrays) -> None:
        """Take over what `state` gave."""
        self.model.restore(arrays)

    def _learn(self, rows: Rows) -> None:
        counts, batch = self.counts, rows.batch
        examples = self.model.maker.make(replace(batch, first_row=counts.examples + counts.bad_rows))
        self.model.learn(examples)
        counts.examples += int(np.size(examples.rows))
        counts.minus_labels += examples.minus_labels
        counts.bad_rows += len(examples.rejects)
        counts.rows += batch.rows + len(batch.rejects)
        for reject in examples.rejects:
            self.letters.add(self._source.name, f"{reject.file}:{reject.line}", reject.reason, b"")
        self._place = rows.after
