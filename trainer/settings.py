"""How the runs are set that go on for hours: each setting declared once, with its flag of `ftrie trainer` and others.

The commands take these dataclasses (`ftrie.command`), so this module imports nothing that takes time.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Self

from model_store.clock import SYSTEM, Clock
from model_store.errors import UsageError
from model_store.flags import DEFAULT_STORE, Flag, StoreOption
from trainer.output import SILENT, Output

MIB = 1 << 20
MOST_PARTITIONS = 1_000
ANY = "any"
METHODS = ("surrogate", "admm")
_EVERY = re.compile(r"([0-9]+)(ms|[smh]?)")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PARTITION = re.compile(rf"([0-9]{{1,4}}|{ANY})/([0-9]{{1,4}})")
_MOST_REDUCERS = 4


@dataclass(frozen=True)
class Every:
    """Either a number of `rows` or of `seconds`; the other one is None."""

    rows: int | None
    seconds: float | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `100000` (rows), `500ms`, `30s`, `5m` or `1h`. Raises UsageError for anything else."""
        found = _EVERY.fullmatch(text)
        if found is None or int(found[1]) == 0:
            raise UsageError(
                f"every {text!r}: expected a number of rows such as 100000, or a time such as 500ms, 30s, 5m, 1h"
            )
        number, unit = int(found[1]), found[2]
        return cls(None, number * _UNITS_S[unit]) if unit else cls(number, None)


class Schedule:
    """How often something is done: every N rows or every S seconds.

    Counts from the last attempt, successful or not, so that a full disk is not tried again at every batch.
    """

    def __init__(self, every: Every, rows: int, clock: Clock = SYSTEM) -> None:
        self._every, self._clock = every, clock
        self.restart(rows)

    def restart(self, rows: int) -> None:
        """Count from here: `rows` rows of the run are learned."""
        self._rows, self._began = rows, self._clock.monotonic()

    def is_due(self, rows: int) -> bool:
        """True if enough rows, or enough time, have passed."""
        if self._every.rows is not None:
            return rows - self._rows >= self._every.rows
        assert self._every.seconds is not None
        return self._clock.monotonic() - self._began >= self._every.seconds


def parse_partition(text: str) -> tuple[int | None, int]:
    """`2/3` or `any/3`: the number, None for any, and the count. Raises UsageError."""
    if found := _PARTITION.fullmatch(text):
        number, count = found[1], int(found[2])
        if 1 <= count <= MOST_PARTITIONS and (number == ANY or 1 <= int(number) <= count):
            return None if number == ANY else int(number), count
    raise UsageError(
        f"--partition {text!r}: expected I/N or {ANY}/N, such as 1/2, 2/2 or {ANY}/2, with I from 1 to N and N at most "
        f"{MOST_PARTITIONS:,}"
    )


def _time_us(text: str) -> int:
    seconds = Every.parse(text).seconds
    if seconds is None:
        raise UsageError(f"--reconcile {text!r}: expected a time such as 30s or 1m, got a number of examples")
    return round(seconds * 1_000_000)


# --- What a run starts from and leaves ---

SaveOption = Annotated[
    Path | None, Flag("Write the learned model to this file.", "FILE.arrow", file="writes")
]
ForceOption = Annotated[bool, Flag("Publish even if more than a tenth of the rows were rejected.")]
InitFromOption = Annotated[
    str | None,
    Flag(
        "Start from a published model: its version in the store, `active`, or a FILE.arrow; ignored when "
        "resuming from a checkpoint.",
        "VERSION|FILE",
        file="reads",
    ),
]
ThresholdOption = Annotated[
    float,
    Flag("When publishing changes: hold a weight back until it has moved by more than X.", "X", min=0.0),
]
KEPT = (
    "How many of the newest versions to keep; default: 5, and a snapshot of each of the last 5 minutes, 6 hours and 3 "
    "days."
)
KeepOption = Annotated[
    int | None,
    Flag(
        f"When versions are published, delete old ones as `ftrie store gc` does. {KEPT} 0 keeps all.",
        "N",
        min=0,
    ),
]


# --- ftrie trainer ---


@dataclass(frozen=True, kw_only=True)
class TrainerOptions:
    """How one trainer runs.

    store: of versions, lease and dead letters; checkpoint: the trainer's folder, which a run must name. output: takes
    notes and warnings. clock: of all that the run decides by time.
    """

    sources: Annotated[
        tuple[str, ...],
        Flag(
            "Where events come from, repeatable: `store` (the model's two streams there, the default), "
            "redis://…, a file, folder or glob that may grow, kafka://HOST:PORT/TOPIC, rows=PATH for labelled rows.",
            "SOURCE",
            names="--from",
            file="follows",
        ),
    ] = ()
    store: StoreOption = DEFAULT_STORE
    checkpoint: Annotated[
        Path | None,
        Flag("Write checkpoints of the trainer here; default: .ftrie/trainers/MODEL.", "DIR", file="writes"),
    ] = None
    every: Annotated[
        Every,
        Flag("Interval of checkpoints: examples, or a time.", "N|30s", default="30s", parse=Every.parse),
    ] = Every(None, 30.0)
    init_from: InitFromOption = None
    save: SaveOption = None
    activate: Annotated[
        bool, Flag("Make servers switch to what is published.", names="--activate/--no-activate")
    ] = True
    publish: Annotated[bool, Flag("Publish while learning.", names="--publish/--no-publish")] = True
    publish_every: Annotated[
        Every, Flag("Interval of deltas: a time, or examples.", "1s|N", default="1s", parse=Every.parse)
    ] = Every(None, 1.0)
    snapshot_every: Annotated[
        Every,
        Flag("Interval of full snapshots: a time, or deltas.", "1m|N", default="1m", parse=Every.parse),
    ] = Every(None, 60.0)
    publish_threshold: ThresholdOption = 0.0
    keep: KeepOption = None
    once: Annotated[bool, Flag("Learn what the sources have, close all windows, and end.")] = False
    wait: Annotated[
        bool, Flag("If another trainer has this model, wait for it to end instead of failing.")
    ] = False
    partition: Annotated[
        tuple[int | None, int] | None,
        Flag(
            "Learn the requests of partition I of N, each by a trainer of its own; any/N: of the first one that "
            "has no trainer, and wait while all have. Partition 1 publishes.",
            "I/N",
            parse=parse_partition,
        ),
    ] = None
    reconcile_us: Annotated[
        int,
        Flag(
            "Interval, in the events' time, at which partitions are merged.",
            "1m",
            names="--reconcile",
            default="1m",
            parse=_time_us,
        ),
    ] = 60_000_000
    idle_s: Annotated[
        float,
        Flag(
            "Seconds without new data after which a file or topic no longer holds back the others.",
            "S",
            min=0.0,
        ),
    ] = 2.0
    memory_bytes: Annotated[
        int,
        Flag(
            "MiB of memory for impressions that wait for clicks; the rest is kept on disk.",
            "MIB",
            min=1,
            names="--memory",
            unit=MIB,
        ),
    ] = 256 * MIB
    max_lag_s: Annotated[
        float, Flag("When lag exceeds S seconds, publish less often and log a warning.", "S", min=0.0)
    ] = 30.0
    say_every_s: Annotated[float, Flag("Interval of status lines, in seconds.", "S", min=0.1)] = 5.0
    metrics_port: Annotated[int | None, Flag("Serve Prometheus metrics on this port.", min=0, max=65535)] = (
        None
    )
    metrics_host: Annotated[
        str, Flag("The address of --metrics-port; 0.0.0.0 for all interfaces.", "HOST")
    ] = "127.0.0.1"
    force: ForceOption = False
    output: Output = SILENT
    clock: Clock = SYSTEM

    @property
    def folder(self) -> Path:
        """Where the trainer keeps its state."""
        assert self.checkpoint is not None
        return self.checkpoint


# --- ftrie train-distributed ---


@dataclass(frozen=True)
class HeldOutRows:
    """Rows to judge the model by, which are not learned: a share of the log's requests, or all rows of other files."""

    share: float = 0.0
    inputs: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> HeldOutRows:
        """`0.1`, a share, or `day_7.csv`, a file. Raises UsageError."""
        try:
            # A number is a share: a file of such a name is given as ./0.1.
            share = float(text)
        except ValueError:
            return cls(inputs=(text,))
        if not 0.0 < share < 1.0:
            raise UsageError(f"--held-out {text}: expected a share between 0 and 1 such as 0.1, or a file")
        return cls(share)


def _penalties(text: str) -> tuple[float, ...]:
    try:
        found = {float(each) for each in text.split(",")}
    except ValueError:
        # NaN fails the comparison below, as a number out of bounds does.
        found = {math.nan}
    if not all(0.0 <= each < math.inf for each in found):
        raise UsageError(f"--penalties {text}: expected numbers from 0 on, such as 1,2,4")
    return tuple(sorted(found, reverse=True))


@dataclass(frozen=True)
class MethodOptions:
    """How the objective is minimised.

    tolerance: two iterations in a row that lower the objective by less than this share end it. rho: None for 1.0.
    """

    method: Annotated[str, Flag("surrogate or admm; docs/distributed.md compares them.", "NAME")] = (
        "surrogate"
    )
    iterations: Annotated[int, Flag("The most iterations, for each variant with own values.", "N", min=1)] = (
        50
    )
    tolerance: Annotated[
        float,
        Flag(
            "Stop once an iteration lowers the objective by less than this share of it.",
            "X",
            min=0.0,
            max=1.0,
            default=1e-5,
        ),
    ] = 2e-5
    rho: Annotated[
        float | None, Flag("With --method admm: the penalty of disagreement; default 1.0.", "X", min=1e-12)
    ] = None
    consensus: Annotated[
        str,
        Flag(
            "With --method admm: general (the workers that hold a key agree on its weight) or plain (all do).",
            "FORM",
        ),
    ] = "general"
    loss: Annotated[
        str,
        Flag(
            "rows: the mean over all rows; workers: of each worker's mean, however many rows it has.", "MEAN"
        ),
    ] = "rows"
    keep: Annotated[
        str,
        Flag(
            "With --held-out: best (the iteration that predicts those rows best) or last (the minimum).",
            "WHICH",
        ),
    ] = "best"


@dataclass(frozen=True, kw_only=True)
class DistributedOptions:
    """How a distributed run works.

    penalties: values of l1, falling, of which the best by the held-out rows is kept; empty: that of the spec.
    """

    workers: Annotated[int, Flag("Processes that hold the rows, each a part of them.", "N", min=1)]
    reducers: Annotated[
        int,
        Flag(
            "Processes that hold the keys, each a range of their hashes; default: as many as workers, at most 4.",
            "N",
            min=1,
            type=int | None,
        ),
    ] = 0
    address: Annotated[
        str | None,
        Flag(
            "Join this Ray cluster: HOST:PORT, or `auto` for the one that runs on this machine. Default: start "
            "Ray here, for this run.",
            "RAY",
        ),
    ] = None
    shard_bytes: Annotated[
        int | None,
        Flag(
            "Keep each worker's rows in files of its temporary folder, and about this much of them in memory; "
            "default: all in memory.",
            "MIB",
            min=16,
            names="--shard-memory",
            unit=MIB,
        ),
    ] = None
    timeout_s: Annotated[
        float | None,
        Flag(
            "Replace a worker or reducer that still works on a step so long after half of the others have "
            "finished it; default: wait, and warn.",
            "SECONDS",
            min=1.0,
            names="--worker-timeout",
        ),
    ] = None
    method: MethodOptions = field(default_factory=MethodOptions)
    held_out: Annotated[
        HeldOutRows,
        Flag(
            "Do not learn from this share of the requests, such as 0.1, or learn from all and judge by the rows "
            "of FILE: their log-loss is shown in each iteration, and becomes the model's.",
            "SHARE|FILE",
            file="reads",
            parse=HeldOutRows.parse,
        ),
    ] = HeldOutRows()
    penalties: Annotated[
        tuple[float, ...],
        Flag(
            "With --held-out: minimise with each of these instead of the spec's l1, from the greatest to the "
            "least, each from the minimum before it.",
            "L1,L1,…",
            parse=_penalties,
        ),
    ] = ()

    def __post_init__(self) -> None:
        """Raises UsageError for settings that do not go together."""
        object.__setattr__(self, "reducers", self.reducers or min(self.workers, _MOST_REDUCERS))
        how = self.method
        for flag, value, expected in (
            ("--method", how.method, METHODS),
            ("--consensus", how.consensus, ("general", "plain")),
            ("--loss", how.loss, ("rows", "workers")),
            ("--keep", how.keep, ("best", "last")),
        ):
            if value not in expected:
                raise UsageError(f"{flag} {value}: expected {' or '.join(expected)}")
        if how.rho is not None and how.method != "admm":
            raise UsageError(f"--rho belongs to --method admm, not to {how.method}")
        if how.consensus == "plain" and how.method != "admm":
            raise UsageError(f"--consensus plain belongs to --method admm, not to {how.method}")
        if self.penalties and self.held_out == HeldOutRows():
            raise UsageError("--penalties chooses by rows that are not learned: add --held-out 0.1")
        if self.penalties and how.method != "surrogate":
            raise UsageError(f"--penalties belongs to --method surrogate, not to {how.method}")
