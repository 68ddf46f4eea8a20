"""Reading metrics files back. A file that is still being written, or broke off, is read as far as it goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from model_store.bounded import json_value
from model_store.errors import InputError
from trainer.watching.records import FORMAT, FORMAT_VERSION, Detail, End, Header, Line, Window

_LINE: TypeAdapter[Line] = TypeAdapter(Line)


@dataclass
class RunMetrics:
    """One run as its metrics file tells it. `notes` say what the reader should know of the file itself."""

    name: str
    header: Header
    windows: list[Window] = field(default_factory=list)
    detail: Detail | None = None
    ended: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows in all windows."""
        return self.windows[-1].rows if self.windows else 0


def read_runs(paths: Sequence[Path]) -> list[RunMetrics]:
    """Read each file, and name each run by the shortest end of its path that tells it from the others."""
    runs = [_read(path) for path in paths]
    for run, name in zip(runs, _short_names(paths), strict=True):
        run.name = name
    return runs


def _read(path: Path) -> RunMetrics:
    """Raises InputError for what is no metrics file, or is damaged before its last line."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    run = RunMetrics(path.name, _header(path, lines[0]))
    whole, rest = lines[1:-1], lines[-1] if len(lines) > 1 else b""
    for number, line in enumerate(whole, start=2):
        _add(run, _line(path, number, line))
    if rest:
        run.notes.append(f"line {len(lines)} is not complete and was passed over")
    if not run.ended:
        run.notes.append(f"the run has not ended, or broke off: figures up to row {run.rows:,}")
    return run


def _header(path: Path, line: bytes) -> Header:
    try:
        found = json_value(line)
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputError(
            f"{path} is not a metrics file: its first line does not say {FORMAT!r}; "
            "`ftrie train … --metrics FILE` writes one"
        )
    if found.get("version") != FORMAT_VERSION:
        raise InputError(
            f"{path} has metrics of version {found.get('version')}; this ftrie reads version {FORMAT_VERSION}"
        )
    try:
        return Header.model_validate(found)
    except ValidationError as error:
        raise InputError(f"{path}, line 1: {_first(error)}") from None


def _line(path: Path, number: int, line: bytes) -> Line:
    try:
        return _LINE.validate_json(line)
    except ValidationError as error:
        raise InputError(f"{path}, line {number}: {_first(error)}; the file is damaged") from None


def _first(error: ValidationError) -> str:
    detail = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in detail["loc"])
    return f"{where}: {detail['msg']}" if where else str(detail["msg"])


def _add(run: RunMetrics, line: Line) -> None:
    match line:
        case Window():
            run.windows.append(line)
        case Detail():
            run.detail = line
        case End():
            run.ended = True
        case Header():
            run.notes.append("a second header stands in the file: two runs wrote to it")


def _short_names(paths: Sequence[Path]) -> list[str]:
    """a/m.jsonl and b/m.jsonl are told apart by their folders; the same file twice is numbered."""
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{path.name} ({number})" for number, path in enumerate(paths, start=1)]
