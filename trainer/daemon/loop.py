"""One step of the loop: merged events go through the join and become examples, which are learned from at once.

`ftrie trainer` and `ftrie replay` are both this loop; it knows neither store nor clock. What it has learned after some
events depends on these events alone, however they came: in one piece or in many, today or after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trainer.daemon.examples import JOIN, JoinedExamples
from trainer.daemon.letters import Letters
from trainer.events.events import FEEDBACK, IMPRESSION, Lag, Merged, Place
from trainer.events.merging import Merger
from trainer.joining.join import Join, Joined
from trainer.joining.segments import Segments
from trainer.model import LearningModel
from trainer.online.online import Online

JOIN_PART, ONLINE_PART = "join.", "online."

Arrays = Mapping[str, npt.NDArray[Any]]
Closed = Callable[[Joined, Segments], None]


@dataclass
class Counts:
    """What became of the events so far; over all runs that went on from one another.

    rows: labelled rows, where there are no events; bad_events: those that could not be read; examples: learned from;
    bad_rows: rows that are no examples; subsampled: rows that were not drawn; unknown_items: rows of items of which the
    server knew nothing. through_us: the order time of the last event taken. minus_labels: examples of labelled rows
    whose label is written as -1.
    """

    impressions: int = 0
    feedback: int = 0
    rows: int = 0
    bad_events: int = 0
    examples: int = 0
    bad_rows: int = 0
    subsampled: int = 0
    unknown_items: int = 0
    through_us: int = 0
    minus_labels: int = 0

    @property
    def events(self) -> int:
        """All that was taken."""
        return self.impressions + self.feedback + self.rows + self.bad_events

    def as_dict(self) -> dict[str, int]:
        """The counts by name."""
        return dict(vars(self))


class Loop(Protocol):
    """What learns in steps: from events that are joined, or from rows that have their label already."""

    model: LearningModel
    letters: Letters
    counts: Counts
    online: Online

    def step(self, wait_s: float = 0.0) -> bool:
        """Take what comes next; False if nothing does within `wait_s` seconds."""

    def finish(self) -> None:
        """Nothing more is to come."""

    @property
    def ended(self) -> bool:
        """True once every source has ended and all it had is taken."""

    def places(self) -> list[Place]:
        """Where each source is to be read on."""

    def lags(self) -> list[Lag]:
        """How far behind each source is read."""

    def relieve(self) -> None:
        """Keep memory within its bound. Raises OutputError."""

    def before_checkpoint(self) -> None:
        """Put on the disk what a checkpoint names. Raises OutputError."""

    def after_checkpoint(self) -> None:
        """A checkpoint was written."""

    def joined(self) -> dict[str, int]:
        """What became of the events in the join; nothing where there is none."""

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays of a checkpoint."""

    def restore(self, arrays: Arrays) -> None:
        """Take over what `state` gave."""


class EventLoop:
    """Learns from impressions and feedback. For one thread.

    `on_joined` is told of everything that the join gives out, before it is learned from.
    """

    def __init__(
        self,
        merger: Merger,
        join: Join,
        segments: Segments,
        model: LearningModel,
        letters: Letters,
        on_joined: Closed = lambda joined, segments: None,
        counts: Counts | None = None,
        online: Online | None = None,
    ) -> None:
        self.model = model
        self.join = join
        self.segments = segments
        self.letters = letters
        self.counts = counts or Counts()
        self.online = online or Online()
        self._merger = merger
        self._on_joined = on_joined
        joined_rows = self.counts.examples + self.counts.bad_rows + self.counts.subsampled
        self._examples = JoinedExamples(model.maker, segments, joined_rows, self.counts.unknown_items)

    def step(self, wait_s: float = 0.0) -> bool:
        """Take the next events; False if none come within `wait_s` seconds. Raises what the sources raise."""
        merged = self._merger.poll(wait_s)
        if merged is None:
            return False
        self._count(merged)
        for bad in merged.bad:
            self.letters.add(bad.source, bad.where, bad.reason, bad.line)
        self._learn(self.join.push(merged))
        return True

    def relieve(self) -> None:
        """Keep memory within its bound. Raises OutputError if that needs a disk that is full; nothing is lost then."""
        self.segments.relieve(self.join.segments)

    def finish(self) -> None:
        """There will be no more events: close every window, and learn from what was in them."""
        self._learn(self.join.finish())

    @property
    def ended(self) -> bool:
        """True once every source has ended and all their events are taken."""
        return self._merger.ended

    def places(self) -> list[Place]:
        """Where each source is to be read on."""
        return self._merger.places()

    def lags(self) -> list[Lag]:
        """How far behind each source is read."""
        return self._merger.lags()

    def before_checkpoint(self) -> None:
        """Put the rows that wait for clicks on the disk, so that a checkpoint can name them. Raises OutputError."""
        self.segments.keep(self.join.segments())
        self.segments.flush()

    def after_checkpoint(self) -> None:
        """A checkpoint was written: files that none can name any more may go."""
        self.segments.committed()

    def joined(self) -> dict[str, int]:
        """What became of the events in the join."""
        return dict(vars(self.join.counts))

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays of the model, of the join and of the online metrics, for a checkpoint."""
        return (
            self.model.state()
            | _named(JOIN_PART, self.join.state())
            | _named(ONLINE_PART, self.online.state())
        )

    def restore(self, arrays: Arrays) -> None:
        """Take over what `state` gave."""
        self.model.restore(arrays)
        self.join.restore(_part(JOIN_PART, arrays))
        self.online.restore(_part(ONLINE_PART, arrays))
        self.segments.restore(self.join.segments())

    def _count(self, merged: Merged) -> None:
        counts = self.counts
        counts.impressions += int(np.count_nonzero(merged.kind == IMPRESSION))
        counts.feedback += int(np.count_nonzero(merged.kind == FEEDBACK))
        counts.bad_events += len(merged.bad)
        if len(merged):
            counts.through_us = max(counts.through_us, int(merged.now_us[-1]))

    def _learn(self, joined: Joined) -> None:
        self._on_joined(joined, self.segments)
        self.online.add(joined, self.segments)
        counts = self.counts
        for examples, bad in self._examples.of(joined):
            self.model.learn(examples)
            counts.examples += int(examples.rows.size)
            counts.subsampled += examples.subsampled
            counts.bad_rows += len(bad)
            for row in bad:
                self.letters.add(JOIN, "", row.reason, row.json)
        counts.unknown_items = self._examples.unknown_items


def _named(part: str, arrays: Arrays) -> dict[str, npt.NDArray[Any]]:
    return {f"{part}{name}": array for name, array in arrays.items()}


def _part(part: str, arrays: Arrays) -> dict[str, npt.NDArray[Any]]:
    return {name.removeprefix(part): array for name, array in arrays.items() if name.startswith(part)}
