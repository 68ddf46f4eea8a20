"""The terminal output of all commands: progress, notes, tables and JSON; and the flag --json.

Answers go to stdout, everything else to stderr. Progress is a bar on a terminal and a plain line every 5 s elsewhere;
with --json only the answer and warnings are printed.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from model_store.errors import harmless, shown
from model_store.flags import Flag
from trainer.output import SILENT, Progress

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

LINE_EVERY_S = 5.0
BAR_EVERY_S = 0.1
NOTEBOOK_EVERY_S = 0.5
NOTEBOOK_WIDTH = 100
# rich needs a width; no table is as wide as this.
PIPE_WIDTH = 10_000
MOST_WHOLE = 24
BAR_WIDTH = 12
BETWEEN_COLUMNS = 2

_json_output: ContextVar[bool] = ContextVar("json_output", default=False)


def json_output() -> bool:
    """Whether the running command has --json."""
    return _json_output.get()


def set_json_output(value: bool) -> bool:
    """Set what `json_output` returns, for this context. Returns `value`."""
    _json_output.set(value)
    return value


JsonOption = Annotated[
    bool, Flag("Print the answer as JSON.", names="--json", env="FTRIE_JSON", callback=set_json_output)
]


@contextmanager
def progress(description: str, total: int | None = None, unit: str = "rows") -> Iterator[Progress]:
    """Show progress on stderr: a bar on a terminal, else a line every 5 s and one at the end; nothing with --json."""
    if json_output():
        with SILENT.progress(description) as silent:
            yield silent
    elif sys.stderr.isatty():
        with _Bar(description, total, unit) as bar:
            yield bar
    else:
        lines = _Lines(description, total, unit, sys.stderr)
        yield lines
        # Not in a `finally`: a step that failed has no last line.
        lines.finish()


@contextmanager
def library_progress(description: str, total: int | None = None, unit: str = "rows") -> Iterator[Progress]:
    """Show progress to a caller in Python: a bar on a terminal, a line that changes in a notebook, else nothing."""
    if _in_notebook():
        line = _NotebookLine(description, total, unit)
        yield line
        line.finish()
    elif sys.stderr.isatty():
        with _Bar(description, total, unit) as bar:
            yield bar
    else:
        with SILENT.progress(description) as silent:
            yield silent


def _in_notebook() -> bool:
    """True if a Jupyter kernel runs this process."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    # IPython in a terminal has no kernel.
    return shell is not None and hasattr(shell, "kernel")


def note(message: str) -> None:
    """Print one line for the user on stderr; nothing with --json."""
    if not json_output():
        # It may quote a log, whose control characters would act on the terminal.
        print(harmless(message), file=sys.stderr, flush=True)


def note_once() -> Callable[[str], None]:
    """`note` for a log that may be read several times: each remark is printed the first time only."""
    said: set[str] = set()

    def noted(message: str) -> None:
        if message not in said:
            said.add(message)
            note(message)

    return noted


def note_parts(parts: str) -> None:
    """`note` of parts separated by " · ", on a terminal in lines that fit its width, broken between parts."""
    lines = [parts]
    if sys.stderr.isatty():
        width, lines = shutil.get_terminal_size().columns, [""]
        for part in parts.split(" · "):
            if lines[-1] and len(f"{lines[-1]} · {part}") > width:
                lines.append(f"  {part}")
            else:
                lines[-1] = f"{lines[-1]} · {part}" if lines[-1] else part
    for line in lines:
        note(line)


def warn(message: str) -> None:
    """Print a warning on stderr; with --json as a JSON object."""
    line = (
        json.dumps({"warning": message}, ensure_ascii=False)
        if json_output()
        else f"ftrie: warning: {harmless(message)}"
    )
    print(line, file=sys.stderr, flush=True)


def print_json(answer: Any) -> None:
    """Print `answer` as one line of JSON on stdout; it may contain records (`plain`).

    Raises ValueError for a number that is not finite.
    """
    print(json.dumps(answer, ensure_ascii=False, allow_nan=False, default=plain), flush=True)


def plain(value: Any) -> Any:
    """What JSON lacks: of a dataclass or a pydantic model its fields, of a time ISO 8601, of bytes the text.

    Raises TypeError for anything else.
    """
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    if hasattr(type(value), "model_fields"):
        return {name: getattr(value, name) for name in type(value).model_fields}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"got a {type(value).__name__}; expected what JSON has")


def picked(record: Any, names: str, **more: Any) -> dict[str, Any]:
    """These fields of a dataclass, in this order; more: values that it lacks, or has otherwise."""
    return {name: more[name] if name in more else getattr(record, name) for name in names.split()}


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None = None) -> None:
    """Print rows on stdout, numbers right-aligned, times to the second.

    A narrow terminal folds long headings first, then long texts; a pipe folds and cuts nothing.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = [
        [f"{each:%Y-%m-%d %H:%M:%S} UTC" if isinstance(each, datetime) else each for each in row]
        for row in rows
    ]
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for number, name in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[number], int | float | None) for row in rows)
        longest = max((len(shown(row[number])) for row in rows), default=0)
        whole = len(name) <= longest <= MOST_WHOLE
        table.add_column(name, justify="right" if numeric else "left", overflow="fold", no_wrap=whole)
    for row in rows:
        # As Text: rich reads markup in a str, such as [red].
        table.add_row(*(Text(shown(value)) for value in row))
    if title:
        print(title)
    Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(table)


class _Output:
    """The state and text of one progress; subclasses show it."""

    def __init__(self, description: str, total: int | None, unit: str, every_s: float) -> None:
        self.description, self.total, self.unit = description, total, unit
        self._every_s = every_s
        self._completed = 0
        self._fields: dict[str, float | str] = {}
        self._began = self._last = time.monotonic()

    def update(self, completed: int, *, total: int | None = None, **fields: float | str) -> None:
        self._completed = completed
        self._fields = fields
        if total is not None:
            self.total = total
        now = time.monotonic()
        if now - self._last >= self._every_s:
            self._last = now
            self._show()

    def _details(self, width: int = PIPE_WIDTH, last: str = "") -> str:
        """Count, speed, as many of the fields as fit into `width` characters, and `last` if it fits."""
        elapsed_s = max(time.monotonic() - self._began, 1e-9)
        details = f"{self._completed:,} {self.unit}"
        parts = [f"{self._completed / elapsed_s:,.0f} {self.unit}/s"]
        parts += [f"{name} {shown(value)}" for name, value in self._fields.items()]
        room = width - (len(last) + 3 if last else 0)
        for part in parts:
            if len(more := f"{details} · {part}") <= room:
                details = more
        return f"{details} · {last}" if last and len(details) <= room else details

    def _left(self) -> str:
        """How long the rest will take at the speed so far, as `ETA 1:05`; "" if that is not known."""
        elapsed_s = time.monotonic() - self._began
        if not self.total or not self._completed or self._completed >= self.total:
            return ""
        return f"ETA {_clock(elapsed_s * (self.total - self._completed) / self._completed)}"

    def _show(self) -> None:
        raise NotImplementedError


class _Lines(_Output):
    def __init__(self, description: str, total: int | None, unit: str, out: TextIO) -> None:
        super().__init__(description, total, unit, LINE_EVERY_S)
        self._out = out

    def _show(self) -> None:
        percent = f"{100 * self._completed / self.total:3.0f} % · " if self.total else ""
        print(f"{self.description}: {percent}{self._details()}", file=self._out, flush=True)

    def finish(self) -> None:
        self._show()


class _NotebookLine(_Output):
    """One line of a notebook's output, replaced in place."""

    def __init__(self, description: str, total: int | None, unit: str) -> None:
        super().__init__(description, total, unit, NOTEBOOK_EVERY_S)
        self._handle: Any = None

    def _show(self) -> None:
        percent = f"{100 * self._completed / self.total:3.0f} % · " if self.total else ""
        text = {"text/plain": f"{self.description}: {percent}{self._details(NOTEBOOK_WIDTH)}"}
        if self._handle is None:
            from IPython.display import display

            self._handle = display(text, raw=True, display_id=True)
        else:
            self._handle.update(text, raw=True)

    def finish(self) -> None:
        self._show()


class _Bar(_Output):
    """A rich bar. After a failure it stays on the terminal, unfinished."""

    def __init__(self, description: str, total: int | None, unit: str) -> None:
        super().__init__(description, total, unit, BAR_EVERY_S)
        self._rich = _rich_progress()
        self._task = self._rich.add_task(description, total=total, details="")

    def __enter__(self) -> _Bar:
        self._rich.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            # The total may have been an estimate; a bar that has ended is full.
            self.total = self._completed or self.total
        self._show(f"in {_clock(time.monotonic() - self._began)}")
        self._rich.stop()

    def _show(self, last: str | None = None) -> None:
        task = self._rich.tasks[0]
        # Set, not updated: rich forgets the speed when `update` is given another total.
        task.total = self.total
        room = self._rich.console.width - len(self.description) - BAR_WIDTH - BETWEEN_COLUMNS
        details = self._details(room, self._left() if last is None else last)
        self._rich.update(self._task, completed=self._completed, details=details)


def _clock(seconds: float) -> str:
    """`1:05`, or `2:01:05`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _rich_progress() -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=BAR_WIDTH),
        TextColumn("{task.fields[details]}", table_column=Column(no_wrap=True)),
        console=Console(stderr=True),
    )
