"""Kernels that find rows in blocks of CSV and TSV: where each starts, on which line, and its cells.

Line ends are LF, CR LF and a lone CR. Quotes are read as by Arrow's CSV parser: a quote opens only at the start of a
cell, a doubled quote is a quote, and text after the closing quote belongs to the cell.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from model_store.jit import inline, kernel
from trainer.formats.streams import Bytes

Ints = npt.NDArray[np.int64]
Spans = npt.NDArray[np.int32]

_LF = 10
_CR = 13


@inline
def _ends_line(data: Bytes, at: int) -> bool:
    """True if the byte at `at` is the last of a line end."""
    if data[at] == _CR:
        return at + 1 == len(data) or data[at + 1] != _LF
    return bool(data[at] == _LF)


@inline
def _skip_quoted(data: Bytes, at: int, quote: int) -> tuple[int, int]:
    """From after an opening quote: the offset after the closing one (-1 if none), and the line ends between."""
    lines = 0
    while at < len(data):
        byte = data[at]
        if byte == quote:
            at += 1
            if at == len(data) or data[at] != quote:
                return at, lines
        elif byte <= _CR and _ends_line(data, at):
            lines += 1
        at += 1
    return -1, lines


@inline
def _row(
    data: Bytes, at: int, delimiter: int, quote: int, columns: int, spans: Spans, into: int
) -> tuple[int, int, int, bool]:
    """Read the row at `at`: offset after its line end (-1 if none), line ends, cells, whether a quote is left open.

    Where its first `columns` cells begin and end is written to `spans` from `into` on.
    """
    size = len(data)
    lines, cells = 0, 1
    while True:
        begin = at
        if at < size and data[at] == quote:
            at, inside = _skip_quoted(data, at + 1, quote)
            lines += inside
            if at < 0:
                return -1, lines, cells, True
        while at < size and data[at] != delimiter and data[at] != _LF and data[at] != _CR:
            at += 1
        if cells <= columns:
            spans[into + 2 * cells - 2], spans[into + 2 * cells - 1] = begin, at
        if at == size or (data[at] == _CR and at + 1 == size):
            return -1, lines, cells, False
        if data[at] != delimiter:
            pair = data[at] == _CR and data[at + 1] == _LF
            return at + (2 if pair else 1), lines + 1, cells, False
        cells += 1
        at += 1


@inline
def _is_blank(data: Bytes, start: int, stop: int) -> bool:
    """True if the row consists of its line end alone."""
    return stop - start <= 2 and (data[start] == _LF or data[start] == _CR)


@kernel
def find_rows(
    data: Bytes,
    delimiter: int,
    quote: int,
    final: bool,
    columns: int,
    starts: Ints,
    lines: Ints,
    cells: Ints,
    spans: Spans,
) -> tuple[int, int, int, bool]:
    """Write the start, line (from 0) and number of cells of every whole row of `data` that is not blank.

    starts, lines, cells: int64, one element more than `data` has line ends. final: the end of `data` ends the last
    row. quote: -1 without quoting. spans: where the cells of the rows with `columns` cells begin and end, row by row.
    Returns (rows, bytes and line ends in them and in blank lines, whether the bytes left over are a row with an open
    quote).
    """
    rows = good = at = line = 0
    while at < len(data):
        stop, ends, count, quoted = _row(data, at, delimiter, quote, columns, spans, 2 * columns * good)
        if stop < 0 and (quoted or not final):
            return rows, at, line, quoted
        if stop < 0:
            stop = len(data)
            ends += data[stop - 1] == _CR
        if not _is_blank(data, at, stop):
            starts[rows], lines[rows], cells[rows] = at, line, count
            rows += 1
            good += count == columns
        at = stop
        line += ends
    return rows, at, line, False


@kernel
def undo_quotes(data: Bytes, quote: int, spans: Spans) -> None:
    """Replace each cell in quotes by its text, in place: it begins where the cell does, and is shorter."""
    for cell in range(0, len(spans), 2):
        start, stop = spans[cell], spans[cell + 1]
        if start < stop and data[start] == quote:
            is_inside, at, to = True, start + 1, start
            while at < stop:
                if is_inside and data[at] == quote:
                    at += 1
                    if at == stop or data[at] != quote:
                        is_inside = False
                        continue
                data[to] = data[at]
                to += 1
                at += 1
            spans[cell + 1] = to
