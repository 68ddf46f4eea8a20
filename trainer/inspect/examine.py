"""Reads a log once and finds what is wrong with it for learning.

In: a `Log`, of rows or of events, and a spec or None. Out: a `Diagnosis`; and what the columns are guessed to be, of
which `ftrie init` makes a spec. The first rows are kept until it is known what the columns are; then every batch passes
all checks. Memory is bounded: see the checks.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from model_store.errors import InputError
from model_store.spec.sections import FieldSpec
from model_store.spec.spec import ModelSpec
from trainer.events.columns import POSITION, PROPENSITY
from trainer.events.events import Chunk
from trainer.examples.joined import EventLog
from trainer.examples.open_log import Log
from trainer.examples.requests import request_ids
from trainer.examples.side_tables import joined
from trainer.formats.batch import RowBatch
from trainer.formats.dialect import Dialect
from trainer.formats.reader import EVENTS, LogReader
from trainer.formats.rejects import RejectLog, no_readable_row
from trainer.formats.row_file import Header
from trainer.formats.tables import NAME, TableReader
from trainer.inspect.checks import (
    Labels,
    Positions,
    Propensities,
    RepeatedRows,
    check_columns,
    check_rejects,
)
from trainer.inspect.columns import FEWEST_VALUES, VALUES, CheckedRows, ColumnCounts
from trainer.inspect.event_checks import EventChecks, Times
from trainer.inspect.findings import Diagnosis, Findings, Places, listed
from trainer.inspect.guesses import (
    Guess,
    guess_events,
    guess_log,
    guesses_of,
    spec_of,
)
from trainer.inspect.profiles import SAMPLE_ROWS, LogSample, profile_of
from trainer.inspect.roles import Roles, roles_by_guess, roles_by_spec, roles_of_guesses
from trainer.output import SILENT, Output
from trainer.sources.open_sources import kind_of

_BATCH_BYTES = 4 << 20
_FIRST_ROWS, _MOST_ROWS = 1 << 10, 1 << 14
_BLOCK = 256
"""Consecutive rows that are in one half of a log without requests."""
_VALUES_OF_ALL = 1 << 20


def examine(
    log: Log, spec: ModelSpec | None = None, label: str | None = None, output: Output = SILENT
) -> Diagnosis:
    """Examine a log. label: the column that is the label, where no spec says it.

    Raises SpecError if no column can be told to be the label, or the log lacks a column of the spec's [input];
    InputError for a log that cannot be read, or has no row.
    """
    # What is remarkable in the files of events is a finding.
    with opened_source(log, spec, label, on_event_note=lambda text: None) as source:
        return source.examine(output)


@contextmanager
def opened_source(
    log: Log, spec: ModelSpec | None, label: str | None, on_event_note: Callable[[str], None] | None = None
) -> Iterator[InspectedLog]:
    """A log of rows or of events, opened to be guessed or examined, or both. Raises as `examine`."""
    wanted = spec.input.label if spec is not None else label
    with ExitStack() as stack:
        if log.table is not None:
            table = TableReader(log.table, batch_bytes=_BATCH_BYTES, on_note=log.on_note)
            stack.enter_context(table)
            yield InspectedLog(log, table, table.columns(), spec, label)
        elif kind_of(log.inputs, wanted, log.format) == EVENTS:
            yield _opened_events(log, spec, stack, on_event_note or log.on_note)
        else:
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
            yield InspectedLog(log, reader, reader.columns(), spec, label)


def _opened_events(
    log: Log, spec: ModelSpec | None, stack: ExitStack, on_note: Callable[[str], None]
) -> InspectedLog:
    if log.no_header:
        raise InputError(f"--no-header is for CSV and TSV; {log.inputs[0]} holds events, which are JSON")
    watched: list[EventChecks] = []

    def watch(source: str, chunk: Chunk) -> None:
        watched[0].watch(source, chunk)

    reader = stack.enter_context(EventLog(log.inputs, on_note, on_chunk=watch))
    seen = reader.features_seen()
    given = spec if spec is not None else spec_of(seen, reader.columns())
    resolved = reader.resolve(given, {})
    watched.append(EventChecks(resolved, reader.files))
    read = seen if spec is None else resolved.wanted_columns()
    columns = list(dict.fromkeys([*resolved.input.named_columns, *read, POSITION, PROPENSITY]))
    if spec is not None:
        return InspectedLog(log, reader, columns, resolved, events=watched[0])
    return InspectedLog(log, reader, columns, None, events=watched[0], seen=(given, seen))


class InspectedLog:
    """An open log: what its first rows say of its columns, and its batches.

    events: the checks on its events; seen: of events without a spec, a spec that reads all features, and these.
    """

    def __init__(
        self,
        log: Log,
        reader: Any,
        columns: Sequence[str],
        spec: ModelSpec | None,
        label: str | None = None,
        *,
        events: EventChecks | None = None,
        seen: tuple[ModelSpec, Mapping[str, FieldSpec]] | None = None,
    ) -> None:
        self.names = tuple(log.inputs) or (NAME,)
        self._reader, self._spec, self._label, self._events, self._seen = reader, spec, label, events, seen
        self._kinds = dict(reader.kinds())  # a reader that has ended does not know them
        parents = {name.rpartition(".")[0] for name in columns if events is None} - {""}
        self._objects = frozenset(name for name in parents if reader.may_have(name))
        in_tables = [name for table in log.tables for name in table.columns]
        keys = [table.key for table in log.tables]
        own = tuple(dict.fromkeys([*columns, *keys]))
        self._columns = tuple(dict.fromkeys([*own, *in_tables]))
        self._batches = joined(reader.batches(own), log.tables, self._columns, log.on_note)

    @cached_property
    def _first(self) -> list[RowBatch]:
        """The batches of the first rows."""
        found, rows = list[RowBatch](), 0
        for batch in self._batches:
            found.append(batch)
            rows += batch.rows
            if rows >= SAMPLE_ROWS:
                break
        return found

    @cached_property
    def sample(self) -> LogSample:
        """The columns in the first rows. Raises InputError if there are none."""
        if not any(batch.rows for batch in self._first):
            rejects = [each for batch in self._first for each in batch.rejects]
            if self._events is not None and not rejects:
                raise InputError(
                    f"{', '.join(self.names)}: no impression shows an item; of views alone docs/decide.md has a spec"
                )
            raise no_readable_row(", ".join(self.names), rejects)
        profiles = []
        for name in self._columns:
            values: list[Any] = []
            for batch in self._first:
                values += batch.columns[name].slice(0, SAMPLE_ROWS - len(values)).to_pylist()
            profiles.append(profile_of(name, values, self._kinds.get(name, "category")))
        has_header = self._events is not None or self._reader.columns_without_header is None
        return LogSample(tuple(profiles), has_header, self._objects, getattr(self._reader, "dialect", {}))

    def guesses(self) -> tuple[Guess, ...]:
        """What every column is, by the first rows. Raises InputError, SpecError if none can be the label."""
        if self._seen is None:
            return guess_log(self.sample, self._label)
        return guess_events(self.sample.profiles, *self._seen)

    def examine(self, output: Output = SILENT, most_rows: int | None = None) -> Diagnosis:
        """Examine the log. most_rows: read no more than about this number."""
        began = time.monotonic()
        checks = self._checks()
        with output.progress("examining") as progress:
            for batch in self._pieces():
                checks.add(batch)
                total, read = self._reader.total_bytes, self._reader.bytes_read()
                expected = int(checks.rows * total / read) if total and read else None
                progress.update(checks.rows, total=expected)
                if most_rows is not None and checks.rows >= most_rows:
                    break
        found = Findings(checks.places)
        checks.find(found)
        if self._events is not None:
            found.places = self._events.places
            self._events.find(found)
        findings = found.in_order()
        is_biased = any(each.check == "position-bias" for each in findings)
        return Diagnosis(
            inputs=self.names,
            rows=checks.rows,
            rejected=checks.rejected.count,
            columns=len(checks.columns),
            clicks=checks.labels.clicks,
            views=checks.labels.views,
            seconds=time.monotonic() - began,
            roles=checks.roles.named,
            is_guessed=self._spec is None,
            findings=findings,
            examination=checks.positions.examined() if checks.positions and is_biased else (),
        )

    def _checks(self) -> _Checks:
        """The checks to make, by the first rows."""
        sample = self.sample
        if self._spec is not None:
            roles = roles_by_spec(self._spec, self._columns, sample.profiles)
        elif self._seen is not None:
            guesses = guesses_of(sample.profiles, *self._seen)
            roles = roles_of_guesses(guesses, [each.profile for each in guesses], self._columns)
        else:
            roles = roles_by_guess(sample, self._label)
        checks = _Checks(roles, self._columns, self._events is not None)
        filled = [batch for batch in self._first if batch.rows]
        for name, counts in checks.columns.items():
            # Of the first batch only where the others have another type.
            parts = [batch.columns[name] for batch in filled]
            parts = [part for part in parts if part.type == parts[0].type]
            counts.look(pa.concat_arrays(parts).slice(0, SAMPLE_ROWS))
        return checks

    def _pieces(self) -> Iterator[RowBatch]:
        """All batches, in pieces small enough to be examined at once."""
        size = _FIRST_ROWS
        for batch in itertools.chain(self._first, self._batches):
            if not batch.rows:
                yield batch
            first = 0
            while first < batch.rows:
                yield batch.part(first, first + size) if first or size < batch.rows else batch
                first, size = first + size, min(2 * size, _MOST_ROWS)


def without_leaks(guesses: Sequence[Guess], found: Diagnosis) -> tuple[Guess, ...]:
    """The guesses, where a field that tells the label is ignored, and one that may do so warned of."""
    leaks = {finding.columns[0]: finding for finding in found.of_check("label-leak")}
    kept = list[Guess]()
    for guess in guesses:
        leak = leaks.get(guess.name) if guess.role == "field" else None
        if leak is not None and leak.severity == "error":
            warning = f"{leak.message}: it is left out"
            guess = replace(guess, role="ignore", why=leak.message, warning=warning)
        elif leak is not None:
            warning = f"{leak.message}: leave it out, unless it is known before the click"
            guess = replace(guess, warning=warning)
        kept.append(guess)
    return tuple(kept)


class _Checks:
    """All checks of a log's rows."""

    def __init__(self, roles: Roles, names: Sequence[str], is_of_events: bool) -> None:
        capacity = min(VALUES, max(FEWEST_VALUES, _VALUES_OF_ALL // max(len(names), 1)))
        self.roles = roles
        self.rows = 0
        self.columns = {name: ColumnCounts(name, capacity) for name in names}
        self.labels, self.rejected = Labels(roles), RejectLog()
        self.places = Places()
        self._others: list[RepeatedRows | Times | Propensities | Positions] = [
            RepeatedRows(roles, self.columns, is_of_events)
        ]
        if roles.timestamp is not None:
            self._others.append(Times(roles.timestamp, roles.time_form, joined=is_of_events))
        if roles.propensity is not None:
            self._others.append(Propensities(roles))
        self.positions = Positions(roles) if roles.position is not None else None
        if self.positions is not None:
            self._others.append(self.positions)

    def add(self, batch: RowBatch) -> None:
        """Check the next rows."""
        for reject in batch.rejects:
            self.rejected.add(reject)
        if not batch.rows:
            return
        marks = self.places.first_mark(batch.file) + batch.lines
        views, clicks = self.labels.of(batch, marks)
        judged = views, clicks, self._half(batch)
        of_batch: dict[str, Any] = {"columns": batch.columns, "file": len(self.places.files)}
        rows = CheckedRows(batch.rows, self.rows, marks, *judged, **of_batch)
        for name, counts in self.columns.items():
            rows.hashes[name] = counts.add(batch.columns[name], rows)
        for check in self._others:
            check.add(rows)
        self.rows += batch.rows

    def find(self, found: Findings) -> None:
        """The findings of all checks."""
        check_rejects(self.rejected, self.rows, found)
        if missing := self.roles.missing:
            message = f"the log lacks {listed(missing)}, which the spec's fields read"
            remedy = "give the files that have them, --items or --users; or make the fields optional = true"
            more: dict[str, Any] = {"count": len(missing), "of": len(self.roles.fields) + len(missing)}
            found.add("warning", "missing-columns", message, remedy, unit="columns", columns=missing, **more)
        self.labels.find(found)
        check_columns(list(self.columns.values()), self.roles, found)
        for check in self._others:
            check.find(found)

    def _half(self, batch: RowBatch) -> Any:
        """Which half of the log each row is in: whole requests, or blocks of rows."""
        if self.roles.request is not None:
            ids = request_ids(replace(batch, first_row=0), self.roles.request)  # each piece numbers its own
            return (ids >> np.uint64(20)) & np.uint64(1) == 1
        order = np.arange(self.rows, self.rows + batch.rows)
        return (order // _BLOCK) % 2 == 1
