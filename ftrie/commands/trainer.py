"""`ftrie trainer`: its output. A trainer is `trainer.runs.trainer`; its flags are `trainer.settings.TrainerOptions`."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ftrie import terminal
from ftrie.command import command
from ftrie.commands.flags import SpecArgument
from ftrie.commands.train import check_threshold, print_variants
from ftrie.terminal import JsonOption, note_parts, print_json
from model_store.flags import Argument
from trainer.settings import TrainerOptions

if TYPE_CHECKING:
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
    *,
    options: TrainerOptions,
    as_json: JsonOption = False,
) -> None:
    """Learn from impressions and clicks as they arrive, and publish continuously.

    Impressions and their clicks are joined by request and item within the spec's [join] window. The state is kept in
    --checkpoint: a trainer that was killed resumes from there as if it had not been. SIGTERM ends it cleanly. With
    --json each status is one line of JSON, the last one with "ended": true.
    """
    from model_store.spec.spec import load_spec
    from trainer.runs.trainer import run

    model_spec = load_spec(spec)
    check_threshold(options.publish_threshold)
    folder = options.checkpoint or Path(DEFAULT_FOLDER) / model_spec.model.name
    sources = (*options.sources, *(more or ())) or ("store",)
    options = replace(options, checkpoint=folder, sources=sources, output=terminal)
    run(model_spec, options, _print_status if as_json else StatusLines())


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
