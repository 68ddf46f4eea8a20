"""Judges what was counted of the columns: which tell the label, explode, are equal, constant, mixed or broken.

In: the counts of every column and what the columns are. Out: findings. The thresholds are constants, which
docs/doctor.md explains; findings of one check on several columns are one where each alone says little.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.inspect.columns import CLICKS, FEW, OTHER_CLICKS, OTHER_VIEWS, VIEWS, ColumnCounts
from trainer.inspect.findings import Finding, Severity, cut, listed, percent
from trainer.inspect.roles import Places, Roles
from trainer.inspect.sketches import ABSENT, Float64s

LEAK_AUC, SUSPECT_AUC = 0.98, 0.93
"""A column that orders the other half of the log so well tells the label, or may."""
LEAK_RATE, LEAK_SHARE = 0.98, 0.05
"""A state of a column, such as filled, in which so many views are clicks, and which holds so many of the clicks."""
ROWS_A_VALUE = 50
"""The mean of rows a value from which on the order of a text column is judged: with fewer it is an identity."""
FEWEST_JUDGED = 20
"""Clicks in each half of the log that a judgement needs."""
EXPLODES, MANY_VALUES = 0.5, 1000
"""New values a row in the later half of the log, and distinct values, from which on a field explodes."""
FEWEST_UNIQUE = 100
"""Rows with a value, from which on it is said not to repeat."""
MANY_ODD = 0.1
"""A share of bad cells from which on training would not publish."""
MOSTLY_NUMBERS = 0.9


@dataclass(frozen=True)
class Leak:
    """How well a column tells the label, on the half of the log that was not looked at.

    auc: of the order by the column's values; error: its standard error; rate: clicks a view in the states that tell
    most; share: of all clicks in them; clicks: so many.
    """

    auc: float
    error: float
    rate: float
    share: float
    clicks: float


def column_findings(columns: Sequence[ColumnCounts], roles: Roles, places: Places) -> Iterator[Finding]:
    """All findings on columns; `roles` says what each is."""
    leaks = set[str]()
    for each in columns:
        if each.name not in roles.given and (finding := _leak(each, roles, places)) is not None:
            leaks.add(each.name)
            yield finding
    others = [each for each in columns if each.name not in leaks]
    yield from _exploding(others, roles, places)
    yield from _unique(others, roles, places)
    for each in others:
        yield from _odd(each, roles, places)
    yield from _missing_words(others, roles, places)
    yield from _equal(others, roles)
    yield from _constant(columns, roles)


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
        states += [np.stack([sums, total - sums]) for sums in _most_telling(column.sample.sums)]
        tables = list(states)
    auc = max((_judged_auc(table) for table in tables), default=0.5)
    error = float(np.sqrt(max(auc * (1 - auc), 1e-4) / min(other, skips[1])))
    rate, share, told = max((_telling(state, total) for state in states), key=lambda each: each[1])
    return Leak(auc, error, rate, share, told)


def _most_telling(sums: Float64s, most: int = 8) -> list[Float64s]:
    """The members that more clicked rows have than other rows, by the most clicks."""
    clicks, views = sums[:, CLICKS] + sums[:, OTHER_CLICKS], sums[:, VIEWS] + sums[:, OTHER_VIEWS]
    telling = np.flatnonzero(2 * clicks > views)
    chosen = telling[np.argsort(-clicks[telling], kind="stable")][:most]
    return [sums[each] for each in chosen]


def _judged_auc(table: Float64s) -> float:
    """The AUC of ordering one half's views by the other half's click rates of their values; mean of both ways."""
    one = _auc(table[:, VIEWS], table[:, CLICKS], table[:, OTHER_VIEWS], table[:, OTHER_CLICKS])
    other = _auc(table[:, OTHER_VIEWS], table[:, OTHER_CLICKS], table[:, VIEWS], table[:, CLICKS])
    return (one + other) / 2


def _auc(views: Float64s, clicks: Float64s, judged_views: Float64s, judged_clicks: Float64s) -> float:
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


def _leak(column: ColumnCounts, roles: Roles, places: Places) -> Finding | None:
    leak = leak_of(column, column.name in roles.identities)
    if leak is None:
        return None
    total = column.total
    base = (total[CLICKS] + total[OTHER_CLICKS]) / (total[VIEWS] + total[OTHER_VIEWS])
    tells = leak.share >= LEAK_SHARE and base < LEAK_RATE / 2
    low = leak.auc - 3 * leak.error
    if low < SUSPECT_AUC and not tells:
        return None
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
    return Finding(
        severity,
        "label-leak",
        message,
        remedy,
        count=round(leak.clicks or leak.auc * clicks),
        of=round(clicks),
        unit="clicks",
        columns=(column.name,),
        example=column.told,
        where=places.where(column.told_mark),
    )


# --- Values that explode or never repeat ---


def _exploding(columns: Sequence[ColumnCounts], roles: Roles, places: Places) -> Iterator[Finding]:
    for each in columns:
        kind = roles.fields.get(each.name)
        if kind not in ("category", "set") or each.name in roles.identities:
            continue
        if _is_spoiled_number(each):
            continue  # said of its cells
        pace = each.new_values()
        if pace < EXPLODES or each.distinct < MANY_VALUES:
            continue
        yield Finding(
            "warning",
            "values-explode",
            f"{each.name} has {each.distinct:,} values in {each.filled:,} rows, and {percent(pace, 1)} of the later "
            "rows bring a new one: most of its keys are learned from one row, and the model grows with the log",
            _remedy_for_exploding(each, roles),
            count=each.distinct,
            of=each.filled,
            unit="values",
            columns=(each.name,),
            example=each.example,
            where=places.where(each.example_mark),
            is_estimate=not each.sample.is_exact,
        )


def _is_spoiled_number(column: ColumnCounts) -> bool:
    """Whether the column is numbers that a few cells make categories of."""
    odd = column.not_number.rows + column.not_finite.rows + column.missing.rows
    return bool(odd and column.fractions and column.numbers >= MOSTLY_NUMBERS * (column.filled - odd))


def _remedy_for_exploding(column: ColumnCounts, roles: Roles) -> str:
    name = column.name if column.name.replace("_", "").isalnum() else f'"{column.name}"'
    if column.is_numeric and column.fractions:
        return f'{name} = {{ kind = "number", bucket = "log" }}'
    if " " in column.example.strip() and not column.is_numeric:
        return f'{name} = {{ kind = "text" }}, which learns its words; or {roles.without(column.name)}'
    return f"{roles.without(column.name)}; or learn keys that repeat: [learner] inclusion"


def _unique(columns: Sequence[ColumnCounts], roles: Roles, places: Places) -> Iterator[Finding]:
    """Identities that never repeat; other columns only where no spec ignores them."""
    found = [
        each for each in columns if each.filled >= FEWEST_UNIQUE and not each.repeats and not each.is_several
    ]
    losses = {
        roles.item: "nothing is learned of an item from its other rows",
        roles.request: "each row is a request of its own: no ranking metrics, no list features, no whole requests "
        "in samples",
        roles.cookie: "no user is seen twice: histories and fields of users learn nothing",
    }
    for each in (each for each in found if each.name in losses and each.name is not None):
        role = next(role for role, name in roles.named.items() if name == each.name)
        yield Finding(
            "warning",
            "ids-never-repeat",
            f"{each.name}, the {role}, has another value in every row: {losses[each.name]}",
            f"name the column that repeats as [input] {role}, or none",
            count=each.distinct,
            of=each.filled,
            columns=(each.name,),
            example=each.example,
            where=places.where(each.example_mark),
            is_estimate=not each.sample.is_exact,
        )
    others = [
        each
        for each in found
        if each.name in roles.ignored
        and not roles.is_given
        and not each.fractions
        and each.name not in losses
    ]
    if others:
        names = tuple(each.name for each in others)
        yield Finding(
            "note",
            "ids-never-repeat",
            f"{listed(names)}: another value in every row, so nothing can be learned from it",
            "leave it out of the spec, as `ftrie init` does",
            count=others[0].distinct,
            of=others[0].filled,
            columns=names,
            example=others[0].example,
            where=places.where(others[0].example_mark),
            is_estimate=not others[0].sample.is_exact,
        )


# --- Odd cells ---


def _odd(column: ColumnCounts, roles: Roles, places: Places) -> Iterator[Finding]:
    name, kind = column.name, roles.fields.get(column.name)
    if column.broken.rows:
        yield Finding(
            "warning",
            "encoding",
            f"{name}: text that is not UTF-8, or was damaged by a wrong encoding before",
            "write the log as UTF-8; each broken spelling is a value of its own",
            count=column.broken.rows,
            of=column.filled,
            columns=(name,),
            example=column.broken.text,
            where=places.where(column.broken.mark),
        )
    if kind is None and not (name in roles.ignored and not roles.is_given):
        return
    if column.not_finite.rows:
        is_number = kind == "number" or (not roles.is_given and _is_spoiled_number(column))
        many = column.not_finite.rows >= MANY_ODD * column.rows
        yield Finding(
            ("error" if many else "warning") if is_number else "note",
            "not-finite",
            f"{name}: numbers that are NaN or infinite"
            + (": training rejects these rows" if is_number else ""),
            "write no value (an empty cell, null) where there is none",
            count=column.not_finite.rows,
            of=column.filled,
            columns=(name,),
            example=column.not_finite.text,
            where=places.where(column.not_finite.mark),
        )
    odd = column.not_number
    if odd.rows and column.numbers >= MOSTLY_NUMBERS * column.filled and not column.is_several:
        quantity = kind == "number" or bool(column.fractions)
        yield Finding(
            "warning" if quantity else "note",
            "mixed-types",
            f"{name}: text among numbers"
            + (
                ": training rejects these rows"
                if kind == "number"
                else "; it is learned as categories, one for each number"
                if quantity
                else ""
            ),
            "write no value where there is no number"
            + (
                ""
                if kind == "number" or not quantity
                else f', then {name} = {{ kind = "number", bucket = "log" }}'
            ),
            count=odd.rows,
            of=column.filled,
            columns=(name,),
            example=odd.text,
            where=places.where(odd.mark),
        )


def _missing_words(columns: Sequence[ColumnCounts], roles: Roles, places: Places) -> Iterator[Finding]:
    """Texts such as null: an error of rows for numbers, one more category elsewhere."""
    found = [each for each in columns if each.missing.rows and each.name in roles.fields]
    bad = [
        each
        for each in found
        if roles.fields[each.name] == "number"
        or (each.numbers >= MOSTLY_NUMBERS * (each.filled - each.missing.rows) > 0)
    ]
    for each in bad:
        is_number = roles.fields[each.name] == "number"
        yield Finding(
            "error" if is_number and each.missing.rows >= MANY_ODD * each.rows else "warning",
            "missing-as-text",
            f"{each.name}: {each.missing.text!r} stands where a number is missing"
            + (": training rejects these rows" if is_number else "; so it is not a number, but categories"),
            "write no value (an empty cell, null) where there is none",
            count=each.missing.rows,
            of=each.filled,
            columns=(each.name,),
            example=each.missing.text,
            where=places.where(each.missing.mark),
        )
    rest = [each for each in found if each not in bad]
    if rest:
        names = tuple(each.name for each in rest)
        yield Finding(
            "note",
            "missing-as-text",
            f"{listed(names)}: {rest[0].missing.text!r} seems to stand for no value; it is learned as a category",
            "write no value (an empty cell, null) where there is none, if serving sends none there",
            count=max(each.missing.rows for each in rest),
            of=rest[0].filled,
            columns=names,
            example=rest[0].missing.text,
            where=places.where(rest[0].missing.mark),
        )


# --- Columns that add nothing ---


def _equal(columns: Sequence[ColumnCounts], roles: Roles) -> Iterator[Finding]:
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
            yield Finding(
                "warning",
                "equal-columns",
                f"{listed(names)} are equal in every row: learned as fields, they share one weight between them",
                roles.without(*rest),
                count=len(names),
                of=len(columns),
                unit="columns",
                columns=tuple(names),
            )


def _constant(columns: Sequence[ColumnCounts], roles: Roles) -> Iterator[Finding]:
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
        yield Finding(
            "note",
            "constant-columns",
            f"{listed(names)} {what}: the bias learns that already",
            "leave them out of the spec, or look why they do not vary",
            count=len(names),
            of=len(columns),
            unit="columns",
            columns=names,
            example=cut(constant[0].example),
        )
    if empty:
        yield Finding(
            "note",
            "empty-columns",
            f"{listed(empty)} {'has' if len(empty) == 1 else 'have'} no value in any row",
            "leave them out of the spec, or look why they are not written",
            count=len(empty),
            of=len(columns),
            unit="columns",
            columns=empty,
        )
