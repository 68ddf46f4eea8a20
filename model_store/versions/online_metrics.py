"""Outcomes of the answers served, summed by bucket of cookies, for each minute and hour and each variant.

Variants are assigned by cookie, and cookies come back and differ, so requests are no independent observations. Cookies
are therefore divided by a hash into BUCKETS, and each sum is kept for each bucket: buckets are independent, and alike.
The trainer writes absolute sums, so that writing again after a crash counts nothing twice; reports read and add them.
All sums are integers, hence exact and independent of the order of summation. docs/redis_keys.md describes the record.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from redis.exceptions import RedisError

from model_store.errors import UnreadableValue
from model_store.keys import ModelKeys, Report, online_cell, silent
from model_store.ratios import BUCKETS, Ratio
from model_store.redis.connection import StoreConnection

Int64s = npt.NDArray[np.int64]

KEPT_S = 31 * 86_400
MINUTES_KEPT_S = 3 * 86_400
"""How long hours and minutes are kept. Hours are added up from minutes, also after a trainer was away for two days."""
BY_MINUTE = 1_440
"""Reports read the latest minutes, and before them whole hours."""
HOUR = 60
CALLER, AGREED, OWN = "\x1fcaller", "\x1fagreed", "\x1fown"
"""Behind a variant's name, outcomes of its answers in apprentice mode: of all; of those whose first item is the
model's; and of the model's own order, of which only requests, items that were shown, and predicted clicks are known."""
# Predictions are summed as whole numbers of this size: a sum of floats would depend on its order.
CTR_UNIT = 1e-9
# A month of hours is 744 keys: the answer is read in parts that do not fill the memory.
_KEYS_A_TRIP = 500


@dataclass(frozen=True)
class OnlineSums:
    """Sums over requests whose feedback window has closed.

    requests: their number; shown, clicks, conversions: items shown, clicked, converted. ctr_nano: predicted clicks, the
    sum of the items' ctr, in CTR_UNIT; without_ctr: requests with an item without ctr, which predict 0. positives:
    items with the outcome that is predicted: clicks, or with `join.positive = "conversion"` conversions. unseen: items
    that nobody saw, which with `join.negatives = "seen"` are not in `shown`, nor in the other sums. Of a model that
    learns `input.rows = "clicked"`, shown are clicked items, and clicks, like positives, those of them that converted.
    """

    requests: int = 0
    shown: int = 0
    clicks: int = 0
    conversions: int = 0
    ctr_nano: int = 0
    without_ctr: int = 0
    positives: int = 0
    unseen: int = 0

    @property
    def seen_share(self) -> float | None:
        """Items that were seen, of those in lists; None where nothing says which were."""
        return self.shown / (self.shown + self.unseen) if self.unseen else None


SUMS = tuple(each.name for each in fields(OnlineSums))


@dataclass(frozen=True)
class OnlineCell:
    """Outcomes of one variant. buckets: int64[BUCKETS, len(SUMS)]; versions: the first and last that answered, or 0.

    credit: where variants are interleaved, of each of them int64[2, BUCKETS] in CTR_UNIT: what clicks counted for it,
    and against it and so for the others (`draft_kernels` of the server).
    """

    buckets: Int64s
    versions: tuple[int, int] = (0, 0)
    credit: Mapping[str, Int64s] = field(default_factory=dict)

    def __add__(self, other: OnlineCell) -> OnlineCell:
        # 0 is unknown, and must not become the first version.
        known = [version for version in (*self.versions, *other.versions) if version]
        credit = dict(self.credit)
        for team, added in other.credit.items():
            credit[team] = credit[team] + added if team in credit else added
        versions = (min(known, default=0), max(self.versions[1], other.versions[1]))
        return OnlineCell(self.buckets + other.buckets, versions, credit)

    def __getitem__(self, name: str) -> Int64s:
        """One of SUMS: int64[BUCKETS]."""
        column: Int64s = self.buckets[:, SUMS.index(name)]
        return column

    @property
    def sums(self) -> OnlineSums:
        """Over all buckets."""
        return OnlineSums(*self.buckets.sum(0).tolist())

    @property
    def click_rate(self) -> Ratio | None:
        """Clicks an item shown; None if nothing was shown, without variance before requests fill all buckets."""
        return Ratio.of(self["clicks"], self["shown"], BUCKETS)

    @property
    def calibration(self) -> Ratio | None:
        """Predicted positives a positive; None without positives, or if some items have no ctr."""
        # Their clicks would be counted and their predictions not.
        if self["without_ctr"].any():
            return None
        return Ratio.of(self["ctr_nano"] * CTR_UNIT, self["positives"], BUCKETS)

    @property
    def conversion_rate(self) -> Ratio | None:
        """Conversions a click; None without clicks."""
        return Ratio.of(self["conversions"], self["clicks"], BUCKETS)

    @classmethod
    def empty(cls) -> OnlineCell:
        """Of no requests."""
        return cls(np.zeros((BUCKETS, len(SUMS)), np.int64))


class Slot(NamedTuple):
    """A minute, or an hour's 60 minutes, and a variant, empty if the event has none. minute: the first, since 1970."""

    minute: int
    minutes: int
    variant: str


class OnlineMetrics:
    """The online metrics of one model. Every method raises StoreUnavailable if the store does not answer."""

    def __init__(self, connection: StoreConnection, keys: ModelKeys, on_junk: Report = silent) -> None:
        """on_junk is called with a message for each value that cannot be read and is left out."""
        self._on_junk = on_junk
        self._store = connection
        self._client = connection.at(keys.versions)
        self._keys = keys

    def write(self, cells: Mapping[tuple[int, str], OnlineCell], *, whole: bool = False) -> None:
        """Replace the cells of these minutes and variants. One round trip, O(cells).

        whole: replace these minutes entirely, in one transaction.
        """
        self._write({Slot(minute, 1, variant): cell for (minute, variant), cell in cells.items()}, whole)

    def add_up(self, hours: range) -> None:
        """Write the hours, numbered since 1970, as the sums of the minutes that the store has of them.

        To be called once their minutes no longer change; again, it changes nothing.
        """
        found: dict[Slot, OnlineCell] = {}
        for slot, cell in self._read(range(hours.start * HOUR, hours.stop * HOUR), 1):
            hour = Slot(slot.minute // HOUR * HOUR, HOUR, slot.variant)
            found[hour] = found[hour] + cell if hour in found else cell
        # Whole, so that the variants of an earlier attempt do not stay; absolute sums, so that it may be repeated.
        self._write(found, whole=True)

    def read(self, begin: int, stop: int, now: int) -> Iterator[tuple[Slot, OnlineCell]]:
        """All cells from minute `begin` to before `stop`, in order: `divided` says which hours and minutes.

        now: the present minute. A field that cannot be read is left out and reported.
        """
        hours, minutes = divided(begin, stop, now)
        yield from self._read(hours, HOUR)
        yield from self._read(minutes, 1)

    def _write(self, cells: Mapping[Slot, OnlineCell], whole: bool) -> None:
        by_key: dict[str, dict[str, str]] = {}
        lifetime: dict[str, int] = {}
        for slot, cell in cells.items():
            key = self._key(slot.minute, slot.minutes)
            lifetime[key] = MINUTES_KEPT_S if slot.minutes == 1 else KEPT_S
            by_key.setdefault(key, {})[slot.variant] = _text(cell)
        if not by_key:
            return
        with self._store.answers(), self._client.pipeline(transaction=whole) as pipe:
            for key, found in by_key.items():
                if whole:
                    # A variant that has no cell any more would stay otherwise.
                    pipe.delete(key)
                pipe.hset(key, mapping=found)
                # At each write, since DEL and HSET make a key without one.
                pipe.expire(key, lifetime[key])
            pipe.execute()

    def _key(self, minute: int, minutes: int) -> str:
        return self._keys.outcomes(minute) if minutes == 1 else self._keys.outcomes_of_hour(minute // HOUR)

    def _read(self, places: Sequence[int], minutes: int) -> Iterator[tuple[Slot, OnlineCell]]:
        for begin in range(0, len(places), _KEYS_A_TRIP):
            few = places[begin : begin + _KEYS_A_TRIP]
            with self._store.answers(), self._client.pipeline(transaction=False) as pipe:
                for place in few:
                    pipe.hgetall(self._key(place, minutes))
                answers = pipe.execute(raise_on_error=False)
            for place, answer in zip(few, answers, strict=True):
                for variant, cell in self._cells(self._key(place, minutes), answer):
                    yield Slot(place, minutes, variant), cell

    def _cells(self, key: str, answer: Any) -> Iterable[tuple[str, OnlineCell]]:
        if isinstance(answer, RedisError):
            refused = self._store.translated(answer, key)
            if not isinstance(refused, UnreadableValue):
                raise refused
            self._on_junk(f"{refused}; it is left out")
            return
        for name, value in sorted(answer.items()):
            try:
                variant, versions, sums, credit = online_cell(key, name, value, SUMS, BUCKETS)
            except UnreadableValue as error:
                self._on_junk(f"{error}; it is left out")
            else:
                of_teams = {team: np.array(both, np.int64) for team, both in credit.items()}
                yield variant, OnlineCell(np.array(sums, np.int64).T.copy(), versions, of_teams)


def divided(begin: int, stop: int, now: int) -> tuple[range, range]:
    """The hours, by their first minutes, and the minutes that a time is read from.

    Hours are those within the time that ended BY_MINUTE minutes before `now`; a part of such an hour is left out.
    """
    # A day back: the sums of later hours may not have been added up yet.
    border = (now - BY_MINUTE) // HOUR * HOUR
    hours = range(-(-begin // HOUR) * HOUR, min(stop // HOUR * HOUR, border), HOUR)
    return hours, range(max(begin, border), stop)


def _text(cell: OnlineCell) -> str:
    sums = dict(zip(SUMS, cell.buckets.T.tolist(), strict=True))
    if not any(sums["unseen"]):
        del sums["unseen"]
    parts = {"versions": list(cell.versions), **sums}
    if cell.credit:
        parts["credit"] = {team: both.tolist() for team, both in cell.credit.items()}
    return json.dumps(parts, separators=(",", ":"))
