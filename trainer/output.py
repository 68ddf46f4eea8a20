"""Where a run reports what a person should read while it works: notes, warnings and progress.

The module `ftrie.terminal` is an `Output` that prints; `SILENT` drops everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Progress(Protocol):
    """How far one piece of work has come."""

    def update(self, completed: int, *, total: int | None = None, **fields: float | str) -> None:
        """Report how much is done; `total` corrects an estimate, `fields` are printed beside it. Cheap."""


class Output(Protocol):
    """Takes what a run reports."""

    def note(self, message: str, /) -> None:
        """Report something worth knowing."""

    def warn(self, message: str, /) -> None:
        """Report a problem that does not end the work."""

    def progress(
        self, description: str, /, total: int | None = None, unit: str = "rows"
    ) -> AbstractContextManager[Progress]:
        """Report the progress of the work done inside the context."""


class _Silent:
    """An output and a progress that nobody reads."""

    def note(self, message: str, /) -> None:
        pass

    def warn(self, message: str, /) -> None:
        pass

    @contextmanager
    def progress(
        self, description: str, /, total: int | None = None, unit: str = "rows"
    ) -> Iterator[Progress]:
        yield self

    def update(self, completed: int, *, total: int | None = None, **fields: float | str) -> None:
        pass


SILENT: Output = _Silent()
