"""The histories of all users as events pass: values for the rows that lack them, then the events themselves.

`Histories` holds the users. `EventHistories` is between the merger and the join: of each impression it computes the
history fields that the event does not carry, puts them into the segment's columns, and only then adds its items as
seen; of each click it finds the request, and adds the item as clicked; of a view it adds the item. So a row sees
nothing of its own request, and nothing that came later. What it computes depends on the events and their order alone,
not on how they were cut.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model_store.errors import CheckpointError
from model_store.features.history import (
    CLICKED,
    CONVERTED,
    SEEN,
    VIEWED,
    HistoryField,
    HistoryPlan,
    HistoryValue,
    UserHistory,
    absent,
    kept,
)
from model_store.keys import MAX_ID_BYTES
from model_store.records.records import BATCH, Records
from model_store.spec.spec import ModelSpec
from trainer.events.columns import DERIVED, MAP, digests, together
from trainer.events.events import BACKFILL_US, CLICK, CONVERSION, FEEDBACK, IMPRESSION, VIEW, Merged
from trainer.events.waiting_rows import WaitingRows
from trainer.formats.cells import column_text, plain

MOST_USERS = 1_000_000
MOST_UNPACKED = 50_000
"""Users whose events are kept as Python objects; those of the others are kept as bytes."""

Arrays = Mapping[str, npt.NDArray[Any]]
Columns = Mapping[str, pa.Array]
Texts = list[list[bytes]]
"""The texts of rows, column by column of the plan."""


class Histories:
    """The histories of at most `most_users` users; the least recently used one is dropped. For one thread.

    dropped: how many were; most: `most_users`. keeps_changed: whether changed users are remembered for `write`.
    """

    def __init__(self, plan: HistoryPlan, most_users: int = MOST_USERS) -> None:
        self.plan = plan
        self.dropped = 0
        self.keeps_changed = False
        self.most = most_users
        self._most_unpacked = min(MOST_UNPACKED, most_users)
        # Both in order of last use; every packed user was used before every unpacked one.
        self._packed: dict[bytes, bytes] = {}
        self._unpacked: dict[bytes, UserHistory] = {}
        self._changed: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self._packed) + len(self._unpacked)

    def find(self, cookie: bytes) -> UserHistory | None:
        """The history of a user; None if nothing is known. O(1) for recent users, else O(their events)."""
        unpacked = self._unpacked
        user = unpacked.pop(cookie, None)
        if user is None:
            packed = self._packed.pop(cookie, None)
            if packed is None:
                return None
            user = UserHistory.decode(packed, self.plan)
        unpacked[cookie] = user
        self._bound()
        return user

    def add(self, cookie: bytes, kind: int, time_us: int, texts: Texts) -> None:
        """Add events of one kind and time to a user's; nothing if the plan does not keep the kind."""
        if kind not in self.plan.kinds or not texts[0] or not 0 < len(cookie) <= MAX_ID_BYTES:
            return
        user = self.find(cookie)
        if user is None:
            user = self._unpacked[cookie] = UserHistory()
            self._bound()
        user.add(kind, time_us, texts)
        if self.keeps_changed:
            self._changed[cookie] = None

    def _bound(self) -> None:
        while len(self._unpacked) > self._most_unpacked:
            cookie = next(iter(self._unpacked))
            self._packed[cookie] = self._unpacked.pop(cookie).encode(self.plan)
        while len(self) > self.most:
            cookie = next(iter(self._packed or self._unpacked))
            (self._packed or self._unpacked).pop(cookie)
            self._changed.pop(cookie, None)
            self.dropped += 1

    def records(self, cookies: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """The cookies and records of those of these users that are known."""
        for cookie in cookies:
            user = self._unpacked.get(cookie)
            record = user.encode(self.plan) if user is not None else self._packed.get(cookie)
            if record is not None:
                yield cookie, record

    def forget(self, cookies: npt.NDArray[np.uint64]) -> list[bytes]:
        """Drop the users whose cookies have these hashes; returns the cookies of those that were known."""
        known = [*self._packed, *self._unpacked]
        hashes = digests(pa.array(known, pa.binary()))
        gone = [known[index] for index in np.flatnonzero(np.isin(hashes, cookies))]
        for cookie in gone:
            for users in (self._packed, self._unpacked, self._changed):
                users.pop(cookie, None)
        return gone

    def write(self, store: Records, model: str, seconds: float = math.inf) -> None:
        """Write the users that have changed to the store, for about so long; the rest the next time.

        Raises StoreError; what was not written counts as changed.
        """
        until = time.monotonic() + seconds
        while self._changed and time.monotonic() < until:
            cookies = list(itertools.islice(self._changed, BATCH))
            store.put_histories(model, self.records(cookies), self.plan.kept_us // 1000)
            for cookie in cookies:
                del self._changed[cookie]

    def all_changed(self) -> None:
        """The store may have none of the users, or other states of them: write them all, the last used one first."""
        self.keeps_changed = True
        self._changed = dict.fromkeys([*reversed(self._unpacked), *reversed(self._packed)])

    def values(
        self, cookie: bytes, now_us: int, texts: Texts
    ) -> tuple[list[HistoryValue], list[list[float | None]]]:
        """Of a request at `now_us`: the values of the plan's user fields; those of its item fields for all candidates.

        texts: of the candidates. Without a cookie there is no value.
        """
        plan, of_items = self.plan, list[list[float | None]]()
        if not cookie:
            return [None] * len(plan.user_fields), [[None] * len(texts[each.of]) for each in plan.item_fields]
        known = self.find(cookie) or _NEW
        for each in plan.item_fields:
            values, other = known.of_items(each, now_us), absent(each)
            of_items.append([values.get(text, other) if text else None for text in texts[each.of]])
        return [known.of_user(each, now_us) for each in plan.user_fields], of_items

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The users in order of their last use, for `restore`."""
        cookies = [*self._packed, *self._unpacked]
        records = [record for _, record in self.records(cookies)]
        return {
            **saved_texts("cookies", cookies),
            **saved_texts("records", records),
            "dropped": np.array([self.dropped]),
        }

    def restore(self, arrays: Arrays) -> None:
        """Continue from a `state`. Raises CheckpointError, KeyError."""
        cookies, records = restored_texts("cookies", arrays), restored_texts("records", arrays)
        self._packed = dict(zip(cookies, records, strict=True))
        self._unpacked = {}
        self.dropped = int(arrays["dropped"][0])


def saved_texts(name: str, texts: Sequence[bytes]) -> dict[str, npt.NDArray[Any]]:
    """Texts as two arrays, for `restored_texts`."""
    lengths = np.fromiter(map(len, texts), np.uint32, len(texts))
    return {f"{name}.sizes": lengths, name: np.frombuffer(b"".join(texts), np.uint8)}


def restored_texts(name: str, arrays: Arrays) -> list[bytes]:
    """The inverse of `saved_texts`. Raises CheckpointError, KeyError."""
    sizes, data = arrays[f"{name}.sizes"], arrays[name].tobytes()
    ends = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).tolist()
    if ends[-1] != len(data):
        raise CheckpointError(f"the checkpoint's histories are damaged: {name!r} does not have its size")
    return [data[first:stop] for first, stop in itertools.pairwise(ends)]


_NEW = UserHistory()
"""A user of whom nothing is known. Never changed."""


@dataclass(frozen=True)
class _ShownRequest:
    """An impression that clicks may still belong to. items: hashes of its items; texts: of its rows."""

    time_us: int
    cookie: bytes
    items: npt.NDArray[np.uint64]
    texts: Texts
    flags: bytearray


_FLAGS = {CLICKED: 1, CONVERTED: 2}
_HAPPENINGS = {CLICK: CLICKED, CONVERSION: CONVERTED}


class EventHistories:
    """The histories of one model's users, from merged events. For one thread."""

    def __init__(self, spec: ModelSpec, plan: HistoryPlan, most_users: int = MOST_USERS) -> None:
        """spec: resolved."""
        self.users = Histories(plan, most_users)
        given = spec.input
        assert given.cookie is not None
        sources = [spec.fields[name].column or name if name else given.item for name in plan.columns]
        self._plan = plan
        self._cookie, self._sources = given.cookie, sources
        self._derivation = spec.derivation.encode()
        self._learns_views = spec.join.positive == "view"
        self._window_us, self._lateness_us = spec.join.window_us, spec.join.lateness_us
        self._most_requests = spec.join.max_pending
        self._watermark = np.iinfo(np.int64).min // 2
        self._requests: dict[int, _ShownRequest] = {}
        # Feedback before its request: item, kind and time by a serial number; and a heap of what is due first,
        # which also has feedback whose request has come meanwhile.
        self._early: dict[int, dict[int, tuple[int, int, int]]] = {}
        self._due: list[tuple[int, int, int]] = []
        self._held = self._waiting = 0

    @classmethod
    def of(cls, *specs: ModelSpec) -> EventHistories | None:
        """For the fields of resolved specs; None if none is of a history. The log is read as the first one says."""
        plan = HistoryPlan.of(*specs)
        return cls(next(each for each in specs if HistoryPlan.of(each)), plan) if plan is not None else None

    def take(self, merged: Merged, segments: WaitingRows) -> None:
        """Fill the history columns of the segment of these events, and take the events. O(events · history)."""
        # A click has no rows, so these are impressions and views.
        shown = np.flatnonzero(merged.rows)
        rows = None
        if shown.size:
            number = int(merged.segment[shown[0]])
            columns = segments.table(number)
            rows = _SegmentRows(self._plan, columns, self._cookie, self._sources, self._derivation)
        self._walk(merged, rows)
        if rows is not None and rows.fills:
            order = shown[np.argsort(merged.row[shown], kind="stable")]
            segments.replace(number, rows.filled(np.repeat(order, merged.rows[order])))

    def forget(
        self, cookies: npt.NDArray[np.uint64], requests: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.uint64]:
        """Drop these requests, and those of users whose cookies have these hashes; returns the latter."""
        known = np.fromiter(self._requests, np.uint64, len(self._requests))
        of = digests(pa.array([each.cookie for each in self._requests.values()], pa.binary()))
        theirs = known[np.isin(of, cookies)]
        for request in (*requests.tolist(), *theirs.tolist()):
            self._requests.pop(request, None)
            self._waiting -= len(self._early.pop(request, {}))
        return theirs

    def _walk(self, merged: Merged, rows: _SegmentRows | None) -> None:
        kinds, requests = merged.kind.tolist(), merged.request.tolist()
        # No event is later than it came, by a clock of milliseconds.
        now = (merged.now_us + 999).tolist()
        times = np.minimum(merged.time_us, merged.now_us + 999).tolist()
        first, counts = merged.row.tolist(), merged.rows.tolist()
        ends = np.cumsum(merged.rows).tolist()
        items, whats = merged.item.tolist(), merged.what.tolist()
        for index, kind in enumerate(kinds):
            if kind == IMPRESSION:
                time_us, count = times[index], counts[index]
                self._advance(time_us)
                if count and rows is not None:
                    part = slice(first[index], first[index] + count)
                    shown = merged.items[ends[index] - count : ends[index]]
                    since_us = self._since(time_us, now[index])
                    self._impression(index, requests[index], time_us, since_us, rows, part, shown)
            elif kind == VIEW and rows is not None:
                part = slice(first[index], first[index] + counts[index])
                texts = [column[part] for column in rows.texts]
                if self._learns_views:
                    rows.fill(index, part, times[index], texts, self.users)
                self.users.add(rows.cookies[part.start], VIEWED, times[index], [each[:1] for each in texts])
            elif kind == FEEDBACK:
                self._advance(times[index])
                what = _HAPPENINGS.get(whats[index])
                if what is not None:
                    since_us = self._since(times[index], now[index])
                    self._feedback(requests[index], items[index], what, times[index], since_us)

    def step_back(self, now_us: int) -> None:
        """The clock by which events come is now `now_us`, as in `Join.step_back`."""
        self._watermark = min(self._watermark, now_us - self._lateness_us)

    def _since(self, time_us: int, now_us: int) -> int:
        """When the window of an event begins that came at `now_us`, as in the join."""
        late_us = self._lateness_us if now_us - time_us < BACKFILL_US else now_us - time_us
        return max(time_us, min(self._watermark, now_us), now_us - late_us)

    def _advance(self, time_us: int) -> None:
        """Advance the watermark as the join does, and forget the requests whose window has ended."""
        self._watermark = max(self._watermark, time_us - self._lateness_us)
        since = self._watermark - self._window_us
        while self._requests and next(iter(self._requests.values())).time_us < since:
            self._requests.pop(next(iter(self._requests)))
        while self._due and self._due[0][0] < since:
            self._give_up()

    def _impression(
        self,
        index: int,
        request: int,
        time_us: int,
        since_us: int,
        rows: _SegmentRows,
        part: slice,
        shown: Any,
    ) -> None:
        users, cookie = self.users, rows.cookies[part.start]
        before = self._requests.get(request)
        if before is not None and before.time_us >= self._watermark - self._window_us:
            return  # a duplicate
        texts = [column[part] for column in rows.texts]
        rows.fill(index, part, time_us, texts, users)
        users.add(cookie, SEEN, time_us, texts)
        self._requests.pop(request, None)
        if len(self._requests) >= self._most_requests:
            self._requests.pop(next(iter(self._requests)))
        self._requests[request] = _ShownRequest(since_us, cookie, shown, texts, bytearray(len(shown)))
        early = self._early.pop(request, {})
        self._waiting -= len(early)
        for item, what, at_us in early.values():
            if at_us >= self._watermark - self._window_us:
                self._feedback(request, item, what, at_us, at_us)

    def _feedback(self, request: int, item: int, what: int, time_us: int, since_us: int) -> None:
        """A click or conversion: of a known request each once, within the window; else it waits from `since_us` on."""
        if what not in self._plan.kinds:
            return
        found, since = self._requests.get(request), self._watermark - self._window_us
        if found is None or found.time_us < since:
            if since_us >= since:
                self._hold(request, item, what, since_us)
            return
        places = np.flatnonzero(found.items == np.uint64(item))
        if not places.size or time_us > found.time_us + self._window_us:
            return
        row, flag = int(places[0]), _FLAGS[what]
        if not found.flags[row] & flag:
            found.flags[row] |= flag
            self.users.add(found.cookie, what, time_us, [[column[row]] for column in found.texts])

    def _hold(self, request: int, item: int, what: int, time_us: int) -> None:
        """Let feedback wait for its request: as in the join, `max_pending` at most, the latest ones."""
        self._held += 1
        self._early.setdefault(request, {})[self._held] = (item, what, time_us)
        heappush(self._due, (time_us, request, self._held))
        self._waiting += 1
        while self._waiting > self._most_requests:
            self._give_up()

    def _give_up(self) -> None:
        """Forget the feedback that is due first, unless its request has come meanwhile."""
        _, request, number = heappop(self._due)
        some = self._early.get(request, {})
        if some.pop(number, None) is not None:
            self._waiting -= 1
            if not some:
                del self._early[request]

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The users, and the requests that clicks may belong to, as arrays for `restore`."""
        known = list(self._requests.values())
        early = [(request, *each) for request, some in self._early.items() for each in some.values()]
        saved = {
            **self.users.state(),
            "watermark": np.array([self._watermark], np.int64),
            "requests": np.fromiter(self._requests, np.uint64, len(known)),
            "times": np.array([each.time_us for each in known], np.int64),
            "rows": np.array([each.items.size for each in known], np.int64),
            "items": np.concatenate([np.zeros(0, np.uint64), *(each.items for each in known)]),
            "flags": np.frombuffer(b"".join(each.flags for each in known), np.uint8),
            "early": np.array([(each[0], each[1]) for each in early], np.uint64).reshape(-1, 2),
            "early.times": np.array([(each[2], each[3]) for each in early], np.int64).reshape(-1, 2),
            **saved_texts("of", [each.cookie for each in known]),
        }
        for number in range(len(self._sources)):
            saved |= saved_texts(f"texts{number}", [text for each in known for text in each.texts[number]])
        return saved

    def restore(self, arrays: Arrays) -> None:
        """Continue from a `state`. Raises CheckpointError, KeyError."""
        self.users.restore(arrays)
        self._watermark = int(arrays["watermark"][0])
        ends = np.concatenate([[0], np.cumsum(arrays["rows"])]).tolist()
        texts = [restored_texts(f"texts{number}", arrays) for number in range(len(self._sources))]
        cookies, flags = restored_texts("of", arrays), arrays["flags"].tobytes()
        parts = [slice(first, stop) for first, stop in itertools.pairwise(ends)]
        known = zip(arrays["requests"].tolist(), arrays["times"].tolist(), cookies, parts, strict=True)
        self._requests = {
            request: _ShownRequest(
                time_us,
                cookie,
                arrays["items"][part],
                [column[part] for column in texts],
                bytearray(flags[part]),
            )
            for request, time_us, cookie, part in known
        }
        self._early, self._due, self._waiting = {}, [], 0
        for (request, item), (what, time_us) in zip(
            arrays["early"].tolist(), arrays["early.times"].tolist(), strict=True
        ):
            self._hold(request, item, what, time_us)


class _SegmentRows:
    """The rows of a segment as histories read them, and the values found for them.

    fills: whether a row lacks a history field's value; of_users: by impression, of_items: by field and row.
    """

    def __init__(
        self,
        plan: HistoryPlan,
        columns: Columns,
        cookie: str,
        sources: Sequence[str | None],
        derivation: bytes,
    ) -> None:
        self._plan, self._columns = plan, columns
        self.cookies = texts_of(columns[cookie])
        count = len(self.cookies)
        self.texts = row_texts(columns, sources, count)
        served = columns.get(DERIVED)
        carried = pc.equal(served, pa.scalar(derivation, pa.binary())) if served is not None else None
        self._lacking = {each.source: lacking(columns[each.source], carried) for each in plan.fields}
        self.fills = any(mask.any() for mask in self._lacking.values())
        self.of_users: dict[int, list[HistoryValue]] = {}
        self.of_items: list[list[float | None]] = [[None] * count for _ in plan.item_fields]

    def fill(self, index: int, part: slice, time_us: int, texts: Texts, users: Histories) -> None:
        """Find the values of one event's rows."""
        if self.fills:
            self.of_users[index], of_items = users.values(self.cookies[part.start], time_us, texts)
            for column, values in zip(self.of_items, of_items, strict=True):
                column[part] = values

    def filled(self, impression: npt.NDArray[np.int64]) -> Columns:
        """The columns with the values found. impression: of each row, the number of its event."""
        events, of_row = np.unique(impression, return_inverse=True)
        none: list[HistoryValue] = [None] * len(self._plan.user_fields)
        of_users = [self.of_users.get(event, none) for event in events.tolist()]
        return with_values(self._plan, self._columns, self._lacking, (of_users, of_row), self.of_items)


def with_values(
    plan: HistoryPlan,
    columns: Columns,
    lacking: Mapping[str, npt.NDArray[np.bool_]],
    of_users: tuple[Sequence[Sequence[HistoryValue]], npt.NDArray[Any]],
    of_items: Sequence[Sequence[float | None]],
) -> dict[str, pa.Array]:
    """The columns, with the values of history fields where these lack one.

    of_users: for each request its values, and the number of each row's request; of_items: by field, of each row.
    """
    filled, (requests, of_row) = dict(columns), of_users
    found = [
        _as_array(each, [values[place] for values in requests]).take(pa.array(of_row))
        for place, each in enumerate(plan.user_fields)
    ]
    found += [_as_array(each, numbers) for each, numbers in zip(plan.item_fields, of_items, strict=True)]
    for each, array in zip((*plan.user_fields, *plan.item_fields), found, strict=True):
        filled[each.source] = _where(lacking[each.source], array, filled[each.source])
    return filled


def row_texts(columns: Columns, sources: Sequence[str | None], rows: int) -> Texts:
    """The texts of these columns that histories keep; empty for None."""
    return [
        [kept(text) for text in texts_of(columns[name])] if name is not None else [b""] * rows
        for name in sources
    ]


def texts_of(array: pa.Array) -> list[bytes]:
    """The canonical texts of a column, empty for null; equal texts of a batch share one object."""
    encoded = column_text(array).dictionary_encode()
    known = encoded.dictionary.to_pylist()
    return [known[code] for code in encoded.indices.to_pylist()]


def lacking(array: pa.Array, carried: pa.Array | None) -> npt.NDArray[np.bool_]:
    """bool[rows]: where a value is to be computed: it is null or empty, and not by the server's own computation."""
    array = plain(array)
    missing = array.is_null()
    if pa.types.is_binary(array.type):
        missing = pc.or_(missing, pc.equal(pc.binary_length(array), 0).fill_null(True))
    mask: npt.NDArray[np.bool_] = np.array(missing.to_numpy(zero_copy_only=False), np.bool_)
    if carried is not None:
        mask &= ~np.asarray(carried.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)
    return mask


def _as_array(wanted: HistoryField, values: Sequence[Any]) -> pa.Array:
    """The values of a field as a column: lists of texts, or numbers with nulls."""
    if wanted.measure == "last":
        return pa.array(values, pa.list_(pa.binary()))
    if wanted.measure == "counts":
        return pa.array([None if each is None else list(each.items()) for each in values], MAP)
    numbers = np.array(values, np.float64)
    return pa.array(numbers, mask=np.isnan(numbers))


def _where(mask: npt.NDArray[np.bool_], values: pa.Array, others: pa.Array) -> pa.Array:
    """`values` where the mask is set, `others` elsewhere, in a type that fits both."""
    if mask.all():
        return values
    if not mask.any():
        return others
    both = together([{"": plain(others)}, {"": values}])[""]
    rows = np.arange(mask.size)
    return both.take(pa.array(np.where(mask, rows + mask.size, rows)))
