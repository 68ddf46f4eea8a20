"""Parameters of tests that repeat one check over a matrix of learners, formats or moments."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def slow_except(quick: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Return `values` as parameters of which `make test` runs those in `quick`, and `make test-all` all."""
    return [value if value in quick else pytest.param(value, marks=pytest.mark.slow) for value in values]
