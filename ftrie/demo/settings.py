"""How the simulated market, its visitors and its processes are set: each setting declared once, with its flag.

The flags of `ftrie live` and `ftrie simulate`. This module imports nothing that takes time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from model_store.flags import DEFAULT_STORE, Flag, StoreOption

MODEL = "market"
FROZEN = f"{MODEL}-frozen"
CHANGE_AT_S = 60.0

_RATE = Flag("Visits a second.", min=0.01)
_SEED = Flag("Seed of the market.", min=0)
_BOTS = Flag("Share of users that click everything or nothing.", "SHARE", min=0.0, max=1.0)
_DELAY = Flag("Mean time from an answer to a click.", "SECONDS", min=0.0)


@dataclass(frozen=True)
class Tastes:
    """How tastes change over time. Times are seconds from the start of the market.

    change_at: when they change abruptly; inf means never. drift: amplitude, in logits, of the slow sinusoidal drift of
    each age's taste for a category; period_s: its period.
    """

    change_at: Annotated[
        float,
        Flag(
            "When tastes change abruptly; default: never.",
            "SECOND",
            min=0.0,
            type=float | None,
        ),
    ] = math.inf
    drift: Annotated[float, Flag("Amplitude of the slow drift of tastes.", "LOGITS", min=0.0)] = 0.3
    period_s: float = 900.0


@dataclass(frozen=True)
class Sizes:
    """Numbers of users and items. bots: the share of users that are bots, half of each kind.

    appeal: the standard deviation, in logits, of an item's appeal beyond brand, category and price.
    """

    users: int = 2000
    items_per_category: int = 12
    bots: Annotated[float, _BOTS] = 0.02
    appeal: float = 0.25


@dataclass(frozen=True)
class Habits:
    """Parameters of visits. Times in seconds.

    rate: visits a second. candidates: items that compete; shown: items requested. delay: mean time from the answer to
    a click and from a click to its conversion, exponential; late: the share of clicks delayed by `window` more, after
    the join has closed their request. seen: what people look at is reported too.
    """

    rate: Annotated[float, _RATE] = 50.0
    candidates: Annotated[int, Flag("Items that compete in a visit.", min=1)] = 12
    shown: Annotated[int, Flag("How many of them are shown.", min=1)] = 6
    delay: Annotated[float, _DELAY] = 1.5
    late: Annotated[float, Flag("Share of clicks delayed by --window more.", "SHARE", min=0.0, max=1.0)] = (
        0.01
    )
    window: Annotated[float, Flag("The join's window; see --late.", "SECONDS", min=0.0)] = 600.0
    seen: Annotated[bool, Flag("Report `seen` events of the items that people look at.")] = False


@dataclass(frozen=True)
class Rankers:
    """The models that rank: `model`, and on a share of the visits `beside`, to compare the two."""

    model: Annotated[str, Flag("The model that ranks.", "NAME")] = MODEL
    beside: Annotated[str, Flag("A second model, which ranks --beside-share of the visits.", "MODEL")] = ""
    share: Annotated[
        float,
        Flag("Share of visits that --beside ranks.", "SHARE", min=0.0, max=1.0, names="--beside-share"),
    ] = 0.1

    def of(self, apart: float) -> str:
        """The model for a visit; apart: the visit's number in [0, 1) that decides."""
        return self.beside if self.beside and apart < self.share else self.model


@dataclass(frozen=True, kw_only=True)
class SimulateOptions:
    """The traffic of one `ftrie simulate`. start_s, seconds (None: no end), every_s: seconds."""

    addresses: Annotated[
        tuple[str, ...],
        Flag("A server; may be repeated, to use several in turn.", "HOST:PORT", names="--address"),
    ] = ()
    store: StoreOption = DEFAULT_STORE
    rankers: Rankers = field(default_factory=Rankers)
    seconds: Annotated[float | None, Flag("How long; default: until Ctrl-C or SIGTERM.", min=0.1)] = None
    start_s: Annotated[
        float, Flag("Start at this second of the market.", "SECOND", min=0.0, names="--from")
    ] = 0.0
    seed: Annotated[int, _SEED] = 1
    tastes: Tastes = field(default_factory=Tastes)
    sizes: Sizes = field(default_factory=Sizes)
    habits: Habits = field(default_factory=Habits)
    explore: Annotated[str, Flag("ucb:WIDTH or thompson:WIDTH, as in ftrie rank.", "HOW:WIDTH")] = ""
    feedback: Annotated[
        Literal["service", "stream"],
        Flag("service: the servers' FeedbackService; stream: the store's stream.", "HOW"),
    ] = "service"
    load: Annotated[bool, Flag("Load the users and items into the store first.")] = False
    callers: Annotated[int, Flag("Maximum of concurrent visits.", min=1, max=256)] = 16
    every_s: Annotated[float, Flag("Interval between output lines.", "SECONDS", min=0.1)] = 2.0


@dataclass(frozen=True, kw_only=True)
class LiveOptions:
    """One `ftrie live`. Times in seconds. dir: None for a temporary folder, which `run` puts in its place."""

    seconds: Annotated[float | None, Flag("How long; default: until Ctrl-C or SIGTERM.", min=1.0)] = None
    rate: Annotated[float, _RATE] = 100.0
    change_at: Annotated[
        float,
        Flag(
            "When tastes change abruptly; default: after a quarter of --seconds, at most 60.",
            "SECOND",
            min=0.0,
            type=float | None,
        ),
    ] = -1.0
    frozen: Annotated[
        float,
        Flag(
            "Share of visits ranked by a copy of the model frozen before the change; 0: none.",
            "SHARE",
            min=0.0,
            max=1.0,
        ),
    ] = 0.1
    publish_every: Annotated[str, Flag("Same as in ftrie trainer.", "1s|N")] = "1s"
    explore: Annotated[str, Flag("Same as in ftrie rank.", "HOW:WIDTH")] = "thompson:3"
    seed: Annotated[int, _SEED] = 1
    bots: Annotated[float, _BOTS] = 0.02
    delay: Annotated[float, _DELAY] = 1.5
    dir: Annotated[
        Path | None,
        Flag("Work here, and keep the store, the logs and the checkpoints.", "DIR", file="writes"),
    ] = None
    picture: Annotated[Path | None, Flag("Draw the click rates over time.", "FILE.svg", file="writes")] = None
    open_browser: Annotated[bool, Flag("Open the dashboard in a browser.", names="--open")] = False

    def __post_init__(self) -> None:
        """By default tastes change early enough that a run of any length shows before and after."""
        if self.change_at < 0.0:
            at = CHANGE_AT_S if self.seconds is None else min(CHANGE_AT_S, self.seconds / 4)
            object.__setattr__(self, "change_at", at)

    @property
    def folder(self) -> Path:
        """Where everything is kept."""
        assert self.dir is not None
        return self.dir

    @property
    def store(self) -> str:
        """The store's URL."""
        return f"embedded:{self.folder / 'store'}"

    @property
    def spec(self) -> Path:
        """The model spec, a copy that the user may read and change."""
        return self.folder / f"{MODEL}.toml"

    @property
    def day(self) -> Path:
        """The log of the day before."""
        return self.folder / "day.csv"

    @property
    def models(self) -> tuple[str, ...]:
        """The models that the servers serve."""
        return (MODEL, FROZEN) if self.frozen else (MODEL,)
