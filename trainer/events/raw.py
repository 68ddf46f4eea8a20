"""What reading a block of lines brings, whichever way it was read, before anyone has judged the events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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
