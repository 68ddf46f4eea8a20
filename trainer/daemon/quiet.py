"""A trainer that reads nothing: it notices after a minute, and says what its sources hold and why nothing may come."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from trainer.daemon.loop import Counts

QUIET_S = 60.0
"""So long nothing may come before the reason is looked for."""


class Holds(Protocol):
    """A source that can say what it holds."""

    def holds(self) -> str:
        """What there is in it, read or not, in words for a person."""


class Quiet:
    """Watches the counts of one run. For one thread. `why`: why nothing may come, while nothing does; else empty."""

    def __init__(self, model: str, sources: Sequence[Holds], counts: Counts) -> None:
        self.why = ""
        self._model = model
        self._sources = sources
        self._read = _worth(counts)
        self._since_s = time.monotonic()

    def look(self, counts: Counts) -> None:
        """To be called every second or so. Asks the sources once nothing has come for long."""
        if (read := _worth(counts)) != self._read:
            self._read, self._since_s, self.why = read, time.monotonic(), ""
        elif not self.why and time.monotonic() - self._since_s >= QUIET_S:
            self.why = why_nothing(self._model, self._sources, counts)


def why_nothing(model: str, sources: Sequence[Holds], counts: Counts) -> str:
    """Why nothing may come from the sources."""
    what = "no impression" if counts.feedback and not counts.impressions else "nothing"
    held = "; ".join(source.holds() for source in sources)
    return f"{what} was read for {QUIET_S:.0f} s: {held}. {_hint(model, counts)}"


def _hint(model: str, counts: Counts) -> str:
    if counts.rows:
        return "All rows there are have been learned from; the trainer waits for more"
    if counts.impressions:
        return "Servers may be idle or gone, or log their impressions elsewhere"
    only = (
        f"Only clicks have come ({counts.feedback:,}), which teach nothing by themselves. "
        if counts.feedback
        else ""
    )
    return (
        f"{only}Impressions come from servers that are told to log them, into the same store: "
        f"ftrie serve {model} --impressions store; other sources are named by --from"
    )


def _worth(counts: Counts) -> int:
    """What was read; feedback alone is nothing as long as no impression has come."""
    return counts.events if counts.impressions or counts.rows else counts.bad_events
