"""The online metrics of one model in memory: the sums of every minute and variant that the store has, for quick charts.

`Minutes.follow` reads what is new from the store: the last day at first, then older minutes step by step, then only
minutes that can still change, which follow from the latest that has outcomes. Every question after that is answered
from one array, without the store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from model_store.versions.online_metrics import KEPT_S, SUMS, Cell, OnlineMetrics, OnlineSums

KEPT = KEPT_S // 60
"""Minutes kept: as many as the store keeps."""
FIRST, STEP = 1_440, 4_000
"""Minutes read by the first `follow`, and older ones by each later one until all are there."""
CHANGING, JUST_NOW = 125, 4
"""The trainer may change so many minutes before the latest that it has written; most changes are in the very latest."""
ALL_EVERY_S = 30.0
NO_VERSION = 0

Int64s = npt.NDArray[np.int64]


class Minutes:
    """Sums by minute and variant. `follow` is for one thread, questions for any.

    Memory: 104 bytes a minute and variant.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._minute_at = np.full(KEPT, -1, np.int64)
        self._sums: dict[str, Int64s] = {}
        self._versions: dict[str, tuple[int, int]] = {}
        self._oldest: int | None = None
        self._read_all_at = 0.0

    @property
    def is_complete(self) -> bool:
        """Whether every minute that the store may have was read."""
        return self._oldest is not None and self._oldest <= _now() - KEPT

    def follow(self, online: OnlineMetrics) -> None:
        """Read what may be new. Raises StoreUnavailable; then nothing was forgotten."""
        now, due = _now(), time.monotonic() - self._read_all_at > ALL_EVERY_S
        may_change = min(int(self._minute_at.max()), now) - CHANGING
        # Of nothing, or nothing of a day, all is read again: a long join window, or a trainer that is behind, fills
        # minutes that are long past.
        if self._oldest is None or (due and self.is_complete and may_change < now - FIRST):
            self._read(online, now - FIRST, now + 1)
            self._oldest, self._read_all_at = now - FIRST, time.monotonic()
            return
        if due:
            self._read(online, max(may_change, now - FIRST), now + 1)
            self._read_all_at = time.monotonic()
        else:
            self._read(online, now - JUST_NOW, now + 1)
        if not self.is_complete:
            begin = max(now - KEPT, self._oldest - STEP)
            self._read(online, begin, self._oldest)
            self._oldest = begin

    def total(self, begin: int, stop: int) -> list[tuple[Cell, OnlineSums]]:
        """The sums of the minutes from `begin` to before `stop`: one cell a variant, under its latest version."""
        with self._lock:
            rows = self._rows(begin, stop)
            return [
                ((stop - 1, self._versions[name][1], name), OnlineSums(*sums[rows].sum(0).tolist()))
                for name, sums in self._sums.items()
                if sums[rows, 0].any()
            ]

    def groups(self, begin: int, stop: int, minutes: int) -> Iterator[tuple[int, str, OnlineSums]]:
        """First minute, variant and sums of every group of `minutes` that has requests, in order of time."""
        with self._lock:
            rows = self._rows(begin, stop)
            group = (self._minute_at[rows] - begin) // minutes
            found = []
            for name, sums in self._sums.items():
                added = np.zeros((-(-(stop - begin) // minutes), len(SUMS)), np.int64)
                np.add.at(added, group, sums[rows])
                found += [
                    (begin + int(at) * minutes, name, OnlineSums(*added[at].tolist()))
                    for at in np.flatnonzero(added[:, 0])
                ]
        yield from sorted(found, key=lambda each: each[:2])

    def first(self, begin: int, stop: int) -> int | None:
        """The first minute of this time that has requests, or None."""
        with self._lock:
            rows = self._rows(begin, stop)
            counted = [self._minute_at[rows[sums[rows, 0] > 0]] for sums in self._sums.values()]
            return min((int(each.min()) for each in counted if each.size), default=None)

    def _rows(self, begin: int, stop: int) -> Int64s:
        rows: Int64s = np.flatnonzero((self._minute_at >= begin) & (self._minute_at < stop))
        return rows

    def _read(self, online: OnlineMetrics, begin: int, stop: int) -> None:
        by_minute: dict[int, dict[str, Int64s]] = {}
        latest: dict[str, tuple[int, int]] = {}
        for (minute, version, variant), numbers in online.read_numbers(range(begin, stop)):
            added = np.array(numbers, np.int64)
            variants = by_minute.setdefault(minute, {})
            variants[variant] = variants[variant] + added if variant in variants else added
            latest[variant] = max(latest.get(variant, (0, NO_VERSION)), (minute, version))
        with self._lock:
            self._take(by_minute, range(begin, stop))
            for variant, seen in latest.items():
                self._versions[variant] = max(self._versions.get(variant, (0, NO_VERSION)), seen)

    def _take(self, by_minute: dict[int, dict[str, Int64s]], minutes: Sequence[int]) -> None:
        for variants in by_minute.values():
            for variant in variants:
                if variant not in self._sums:
                    self._sums[variant] = np.zeros((KEPT, len(SUMS)), np.int64)
        for minute in minutes:
            found, row = by_minute.get(minute), minute % KEPT
            if self._minute_at[row] > minute or (found is None and self._minute_at[row] < 0):
                continue  # the place has a later minute, or nothing
            self._minute_at[row] = minute if found is not None else -1
            for variant, sums in self._sums.items():
                sums[row] = 0 if found is None else found.get(variant, 0)


def _now() -> int:
    return int(time.time()) // 60
