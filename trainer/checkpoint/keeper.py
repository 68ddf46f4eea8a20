"""What a run holds of its checkpoints: the one it goes on from, when the next is due, and what went wrong with them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from model_store.errors import CheckpointError, UsageError
from model_store.spec.spec import ModelSpec
from trainer.checkpoint.description import Description, check_same_spec, description_from_json
from trainer.checkpoint.file import Arrays
from trainer.checkpoint.folder import CheckpointFolder, checkpoints_in


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read: its file, its description, and the model's arrays."""

    path: Path
    description: Description
    arrays: Arrays


class Keeper:
    """Keeps the checkpoints of one run in a folder, which it locks.

    With `resume`, `earlier` is the newest sound checkpoint, or None where there is none yet, so that one command line
    both begins and goes on. Without, the folder must hold none: they would be deleted as the run's own. `failed` and
    `damaged` count checkpoints that could not be written or read, over the whole run. `on_warning` is told of both.
    CheckpointError for a checkpoint of another spec.
    """

    def __init__(
        self,
        folder: Path,
        every: Every,
        spec: ModelSpec,
        *,
        resume: bool = False,
        on_warning: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._warn = on_warning
        self._every = every
        self._folder = CheckpointFolder(folder, on_warning)
        self.earlier: Checkpoint | None = None
        self.failed = self.damaged = 0
        self._last: Description | None = None
        try:
            if resume:
                self._read_newest(spec)
            else:
                _check_empty(folder)
        except BaseException:
            self.close()
            raise
        self._schedule = Schedule(every, self.earlier.description.rows if self.earlier else 0)

    def take(self) -> Checkpoint | None:
        """What to go on from; forgotten here, so that its arrays can be freed."""
        earlier, self.earlier = self.earlier, None
        return earlier

    def is_due(self, rows: int) -> bool:
        """True if a checkpoint should be written now that `rows` rows are learned."""
        return self._schedule.is_due(rows)

    def gave_up(self, rows: int) -> None:
        """Count a checkpoint that failed before it was begun; the next one is due as after any other."""
        self._schedule.restart(rows)
        self.failed += 1

    def save(self, description: Description, arrays: Arrays) -> bool:
        """Write a checkpoint; True if it was. One that cannot be written is told of and counted; the run must go on.

        Nothing is written where nothing has happened since the last.
        """
        self._schedule.restart(description.rows)
        description = replace(description, failed=self.failed, damaged=self.damaged)
        if self._last is not None and _is_same(self._last, description):
            return False
        try:
            self._folder.write(description.rows, description.to_json(), arrays)
            self._last = description
            return True
        except OSError as error:
            self.failed += 1
            self._warn(
                f"the checkpoint at {description.rows:,} rows could not be written to {self._folder.path}: "
                f"{error.strerror}; learning goes on, the checkpoints before it are as they were"
            )
            return False

    def close(self) -> None:
        """Let another run have the folder. May be called twice."""
        self._folder.close()

    def __enter__(self) -> Keeper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read_newest(self, spec: ModelSpec) -> None:
        found = self._folder.newest()
        if found is None:
            return
        path, written, arrays, damaged = found
        description = description_from_json(written, str(path))
        check_same_spec(spec, description.spec, str(path))
        self.earlier = Checkpoint(path, description, arrays)
        self.failed, self.damaged = description.failed, description.damaged + damaged
        self._last = description


def _check_empty(folder: Path) -> None:
    if paths := checkpoints_in(folder):
        raise CheckpointError(
            f"{folder} holds checkpoints of an earlier run (the newest is {paths[0].name}); go on from it with "
            "--resume, or begin anew in another folder"
        )


def _is_same(last: Description, now: Description) -> bool:
    """True if nothing that matters has happened since the last checkpoint."""
    return now == replace(last, ftrie=now.ftrie, created=now.created, seconds=now.seconds)


# --- When the next checkpoint is due: every so many rows, or every so long ---


_EVERY = re.compile(r"([0-9]+)(ms|[smh]?)")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Every:
    """Either a number of `rows` or of `seconds`; the other one is None."""

    rows: int | None
    seconds: float | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `100000` (rows), `500ms`, `30s`, `5m` or `1h`. Raises UsageError for anything else."""
        found = _EVERY.fullmatch(text)
        if found is None or int(found[1]) == 0:
            raise UsageError(
                f"every {text!r}: expected a number of rows such as 100000, or a time such as 500ms, 30s, 5m, 1h"
            )
        number, unit = int(found[1]), found[2]
        return cls(None, number * _UNITS_S[unit]) if unit else cls(number, None)


class Schedule:
    """Counts from the last checkpoint, written or failed, so that a full disk is not tried again at every batch."""

    def __init__(self, every: Every, rows: int) -> None:
        self._every = every
        self.restart(rows)

    def restart(self, rows: int) -> None:
        """Count from here: `rows` of the run are learned."""
        self._rows, self._began = rows, time.monotonic()

    def is_due(self, rows: int) -> bool:
        """True if enough rows, or enough time, have passed."""
        if self._every.rows is not None:
            return rows - self._rows >= self._every.rows
        assert self._every.seconds is not None
        return time.monotonic() - self._began >= self._every.seconds
