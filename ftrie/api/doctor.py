"""`ftrie.doctor`: checks a log or a table for problems, as `ftrie doctor` does."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Any, Unpack

import pyarrow as pa

from ftrie.api.data import Data, Log, log_of
from ftrie.api.output import LibraryOutput, names_arguments
from ftrie.api.spec import Spec, spec_of
from ftrie.draw.notebook import html_table, paragraph
from model_store.errors import UsageError
from trainer.inspect.examine import examine
from trainer.inspect.findings import Diagnosis as Examined
from trainer.inspect.findings import Finding

# Declared: rows that are absent, or all null, would give no types.
_TABLE = pa.schema(
    [
        pa.field("severity", pa.string()),
        pa.field("check", pa.string()),
        pa.field("columns", pa.list_(pa.string())),
        pa.field("count", pa.int64()),
        pa.field("of", pa.int64()),
        pa.field("unit", pa.string()),
        pa.field("is_estimate", pa.bool_()),
        pa.field("message", pa.string()),
        pa.field("example", pa.string()),
        pa.field("where", pa.string()),
        pa.field("remedy", pa.string()),
    ]
)


class Diagnosis:
    """What was found, the most severe first. Iterating gives the findings.

    findings, errors, warnings: tuples of findings, each with `severity`, `check`, `columns`, `count`, `of`, `unit`,
    `message`, `example`, `where` and `remedy`. rows, rejected, columns: what was read. roles: what the columns were
    taken for. examination: how often people look at each position, with `position`, `views`, `clicks`, and with their
    intervals `theta` and `swaps`; spec_fragment: the lines of a spec that learn from clicks as it says.
    """

    def __init__(self, examined: Examined) -> None:
        self._examined = examined
        self.findings: tuple[Finding, ...] = examined.findings
        self.rows, self.rejected, self.columns = examined.rows, examined.rejected, examined.columns
        self.roles: Mapping[str, str] = examined.roles
        self.examination = examined.examination
        self.spec_fragment = examined.spec_fragment if examined.examination else ""

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that learning should not begin with."""
        return self._examined.errors

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that make a model worse, or may."""
        return self._examined.warnings

    @cached_property
    def table(self) -> pa.Table:
        """The findings as an Arrow table, one a row; `.to_pandas()` makes a DataFrame of it."""
        rows = [{**asdict(each), "columns": list(each.columns)} for each in self.findings]
        return pa.Table.from_pylist(rows, schema=_TABLE)

    def of_check(self, check: str) -> tuple[Finding, ...]:
        """The findings of one check, such as "label-leak"; docs/doctor.md lists them."""
        return self._examined.of_check(check)

    def to_dict(self) -> dict[str, Any]:
        """What `ftrie doctor --json` prints."""
        return self._examined.as_dict()

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __repr__(self) -> str:
        return f"Diagnosis({self.rows:,} rows: {self._examined.verdict})"

    def _repr_html_(self) -> str:
        columns = ["severity", "check", "count", "what", "example", "what to do"]
        rows = [
            [
                each.severity,
                each.check,
                f"{'~' if each.is_estimate else ''}{each.count:,} of {each.of:,} {each.unit}",
                each.message,
                ": ".join(filter(None, (each.where, each.example))),
                each.remedy,
            ]
            for each in self.findings
        ]
        table = html_table(columns, rows) if rows else ""
        return paragraph(f"{self.rows:,} rows, {self.columns:,} columns: {self._examined.verdict}") + table


@names_arguments
def doctor(
    data: Data,
    spec: Spec | str | os.PathLike[str] | Mapping[str, Any] | None = None,
    label: str | None = None,
    *,
    progress: bool = True,
    **log: Unpack[Log],
) -> Diagnosis:
    """Check a log or a table for problems before it is learned, in one pass and bounded memory.

    spec: what the columns are; None guesses it as `Spec.infer` does. label: the label, if it is guessed wrong. items,
    users: features that the log lacks, joined by the ids that the spec names. Raises SpecError if no column can be
    recognised as the label, InputError for data that cannot be read.
    """
    given = spec_of(spec).model_spec if spec is not None else None
    if given is not None and label is not None:
        raise UsageError("label belongs to data without a spec, which names the label")
    if given is None and (log.get("items") is not None or log.get("users") is not None):
        raise UsageError("items and users need a spec, which names the columns of their ids")
    opened = log_of(data, given.input if given is not None else None, **log)
    return Diagnosis(examine(opened, given, label, LibraryOutput(progress)))
