"""Checks on whole rows: labels, weights, rejected and repeated rows, requests, propensities, positions.

In: batches of rows, with the hashes of their columns. Out: findings. Memory: about 32 bytes for each of at most a
million rows and as many requests; beyond, a sample of them, whose counts are estimates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from model_store.features.cells import (
    number_column,
    parse_counts,
    parse_labels,
    parse_weights,
    plain,
)
from trainer.examples.requests import Runs
from trainer.formats.batch import RowBatch
from trainer.formats.rejects import MOST_REJECTED, Reject
from trainer.inspect.columns import ColumnCounts, Rows
from trainer.inspect.findings import Finding, Severity, cut, percent
from trainer.inspect.roles import Places, Roles
from trainer.inspect.sketches import ABSENT, DistinctSample, Float64s, Int64s, Repeats, UInt64s, mixed
from trainer.learn.metrics.label_order import LabelOrder

_MANY = 0.01
"""The share of bad or repeated rows from which on a log should not be learned as it is."""
_FEW_CLICKS = 100
_LEAST_RATE, _GREATEST_RATE = 1e-4, 0.9
_NEARLY_ALL, _ALIKE, _FEWEST_DISTINCT = 0.95, 0.2, 50
_POSITIONS = 1000
_FALLS, _SURE = 1.3, 5.0
"""The click rate of the first positions is so many times that of the last ones, and surely falls."""
_TOO_OFTEN, _SURELY = 2.0, 6.0
"""An item is shown so many times as often as its propensities allow, and by so many standard errors."""


class Labels:
    """Labels and weights: how many rows are clicked, and which labels are none."""

    def __init__(self, roles: Roles) -> None:
        self._roles = roles
        self.rows = 0
        self.views = self.clicks = 0.0
        self._bad, self._bad_mark, self._bad_text = 0, -1, ""
        self._above, self._above_mark, self._above_text = 0, -1, ""
        self._weights, self._weights_mark, self._weights_text = 0, -1, ""
        self._first_rows = Counter[str]()
        self._order = LabelOrder()

    def of(self, batch: RowBatch, marks: Int64s) -> tuple[Float64s, Float64s]:
        """Views and clicks of each row, 0 and 0 where the label is invalid."""
        roles, label = self._roles, batch.columns[self._roles.label]
        if roles.views is not None:
            clicks, views, bad, bad_views = parse_counts(label, batch.columns[roles.views])
            above = [each for each in bad if each[1].endswith("as many as views")]
            bad = [each for each in bad if each not in above] + bad_views
            self._above += len(above)
            if above and self._above_mark < 0:
                self._above_mark, self._above_text = int(marks[above[0][0]]), above[0][1]
            bad = bad + above
            self._bad -= len(above)
        else:
            positive = roles.positive
            clicks, bad = parse_labels(label, positive if positive is None else list(_tuple(positive)))
            views = np.ones(batch.rows)
        wrong = [row for row, _ in bad]
        views[wrong] = clicks[wrong] = 0.0
        if roles.views is None:
            self._order.add(np.delete(clicks, wrong))
        self._bad += len(bad)
        if bad and self._bad_mark < 0 and self._bad > 0:
            self._bad_mark, self._bad_text = int(marks[bad[0][0]]), _text_of(label, bad[0][0])
        if roles.weight is not None:
            invalid = parse_weights(batch.columns[roles.weight])[1]
            self._weights += len(invalid)
            if invalid and self._weights_mark < 0:
                row = invalid[0][0]
                self._weights_mark = int(marks[row])
                self._weights_text = _text_of(batch.columns[roles.weight], row)
        self.rows += batch.rows
        self.views += float(views.sum())
        self.clicks += float(clicks.sum())
        return views, clicks

    def findings(self, places: Places) -> Iterator[Finding]:
        """What is wrong with the labels."""
        name = self._roles.label
        if self._bad:
            empty = "" if self._bad_text else ", or none"
            yield Finding(
                "error" if self._bad >= _MANY * self.rows else "warning",
                "label-values",
                f"the label {name} has other values than two{empty}: training rejects these rows",
                '[input] positive = "…" names the value that is a click; all others are then none',
                count=self._bad,
                of=self.rows,
                columns=(name,),
                example=self._bad_text,
                where=places.where(self._bad_mark),
            )
        if self._above:
            yield Finding(
                "error" if self._above >= _MANY * self.rows else "warning",
                "clicks-above-views",
                f"more clicks in {name} than views in {self._roles.views}: training rejects these rows",
                "count clicks and views over the same time",
                count=self._above,
                of=self.rows,
                columns=(name, str(self._roles.views)),
                example=self._above_text,
                where=places.where(self._above_mark),
            )
        if self._weights:
            yield Finding(
                "error" if self._weights >= _MANY * self.rows else "warning",
                "weights",
                f"the weight {self._roles.weight} is negative or no number: training rejects these rows",
                "write a number of 0 or more",
                count=self._weights,
                of=self.rows,
                columns=(str(self._roles.weight),),
                example=self._weights_text,
                where=places.where(self._weights_mark),
            )
        yield from self._rate()
        for warning in self._order.warnings():
            yield Finding(
                "error",
                "label-order",
                warning,
                "sort the log by time, or shuffle its rows, as `shuf` does",
                columns=(name,),
            )

    def _rate(self) -> Iterator[Finding]:
        name, clicks, views = self._roles.label, self.clicks, self.views
        rate = clicks / views if views else 0.0
        count, of = round(clicks), round(views)
        if views and rate in (0.0, 1.0):
            yield Finding(
                "error",
                "label-constant",
                f"no row is clicked by the label {name}"
                if rate == 0.0
                else f"every row is clicked by the label {name}",
                "check which column is the label: --label NAME; join the clicks to the views, see docs/join.md",
                count=count,
                of=of,
                columns=(name,),
            )
        elif rate > _GREATEST_RATE or (rate < _LEAST_RATE and views >= 1 / _LEAST_RATE):
            yield Finding(
                "warning",
                "label-extreme",
                f"{percent(clicks, views)} of the rows are clicked by the label {name}",
                "check that the label is the right one, and that 1 is a click",
                count=count,
                of=of,
                columns=(name,),
            )
        elif views and min(clicks, views - clicks) < _FEW_CLICKS:
            yield Finding(
                "note",
                "few-clicks",
                f"{count:,} clicks: too few to tell a field that helps from one that does not, or to find leaks",
                "learn a longer log; `--passes 5` helps a little",
                count=count,
                of=of,
                columns=(name,),
            )


def _tuple(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _text_of(column: Any, row: int) -> str:
    value = column[row].as_py()
    return cut(
        value.decode(errors="replace") if isinstance(value, bytes) else "" if value is None else str(value)
    )


class Rejected:
    """Rows that the reader could not read."""

    def __init__(self) -> None:
        self.count = 0
        self._categories = Counter[str]()
        self._first: Reject | None = None

    def add(self, rejects: Sequence[Reject]) -> None:
        """The rejects of a batch."""
        self.count += len(rejects)
        self._categories.update(each.category for each in rejects)
        self._first = self._first or next(iter(rejects), None)

    def findings(self, rows: int) -> Iterator[Finding]:
        """One finding for all, with the reasons."""
        if self._first is None:
            return
        reasons = ", ".join(f"{name} ({count:,})" for name, count in self._categories.most_common(3))
        every = rows + self.count
        yield Finding(
            "error" if self.count >= MOST_REJECTED * every else "warning",
            "rejected-rows",
            f"rows that cannot be read: {reasons}",
            "list them: ftrie train … --rejects bad.jsonl",
            count=self.count,
            of=every,
            example=cut(self._first.reason, 100),
            where=f"{self._first.file}:{self._first.line}",
        )


class Repeated:
    """Whole rows and requests that come twice, and requests that go on after rows of others."""

    def __init__(self, roles: Roles, is_of_events: bool) -> None:
        self._roles, self._is_of_events = roles, is_of_events
        self._rows, self._pairs, self._runs = Repeats(), Repeats(), Runs()
        self._split, self._split_mark = 0, -1

    def add(self, hashes: Mapping[str, UInt64s], marks: Int64s, file: int) -> None:
        """The next rows by the hashes of their columns."""
        whole = np.zeros(marks.size, np.uint64)
        for each in hashes.values():
            whole = (whole + each) * np.uint64(0x9E3779B97F4A7C15)
        whole = mixed(whole)
        self._rows.add(whole, marks)
        request = hashes.get(self._roles.request or "")
        item = hashes.get(self._roles.item or "")
        if request is None:
            return
        if item is not None:
            there = (request != ABSENT) & (item != ABSENT)
            self._pairs.add(mixed(request[there] * np.uint64(3) + item[there]), marks[there])
        self._runs.add(request, file)

    def findings(self, columns: Mapping[str, ColumnCounts], places: Places) -> Iterator[Finding]:
        """columns: the counts of all columns."""
        rows, repeated = self._rows, self._rows.repeated
        distinct = rows.rows - repeated
        of_columns = (each.distinct for each in columns.values() if not each.is_several)
        telling = max(*of_columns, self._pairs.sample.distinct)
        if repeated:
            # Without a column that tells rows apart, equal rows may be two that are alike; many surely are, unless all
            # come as often as one another.
            unlike = distinct >= _ALIKE * rows.rows or rows.evenly >= _NEARLY_ALL
            sure = telling >= _NEARLY_ALL * distinct and distinct >= _FEWEST_DISTINCT and unlike
            if not sure and repeated > _ALIKE * rows.rows:
                repeated = 0
            many = repeated >= _MANY * rows.rows
            if repeated and (sure or many):
                mark, before = rows.examples[0]
                yield Finding(
                    ("error" if many else "warning") if sure else "note",
                    "duplicate-rows",
                    "rows that are equal to an earlier one in every column"
                    + (
                        ": they are learned twice"
                        if sure
                        else "; no column tells rows apart, so both may be true"
                    ),
                    "drop the copies" if sure else "none, unless the writer repeats rows",
                    count=repeated,
                    of=rows.rows,
                    example=f"the same row as {places.where(before)}",
                    where=places.where(mark),
                    is_estimate=not rows.sample.is_exact,
                )
        if not self._is_of_events:
            yield from self._requests(columns, places)

    def _requests(self, columns: Mapping[str, ColumnCounts], places: Places) -> Iterator[Finding]:
        pairs, twice = self._pairs, self._pairs.repeated - self._rows.repeated
        if self._pairs.rows and twice > 0 and pairs.examples:
            mark, before = pairs.examples[0]
            yield Finding(
                "error" if twice >= _MANY * pairs.rows else "warning",
                "duplicate-requests",
                f"the same {self._roles.item} again in the same {self._roles.request}, in rows that are not equal",
                "drop the copies; if a request may show an item twice, name a request id that is finer",
                count=twice,
                of=pairs.rows,
                columns=(str(self._roles.request), str(self._roles.item)),
                example=f"the same request and item as {places.where(before)}",
                where=places.where(mark),
                is_estimate=not pairs.sample.is_exact,
            )
        if self._runs.resumed:
            name = str(self._roles.request)
            yield Finding(
                "warning" if self._roles.is_given else "note",
                "split-requests",
                f"{name}: requests that go on after rows of others; samples, list features and ranking metrics take "
                "each part as a request",
                f"sort the log by {name}",
                count=self._runs.resumed,
                of=columns[name].distinct,
                unit="requests",
                columns=(name,),
            )


class Propensities:
    """The probabilities with which items were shown: missing, impossible, or contradicted by how often they were."""

    def __init__(self, roles: Roles) -> None:
        self._name, self._item = str(roles.propensity), roles.item
        self._rows = self._missing = 0
        self._bad, self._bad_mark, self._bad_text = 0, -1, ""
        self._missing_mark = -1
        self._items = DistinctSample(1 << 12, 3)

    def add(self, columns: Mapping[str, Any], hashes: Mapping[str, UInt64s], marks: Int64s) -> None:
        """The propensities of the next rows."""
        column = plain(columns[self._name])
        numbers, invalid = number_column(column)
        absent = np.isnan(numbers)
        absent[[row for row, _ in invalid]] = False
        bad = (numbers <= 0.0) | (numbers > 1.0)
        bad[[row for row, _ in invalid]] = True
        self._rows += numbers.size
        self._missing += int(np.count_nonzero(absent))
        self._bad += int(np.count_nonzero(bad))
        if self._bad_mark < 0 and bad.any():
            row = int(np.argmax(bad))
            self._bad_mark, self._bad_text = int(marks[row]), _text_of(column, row)
        if self._missing_mark < 0 and absent.any():
            self._missing_mark = int(marks[np.argmax(absent)])
        good = ~absent & ~bad
        if self._item in hashes and good.any():
            keys, first, group = np.unique(
                hashes[str(self._item)][good], return_index=True, return_inverse=True
            )
            inverse = 1.0 / numbers[good]
            sums = np.stack(
                [np.bincount(group), np.bincount(group, inverse), np.bincount(group, inverse**2)], axis=1
            )
            self._items.add(keys, sums.astype(np.float64), marks[good][first])

    def findings(self, places: Places) -> Iterator[Finding]:
        """Nothing if no row has a propensity."""
        name, filled = self._name, self._rows - self._missing
        if not filled:
            return
        if self._bad:
            yield self._finding(
                "error" if self._bad >= _MANY * filled else "warning",
                f"{name}: propensities that are no probability above 0 and up to 1",
                "write the probability with which the item was shown; estimates by `ftrie replay` divide by it",
                self._bad,
                self._bad_text,
                places.where(self._bad_mark),
            )
        if self._missing:
            yield self._finding(
                "warning",
                f"{name} is missing in some rows, which estimates of other policies leave out",
                "log it for every row, also of items that are always shown (1)",
                self._missing,
                "",
                places.where(self._missing_mark),
            )
        yield from self._contradicted(filled - self._bad, places)

    def _contradicted(self, rows: int, places: Places) -> Iterator[Finding]:
        """Items whose rows, each weighted by 1 / propensity, are more than all rows; expected are at most as many."""
        shown, weighted, squared = self._items.sums.T
        if not rows or not shown.size:
            return
        surely = (weighted - rows) / np.sqrt(np.maximum(squared, 1.0))
        wrong = np.flatnonzero(
            (weighted > _TOO_OFTEN * rows) & (surely > _SURELY) & (self._items.keys != ABSENT)
        )
        if not wrong.size:
            return
        worst = wrong[int(np.argmax(weighted[wrong] / rows))]
        share = shown[worst] / rows
        allowed = shown[worst] / weighted[worst]
        yield self._finding(
            "warning",
            f"{name_of(self._item)}: {wrong.size:,} are shown far more often than {self._name} allows: one in "
            f"{percent(share, 1)} of the rows, with a propensity of {allowed:.3g}",
            "check that the propensity is that of the item shown, among all that could have been",
            int(shown[wrong].sum()),
            "",
            places.where(int(self._items.first[worst])),
        )

    def _finding(
        self, severity: Severity, message: str, remedy: str, count: int, example: str, where: str
    ) -> Finding:
        return Finding(
            severity,
            "propensity",
            message,
            remedy,
            count=count,
            of=self._rows,
            columns=(self._name,),
            example=example,
            where=where,
        )


def name_of(column: str | None) -> str:
    """A column's name, for the beginning of a message."""
    return column if column is not None else "items"


class Positions:
    """The click rate by position, if positions are small whole numbers."""

    def __init__(self, roles: Roles) -> None:
        self._name = str(roles.position)
        self._is_field = self._name in roles.fields
        self._views, self._clicks = np.zeros(_POSITIONS + 1), np.zeros(_POSITIONS + 1)
        self._others = 0

    def add(self, columns: Mapping[str, Any], rows: Rows) -> None:
        """The positions of the next rows."""
        column = plain(columns[self._name])
        try:
            numbers = number_column(column)[0]
        except TypeError:
            return
        known = np.isfinite(numbers)
        fits = known & (numbers >= 0) & (numbers <= _POSITIONS) & (np.floor(numbers) == numbers)
        self._others += int(np.count_nonzero(known & ~fits))
        places = numbers[fits].astype(np.int64)
        self._views += np.bincount(places, rows.views[fits], _POSITIONS + 1)
        self._clicks += np.bincount(places, rows.clicks[fits], _POSITIONS + 1)

    def findings(self) -> Iterator[Finding]:
        """A note if clicks surely fall with the position."""
        used = np.flatnonzero(self._views >= 50)
        if self._others or used.size < 2:
            return
        views, clicks = self._views[used], self._clicks[used]
        total, rank = views.sum(), np.arange(used.size, dtype=np.float64)
        rate, mean = clicks.sum() / total, (views * rank).sum() / total
        spread = (views * (rank - mean) ** 2).sum()
        if not 0.0 < rate < 1.0 or not spread:
            return
        trend = ((rank - mean) * clicks).sum() / np.sqrt(rate * (1 - rate) * spread)  # Cochran and Armitage
        part = max(used.size // 3, 1)
        first, last = (
            clicks[each].sum() / views[each].sum() for each in (slice(0, part), slice(-part, None))
        )
        if trend > -_SURE or first < _FALLS * last:
            return
        name = self._name
        yield Finding(
            "note",
            "position-bias",
            f"{name}: the click rate falls from {percent(clicks[0], views[0])} at {used[0]} to "
            f"{percent(clicks[-1], views[-1])} at {used[-1]}: part of what is clicked is where it stood",
            f"evaluate and serve without it: ftrie evaluate --without {name}"
            if self._is_field
            else f"learn it as a field, {name.removeprefix('@')} = {{}}, and evaluate and serve without it",
            count=int(clicks.sum()),
            of=int(total),
            columns=(name,),
        )
