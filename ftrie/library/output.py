"""Where the library reports what the command line prints: warnings as Python warnings, progress as a bar.

The bar is shown on a terminal and in a notebook, and nowhere else.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ftrie.terminal import library_progress
from model_store.errors import counted
from trainer.output import SILENT, Progress


class FtrieWarning(UserWarning):
    """Something about the data, the spec or the run that does not end the work; the message says what to look into."""


class LibraryOutput:
    """An `Output` for callers in Python. Notes are dropped; they describe what a caller asked for."""

    def __init__(self, shows_progress: bool = True) -> None:
        self._shows_progress = shows_progress

    def note(self, message: str, /) -> None:
        """Drop a note."""

    def warn(self, message: str, /) -> None:
        """Issue an FtrieWarning at the line that called ftrie."""
        warnings.warn(message, FtrieWarning, stacklevel=_caller())

    @contextmanager
    def progress(
        self, description: str, /, total: int | None = None, unit: str = "rows"
    ) -> Iterator[Progress]:
        """A bar on a terminal and in a notebook."""
        shown = library_progress if self._shows_progress else SILENT.progress
        with shown(description, total, unit) as progress:
            yield progress


def warn_of_rejects(count: int, reasons: Sequence[str]) -> None:
    """Warn of rows that were skipped, if there are any; reasons: of the first ones."""
    if count:
        warn(f"{counted(count, 'row')} rejected: {'; '.join(reasons)}")


def warn(message: str) -> None:
    """Issue an FtrieWarning at the line that called ftrie."""
    warnings.warn(message, FtrieWarning, stacklevel=_caller())


def _caller() -> int:
    """The stack level, as `warnings.warn` of this function's caller counts, of the first frame outside ftrie."""
    frame, level = sys._getframe(1), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _OURS:
        frame, level = frame.f_back, level + 1  # type: ignore[assignment]
    return level


_OURS = frozenset(["ftrie", "trainer", "server", "model_store", "contextlib"])
