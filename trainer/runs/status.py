"""What a trainer says of itself: every few seconds on its terminal, as JSON if asked, and to Prometheus.

Nothing here changes how it goes. docs/trainer.md has each member.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from model_store.errors import shown
from trainer.events.events import Lag
from trainer.learn.metrics.records import VariantMetrics
from trainer.runs.stream import Counts


@dataclass(frozen=True)
class Status:
    """One moment of a trainer.

    events, examples: since the first run; rate: events a second since the last status. logloss: of the last window, of
    all examples before the first has ended.
    version: the last one published here; active: the one served now; inactive: why what is published is not, by an
    operator's order. lags: by source. join: the join's counts. rolled_back: how often the guard went back. store_away:
    it did not answer, or refused, when it was last told something. store_losses: how often it was found without the
    lease that it had, and so without its data. behind: a source is read later than --max-lag says.
    normalized_entropy: of the worst variant in the last 1,000 rows or more. withheld: why nothing is published.
    warnings: all that somebody should look at now. variants: their metrics over all examples, in the last status alone.
    """

    model: str
    events: int
    examples: int
    rate: float
    keys: int
    logloss: float | None
    version: int | None
    published: dict[str, int]
    failed_checkpoints: int
    dead_letters: int
    lags: dict[str, Lag]
    lost: dict[str, int]
    counts: dict[str, int]
    join: dict[str, int]
    rolled_back: int = 0
    active: int | None = None
    inactive: str = ""
    store_away: bool = False
    store_losses: int = 0
    behind: bool = False
    normalized_entropy: float | None = None
    withheld: str = ""
    warnings: tuple[str, ...] = ()
    variants: dict[str, VariantMetrics] = field(default_factory=dict)
    ended: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        lags = {name: vars(lag) for name, lag in self.lags.items()}
        variants = {name: metrics.as_dict() for name, metrics in self.variants.items()}
        return {**vars(self), "lags": lags, "warnings": list(self.warnings), "variants": variants}

    def line(self) -> str:
        """For a person, on one line."""
        parts = [
            f"{self.events:,} events ({self.rate:,.0f}/s)",
            f"{self.examples:,} examples",
            f"{self.keys:,} keys",
        ]
        if self.logloss is not None:
            parts.append(f"recent log-loss {shown(self.logloss)}")
        if self.version is not None:
            parts.append(f"version {self.version}")
        parts += self._not_served()
        parts += [self._lag()] if self.lags else []
        parts += [f"{self.join.get('pending', 0):,} requests open"] if self.join else []
        parts += [f"{self.dead_letters:,} dead letters"] if self.dead_letters else []
        return " · ".join(parts)

    def _not_served(self) -> list[str]:
        """Why what is learned does not reach those who are served; in capitals, since somebody should look."""
        refused = self.published.get("refused", 0)
        parts = [f"{refused:,} REFUSED"] if refused else []
        parts += [f"{self.rolled_back:,} ROLLED BACK"] if self.rolled_back else []
        parts += [f"INACTIVE: an operator has chosen version {self.active}"] if self.inactive else []
        parts += [f"STORE LOST ITS DATA ({self.store_losses:,}x)"] if self.store_losses else []
        unknown = self.counts.get("unknown_items", 0)
        parts += [f"{unknown:,} rows of UNKNOWN ITEMS skipped"] if unknown else []
        parts += ["WITHHELD: too many rows were rejected"] if self.withheld else []
        return parts + (["STORE AWAY"] if self.store_away else [])

    def _lag(self) -> str:
        known = [lag for lag in self.lags.values() if lag.events is not None]
        seconds = [lag.seconds for lag in self.lags.values() if lag.seconds is not None]
        unread = sum(lag.bytes or 0 for lag in self.lags.values() if lag.events is None)
        parts = [f"{sum(lag.events or 0 for lag in known):,} events"] if known else []
        parts += [f"{unread / 1e6:,.1f} MB"] if unread else []
        parts += [f"{max(seconds):.1f} s"] if seconds else []
        return f"lag {', '.join(parts) or 'unknown'}"


# --- A trainer that reads nothing: it notices after a minute, and says what its sources hold and why nothing
# may come ---


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
