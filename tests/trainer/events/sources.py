"""Sources that hold what a test gives them: inputs of the merger, as streams and files are."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from trainer.events.events import NEVER_US, Chunk, Lag, SourcePosition


def lines_of(events: Iterable[Any]) -> list[bytes]:
    return [each if isinstance(each, bytes) else json.dumps(each).encode() for each in events]


def block_of(lines: Sequence[bytes]) -> tuple[bytes, np.ndarray]:
    ended = [line + b"\n" for line in lines]
    return b"".join(ended), np.cumsum([0, *(len(line) for line in ended)])


def read(source: Any) -> Chunk:
    """The next chunk, which there is, with the times at which its events came."""
    chunk: Chunk | None = source.read()
    assert chunk is not None and chunk.arrived_us is not None
    return chunk


def numbers_of(chunk: Chunk) -> list[int]:
    assert chunk.starts[-1] == len(chunk.data)
    return [json.loads(line)["n"] for line in chunk.data.splitlines()]


def all_of(source: Any) -> list[int]:
    found = []
    while (chunk := source.read()) is not None:
        found += numbers_of(chunk)
    return found


class Listed:
    """Lines with or without the times at which they came, read a few at a time; a step may be an error to raise."""

    def __init__(
        self,
        name: str,
        lines: Sequence[bytes],
        came_us: Sequence[int] | None = None,
        *,
        steps: Iterable[int | Exception] = (),
        position: SourcePosition | None = None,
        on_read: Callable[[], None] = lambda: None,
    ) -> None:
        self.name, self.lost = name, 0
        self._lines, self._came_us, self._steps = list(lines), came_us, deque(steps)
        self._at = (position or {}).get("at", 0)
        self._on_read = on_read
        self.closed = False

    def read(self) -> Chunk | None:
        """As many lines as the next step says, 0 being none just now; all, after the last step."""
        self._on_read()
        step = self._steps.popleft() if self._steps else len(self._lines)
        if isinstance(step, Exception):
            raise step
        stop = min(self._at + step, len(self._lines))
        if stop == self._at:
            return None
        data, starts = block_of(self._lines[self._at : stop])
        came = None if self._came_us is None else np.array(self._came_us[self._at : stop], np.int64)
        marks = np.arange(self._at + 1, stop + 1)[:, None]
        chunk = Chunk(data, starts, came, marks, self._place(self._at))
        self._at = stop
        return chunk

    def watermark_us(self) -> int:
        """By its clock: when the next line comes. Without: nothing is known."""
        if self._came_us is None:
            return 0
        return NEVER_US if self._at == len(self._lines) else self._came_us[self._at]

    def position(self, chunk: Chunk, count: int) -> SourcePosition:
        return self._place(int(chunk.marks[count - 1, 0])) if count else chunk.before

    def where(self, chunk: Chunk, number: int) -> str:
        return str(int(chunk.marks[number, 0]) - 1)

    def lag(self) -> Lag:
        return Lag(events=len(self._lines) - self._at)

    def close(self) -> None:
        self.closed = True

    def _place(self, at: int) -> SourcePosition:
        return {"source": self.name, "at": at}


class Tables:
    """Keeps every table of rows; its number is its position in the list."""

    def __init__(self) -> None:
        self.tables: list[dict[str, Any]] = []

    def add(self, columns: Any, /) -> int:
        self.tables.append(dict(columns))
        return len(self.tables) - 1
