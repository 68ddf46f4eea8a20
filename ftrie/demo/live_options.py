"""What `ftrie live` was asked for, and where everything lies. The flags are in `ftrie.commands.live`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ftrie.demo.market import MODEL

FROZEN = f"{MODEL}-frozen"
SERVERS = 2


CHANGE_AT_S = 60.0


def change_of(seconds: float | None) -> float:
    """The default second of the change: a run of any length shows what was before and what comes after."""
    return CHANGE_AT_S if seconds is None else min(CHANGE_AT_S, seconds / 4)


@dataclass(frozen=True)
class Asked:
    """The flags. Times in seconds; seconds is None for no end, frozen the share of visits for the frozen model."""

    folder: Path
    seconds: float | None
    rate: float
    seed: int
    change_at: float
    frozen: float
    bots: float
    delay: float
    publish_every: str
    explore: str
    picture: Path | None

    @property
    def store(self) -> str:
        """The store's URL."""
        return f"embedded:{self.folder / 'store'}"

    @property
    def spec(self) -> Path:
        """The model spec, a copy that may be read and changed."""
        return self.folder / f"{MODEL}.toml"

    @property
    def day(self) -> Path:
        """The log of the day before."""
        return self.folder / "day.csv"

    @property
    def models(self) -> tuple[str, ...]:
        """What the servers serve."""
        return (MODEL, FROZEN) if self.frozen else (MODEL,)
