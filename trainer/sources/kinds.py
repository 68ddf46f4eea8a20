"""Whether names stand for labelled rows, or for events that are joined into rows: one rule for every command."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from model_store.errors import InputError
from trainer.events.columns import ITEMS
from trainer.events.events import READ_BYTES
from trainer.formats.jsonl import BadRow, keys_of, load
from trainer.formats.reader import expand
from trainer.formats.registry import EVENTS, check_format, format_by_name
from trainer.formats.streams import BOM, MAX_ROW_BYTES, ByteStream, is_pipe
from trainer.sources.open_files import Listing, without_rotation
from trainer.sources.redis import STREAMS
from trainer.sources.rows import format_of

ROWS = "rows"
ROWS_PREFIX = "rows="
PREFIXES = ("impressions", "clicks")
"""What may stand before a source of events, as in `clicks=PATH`, for readability."""
_JSON = (None, "jsonl")


def kind_of(
    names: Sequence[str], label: str | None = None, format: str | None = None, *, are_sources: bool = False
) -> str:
    """ROWS or EVENTS. Raises InputError for names of both, and for a log that is not there.

    A `format` other than JSON lines decides, then the extension of a file. A pipe holds rows, as its first lines would
    be lost. Else the first 64 KiB of a file decide, or its first line if that is longer. JSON lines hold rows if
    the `label` is a column: an event has none, the join adds it. They hold events if a line is an impression, with a
    list of objects `items`, or feedback, with `item` and `request_id`; without a `label`, such lines are feedback only
    beside impressions. What nothing tells is rows in a log, and events in a source, which waits for them.

    are_sources: names as `ftrie trainer` takes them; of each, the first file that is not empty decides. Else all files
    of a log are looked at.
    """
    if check_format(format) not in _JSON:
        return EVENTS if format == EVENTS else ROWS
    found: dict[str, str] = {}
    for name in names:
        kinds = (
            [_of_source(name, label)] if are_sources else (_in_log(path, label) for path in expand([name]))
        )
        for path, kind in kinds:
            if kind is not None:
                found.setdefault(kind, path)
    if len(found) > 1:
        raise InputError(
            f"{found[EVENTS]} holds events and {found[ROWS]} labelled rows; expected logs of one kind. Events are JSON "
            "lines without a label: impressions with `items`, feedback with `item` and `request_id`. A pipe is not "
            "looked at: give --format events if it holds them"
        )
    return next(iter(found), EVENTS if are_sources else ROWS)


def is_stream(name: str) -> bool:
    """True for a name of streams or topics rather than of files."""
    return "://" in name or STREAMS.matches(name)


def _in_log(path: str, label: str | None) -> tuple[str, str | None]:
    """A file or pipe of a log, and its kind; None if it is empty, or feedback for all that can be told."""
    if is_pipe(path) or format_by_name(path) not in _JSON:
        return path, ROWS
    head = _head(path)
    return path, _of_lines(head, label, ROWS) if head.strip() else None


def _of_source(name: str, label: str | None) -> tuple[str, str | None]:
    """A source, and its kind; None while there is no file that tells it."""
    prefix, equals, _ = name.partition("=")
    if is_pipe(name) or name.startswith(ROWS_PREFIX):
        return name, ROWS
    if is_stream(name) or (equals and prefix in PREFIXES):
        return name, EVENTS
    path = next((each.path for each in Listing(name).entries() or () if each.size), None)
    if path is None or format_by_name(without_rotation(path)) not in _JSON:
        return name, None if path is None and format_by_name(name) in _JSON else ROWS
    try:
        head = _head(path)
        is_json = format_of(path, head) in _JSON
    except InputError:  # which the source reports, and reads the others
        return name, None
    return name, _of_lines(head, label, EVENTS) if is_json else ROWS


def _head(path: str) -> bytes:
    """The first lines of a file."""
    stream = ByteStream(path)
    try:
        data, room = stream.head, np.empty(READ_BYTES, np.uint8)
        if b"\n" not in data:  # one event may be longer
            data = b""
            while b"\n" not in data and len(data) < MAX_ROW_BYTES and (count := stream.read_into(room)):
                data += room[:count].tobytes()
    finally:
        stream.close()
    return data.removeprefix(BOM)


def _of_lines(head: bytes, label: str | None, otherwise: str) -> str | None:
    if label is not None and label in keys_of(head).columns:
        return ROWS
    kind: str | None = otherwise
    for line in head.split(b"\n")[: max(head.count(b"\n"), 1)]:
        try:
            event = load(line)
        except BadRow:
            continue
        items = event.get(ITEMS)
        if isinstance(items, list) and all(isinstance(item, dict) for item in items):
            return EVENTS
        if "item" in event and "request_id" in event:
            kind = EVENTS if label is not None else None
    return kind
