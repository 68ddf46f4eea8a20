"""The logged decisions: which item was shown, with what propensity, and whether it was clicked.

Input: batches of labelled rows. Output: `LoggedRows`, grouped by request. A decision is what a policy chooses at once:
with DECISION_ROW each row, one item for one position; with DECISION_LIST each request, the few items shown of many.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from model_store.errors import InputError, SpecError, listed
from model_store.spec.sections import InputSection
from model_store.spec.spec import ModelSpec
from trainer.events.columns import POSITION, PROPENSITY, digests
from trainer.examples.derived import with_derived
from trainer.examples.hashing import ExampleMaker
from trainer.examples.open_log import Log, open_log
from trainer.examples.requests import request_ids
from trainer.formats.batch import Position, RowBatch
from trainer.formats.cells import column_text, number_column, parse_labels, parse_weights, plain, real_column
from trainer.learn.scorer import PredictingMaker

Array = npt.NDArray[Any]
DECISION_ROW, DECISION_LIST = "row", "list"
PROPENSITIES = ("propensity_score", "propensity", "pscore", PROPENSITY)
POSITIONS = ("position", POSITION)


@dataclass(frozen=True)
class LogOfRows:
    """A log of labelled rows, as `ftrie train` reads them. decision: DECISION_ROW or DECISION_LIST.

    rewards: the label may be any finite number, and is none to the models.
    """

    log: Log
    propensity: str | None
    position: str | None
    decision: str
    rewards: bool = False

    def read(
        self, spec: ModelSpec, models: Sequence[ModelSpec]
    ) -> tuple[LoggedRows, Layout, list[ModelSpec]]:
        """Read the rows once, with the columns of all models; return the models' specs, resolved, too.

        `spec` names the label and the item. A row that is invalid for one model is left out for all of them, so that
        all estimates are from the same rows.

        Raises SpecError where a column is missing, InputError where the log cannot be read or has no row.
        """
        with open_log(self.log, spec, *models) as opened:
            own, *resolved = opened.specs
            if any(each.input.views is not None for each in opened.specs):
                raise SpecError(
                    "input.views: estimates judge single impressions, and a row of this log counts many; leave out "
                    "--policy, or name a log with a row for each impression"
                )
            layout = Layout.of(opened.columns, self.propensity, self.position)
            maker = PredictingMaker if self.rewards else ExampleMaker
            collector, makers = RowCollector(own.input, layout, self.rewards), [*map(maker, resolved)]
            wanted = [name for name in (layout.propensity, layout.position) if name is not None]
            batches = opened.batches([*own.input.named_columns, *wanted])
            for batch in with_derived(batches, resolved):
                collector.add(batch, bad_rows(batch, makers))
        return collector.rows(self.decision), layout, resolved


@dataclass(frozen=True)
class LoggedRows:
    """Rows grouped by request, requests in the order of their first row.

    columns: Arrow arrays over the rows. label, weight (importance), propensity (NaN where it is not in (0, 1]):
    float64[rows]; item, position: text over the rows, position None where the log has none. request: int64[rows],
    0 … requests - 1, ascending. cluster: int64[rows], from 0 on, of the row's cookie, else of its request: rows of
    different clusters are independent. unusable: rows left out because they have no propensity; rejected: bad rows.
    has_propensity: False where no row has one; then none is left out for it.
    """

    columns: Mapping[str, Any]
    label: Array
    weight: Array
    propensity: Array
    item: Any
    position: Any | None
    request: Array
    cluster: Array
    unusable: int = 0
    rejected: int = 0
    has_propensity: bool = True

    def __len__(self) -> int:
        return int(self.label.size)

    @property
    def requests(self) -> int:
        """The number of requests."""
        return int(self.request[-1]) + 1 if self.request.size else 0

    def decisions(self, kind: str) -> Decisions:
        """The decisions of a kind: DECISION_ROW or DECISION_LIST."""
        if kind == DECISION_ROW:
            rows = np.arange(len(self))
            return Decisions(rows, rows, np.ones(len(self), np.int64))
        first = np.searchsorted(self.request, np.arange(self.requests))
        return Decisions(self.request, first, np.bincount(self.request, minlength=self.requests))

    def batch(self, rows: Array, columns: Mapping[str, Any] | None = None) -> RowBatch:
        """Some of the rows as a batch. `columns`, over these rows, replace their columns."""
        columns = columns or {}
        own = {name: each for name, each in self.columns.items() if name not in columns}
        taken = {name: column.take(pa.array(rows)) for name, column in own.items()}
        lines = np.asarray(rows, np.int64)
        return RowBatch({**taken, **columns}, lines, "log", (), len(rows), Position("log"))


@dataclass(frozen=True)
class Decisions:
    """of_row: int64[rows], each row's decision; first, size: int64[decisions], its first row and number of items."""

    of_row: Array
    first: Array
    size: Array


@dataclass
class RowCollector:
    """Collects batches into LoggedRows. Memory: all columns of all rows.

    Rows arrive in the order they were shown; or in any order, with keys to sort them by: of rows with equal keys the
    last one counts.
    """

    section: InputSection
    layout: Layout
    rewards: bool = False
    _batches: list[RowBatch] = field(default_factory=list)
    _good: list[Array] = field(default_factory=list)
    _ids: list[Array] = field(default_factory=list)
    _keys: list[Array] = field(default_factory=list)
    _rows: int = 0
    _rejected: int = 0

    def add(self, batch: RowBatch, bad: Sequence[int] = (), keys: Array | None = None) -> None:
        """Add a batch. bad: indexes of rows to leave out; keys: int64[rows], for all batches or for none."""
        good = np.ones(batch.rows, bool)
        good[list(bad)] = False
        self._ids.append(request_ids(replace(batch, first_row=self._rows), self.section.request))
        self._keys.append(np.arange(self._rows, self._rows + batch.rows) if keys is None else keys)
        self._batches.append(batch)
        self._good.append(good)
        self._rows += batch.rows
        self._rejected += int((~good).sum()) + len(batch.rejects)

    def rows(self, kind: str) -> LoggedRows:
        """All usable rows; of a list either all or none. Raises InputError for a log without rows."""
        if not self._rows:
            raise InputError("the log has no rows; expected at least one")
        columns = _columns(self._batches)
        label, odd_labels = self._rewards(columns)
        weight, odd_weights = np.ones(self._rows), list[tuple[int, str]]()
        if self.section.weight is not None:
            weight, odd_weights = parse_weights(columns[self.section.weight])
        propensity = self._propensities(columns)
        good = np.concatenate(self._good)
        good[[row for row, _ in (*odd_labels, *odd_weights)]] = False
        request, keys = numbered(np.concatenate(self._ids))[0], np.concatenate(self._keys)
        usable = np.ones(self._rows, bool) if propensity is None else ~np.isnan(propensity)
        kept = _whole_lists(good & usable, request) if kind == DECISION_LIST else good & usable
        order = np.flatnonzero(kept & _last_of(keys))
        order = order[np.argsort(keys[order], kind="stable")]
        order = order[np.argsort(numbered(request[order])[0], kind="stable")]
        taken = {name: column.take(pa.array(order)) for name, column in columns.items()}
        position = taken.get(self.layout.position) if self.layout.position else None
        no_item = pa.array([b""] * order.size, pa.binary())
        return LoggedRows(
            columns=taken,
            label=label[order],
            weight=weight[order],
            propensity=np.full(order.size, np.nan) if propensity is None else propensity[order],
            item=no_item if self.section.item is None else column_text(taken[self.section.item]),
            position=None if position is None else column_text(position),
            request=numbered(request[order])[0],
            cluster=numbered(self._clusters(taken, request[order]))[0],
            unusable=int((good & ~kept).sum()),
            rejected=self._rejected + int((np.concatenate(self._good) & ~good).sum()),
            has_propensity=propensity is not None,
        )

    def _rewards(self, columns: Mapping[str, Any]) -> tuple[Array, list[tuple[int, str]]]:
        """The labels, and (row, reason) for rows without one; of rewards also for those without an item."""
        if not self.rewards:
            return parse_labels(columns[self.section.label], self.section.positive)
        numbers, _ = real_column(plain(columns[self.section.label]))
        item = column_text(columns[self.section.item or self.section.label])
        bad = np.isnan(numbers) | np.asarray(pc.equal(pc.binary_length(item), 0))
        return numbers, [(int(row), "expected a finite number and an item") for row in np.flatnonzero(bad)]

    def _clusters(self, columns: Mapping[str, Any], request: Array) -> Array:
        """The hash of each row's cookie; where there is none, its request's number."""
        cookie = self.section.cookie
        if cookie is None or cookie not in columns:
            return request
        cookies = digests(column_text(columns[cookie]))
        return np.where(cookies, cookies, request.astype(np.uint64))

    def _propensities(self, columns: Mapping[str, Any]) -> Array | None:
        """float64[rows], NaN where not in (0, 1]; None where the log has no propensities."""
        if self.layout.propensity is None:
            return None
        numbers, _ = number_column(plain(columns[self.layout.propensity]))
        if np.isnan(numbers).all():
            return None
        return np.where((numbers > 0.0) & (numbers <= 1.0), numbers, np.nan)


@dataclass(frozen=True)
class Layout:
    """The names of the columns with propensity and position; None where the log has none."""

    propensity: str | None = None
    position: str | None = None

    @classmethod
    def of(cls, columns: Sequence[str], propensity: str | None, position: str | None) -> Layout:
        """The named columns, by default the first of the usual names that the log has.

        Raises SpecError for a named column that is not in the log.
        """
        for flag, name in (("--propensity", propensity), ("--position", position)):
            if name is not None and name not in columns:
                raise SpecError(f"{flag}: no column {name!r} in the log; it has: {listed(columns, name)}")
        return cls(
            propensity or next((name for name in PROPENSITIES if name in columns), None),
            position or next((name for name in POSITIONS if name in columns), None),
        )


def bad_rows(batch: RowBatch, makers: Sequence[ExampleMaker]) -> list[int]:
    """The indexes of rows that are invalid for one of the makers."""
    good = np.ones(batch.rows, bool)
    for maker in makers:
        mine = np.zeros(batch.rows, bool)
        mine[maker.make(batch).rows] = True
        good &= mine
    return [int(row) for row in np.flatnonzero(~good)]


def _columns(batches: Sequence[RowBatch]) -> dict[str, Any]:
    """The batches concatenated. A column with text in one batch and numbers in another is text."""
    names = dict.fromkeys(name for batch in batches for name in batch.columns)
    return {
        name: concatenated(
            [plain(each.columns[name]) if name in each.columns else pa.nulls(each.rows) for each in batches]
        )
        for name in names
    }


def concatenated(parts: Sequence[Any]) -> Any:
    """Plain arrays one after the other; text where their types differ, as those of JSON lines may."""
    tables = [pa.table({"": part}) for part in parts]
    try:
        return pa.concat_tables(tables, promote_options="permissive").column(0).combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.concat_arrays([_texts_of(part) for part in parts])


def _texts_of(part: Any) -> Any:
    """The texts of values; of a set its JSON, from which a field reads the same members."""
    if not pa.types.is_nested(part.type):
        return column_text(part)
    values = part.to_pylist()
    for row, members in enumerate(values if pa.types.is_map(part.type) else ()):
        if members is not None:
            values[row] = found = dict[str, float]()
            for member, x in members:
                name = member.decode("utf-8", "replace") if isinstance(member, bytes) else str(member)
                found[name] = found.get(name, 0.0) + (x or 0.0)
    return pa.array([None if each is None else json.dumps(each).encode() for each in values], pa.binary())


def numbered(ids: Array) -> tuple[Array, Array]:
    """Each row's number, of ids numbered in the order of their first rows, and those first rows: int64 each."""
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(first.size, np.int64)
    rank[order] = np.arange(first.size)
    return rank[inverse.reshape(-1)], first[order]


def _last_of(keys: Array) -> Array:
    """Whether each row is the last one with its key."""
    last = np.zeros(keys.size, bool)
    last[keys.size - 1 - np.unique(keys[::-1], return_index=True)[1]] = True
    return last


def _whole_lists(kept: Array, request: Array) -> Array:
    """The kept rows of requests of which every row is kept."""
    broken = np.zeros(int(request.max()) + 1, bool)
    broken[request[~kept]] = True
    return np.asarray(kept & ~broken[request])
