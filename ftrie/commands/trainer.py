"""`ftrie trainer`: flags and output. A trainer is `trainer.runs.daemon`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ftrie import terminal
from ftrie.command import command
from ftrie.commands.flags import (
    ForceOption,
    InitFromOption,
    KeepOption,
    SaveOption,
    SpecArgument,
    ThresholdOption,
)
from ftrie.commands.train import check_threshold, print_variants
from ftrie.terminal import JsonOption, note_parts, print_json
from model_store.errors import UsageError
from model_store.flags import DEFAULT_STORE, Argument, Flag, StoreOption

if TYPE_CHECKING:
    from trainer.checkpoint import Every
    from trainer.runs.status import Status

DEFAULT_FOLDER = ".ftrie/trainers"
REPEAT_S = 60.0
"""A status line that has not changed is printed again this often."""


@command(
    "Learn", 5, "Example: ftrie trainer ads.toml --store redis://localhost --activate --publish-every 1s"
)
def trainer(
    spec: SpecArgument,
    more: Annotated[
        list[str] | None, Argument("More sources: --from A B is --from A --from B.", "SOURCE", file="follows")
    ] = None,
    sources: Annotated[
        list[str],
        Flag(
            "Where events come from, repeatable: `store` (the model's two streams there, the default), "
            "redis://…, a file, folder or glob that may grow, kafka://HOST:PORT/TOPIC, rows=PATH for labelled rows.",
            "SOURCE",
            names="--from",
            file="follows",
        ),
    ] = [],  # noqa: B006
    store: StoreOption = DEFAULT_STORE,
    checkpoint: Annotated[
        Path | None,
        Flag(
            f"Write checkpoints of the trainer here; default: {DEFAULT_FOLDER}/MODEL.", "DIR", file="writes"
        ),
    ] = None,
    every: Annotated[str, Flag("Interval of checkpoints: examples, or a time.", "N|30s")] = "30s",
    init_from: InitFromOption = None,
    save: SaveOption = None,
    activate: Annotated[
        bool, Flag("Make servers switch to what is published.", names="--activate/--no-activate")
    ] = True,
    publish: Annotated[bool, Flag("Publish while learning.", names="--publish/--no-publish")] = True,
    publish_every: Annotated[str, Flag("Interval of deltas: a time, or examples.", "1s|N")] = "1s",
    snapshot_every: Annotated[str, Flag("Interval of full snapshots: a time, or deltas.", "1m|N")] = "1m",
    publish_threshold: ThresholdOption = 0.0,
    keep: KeepOption = None,
    once: Annotated[bool, Flag("Learn what the sources have, close all windows, and end.")] = False,
    wait: Annotated[
        bool, Flag("If another trainer has this model, wait for it to end instead of failing.")
    ] = False,
    partition: Annotated[
        str | None,
        Flag(
            "Learn the requests of partition I of N, each by a trainer of its own; any/N: of the first one that "
            "has no trainer, and wait while all have. Partition 1 publishes.",
            "I/N",
        ),
    ] = None,
    reconcile: Annotated[
        str, Flag("Interval, in the events' time, at which partitions are merged.", "1m")
    ] = "1m",
    idle: Annotated[
        float,
        Flag(
            "Seconds without new data after which a file or topic no longer holds back the others.",
            "S",
            min=0.0,
        ),
    ] = 2.0,
    memory: Annotated[
        int,
        Flag("MiB of memory for impressions that wait for clicks; the rest is kept on disk.", "MIB", min=1),
    ] = 256,
    max_lag: Annotated[
        float, Flag("When lag exceeds S seconds, publish less often and log a warning.", "S", min=0.0)
    ] = 30.0,
    say_every: Annotated[float, Flag("Interval of status lines, in seconds.", "S", min=0.1)] = 5.0,
    metrics_port: Annotated[
        int | None, Flag("Serve Prometheus metrics on this port.", min=0, max=65535)
    ] = None,
    metrics_host: Annotated[
        str, Flag("The address of --metrics-port; 0.0.0.0 for all interfaces.", "HOST")
    ] = "127.0.0.1",
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Learn from impressions and clicks as they arrive, and publish continuously.

    Impressions and their clicks are joined by request and item within the spec's [join] window. The state is kept in
    --checkpoint: a trainer that was killed resumes from there as if it had not been. SIGTERM ends it cleanly. With
    --json each status is one line of JSON, the last one with "ended": true.
    """
    from model_store.spec.spec import load_spec
    from trainer.checkpoint import Every
    from trainer.events.share import parse_partition
    from trainer.runs.daemon import run
    from trainer.runs.stream_run import TrainerOptions

    model_spec = load_spec(spec)
    check_threshold(publish_threshold)
    options = TrainerOptions(
        store=store,
        sources=(*sources, *(more or ())) or ("store",),
        folder=checkpoint or Path(DEFAULT_FOLDER) / model_spec.model.name,
        every=Every.parse(every),
        init_from=init_from,
        save=save,
        publish=Every.parse(publish_every) if publish else None,
        snapshot=_snapshot(snapshot_every),
        threshold=publish_threshold,
        activate=activate,
        keep=keep,
        once=once,
        wait=wait,
        idle_s=idle,
        memory_bytes=memory << 20,
        max_lag_s=max_lag,
        say_every_s=say_every,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        force=force,
        partition=parse_partition(partition) if partition is not None else None,
        reconcile_us=_interval_us(reconcile),
        output=terminal,
    )
    run(model_spec, options, _print_status if as_json else StatusLines())


def _interval_us(text: str) -> int:
    """The microseconds of a time such as `30s` or `1m`. Raises UsageError."""
    from trainer.checkpoint import Every

    seconds = Every.parse(text).seconds
    if seconds is None:
        raise UsageError(f"--reconcile {text!r}: expected a time such as 30s or 1m, got a number of examples")
    return round(seconds * 1_000_000)


def _snapshot(text: str) -> int | Every:
    """An interval: a time (`30s`, `5m`) or a number of deltas (`20`)."""
    from trainer.checkpoint import Every

    every = Every.parse(text)
    return every.rows if every.rows is not None else every


class StatusLines:
    """Prints each status as a line, an unchanged line once a minute, and the totals at the end."""

    def __init__(self, every_s: float = REPEAT_S) -> None:
        self._every_s = every_s
        self._last, self._printed_s = "", 0.0

    def __call__(self, status: Status) -> None:
        """Print what is new."""
        line, now_s = status.line(), time.monotonic()
        if line != self._last or status.ended or now_s - self._printed_s >= self._every_s:
            note_parts(line)
            self._last, self._printed_s = line, now_s
        if status.ended and status.examples:
            print_variants(status.variants)


def _print_status(status: Status) -> None:
    print_json(status.as_dict())
