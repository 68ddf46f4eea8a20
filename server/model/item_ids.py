"""Item ids: those of a request, still in its bytes (`ItemIds`), and the index from ids to rows (`IdTable`).

A Python text for each of 200 ids costs about 6 µs, and encoding them again to find their rows another 7. A dict finds
the same rows at one to three cache misses an id; measured for 200 of 100,000 ids, another 200 each time: 14 µs against
104 with a dict (benchmarks/ranker.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from server.model.ids_kernels import LINE_FEED, find_ids, index_ids, split_lines

Array = npt.NDArray[Any]


class ItemIds(Sequence[str]):
    """The ids of a request, decoded when they are read. Immutable. All are ASCII.

    text uint8[bytes] holds the ids, spans int32[n, 2] where each begins and ends.
    """

    __slots__ = ("_message", "spans", "text")

    def __init__(self, message: bytes, text: Array, spans: Array) -> None:
        self._message, self.text, self.spans = message, text, spans

    @classmethod
    def of(cls, ids: Sequence[str]) -> ItemIds | None:
        """These ids as those of a message; None unless all are ASCII texts without a line feed. O(bytes)."""
        try:
            text = chr(LINE_FEED).join(ids)
        except TypeError:
            return None
        if not ids or not text.isascii():
            return None
        message = text.encode("ascii")
        made = cls(message, np.frombuffer(message, np.uint8), np.empty((len(ids), 2), np.int32))
        return made if split_lines(made.text, made.spans) == len(ids) else None

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

    def at(self, indices: Array) -> list[str]:
        """The ids at these indices (an array of integers)."""
        return self._texts(self.spans[indices])

    def _texts(self, spans: Array) -> list[str]:
        message = self._message
        return [message[begin:end].decode("ascii") for begin, end in spans.tolist()]


@dataclass(frozen=True, eq=False)
class IdTable(Sequence[str]):
    """From ids to rows, many at a time. Immutable; a sequence of its ids by row, each decoded when it is read.

    id_data uint8, id_offsets int64[n + 1]: the ids end to end by row; table: see `ids_kernels`.
    """

    id_data: Array
    id_offsets: Array
    table: Array

    @classmethod
    def of(cls, ids: Iterable[str]) -> IdTable:
        """Index distinct ids, whose rows are 0, 1, 2 … in their order. O(bytes of the ids)."""
        data, offsets = _end_to_end(ids)
        data = (
            data.copy()
        )  # writable, like all that outlives a request: kernels are compiled for one kind of array
        table = np.full(1 << (2 * len(offsets) - 1).bit_length(), -1, np.int32)
        index_ids(data, offsets, table)
        return cls(data, offsets, table)

    def __len__(self) -> int:
        return len(self.id_offsets) - 1

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> Sequence[str]: ...
    def __getitem__(self, row: int | slice) -> str | Sequence[str]:
        if isinstance(row, slice):
            return [self[index] for index in range(len(self))[row]]
        begin, end = self.id_offsets[range(len(self))[row]], self.id_offsets[range(len(self))[row] + 1]
        return self.id_data[begin:end].tobytes().decode("utf-8", "surrogatepass")

    def rows(self, ids: Sequence[str]) -> tuple[Array, int]:
        """The row of each id (int32), UNKNOWN if it is not there; and how many are unknown. O(bytes of the ids)."""
        in_one = ids if isinstance(ids, ItemIds) else ItemIds.of(ids)
        if in_one is not None:
            text, spans = in_one.text, in_one.spans
        else:
            text, offsets = _end_to_end(ids)
            spans = np.stack([offsets[:-1], offsets[1:]], axis=1).astype(np.int32)
        rows = np.empty(len(ids), np.int32)
        return rows, int(find_ids(self.id_data, self.id_offsets, self.table, text, spans, rows))


def _end_to_end(ids: Iterable[str]) -> tuple[Array, Array]:
    """The ids' bytes (read-only, as a request's are), and int64[n + 1] where each begins."""
    encoded = [item_id.encode("utf-8", "surrogatepass") for item_id in ids]
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(item_id) for item_id in encoded], out=offsets[1:])
    return np.frombuffer(b"".join(encoded), np.uint8), offsets
