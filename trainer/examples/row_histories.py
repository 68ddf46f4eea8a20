"""The histories of users in a log of labelled rows: fills the columns of history fields, in the order of the file.

In: batches in the order of the log. Out: the same batches, with a value in the columns of history
fields where the log has none. A request is a run of rows with one id, or each row where the log has no ids; its cookie
and time are those of its first row. Once it has ended, its rows count as seen at that time, and those with a click
(`input.positive`, `input.views`) as clicked (with `join.positive = "conversion"`: as converted). So the rows of a
request do not see one another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.features.history import CLICKED, CONVERTED, SEEN, HistoryPlan, HistoryValue, kept
from model_store.spec.spec import ModelSpec
from trainer.events.histories import (
    Arrays,
    Histories,
    Texts,
    as_array,
    lacking,
    restored_texts,
    saved_texts,
    texts_of,
    where,
)
from trainer.examples.requests import request_ids
from trainer.formats.batch import RowBatch
from trainer.formats.cells import clicked
from trainer.formats.times import NO_TIME, parse_times, time_format


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
        given, columns, plan = self._input, dict(batch.columns), self._plan
        assert given.cookie is not None and given.timestamp is not None
        cookies = texts_of(columns[given.cookie])
        none = [b""] * batch.rows
        texts = [
            [kept(text) for text in texts_of(columns[name])] if name is not None else none
            for name in self._sources
        ]
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
            user, items = self._values(found, mine)
            of_users.append(user)
            for column, values in zip(of_items, items, strict=True):
                column += values
            for kept_texts, more in zip(found.texts, mine, strict=True):
                kept_texts += more
            found.clicks += clicks[part]
        of_row = pa.array(np.repeat(np.arange(len(requests)), np.diff(starts)))
        for place, each in enumerate(plan.user_fields):
            values = as_array(each, [row[place] for row in of_users]).take(of_row)
            columns[each.source] = where(masks[each.source], values, columns[each.source])
        for each, numbers in zip(plan.item_fields, of_items, strict=True):
            columns[each.source] = where(masks[each.source], as_array(each, numbers), columns[each.source])
        return replace(batch, columns=columns)

    def warnings(self) -> Iterator[str]:
        """Warnings for the user about the order of the log."""
        if self.unsorted:
            yield (
                f"{self.unsorted:,} times a request is earlier than one before it in the log: a history holds what "
                f"stands before a request and is earlier, so events are missing there; sort the log by "
                f"{self._input.timestamp!r}"
            )

    def _begin(self, request: int, cookie: bytes, time_us: int) -> _Request:
        if time_us == NO_TIME:
            cookie = b""  # neither values nor events
        elif time_us < self._latest_us:
            self.unsorted += 1
        self._latest_us = max(self._latest_us, time_us)
        return _Request(request, cookie, time_us, [[] for _ in self._sources], [])

    def _values(self, request: _Request, texts: Texts) -> tuple[list[HistoryValue], list[list[float | None]]]:
        users, cookie, time_us = self.users, request.cookie, request.time_us
        user = users.find(cookie) if cookie else None
        return users.user_values(cookie, user, time_us), users.item_values(cookie, user, time_us, texts)

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
