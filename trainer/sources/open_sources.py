"""Whether names stand for labelled rows or for events, one rule for every command; opens sources at their positions.

A source is identified by the key of a stream, the name of a file as given, or the topic and partition. The address of
the store or broker may change from run to run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from glob import escape, glob

import numpy as np

from model_store.errors import InputError
from model_store.spec.spec import ModelSpec
from model_store.store import Store
from trainer.events.columns import ITEMS
from trainer.events.events import READ_BYTES, Opener, Opening, Source, SourceKind, SourcePosition
from trainer.formats.dialect import Dialect
from trainer.formats.jsonl import BadRow, keys_of, load
from trainer.formats.reader import EVENTS, check_format, expand, format_by_name
from trainer.formats.row_file import Header
from trainer.formats.streams import BOM, MAX_ROW_BYTES, ByteStream, is_pipe
from trainer.sources.files import FILES, RowSource, format_of_growing
from trainer.sources.kafka import KAFKA
from trainer.sources.open_files import Listing, without_rotation
from trainer.sources.redis import STORE, STREAMS

ROWS = "rows"
ROWS_PREFIX = "rows="
PREFIXES = ("impressions", "clicks")
"""What may come before a source of events, as in `clicks=PATH`, for readability."""
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
        is_json = format_of_growing(path, head) in _JSON
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


KINDS = (STREAMS, KAFKA, FILES)
_EXPECTED = f"{FILES.forms}, {', '.join(kind.forms for kind in KINDS[:-2])}, or {KINDS[-2].forms}"


def open_sources(
    names: Sequence[str],
    spec: ModelSpec,
    store: Store | None,
    positions: Sequence[SourcePosition] = (),
    on_note: Callable[[str], None] = lambda text: None,
    *,
    once: bool = False,
) -> list[Source]:
    """Open the sources that `names` stand for (docs/events.md), each at its position.

    positions: from `Source.position`, none to begin at the start. once: read what is there now, then end.
    A store opened here is closed with its source. Raises InputError for an invalid name and for positions of other
    sources, StoreError, StoreUnavailable, SourceUnavailable.
    """
    if not names:
        raise InputError(f"no source of events: expected {_EXPECTED}")
    opening = Opening(spec, store, on_note, once, positions)
    openers: list[Opener] = []
    for name in names:
        if name.startswith(ROWS_PREFIX):
            raise InputError(f"{name}: labelled rows cannot be read beside events; name them alone")
        if not (source := _without_prefix(name)):
            raise InputError(f"got an empty source; expected {_EXPECTED}")
        openers += _kind_of_source(source).openers(source, opening)
    opened = [each.name for each in openers]
    if twice := next((name for name in opened if opened.count(name) > 1), None):
        raise InputError(f"{twice} is named more than once among the sources; each is to be read once")
    # The order of sources decides ties, so it must not change.
    by_name = {position["source"]: position for position in positions if "source" in position}
    known = [name for name in opened if name in by_name]
    new = [each.name for each in openers if each.name not in by_name and not each.may_be_new]
    if known != list(by_name) or (positions and len(new) > len(positions) - len(by_name)):
        raise InputError(
            f"the checkpoint has read {', '.join(by_name) or 'nothing'}; the sources are now {', '.join(opened)}; "
            "name the same ones in the same order, or start over with another folder of checkpoints"
        )
    with ExitStack() as undo:
        sources = []
        for opener in openers:
            sources.append(opener.open(by_name.get(opener.name, {})))
            undo.callback(sources[-1].close)
        undo.pop_all()
    return sources


def known_as(name: str) -> str:
    """A name as checkpoints keep it: without what may change from run to run, such as hosts and passwords."""
    name = _without_prefix(name)
    return _kind_of_source(name).known_as(name)


def check_there(names: Sequence[str]) -> None:
    """Raise InputError for a file, folder or glob that does not exist, for callers that do not wait for it."""
    for name in names:
        kind, equals, rest = name.partition("=")
        path = rest if equals and kind in (*PREFIXES, ROWS) else name
        found = (
            is_stream(path) or os.path.exists(path) or glob(path, recursive=True) or glob(f"{escape(path)}.*")
        )
        if not found:
            raise InputError(f"{path}: there is no such file; name a file, folder or glob that is there")


def _without_prefix(name: str) -> str:
    """The name without a prefix for readability, as in clicks=PATH."""
    prefix, equals, rest = name.partition("=")
    return rest if equals and prefix in PREFIXES else name


def _kind_of_source(name: str) -> SourceKind:
    for kind in KINDS:
        if kind.matches(name):
            return kind
    raise InputError(f"{name}: {name.partition('://')[0]!r} is no kind of source; expected {_EXPECTED}")


def files_of_rows(names: Sequence[str]) -> list[str]:
    """Logs of rows as files and globs for `trainer.formats.reader`: a folder stands for its files, in order.

    Raises InputError for a folder without files.
    """
    found = []
    for name in (each.removeprefix(ROWS_PREFIX) for each in names):
        files = [entry.path for entry in Listing(name).entries() or []] if os.path.isdir(name) else [name]
        if not files:
            raise InputError(f"{name}: the folder has no file of rows")
        found += files
    return found


def names_store(name: str) -> bool:
    """True if the name stands for streams of the store that holds the model."""
    return name.partition("#")[0] == STORE


def open_rows(
    names: Sequence[str],
    spec: ModelSpec,
    positions: Sequence[SourcePosition] = (),
    on_note: Callable[[str], None] = lambda text: None,
    *,
    once: bool = False,
) -> RowSource:
    """The source of rows, at its position; see `open_sources`. Raises InputError for another source's position."""
    if len(names) > 1:
        raise InputError(
            f"{names[0]} holds labelled rows, which are read in the order of their files; name it alone: one file, "
            "folder or glob"
        )
    name = names[0].removeprefix(ROWS_PREFIX)
    if not name or is_pipe(name) or "://" in name:
        raise InputError(
            f"{ROWS_PREFIX}{name}: expected a file, a folder or a glob of CSV, TSV or JSON lines"
        )
    read = next((position["source"] for position in positions if "source" in position), name)
    if read != name:
        raise InputError(
            f"the checkpoint has read {read}; the source is now {name}; name the same one, or start over with another "
            "folder of checkpoints"
        )
    fields = [(field.column or key, field) for key, field in spec.fields.items()]
    return RowSource(
        *(name, positions[0] if positions else {}, on_note),
        once=once,
        objects=frozenset(column for column, field in fields if field.kind == "set"),
        optional=frozenset(column for column, field in fields if field.optional or field.is_derived),
        header=Header(
            spec.input.columns, known=frozenset([spec.input.label]), dialect=Dialect.of(spec.input)
        ),
    )
