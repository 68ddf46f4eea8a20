"""The meaning of a single value: its canonical text, number, time, or set members and their x.

`trainer.examples.token_columns` and `trainer.formats.cells` apply the same rules to whole columns.
"""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import TypeAlias

from model_store.bounded import json_value
from model_store.errors import FieldValueError

Scalar: TypeAlias = str | bytes | int | float | bool
Weighted: TypeAlias = Mapping[str, float]  # a weighted set: member to x
Value: TypeAlias = Scalar | Sequence[Scalar] | Weighted | None

BUCKETS_PER_OCTAVE = 4
# From here on doubles skip whole numbers: the digits of an integer would claim more than is known.
INTEGRAL_LIMIT = 2.0**53
LARGEST_REAL = 1e24  # squared sums of the product of four such numbers and a weight stay finite
# A double has 52 bits of fraction; the first two of them number the quarters of an octave.
_BUCKET_SHIFT = 52 - 2
_BUCKET_OF_ONE = 1023 << 2


def text_of(value: Scalar) -> bytes:
    """The canonical text of a scalar; integral floats print as integers, so that 77 and 77.0 are one category."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return value
    # Before the numbers: to isinstance a bool is an int.
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, float):
        if not math.isfinite(value):
            raise FieldValueError(f"got {value!r}, expected a finite number")
        if value.is_integer() and abs(value) < INTEGRAL_LIMIT:
            return b"%d" % int(value)
        return repr(value).encode()
    if isinstance(value, int):
        return b"%d" % value
    raise FieldValueError(f"got a {type(value).__name__}, expected text, a number or a boolean")


_WHOLE = re.compile(rb"(-?)(0|[1-9][0-9]{0,15})(?:\.0+)?")
_BOOLEANS = {**dict.fromkeys((b"True", b"TRUE"), b"true"), **dict.fromkeys((b"False", b"FALSE"), b"false")}


def category_text(text: bytes) -> bytes:
    """The canonical text of a category: what `text_of` gives for the whole number or boolean that a CSV spells so.

    30.0 is 30, -0.0 is 0, True is true; any other text stays as it is. A function of the one text, so that log, store
    and request agree without knowing a column's type (ADR 0018). `find_spellings` finds what it changes.
    """
    # Only a text that ends in 0 can be such a number and change: the pattern is spared most texts.
    if text[-1:] == b"0" and (found := _WHOLE.fullmatch(text)) and int(found[2]) < INTEGRAL_LIMIT:
        return b"%d" % int(found[1] + found[2])
    return _BOOLEANS.get(text, text)


def log_bucket(value: float) -> int:
    """The logarithmic bucket of a finite number: four per octave of 1 + |value|, negative for negative values.

    Derived from the bits of 1 + |value| without a logarithm, so that every machine gets the same bucket.
    """
    bits: int = struct.unpack("<q", struct.pack("<d", 1.0 + abs(value)))[0]
    bucket = (bits >> _BUCKET_SHIFT) - _BUCKET_OF_ONE
    return -bucket if value < 0 else bucket


def parse_number(value: Scalar) -> float:
    """A finite number from a scalar or its text. Raises FieldValueError for anything else, as NaN, true and false."""
    try:
        if isinstance(value, bool):
            raise ValueError
        # float() takes 1_000, which neither JSON nor Arrow does.
        if isinstance(value, str | bytes) and b"_" in text_of(value):
            raise ValueError
        number = float(value)
    except (ValueError, OverflowError):
        raise FieldValueError(f"got {_shown(value)}, expected a number") from None
    if not math.isfinite(number):
        raise FieldValueError(f"got {_shown(value)}, expected a finite number")
    return number


def parse_real(value: Scalar) -> float:
    """A number that can be an x. Raises FieldValueError like `parse_number`, and beyond LARGEST_REAL."""
    number = parse_number(value)
    if abs(number) > LARGEST_REAL:
        raise FieldValueError(not_real(number))
    return number


def not_real(number: float) -> str:
    """The message for a number beyond LARGEST_REAL."""
    return f"got {number!r}, expected a number from -{LARGEST_REAL:g} to {LARGEST_REAL:g}"


@lru_cache(maxsize=1 << 16)
def time_part(text: str, form: str | None, part: str) -> bytes:
    """The `part` (UTC) of a time in `form`: None for ISO 8601, one of EPOCHS, or a strptime format."""
    moment = parse_time(text, form)
    return b"%d" % (moment.weekday() if part == "weekday" else getattr(moment, part))


def set_members(value: Value, separator: str | None, counts: bool = False) -> dict[bytes, float]:
    """The distinct members of a set, in order of first appearance, with the x of each.

    Members of a list have x = 1, or with `counts` how often they occur. A mapping is a weighted set of members and
    their x; 0 means absent. Text is a JSON array, a JSON object (weighted), or members with a separator (default `,`).
    Raises FieldValueError.
    """
    if isinstance(value, str | bytes):
        value = _members_in_text(checked_utf8(text_of(value)).decode(), separator)
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return _weighted_members(value)
    members = (value,) if isinstance(value, int | float) else value
    texts = (checked_utf8(text_of(one_scalar(member))) for member in members)
    if counts:
        return {text: float(count) for text, count in Counter(texts).items() if text}
    return {text: 1.0 for text in texts if text}


EPOCHS = {"epoch_s": 1.0, "epoch_ms": 1e3, "epoch_us": 1e6, "epoch_ns": 1e9}
"""Formats of numbers since 1970, and how many make a second."""
_ZONE = re.compile(r" ?(utc|gmt|z|[+-]\d\d:?\d\d)$", re.IGNORECASE)


def iso_time(text: str) -> datetime:
    """A time of ISO 8601, also with a space before its zone, and a zone `UTC` or `z`. Raises ValueError."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        # fromisoformat takes neither " UTC" nor a blank before an offset, as databases write them.
        zone = _ZONE.search(text)
        if zone is None:
            raise
        return datetime.fromisoformat(text[: zone.start()] + (zone[1] if zone[1][0] in "+-" else "+00:00"))


def parse_time(text: str, form: str | None) -> datetime:
    """Parse a time in `form` (see `time_part`), in UTC. Raises FieldValueError."""
    try:
        if form in EPOCHS:
            return datetime.fromtimestamp(float(text) / EPOCHS[form], UTC)
        moment = iso_time(text) if form is None else datetime.strptime(text, form)
        # A time without a zone is UTC on every machine, and never local time.
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        raise FieldValueError(f"got {text!r}, expected a time like {form or 'ISO-8601'}") from None


def _members_in_text(text: str, separator: str | None) -> Sequence[Scalar] | Weighted:
    if not text.startswith(("[", "{")):
        return text.split(separator or ",")
    try:
        members = json_value(text)
    except ValueError:
        kind = "array" if text.startswith("[") else "object"
        raise FieldValueError(
            f"got {_shown(text)}, which begins like a JSON {kind} but is not valid"
        ) from None
    return members if isinstance(members, dict) else [member for member in members if member is not None]


def _weighted_members(members: Weighted) -> dict[bytes, float]:
    weighted = {}
    for member, x in members.items():
        if x is None:
            continue
        if isinstance(x, bool) or not isinstance(x, int | float):
            raise FieldValueError(f"got {_shown(x)} for {_shown(member)}, expected a number")
        text, number = checked_utf8(text_of(member)), parse_real(x)
        # An x of 0 is the same as no member: it changes no score and learns nothing.
        if text and number:
            weighted[text] = number
    return weighted


def one_scalar(value: Value) -> Scalar:
    """The value, if it is a single scalar. Raises FieldValueError."""
    if isinstance(value, str | bytes | bool | int | float):
        return value
    raise FieldValueError(f"got a {type(value).__name__}, expected one value")


def decoded(value: Scalar) -> str:
    """The canonical text of a scalar as a str. Raises FieldValueError if it is not UTF-8."""
    return checked_utf8(text_of(value)).decode()


def checked_utf8(text: bytes) -> bytes:
    """The bytes, if they are UTF-8. Raises FieldValueError."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise FieldValueError(f"got bytes that are not UTF-8 (byte {error.start}): {text[:40]!r}") from None
    return text


def encoded(text: str) -> bytes:
    """The text as UTF-8. Raises FieldValueError if it has a lone surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise FieldValueError(
            f"got text that is not Unicode (character {error.start}): {text[:40]!r}"
        ) from None


def _shown(value: object) -> str:
    shown = repr(value.decode(errors="replace") if isinstance(value, bytes) else value)
    return shown if len(shown) <= 60 else f"{shown[:57]}…"
