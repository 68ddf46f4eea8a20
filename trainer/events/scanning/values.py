"""Columns made of the places of their values in a block: text by copying, the rest by way of its text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model_store.cells import text_column
from trainer.events.forms import TEXT
from trainer.events.scanning.copying.kernels import copy_text, count_members, find_members, text_offsets
from trainer.events.scanning.kernels import Spans
from trainer.events.scanning.literals.kernels import ABSENT, ESCAPED, FRACTION, LIST

Bytes = npt.NDArray[np.uint8]
_NONE = np.empty(0, np.int32)


@dataclass(frozen=True)
class Values:
    """Where values stand in `data`, one an event or a row: as the kernels' Spans."""

    data: Bytes
    kinds: Bytes
    begins: npt.NDArray[np.int32]
    sizes: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return self.kinds.size

    def or_else(self, others: Values) -> Values:
        """These, and where there is none the others'."""
        mine = self.kinds != ABSENT
        pairs = ((self.kinds, others.kinds), (self.begins, others.begins), (self.sizes, others.sizes))
        return Values(self.data, *(np.where(mine, a, b) for a, b in pairs))

    def take(self, rows: npt.NDArray[np.int32]) -> Values:
        """Those at these places."""
        return Values(self.data, self.kinds[rows], self.begins[rows], self.sizes[rows])

    def written(self) -> pa.Array:
        """The text of each as it is written, escapes undone; empty where there is none. Numbers as in the block."""
        return self._with(self._copied(), np.flatnonzero(self.kinds == ESCAPED), _unescaped)

    def canonical(self) -> pa.Array:
        """The canonical text of each, empty where there is none."""
        return self._with(self.written(), np.flatnonzero(self.kinds == FRACTION), _of_numbers)

    def canonical_or_null(self) -> pa.Array:
        """The same, null where there is none."""
        text = self.canonical()
        missing = self.kinds == ABSENT
        return pa.compute.if_else(pa.array(~missing), text, pa.scalar(None, TEXT)) if missing.any() else text

    def members(self) -> pa.Array:
        """Of lists and ABSENT values alone: lists of the canonical texts of their members."""
        offsets = np.empty(len(self) + 1, np.int32)
        count_members(self.data, self.kinds, self.begins, self.sizes, offsets)
        total = int(offsets[-1])
        inside = Values(
            self.data, np.empty(total, np.uint8), np.empty(total, np.int32), np.empty(total, np.int32)
        )
        spans = Spans(_NONE, inside.kinds, inside.begins, inside.sizes, _NONE)
        find_members(self.data, self.kinds, self.begins, self.sizes, spans)
        mask = pa.array(self.kinds != LIST)
        return pa.ListArray.from_arrays(pa.array(offsets), inside.canonical(), mask=mask)

    def _copied(self) -> pa.Array:
        offsets = np.empty(len(self) + 1, np.int32)
        text_offsets(self.kinds, self.sizes, offsets)
        out = np.empty(int(offsets[-1]), np.uint8)
        copy_text(self.data, self.begins, offsets, out)
        return pa.Array.from_buffers(TEXT, len(self), [None, pa.py_buffer(offsets), pa.py_buffer(out)])

    def _with(self, text: pa.Array, rows: npt.NDArray[np.int64], of: Any) -> pa.Array:
        """The texts, but those of some rows made anew."""
        if not rows.size:
            return text
        places = np.arange(len(self))
        places[rows] = len(self) + np.arange(rows.size)
        return pa.concat_arrays([text, of(text.take(pa.array(rows)))]).take(pa.array(places))


def _unescaped(text: pa.Array) -> pa.Array:
    return pa.array([json.loads(b'"' + each + b'"') for each in text.to_pylist()], pa.string()).cast(TEXT)


def _of_numbers(text: pa.Array) -> pa.Array:
    return text_column(text.cast(pa.string()).cast(pa.float64()))
