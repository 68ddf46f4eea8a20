"""Fragments: what a line says of each item of a catalogue, made once when the catalogue is, end to end in two arrays.

All processes map the same copy. Nothing here knows models, requests or sinks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from model_store.values import Value
from server.impressions.form import Form

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Fragments:
    """Immutable. data uint8, offsets int64[n + 1]: the `id` and `features` of each row, JSON without braces around."""

    data: Array
    offsets: Array

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> Fragments:
        """Those of rows 0, 1, 2 …"""
        offsets = np.array([0, *accumulate(map(len, texts))], np.int64)
        return cls(
            np.frombuffer(bytearray(b"".join(texts)), np.uint8), offsets
        )  # writable, as kernels have it

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def at(self, row: int) -> bytes:
        """The fragment of one row. O(its bytes)."""
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()

    def features_at(self, row: int) -> dict[str, Value]:
        """The features of one row, by the names they have in lines. O(its bytes)."""
        features: dict[str, Value] = json.loads(b"{%b}" % self.at(row))["features"]
        return features

    def by_name(self) -> dict[str, Array]:
        """The arrays as a catalogue packs them."""
        return {"fragments.data": self.data, "fragments.offsets": self.offsets}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Array]) -> Fragments | None:
        """Those among a packed catalogue's arrays, if it was packed with them."""
        if not has_fragments(arrays):
            return None
        return cls(arrays["fragments.data"], arrays["fragments.offsets"])


def has_fragments(arrays: Mapping[str, Array]) -> bool:
    """Whether a packed catalogue's arrays hold fragments."""
    return "fragments.data" in arrays


class FragmentWriter:
    """Collects the fragments of a catalogue's rows."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._rows: list[bytes] = []

    def add(self, row: int, item_id: str, values: Mapping[str, Value]) -> None:
        """Take in the next row, or another record of an earlier one: its values by field, those that fit."""
        self._rows[row : row + 1] = [self._form.shown(item_id, values).encode()]

    def finish(self) -> Fragments:
        """The fragments of rows 0, 1, 2 …"""
        return Fragments.of(self._rows)
