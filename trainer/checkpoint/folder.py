"""The checkpoints of one run: a folder of files named by the number of rows learned, used by one run at a time.

`Checkpoints` is what a run uses: the checkpoint to resume from, when the next one is due, and writing it.
`CheckpointFolder` is the files. `Description` is the JSON part of a file: all that a run needs beside its model's
arrays to resume as if it had never stopped. A file is complete or absent: it is written under a temporary name, synced
and renamed; only then are older ones deleted. Temporary files of killed runs are deleted when the next run opens the
folder.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from model_store.clock import SYSTEM, Clock
from model_store.errors import CheckpointError, StoreError
from model_store.files import lock, whole_file
from model_store.spec.spec import ModelSpec, spec_from_json
from trainer.checkpoint import file
from trainer.checkpoint.file import Arrays, Damaged, NamedArrays
from trainer.formats.batch import ReadFile
from trainer.settings import Every, Schedule

SUFFIX = ".checkpoint"
DAMAGED = ".damaged"
KEPT = 3
_TEMPORARY = ".begun"
_LOCK = "lock"
_DIGITS = 15
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


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read: its file, its description, and the model's arrays."""

    path: Path
    description: Description
    arrays: Arrays


class Checkpoints:
    """The checkpoints of one run, in a folder that it locks.

    With `resume`, `earlier` is the newest sound checkpoint, or None if there is none yet, so that the same command line
    both starts and resumes a run. Without, the folder must be empty: the checkpoints in it would be deleted as the
    run's own. `unsaved`: the last attempt to write one failed. `failed` and `damaged` count checkpoints that could not
    be written or read, over all resumed runs; each is reported to `on_warning`. Raises CheckpointError for a checkpoint
    of another spec.
    """

    def __init__(
        self,
        folder: Path,
        every: Every,
        spec: ModelSpec,
        *,
        resume: bool = False,
        on_warning: Callable[[str], None] = lambda text: None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._warn = on_warning
        self._folder = CheckpointFolder(folder, on_warning)
        self.earlier: Checkpoint | None = None
        self.failed = self.damaged = 0
        self.unsaved = False
        self._last: Description | None = None
        try:
            if resume:
                self._read_newest(spec)
            else:
                check_empty(folder)
        except BaseException:
            self.close()
            raise
        self._schedule = Schedule(every, self.earlier.description.rows if self.earlier else 0, clock)

    @property
    def path(self) -> Path:
        """The folder."""
        return self._folder.path

    def take(self) -> Checkpoint | None:
        """The checkpoint to resume from; dropped here, so that its arrays can be freed."""
        earlier, self.earlier = self.earlier, None
        return earlier

    def is_due(self, rows: int) -> bool:
        """True if a checkpoint should be written now that `rows` rows are learned."""
        return self._schedule.is_due(rows)

    def skip(self, rows: int) -> None:
        """Count a checkpoint that failed before it was written; the next one is due as after any other."""
        self._schedule.restart(rows)
        self.failed += 1
        self.unsaved = True

    def save(self, description: Description, arrays: Arrays) -> bool:
        """Write a checkpoint; True if it was written. A failure is counted and reported, and the run goes on.

        Writes nothing if nothing has changed since the last one.
        """
        self._schedule.restart(description.rows)
        description = replace(description, failed=self.failed, damaged=self.damaged)
        self.unsaved = False
        last, now = self._last, description
        if last is not None and now == replace(
            last, ftrie=now.ftrie, created=now.created, seconds=now.seconds
        ):
            return False
        try:
            self._folder.write(description.rows, description.to_json(), arrays)
            self._last = description
            return True
        except OSError as error:
            self.failed += 1
            self.unsaved = True
            self._warn(
                f"the checkpoint at {description.rows:,} rows could not be written to {self._folder.path}: "
                f"{error.strerror}; learning continues, earlier checkpoints are kept"
            )
            return False

    def keep_newest(self) -> None:
        """Delete all but the newest one."""
        self._folder.keep(1)

    def close(self) -> None:
        """Unlock the folder. May be called twice."""
        self._folder.close()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
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


class CheckpointFolder:
    """A folder, locked while it is open. Raises CheckpointError if another run uses it, or it cannot be created."""

    def __init__(self, path: Path, on_warning: Callable[[str], None]) -> None:
        self.path = path
        self._warn = on_warning
        self._lock = lock_folder(path)
        try:
            for left in path.glob(f"*{_TEMPORARY}"):
                left.unlink()
        except OSError as error:
            self.close()  # else the next try finds the folder in use
            raise CheckpointError(f"cannot delete {error.filename or path}: {error.strerror}") from error

    def write(self, rows: int, description: Mapping[str, Any], arrays: Arrays | NamedArrays) -> Path:
        """Write the checkpoint of a run that has learned from `rows` rows, then delete all but the newest KEPT.

        Raises OSError, and leaves the older ones as they are, if it cannot be written.
        """
        path = self.path / f"{rows:0{_DIGITS}}{SUFFIX}"
        with whole_file(path, path.with_suffix(_TEMPORARY)) as out:
            file.write(out, description, arrays)
        self.keep(KEPT)
        return path

    def keep(self, newest: int) -> None:
        """Delete all but so many of the newest checkpoints."""
        for old in checkpoints_in(self.path)[newest:]:
            try:
                old.unlink()
            except OSError as error:
                self._warn(f"the old checkpoint {old} cannot be deleted: {error.strerror}")

    def newest(self) -> tuple[Path, dict[str, Any], Arrays, int] | None:
        """The newest sound checkpoint: file, description, arrays, and the number of newer, damaged ones.

        None if the folder holds none. Damaged ones are reported, and renamed once a sound one is found. Raises
        CheckpointError if all are damaged.
        """
        damaged: list[Damaged] = []
        paths = checkpoints_in(self.path)
        for path in paths:
            try:
                description, arrays = file.read(path)
            except Damaged as error:
                self._warn(f"{error}; trying the checkpoint before it")
                damaged.append(error)
                continue
            for bad in paths[: len(damaged)]:
                try:
                    bad.replace(bad.with_suffix(SUFFIX + DAMAGED))
                except OSError as error:
                    raise CheckpointError(f"cannot rename {bad}: {error.strerror}") from error
            return path, description, arrays, len(damaged)
        if damaged:
            raise CheckpointError(
                f"all {len(damaged)} checkpoints in {self.path} are damaged ({damaged[0]}); "
                "start again with another folder"
            )
        return None

    def close(self) -> None:
        """Unlock the folder. May be called twice."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first."""
    return sorted(folder.glob(f"{'[0-9]' * _DIGITS}{SUFFIX}"), reverse=True)


def check_empty(folder: Path) -> None:
    """Raise CheckpointError if the folder holds checkpoints."""
    if paths := checkpoints_in(folder):
        raise CheckpointError(
            f"{folder} holds checkpoints of an earlier run (the newest is {paths[0].name}); resume it with "
            "--resume, or start again with another folder"
        )


def lock_folder(path: Path) -> int:
    """Create and lock a folder until the returned file descriptor is closed. Raises CheckpointError."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        return lock(path / _LOCK, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CheckpointError(
            f"{path} is in use by another run; wait for it to end, or give this one another folder"
        ) from None
    except (OSError, StoreError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CheckpointError(f"the folder {path} cannot be used for checkpoints: {reason}") from error
