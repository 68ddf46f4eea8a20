"""What an examination of a log says: findings, each with a severity, a count, an example and what to do.

`CHECKS` names every check; docs/doctor.md says when each of them reports, and how severe it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from trainer.formats.batch import mark_of, split_mark
from trainer.inspect.examination import Examined, fragment

Int64s = npt.NDArray[np.int64]
Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
CHECKS = (
    "rejected-rows",
    "missing-columns",
    "label-values",
    "label-constant",
    "label-extreme",
    "label-order",
    "few-clicks",
    "label-leak",
    "clicks-above-views",
    "weights",
    "duplicate-rows",
    "duplicate-requests",
    "split-requests",
    "orphan-clicks",
    "clicks-not-shown",
    "early-clicks",
    "late-clicks",
    "duplicate-clicks",
    "nothing-seen",
    "time-backwards",
    "time-odd",
    "time-unit",
    "click-rate-shift",
    "days-missing",
    "values-explode",
    "ids-never-repeat",
    "propensity",
    "position-bias",
    "not-finite",
    "mixed-types",
    "missing-as-text",
    "encoding",
    "equal-columns",
    "constant-columns",
    "empty-columns",
)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a log, or worth knowing.

    check: one of CHECKS. columns: those it is about, if any. count: how many rows, events, days or columns (`unit`),
    out of `of`; is_estimate: True if it was counted on a sample of the values. example: a value; where: `FILE:LINE`,
    "" where there is none. remedy: what to do, a line of the spec or a command where one helps.
    """

    severity: Severity
    check: str
    message: str
    remedy: str
    count: int = 0
    of: int = 0
    unit: str = "rows"
    columns: tuple[str, ...] = ()
    example: str = ""
    where: str = ""
    is_estimate: bool = False

    def __post_init__(self) -> None:
        assert self.check in CHECKS, self.check
        if self.of:  # an estimate may be above
            object.__setattr__(self, "count", min(self.count, self.of))


@dataclass(frozen=True)
class Diagnosis:
    """The findings on a log, the most severe first, and what was read.

    columns: examined. clicks and views: of rows whose label is valid; for a log of clicks and views their sums.
    roles: what the columns were taken for, such as {"label": "click"}; is_guessed: without a spec, as `ftrie init`
    guesses. examination: how often people look at each position, empty if the log does not say.
    """

    inputs: tuple[str, ...]
    rows: int
    rejected: int
    columns: int
    clicks: float
    views: float
    seconds: float
    roles: Mapping[str, str]
    is_guessed: bool
    findings: tuple[Finding, ...]
    examination: tuple[Examined, ...] = ()

    @property
    def spec_fragment(self) -> str:
        """The lines of [input] that learn from clicks as `examination` says."""
        # Of events it is a reserved column, which a spec reads as the items' own member.
        return fragment(self.examination, self.roles["position"].removeprefix("@"))

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that learning should not begin with."""
        return self.of_severity("error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that make a model worse, or may."""
        return self.of_severity("warning")

    def of_severity(self, severity: Severity) -> tuple[Finding, ...]:
        """The findings of one severity."""
        return tuple(finding for finding in self.findings if finding.severity == severity)

    def of_check(self, check: str) -> tuple[Finding, ...]:
        """The findings of one check."""
        return tuple(finding for finding in self.findings if finding.check == check)

    @property
    def verdict(self) -> str:
        """How many findings of each severity there are, in words."""
        counts = [(len(self.of_severity(severity)), severity) for severity in SEVERITIES]
        words = [f"{count:,} {name}{'s' if count != 1 else ''}" for count, name in counts if count]
        return ", ".join(words) or "nothing found"

    def as_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        rate = self.clicks / self.views if self.views else None
        return {
            "inputs": list(self.inputs),
            "rows": self.rows,
            "rejected": self.rejected,
            "columns": self.columns,
            "click_rate": rate,
            "seconds": round(self.seconds, 3),
            "roles": dict(self.roles),
            "is_guessed": self.is_guessed,
            **{f"{severity}s": len(self.of_severity(severity)) for severity in SEVERITIES},
            "findings": [asdict(finding) for finding in self.findings],
            **({"examination": [asdict(each) for each in self.examination]} if self.examination else {}),
        }


@dataclass
class Places:
    """Marks of rows, and what they stand for: a mark is a file's number and, below it, the line or row in it."""

    files: list[str] = field(default_factory=list)

    def first_mark(self, file: str) -> int:
        """The mark of line 0 of a file."""
        if not self.files or self.files[-1] != file:
            self.files.append(file)
        return int(mark_of(len(self.files) - 1, 0))

    def where(self, mark: int) -> str:
        """`FILE:LINE`; "" for no row."""
        if mark < 0:
            return ""
        file, line = split_mark(mark)
        return f"{self.files[file]}:{line}"


@dataclass
class Cases:
    """Rows of one kind: how many, and the first of them: its mark, and the value in words."""

    rows: int = 0
    text: str = ""
    mark: int = -1

    def add(
        self, rows: Sequence[int] | Int64s, marks: Int64s, text: Callable[[int], str] = lambda row: ""
    ) -> None:
        """Add rows of a batch, in order. text: the value of a row in words."""
        if len(rows):
            self.note(len(rows), int(marks[rows[0]]), lambda: text(int(rows[0])))

    def note(self, rows: int, mark: int, text: Callable[[], str]) -> None:
        """Add a number of rows, the first of which is at this mark."""
        self.rows += rows
        if self.mark < 0:
            self.mark, self.text = mark, text()


class Findings:
    """Collects what the checks of a log find. places: of its rows, or of its events."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self._found: list[Finding] = []

    def add(
        self,
        severity: Severity,
        check: str,
        message: str,
        remedy: str,
        cases: Cases | None = None,
        **more: Any,
    ) -> None:
        """Add a `Finding`. cases: give its count, example and place. more: the other fields; mark: of its place."""
        if cases is not None:
            more = {"count": cases.rows, "example": cases.text, "mark": cases.mark} | more
        where = self.places.where(more.pop("mark", -1))
        self._found.append(Finding(severity, check, message, remedy, **{"where": where} | more))

    def in_order(self) -> tuple[Finding, ...]:
        """Sorted by severity, then in the order of CHECKS, then by count."""
        return tuple(
            sorted(self._found, key=lambda f: (SEVERITIES.index(f.severity), CHECKS.index(f.check), -f.count))
        )


def listed(names: tuple[str, ...] | list[str], most: int = 6) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def percent(part: float, whole: float) -> str:
    """A share as text: 4.93 %."""
    return f"{100 * part / whole:.3g} %" if whole else "0 %"


def words_of(value: Any) -> str:
    """A value of a column, for people."""
    return cut(
        "" if value is None else value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    )


def cut(text: str, most: int = 60) -> str:
    """The first characters of a text, those that cannot be printed replaced."""
    shown = "".join(each if each.isprintable() else "�" for each in text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"
