"""When the table is swept of keys that no example has had for so long: `[learner] ttl`, in rows or in the log's time.

Sweeps come at fixed row numbers, so that they fall on the same rows however the log is cut into batches. A swept key is
gone with its state; if it returns it starts afresh. What a sweep does is the table's; nothing here knows of keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from model_store.spec.spec import ModelSpec
from trainer.logs.times import MICROSECONDS, NO_TIME

SWEEP_ROWS = 4096
FOREVER = 1 << 62

_SWEEPS_PER_LIFE = 4
_MARKS_PER_LIFE = 64

Arrays = dict[str, npt.NDArray[np.int64]]


class Eviction(Protocol):
    """A policy. The model learns up to `next_row`, tells it with `pass_rows`, and then asks `due`."""

    def next_row(self, rows: int) -> int:
        """The row number, above `rows`, behind which `due` must be asked before another row is learned."""

    def pass_rows(self, times: npt.NDArray[np.int64]) -> None:
        """Tell the times of rows just learned: int64, microseconds since 1970, NO_TIME where a row has none."""

    def due(self, rows: int) -> int | None:
        """After `rows` rows: sweep the keys last seen in an example before this one (counted from 1), or None."""

    def state(self) -> Arrays:
        """What must be kept to go on."""

    def restore(self, state: Mapping[str, npt.NDArray[np.int64]]) -> None:
        """Take over a `state`."""


def eviction_of(spec: ModelSpec) -> Eviction:
    """The policy of a spec."""
    if spec.learner.ttl_rows is not None:
        return RowsToLive(spec.learner.ttl_rows)
    if spec.learner.ttl_seconds is not None:
        return TimeToLive(spec.learner.ttl_seconds * MICROSECONDS)
    return Never()


class Never:
    """Keys live for ever."""

    def next_row(self, rows: int) -> int:
        """No row that a log will reach."""
        return rows + FOREVER

    def pass_rows(self, times: npt.NDArray[np.int64]) -> None:
        """Nothing to note."""

    def due(self, rows: int) -> int | None:
        """None."""
        return None

    def state(self) -> Arrays:
        """Nothing."""
        return {}

    def restore(self, state: Mapping[str, npt.NDArray[np.int64]]) -> None:
        """Nothing to restore."""


class RowsToLive:
    """A key goes at the first sweep after `ttl` rows without it: four sweeps a life, at most one every 4,096 rows."""

    def __init__(self, ttl: int) -> None:
        self.ttl = ttl
        self._every = max(SWEEP_ROWS, ttl // _SWEEPS_PER_LIFE)

    def next_row(self, rows: int) -> int:
        """The next multiple of the sweep's interval."""
        return (rows // self._every + 1) * self._every

    def pass_rows(self, times: npt.NDArray[np.int64]) -> None:
        """Rows are counted by the model; nothing to note."""

    def due(self, rows: int) -> int | None:
        """The first example that is young enough."""
        first = rows - self.ttl + 1
        return first if rows % self._every == 0 and first > 1 else None

    def state(self) -> Arrays:
        """Nothing: the row number says all."""
        return {}

    def restore(self, state: Mapping[str, npt.NDArray[np.int64]]) -> None:
        """Nothing to restore."""


class TimeToLive:
    """A key goes at the first sweep after `ttl` microseconds of the log's time without it.

    The log's time is looked at every 4,096 rows. It is the median of those rows' times, or what it was before if that
    is later: neither rows that come late nor a few with a wrong date move it. It is noted beside the row number 64
    times a life, so that a sweep can tell which examples are too old: a key goes up to 1/64 life late, never early.
    """

    def __init__(self, ttl: int) -> None:
        self.ttl = ttl
        self._now = self._swept = NO_TIME
        self._window = np.empty(SWEEP_ROWS, np.int64)
        self._passed = 0
        self._marks: list[tuple[int, int]] = []  # (row, time), both ascending

    def next_row(self, rows: int) -> int:
        """The next multiple of 4,096."""
        return (rows // SWEEP_ROWS + 1) * SWEEP_ROWS

    def pass_rows(self, times: npt.NDArray[np.int64]) -> None:
        """Keep the times until the next mark."""
        self._window[self._passed : self._passed + times.size] = times
        self._passed += int(times.size)

    def due(self, rows: int) -> int | None:
        """Move the log's time on; every quarter of a life, the row after the last mark that is a life ago."""
        if rows % SWEEP_ROWS:
            return None
        known = self._window[: self._passed]
        known = known[known != NO_TIME]
        self._passed = 0
        if known.size:
            self._advance(rows, max(self._now, int(np.sort(known)[known.size // 2])))
        if not self._marks or self._now - self._swept < self.ttl // _SWEEPS_PER_LIFE:
            return None
        self._swept = self._now
        return self._too_old()

    def _advance(self, rows: int, now: int) -> None:
        if self._now == NO_TIME:
            self._swept = now
        self._now = now
        if not self._marks or now - self._marks[-1][1] >= self.ttl // _MARKS_PER_LIFE:
            self._marks.append((rows, now))

    def _too_old(self) -> int | None:
        old = [row for row, time in self._marks if time <= self._now - self.ttl]
        self._marks = self._marks[len(old) :]
        return old[-1] + 1 if old else None

    def state(self) -> Arrays:
        """The clock, the marks and the times since the last of them."""
        return {
            "clock": np.array([self._now, self._swept], np.int64),
            "marks": np.array(self._marks, np.int64).reshape(-1, 2),
            "window": self._window[: self._passed].copy(),
        }

    def restore(self, state: Mapping[str, npt.NDArray[np.int64]]) -> None:
        """Go on as the policy that gave `state`."""
        self._now, self._swept = (int(time) for time in state["clock"])
        self._marks = [(int(row), int(time)) for row, time in state["marks"]]
        self._passed = int(state["window"].size)
        self._window[: self._passed] = state["window"]
