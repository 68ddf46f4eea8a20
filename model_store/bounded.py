"""Reads text that a user gives within limits: lines of bounded length, JSON and TOML of bounded nesting.

Python's own readers take a line of any length into memory, and end deep nesting in RecursionError, not in ValueError.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, AnyStr

from model_store.errors import InputError

MAX_LINE = 16 << 20  # bytes, or characters of decoded text
NESTING = "nested too deeply (some hundred levels is the limit)"


def lines(stream: IO[AnyStr], path: str | Path) -> Iterator[AnyStr]:
    """The lines of a file, with their ends. Raises InputError naming the line that is longer than MAX_LINE."""
    number = 0
    while line := stream.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise InputError(
                f"{path}:{number}: the line is longer than {MAX_LINE >> 20} MiB; expected one record a line"
            )
        yield line


def json_value(text: str | bytes) -> Any:
    """What a JSON text says. Raises ValueError, also for one that is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(NESTING) from None


def toml_document(text: str) -> dict[str, Any]:
    """What a TOML text says. Raises ValueError, also for one that is nested too deeply."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(NESTING) from None
