"""A request as it was received: its bytes, and as much of it in Python objects as somebody asked for."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from ctr.v1.ranking_pb2 import RankRequest
from server.errors import InvalidRequest, unreadable
from server.model.item_ids import ItemIds
from server.ranking.request_kernels import FOUND, IRREGULAR, OPTIONS, REST, split

Array = npt.NDArray[Any]
_local = threading.local()
_FIRST_BYTES = 1 << 14
_MOST_KEPT_BYTES = 1 << 20  # for a message of 16 MiB, every thread would keep 80


class Received:
    """One request. For one thread at a time.

    item_ids: the named candidates. brief: the request, perhaps without its item ids, user and context. has_options:
    whether it may ask for more than the plain order; False spares looking.
    """

    __slots__ = ("_filled", "brief", "found", "has_options", "item_ids", "message", "text")

    def __init__(self, message: bytes) -> None:
        """O(bytes). Raises DecodeError."""
        self.message = message
        self.text = np.frombuffer(message, np.uint8)
        spans, rest, found = _scratch(len(message))
        count = split(self.text, spans, rest, found)
        self.item_ids: Sequence[str]
        self.found: Array | None
        self._filled = count == IRREGULAR
        if count == IRREGULAR:
            self.brief = RankRequest.FromString(message)
            self.item_ids = self.brief.item_ids[:]
            self.found = None
            self.has_options = True
        else:
            self.brief = RankRequest.FromString(rest[: found[REST]].tobytes())
            self.item_ids = ItemIds(message, self.text, spans[:count].copy())
            self.found = found.copy()
            self.has_options = bool(found[OPTIONS])

    def with_features(self) -> RankRequest:
        """The request with user and context; it may lack the item ids. Raises DecodeError."""
        if not self._filled and self.found is not None:
            _, user, user_end, context, context_end, _ = self.found.tolist()
            if user:
                self.brief.user.MergeFromString(self.message[user:user_end])
            if context:
                self.brief.context.MergeFromString(self.message[context:context_end])
            self._filled = True
        return self.brief

    def whole(self) -> RankRequest:
        """All of the request, in the library's hands. Raises DecodeError."""
        return RankRequest.FromString(self.message)


def received(message: bytes) -> Received | InvalidRequest:
    """The request, or what is wrong with its bytes (grpc takes an exception here for our fault)."""
    try:
        return Received(message)
    except DecodeError:
        return unreadable(RankRequest)


def _scratch(size: int) -> tuple[Array, Array, Array]:
    """This thread's space for a message of `size` bytes; for an uncommonly long one, space of its own."""
    have: tuple[Array, Array, Array] | None = getattr(_local, "scratch", None)
    if have is None or len(have[1]) < size:
        room = max(size, _FIRST_BYTES)
        have = (
            np.empty((room // 2 + 1, 2), np.int32),
            np.empty(room, np.uint8),
            np.empty(FOUND, np.int64),
        )
        if room <= _MOST_KEPT_BYTES:
            _local.scratch = have
    return have
