"""When the table is swept of keys that no example touched for a while: `[learner] ttl`, in rows or in the log's time.

Sweeps are due at fixed row numbers, so that batch boundaries do not change them. A swept key loses its state; if it
returns, it starts from zero. `ValueTable.evict` does the sweep.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from model_store.spec.spec import ModelSpec
from trainer.formats.times import MICROSECONDS, NO_TIME

SWEEP_ROWS = 4096
FOREVER = 1 << 62

_SWEEPS_PER_TTL = 4
_RECORDS_PER_TTL = 64

Arrays = dict[str, npt.NDArray[np.int64]]


class Eviction:
    """A policy; this one keeps keys forever. The model learns up to `next_row`, then calls `add_times` and `due`."""

    def next_row(self, rows: int) -> int:
        """The row number, above `rows`, after which `due` must be called before another row is learned."""
        return rows + FOREVER

    def add_times(self, times: npt.NDArray[np.int64]) -> None:
        """Add the times of rows just learned: int64, microseconds since 1970, NO_TIME where a row has none."""

    def due(self, rows: int) -> int | None:
        """After `rows` rows: the example (from 1) such that keys last seen before it are to be swept, or None."""
        return None

    def state(self) -> Arrays:
        """Everything that later rows depend on, beside the row number."""
        return {}

    def restore(self, state: Mapping[str, npt.NDArray[np.int64]]) -> None:
        """Restore a `state`."""


def eviction_of(spec: ModelSpec) -> Eviction:
    """The policy of a spec."""
    if spec.learner.ttl_rows is not None:
        return RowsToLive(spec.learner.ttl_rows)
    if spec.learner.ttl_seconds is not None:
        return TimeToLive(spec.learner.ttl_seconds * MICROSECONDS)
    return Eviction()


class RowsToLive(Eviction):
    """A key is swept at the first sweep after `ttl` rows without it: four sweeps per ttl, 4,096 rows apart or more."""

    def __init__(self, ttl: int) -> None:
        self.ttl = ttl
        self._every = max(SWEEP_ROWS, ttl // _SWEEPS_PER_TTL)

    def next_row(self, rows: int) -> int:
        """The next multiple of the sweep's interval."""
        return (rows // self._every + 1) * self._every

    def due(self, rows: int) -> int | None:
        """The first example within `ttl` rows."""
        first = rows - self.ttl + 1
        return first if rows % self._every == 0 and first > 1 else None


class TimeToLive(Eviction):
    """A key is swept at the first sweep after `ttl` microseconds of the log's time without it.

    The log's time is computed every 4,096 rows: the median of those rows' times, or the previous value if that is
    later. So late rows and a few wrong dates do not move it. It is recorded with the row number 64 times per ttl, so
    that a sweep knows which examples are too old: a key is swept up to ttl / 64 late, never early.
    """

    def __init__(self, ttl: int) -> None:
        self.ttl = ttl
        self._now = self._swept = NO_TIME
        self._window = np.empty(SWEEP_ROWS, np.int64)
        self._collected = 0
        self._times: list[tuple[int, int]] = []  # (row, time), both ascending

    def next_row(self, rows: int) -> int:
        """The next multiple of 4,096."""
        return (rows // SWEEP_ROWS + 1) * SWEEP_ROWS

    def add_times(self, times: npt.NDArray[np.int64]) -> None:
        """Collect the times until the next multiple of 4,096 rows."""
        self._window[self._collected : self._collected + times.size] = times
        self._collected += int(times.size)

    def due(self, rows: int) -> int | None:
        """Update the log's time; every quarter of ttl, return the row after the last one recorded a ttl ago."""
        if rows % SWEEP_ROWS:
            return None
        known = self._window[: self._collected]
        known = known[known != NO_TIME]
        self._collected = 0
        if known.size:
            self._advance(rows, max(self._now, int(np.sort(known)[known.size // 2])))
        if not self._times or self._now - self._swept < self.ttl // _SWEEPS_PER_TTL:
            return None
        self._swept = self._now
        old = [row for row, time in self._times if time <= self._now - self.ttl]
        self._times = self._times[len(old) :]
        return old[-1] + 1 if old else None

    def _advance(self, rows: int, now: int) -> None:
        if self._now == NO_TIME:
            self._swept = now
        self._now = now
        if not self._times or now - self._times[-1][1] >= self.ttl // _RECORDS_PER_TTL:
            self._times.append((rows, now))

    def state(self) -> Arrays:
        """The clock, the recorded rows with their times, and the times collected since."""
        return {
            "clock": np.array([self._now, self._swept], np.int64),
            "marks": np.array(self._times, np.int64).reshape(-1, 2),
            "window": self._window[: self._collected].copy(),
        }

    def restore(self, state: Mapping[str, npt.NDArray[np.int64]]) -> None:
        """Restore a `state`."""
        self._now, self._swept = (int(time) for time in state["clock"])
        self._times = [(int(row), int(time)) for row, time in state["marks"]]
        self._collected = int(state["window"].size)
        self._window[: self._collected] = state["window"]
