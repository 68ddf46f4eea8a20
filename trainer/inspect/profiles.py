"""Profiles the columns of a log by its first rows: which values, how many, and what they could be.

In: a log file. Out: a `Profile` per column, from which `guesses` guesses.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import pairwise
from typing import Any

from model_store.bounded import json_value
from model_store.errors import FieldValueError
from model_store.spec.values import EPOCHS, iso_time, text_of
from trainer.formats.cells import LABELS

SAMPLE_ROWS = 10_000
_DATES = ("%Y/%m/%d", "%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y")
_HOURS = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p")
_TIME_FORMATS = (
    "iso",
    "%d/%b/%Y:%H:%M:%S %z",  # Apache's
    "[%d/%b/%Y:%H:%M:%S %z]",
    "%a, %d %b %Y %H:%M:%S %z",  # of RFC 2822
    "%a, %d %b %Y %H:%M:%S GMT",
    *(f"{date}{hour}" for date in _DATES for hour in _HOURS),
)
_DIGITS = {"%Y%m%d%H%M%S": 14, "%Y%m%d%H%M": 12, "%Y%m%d%H": 10, "%Y%m%d": 8, "%y%m%d%H": 8}
_NO_DATE = "0000-00-00"  # as MySQL writes a date that is missing
_YEARS = range(1990, 2101)
_SEPARATORS = ("|", ";", ",")


@dataclass(frozen=True)
class Profile:
    """One column of a sample.

    texts: the value of each row as text, "" for none; lists: whether the values are lists; kind: the column's kind
    according to the log's format (see `ModelSpec.resolve`).
    """

    name: str
    texts: tuple[str, ...]
    lists: bool = False
    kind: str | None = "category"

    @cached_property
    def counts(self) -> Counter[str]:
        """How often each value occurs, missing ones left out."""
        return Counter(text for text in self.texts if text)

    @property
    def filled(self) -> int:
        """Rows with a value."""
        return self.counts.total()

    @property
    def distinct(self) -> int:
        """Different values."""
        return len(self.counts)

    @property
    def is_unique(self) -> bool:
        """True if no value occurs twice, in enough rows to mean something."""
        return self.filled >= 20 and self.distinct == self.filled

    def examples(self, count: int = 3) -> list[str]:
        """The most frequent values, or the first ones where all are as frequent."""
        return [text for text, _ in self.counts.most_common(count)]

    @cached_property
    def members(self) -> Counter[str]:
        """How often each member of the lists, or of the weighted sets, occurs."""
        found: Counter[str] = Counter()
        for text, rows in self.counts.items():
            members = json_value(text) if text.startswith(("[", "{")) else [text]
            for member in members:
                found[_text(member)] += rows
        return found

    @cached_property
    def is_label(self) -> bool:
        """True if every row has a value and all values can be labels."""
        return self.filled == len(self.texts) > 0 and all(map(can_be_label, self.counts))

    @cached_property
    def odd_labels(self) -> Counter[str]:
        """What cannot be a label, if at most a tenth of the rows are so and the others are labels of both kinds."""
        odd = Counter(text for text in self.texts if not can_be_label(text))
        few = 10 * odd.total() <= len(self.texts)
        return odd if few and len(set(self.labels(None))) == 2 else Counter()

    def labels(self, positive: str | None) -> list[int]:
        """The values as 1 and 0: `positive` is 1; None for values that can be labels, the others are 0."""
        if positive is not None:
            return [int(text == positive) for text in self.texts]
        return [int(LABELS.get(text.lower().encode(), 0.0) > 0.0) for text in self.texts]

    @property
    def pair(self) -> tuple[str, ...]:
        """The two values of the column, the rarer one first, "" where some rows have none; empty if not two."""
        values = [text for text, _ in reversed(self.counts.most_common(3))]
        if len(values) == 1 and self.filled < len(self.texts):
            return (values[0], "")
        return tuple(values) if len(values) == 2 and self.filled == len(self.texts) else ()

    @cached_property
    def is_count(self) -> bool:
        """True if every row has a whole number from 0 on, and some are above 1."""
        numbers = self.numbers
        return (
            numbers is not None
            and self.is_whole
            and self.filled == len(self.texts)
            and min(numbers) >= 0
            and max(numbers) > 1
        )

    @cached_property
    def numbers(self) -> list[float] | None:
        """The distinct values as numbers; None if one is not a finite number."""
        numbers = [_number(text) for text in self.counts]
        found = [number for number in numbers if number is not None]
        return found if found and len(found) == len(numbers) else None

    @property
    def is_whole(self) -> bool:
        """True if all values are integers."""
        return self.numbers is not None and all(number.is_integer() for number in self.numbers)

    @cached_property
    def is_dense(self) -> bool:
        """True if the whole numbers start near 0 and have few gaps: counts do, codes do not."""
        near = sum(self.counts[text] for text in self.counts if 0 <= float(text) <= 4 * self.distinct)
        return 2 * near >= self.filled

    @cached_property
    def time_format(self) -> str | None:
        """The format of the times: "iso", one of EPOCHS, or a strptime format; None if these are not times."""
        return _time_format(list(self.counts))

    @property
    def other_time_format(self) -> str | None:
        """The format that fits as well as `time_format`, with day and month the other way round; None without one."""
        texts, form = list(self.counts), self.time_format or ""
        other = form.translate(str.maketrans("md", "dm"))
        if "%d" not in form or form not in _TIME_FORMATS or other not in _TIME_FORMATS or other == form:
            return None
        one, two = _moments(texts, form), _moments(texts, other)
        return other if one and two and one != two and _disorder(one) == _disorder(two) else None

    @cached_property
    def separator(self) -> str | None:
        """The separator of a set's members, "[" for JSON arrays; None if the values are not sets."""
        texts = list(self.counts)
        if texts and all(_is_json_list(text) for text in texts):
            return "["
        return next((separator for separator in _SEPARATORS if self._is_separated_by(separator)), None)

    def _is_separated_by(self, separator: str) -> bool:
        """True if the values have varying numbers of parts and share parts with one another."""
        parts = [text.split(separator) for text in self.counts]
        several = sum(len(each) > 1 for each in parts)
        if 5 * several < len(parts) or len({len(each) for each in parts}) < 2:
            return False
        members = {member for each in parts for member in each}
        return not any(member.startswith(" ") for member in members) and len(members) < len(parts)

    @property
    def days(self) -> int:
        """The number of distinct days in a time column."""
        return len({moment.date() for moment in _moments(list(self.counts), self.time_format) or []})


def can_be_label(text: str) -> bool:
    """True if training accepts the text as a label."""
    return text.lower().encode() in LABELS


@dataclass(frozen=True)
class LogSample:
    """The columns in the first rows of a log. has_header: False if the log does not name them.

    objects: parents of nested columns that may be read as one set, as objects of numbers may. dialect: what is unusual
    in how a delimited file is written, as `[input]` names it.
    """

    profiles: tuple[Profile, ...]
    has_header: bool = True
    objects: frozenset[str] = frozenset()
    dialect: Mapping[str, Any] = field(default_factory=dict)


def profile_of(name: str, values: Sequence[Any], kind: str | None) -> Profile:
    """The profile of a column with these values; kind: see Profile."""
    lists = any(isinstance(value, list) for value in values)
    return Profile(name, tuple(_text(value) for value in values), lists, kind)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):  # Arrow returns a map as pairs
            value = {_text(member): x for member, x in value}
        return json.dumps(value, ensure_ascii=False, default=_text) if value else ""
    try:
        return text_of(value).decode(errors="replace")
    except FieldValueError:
        return ""


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None


def _is_json_list(text: str) -> bool:
    try:
        return text.startswith("[") and isinstance(json_value(text), list)
    except ValueError:
        return False


def _time_format(texts: Sequence[str]) -> str | None:
    if not texts:
        return None
    if all(_number(text) is not None for text in texts):
        candidates = [form for form, digits in _DIGITS.items() if all(len(text) == digits for text in texts)]
        candidates += EPOCHS
        return next((form for form in candidates if _moments(texts, form)), None)
    written = [text for text in texts if not text.startswith(_NO_DATE)]
    if 2 * len(written) < len(texts):
        return None
    # Where day and month may be either, the log's times run forward, and together, by the right one.
    found = {form: moments for form in _TIME_FORMATS if (moments := _moments(written, form))}
    return min(found, key=lambda form: _disorder(found[form]), default=None)


def _disorder(moments: Sequence[datetime]) -> tuple[int, timedelta]:
    """How often times step back, and how long they last."""
    return sum(late < early for early, late in pairwise(moments)), max(moments) - min(moments)


def _moments(texts: Sequence[str], form: str | None) -> list[datetime] | None:
    """`texts` parsed by `form`, in UTC if they name no zone; None if one does not parse or has an implausible year."""
    try:
        if form is None:
            return None
        if form == "iso":
            found = [iso_time(text) for text in texts]
        elif form in EPOCHS:
            found = [datetime.fromtimestamp(float(text) / EPOCHS[form], UTC) for text in texts]
        else:
            found = [datetime.strptime(text, form) for text in texts]
        moments = [each.replace(tzinfo=each.tzinfo or UTC) for each in found]
    except (ValueError, OverflowError, OSError):
        return None
    return moments if all(moment.year in _YEARS for moment in moments) else None


def moments_of(profile: Profile) -> list[datetime] | None:
    """The time of each row in UTC, as those without a zone are; None unless every row has one in that format."""
    found = _moments(profile.texts, profile.time_format) if profile.filled == len(profile.texts) else None
    return found and [each.astimezone(UTC) for each in found]
