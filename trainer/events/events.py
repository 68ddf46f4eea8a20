"""The records that pass from sources to the join: chunks of raw lines, events as columns, merged events.

One read of a source returns a Chunk; the parser makes Raw and then Events of it; the merger puts the events of all
sources into one order as Merged. docs/events.md has the JSON form of events. Also what a source is, and a kind of
sources, which has an entry in its own file; `trainer.sources.open_sources` lists the kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.spec.spec import ModelSpec
from model_store.store import Store
from trainer.formats.streams import up_to_last_line_end

BAD, IMPRESSION, FEEDBACK, OTHER, VIEW = 0, 1, 2, 3, 4
"""Kinds of events. VIEW: of an item, which no answer showed. OTHER: of a request that belongs to another partition; it
is not parsed and has no values."""
CLICK, CONVERSION, SEEN, SEEN_TO, ACTIVATED, DEFERRED, VIEWED = 1, 2, 3, 4, 5, 6, 7
"""What feedback says: of an item, or (SEEN_TO, ACTIVATED) of the list. DEFERRED: an impression that awaits it; VIEWED:
a view."""
MAX_ITEMS = 10_000
MAX_LINE_BYTES = 16 << 20
READ_BYTES = 1024 * 1024
"""About the most that one read of a source returns; one event may be longer."""
READ_EVENTS = 1000
BACKFILL_US = 86_400_000_000
"""An event that came later than this after its time was written afterwards: its arrival says nothing of its time."""
NEVER_US = np.iinfo(np.int64).max
"""As a watermark: the source does not hold up others."""

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
SourcePosition = dict[str, Any]
"""Where reading continues in a source: plain JSON, kept in checkpoints, opaque to all but that source."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive events of one source, unparsed.

    data: one JSON object a line, each with its line end; starts: int64[n + 1], where each line starts. arrived_us:
    int64[n], microseconds since 1970 at which each event reached the source, by the source's clock, non-decreasing
    unless that clock steps back; None for a source without a clock, where the events' own times count. marks:
    int64[n, k], the position after each event, in the source's own terms. before: the position before the first event.
    """

    data: bytes
    starts: Int64s
    arrived_us: Int64s | None
    marks: Int64s
    before: SourcePosition

    def __len__(self) -> int:
        return self.starts.size - 1


@dataclass(frozen=True)
class Lag:
    """How far behind a source's reader is, and by how many seconds the clocks at work differ.

    events, bytes, seconds: unread events or bytes, and the age of the oldest; None: unknown. behind: how long at most
    an impression came after its own time, ahead: an event before its own, in the last one or two minutes. ids_ahead:
    how far a stream's last id is ahead of the store's clock. clock_ahead: how far that is ahead of what is believed.
    """

    events: int | None = None
    bytes: int | None = None
    seconds: float | None = None
    behind: float = 0.0
    ahead: float = 0.0
    ids_ahead: float = 0.0
    clock_ahead: float = 0.0


class Source(Protocol):
    """One stream, file, folder or topic. For one thread, except `position`, `where` and `holds`."""

    name: str

    @property
    def lost(self) -> int:
        """Events deleted before they were read, in all runs; part of the position."""

    def read(self) -> Chunk | None:
        """The next events available now; None if there are none.

        Raises StoreUnavailable, SourceUnavailable, InputError.
        """

    def watermark_us(self) -> int:
        """Every unread event reached the source at or after this time, by its clock. NEVER_US: the source has ended.

        It falls only where the clock has stepped back. For a source without a clock only NEVER_US counts, and it is 0
        otherwise. Called after each read.
        """

    def position(self, chunk: Chunk, count: int) -> SourcePosition:
        """Where to continue once the first `count` events of the chunk are taken. Pure; from any thread.

        The merger adds the key `order_us`; a source ignores unknown keys.
        """

    def where(self, chunk: Chunk, number: int) -> str:
        """Where one event of the chunk is, for error messages. Pure; from any thread."""

    def lag(self) -> Lag:
        """Called every few seconds."""

    def holds(self) -> str:
        """What the source holds, read or not, in words: shown when no events come. From any thread."""

    def close(self) -> None:
        """Release what is open. May be called twice."""


@dataclass(frozen=True)
class Events:
    """A chunk, parsed. Arrays have one element an event, except those over rows.

    kind: one of the above; time_us: the event's own time; request: 64-bit hash of the request's id.
    Feedback: what, CLICK to ACTIVATED; item, hash of the item's id, or the position of SEEN_TO. Impressions: what, 0 or
    DEFERRED; rows first[i] to first[i + 1], one for each item shown, in order; a view has one row. items: uint64[rows],
    hashes of their ids; columns: the wanted columns, by name, over the rows. bad: why an event is BAD, by its number.
    """

    kind: Bytes
    time_us: Int64s
    request: UInt64s
    item: UInt64s
    what: Bytes
    first: Int64s
    items: UInt64s
    columns: Mapping[str, pa.Array]
    bad: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.kind.size


@dataclass(frozen=True)
class BadEvent:
    """An event that cannot be read. source: its name; where: the event's position in it; line: its JSON."""

    source: str
    where: str
    line: bytes
    reason: str


@dataclass(frozen=True)
class Merged:
    """Events of all sources in one order, ready for the join: a pure function of what the sources hold. None is OTHER.

    Arrays as in Events, except that rows are in segments: segment[i] is the number of the table that holds the rows of
    impression or view i, row[i] the first of them there and rows[i] how many; items: uint64, the hashes of all of them,
    in the order of the events. bad: in order. now_us: int64[n], when each event came, by its source's clock, or else
    its own time. back_to_us: where a source's clock has stepped back to since the events before; None if none has.
    """

    kind: Bytes
    time_us: Int64s
    now_us: Int64s
    request: UInt64s
    item: UInt64s
    what: Bytes
    segment: npt.NDArray[np.int32]
    row: Int64s
    rows: npt.NDArray[np.int32]
    items: UInt64s
    bad: tuple[BadEvent, ...] = ()
    back_to_us: int | None = None

    def __len__(self) -> int:
        return self.kind.size


PER_EVENT = ("kind", "time_us", "now_us", "request", "item", "what", "segment", "row", "rows")
"""The arrays of Merged that have one element an event."""


@dataclass(frozen=True)
class Raw:
    """Events of a block as read, not validated yet. Texts are binary arrays, null where absent.

    request, item, position, what (the member `event`): texts, one an event; ts: of a plain kind; lengths: int64, items
    of each event, -1 without a list of items. Over the items of all events: ids, texts; columns: the wanted ones, in
    their forms. bad: why an event cannot be read, by its number; such an event has no values and no items.
    """

    request: pa.Array
    ts: pa.Array
    item: pa.Array
    position: pa.Array
    what: pa.Array
    lengths: npt.NDArray[np.int64]
    ids: pa.Array
    columns: Mapping[str, pa.Array]
    bad: Mapping[int, str] = field(default_factory=dict)


def lines_of(payloads: Sequence[bytes]) -> tuple[bytes, Int64s]:
    """Payloads without line feeds, one a line; int64[n + 1]: where each starts."""
    starts = np.zeros(len(payloads) + 1, np.int64)
    np.cumsum([len(payload) + 1 for payload in payloads], out=starts[1:])
    return b"\n".join([*payloads, b""]), starts


def on_one_line(payload: bytes) -> bytes:
    """JSON without line feeds: each becomes a space. A JSON string cannot hold one."""
    return payload.replace(b"\n", b" ") if b"\n" in payload else payload


def whole_lines(piece: bytes) -> tuple[bytes, Int64s]:
    """The piece up to its last line feed; int64[n + 1]: where each line starts."""
    found = up_to_last_line_end(np.frombuffer(piece, np.uint8))
    ends = np.flatnonzero(found == ord("\n")) + 1
    return piece[: found.size], np.concatenate(([0], ends)).astype(np.int64)


def is_blank(data: bytes, starts: Int64s) -> npt.NDArray[np.bool_]:
    """bool[n]: lines that hold nothing but their end."""
    length = np.diff(starts)
    blank: npt.NDArray[np.bool_] = length == 1
    for line in np.flatnonzero(length == 2).tolist():
        blank[line] = data[starts[line]] == ord("\r")
    return blank


@dataclass(frozen=True)
class Opener:
    """A source before it is opened: its name, and how to open it at a position.

    may_be_new: it may be there without a position while the others have one, as a partition that was added.
    """

    name: str
    open: Callable[[SourcePosition], Source]
    may_be_new: bool = False


@dataclass(frozen=True)
class Opening:
    """What sources are opened for.

    store: the one that the model is published to, if there is one. on_note: receives remarks. once: read what is there
    now, then end. positions: of all sources, as in the checkpoint.
    """

    spec: ModelSpec
    store: Store | None
    on_note: Callable[[str], None]
    once: bool
    positions: Sequence[SourcePosition] = ()


@dataclass(frozen=True)
class SourceKind:
    """A kind of source. forms: of its names, for messages; matches: whether a name is of this kind, and of none before.

    openers: the sources that a name stands for; InputError for a name that cannot be understood. known_as: a name as
    checkpoints keep it: without what may change from run to run, such as hosts and passwords.
    """

    forms: str
    matches: Callable[[str], bool]
    openers: Callable[[str, Opening], Iterable[Opener]]
    known_as: Callable[[str], str] = lambda name: name
