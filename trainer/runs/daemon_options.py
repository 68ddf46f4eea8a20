"""What `ftrie trainer` was asked for. The flags are in `ftrie.commands.trainer`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainer.checkpoint.schedule import Every
from trainer.output import SILENT, Output


@dataclass(frozen=True)
class Asked:
    """The flags of one trainer.

    store: where versions, lease and dead letters go; sources: as named. init_from: the model to begin with; save: where
    it is written at the end. publish, snapshot: how often, None for never; keep: versions, None for all. once: end
    where the sources do; wait: while another trainer has the model. idle_s: how long a source without a clock may stand
    still before the others go on without it. max_lag_s: from when on it counts as behind. metrics_port: None for none.
    force: publish however many rows were rejected. output: where notes and warnings go.
    """

    store: str
    sources: tuple[str, ...]
    folder: Path
    every: Every
    init_from: str | None
    save: Path | None
    publish: Every | None
    snapshot: int | Every
    threshold: float
    activate: bool
    keep: int | None
    once: bool
    wait: bool
    idle_s: float
    memory_bytes: int
    max_lag_s: float
    say_every_s: float
    metrics_port: int | None
    metrics_host: str = "127.0.0.1"
    force: bool = False
    output: Output = SILENT
