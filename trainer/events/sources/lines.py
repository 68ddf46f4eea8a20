"""Events as lines: payloads put end to end, and the whole lines of a piece of a file. Knows nothing of sources."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from trainer.events.events import Int64s
from trainer.sources.blocks import up_to_last_line_end

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
