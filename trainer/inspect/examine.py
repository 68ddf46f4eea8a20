"""Reads a log once and finds what is wrong with it for learning.

In: a `Log`, of rows or of events, and a spec or None. Out: a `Diagnosis`. The first rows are kept until it is known
what the columns are; then every batch passes all checks. Memory is bounded: see the checks.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from model_store.errors import InputError
from model_store.spec.spec import ModelSpec
from trainer.events.columns import POSITION, PROPENSITY
from trainer.events.events import Chunk
from trainer.examples.event_log import EventLog
from trainer.examples.open_log import Log
from trainer.examples.requests import request_ids
from trainer.examples.side_tables import joined
from trainer.formats.batch import RowBatch
from trainer.formats.csv import Header
from trainer.formats.dialect import Dialect
from trainer.formats.reader import EVENTS, LogReader
from trainer.formats.rejects import no_readable_row
from trainer.formats.streams import is_pipe
from trainer.formats.tables import NAME, TableReader
from trainer.inspect.column_checks import column_findings
from trainer.inspect.columns import FEWEST_VALUES, VALUES, ColumnCounts, Rows
from trainer.inspect.event_checks import EventChecks
from trainer.inspect.events import columns_of, guesses_of, profile_of_rows, spec_of
from trainer.inspect.findings import Diagnosis, Finding, in_order, listed
from trainer.inspect.guesses import Guess
from trainer.inspect.profiles import SAMPLE_ROWS, Profile, Sample, profile_of
from trainer.inspect.roles import Places, Roles, roles_by_guess, roles_by_spec, roles_of_guesses
from trainer.inspect.row_checks import Labels, Positions, Propensities, Rejected, Repeated
from trainer.inspect.sketches import UInt64s
from trainer.inspect.times import Times
from trainer.output import SILENT, Output
from trainer.sources.kinds import kind_of

_BATCH_BYTES = 4 << 20
_FIRST_ROWS, _MOST_ROWS = 1 << 10, 1 << 14
_BLOCK = 256
"""Consecutive rows that are in one half of a log without requests."""
_VALUES_OF_ALL = 1 << 20


def examine(
    log: Log,
    spec: ModelSpec | None = None,
    label: str | None = None,
    output: Output = SILENT,
    most_rows: int | None = None,
) -> Diagnosis:
    """Examine a log. label: the column that is the label, where no spec says it. most_rows: about so many are read.

    Raises SpecError if no column can be told to be the label, or the log lacks a column of the spec's [input];
    InputError for a log that cannot be read, or has no row.
    """
    began = time.monotonic()
    with ExitStack() as stack:
        source = _opened(log, spec, label, stack)
        checks = source.checks(label)
        with output.progress("examining") as progress:
            for batch in source.batches():
                checks.add(batch)
                progress.update(checks.rows, total=source.expected_rows(checks.rows))
                if most_rows is not None and checks.rows >= most_rows:
                    break
    found = [*checks.findings(), *(source.events.findings() if source.events is not None else ())]
    return Diagnosis(
        inputs=source.names,
        rows=checks.rows,
        rejected=checks.rejected.count,
        columns=len(checks.columns),
        clicks=checks.labels.clicks,
        views=checks.labels.views,
        seconds=time.monotonic() - began,
        roles=checks.roles.named,
        is_guessed=spec is None,
        findings=in_order(found),
    )


def without_leaks(guesses: Sequence[Guess], log: Log, label: str | None) -> tuple[Guess, ...]:
    """The guesses, where a field that tells the label in the first rows is ignored, and one that may do so warned of.

    A log that can be read only once is not looked at again.
    """
    if any(map(is_pipe, log.inputs)) or (log.table is not None and log.table.rows is None):
        return tuple(guesses)
    found = examine(replace(log, on_note=lambda text: None), None, label, most_rows=SAMPLE_ROWS)
    leaks = {finding.columns[0]: finding for finding in found.of_check("label-leak")}
    return tuple(
        _without_leak(guess, leaks[guess.name]) if guess.role == "field" and guess.name in leaks else guess
        for guess in guesses
    )


def _without_leak(guess: Guess, leak: Finding) -> Guess:
    if leak.severity == "error":
        return replace(guess, role="ignore", why=leak.message, warning=f"{leak.message}: it is left out")
    return replace(guess, warning=f"{leak.message}: leave it out, unless it is known before the click")


class _Source:
    """An open log: its columns, and its batches, the first of which are looked at before."""

    def __init__(
        self,
        log: Log,
        reader: Any,
        columns: Sequence[str],
        spec: ModelSpec | None,
        events: EventChecks | None = None,
        guessed_events: tuple[ModelSpec, Any] | None = None,
    ) -> None:
        self.names = tuple(log.inputs) or (NAME,)
        self.events = events
        self._reader, self._spec, self._guessed = reader, spec, guessed_events
        self._kinds = dict(reader.kinds())  # a reader that has ended does not know them
        in_tables = [name for table in log.tables for name in table.columns]
        keys = [table.key for table in log.tables]
        own = tuple(dict.fromkeys([*columns, *keys]))
        self._columns = tuple(dict.fromkeys([*own, *in_tables]))
        self._batches = joined(reader.batches(own), log.tables, self._columns, log.on_note)
        self._first: list[RowBatch] = []

    def checks(self, label: str | None) -> _Checks:
        """The checks to make, by the first rows."""
        taken = 0
        for batch in self._batches:
            self._first.append(batch)
            taken += batch.rows
            if taken >= SAMPLE_ROWS:
                break
        filled = [batch for batch in self._first if batch.rows]
        if not filled:
            raise no_readable_row(
                ", ".join(self.names), (each for batch in self._first for each in batch.rejects)
            )
        roles = self._roles(filled, label)
        checks = _Checks(roles, self._columns, self.events is not None)
        for name, counts in checks.columns.items():
            counts.look(_beginning(filled, name))
        return checks

    def batches(self) -> Iterator[RowBatch]:
        """All batches, in pieces of so many rows as can be looked at together."""
        size = _FIRST_ROWS
        for batch in itertools.chain(self._first, self._batches):
            if not batch.rows:
                yield batch
            first = 0
            while first < batch.rows:
                yield _piece(batch, first, size)
                first, size = first + size, min(2 * size, _MOST_ROWS)

    def expected_rows(self, rows: int) -> int | None:
        """An estimate of the log's rows once `rows` were taken; None for standard input."""
        total, read = self._reader.total_bytes, self._reader.bytes_read()
        return int(rows * total / read) if total and read else None

    def _roles(self, first: Sequence[RowBatch], label: str | None) -> Roles:
        profiles = self._profiles(first)
        if self._spec is not None:
            return roles_by_spec(self._spec, self._columns, profiles)
        if self._guessed is not None:
            spec, seen = self._guessed
            of_guess = [each for each in profiles if not each.name.startswith("@")]
            return roles_of_guesses(guesses_of(of_guess, spec, seen), of_guess, self._columns)
        return roles_by_guess(Sample(tuple(profiles), self._reader.columns_without_header is None), label)

    def _profiles(self, first: Sequence[RowBatch]) -> list[Profile]:
        profiles = []
        for name in self._columns:
            values: list[Any] = []
            for batch in first:
                values += batch.columns[name].slice(0, SAMPLE_ROWS - len(values)).to_pylist()
            if self.events is not None:
                profiles.append(profile_of_rows(name, values))
            else:
                profiles.append(profile_of(name, values, self._kinds.get(name, "category")))
        return profiles


def _opened(log: Log, spec: ModelSpec | None, label: str | None, stack: ExitStack) -> _Source:
    if log.table is not None:
        table = TableReader(log.table, batch_bytes=_BATCH_BYTES, on_note=log.on_note)
        stack.enter_context(table)
        return _Source(log, table, table.columns(), spec)
    wanted = spec.input.label if spec is not None else label
    if kind_of(log.inputs, wanted, log.format) == EVENTS:
        return _opened_events(log, spec, stack)
    header = Header(
        spec.input.columns if spec is not None else None,
        log.no_header,
        frozenset(filter(None, [wanted])),
        any_label=spec is None or spec.input.positive is not None,
        dialect=Dialect.of(spec.input) if spec is not None else log.dialect,
    )
    reader = LogReader(
        log.inputs, format=log.format, batch_bytes=_BATCH_BYTES, on_note=log.on_note, header=header
    )
    stack.enter_context(reader)
    reader.note_left_out()
    return _Source(log, reader, reader.columns(), spec)


def _opened_events(log: Log, spec: ModelSpec | None, stack: ExitStack) -> _Source:
    if log.no_header:
        raise InputError(f"--no-header is for CSV and TSV; {log.inputs[0]} holds events, which are JSON")
    watched: list[EventChecks] = []

    def watch(source: str, chunk: Chunk) -> None:
        watched[0].watch(source, chunk)

    reader = stack.enter_context(EventLog(log.inputs, on_chunk=watch))
    seen = reader.features_seen()
    first = spec if spec is not None else spec_of(seen, reader.columns())
    guessed = first if spec is None else None
    resolved = reader.resolve(first, {})
    watched.append(EventChecks(resolved, reader.files))
    if guessed is not None:
        columns = columns_of(guessed, seen)
    else:
        columns = [*resolved.input.named_columns, *resolved.wanted_columns()]
    columns = list(dict.fromkeys([*columns, POSITION, PROPENSITY]))
    return _Source(
        log,
        reader,
        columns,
        None if spec is None else resolved,
        watched[0],
        None if guessed is None else (guessed, seen),
    )


def _beginning(batches: Sequence[RowBatch], name: str) -> Any:
    """The first rows of a column; of the first batch only where the others have another type."""
    parts = [batch.columns[name] for batch in batches]
    parts = [part for part in parts if part.type == parts[0].type]
    return pa.concat_arrays(parts).slice(0, SAMPLE_ROWS)


def _piece(batch: RowBatch, first: int, size: int) -> RowBatch:
    if first == 0 and size >= batch.rows:
        return batch
    columns = {name: column.slice(first, size) for name, column in batch.columns.items()}
    lines = batch.lines[first : first + size]
    return replace(
        batch, columns=columns, lines=lines, rows=lines.size, rejects=batch.rejects if first == 0 else ()
    )


class _Checks:
    """All checks of a log's rows."""

    def __init__(self, roles: Roles, names: Sequence[str], is_of_events: bool) -> None:
        capacity = min(VALUES, max(FEWEST_VALUES, _VALUES_OF_ALL // max(len(names), 1)))
        self.roles = roles
        self.rows = 0
        self.columns = {name: ColumnCounts(name, capacity) for name in names}
        self.labels, self.rejected = Labels(roles), Rejected()
        self._repeated = Repeated(roles, is_of_events)
        self._places = Places()
        self._is_of_events = is_of_events
        self._times = None if roles.timestamp is None else Times(roles.timestamp, roles.time_form)
        self._propensities = None if roles.propensity is None else Propensities(roles)
        self._positions = None if roles.position is None else Positions(roles)

    def add(self, batch: RowBatch) -> None:
        """Check the next rows."""
        self.rejected.add(batch.rejects)
        if not batch.rows:
            return
        marks = self._places.first_mark(batch.file) + batch.lines
        views, clicks = self.labels.of(batch, marks)
        rows = Rows(batch.rows, self.rows, marks, views, clicks, self._half(batch))
        hashes: dict[str, UInt64s] = {}
        for name, counts in self.columns.items():
            hashes[name] = counts.add(batch.columns[name], rows)
        self._repeated.add(hashes, marks, len(self._places.files))
        if self._times is not None:
            times = self._times.parsed(batch.columns[self._times.column], marks)
            good = self._times.add(times, marks, str(len(self._places.files)))
            self._times.add_days(times, good, rows)
        if self._propensities is not None:
            self._propensities.add(batch.columns, hashes, marks)
        if self._positions is not None:
            self._positions.add(batch.columns, rows)
        self.rows += batch.rows

    def findings(self) -> Iterator[Finding]:
        """The findings of all checks."""
        yield from self.rejected.findings(self.rows)
        if self.roles.missing:
            yield Finding(
                "warning",
                "missing-columns",
                f"the log lacks {listed(self.roles.missing)}, which the spec's fields read",
                "give the files that have them, --items or --users; or make the fields optional = true",
                count=len(self.roles.missing),
                of=len(self.roles.fields) + len(self.roles.missing),
                unit="columns",
                columns=self.roles.missing,
            )
        yield from self.labels.findings(self._places)
        yield from column_findings(list(self.columns.values()), self.roles, self._places)
        yield from self._repeated.findings(self.columns, self._places)
        if self._times is not None:
            days_only = self._is_of_events  # the events' own order is checked before they are joined
            yield from self._times.findings_on_days() if days_only else self._times.findings(self._places)
        if self._propensities is not None:
            yield from self._propensities.findings(self._places)
        if self._positions is not None:
            yield from self._positions.findings()

    def _half(self, batch: RowBatch) -> Any:
        """Which half of the log each row is in: whole requests, or blocks of rows."""
        if self.roles.request is not None:
            ids = request_ids(batch, self.roles.request)
            return (ids >> np.uint64(20)) & np.uint64(1) == 1
        order = np.arange(self.rows, self.rows + batch.rows)
        return (order // _BLOCK) % 2 == 1
