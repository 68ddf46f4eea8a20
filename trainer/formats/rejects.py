"""Rejected rows: the record of one, the log that counts and lists them, and the share that prevents publishing.

Readers reject rows that they cannot parse, `trainer.examples` those that it cannot learn from.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from types import TracebackType
from typing import TextIO

from model_store.errors import InputError, OutputError, counted

MOST_REJECTED = 0.1
"""A model is not published where a larger part of its rows was rejected."""
_FIRST_REASONS = 3


@dataclass(frozen=True, slots=True)
class Reject:
    """One bad row.

    line: the 1-based physical line on which the row starts (Parquet: the row's number). reason: "category: detail",
    such as "wrong number of columns: got 3, expected 5"; rejects are counted by category.
    """

    file: str
    line: int
    reason: str

    @property
    def category(self) -> str:
        """The reason without its detail."""
        return self.reason.partition(":")[0]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


class RejectLog:
    """Counts rejects and writes them, in order of arrival, as JSON lines `{"file", "line", "reason"}`.

    Each line is flushed, so the file can be followed while training runs. With `strict` the first reject raises
    InputError after it was written. A resumed run passes its `counts`, and a file that is truncated to `resume_at`
    bytes. first: the first reject of each of the first three categories. For one thread.
    """

    def __init__(
        self,
        path: Path | None = None,
        strict: bool = False,
        *,
        counts: Mapping[str, int] | None = None,
        resume_at: int = 0,
    ) -> None:
        self.path = path
        self._strict = strict
        self._counts: Counter[str] = Counter(counts or {})
        self.first: list[Reject] = []
        self._file = _open(path, resume_at)

    @property
    def count(self) -> int:
        """Rejects so far."""
        return self._counts.total()

    @property
    def counts(self) -> Mapping[str, int]:
        """Rejects so far by category, most frequent first."""
        return dict(self._counts.most_common())

    @property
    def reasons(self) -> list[str]:
        """The first rejects, for a message; the categories if only their numbers are known."""
        return [str(each) for each in self.first] or list(self._counts)

    @property
    def counts_as_met(self) -> Mapping[str, int]:
        """The same in order of first occurrence, which two runs over the same rows agree on."""
        return dict(self._counts)

    def sync(self) -> int:
        """Sync the file to disk; returns its size, 0 for a pipe or without a file."""
        if self._file is None or self.path is None or not self.path.is_file():
            return 0
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise OutputError(f"cannot write the rejects to {self.path}: {error.strerror}") from error
        return self._file.tell()

    def add(self, reject: Reject) -> None:
        """Count and write one reject; InputError if strict, OutputError if it cannot be written."""
        if not self._counts[reject.category] and len(self.first) < _FIRST_REASONS:
            self.first.append(reject)
        self._counts[reject.category] += 1
        if self._file is not None:
            row = {"file": reject.file, "line": reject.line, "reason": reject.reason}
            self._write(json.dumps(row) + "\n")
        if self._strict:
            raise InputError(f"{reject} (stopped at the first bad row because of --strict)")

    def add_all(self, rejects: Iterable[Reject]) -> None:
        """Add the rejects of one batch, sorted by line."""
        for reject in sorted(rejects, key=lambda each: each.line):
            self.add(reject)

    def add_unlisted(self, counts: Mapping[str, int]) -> None:
        """Count rejects by category that are known by their number alone."""
        self._counts.update(counts)

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._file is not None:
            self._file.close()

    def _write(self, line: str) -> None:
        assert self._file is not None
        try:
            self._file.write(line)
        except OSError as error:
            name, failed, self._file = self._file.name, self._file, None
            with contextlib.suppress(OSError):  # closing tries to write again
                failed.close()
            raise OutputError(f"cannot write the rejects to {name}: {error.strerror}") from error

    def __enter__(self) -> RejectLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def no_readable_row(names: str, rejects: Iterable[Reject]) -> InputError:
    """The error for a log without a row, with the reasons."""
    log = RejectLog()
    for reject in rejects:
        log.add(reject)
    why = f": {counted(log.count, 'row')} rejected, such as {'; '.join(log.reasons)}" if log.count else ""
    return InputError(f"{names} has no readable row{why}")


def no_usable_row(use: str, rejected: int, reasons: Iterable[str], more: str = "") -> str:
    """What is said where not one row was good for its `use`: "learned from", "judged"."""
    why = "; ".join(reasons)
    return f"no row could be {use} ({rejected:,} rejected{more}{f': {why}' if why else ''})"


@dataclass(frozen=True)
class RowCounts:
    """Outcomes of the rows of a batch, or of all batches of a run and of those it resumes.

    rows_read: rows that could be read, learned from or not; subsampled: those of them that were not drawn;
    minus_labels: examples whose label is written as -1; doubled: rows that are two examples (input.views).
    """

    rows_read: int = 0
    subsampled: int = 0
    minus_labels: int = 0
    doubled: int = 0

    def __add__(self, other: RowCounts) -> RowCounts:
        return RowCounts(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    def rejected_share(self, examples: int, rejected: int) -> float:
        """The share of rejected rows: unreadable ones of all rows, bad ones of those that were drawn."""
        good = examples - self.doubled
        bad = self.rows_read - self.subsampled - good
        return 1.0 - _share(self.rows_read, rejected - bad) * _share(good, bad)


def _share(part: int, rest: int) -> float:
    return part / (part + rest) if part + rest else 1.0


def too_many_rejected(share: float, rejected: int, reasons: Iterable[str], remedy: str) -> str:
    """Why nothing is published with this share of rejected rows, in one sentence; empty if publishing is allowed."""
    if share <= MOST_REJECTED:
        return ""
    return (
        f"{rejected:,} rows were rejected, {100 * share:.3g} % of those read: nothing is published where more than "
        f"{100 * MOST_REJECTED:.0f} % are ({'; '.join(reasons)}). Correct the log or the spec ({remedy}), or publish "
        "all the same with --force"
    )


def _open(path: Path | None, resume_at: int) -> TextIO | None:
    if path is None:
        return None
    try:
        if not resume_at:
            return path.open("w", encoding="utf-8", buffering=1)
        there = path.stat().st_size
        if there < resume_at:
            raise OutputError(
                f"{path} has {there} bytes, the checkpoint knows {resume_at}: it is not the file that the run began; "
                "restore it, or list the rejects in another file from here on"
            )
        os.truncate(path, resume_at)
        return path.open("a", encoding="utf-8", buffering=1)
    except OSError as error:
        raise OutputError(f"cannot write the rejects to {path}: {error.strerror}") from error
