"""Spans of time as a spec writes them: a whole number and a unit, such as "30d", "12h", "90m", "45s"."""

from __future__ import annotations

import re

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"([0-9]{1,12})([smhd])")


def seconds_of(text: str) -> int:
    """How many seconds a span is. Raises ValueError."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f'got {text!r}; expected a time such as "30d", "12h", "90m", "45s"')
    return int(found[1]) * _UNITS_S[found[2]]
