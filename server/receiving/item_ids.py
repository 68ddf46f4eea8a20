"""The item ids of a request, still in its bytes: a sequence of texts, of which only those asked for are made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from server.receiving.kernels import write_items

Array = npt.NDArray[Any]
_AROUND_AN_ID = 36  # bytes that a RankedItem has besides its id, at most


class ItemIds(Sequence[str]):
    """Immutable. `text` uint8[bytes] holds the ids, spans int32[n, 2] says where each begins and ends. All are ASCII.

    A Python text for each of 200 ids costs about 6 µs, and encoding them again to find their rows another 7.
    """

    __slots__ = ("_message", "spans", "text")

    def __init__(self, message: bytes, text: Array, spans: Array) -> None:
        self._message, self.text, self.spans = message, text, spans

    def __len__(self) -> int:
        return len(self.spans)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return ItemIds(self._message, self.text, self.spans[index])
        begin, end = self.spans[index].tolist()
        return self._message[begin:end].decode("ascii")

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts(self.spans))

    def at(self, places: Array) -> list[str]:
        """The ids at these places (an array of integers)."""
        return self._texts(self.spans[places])

    def _texts(self, spans: Array) -> list[str]:
        message = self._message
        return [message[begin:end].decode("ascii") for begin, end in spans.tolist()]

    def ranked(self, order: Array, ctr: Array, score: Array) -> bytes:
        """The field `items` of a `RankResponse`: the ids at `order` int64[k], each once, with ctr and score f64[k]."""
        out = np.empty(len(self._message) + _AROUND_AN_ID * len(order), np.uint8)
        used = write_items(self.text, self.spans, order, ctr, score, out)
        return out[:used].tobytes()
