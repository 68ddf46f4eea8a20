"""The learning loops of a trainer: each step takes what comes next, makes examples of it and learns from them.

`EventLoop` joins impressions with feedback (`ftrie trainer`, `ftrie replay`); `RowLoop` reads labelled rows of growing
files. What a loop has learned after some events depends on these events alone: not on how they were divided into steps,
nor on restarts from a checkpoint between them. Neither reads the store or a clock.

A checkpoint holds the arrays of model, join and online metrics and, as JSON, the offsets in the sources, the counts and
the waiting dead letters, all of the same moment. Rows waiting for their clicks are in segment files, which are on disk
before a checkpoint names them.
"""

from __future__ import annotations

import threading
from base64 import b64decode, b64encode
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.errors import CheckpointError, InputError, OutputError
from model_store.forget import ToForget
from model_store.spec.spec import ModelSpec
from model_store.streams.event_streams import JSON_BYTES, DeadLetters, Letter
from trainer.checkpoint import Checkpoint, Checkpoints
from trainer.checkpoint.folder import KEPT
from trainer.events.events import FEEDBACK, IMPRESSION, VIEW, Lag, Merged, SourcePosition, UInt64s
from trainer.events.histories import Histories
from trainer.events.join import EventCounts, Join, Joined
from trainer.events.waiting_rows import Segments
from trainer.examples.derived import DerivedColumns, RowHistories
from trainer.examples.joined import JOIN, EventRows, JoinedExamples
from trainer.learn.model import LearningModel
from trainer.learn.table import part_of
from trainer.publish.online_metrics import OnlineAccumulator
from trainer.runs.loop import Arrays, LearningLoop, layout_error
from trainer.sources.files import RowSource
from trainer.sources.merge import Merger
from trainer.sources.open_sources import known_as

JOIN_PART, ONLINE_PART, HISTORY_PART = "join.", "online.", "history."
"""Prefixes of the names of a checkpoint's arrays."""
LOOK_EVERY_S = 0.05
MOST_WAITING = 1_000
LETTERS_A_WRITE = 500
MOST_CATEGORIES = 10
"""Categories of dead letters that are reported: a source of garbage may have any number."""


class SavedRun:
    """What an earlier run has saved; empty for a first run.

    counts: of the events so far; names: of the sources; positions: where each is to be read from next; round:
    `StreamLoop.round` of a partition, None for a first run; dead_letters: `DeadLetterOutbox.state`, likewise;
    forgotten: `StreamLoop.forgotten`.
    """

    def __init__(self, earlier: Checkpoint | None = None, sources: Sequence[str] = ()) -> None:
        """sources: their names as given.

        Raises CheckpointError for one of `ftrie train` or of another layout, InputError for other sources.
        """
        self.checkpoint = earlier
        self.names = [known_as(name) for name in sources]
        saved: Mapping[str, Any] = {"sources": self.names}
        if earlier is not None:
            if earlier.description.stream is None:
                raise CheckpointError(
                    f"{earlier.path} is of a run of `ftrie train`; give --checkpoint another folder"
                )
            saved = earlier.description.stream
        try:
            self.counts = EventCounts(**saved.get("counts", {}))
            before = list(saved["sources"])
        except (KeyError, TypeError) as error:
            assert earlier is not None
            raise layout_error(earlier, error) from error
        if earlier is not None and self.names != before:
            raise InputError(
                f"{earlier.path} was made with --from {' --from '.join(before)}, got "
                f"{' --from '.join(self.names)}; give the same, or start again with another --checkpoint"
            )
        self.positions: list[SourcePosition] = list(saved.get("places", ()))
        self.round: Mapping[str, int] | None = saved.get("round")
        self.dead_letters: Mapping[str, Any] | None = saved.get("letters")
        self.forgotten = str(saved.get("forgotten", ""))


class StreamLoop(LearningLoop):
    """A loop that learns in steps. The methods that do nothing here are those of labelled rows, of which none waits.

    histories: of users, None if no field is of one. forgotten: the last one forgotten, by its entry in the store.
    """

    histories: Histories | None = None
    writes_online = True
    """Whether its online metrics are those of the whole model."""

    def __init__(
        self,
        model: LearningModel,
        dead_letters: DeadLetterOutbox,
        saved: SavedRun | None = None,
        *,
        spec: ModelSpec | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        """spec: as given, if it is not the model's."""
        self._saved = saved or SavedRun()
        before = self._saved.checkpoint.description if self._saved.checkpoint is not None else None
        super().__init__(
            model, spec or model.spec, checkpoints, before.seconds if before is not None else 0.0
        )
        self.dead_letters, self.counts = dead_letters, self._saved.counts
        self.online = OnlineAccumulator()
        self.forgotten = self._saved.forgotten

    def forget(self, persons: Sequence[ToForget]) -> list[bytes]:
        """Forget users and their requests; returns the cookies of those that had a history. Raises OutputError."""
        cookies = np.array([each.cookie for each in persons], np.uint64)
        requests = np.array([request for each in persons for request in each.requests], np.uint64)
        gone = self._forget(cookies, requests)
        self.forgotten = persons[-1].id
        return gone

    def _forget(self, cookies: UInt64s, requests: UInt64s) -> list[bytes]:
        return []

    def keep_no_older(self) -> None:
        """Delete the checkpoints before the last one, and what only they name."""
        if self.checkpoints is not None:
            self.checkpoints.keep_newest()

    def step(self, wait_s: float = 0.0) -> bool:
        """Learn from what comes next; False if nothing does within `wait_s` seconds. Raises what sources raise."""
        raise NotImplementedError

    def begin(self) -> None:
        """Of a first run: what others need before they can start. Raises StoreError."""

    def finish(self) -> None:
        """There will be no more events."""

    @property
    def ended(self) -> bool:
        """True once every source has ended and all its events are taken."""
        raise NotImplementedError

    @property
    def round(self) -> dict[str, int]:
        """The round that begins here, for the checkpoint; empty unless the loop is one of several partitions'."""
        return {}

    def positions(self) -> list[SourcePosition]:
        """Where each source is to be read from next."""
        raise NotImplementedError

    def lags(self) -> list[Lag]:
        """How far behind each source is read."""
        raise NotImplementedError

    def joined(self) -> dict[str, int]:
        """The join's counts; empty if nothing is joined."""
        return {}

    def problem(self) -> str:
        """What it waits for, other than events; empty if for nothing."""
        return ""

    def of_partition(self) -> dict[str, Any]:
        """The members of the status that only a partition has."""
        return {}

    def _described(self) -> dict[str, Any]:
        counts = self.counts
        return {
            "columns": (),
            "read": (),
            "rows_read": counts.examples + counts.bad_rows + counts.subsampled,
            "subsampled": counts.subsampled,
            "reject_counts": dict(self.dead_letters.reasons),
            "stream": {
                "sources": self._saved.names,
                "places": list(self.positions()),
                # Without views as checkpoints were before there were any.
                "counts": {name: n for name, n in asdict(counts).items() if name != "views" or n},
                "letters": self.dead_letters.state(),
                "join": self.joined(),
                **({"round": self.round} if self.round else {}),
                **({"forgotten": self.forgotten} if self.forgotten else {}),
            },
        }


class EventLoop(StreamLoop):
    """Learns from impressions and feedback.

    `on_joined` is called with the output of the join before it is learned from.
    """

    def __init__(
        self,
        merger: Merger,
        join: Join,
        segments: Segments,
        model: LearningModel,
        dead_letters: DeadLetterOutbox,
        saved: SavedRun | None = None,
        on_joined: Callable[[Joined, Segments], None] = lambda joined, segments: None,
        warn: Callable[[str], None] = lambda text: None,
        **more: Any,
    ) -> None:
        """segments: those that the merger adds rows to; more: see StreamLoop."""
        super().__init__(model, dead_letters, saved, **more)
        self._warn, self._failing_on_disk = warn, set[str]()
        before = self._saved.checkpoint
        self._saved_rows = before.description.rows if before is not None else -1
        self.merger, self.join, self.segments = merger, join, segments
        if model.spec.join.late == "weigh":
            model.correct_fake_negatives()
        own = model.spec.model.name if model.spec.input.rows == "clicked" else None
        self.online = OnlineAccumulator(tuple(model.spec.variants), model.spec.input.examination, own)
        self._events = EventRows(merger, join, segments, model.spec)
        self.histories = self._events.histories.users if self._events.histories is not None else None
        self._on_joined = on_joined
        joined_rows = self.counts.examples + self.counts.bad_rows + self.counts.subsampled
        self._examples = JoinedExamples(model.maker, segments, joined_rows, self.counts.unknown_items)

    def step(self, wait_s: float = 0.0) -> bool:
        """Learn from the next events, and keep the memory of rows that wait within its bound."""
        found = self._events.step(wait_s)
        if found is None:
            return False
        merged, joined = found
        self._count(merged)
        for bad in merged.bad:
            self.dead_letters.add(bad.source, bad.where, bad.reason, bad.line)
        self._learn(joined)
        self._on_disk(
            lambda: self.segments.free_memory(self.join.segments),
            "rows waiting for their clicks stay in memory",
        )
        return True

    def finish(self) -> None:
        """Close every window, and learn from the requests in it."""
        self._learn(self.join.finish())

    @property
    def ended(self) -> bool:
        """True once every source has ended and all its events are taken."""
        return self.merger.ended

    def positions(self) -> list[SourcePosition]:
        """Where each source is to be read from next."""
        return self.merger.positions()

    def lags(self) -> list[Lag]:
        """How far behind each source is read."""
        return self.merger.lags()

    def joined(self) -> dict[str, int]:
        """The join's counts."""
        return dict(vars(self.join.counts))

    def save(self) -> bool:
        """Write the rows waiting for their clicks, then a checkpoint, which names them. A failure is reported."""
        rows, segments = self.model.rows, self.segments
        if self.checkpoints is None or not self.resumable:
            return False

        def write() -> None:
            segments.keep(self.join.segments())
            segments.flush()

        if not self._on_disk(write, "no checkpoint is written"):
            self.checkpoints.skip(rows)
            return False
        is_written = super().save()
        if is_written and rows > self._saved_rows:
            # A checkpoint of as many rows as the last one replaces it, and drops none of those before.
            self._saved_rows = rows
            segments.committed()  # deletes files that no checkpoint names any more
        return is_written

    def _forget(self, cookies: UInt64s, requests: UInt64s) -> list[bytes]:
        return self._events.forget(cookies, requests)

    def keep_no_older(self) -> None:
        """Delete the checkpoints before the last one, and the rows that only they name."""
        super().keep_no_older()
        for _ in range(KEPT):
            self.segments.committed()

    def _on_disk(self, work: Callable[[], None], consequence: str) -> bool:
        """Whether the work succeeded; a full disk does not stop learning, and is reported once."""
        try:
            work()
        except OutputError as error:
            if consequence not in self._failing_on_disk:
                self._warn(f"{error}; {consequence}, and learning continues")
            self._failing_on_disk.add(consequence)
            return False
        self._failing_on_disk.discard(consequence)
        return True

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays of the model, of the join and of the online metrics."""
        return (
            self.model.state()
            | _prefixed(JOIN_PART, self.join.state())
            | _prefixed(ONLINE_PART, self.online.state())
            | _prefixed(HISTORY_PART, self._events.history_state())
        )

    def restore(self, arrays: Arrays) -> None:
        """Restore `state`."""
        self.model.restore(arrays)
        self.join.restore(part_of(arrays, JOIN_PART))
        self.online.restore(part_of(arrays, ONLINE_PART))
        self._events.restore_history(part_of(arrays, HISTORY_PART))
        self.segments.restore(self.join.segments())

    def _count(self, merged: Merged) -> None:
        counts = self.counts
        counts.impressions += int(np.count_nonzero(merged.kind == IMPRESSION))
        counts.feedback += int(np.count_nonzero(merged.kind == FEEDBACK))
        counts.views += int(np.count_nonzero(merged.kind == VIEW))
        counts.bad_events += len(merged.bad)
        if merged.back_to_us is not None:
            counts.through_us = min(counts.through_us, merged.back_to_us)
        if len(merged):
            counts.through_us = max(counts.through_us, int(merged.now_us[-1]))

    def _learn(self, joined: Joined) -> None:
        self._on_joined(joined, self.segments)
        if self.model.spec.join.positive != "view":  # a view is no answer of a server
            self.online.add(joined, self.segments)
        counts = self.counts
        for examples, bad in self._examples.of(joined):
            self.model.learn(examples)
            counts.examples += int(examples.rows.size)
            counts.subsampled += examples.counts.subsampled
            counts.bad_rows += len(bad)
            for row in bad:
                self.dead_letters.add(JOIN, "", row.reason, row.json)
        counts.unknown_items = self._examples.unknown_items


class RowLoop(StreamLoop):
    """Learns from labelled rows in the order of their files.

    Its bad rows include lines that could not be parsed, such as one with too few columns.
    """

    def __init__(
        self,
        source: RowSource,
        model: LearningModel,
        dead_letters: DeadLetterOutbox,
        saved: SavedRun,
        **more: Any,
    ) -> None:
        """more: see StreamLoop."""
        super().__init__(model, dead_letters, saved, **more)
        self._source = source
        self._position = saved.positions[0] if saved.positions else source.start
        self._wanted = model.spec.wanted_columns()
        self._derived = DerivedColumns(model.spec)
        self._histories = RowHistories.of(model.spec)
        self.histories = self._histories.users if self._histories is not None else None
        self._pause = threading.Event()

    def step(self, wait_s: float = 0.0) -> bool:
        """Learn from the next rows."""
        rows = self._source.read(self._wanted)
        if rows is None and wait_s and not self.ended:
            self._pause.wait(min(wait_s, LOOK_EVERY_S))
            rows = self._source.read(self._wanted)
        if rows is None:
            return False
        counts = self.counts
        batch = rows.batch if self._histories is None else self._histories.fill(rows.batch)
        (batch,) = self._derived.filled([batch])
        examples = self.model.maker.make(replace(batch, first_row=counts.examples + counts.bad_rows))
        self.model.learn(examples)
        counts.examples += int(np.size(examples.rows))
        counts.minus_labels += examples.counts.minus_labels
        counts.bad_rows += len(examples.rejects)
        counts.rows += batch.rows + len(batch.rejects)
        for reject in examples.rejects:
            self.dead_letters.add(self._source.name, f"{reject.file}:{reject.line}", reject.reason, b"")
        self._position = rows.after
        return True

    def _forget(self, cookies: UInt64s, requests: UInt64s) -> list[bytes]:
        return self._histories.forget(cookies) if self._histories is not None else []

    @property
    def ended(self) -> bool:
        """With `once`: True when everything is read."""
        return self._source.ended

    def positions(self) -> list[SourcePosition]:
        """Where the source is to be read from next."""
        return [self._position]

    def lags(self) -> list[Lag]:
        """How far behind the source is read."""
        return [self._source.lag()]

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays of the model, and of histories."""
        histories = self._histories.state() if self._histories is not None else {}
        return self.model.state() | _prefixed(HISTORY_PART, histories)

    def restore(self, arrays: Arrays) -> None:
        """Restore `state`."""
        self.model.restore(arrays)
        if self._histories is not None:
            self._histories.restore(part_of(arrays, HISTORY_PART))


def _prefixed(prefix: str, arrays: Arrays) -> dict[str, npt.NDArray[Any]]:
    return {f"{prefix}{name}": array for name, array in arrays.items()}


class DeadLetterOutbox:
    """Events and rows that could not be learned from, numbered in the order of the events. For one thread.

    The numbers are part of the trainer's checkpoint, so after a crash the same letters get the same numbers again; the
    stream accepts each number once and so holds no letter twice. While the store is unavailable letters wait here.
    count: all letters so far. reasons: their number by category, the reason up to its colon. lost: letters dropped
    because too many were waiting for the store; they are counted like the others.
    """

    def __init__(
        self,
        stream: DeadLetters | None,
        state: Mapping[str, Any] | None = None,
        on_first: Callable[[str], None] = lambda text: None,
        *,
        relays: bool = False,
    ) -> None:
        """Without a stream letters are only counted, or with `relays` kept for `take`.

        state: of `state`, or None to number after the stream's letters. `on_first` gets the first letter of each of the
        first ten categories. Raises StoreUnavailable.
        """
        self._stream = stream
        self._relays = relays
        self._on_first = on_first
        new = {"before": stream.last() if stream is not None else 0}
        kept: Mapping[str, Any] = state if state is not None else new
        self._before = int(kept.get("before", 0))
        self.count = int(kept.get("count", 0))
        self.lost = int(kept.get("lost", 0))
        self._forwarded = int(kept.get("forwarded", 0))
        self.reasons: Counter[str] = Counter(kept.get("reasons", {}))
        self._waiting: deque[tuple[int, Letter]] = deque(
            (number, Letter(source, place, reason, b64decode(json)))
            for number, source, place, reason, json in kept.get("waiting", ())
        )

    def add(self, source: str, place: str, reason: str, json: bytes) -> None:
        """Number a letter and keep it for `send`."""
        self.count += 1
        category = reason.partition(":")[0]
        if category not in self.reasons and len(self.reasons) < MOST_CATEGORIES:
            self._on_first(f"{source}: not learned from: {reason}; others like it are only counted")
        self.reasons[category] += 1
        if self._stream is not None or self._relays:
            self._keep(Letter(source, place, reason, json[:JSON_BYTES]))  # a line may have 16 MiB

    def take(self) -> list[Any]:
        """The letters kept since the last call, as JSON, for another partition's `forward`."""
        waiting: list[Any] = self.state()["waiting"]
        self._waiting.clear()
        return waiting

    def forward(self, letters: Sequence[Any]) -> None:
        """Number and keep letters that another partition has taken, and counted."""
        for _, source, place, reason, json in letters:
            self._forwarded += 1
            self._keep(Letter(source, place, reason, b64decode(json)))

    def send(self) -> None:
        """Write the waiting letters to the stream. Raises StoreError; letters that were not accepted keep waiting."""
        while self._waiting and self._stream is not None:
            some = [self._waiting[index] for index in range(min(LETTERS_A_WRITE, len(self._waiting)))]
            self._stream.add(some[0][0], [letter for _, letter in some])
            for _ in some:
                self._waiting.popleft()

    def state(self) -> dict[str, Any]:
        """For the checkpoint, as JSON: the counts, and the waiting letters."""
        waiting = [
            [number, letter.source, letter.place, letter.reason, b64encode(letter.json).decode()]
            for number, letter in self._waiting
        ]
        return {
            "before": self._before,
            "count": self.count,
            "lost": self.lost,
            "forwarded": self._forwarded,
            "reasons": dict(self.reasons),
            "waiting": waiting,
        }

    def _keep(self, letter: Letter) -> None:
        if len(self._waiting) >= MOST_WAITING:
            self._waiting.popleft()
            self.lost += 1
        self._waiting.append((self._before + self.count + self._forwarded, letter))
