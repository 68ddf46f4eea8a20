"""The screen: each process and the loop's figures, redrawn on a terminal; plain lines elsewhere, none with --json.

Nothing here asks a process anything: it draws what it is given.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from model_store.terminal import json_asked

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.live import Live as RichLive

LINE_EVERY_S = 5.0
KEPT_NOTES = 6


@dataclass(frozen=True)
class Row:
    """One process: its name, its number (None: it is down), restarts, and what it is at."""

    name: str
    pid: int | None
    restarts: int
    doing: str


@dataclass(frozen=True)
class Look:
    """One moment. figures: name and value; line: the same, short, for where nothing can be redrawn."""

    title: str
    rows: Sequence[Row]
    figures: Sequence[tuple[str, str]]
    line: str


class Screen:
    """Shows looks and notes. Use as a context manager: the terminal is as it was afterwards."""

    def __init__(self) -> None:
        self._live = None if json_asked() or not sys.stderr.isatty() else _live()
        self._notes: list[str] = []
        self._look: Look | None = None
        self._next_line = 0.0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, look: Look) -> None:
        """Draw a moment; where nothing can be redrawn, its line every five seconds."""
        self._look = look
        if self._live is not None:
            self._live.update(_drawn(look, self._notes), refresh=True)
        elif not json_asked() and look.line and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_EVERY_S
            print(look.line, file=sys.stderr, flush=True)

    def note(self, sentence: str) -> None:
        """Say that something happened."""
        if json_asked():
            return
        if self._live is None:
            print(sentence, file=sys.stderr, flush=True)
            return
        self._notes = [*self._notes, f"{time.strftime('%H:%M:%S')}  {sentence}"][-KEPT_NOTES:]
        look = self._look or Look(sentence, (), (), "")
        self._live.update(_drawn(look, self._notes), refresh=True)


def _live() -> RichLive:
    from rich.console import Console
    from rich.live import Live

    return Live(console=Console(stderr=True), auto_refresh=False, transient=False)


def _drawn(look: Look, notes: Sequence[str]) -> Group:
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    processes = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name, how in (("process", "left"), ("pid", "right"), ("restarts", "right"), ("", "left")):
        processes.add_column(name, justify="right" if how == "right" else "left", overflow="fold")
    for row in look.rows:
        pid = Text("down", style="bold red") if row.pid is None else Text(str(row.pid))
        processes.add_row(Text(row.name), pid, Text(str(row.restarts)), Text(row.doing))
    figures = Table.grid(padding=(0, 2))
    for name, value in look.figures:
        figures.add_row(Text(name, style="dim"), Text(value))
    parts: list[RenderableType] = [Text(look.title, style="bold"), processes, Text(""), figures]
    return Group(*parts, *(Text(each, style="dim") for each in notes))
