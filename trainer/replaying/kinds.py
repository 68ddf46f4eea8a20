"""Whether the logs on the command line hold events, to be joined, or labelled rows; and the files of rows."""

from __future__ import annotations

import os
from collections.abc import Sequence

from model_store.errors import InputError
from trainer.events.sources.listing import Listing
from trainer.events.sources.opening import STORE, check_there
from trainer.events.sources.row_opening import ROWS as _AS_ROWS
from trainer.events.sources.row_opening import holds_rows
from trainer.sources.inputs import STDIN

EVENTS, ROWS = "events", "rows"


def kind_of(logs: Sequence[str], label: str, format: str | None = None) -> str:
    """EVENTS or ROWS, of all logs; format: as --format names it, which says that they are rows unless it is jsonl.

    Raises InputError where they are not of one kind, or a file is not there.
    """
    check_there([log for log in logs if log != STDIN])
    only_rows = format not in (None, "jsonl")
    kinds = {log: ROWS if only_rows or log == STDIN or holds_rows(log, label) else EVENTS for log in logs}
    if len(set(kinds.values())) > 1:
        told = ", ".join(f"{log}: {kind}" for log, kind in kinds.items())
        raise InputError(f"expected logs of one kind, events or labelled rows; got {told}")
    return next(iter(kinds.values()))


def names_store(log: str) -> bool:
    """True for the streams of the store that models are in."""
    return log.partition("#")[0] == STORE


def as_inputs(logs: Sequence[str]) -> list[str]:
    """Logs of rows as files and globs: without the prefix, and of a folder its files, in the trainer's order."""
    return [path for log in logs for path in _files(log.removeprefix(_AS_ROWS))]


def _files(name: str) -> list[str]:
    if not os.path.isdir(name):
        return [name]
    files = [entry.path for entry in Listing(name).entries() or []]
    if not files:
        raise InputError(f"{name}: the folder has no file of rows")
    return files
