"""A block of lines as rows: runs the kernels over it, and makes Arrow columns and rejects of what they found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trainer.sources.sparse.columns.kernels import AT_ONCE, fill_columns, gather, measure_columns
from trainer.sources.sparse.grammars import IMPORTANCE, LABEL, Grammar
from trainer.sources.sparse.kernels import read_lines, survey_lines
from trainer.sources.sparse.rows import kernels
from trainer.sources.sparse.rows.kernels import Names, Notes, Output, Rows, Tokens
from trainer.sources.streams import Bytes

_MOST_NEWS = 16  # names of columns not met before that one block may report
_SHOWN = 60

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Block:
    """What was read of some lines: the good rows and their tokens, notes of what else there was, the line feeds."""

    data: Bytes
    rows: Rows
    tokens: Tokens
    notes: Notes
    line_ends: int

    @property
    def size(self) -> int:
        """How many good rows there are."""
        return int(self.rows.line.size)

    def rejects(self) -> list[tuple[int, str]]:
        """The line (from 0) of each bad row, and what is wrong with it."""
        return [
            (line, REASONS[what](self._text(start, stop), start - self._line_start(start)))
            for line, what, start, stop in self.notes.faults.tolist()
        ]

    def news(self) -> list[tuple[int, bytes]]:
        """The line (from 0) and the name of columns that are not in the table of names; not all of them."""
        return [(line, self.data[start:stop].tobytes()) for line, start, stop in self.notes.news.tolist()]

    def row_column(self, name: str) -> pa.Array:
        """A column with one value a row: the label, the importance, or the text."""
        if name == LABEL:
            return pa.array(self.rows.label)
        if name == IMPORTANCE:
            return pa.array(self.rows.importance, from_pandas=True)  # NaN stands for none
        return _texts(self.data, self.rows.tag)

    def maps(self, columns: int) -> list[pa.Array]:
        """The tokens as columns of maps from text to double, in the order of their numbers."""
        members, text_bytes = np.zeros(columns + 1, np.int64), np.zeros(columns + 1, np.int64)
        used = int(self.rows.end[-1]) if self.size else 0
        measure_columns(self.tokens, used, members[1:], text_bytes[1:])
        text_bytes[1:] += AT_ONCE
        member_from, byte_from = np.cumsum(members), np.cumsum(text_bytes)
        starts = np.empty((columns, self.size + 1), np.int32)
        offsets = np.empty(member_from[-1] + columns, np.int32)
        text, x = np.empty(byte_from[-1], np.uint8), np.empty(member_from[-1])
        fill_columns(self.data, self.tokens, self.rows.end, member_from, byte_from, starts, offsets, text, x)
        return [
            _map_array(
                starts[column],
                offsets[member_from[column] + column : member_from[column + 1] + column + 1],
                text[byte_from[column] : byte_from[column + 1]],
                x[member_from[column] : member_from[column + 1]],
            )
            for column in range(columns)
        ]

    def _text(self, start: int, stop: int) -> str:
        text = self.data[start : min(stop, start + _SHOWN)].tobytes().decode(errors="replace").rstrip("\r")
        return repr(text + "…" if stop > start + _SHOWN else text)

    def _line_start(self, at: int) -> int:
        before = np.flatnonzero(self.data[:at] == ord("\n"))
        return int(before[-1]) + 1 if before.size else 0


def read_block(data: Bytes, grammar: Grammar, names: Names) -> Block:
    """Read whole lines."""
    feeds, blanks, bars, odd = survey_lines(data)
    rows, tokens = _rows(feeds + 1), _tokens(blanks + 1, bars + 1)
    notes = Notes(
        faults=np.empty((feeds + 1, 4), np.int64),
        longs=np.empty((blanks + bars + 1, 4), np.int64),
        news=np.empty((_MOST_NEWS, 3), np.int64),
    )
    counts = np.zeros(kernels.COUNTS, np.int64)
    read_lines(data, grammar.number, odd, Output(names, tokens, rows, notes, counts))
    rows = Rows(*(part[: counts[kernels.ROWS]] for part in rows))
    notes = Notes(
        notes.faults[: counts[kernels.FAULTS]],
        notes.longs[: counts[kernels.LONGS]],
        notes.news[: counts[kernels.NEWS]],
    )
    _convert_longs(data, notes.longs, rows, tokens)
    return Block(data, rows, tokens, notes, feeds)


def _rows(size: int) -> Rows:
    return Rows(
        line=np.empty(size, np.int64),
        end=np.empty(size, np.int64),
        label=np.empty(size, np.int64),
        importance=np.empty(size),
        tag=np.empty((size, 2), np.int32),
    )


def _tokens(size: int, scales: int) -> Tokens:
    column, start, stop, scale = (np.empty(size, np.int32) for _ in range(4))
    return Tokens(column, start, stop, np.empty(size), scale, np.empty(scales))


def _convert_longs(data: Bytes, longs: Ints, rows: Rows, tokens: Tokens) -> None:
    """Put the numbers where they belong that the kernels could not convert in one exact operation."""
    if not longs.size:
        return
    spans = longs[:, 2:].astype(np.int32)
    spans[:, 0] += data[spans[:, 0]] == ord("+")
    texts = _texts(data, spans).cast(pa.string())
    try:
        numbers = texts.cast(pa.float64()).to_numpy()
    except pa.ArrowInvalid:  # too small for any double: Arrow calls it a fault, Python 0
        numbers = np.array([float(text) for text in texts.to_pylist()])
    homes = {
        kernels.VALUE_OF: tokens.value,
        kernels.SCALE_OF: tokens.scales,
        kernels.IMPORTANCE_OF: rows.importance,
    }
    for what, home in homes.items():
        here = longs[:, 0] == what
        home[longs[here, 1]] = numbers[here]


def _texts(data: Bytes, spans: npt.NDArray[np.int32]) -> pa.Array:
    text = np.empty(int((spans[:, 1] - spans[:, 0]).sum()) + AT_ONCE, np.uint8)
    offsets = np.empty(len(spans) + 1, np.int32)
    gather(data, spans, offsets, text)
    return _binary(offsets, text)


def _binary(offsets: npt.NDArray[np.int32], text: npt.NDArray[np.uint8]) -> pa.Array:
    return pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    )


def _map_array(starts: Any, offsets: Any, text: Any, x: Any) -> pa.Array:
    items = pa.Array.from_buffers(pa.float64(), len(x), [None, pa.py_buffer(x)])
    keys = _binary(offsets, text)
    places = pa.Array.from_buffers(pa.int32(), len(starts), [None, pa.py_buffer(starts)])
    return pa.MapArray.from_arrays(places, keys, items)


# What is said of a bad line: of the bytes at fault, and where in the line they begin.
REASONS: dict[int, Callable[[str, int], str]] = {
    kernels.NO_LABEL: lambda got, at: (
        f"no label: got {got} before the first |, expected 1, 0 or -1; a word that touches | is the tag"
    ),
    kernels.BAD_LABEL: lambda got, at: f"bad label: got {got}, expected 1, 0 or -1",
    kernels.NO_BAR: lambda got, at: f"no namespace: got {got}, expected a | before the features",
    kernels.EXTRA_WORDS: lambda got, at: (
        f"too many words: got {got}, expected at most label, importance, base and 'tag before the first |"
    ),
    kernels.BAD_NUMBER: lambda got, at: f"not a number: got {got}",
    kernels.BAD_BASE: lambda got, at: (
        f"initial prediction: got {got}, which is not learned from; expected 0 or none"
    ),
    kernels.NO_NAME: lambda got, at: f"no feature name: got {got}, expected a name before the colon",
    kernels.BAD_FEATURE: lambda got, at: f"malformed feature: got {got}",
    kernels.BAD_TEXT: lambda got, at: f"invalid UTF-8: a NUL, or no UTF-8, at byte {at + 1} of the line",
}


def name_table(names: Sequence[bytes], columns: Sequence[int]) -> Names:
    """The kernels' table of these names and the numbers of their columns."""
    starts = np.zeros(len(names) + 1, np.int64)
    np.cumsum([len(name) for name in names], out=starts[1:])
    table = Names(
        text=np.frombuffer(b"".join(names) + b"\0", np.uint8).copy(),
        starts=starts,
        column=np.array(columns, np.int32),
        table=np.zeros(1 << (2 * len(names) + 1).bit_length(), np.int32),
        follows=np.full(len(names) + 1, kernels.UNKNOWN, np.int32),
    )
    kernels.enter_names(table)
    return table
