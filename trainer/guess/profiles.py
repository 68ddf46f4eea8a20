"""What the first rows of a log say about each of its columns: how many values, of what kind. Guesses nothing.

Only `ftrie init` looks at logs this way; training takes the spec's word.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from model_store.bounded import json_value
from model_store.errors import FieldValueError, InputError
from model_store.features.cells import LABELS
from model_store.features.values import text_of
from trainer.logs.reader import LogReader

SAMPLE_ROWS = 10_000
_BATCH_BYTES = 1024 * 1024
_TIME_FORMATS = (
    "%Y%m%d%H%M%S",
    "%Y%m%d%H%M",
    "%Y%m%d%H",
    "%Y%m%d",
    "%y%m%d%H",
    "%Y/%m/%d %H:%M:%S",
    "%d/%b/%Y:%H:%M:%S %z",
    "%d/%m/%Y %H:%M:%S",
    "%d/%m/%Y %H:%M",
    "%m/%d/%Y %H:%M:%S",
    "%m/%d/%Y %H:%M",
)
_DIGITS = {"%Y%m%d%H%M%S": 14, "%Y%m%d%H%M": 12, "%Y%m%d%H": 10, "%Y%m%d": 8, "%y%m%d%H": 8}
_EPOCHS = (("epoch_s", 1), ("epoch_ms", 1000))
_YEARS = range(1990, 2101)
_SEPARATORS = ("|", ";", ",")


@dataclass(frozen=True)
class Profile:
    """One column of a sample. `texts` holds a row's value as text ("" for none); `lists` if it holds lists.

    `kind` is what the format of the log says of it: see `ModelSpec.resolve`.
    """

    name: str
    texts: tuple[str, ...]
    lists: bool = False
    kind: str | None = "category"

    @cached_property
    def counts(self) -> Counter[str]:
        """How often each value occurs; absent ones are not counted."""
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
        """True if every value, and there is one in each row, says yes or no."""
        return self.filled == len(self.texts) > 0 and all(map(can_be_label, self.counts))

    @property
    def labels(self) -> list[int]:
        """The values as 1 and 0; only of a column that `is_label`."""
        return [int(LABELS[text.lower().encode()] > 0.0) for text in self.texts]

    @cached_property
    def numbers(self) -> list[float] | None:
        """The distinct values as numbers; None if one is no finite number."""
        numbers = [_number(text) for text in self.counts]
        found = [number for number in numbers if number is not None]
        return found if found and len(found) == len(numbers) else None

    @property
    def is_whole(self) -> bool:
        """True if all values are integers."""
        return self.numbers is not None and all(number.is_integer() for number in self.numbers)

    @cached_property
    def is_dense(self) -> bool:
        """True if whole numbers lie close together from about 0, as counts do and codes do not."""
        near = sum(self.counts[text] for text in self.counts if 0 <= float(text) <= 4 * self.distinct)
        return 2 * near >= self.filled

    @cached_property
    def time_format(self) -> str | None:
        """How times are written here: "iso", "epoch_s", "epoch_ms" or strptime's letters; None if they are no times."""
        return _time_format(list(self.counts))

    @cached_property
    def separator(self) -> str | None:
        """What separates the members, "[" for JSON arrays; None if this is no text of several members."""
        texts = list(self.counts)
        if texts and all(_is_json_list(text) for text in texts):
            return "["
        return next((separator for separator in _SEPARATORS if self._is_separated_by(separator)), None)

    def _is_separated_by(self, separator: str) -> bool:
        """True if values have a varying number of parts, fewer different ones than there are values."""
        parts = [text.split(separator) for text in self.counts]
        several = sum(len(each) > 1 for each in parts)
        if 5 * several < len(parts) or len({len(each) for each in parts}) < 2:
            return False
        members = {member for each in parts for member in each}
        return not any(member.startswith(" ") for member in members) and len(members) < len(parts)

    @property
    def days(self) -> int:
        """How many days the values of a time column lie on."""
        return len({moment.date() for moment in _moments(list(self.counts), self.time_format) or []})


def can_be_label(text: str) -> bool:
    """True if training reads the text as a label."""
    return text.lower().encode() in LABELS


def take_sample(name: str, format: str | None = None, rows: int = SAMPLE_ROWS) -> tuple[Profile, ...]:
    """Profile every column in the first rows of a log. InputError if there is no row that can be read."""
    values: dict[str, list[Any]] = {}
    with closing(LogReader([name], format=format, batch_bytes=_BATCH_BYTES)) as reader:
        columns, kinds = reader.columns(), reader.kinds()
        taken = 0
        for batch in reader.batches(columns):
            for column in columns:
                values.setdefault(column, []).extend(batch.columns[column].slice(0, rows - taken).to_pylist())
            taken = len(values[columns[0]])
            if taken >= rows:
                break
    if not values or not taken:
        raise InputError(f"{name} holds no row to look at")
    return tuple(_profile(column, values[column], kinds.get(column, "category")) for column in columns)


def _profile(name: str, values: Sequence[Any], kind: str | None) -> Profile:
    lists = any(isinstance(value, list) for value in values)
    return Profile(name, tuple(_text(value) for value in values), lists, kind)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):  # how Arrow gives a map
            value = {_text(member): x for member, x in value}
        return json.dumps(value, ensure_ascii=False, default=str) if value else ""
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
    if _are_numbers(texts):
        candidates = [form for form, digits in _DIGITS.items() if all(len(text) == digits for text in texts)]
        candidates += [form for form, _ in _EPOCHS]
    else:
        candidates = ["iso", *(form for form in _TIME_FORMATS if form not in _DIGITS)]
    return next((form for form in candidates if _moments(texts, form)), None)


def _are_numbers(texts: Sequence[str]) -> bool:
    return all(_number(text) is not None for text in texts)


def _moments(texts: Sequence[str], form: str | None) -> list[datetime] | None:
    """The times that `texts` are in `form`; None if one is not, or lies in no plausible year."""
    try:
        moments = [_moment(text, form) for text in texts]
    except (ValueError, OverflowError, OSError):
        return None
    return moments if all(moment.year in _YEARS for moment in moments) else None


def _moment(text: str, form: str | None) -> datetime:
    if form is None:
        raise ValueError
    if form == "iso":
        return datetime.fromisoformat(text)
    for name, per_second in _EPOCHS:
        if form == name:
            return datetime.fromtimestamp(float(text) / per_second, UTC)
    return datetime.strptime(text, form)
