"""A user's history: the latest events of each kind, and the values of fields with `history`, for trainer and server.

A `HistoryPlan` says what a spec keeps and computes. A `UserHistory` keeps, for each kind, at most MOST_HISTORY events
by time; its bytes are versioned and checksummed, and `UserHistory.decode` is the only place that reads them. A value is
of the events strictly before a time, so that neither a request's own events nor later ones enter it.

The bytes, little-endian: b"fh", version (u8), CRC-32 (u32) of the rest; number of columns (u8), their names; number of
kinds (u8), and for each: kind (u8), number of events (u16), their times (i64, µs since 1970, ascending), and their
texts, column by column. A list of texts is their lengths (u16 each) and then their bytes. The first column is the
item's id; the others are the fields named by `of`.
"""

from __future__ import annotations

import itertools
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from zlib import crc32

from model_store.errors import UnreadableValue
from model_store.spec.sections import MOST_HISTORY, Happening, seconds_of
from model_store.spec.spec import ModelSpec

KINDS: tuple[Happening, ...] = ("seen", "clicked", "converted", "viewed")
SEEN, CLICKED, CONVERTED, VIEWED = range(len(KINDS))
DEFAULT_LAST = 10
# As long as an id may be; a length is stored in 16 bits.
LONGEST_TEXT = 4096
"""Bytes; a longer id or value is kept as an empty one."""
KEPT_US = 30 * 86_400_000_000
"""How long a user's record is kept if no field says `within`."""
ITEM = ""
"""The name of the column of item ids."""

HistoryValue: TypeAlias = "list[bytes] | dict[bytes, float] | float | None"
"""Texts for measure = "last"; for "counts" a number for each; else one, None for the age of what never happened."""

_MAGIC, _VERSION = b"fh", 1
# "<": the same bytes on every machine, and no padding.
_HEAD = struct.Struct("<2sBI")
_KIND = struct.Struct("<BH")


@dataclass(frozen=True)
class HistoryField:
    """A field computed from a history.

    name, source: of the field and of its column in a log; kind: an index into KINDS; of: an index into the plan's
    columns; within_us: 0 for all events; last: how many values; half_life_s: 0 if events do not fade; is_item: of a
    candidate, not of the user alone.
    """

    name: str
    source: str
    kind: int
    measure: str
    of: int
    last: int
    within_us: int
    is_item: bool
    half_life_s: int = 0


@dataclass(frozen=True)
class HistoryPlan:
    """What a spec keeps of a user's events, and what it computes.

    kinds: those that some field names; columns: ITEM, and the fields whose values are kept; kept_us: how long a record
    is of use: the longest `within`, KEPT_US if a field has none.
    """

    kinds: tuple[int, ...]
    columns: tuple[str, ...]
    fields: tuple[HistoryField, ...]
    kept_us: int
    user_fields: tuple[HistoryField, ...] = field(init=False)
    item_fields: tuple[HistoryField, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "user_fields", tuple(each for each in self.fields if not each.is_item))
        object.__setattr__(self, "item_fields", tuple(each for each in self.fields if each.is_item))

    @classmethod
    def of(cls, *specs: ModelSpec) -> HistoryPlan | None:
        """The plan of all history fields of these specs; None if there are none."""
        named = {
            name: each for spec in specs for name, each in spec.fields.items() if each.history is not None
        }
        if not named:
            return None
        columns = tuple(dict.fromkeys([ITEM, *(each.of for each in named.values() if each.of is not None)]))
        fields = tuple(
            HistoryField(
                name,
                each.column or name,
                KINDS.index(each.history or "seen"),
                each.measure or "count",
                columns.index(each.of or ITEM),
                each.last or DEFAULT_LAST,
                1_000_000 * seconds_of(each.within) if each.within is not None else 0,
                each.side == "item",
                seconds_of(each.half_life) if each.half_life is not None else 0,
            )
            for name, each in named.items()
        )
        spans = [each.within_us or KEPT_US for each in fields]
        return cls(tuple(sorted({each.kind for each in fields})), columns, fields, max(spans))


class Events:
    """A user's latest events of one kind. times: ascending; texts: a list for each column of the plan, as long."""

    # Slots, here and below: a trainer keeps the histories of up to a million users (ADR 0013).
    __slots__ = ("texts", "times")

    def __init__(self, times: list[int], texts: list[list[bytes]]) -> None:
        self.times, self.texts = times, texts

    def add(self, time_us: int, rows: Sequence[Sequence[bytes]]) -> None:
        """Add events of one time, as texts column by column; the oldest are dropped. O(events added) in order."""
        times = self.times
        count = len(rows[0])
        if not times or time_us >= times[-1]:
            times += [time_us] * count
            for mine, more in zip(self.texts, rows, strict=True):
                mine += more
        else:
            # After the events of the same time, so that these keep the order in which they came.
            at = bisect_right(times, time_us)
            times[at:at] = [time_us] * count
            for mine, more in zip(self.texts, rows, strict=True):
                mine[at:at] = more
        if (excess := len(times) - MOST_HISTORY) > 0:
            del times[:excess]
            for mine in self.texts:
                del mine[:excess]

    def between(self, now_us: int, within_us: int) -> tuple[int, int]:
        """The range of the events strictly before `now_us`, not longer ago than `within_us` (0: any)."""
        times = self.times
        return (bisect_left(times, now_us - within_us) if within_us else 0), bisect_left(times, now_us)


class UserHistory:
    """The latest events of one user. For one thread while it changes.

    events: by kind, without kinds that have none.
    """

    __slots__ = ("events",)

    def __init__(self, events: dict[int, Events] | None = None) -> None:
        self.events = events if events is not None else {}

    def add(self, kind: int, time_us: int, rows: Sequence[Sequence[bytes]]) -> None:
        """Add events of one kind and time, in order; rows: their texts, column by column of the plan."""
        events = self.events.get(kind)
        if events is None:
            events = self.events[kind] = Events([], [[] for _ in rows])
        events.add(time_us, rows)

    def of_user(self, wanted: HistoryField, now_us: int) -> HistoryValue:
        """The value of a field of the user. O(events)."""
        events = self.events.get(wanted.kind)
        if events is None:
            return _NOTHING[wanted.measure]
        first, stop = events.between(now_us, wanted.within_us)
        if wanted.measure == "count":
            return float(stop - first)
        if wanted.measure == "age":
            return (now_us - events.times[stop - 1]) / 1e6 if stop > first else None
        if wanted.measure == "counts":
            return self._counts(wanted, events, slice(first, stop), now_us)
        # A dictionary as a set in order: the latest event of each text counts, newest first.
        found: dict[bytes, None] = {}
        for text in reversed(events.texts[wanted.of][first:stop]):
            if text:
                found[text] = None
                if len(found) == wanted.last:
                    break
        return list(found)

    @staticmethod
    def _counts(wanted: HistoryField, events: Events, part: slice, now_us: int) -> dict[bytes, float]:
        """How often each text occurs; an event counts half as much for each half-life of its age. Oldest first."""
        counts: dict[bytes, float] = {}
        for text, time_us in zip(events.texts[wanted.of][part], events.times[part], strict=True):
            if text:
                age = (now_us - time_us) / 1e6
                weight = 0.5 ** (age / wanted.half_life_s) if wanted.half_life_s else 1.0
                counts[text] = counts.get(text, 0.0) + weight
        return counts

    def of_items(self, wanted: HistoryField, now_us: int) -> Mapping[bytes, float]:
        """The values of a field of the candidate, by the text that a candidate shares: `absent` for all others."""
        events = self.events.get(wanted.kind)
        if events is None:
            return _NO_VALUES
        first, stop = events.between(now_us, wanted.within_us)
        texts = events.texts[wanted.of]
        if wanted.measure == "age":
            pairs = zip(texts[first:stop], events.times[first:stop], strict=True)
            # Times ascend, so that of equal texts the latest event is the one that stays.
            return {text: (now_us - time_us) / 1e6 for text, time_us in pairs}
        counts: dict[bytes, float] = {}
        for text in texts[first:stop]:
            counts[text] = counts.get(text, 0.0) + 1.0
        return counts

    # -- bytes

    def encode(self, plan: HistoryPlan) -> bytes:
        """The record as bytes; equal histories have equal bytes."""
        parts = [bytes([len(plan.columns)]), *_written([name.encode() for name in plan.columns])]
        parts.append(bytes([len(self.events)]))
        # Sorted, so that equal histories have equal bytes, in whatever order their kinds came.
        for kind in sorted(self.events):
            events = self.events[kind]
            count = len(events.times)
            parts += (_KIND.pack(kind, count), struct.pack(f"<{count}q", *events.times))
            for texts in events.texts:
                parts += _written(texts)
        body = b"".join(parts)
        return _HEAD.pack(_MAGIC, _VERSION, crc32(body)) + body

    @classmethod
    def decode(cls, data: bytes, plan: HistoryPlan) -> UserHistory:
        """The history in `data`, with the plan's kinds and columns; a column that the record lacks has empty texts.

        Raises UnreadableValue for bytes that `encode` has not made.
        """
        columns, events = _read(data)
        places = [columns.index(name) if name in columns else -1 for name in plan.columns]
        return cls(
            {
                kind: Events(times, [texts[place] if place >= 0 else [b""] * len(times) for place in places])
                for kind, (times, texts) in events.items()
                if kind in plan.kinds
            }
        )


def absent(wanted: HistoryField) -> float | None:
    """The value of a field of the candidate for a candidate that shares its text with no event."""
    return 0.0 if wanted.measure == "count" else None


_NOTHING: Mapping[str, HistoryValue] = {"last": [], "count": 0.0, "age": None, "counts": {}}
_NO_VALUES: Mapping[bytes, float] = {}


def kept(text: bytes) -> bytes:
    """The text as a history keeps it: empty if it is too long."""
    return text if len(text) <= LONGEST_TEXT else b""


def check_record(data: bytes) -> int:
    """Verify a record; returns its number of events. Raises UnreadableValue."""
    return sum(len(times) for times, _ in _read(data)[1].values())


def _written(texts: Sequence[bytes]) -> tuple[bytes, bytes]:
    return struct.pack(f"<{len(texts)}H", *map(len, texts)), b"".join(texts)


def _read(data: bytes) -> tuple[list[str], dict[int, tuple[list[int], list[list[bytes]]]]]:
    """The names of the columns, and by kind the times and the texts by column. Raises UnreadableValue."""
    if len(data) < _HEAD.size or data[:2] != _MAGIC:
        raise UnreadableValue(f"got {data[:16]!r}, expected a user's history")
    _, version, checksum = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise UnreadableValue(f"got a user's history of version {version}, expected version {_VERSION}")
    # The length fields below are trusted only after this: a record that was cut must not be read as another one.
    if crc32(memoryview(data)[_HEAD.size :]) != checksum:
        raise UnreadableValue("got a user's history that is damaged: its checksum does not match")
    try:
        return _Reader(data).read()
    except (struct.error, IndexError, ValueError) as error:
        raise UnreadableValue(f"got a user's history that is damaged: {error}") from None


class _Reader:
    """Reads the body of a record; struct.error, IndexError or ValueError where it is not one."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, _HEAD.size

    def read(self) -> tuple[list[str], dict[int, tuple[list[int], list[list[bytes]]]]]:
        columns = [name.decode() for name in self._texts(self._byte())]
        found: dict[int, tuple[list[int], list[list[bytes]]]] = {}
        for _ in range(self._byte()):
            kind, count = _KIND.unpack_from(self._data, self._at)
            self._at += _KIND.size
            # The checksum only finds accidents: a record that another system wrote may have any numbers.
            if kind >= len(KINDS) or kind in found or not 1 <= count <= MOST_HISTORY:
                raise ValueError(f"{count} events of kind {kind}")
            times = list(struct.unpack_from(f"<{count}q", self._data, self._at))
            self._at += 8 * count
            # `between` bisects the times.
            if any(later < earlier for earlier, later in itertools.pairwise(times)):
                raise ValueError("times descend")
            found[kind] = times, [self._texts(count) for _ in columns]
        if self._at != len(self._data) or not columns:
            raise ValueError(f"{len(self._data) - self._at} bytes follow its end")
        return columns, found

    def _byte(self) -> int:
        value = self._data[self._at]
        self._at += 1
        return value

    def _texts(self, count: int) -> list[bytes]:
        lengths = struct.unpack_from(f"<{count}H", self._data, self._at)
        first = self._at + 2 * count
        ends = list(itertools.accumulate(lengths, initial=first))
        if ends[-1] > len(self._data):
            raise ValueError("it ends within a text")
        self._at = ends[-1]
        return [self._data[a:b] for a, b in itertools.pairwise(ends)]
