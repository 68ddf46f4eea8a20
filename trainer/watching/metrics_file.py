"""The metrics file: JSON lines, appended and flushed as the run goes on. What stands in them is in `records.py`."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from model_store.errors import OutputError
from trainer.watching.records import Record


class MetricsFile:
    """Writes lines; knows where the lines end that a resumed run keeps.

    A new file replaces an old one. `resume_at` is the `offset` of a checkpoint: the file is cut back to it, so that it
    ends up as if the run had never stopped. Raises OutputError. One thread only.
    """

    def __init__(self, path: Path, resume_at: int = 0) -> None:
        self.path = path
        self.offset = resume_at
        try:
            self._file = path.open("r+b" if resume_at else "wb")
            if resume_at:
                self._cut_back()
        except OSError as error:
            raise OutputError(f"cannot write the metrics to {path}: {error.strerror}") from error

    def write(self, line: Record, *, keep: bool = True) -> None:
        """Append a line; `keep` moves `offset` behind it. The last lines of a run are not kept when it is resumed."""
        data = line.model_dump_json().encode() + b"\n"
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            with contextlib.suppress(OSError):  # closing tries to write what is left once more
                self._file.close()
            raise OutputError(f"cannot write the metrics to {self.path}: {error.strerror}") from error
        if keep:
            self.offset += len(data)

    def sync(self) -> None:
        """Have the lines on disk, so that a checkpoint may rely on `offset`."""
        with contextlib.suppress(OSError):  # a pipe or a terminal has no disk
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._file.close()

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cut_back(self) -> None:
        size = self._file.seek(0, 2)
        if size < self.offset:
            self._file.close()
            raise OutputError(
                f"{self.path} has {size} bytes, the checkpoint knows {self.offset}: it is not the file that the run "
                "began; give the same one, or another name without --resume"
            )
        self._file.seek(self.offset)
        self._file.truncate()
