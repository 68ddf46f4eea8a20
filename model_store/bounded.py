"""Reading untrusted text within limits: lines of bounded length, JSON and TOML of bounded nesting, exact JSON types.

Python's readers take lines of any length into memory and raise RecursionError for deep nesting. The checks of JSON
values are exact: `true` is not a number, 1.0 is not an integer, and "1" is neither.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, AnyStr, TypeGuard

from model_store.errors import InputError

MAX_LINE = 16 << 20  # bytes, or characters of decoded text
NESTING = "nested too deeply (some hundred levels is the limit)"


def lines(stream: IO[AnyStr], path: str | Path) -> Iterator[AnyStr]:
    """The lines of a file, with line ends. Raises InputError naming a line longer than MAX_LINE."""
    number = 0
    # One more than allowed shows that a line is longer, without the rest of it.
    while line := stream.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise InputError(
                f"{path}:{number}: the line is longer than {MAX_LINE >> 20} MiB; expected one record per line"
            )
        yield line


def json_value(text: str | bytes) -> Any:
    """Parse a JSON text. Raises ValueError, also for one that is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(NESTING) from None


def toml_document(text: str) -> dict[str, Any]:
    """Parse a TOML text. Raises ValueError, also for one that is nested too deeply."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(NESTING) from None


# -- JSON values


def json_object(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises ValueError for any other text."""
    value = _parsed(text)
    if not isinstance(value, dict):
        raise ValueError(f"got {text[:80]!r}; expected a JSON object")
    return value


def json_names(text: str | bytes) -> list[str]:
    """Parse a JSON array of strings. Raises ValueError for any other text."""
    value = _parsed(text)
    if not isinstance(value, list) or not all(map(is_text, value)):
        raise ValueError(f"got {text[:80]!r}; expected a JSON array of names")
    return value


def is_text(value: object) -> TypeGuard[str]:
    """True for a JSON string."""
    return type(value) is str


def is_integer(value: object) -> TypeGuard[int]:
    """True for a JSON number without fraction or exponent."""
    # By `type`: to isinstance true is an int.
    return type(value) is int


def is_finite(value: object) -> TypeGuard[float]:
    """True for a JSON number that is finite."""
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def _parsed(text: str | bytes) -> Any:
    try:
        return json_value(text)
    except ValueError:
        return None
