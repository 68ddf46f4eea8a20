"""Which tests run on which kinds of stores; tests/model_store/conftest.py does so."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Test = TypeVar("Test", bound=Callable[..., None])


def on_every_kind(test: Test) -> Test:
    """Mark a test that stands for its file: it uses a cluster in `make test` too, and Sentinel in `make test-all`."""
    test.on_every_kind = True  # type: ignore[attr-defined]
    return test
