"""The online metrics of one model in memory, for quick charts: hours, and the minutes of the last day.

`Minutes.follow` reads all that the store has at first, then what can still change, which follows from the latest minute
that has outcomes. Every question after that is answered without the store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from model_store.versions.online_metrics import (
    BY_MINUTE,
    HOUR,
    KEPT_S,
    MINUTES_KEPT_S,
    OnlineCell,
    OnlineMetrics,
    Slot,
    divided,
)

CHANGING, JUST_NOW = 125, 4
"""The trainer may change the last 125 minutes that it has written; most changes are in the last four."""
ALL_EVERY_S = 30.0


class Minutes:
    """Outcomes by time and variant. `follow` is for one thread, questions for any.

    Memory: 4 kB a minute or hour, and variant.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cells: dict[Slot, OnlineCell] = {}
        self._divided_at = 0
        self._read_all_at = 0.0

    def follow(self, online: OnlineMetrics) -> None:
        """Read what may be new. Raises StoreUnavailable; then nothing was forgotten."""
        now, divided_at = _now(), self._divided_at
        begin = now - JUST_NOW
        if time.monotonic() - self._read_all_at > ALL_EVERY_S:
            latest = max((slot.minute for slot in self._cells if slot.minutes == 1), default=0)
            # Without outcomes in the last day the whole day is read again: a long join window, or a trainer that is
            # behind, fills minutes that are long past.
            begin = max(latest, now - BY_MINUTE) - CHANGING
            if now // HOUR != divided_at // HOUR:  # another hour takes the place of its minutes
                begin, divided_at = now - (MINUTES_KEPT_S if divided_at else KEPT_S) // 60, now
            self._read_all_at = time.monotonic()
        # Without the lock: viewers wait for memory, never for the store.
        found = dict(online.read(begin, now + 1, divided_at))
        with self._lock:
            hours, minutes = divided(begin, now + 1, divided_at)
            oldest = divided_at - BY_MINUTE - HOUR
            kept = {
                slot: cell
                for slot, cell in self._cells.items()
                if slot.minute not in (hours if slot.minutes == HOUR else minutes)
                and slot.minute >= (now - KEPT_S // 60 if slot.minutes == HOUR else oldest)
            }
            self._cells, self._divided_at = dict(sorted((kept | found).items())), divided_at

    def cells(self, begin: int, stop: int) -> list[tuple[Slot, OnlineCell]]:
        """Those of the minutes from `begin` to before `stop`, in order of time, as `OnlineMetrics.read`."""
        with self._lock:
            hours, minutes = divided(begin, stop, self._divided_at)
            return [
                (slot, cell)
                for slot, cell in self._cells.items()
                if slot.minute in (hours if slot.minutes == HOUR else minutes)
            ]

    def groups(self, begin: int, stop: int, minutes: int) -> Iterator[tuple[int, str, OnlineCell]]:
        """First minute, variant and outcomes of every group of `minutes` that has requests, in order of time."""
        found: dict[tuple[int, str], OnlineCell] = {}
        for slot, cell in self.cells(begin, stop):
            key = begin + (slot.minute - begin) // minutes * minutes, slot.variant
            found[key] = found[key] + cell if key in found else cell
        for (minute, variant), cell in sorted(found.items()):
            yield minute, variant, cell


def _now() -> int:
    return int(time.time()) // 60
