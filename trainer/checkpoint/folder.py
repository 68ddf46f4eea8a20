"""The checkpoints of one run: a folder of files named by the rows learned from, held by one run at a time.

A file is complete or absent: written beside under a temporary name, synced, renamed, the folder synced; only then are
older ones deleted. What killed runs left half-written is removed when the next one begins.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from model_store.errors import CheckpointError, StoreError
from model_store.locks import lock
from trainer.checkpoint import file
from trainer.checkpoint.file import Arrays, Damaged

SUFFIX = ".checkpoint"
DAMAGED = ".damaged"
KEPT = 3
_BEGUN = ".begun"
_LOCK = "lock"
_DIGITS = 15


class CheckpointFolder:
    """A folder that is locked while it is open. Raises CheckpointError if another run has it, or it cannot be made."""

    def __init__(self, path: Path, on_note: Callable[[str], None]) -> None:
        self.path = path
        self._on_note = on_note
        self._lock = _hold(path)
        for left in path.glob(f"*{_BEGUN}"):
            left.unlink()

    def write(self, rows: int, description: Mapping[str, Any], arrays: Arrays) -> Path:
        """Write the checkpoint of a run that has learned from `rows` rows, then delete all but the newest KEPT.

        Raises OSError, and leaves the older ones as they are, if it cannot be written.
        """
        path = self.path / f"{rows:0{_DIGITS}}{SUFFIX}"
        begun = path.with_suffix(_BEGUN)
        try:
            with begun.open("wb") as out:
                file.write(out, description, arrays)
                out.flush()
                os.fsync(out.fileno())
            begun.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                begun.unlink(missing_ok=True)
            raise
        _sync(self.path)
        self._delete_old()
        return path

    def newest(self) -> tuple[Path, dict[str, Any], Arrays, int] | None:
        """The newest sound checkpoint: file, description, arrays, and how many newer ones are damaged; None of none.

        A damaged one is told of and set aside under another name, once a sound one is found. CheckpointError if all
        are damaged.
        """
        damaged: list[Damaged] = []
        paths = checkpoints_in(self.path)
        for path in paths:
            try:
                description, arrays = file.read(path)
            except Damaged as error:
                self._on_note(f"{error}; trying the checkpoint before it")
                damaged.append(error)
                continue
            for bad in paths[: len(damaged)]:
                bad.replace(bad.with_suffix(SUFFIX + DAMAGED))
            return path, description, arrays, len(damaged)
        if damaged:
            raise CheckpointError(
                f"all {len(damaged)} checkpoints in {self.path} are damaged ({damaged[0]}); "
                "begin anew with another folder"
            )
        return None

    def close(self) -> None:
        """Let another run have the folder. May be called twice."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> CheckpointFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _delete_old(self) -> None:
        for path in checkpoints_in(self.path)[KEPT:]:
            try:
                path.unlink()
            except OSError as error:
                self._on_note(f"the old checkpoint {path} cannot be deleted: {error.strerror}")


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first."""
    return sorted(folder.glob(f"{'[0-9]' * _DIGITS}{SUFFIX}"), reverse=True)


def _hold(path: Path) -> int:
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        return lock(path / _LOCK, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CheckpointError(
            f"{path} is in use by another run; wait for it to end, or give this one another folder"
        ) from None
    except (OSError, StoreError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it must be writable"
        raise CheckpointError(f"the folder {path} cannot be used for checkpoints: {reason}") from error


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
