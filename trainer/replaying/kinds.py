"""Whether a log on the command line holds events, to be joined, or labelled rows: by its name or its first line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from model_store.bounded import json_value
from model_store.errors import InputError
from trainer.sources.inputs import STDIN, expand
from trainer.sources.streams import ByteStream

EVENTS, ROWS = "events", "rows"
STORE = "store"
_STREAMS = ("redis://", "rediss://", "unix://", "embedded:", "kafka://")
_ONE_KIND = ("impressions=", "clicks=")
_AS_ROWS = "rows="
_LONGEST_LINE = 1 << 22


def kind_of(logs: Sequence[str], label: str) -> str:
    """EVENTS or ROWS, of all logs. Raises InputError where they are not of one kind, or a file is not there."""
    kinds = {log: _kind_of(log, label) for log in logs}
    if len(set(kinds.values())) > 1:
        told = ", ".join(f"{log}: {kind}" for log, kind in kinds.items())
        raise InputError(f"expected logs of one kind, events or labelled rows; got {told}")
    return next(iter(kinds.values()))


def names_store(log: str) -> bool:
    """True for the streams of the store that models are in."""
    return log.partition("#")[0] == STORE


def as_inputs(logs: Sequence[str]) -> list[str]:
    """Logs of rows without the prefix that may say so."""
    return [log.removeprefix(_AS_ROWS) for log in logs]


def _kind_of(log: str, label: str) -> str:
    if log.startswith(_AS_ROWS) or log == STDIN:
        return ROWS
    if names_store(log) or log.startswith((*_STREAMS, *_ONE_KIND)) or Path(log).is_dir():
        return EVENTS
    return EVENTS if is_event(_first_line(expand([log])[0]), label) else ROWS


def is_event(line: bytes, label: str) -> bool:
    """True for the JSON of an impression or of feedback, and not for that of a row with a label."""
    try:
        row = json_value(line)
    except ValueError:
        return False
    if not isinstance(row, dict) or label in row or "request_id" not in row:
        return False
    return isinstance(row.get("items"), list) or "item" in row


def _first_line(name: str) -> bytes:
    stream, buffer = ByteStream(name), np.empty(_LONGEST_LINE, np.uint8)
    try:
        return buffer[: stream.read_into(buffer)].tobytes().partition(b"\n")[0]
    finally:
        stream.close()
