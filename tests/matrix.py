"""How often a test repeats one check: over a matrix of learners, formats or moments, or over drawn examples."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from hypothesis import settings


def slow_except(quick: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Return `values` as parameters of which `make test` runs those in `quick`, and `make test-all` all."""
    return [value if value in quick else pytest.param(value, marks=pytest.mark.slow) for value in values]


def examples(number: int) -> settings:
    """So many of Hypothesis' examples in `make test-all`, a fifth of them in `make test` (see tests/conftest.py)."""
    return settings(max_examples=number * settings.default.max_examples // 100)
