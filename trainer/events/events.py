"""What passes from the sources to the join: stretches of raw events, then events as columns. Plain records.

docs/events.md has the events' own form. A stretch is what one read of one source brings; events are the same stretch,
parsed; the merger puts those of all sources into one order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trainer.logs.streams import up_to_last_line_end

BAD, IMPRESSION, FEEDBACK = 0, 1, 2
CLICK, CONVERSION = 1, 2
NEVER_US = np.iinfo(np.int64).max
"""As a frontier: nothing holds the other sources up."""

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
Place = dict[str, Any]
"""Where reading goes on in a source: plain JSON, kept in checkpoints. The source that made it reads it."""


@dataclass(frozen=True)
class Stretch:
    """Consecutive events of one source, unparsed.

    data: one JSON object a line, each line ended; starts: int64[n + 1], where line i begins in it. arrived_us:
    int64[n], microseconds since 1970 at which each event came to the source, by the source's own clock and never
    falling; None where it has none, so that the events' own times count. marks: int64[n, k], the place behind each
    event, as the source understands it. before: the place before the first one.
    """

    data: bytes
    starts: Int64s
    arrived_us: Int64s | None
    marks: Int64s
    before: Place

    def __len__(self) -> int:
        return self.starts.size - 1


@dataclass(frozen=True)
class Lag:
    """How far a source's reader is behind: unread events or bytes, and the age of the oldest of them; None: unknown."""

    events: int | None = None
    bytes: int | None = None
    seconds: float | None = None


class Source(Protocol):
    """One stream, file, folder or topic. One thread only, but for `place` and `where`."""

    name: str

    @property
    def lost(self) -> int:
        """Events that were deleted unread, since the first checkpoint on; part of the place."""

    def read(self) -> Stretch | None:
        """The next events there are, without waiting for more; None if there is none now.

        Raises StoreUnavailable, SourceUnavailable, InputError.
        """

    def frontier_us(self) -> int:
        """No event that is still to be read came before this, by the source's clock. NEVER_US: it has ended.

        Of a source without a clock, which gives no arrived_us, only NEVER_US counts. Asked after each read.
        """

    def place(self, stretch: Stretch, count: int) -> Place:
        """Where to go on once `count` events of the stretch are taken, 0 to all. Pure, and from any thread.

        The merger adds the key `order_us` to it; a source passes over keys it does not know.
        """

    def where(self, stretch: Stretch, number: int) -> str:
        """Where one event of the stretch stands, in words that lead a person to it. Pure, and from any thread."""

    def lag(self) -> Lag:
        """Asked every few seconds."""

    def holds(self) -> str:
        """What there is in it, read or not, for a person who wonders why nothing comes. From any thread."""

    def close(self) -> None:
        """Give back what is open. May be called twice."""


@dataclass(frozen=True)
class Events:
    """A stretch, parsed. All arrays have one element an event, but those over rows.

    kind: BAD, IMPRESSION or FEEDBACK; time_us: the event's own time. request: 64-bit hash of the request's id. Of
    feedback: item, hash of the item's id; what, CLICK or CONVERSION; event, hash of the event's id, 0 without one.
    Of impressions: rows first[i] to first[i + 1], one an item shown, in the order shown; items: uint64[rows], hashes
    of their ids; columns: what was asked for, by name, each over the rows. bad: why an event is BAD, by its number.
    """

    kind: Bytes
    time_us: Int64s
    request: UInt64s
    item: UInt64s
    what: Bytes
    event: UInt64s
    first: Int64s
    items: UInt64s
    columns: Mapping[str, pa.Array]
    bad: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.kind.size


@dataclass(frozen=True)
class BadEvent:
    """An event that cannot be read. source: its name; where: the event's place in it; line: its JSON, without end."""

    source: str
    where: str
    line: bytes
    reason: str


@dataclass(frozen=True)
class Merged:
    """Events of all sources in one order, ready for the join: a pure function of what the sources hold.

    Arrays as in Events, but that rows stand in segments: segment[i] is the number of the table that holds the rows of
    impression i, row[i] the first of them there and rows[i] how many; items: uint64, the hashes of all of them, in the
    order of the events. bad: in order. now_us: int64[n], by which clock each event came: its source's, or else its own
    time.
    """

    kind: Bytes
    time_us: Int64s
    now_us: Int64s
    request: UInt64s
    item: UInt64s
    what: Bytes
    event: UInt64s
    segment: npt.NDArray[np.int32]
    row: Int64s
    rows: npt.NDArray[np.int32]
    items: UInt64s
    bad: tuple[BadEvent, ...] = ()

    def __len__(self) -> int:
        return self.kind.size


# --- What reading a block of lines brings, whichever way it was read, before anyone has judged the events ---


MAX_ITEMS = 10_000
MAX_LINE_BYTES = 16 << 20


@dataclass(frozen=True)
class Raw:
    """Events as read. Texts are binary arrays, null where an event has none.

    request, item, event_id, what (the member `event`): texts, one an event; ts: of a plain kind; lengths: int64, items
    of each event, -1 where it has no list of them. Over the items of all: ids, texts; columns: all that are wanted, in
    their forms. bad: events that cannot be read and have neither values nor items, and why.
    """

    request: pa.Array
    ts: pa.Array
    item: pa.Array
    event_id: pa.Array
    what: pa.Array
    lengths: npt.NDArray[np.int64]
    ids: pa.Array
    columns: Mapping[str, pa.Array]
    bad: Mapping[int, str] = field(default_factory=dict)


# --- Events as lines: payloads put end to end, and the whole lines of a piece of a file. Knows nothing of
# sources ---


READ_BYTES = 1024 * 1024
"""About how much one read of a source brings at most; one event may be longer."""
READ_EVENTS = 1000
BOM = b"\xef\xbb\xbf"


def lines_of(payloads: Sequence[bytes]) -> tuple[bytes, Int64s]:
    """Payloads without line feeds, one a line; int64[n + 1]: where each begins."""
    starts = np.zeros(len(payloads) + 1, np.int64)
    np.cumsum([len(payload) + 1 for payload in payloads], out=starts[1:])
    return b"\n".join([*payloads, b""]), starts


def on_one_line(payload: bytes) -> bytes:
    """JSON without line feeds: between its members a space is as good; within a text there cannot be one."""
    return payload.replace(b"\n", b" ") if b"\n" in payload else payload


def whole_lines(piece: bytes) -> tuple[bytes, Int64s]:
    """The front of a piece that ends with its last line feed; int64[n + 1]: where each line begins in it."""
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
