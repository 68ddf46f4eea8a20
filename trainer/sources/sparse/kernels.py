"""Kernels that go over a block of text line by line: each becomes a row, or a fault, or is blank."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.jit import bare_inline, bare_kernel, kernel
from model_store.kernels import load_u8
from trainer.sources.sparse.indexed.kernels import read_libffm_line, read_libsvm_line
from trainer.sources.sparse.rows.kernels import (
    BAD_TEXT,
    BLANK,
    FAILED,
    FAULT,
    FAULT_START,
    FAULT_STOP,
    FAULTS,
    LINES,
    LONGS,
    NAME,
    NEWS,
    NO_SCALE,
    ROWS,
    SCALES,
    TOKENS,
    UNKNOWN,
    fail,
)
from trainer.sources.sparse.text.kernels import CR, GOOD_TEXT, LF, NUL, SPACE, TAB, first_fault
from trainer.sources.sparse.vw.kernels import read_vw_line

VW, LIBSVM, LIBFFM = 0, 1, 2
_BAR = 124


@kernel
def survey_lines(data: Any) -> tuple[int, int, int, bool]:
    """Count line feeds, blanks and bars, and say if a byte is NUL or not ASCII, in one vectorised pass."""
    feeds = blanks = bars = odd = 0
    for i in range(len(data)):
        byte = data[i]
        feeds += byte == LF
        blanks += (byte == SPACE) | (byte == TAB) | (byte == CR)
        bars += byte == _BAR
        odd += (byte == NUL) | (byte >= 0x80)
    return feeds, blanks, bars, odd > 0


@bare_kernel
def read_lines(text: Any, grammar: Any, odd: Any, out: Any) -> None:
    """Read every line of `text` (uint8).

    grammar: VW, LIBSVM or LIBFFM; odd: a byte is NUL or not ASCII; out: `Output`, its counts all 0.
    """
    data, size, start, counts = text.ctypes.data, text.size, 0, out.counts
    out.tokens.scales[NO_SCALE] = 1.0
    counts[SCALES] = NO_SCALE + 1
    while start < size:
        stop = start
        while stop < size and load_u8(data + stop) != LF:
            stop += 1
        kept = (counts[TOKENS], counts[SCALES], counts[LONGS], counts[NEWS])
        if _read_line(data, start, stop, grammar, odd, out) == FAILED:
            counts[TOKENS], counts[SCALES], counts[LONGS], counts[NEWS] = kept
            _note_fault(out)
        else:
            row = counts[ROWS]
            out.rows.line[row], out.rows.end[row] = counts[LINES], counts[TOKENS]
            counts[ROWS] = row + 1
        counts[LINES] += 1
        start = stop + 1


@bare_inline
def _read_line(data: Any, start: Any, stop: Any, grammar: Any, odd: Any, out: Any) -> Any:
    row = out.counts[ROWS]
    out.counts[NAME] = UNKNOWN
    out.rows.importance[row] = np.nan
    out.rows.tag[row, 0] = out.rows.tag[row, 1] = start
    at = first_fault(data, start, stop) if odd else np.int64(GOOD_TEXT)
    if at != GOOD_TEXT:
        return fail(out, BAD_TEXT, at, at)
    if grammar == VW:
        return read_vw_line(data, start, stop, out)
    if grammar == LIBSVM:
        return read_libsvm_line(data, start, stop, out)
    return read_libffm_line(data, start, stop, out)


@bare_inline
def _note_fault(out: Any) -> None:
    counts, fault = out.counts, out.counts[FAULTS]
    if counts[FAULT] != BLANK:
        out.notes.faults[fault, 0], out.notes.faults[fault, 1] = counts[LINES], counts[FAULT]
        out.notes.faults[fault, 2], out.notes.faults[fault, 3] = counts[FAULT_START], counts[FAULT_STOP]
        counts[FAULTS] = fault + 1
