"""Views as a log to learn from: the next view is the click.

With `[join] positive = "view"` each view becomes a request, known at once: the item that was viewed, which is clicked,
and the other items that anyone viewed last, which are not. `ViewLists` is between the merger and the histories: it
gives the views of a segment these rows. So histories compute the values of all of them, as of before the view.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model_store.spec.spec import ModelSpec
from trainer.events.columns import together
from trainer.events.events import VIEW, Merged
from trainer.events.parse import gathered
from trainer.events.waiting_rows import WaitingRows

_HASHES, _ROWS, _LISTS = "views.items", "views.rows", "views.lists"


class ViewLists:
    """The items viewed last, each with the values of its latest view. For one thread.

    What it adds depends on the events and their order alone, not on how they were cut.
    """

    def __init__(self, spec: ModelSpec) -> None:
        """spec: resolved."""
        self._most = spec.join.alternatives
        of_items = (field.column or name for name, field in spec.fields.items() if field.side == "item")
        self._of_items = {spec.input.item, *of_items}
        # Hashes of items, the one viewed last at the end, and the row of each in the columns.
        self._latest: dict[int, int] = {}
        self._columns: dict[str, pa.Array] = {}
        # A view has no request_id, but its rows are one request: "view 1", "view 2" and so on.
        self._request, self._lists = spec.input.request, 0

    def take(self, merged: Merged, segments: WaitingRows) -> Merged:
        """The events, whose views have rows of the other items in their segment. O(views · alternatives)."""
        shown = np.flatnonzero(merged.rows)
        if not (merged.kind == VIEW).any():
            return merged
        number = int(merged.segment[shown[0]])
        table = segments.table(number)
        known = len(self._latest)
        places = gathered(merged.row[shown], merged.rows[shown].astype(np.int64))
        hashes = np.zeros(known + places.size, np.uint64)
        hashes[:known] = list(self._latest)
        hashes[known + places] = merged.items
        # Of each row: the row with the values of its request, and that with the values of its item.
        requests, items, rows = list[int](), list[int](), np.zeros_like(merged.rows)
        names = list[bytes | None]()
        is_view, first, counts = (merged.kind == VIEW).tolist(), merged.row.tolist(), merged.rows.tolist()
        for event in shown.tolist():
            own = range(known + first[event], known + first[event] + counts[event])
            before = len(items)
            items += own
            if is_view[event]:
                item = int(hashes[own[0]])
                self._latest.pop(item, None)
                items += islice(reversed(self._latest.values()), self._most)
                self._latest[item] = own[0]
                if len(self._latest) > self._most + 1:
                    self._latest.pop(next(iter(self._latest)))
                self._lists += 1
            rows[event] = len(items) - before
            names += [b"view %d" % self._lists if is_view[event] else None] * int(rows[event])
            requests += own if counts[event] == rows[event] else [own[0]] * int(rows[event])
        values = dict(together([self._columns, table])) if known else dict(table)
        asked = pa.array(np.array(requests, np.int64) - known)
        made = {
            name: values[name].take(pa.array(items)) if name in self._of_items else column.take(asked)
            for name, column in table.items()
        }
        if self._request in made:
            made[self._request] = pc.coalesce(pa.array(names, pa.binary()), made[self._request])
        segments.replace(number, made)
        kept = pa.array(list(self._latest.values()), pa.int64())
        self._columns = {name: values[name].take(kept) for name in table}
        self._latest = {item: row for row, item in enumerate(self._latest)}
        starts = np.zeros_like(merged.row)
        starts[shown] = np.cumsum(rows[shown]) - rows[shown]
        return replace(merged, row=starts, rows=rows, items=hashes[items])

    def forget_users(self) -> None:
        """Drop who viewed the items; only the items' values are used."""
        self._columns = {
            name: column if name in self._of_items else pa.nulls(len(column), column.type)
            for name, column in self._columns.items()
        }

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The items as arrays, for `restore`."""
        batch = pa.RecordBatch.from_arrays(list(self._columns.values()), names=list(self._columns))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        rows = np.frombuffer(sink.getvalue(), np.uint8)
        return {
            _HASHES: np.array(list(self._latest), np.uint64),
            _ROWS: rows,
            _LISTS: np.array([self._lists], np.int64),
        }

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from a `state`. Raises KeyError, pa.ArrowInvalid."""
        self._lists = int(arrays[_LISTS][0]) if _LISTS in arrays else 0  # older checkpoints do not have it
        self._latest = {item: row for row, item in enumerate(arrays[_HASHES].tolist())}
        with pa.ipc.open_stream(pa.py_buffer(arrays[_ROWS])) as stream:
            batch = stream.read_next_batch()
        self._columns = dict(zip(batch.schema.names, batch.columns, strict=True))
