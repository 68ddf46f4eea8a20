"""The JSON part of a checkpoint: all that a run needs beside its model's arrays to resume as if it had never stopped.

`check_same_spec` says with which spec a run may resume.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from model_store.errors import CheckpointError
from model_store.spec.spec import ModelSpec, spec_from_json
from trainer.formats.batch import ReadFile

SHOWN_DIFFERENCES = 8


@dataclass(frozen=True)
class Written:
    """A file that a run appends to, and its size at the checkpoint: a resumed run truncates it to that."""

    path: str | None = None
    bytes: int = 0

    @classmethod
    def to(cls, path: Path | None, size: int) -> Self:
        """`size` bytes of the file at `path`."""
        return cls(os.path.abspath(path), size) if path is not None else cls()

    def kept_of(self, path: Path | None) -> int:
        """How many bytes of the file at `path` a resumed run keeps; 0 of another file."""
        return self.bytes if path is not None and os.path.abspath(path) == self.path else 0


@dataclass(frozen=True)
class Description:
    """The description of a checkpoint.

    spec: canonical JSON as given; resolved: with the fields found in the first log; columns: those read from the log.
    rows: learned; keys: in the table; seconds: of training, over all resumed runs. read: how far each file was read;
    rows_read: rows read, learned or not; subsampled: of those, dropped by subsampling; minus_labels: of those learned,
    with a label written as -1; doubled: of those learned, that are two examples (input.views). reject_counts: bad rows
    by category; rejects, metrics: the files they are written to.
    sides: SHA-256 of the files of items and users; initial: SHA-256 of the model of --init-from. failed: checkpoints
    that could not be written; damaged: that could not be read. stream: what `ftrie trainer` stores besides
    (`trainer.runs.stream`), None for a run over logs; passes: of a run of several (`trainer.runs.loop`), else None.
    """

    ftrie: str
    created: str
    spec: str
    resolved: str
    columns: tuple[str, ...]
    rows: int
    keys: int
    seconds: float
    read: tuple[ReadFile, ...]
    rows_read: int = 0
    subsampled: int = 0
    minus_labels: int = 0
    doubled: int = 0
    reject_counts: dict[str, int] = field(default_factory=dict)
    rejects: Written = Written()
    metrics: Written = Written()
    sides: dict[str, str] = field(default_factory=dict)
    initial: str | None = None
    failed: int = 0
    damaged: int = 0
    stream: dict[str, Any] | None = None
    passes: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `description_from_json` reads them back."""
        written: dict[str, Any] = _ADAPTER.dump_python(self, mode="json")
        return written


_ADAPTER = TypeAdapter(Description)


def description_from_json(written: Mapping[str, Any], where: str) -> Description:
    """Read back `to_json`. Raises CheckpointError, naming the file `where`, for any other JSON."""
    try:
        return _ADAPTER.validate_python(written)
    except ValidationError as error:
        raise CheckpointError(f"{where} is not a checkpoint of a training run: {error}") from None


def check_same_spec(given: ModelSpec, written: str, where: str) -> None:
    """Raise CheckpointError, naming what differs, unless a run with the `given` spec may resume from `written`.

    [guard] may differ: what is learned does not depend on it.
    """
    before, given = spec_from_json(written, where).without_guard(), given.without_guard()
    if before.to_json() == given.to_json():
        return
    differences = list(_differences(json.loads(before.to_json()), json.loads(given.to_json()), ""))
    more = len(differences) - SHOWN_DIFFERENCES
    rest = [f"and {more} more"] if more > 0 else []
    shown = "; ".join(differences[:SHOWN_DIFFERENCES] + rest) or "the order of fields, crosses or variants"
    raise CheckpointError(
        f"{where} was made with another spec: {shown}. Resume with that spec, or start again with another folder"
    )


def _differences(before: Any, now: Any, path: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for name in {**before, **now}:
            yield from _differences(before.get(name), now.get(name), f"{path}.{name}" if path else name)
    elif before != now:
        yield f"{path} was {json.dumps(before)}, is {json.dumps(now)}"
