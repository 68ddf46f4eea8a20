"""The item ids of a request, still in its bytes: a sequence of texts, of which only those asked for are made."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from ctr.v1.ranking_pb2 import RankRequest
from server.receiving.kernels import IRREGULAR, split

Array = npt.NDArray[Any]
_local = threading.local()
_FIRST_BYTES = 1 << 14


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


Received = tuple[RankRequest, Sequence[str]] | DecodeError


def received(message: bytes) -> Received:
    """The request and its item ids; or what is wrong with the bytes (grpc takes an exception here for our fault).

    The request has no `item_ids` where the ids are an ItemIds. The protobuf library parses all the rest, and all of
    what is unusual. O(bytes).
    """
    text = np.frombuffer(message, np.uint8)
    spans, rest, sizes = _scratch(len(message))
    count = split(text, spans, rest, sizes)
    try:
        if count == IRREGULAR:
            request = RankRequest.FromString(message)
            return request, request.item_ids[:]
        request = RankRequest.FromString(rest[: sizes[0]].tobytes())
    except DecodeError as error:
        return error
    return request, ItemIds(message, text, spans[:count].copy())


def _scratch(size: int) -> tuple[Array, Array, Array]:
    """This thread's space for a message of `size` bytes."""
    have: tuple[Array, Array, Array] | None = getattr(_local, "scratch", None)
    if have is None or len(have[1]) < size:
        room = max(size, _FIRST_BYTES)
        have = _local.scratch = (
            np.empty((room // 2 + 1, 2), np.int32),
            np.empty(room, np.uint8),
            np.empty(1, np.int64),
        )
    return have
