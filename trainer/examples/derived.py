"""Derived and history fields of labelled rows: their columns are filled before rows are sampled and hashed.

In: batches as `WholeRequests` cuts them. Out: the same batches, with a value in the columns of these fields where the
log has none. `model_store.features.derived` computes the values; events are completed where they are parsed.

Histories go by the order of the file. A request is a run of rows with one id, or each row where the log has no ids; its
cookie and time are those of its first row. Once it has ended, its rows count as seen at that time, and those with a
click (`input.positive`, `input.views`) as clicked (with `join.positive = "conversion"`: as converted). So the rows of a
request do not see one another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.errors import SpecError
from model_store.features.derived import Derivations, Numbers
from model_store.features.history import CLICKED, CONVERTED, SEEN, VIEWED, HistoryPlan, HistoryValue
from model_store.spec.spec import ModelSpec
from trainer.events.columns import digests, numbers_read, with_numbers
from trainer.events.histories import (
    Arrays,
    Histories,
    Texts,
    lacking,
    restored_texts,
    row_texts,
    saved_texts,
    texts_of,
    with_values,
)
from trainer.examples.requests import WholeRequests, request_ids, request_starts
from trainer.formats.batch import RowBatch
from trainer.formats.cells import clicked
from trainer.formats.times import NO_TIME, parse_times, time_format

_WAY = ("ratio", "difference", "list", "best", "of", "history", "measure", "last", "within", "half_life")


class DerivedColumns:
    """Fills the columns of a spec's derived fields. A field that compares candidates gets whole requests."""

    def __init__(self, spec: ModelSpec) -> None:
        self._derivations = Derivations.of(spec.fields)
        self._request = spec.input.request

    def of(self, batches: Iterable[RowBatch]) -> Iterator[RowBatch]:
        """The batches in their order. Those that share a request are held until its last row is there."""
        if not self._derivations:
            yield from batches
            return
        held: list[RowBatch] = []
        for batch in batches:
            held.append(batch)
            if batch.resumable or not self._derivations.compares:
                yield from self.filled(held)
                held = []
        yield from self.filled(held)

    def filled(self, batches: Sequence[RowBatch]) -> Iterator[RowBatch]:
        """Batches that hold whole requests together."""
        if not self._derivations or not batches:
            yield from batches
            return
        parts = [numbers_read(self._derivations, batch.columns, batch.rows) for batch in batches]
        given = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        starts = np.array(
            [0, sum(batch.rows for batch in batches)], np.int64
        )  # of requests, and the number of rows
        if self._derivations.compares:
            ids = np.concatenate([request_ids(batch, self._request) for batch in batches])
            starts = np.append(np.flatnonzero(request_starts(ids)), ids.size)
        numbers = self._derivations.computed(given, starts)
        first = 0
        for batch in batches:
            own: dict[str, Numbers] = {
                name: found[first : first + batch.rows] for name, found in numbers.items()
            }
            yield replace(batch, columns=with_numbers(self._derivations, batch.columns, own))
            first += batch.rows


def with_derived(batches: Iterable[RowBatch], specs: Sequence[ModelSpec]) -> Iterator[RowBatch]:
    """Rows that are read by several resolved specs, with the derived and history fields of all.

    Raises as `check_one_way`.
    """
    check_one_way(specs)
    for spec in specs:
        if (histories := RowHistories.of(spec)) is not None:
            batches = histories.filled(batches)
        if spec.derivation:
            batches = DerivedColumns(spec).of(WholeRequests(spec).of(batches))
    return iter(batches)


def check_one_way(specs: Sequence[ModelSpec]) -> None:
    """Raise SpecError if two specs that read the same rows compute one column in two ways."""
    ways: dict[str, tuple[object, ...]] = {}
    for spec in specs:
        for name, field in spec.fields.items():
            column, way = field.column or name, tuple(getattr(field, each) for each in _WAY)
            way += (field.side,) if field.history is not None else ()  # of the user, or of the candidate
            if field.is_derived and ways.setdefault(column, way) != way:
                raise SpecError(
                    f"fields.{name}: two of the models compute the column {column!r} in two ways; rename one of the "
                    "fields, or evaluate one model at a time"
                )


def check_comparable(spec: ModelSpec) -> None:
    """Raise SpecError if a resolved spec compares rows of requests, and labelled rows do not name these."""
    listed = [name for name, field in spec.fields.items() if field.list is not None]
    if listed and spec.input.request is None:
        raise SpecError(
            f'fields.{listed[0]}: list = "{spec.fields[listed[0]].list}" compares the rows of a request: set '
            "input.request, the column with the request of each row"
        )


@dataclass
class _Request:
    """The request that the last row belonged to. texts: of its rows, column by column; clicks: of each row."""

    id: int
    cookie: bytes
    time_us: int
    texts: Texts
    clicks: list[bool]


class RowHistories:
    """The histories of a log's users. For one thread. unsorted: requests that are earlier than one before them."""

    def __init__(self, plan: HistoryPlan, spec: ModelSpec) -> None:
        """spec: resolved; all specs of a log name the same cookie, item, time, request and label."""
        self.users = Histories(plan)
        self.unsorted = 0
        given = spec.input
        self._plan, self._input, self._format = plan, given, time_format(spec)
        self._sources = [spec.fields[name].column or name if name else given.item for name in plan.columns]
        self._outcome = CLICKED if spec.join.positive == "click" else CONVERTED
        self._open: _Request | None = None
        self._latest_us = NO_TIME
        self._rows = 0

    @classmethod
    def of(cls, *specs: ModelSpec) -> RowHistories | None:
        """For resolved specs; None if none of them has history fields."""
        plan = HistoryPlan.of(*specs)
        return cls(plan, next(each for each in specs if HistoryPlan.of(each))) if plan is not None else None

    def filled(self, batches: Iterable[RowBatch]) -> Iterator[RowBatch]:
        """The batches, with the columns filled."""
        for batch in batches:
            yield self.fill(batch)

    def fill(self, batch: RowBatch) -> RowBatch:
        """The next rows, with the columns filled. O(rows · history)."""
        if not batch.rows:
            return batch
        given, columns, plan = self._input, batch.columns, self._plan
        assert given.cookie is not None and given.timestamp is not None
        cookies = texts_of(columns[given.cookie])
        texts = row_texts(columns, self._sources, batch.rows)
        times = parse_times(columns[given.timestamp], self._format)[0].tolist()
        clicks = clicked(columns, given).tolist()
        ids = request_ids(replace(batch, first_row=self._rows), given.request)
        self._rows += batch.rows
        masks = {each.source: lacking(columns[each.source], None) for each in plan.fields}
        starts = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), batch.rows]
        requests = ids[starts[:-1]].tolist()
        of_users: list[list[HistoryValue]] = []
        of_items: list[list[float | None]] = [[] for _ in plan.item_fields]
        for request, first, stop in zip(requests, starts, starts[1:], strict=False):
            found = self._open
            if found is None or found.id != request:
                self._close()
                found = self._open = self._begin(request, cookies[first], times[first])
            part = slice(first, stop)
            mine = [column[part] for column in texts]
            of_user, items = self.users.values(found.cookie, found.time_us, mine)
            of_users.append(of_user)
            for column, values in zip(of_items, items, strict=True):
                column += values
            for kept_texts, more in zip(found.texts, mine, strict=True):
                kept_texts += more
            found.clicks += clicks[part]
        of_row = np.repeat(np.arange(len(requests)), np.diff(starts))
        return replace(batch, columns=with_values(plan, columns, masks, (of_users, of_row), of_items))

    def warnings(self) -> Iterator[str]:
        """Warnings for the user about what histories lack."""
        if VIEWED in self._plan.kinds:
            yield (
                'history = "viewed": labelled rows have no views, so values that the log lacks are those of a user who '
                "has viewed nothing; learn from events (docs/events.md)"
            )
        if self.unsorted:
            yield (
                f"{self.unsorted:,} times a request is earlier than one before it in the log: a history holds what "
                f"stands before a request and is earlier, so events are missing there; sort the log by "
                f"{self._input.timestamp!r}"
            )

    def forget(self, cookies: npt.NDArray[np.uint64]) -> list[bytes]:
        """As `Histories.forget`; the request that has not ended adds nothing to a history either."""
        found = self._open
        if found is not None and np.isin(digests(pa.array([found.cookie], pa.binary())), cookies)[0]:
            self._open = replace(found, cookie=b"")
        return self.users.forget(cookies)

    def _begin(self, request: int, cookie: bytes, time_us: int) -> _Request:
        if time_us == NO_TIME:
            cookie = b""  # neither values nor events
        elif time_us < self._latest_us:
            self.unsorted += 1
        self._latest_us = max(self._latest_us, time_us)
        return _Request(request, cookie, time_us, [[] for _ in self._sources], [])

    def _close(self) -> None:
        """Add the events of the request that has ended."""
        ended, self._open = self._open, None
        if ended is None:
            return
        self.users.add(ended.cookie, SEEN, ended.time_us, ended.texts)
        if True in ended.clicks:
            chosen = [
                [text for text, click in zip(column, ended.clicks, strict=True) if click]
                for column in ended.texts
            ]
            self.users.add(ended.cookie, self._outcome, ended.time_us, chosen)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The users and the open request as arrays, for `restore`."""
        found = self._open or _Request(0, b"", NO_TIME, [[] for _ in self._sources], [])
        open_texts = [text for column in found.texts for text in column]
        return {
            **self.users.state(),
            "request": np.array([self._open is not None, found.id], np.uint64),
            "times": np.array([found.time_us, self._latest_us], np.int64),
            "counts": np.array([self.unsorted, self._rows], np.int64),
            "clicks": np.array(found.clicks, np.bool_),
            **saved_texts("open", [found.cookie, *open_texts]),
        }

    def restore(self, arrays: Arrays) -> None:
        """Continue from a `state`. Raises CheckpointError, KeyError."""
        self.users.restore(arrays)
        time_us, self._latest_us = arrays["times"].tolist()
        self.unsorted, self._rows = arrays["counts"].tolist()
        is_open, request = arrays["request"].tolist()
        cookie, *texts = restored_texts("open", arrays)
        clicks = arrays["clicks"].tolist()
        parts = [texts[at * len(clicks) : (at + 1) * len(clicks)] for at in range(len(self._sources))]
        self._open = _Request(request, cookie, time_us, parts, clicks) if is_open else None
