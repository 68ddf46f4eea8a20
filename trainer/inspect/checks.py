"""Checks on rows and columns, and what is wrong with them.

In: batches of rows, what was counted of every column, and what the columns are. Out: findings. The thresholds are
constants, which docs/doctor.md explains; findings of one check on several columns are one where each alone says little.
Memory: about 32 bytes for each of at most a million rows and as many requests; beyond, a sample of them, whose counts
are estimates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from trainer.examples.requests import Runs
from trainer.formats.batch import RowBatch
from trainer.formats.cells import (
    number_column,
    parse_counts,
    parse_labels,
    parse_weights,
    plain,
)
from trainer.formats.rejects import MOST_REJECTED, RejectLog
from trainer.inspect.columns import (
    ABSENT,
    CLICKS,
    OTHER_CLICKS,
    OTHER_VIEWS,
    VIEWS,
    CheckedRows,
    ColumnCounts,
    DistinctSample,
    Float64s,
    Int64s,
    Repeats,
    mixed,
)
from trainer.inspect.examination import Examined, ItemPositions
from trainer.inspect.findings import Cases, Findings, Severity, cut, listed, percent, words_of
from trainer.inspect.roles import Roles
from trainer.learn.metrics.warnings import LabelOrder

# --- Whole rows ---


_MANY = 0.01
"""At this share of bad or repeated rows a log should not be learned as it is."""
_FEW_CLICKS = 100
_LEAST_RATE, _GREATEST_RATE = 1e-4, 0.9
_NEARLY_ALL, _ALIKE, _FEWEST_DISTINCT = 0.95, 0.2, 50
_POSITIONS = 1000
_FALLS, _SURE = 1.3, 5.0
"""How many times the last positions' click rate that of the first must be, and by how many standard errors it falls."""
_TOO_OFTEN, _SURELY = 2.0, 6.0
"""How many times as often as its propensities allow an item must be shown, and by how many standard errors."""


class Labels:
    """Labels and weights: how many rows are clicked, and which labels are invalid."""

    def __init__(self, roles: Roles) -> None:
        self._roles = roles
        self.rows = 0
        self.views = self.clicks = 0.0
        self._bad, self._above, self._weights = Cases(), Cases(), Cases()
        self._order = LabelOrder()

    def of(self, batch: RowBatch, marks: Int64s) -> tuple[Float64s, Float64s]:
        """Views and clicks of each row, 0 and 0 where the label is invalid."""
        roles, label = self._roles, batch.columns[self._roles.label]
        if roles.views is not None:
            clicks, views, bad, bad_views = parse_counts(label, batch.columns[roles.views])
            above = [each for each in bad if each[1].endswith("as many as views")]
            wrong = [row for row, _ in bad + bad_views]
            self._above.add([row for row, _ in above], marks, dict(above).__getitem__)
            bad = [each for each in bad if each not in above] + bad_views
        else:
            positive = [roles.positive] if isinstance(roles.positive, str) else roles.positive
            clicks, bad = parse_labels(label, None if positive is None else [*positive])
            views, wrong = np.ones(batch.rows), [row for row, _ in bad]
            self._order.add(np.delete(clicks, wrong))
        views[wrong] = clicks[wrong] = 0.0
        self._bad.add([row for row, _ in bad], marks, partial(_text_of, label))
        if roles.weight is not None:
            weights = batch.columns[roles.weight]
            invalid = [row for row, _ in parse_weights(weights)[1]]
            self._weights.add(invalid, marks, partial(_text_of, weights))
        self.rows += batch.rows
        self.views += float(views.sum())
        self.clicks += float(clicks.sum())
        return views, clicks

    def find(self, found: Findings) -> None:
        """What is wrong with the labels."""
        name, views, weight = self._roles.label, str(self._roles.views), str(self._roles.weight)
        for cases, check, message, remedy, columns in (
            (
                self._bad,
                "label-values",
                f"the label {name} has other values than two{'' if self._bad.text else ', or none'}",
                '[input] positive = "…" names the value that is a click; all others are then none',
                (name,),
            ),
            (
                self._above,
                "clicks-above-views",
                f"more clicks in {name} than views in {views}",
                "count clicks and views over the same time",
                (name, views),
            ),
            (
                self._weights,
                "weights",
                f"the weight {weight} is negative or no number",
                "write a number of 0 or more",
                (weight,),
            ),
        ):
            if cases.rows:
                message += ": training rejects these rows"
                severity = _severity(cases.rows, self.rows)
                found.add(severity, check, message, remedy, cases, of=self.rows, columns=columns)
        self._find_rate(found)
        for warning in self._order.warnings():
            remedy = "sort the log by time, or shuffle its rows, as `shuf` does"
            found.add("error", "label-order", warning, remedy, columns=(name,))

    def _find_rate(self, found: Findings) -> None:
        name, clicks, views = self._roles.label, self.clicks, self.views
        rate = clicks / views if views else 0.0
        more: dict[str, Any] = {"count": round(clicks), "of": round(views), "columns": (name,)}
        if views and rate in (0.0, 1.0):
            which = "no" if rate == 0.0 else "every"
            remedy = "check which column is the label: --label NAME; join the clicks to the views, see docs/join.md"
            message = f"{which} row is clicked by the label {name}"
            found.add("error", "label-constant", message, remedy, **more)
        elif rate > _GREATEST_RATE or (rate < _LEAST_RATE and views >= 1 / _LEAST_RATE):
            message = f"{percent(clicks, views)} of the rows are clicked by the label {name}"
            remedy = "check that the label is the right one, and that 1 is a click"
            found.add("warning", "label-extreme", message, remedy, **more)
        elif views and min(clicks, views - clicks) < _FEW_CLICKS:
            what = "too few to tell a field that helps from one that does not, or to find leaks"
            remedy = "learn a longer log; `--passes 5` helps a little"
            found.add("note", "few-clicks", f"{round(clicks):,} clicks: {what}", remedy, **more)


def _text_of(column: Any, row: int) -> str:
    return words_of(column[row].as_py())


def _severity(rows: int, of: int) -> Severity:
    return "error" if rows >= _MANY * of else "warning"


def check_rejects(rejects: RejectLog, rows: int, found: Findings) -> None:
    """One finding for all rows that the reader could not read, with the reasons; rows: those that it could."""
    if rejects.count:
        reasons = ", ".join(f"{name} ({count:,})" for name, count in [*rejects.counts.items()][:3])
        first, every = rejects.first[0], rows + rejects.count
        found.add(
            "error" if rejects.count >= MOST_REJECTED * every else "warning",
            "rejected-rows",
            f"rows that cannot be read: {reasons}",
            "list them: ftrie train … --rejects bad.jsonl",
            count=rejects.count,
            of=every,
            example=cut(first.reason, 100),
            where=f"{first.file}:{first.line}",
        )


class RepeatedRows:
    """Whole rows and requests that come twice, and requests that go on after rows of others."""

    def __init__(self, roles: Roles, columns: Mapping[str, ColumnCounts], is_of_events: bool) -> None:
        """columns: the counts of all columns."""
        self._roles, self._columns, self._is_of_events = roles, columns, is_of_events
        self._rows, self._pairs, self._runs = Repeats(), Repeats(), Runs()

    def add(self, rows: CheckedRows) -> None:
        """The next rows by the hashes of their columns."""
        hashes, marks = rows.hashes, rows.marks
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
        self._runs.add(request, rows.file)

    def find(self, found: Findings) -> None:
        """What comes twice, or goes on later."""
        rows, repeated = self._rows, self._rows.repeated
        distinct = rows.rows - repeated
        of_columns = (each.distinct for each in self._columns.values() if not each.is_several)
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
                severity: Severity = ("error" if many else "warning") if sure else "note"
                message = "rows that are equal to an earlier one in every column"
                message += (
                    ": they are learned twice"
                    if sure
                    else "; no column tells rows apart, so both may be true"
                )
                remedy = "drop the copies" if sure else "none, unless the writer repeats rows"
                more = _again(rows, repeated, "row", found)
                found.add(severity, "duplicate-rows", message, remedy, **more)
        if not self._is_of_events:
            self._find_requests(found)

    def _find_requests(self, found: Findings) -> None:
        pairs, twice = self._pairs, self._pairs.repeated - self._rows.repeated
        request, item = str(self._roles.request), str(self._roles.item)
        if pairs.rows and twice > 0 and pairs.examples:
            found.add(
                _severity(twice, pairs.rows),
                "duplicate-requests",
                f"the same {item} again in the same {request}, in rows that are not equal",
                "drop the copies; if a request may show an item twice, name a request id that is finer",
                columns=(request, item),
                **_again(pairs, twice, "request and item", found),
            )
        if self._runs.resumed:
            found.add(
                "warning" if self._roles.is_given else "note",
                "split-requests",
                f"{request}: requests that go on after rows of others; samples, list features and ranking metrics take "
                "each part as a request",
                f"sort the log by {request}",
                count=self._runs.resumed,
                of=self._columns[request].distinct,
                unit="requests",
                columns=(request,),
            )


def _again(repeats: Repeats, count: int, what: str, found: Findings) -> dict[str, Any]:
    """A finding's count of rows that came before."""
    mark, before = repeats.examples[0]
    example, is_estimate = f"the same {what} as {found.places.where(before)}", not repeats.sample.is_exact
    return {"count": count, "of": repeats.rows, "example": example, "mark": mark, "is_estimate": is_estimate}


class Propensities:
    """The probabilities with which items were shown: missing, impossible, or contradicted by how often they were."""

    def __init__(self, roles: Roles) -> None:
        self._name, self._item = str(roles.propensity), roles.item
        self._rows = 0
        self._missing, self._bad = Cases(), Cases()
        self._items = DistinctSample(1 << 12, 3)

    def add(self, rows: CheckedRows) -> None:
        """The propensities of the next rows."""
        column, hashes, marks = plain(rows.columns[self._name]), rows.hashes, rows.marks
        numbers, invalid = number_column(column)
        absent = np.isnan(numbers)
        absent[[row for row, _ in invalid]] = False
        bad = (numbers <= 0.0) | (numbers > 1.0)
        bad[[row for row, _ in invalid]] = True
        self._rows += numbers.size
        self._missing.add(np.flatnonzero(absent), marks)
        self._bad.add(np.flatnonzero(bad), marks, partial(_text_of, column))
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

    def find(self, found: Findings) -> None:
        """Nothing if no row has a propensity."""
        name, filled, bad = self._name, self._rows - self._missing.rows, self._bad.rows
        if not filled:
            return
        if bad:
            message = f"{name}: propensities that are no probability above 0 and up to 1"
            remedy = "write the probability with which the item was shown; estimates by `ftrie replay` divide by it"
            self._add(found, _severity(bad, filled), message, remedy, self._bad)
        if self._missing.rows:
            message = f"{name} is missing in some rows, which estimates of other policies leave out"
            remedy = "log it for every row, also of items that are always shown (1)"
            self._add(found, "warning", message, remedy, self._missing)
        self._contradicted(filled - bad, found)

    def _contradicted(self, rows: int, found: Findings) -> None:
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
        message = (
            f"{self._item or 'items'}: {wrong.size:,} are shown far more often than {self._name} allows: one in "
            f"{percent(share, 1)} of the rows, with a propensity of {allowed:.3g}"
        )
        remedy = "check that the propensity is that of the item shown, among all that could have been"
        cases = Cases(int(shown[wrong].sum()), mark=int(self._items.first[worst]))
        self._add(found, "warning", message, remedy, cases)

    def _add(self, found: Findings, severity: Severity, message: str, remedy: str, cases: Cases) -> None:
        found.add(severity, "propensity", message, remedy, cases, of=self._rows, columns=(self._name,))


class Positions:
    """The click rate by position, if positions are small whole numbers."""

    def __init__(self, roles: Roles) -> None:
        self._name = str(roles.position)
        self._is_field = self._name in roles.fields
        self._views, self._clicks = np.zeros(_POSITIONS + 1), np.zeros(_POSITIONS + 1)
        self._others = 0
        self._item, self._propensity = roles.item, roles.propensity
        self._of_items = ItemPositions()

    def add(self, rows: CheckedRows) -> None:
        """The positions of the next rows."""
        try:
            numbers = number_column(plain(rows.columns[self._name]))[0]
        except TypeError:
            return
        known = np.isfinite(numbers)
        fits = known & (numbers >= 0) & (numbers <= _POSITIONS) & (np.floor(numbers) == numbers)
        self._others += int(np.count_nonzero(known & ~fits))
        places = numbers[fits].astype(np.int64)
        self._views += np.bincount(places, rows.views[fits], _POSITIONS + 1)
        self._clicks += np.bincount(places, rows.clicks[fits], _POSITIONS + 1)
        if self._item is not None:
            drawn = np.zeros(places.size)
            if self._propensity is not None:
                drawn = number_column(plain(rows.columns[self._propensity]))[0][fits] < 1.0
            self._of_items.add(
                rows.hashes[self._item][fits], places, drawn, rows.views[fits], rows.clicks[fits]
            )

    def examined(self) -> tuple[Examined, ...]:
        """How often people look at each position, if the clicks on items are enough to say so."""
        return self._of_items.examined() if not self._others else ()

    def find(self, found: Findings) -> None:
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
        found.add(
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


# --- Columns ---


LEAK_AUC, SUSPECT_AUC = 0.98, 0.93
"""The AUC on the other half of the log at which a column tells the label, or may."""
LEAK_RATE, LEAK_SHARE = 0.98, 0.05
"""A state of a column, such as filled, tells the label at this share of clicks in its views, and of all clicks."""
ROWS_A_VALUE = 50
"""The mean of rows a value that the order of a text column must have to be judged: with fewer it is an identity."""
FEW = 64
"""Values of a column, each of which may tell a click."""
MOST_MEMBERS = 8
"""Members of a set, of which each may tell a click."""
FEWEST_JUDGED = 20
"""Clicks in each half of the log that a judgement needs."""
EXPLODES, MANY_VALUES = 0.5, 1000
"""A field explodes at this rate of new values a row in the later half of the log, and this number of values."""
FEWEST_UNIQUE = 100
"""Rows with a value that a column must have to be said not to repeat."""
MANY_ODD = 0.1
"""At this share of bad cells training would not publish."""
MOSTLY_NUMBERS = 0.9


@dataclass(frozen=True)
class Leak:
    """How well a column tells the label, on the half of the log that was not looked at.

    auc: of the order by the column's values; error: its standard error; rate: clicks a view in the states that tell
    most; share: of all clicks in them; clicks: their number.
    """

    auc: float
    error: float
    rate: float
    share: float
    clicks: float


def check_columns(columns: Sequence[ColumnCounts], roles: Roles, found: Findings) -> None:
    """All findings on columns; `roles` says what each is."""
    others = [each for each in columns if each.name in roles.given or not _leak(each, roles, found)]
    _exploding(others, roles, found)
    _unique(others, roles, found)
    for each in others:
        _odd(each, roles, found)
    _missing_words(others, roles, found)
    _equal(others, roles, found)
    _constant(columns, roles, found)


# --- Leaks ---


def leak_of(column: ColumnCounts, is_identity: bool = False) -> Leak | None:
    """How well the column tells the label; None where there are too few clicks to judge.

    The rates of values are learned from one half of the log and judged on the other, and the reverse. is_identity:
    judge only whether there is a value, since a user or an item may well be one that clicks.
    """
    total = column.total
    clicks, other = total[CLICKS], total[OTHER_CLICKS]
    skips = total[VIEWS] - clicks, total[OTHER_VIEWS] - other
    if min(clicks, other, *skips) < FEWEST_JUDGED:
        return None
    states = [np.stack([column.absent_sums, total - column.absent_sums])]
    if not is_identity and not column.is_several and column.usual != int(ABSENT):
        states.append(np.stack([column.usual_sums, total - column.usual_sums]))
    tables = list(states)
    if not is_identity and not column.is_several:
        if column.edges is not None:
            tables.append(column.bins)
        if column.sample.is_exact and ROWS_A_VALUE * column.distinct <= column.rows:
            tables.append(column.sample.sums)
        if column.distinct <= FEW:
            states.append(column.sample.sums)
    if column.is_several:  # each member alone: is it in a row, or not
        # The members that more clicked rows have than other rows, by the most clicks.
        members = column.sample.sums
        of_clicks = members[:, CLICKS] + members[:, OTHER_CLICKS]
        telling = np.flatnonzero(2 * of_clicks > members[:, VIEWS] + members[:, OTHER_VIEWS])
        most = telling[np.argsort(-of_clicks[telling], kind="stable")][:MOST_MEMBERS]
        states += [np.stack([members[each], total - members[each]]) for each in most]
        tables = list(states)
    one, two = (VIEWS, CLICKS), (OTHER_VIEWS, OTHER_CLICKS)
    # One half's views ordered by the other half's click rates of their values; the mean of both ways.
    aucs = ((_auc(table, one, two) + _auc(table, two, one)) / 2 for table in tables)
    auc = max(aucs, default=0.5)
    error = float(np.sqrt(max(auc * (1 - auc), 1e-4) / min(other, skips[1])))
    rate, share, told = max((_telling(state, total) for state in states), key=lambda each: each[1])
    return Leak(auc, error, rate, share, told)


def _auc(table: Float64s, told: tuple[int, int], judged: tuple[int, int]) -> float:
    """The AUC of ordering the judged views by the click rates of their values among the told ones."""
    (views, clicks), (judged_views, judged_clicks) = table[:, told].T, table[:, judged].T
    base = clicks.sum() / max(views.sum(), 1.0)
    rates = (clicks + base) / (views + 1.0)
    _, group = np.unique(rates, return_inverse=True)
    positives = np.bincount(group, judged_clicks)
    negatives = np.bincount(group, judged_views - judged_clicks)
    below = np.cumsum(negatives) - negatives
    pairs = positives.sum() * negatives.sum()
    return float((positives * (below + negatives / 2)).sum() / pairs) if pairs else 0.5


def _telling(states: Float64s, total: Float64s) -> tuple[float, float, float]:
    """The rate, share and number of clicks of the states that one half says tell a click, judged on the other."""
    found = np.zeros(2)
    for views, clicks, judged_views, judged_clicks in (
        (VIEWS, CLICKS, OTHER_VIEWS, OTHER_CLICKS),
        (OTHER_VIEWS, OTHER_CLICKS, VIEWS, CLICKS),
    ):
        tells = (states[:, clicks] >= FEWEST_JUDGED / 4) & (states[:, clicks] >= LEAK_RATE * states[:, views])
        found += [states[tells, judged_views].sum(), states[tells, judged_clicks].sum()]
    every = total[CLICKS] + total[OTHER_CLICKS]
    if found[1] < FEWEST_JUDGED or found[1] < LEAK_RATE * found[0]:
        return 0.0, 0.0, 0.0
    return float(found[1] / found[0]), float(found[1] / every), float(found[1])


def _leak(column: ColumnCounts, roles: Roles, found: Findings) -> bool:
    """Whether the column tells the label, which is then a finding."""
    leak = leak_of(column, column.name in roles.identities)
    if leak is None:
        return False
    total = column.total
    base = (total[CLICKS] + total[OTHER_CLICKS]) / (total[VIEWS] + total[OTHER_VIEWS])
    tells = leak.share >= LEAK_SHARE and base < LEAK_RATE / 2
    low = leak.auc - 3 * leak.error
    if low < SUSPECT_AUC and not tells:
        return False
    severity: Severity = "error" if low >= LEAK_AUC or tells else "warning"
    if column.name in roles.ignored:
        severity = "note" if roles.is_given else "warning"
    clicks = total[CLICKS] + total[OTHER_CLICKS]
    if tells:
        message = (
            f"{column.name} tells the label: of the rows with some of its values {percent(leak.rate, 1)} are "
            f"clicked, against {percent(base, 1)} of all; they hold {percent(leak.share, 1)} of the clicks"
        )
        if leak.share >= 0.98 and column.is_filled_only_for_clicks:
            message = f"{column.name} tells the label: it is filled in clicked rows only"
    else:
        message = f"{column.name} tells the label: alone it has an AUC of {leak.auc:.3f}"
    remedy = roles.without(column.name)
    if column.name in roles.ignored:
        remedy = "leave it out of the spec, as " + (
            "this one does" if roles.is_given else "`ftrie init` does"
        )
    elif severity == "warning":
        remedy += ", unless it is known before the click"
    count, of = round(leak.clicks or leak.auc * clicks), round(clicks)
    more: dict[str, Any] = {"count": count, "of": of, "unit": "clicks", "columns": (column.name,)}
    found.add(severity, "label-leak", message, remedy, column.telling, **more)
    return True


# --- Values that explode or never repeat ---


def _exploding(columns: Sequence[ColumnCounts], roles: Roles, found: Findings) -> None:
    for each in columns:
        kind = roles.fields.get(each.name)
        if kind not in ("category", "set") or each.name in roles.identities:
            continue
        if _is_spoiled_number(each):
            continue  # said of its cells
        pace = each.new_values()
        if pace < EXPLODES or each.distinct < MANY_VALUES:
            continue
        found.add(
            "warning",
            "values-explode",
            f"{each.name} has {each.distinct:,} values in {each.filled:,} rows, and {percent(pace, 1)} of the later "
            "rows bring a new one: most of its keys are learned from one row, and the model grows with the log",
            _remedy_for_exploding(each, roles),
            unit="values",
            **_values_of(each),
        )


def _values_of(column: ColumnCounts) -> dict[str, Any]:
    """A finding's count of a column's values."""
    example, mark = column.first.text, column.first.mark
    more = {"columns": (column.name,), "is_estimate": not column.sample.is_exact}
    return {"count": column.distinct, "of": column.filled, "example": example, "mark": mark, **more}


def _is_spoiled_number(column: ColumnCounts) -> bool:
    """Whether the column is numbers that a few cells make categories of."""
    odd = column.not_number.rows + column.not_finite.rows + column.missing.rows
    return bool(odd and column.fractions and column.numbers >= MOSTLY_NUMBERS * (column.filled - odd))


def _remedy_for_exploding(column: ColumnCounts, roles: Roles) -> str:
    name = column.name if column.name.replace("_", "").isalnum() else f'"{column.name}"'
    if column.is_numeric and column.fractions:
        return f'{name} = {{ kind = "number", bucket = "log" }}'
    if " " in column.first.text.strip() and not column.is_numeric:
        return f'{name} = {{ kind = "text" }}, which learns its words; or {roles.without(column.name)}'
    return f"{roles.without(column.name)}; or learn keys that repeat: [learner] inclusion"


def _unique(columns: Sequence[ColumnCounts], roles: Roles, found: Findings) -> None:
    """Identities that never repeat; other columns only where no spec ignores them."""
    unique = [
        each for each in columns if each.filled >= FEWEST_UNIQUE and not each.repeats and not each.is_several
    ]
    losses = {
        roles.item: "nothing is learned of an item from its other rows",
        roles.request: "each row is a request of its own: no ranking metrics, no list features, no whole requests "
        "in samples",
        roles.cookie: "no user is seen twice: histories and fields of users learn nothing",
    }
    others = []
    for each in unique:
        if each.name in losses:
            role = next(role for role, name in roles.named.items() if name == each.name)
            message = f"{each.name}, the {role}, has another value in every row: {losses[each.name]}"
            remedy = f"name the column that repeats as [input] {role}, or none"
            found.add("warning", "ids-never-repeat", message, remedy, **_values_of(each))
        elif each.name in roles.ignored and not roles.is_given and not each.fractions:
            others.append(each)
    if others:
        names = tuple(each.name for each in others)
        found.add(
            "note",
            "ids-never-repeat",
            f"{listed(names)}: another value in every row, so nothing can be learned from it",
            "leave it out of the spec, as `ftrie init` does",
            **_values_of(others[0]) | {"columns": names},
        )


# --- Odd cells ---


_NO_VALUE = "write no value (an empty cell, null) where there is none"


def _odd(column: ColumnCounts, roles: Roles, found: Findings) -> None:
    name, kind = column.name, roles.fields.get(column.name)
    of: dict[str, Any] = {"of": column.filled, "columns": (name,)}
    if column.broken.rows:
        message = f"{name}: text that is not UTF-8, or was damaged by a wrong encoding before"
        remedy = "write the log as UTF-8; each broken spelling is a value of its own"
        found.add("warning", "encoding", message, remedy, column.broken, **of)
    if kind is None and not (name in roles.ignored and not roles.is_given):
        return
    if column.not_finite.rows:
        is_number = kind == "number" or (not roles.is_given and _is_spoiled_number(column))
        many = column.not_finite.rows >= MANY_ODD * column.rows
        severity: Severity = ("error" if many else "warning") if is_number else "note"
        message = f"{name}: numbers that are NaN or infinite"
        message += ": training rejects these rows" if is_number else ""
        found.add(severity, "not-finite", message, _NO_VALUE, column.not_finite, **of)
    odd = column.not_number
    if odd.rows and column.numbers >= MOSTLY_NUMBERS * column.filled and not column.is_several:
        message, remedy = f"{name}: text among numbers", "write no value where there is no number"
        if kind == "number":
            message += ": training rejects these rows"
        elif column.fractions:
            message += "; it is learned as categories, one for each number"
            remedy += f', then {name} = {{ kind = "number", bucket = "log" }}'
        severity = "warning" if kind == "number" or column.fractions else "note"
        found.add(severity, "mixed-types", message, remedy, odd, **of)


def _missing_words(columns: Sequence[ColumnCounts], roles: Roles, found: Findings) -> None:
    """Texts such as null: an error of rows for numbers, one more category elsewhere."""
    having = [each for each in columns if each.missing.rows and each.name in roles.fields]
    bad = [
        each
        for each in having
        if roles.fields[each.name] == "number"
        or (each.numbers >= MOSTLY_NUMBERS * (each.filled - each.missing.rows) > 0)
    ]
    for each in bad:
        is_number = roles.fields[each.name] == "number"
        many = is_number and each.missing.rows >= MANY_ODD * each.rows
        message = f"{each.name}: {each.missing.text!r} stands where a number is missing"
        message += ": training rejects these rows" if is_number else "; so it is not a number, but categories"
        of: dict[str, Any] = {"of": each.filled, "columns": (each.name,)}
        found.add("error" if many else "warning", "missing-as-text", message, _NO_VALUE, each.missing, **of)
    rest = [each for each in having if each not in bad]
    if rest:
        names, text = tuple(each.name for each in rest), rest[0].missing.text
        message = f"{listed(names)}: {text!r} seems to stand for no value; it is learned as a category"
        remedy, count = f"{_NO_VALUE}, if serving sends none there", max(each.missing.rows for each in rest)
        of = {"of": rest[0].filled, "columns": names, "count": count}
        found.add("note", "missing-as-text", message, remedy, rest[0].missing, **of)


# --- Columns that add nothing ---


def _equal(columns: Sequence[ColumnCounts], roles: Roles, found: Findings) -> None:
    groups: dict[int, list[str]] = {}
    for each in columns:
        usable = each.name in roles.fields or (not roles.is_given and each.name not in roles.ignored)
        if usable and each.distinct > 1:
            groups.setdefault(each.digest, []).append(each.name)
    for names in groups.values():
        if len(names) > 1:
            rest = [name for name in names if name not in roles.given] or names[-1:]
            if all(name not in roles.given for name in names):
                rest = names[1:]
            message = f"{listed(names)} are equal in every row: learned as fields, they share one weight between them"
            found.add("warning", "equal-columns", message, roles.without(*rest), **_columns(names, columns))


def _columns(names: Sequence[str], every: Sequence[ColumnCounts]) -> dict[str, Any]:
    """A finding's count of columns."""
    return {"count": len(names), "of": len(every), "unit": "columns", "columns": tuple(names)}


def _constant(columns: Sequence[ColumnCounts], roles: Roles, found: Findings) -> None:
    fields = [each for each in columns if each.name in roles.fields or not roles.is_given]
    fields = [each for each in fields if each.name not in roles.given and each.rows > 1]
    fields = [each for each in fields if not each.name.startswith("@") and each.name != roles.propensity]
    empty = tuple(each.name for each in fields if not each.filled)
    constant = [
        each for each in fields if each.filled == each.rows and each.distinct == 1 and not each.is_several
    ]
    if constant:
        names = tuple(each.name for each in constant)
        what = "has one value in all rows" if len(names) == 1 else "have one value each in all rows"
        message = f"{listed(names)} {what}: the bias learns that already"
        remedy, more = "leave them out of the spec, or look why they do not vary", _columns(names, columns)
        found.add("note", "constant-columns", message, remedy, **more, example=cut(constant[0].first.text))
    if empty:
        message = f"{listed(empty)} {'has' if len(empty) == 1 else 'have'} no value in any row"
        remedy = "leave them out of the spec, or look why they are not written"
        found.add("note", "empty-columns", message, remedy, **_columns(empty, columns))
