"""Outcomes of the answers served, summed per minute, version and variant.

The trainer writes absolute sums, so that writing again after a crash counts nothing twice; reports read and add them.
All sums are integers, hence exact and independent of the order of summation. docs/redis_keys.md describes the record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from operator import add, attrgetter
from typing import Any

from redis.exceptions import RedisError

from model_store.errors import UnreadableValue
from model_store.redis.connection import StoreConnection
from model_store.redis.redis_keys import ModelKeys
from model_store.redis.stored_values import Report, online_cell, silent

KEPT_S = 31 * 86_400
CTR_UNIT = 1e-9
SQUARE_UNIT = 1e-6
_MINUTES_A_TRIP = 1_000


@dataclass(frozen=True)
class OnlineSums:
    """Sums over requests whose feedback window has closed. A request showed s items, of which y were clicked.

    requests: their number; shown: sum of s; clicks: sum of y; conversions: items converted. ctr_nano: sum of c, the
    request's predicted clicks, in CTR_UNIT. shown_squared, clicks_squared, shown_clicks: sums of s², y², s·y.
    ctr_squared, ctr_clicks: sums of c², c·p, in SQUARE_UNIT. without_ctr: requests with an item without
    ctr; c is 0. positives, positives_squared: sums of p, p², where p items had the outcome that c predicts: y, or with
    `join.positive = "conversion"` the items converted.
    """

    requests: int = 0
    shown: int = 0
    clicks: int = 0
    conversions: int = 0
    ctr_nano: int = 0
    shown_squared: int = 0
    clicks_squared: int = 0
    shown_clicks: int = 0
    ctr_squared: int = 0
    ctr_clicks: int = 0
    without_ctr: int = 0
    positives: int = 0
    positives_squared: int = 0

    def __add__(self, other: OnlineSums) -> OnlineSums:
        return OnlineSums(*map(add, _numbers(self), _numbers(other)))

    def numbers(self) -> tuple[int, ...]:
        """In the order of SUMS."""
        return _numbers(self)


SUMS = tuple(each.name for each in fields(OnlineSums))
_numbers: Callable[[OnlineSums], tuple[int, ...]] = attrgetter(*SUMS)
Cell = tuple[int, int, str]
"""Minute since 1970; version, 0 if the event has none; variant, empty if the event has none."""


class OnlineMetrics:
    """The online metrics of one model. Every method raises StoreUnavailable if the store does not answer."""

    def __init__(self, connection: StoreConnection, keys: ModelKeys, on_junk: Report = silent) -> None:
        """on_junk is called with a message for each value that cannot be read and is left out."""
        self._on_junk = on_junk
        self._store = connection
        self._client = connection.at(keys.versions)
        self._keys = keys

    def write(self, cells: Mapping[Cell, OnlineSums], *, whole: bool = False) -> None:
        """Replace these cells; whole: replace their minutes entirely, in one transaction. One round trip, O(cells)."""
        if not cells:
            return
        by_minute: dict[int, dict[str, str]] = {}
        for cell, sums in cells.items():
            by_minute.setdefault(cell[0], {})[_field(cell)] = json.dumps(asdict(sums), separators=(",", ":"))
        with self._store.answers(), self._client.pipeline(transaction=whole) as pipe:
            for minute, found in by_minute.items():
                if whole:
                    pipe.delete(self._keys.online(minute))
                pipe.hset(self._keys.online(minute), mapping=found)
                pipe.expire(self._keys.online(minute), KEPT_S)
            pipe.execute()

    def read(self, minutes: Sequence[int]) -> Iterator[tuple[Cell, OnlineSums]]:
        """All cells of these minutes, in order. A field that cannot be read is left out and reported."""
        return ((cell, OnlineSums(*numbers)) for cell, numbers in self.read_numbers(minutes))

    def read_numbers(self, minutes: Sequence[int]) -> Iterator[tuple[Cell, tuple[int, ...]]]:
        """Same as `read`, for many minutes: the sums as plain numbers in the order of SUMS."""
        for begin in range(0, len(minutes), _MINUTES_A_TRIP):
            few = minutes[begin : begin + _MINUTES_A_TRIP]
            with self._store.answers(), self._client.pipeline(transaction=False) as pipe:
                for minute in few:
                    pipe.hgetall(self._keys.online(minute))
                answers = pipe.execute(raise_on_error=False)
            for minute, answer in zip(few, answers, strict=True):
                yield from self._cells(minute, answer)

    def _cells(self, minute: int, answer: Any) -> Iterator[tuple[Cell, tuple[int, ...]]]:
        key = self._keys.online(minute)
        if isinstance(answer, RedisError):
            refused = self._store.translated(answer, key)
            if not isinstance(refused, UnreadableValue):
                raise refused
            self._on_junk(f"{refused}; this minute is left out")
            return
        for field, value in sorted(answer.items()):
            try:
                version, variant, numbers = online_cell(key, field, value, SUMS)
            except UnreadableValue as error:
                self._on_junk(f"{error}; it is left out")
            else:
                yield (minute, version, variant), numbers


def _field(cell: Cell) -> str:
    return f"{cell[1]}:{cell[2]}"  # a variant may contain a colon, a version cannot
