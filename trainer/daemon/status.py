"""What a trainer says of itself: every few seconds on its terminal, as JSON if asked, and to Prometheus.

Nothing here changes how it goes. docs/trainer.md has each member.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from model_store.terminal import shown
from trainer.events.events import Lag
from trainer.watching.records import VariantMetrics


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
