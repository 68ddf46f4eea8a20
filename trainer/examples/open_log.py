"""Opens a log of labelled rows, or of events: the one way from files on disk to batches and hashed examples.

In: a `Log` (files, format, side tables) and the specs to read it by. Out: an `OpenLog` with the specs resolved against
the log's columns, its rows as batches, and its rows as hashed `Examples`, made by threads ahead of the learner.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from model_store.errors import InputError, SpecError, listed
from model_store.spec.sections import FieldSpec
from model_store.spec.spec import ModelSpec
from trainer.examples.derived import DerivedColumns, RowHistories, check_comparable
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.examples.joined import EventLog
from trainer.examples.learned import with_learned
from trainer.examples.requests import WholeRequests
from trainer.examples.side_tables import SideTable, joined
from trainer.formats.batch import Position, ReadFile, RowBatch
from trainer.formats.dialect import UNKNOWN, Dialect
from trainer.formats.reader import BATCH_BYTES, EVENTS, LogReader
from trainer.formats.rejects import RowCounts
from trainer.formats.row_file import Header
from trainer.formats.stored_rows import PIECE_ROWS, Blocks, CachedLog
from trainer.formats.streams import ReadTwice, Share, is_pipe, open_input
from trainer.formats.tables import Table, TableReader
from trainer.formats.times import Period
from trainer.sources.open_sources import kind_of

_POLL_S = 0.1
_READER_STOP_S = 2.0
_SPARE_BATCHES = (
    3  # so that one slow batch does not starve the learner; fewer cost a tenth of the speed on two cores
)


@dataclass(frozen=True)
class Log:
    """A log of labelled rows, as a command names it.

    inputs: files, globs, or - for standard input; format: one of FORMATS, or EVENTS, None to detect it; tables: the
    files of items and users to join; on_note: receives remarks for the user. About `batch_bytes` bytes of text make a
    batch. no_header: the first line of a CSV or TSV file is a row; dialect: of such files, if no spec says it. since,
    until: only rows from this time on, and before that one, become examples; the others still enter histories.
    table: rows in memory, in place of files; `inputs` is empty then. unlabelled: rows are only scored, so the columns
    of labels, weights and identities may be missing; they are null then.
    cache: a file that keeps the rows, and has them the next time (`CachedLog`); same_batches: in the same batches,
    on which a shard's order of keys depends.
    reader, readers: only every `readers`-th batch is parsed, from batch number `reader` on; the others are skipped.
    """

    inputs: Sequence[str]
    format: str | None = None
    tables: Sequence[SideTable] = ()
    on_note: Callable[[str], None] = lambda text: None
    batch_bytes: int = BATCH_BYTES
    reader: int = 0
    readers: int = 1
    no_header: bool = False
    dialect: Dialect = UNKNOWN
    since: str | None = None
    until: str | None = None
    table: Table | None = None
    unlabelled: bool = False
    cache: Path | None = None
    same_batches: bool = False


@dataclass(frozen=True)
class RunStart:
    """What all runs that continue one another share, and where the previous one stopped.

    spec: as given; resolved: against the first run's log; columns: those read from the log; sides: SHA-256 of the side
    tables' files, by table; initial: SHA-256 of the model that the first run started from. read: how far each file was
    read; counts, seconds: rows and duration of all the runs.
    """

    spec: ModelSpec
    resolved: ModelSpec
    columns: tuple[str, ...]
    sides: dict[str, str]
    initial: str | None = None
    read: tuple[ReadFile, ...] = ()
    counts: RowCounts = RowCounts()
    seconds: float = 0.0


@contextmanager
def open_log(
    log: Log, *specs: ModelSpec, start: RunStart | None = None, known: Sequence[ModelSpec] = ()
) -> Iterator[OpenLog]:
    """Open a log and resolve each spec against its columns, or continue it from `start`, which is resolved already.

    Fields that have yet to learn take over what they have learned in `known`, resolved specs, or learn it from the
    log's first rows, which are then read again. Raises SpecError where the log lacks a column that a spec requires,
    InputError for a missing or unreadable file.
    """
    open_file = open_input
    if start is None and any(spec.with_learned_of(known).has_to_learn for spec in specs):
        if log.format == EVENTS and (pipes := list(filter(is_pipe, log.inputs))):
            raise InputError(
                f"{pipes[0]} is a pipe, which can be read only once, and fields that learn from the first events need "
                "them a second time: give a file, or what the fields learn as `learned`"
            )
        open_file = ReadTwice().open
        with _opened(replace(log, cache=None), specs, None, known, open_file, keep=True) as opened:
            known = opened.learned()
        log = replace(log, on_note=lambda text: None)  # the notes on the first rows have been given
    with _opened(log, specs, start, known, open_file) as opened:
        yield opened


@contextmanager
def _opened(
    log: Log,
    specs: Sequence[ModelSpec],
    start: RunStart | None,
    known: Sequence[ModelSpec],
    open_file: Callable[[str], BinaryIO],
    keep: bool = False,
) -> Iterator[OpenLog]:
    with _reader(log, specs, start, open_file, keep) as reader:
        if start is None:
            starts = [_resolve(spec, reader, log) for spec in specs]
        elif isinstance(reader, TableReader):
            # The table has the rows after those that were learned, perhaps with other columns.
            now = _resolve(start.resolved, reader, log)
            starts = [replace(start, columns=now.columns, sides=now.sides)]
        else:
            starts = [start]
        starts = [replace(each, resolved=each.resolved.with_learned_of(known)) for each in starts]
        yield OpenLog(log, reader, starts)


def _reader(
    log: Log,
    specs: Sequence[ModelSpec],
    start: RunStart | None,
    open_file: Callable[[str], BinaryIO],
    keep: bool,
) -> LogReader | EventLog | TableReader:
    """The reader of a log. keep: the first rows of a stream of tables are read, and come again."""
    if log.table is not None:
        return TableReader(log.table, keep=keep, batch_bytes=log.batch_bytes, on_note=log.on_note)
    # Rows that are scored need no label, by which they are told from feedback.
    label = None if log.unlabelled or not specs else specs[0].input.label
    if specs and kind_of(log.inputs, label, log.format) == EVENTS:
        if start is not None or log.readers > 1:
            raise InputError(f"{log.inputs[0]} {ONLY_WHOLE}")
        if log.cache is not None:
            raise InputError(
                f"--cache is for logs of rows; {log.inputs[0]} holds events, which are joined each time"
            )
        if log.no_header:
            raise InputError(f"--no-header is for CSV and TSV; {log.inputs[0]} holds events, which are JSON")
        return EventLog(log.inputs, log.on_note)
    if any(spec.input.rows == "clicked" for spec in specs):
        log.on_note('input.rows = "clicked" chooses among impressions; all rows of a log of rows are learned')
    header = _header(log, [start.resolved] if start is not None else specs)
    options: dict[str, Any] = {
        "format": log.format,
        "batch_bytes": log.batch_bytes,
        "read": start.read if start is not None else (),
        "on_note": log.on_note,
        "share": Share(log.reader, log.readers),
        "open_file": open_file,
        "header": header,
        "unlabelled": log.unlabelled,
    }
    if log.cache is not None and not options["read"]:
        what = {
            "settings": [log.format, log.no_header, log.batch_bytes, log.reader, log.readers],
            "label": [*sorted(header.known), *(["any"] if header.any_label else [])],
            "dialect": repr(header.dialect),
        }
        return CachedLog(log.inputs, log.cache, 1 if log.same_batches else PIECE_ROWS, what, **options)
    if log.cache is not None:  # a resumed run begins in the middle of the log
        log.on_note(f"the run is resumed: its rows are read from the log, not from {log.cache}")
    return LogReader(log.inputs, **options)


ONLY_WHOLE = (
    "holds events, which are joined from the first to the last in one run: no checkpoint of `ftrie train` is in the "
    "middle of a join, and no part of a file can be joined alone; `ftrie trainer` resumes, follows growing files and "
    "divides the requests among several trainers"
)


class OpenLog:
    """An open log. `start` is the first spec's; `specs` are all specs, resolved, in the order given."""

    def __init__(
        self, log: Log, reader: LogReader | EventLog | TableReader, starts: Sequence[RunStart]
    ) -> None:
        self.start = starts[0]
        self.specs = tuple(each.resolved for each in starts)
        self._log, self._reader = log, reader
        self._in_log = _each_once(each.columns for each in starts)
        self._requests = WholeRequests(self.start.resolved, self.start.counts.rows_read)
        self._histories = None if self.is_of_events else RowHistories.of(*self.specs)
        self._period = Period.of(self.spec, log.since, log.until)
        if self._period.columns and self.start.counts.rows_read:
            raise SpecError(
                "--since and --until: a run that is resumed learns the rows after those it has learned"
            )

    @property
    def spec(self) -> ModelSpec:
        """The first spec, resolved."""
        return self.start.resolved

    @property
    def is_of_events(self) -> bool:
        """True if the log holds events, which are joined into rows: whole requests, in `spec.input.request`."""
        return isinstance(self._reader, EventLog)

    @cached_property
    def maker(self) -> ExampleMaker:
        """Makes examples by the first spec."""
        return ExampleMaker(self.spec)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the log, without those of side tables."""
        return self._reader.columns()

    @property
    def absent_fields(self) -> tuple[str, ...]:
        """The first spec's optional fields without a column in the log or a side table, except derived ones."""
        found = {*self.start.columns, *(name for table in self._log.tables for name in table.columns)}
        fields = (field for field in self.maker.plan.fields if not field.spec.is_derived)
        return tuple(field.name for field in fields if field.column not in found)

    def batches(self, more_columns: Sequence[str] = ()) -> Iterator[RowBatch]:
        """All rows in order, once, with the columns of all specs and `more_columns`.

        A value comes from the log, else from a side table, else it is null.
        """
        more_columns = [*more_columns, *self._period.columns]
        more = [name for name in more_columns if name in self.columns or self._reader.may_have(name)]
        wanted = _each_once([*(spec.wanted_columns() for spec in self.specs), more_columns])
        batches = self._reader.batches(_each_once([self._in_log, more]))
        return joined(batches, self._log.tables, wanted, self._log.on_note)

    def learned(self) -> tuple[ModelSpec, ...]:
        """The specs, with what their fields learn from the first rows. Consumes rows."""
        return with_learned(
            self.specs, ((batch.columns, batch.rows) for batch in self.rows()), self._log.on_note
        )

    @contextmanager
    def examples(
        self,
        threads: int | None = None,
        *,
        maker: ExampleMaker | None = None,
        batches: Iterable[RowBatch] | None = None,
        blocks: Blocks | None = None,
    ) -> Iterator[Iterator[Examples]]:
        """The rows as examples, hashed ahead in `threads` threads (None: one core less than there are).

        `maker` and `batches` replace the log's own; `blocks` keeps the rows. The result does not depend on the number
        of threads.
        """
        whole = self.rows(batches)
        if blocks is not None:
            whole = blocks.keep(whole)
        with examples_of(whole, maker or self.maker, threads) as stream:
            yield stream

    def rows(self, batches: Iterable[RowBatch] | None = None) -> Iterator[RowBatch]:
        """The rows of the period, or of `batches`, once: whole requests, with values of history and derived fields."""
        whole = self._requests.of(self.batches() if batches is None else batches)
        if self._histories is not None:
            self._read_again(self._histories)
            whole = self._histories.filled(whole)
        return self._period.rows(DerivedColumns(self.spec).of(whole))

    def expected_rows(self, rows: int) -> int | None:
        """An estimate of the log's rows once `rows` were taken, from the bytes read; None for standard input."""
        total, read = self._reader.total_bytes, self._reader.bytes_read()
        return int(rows * total / read) if total and read else None

    def read_until(self, stop: Position | None) -> tuple[ReadFile, ...]:
        """How far every file was read once the rows up to `stop` are learned from; None: once all are."""
        return self._reader.bookmarks.until(stop)

    @property
    def requests(self) -> WholeRequests:
        """What was found out about requests; final once the examples have ended."""
        return self._requests

    def warnings(self) -> Iterator[str]:
        """Warnings for the user about requests and their order; final once the examples have ended."""
        yield from self._requests.warnings()
        if self._histories is not None:
            yield from self._histories.warnings()

    def _read_again(self, histories: RowHistories) -> None:
        """Bring histories to where an earlier run has stopped: by the rows before, which no checkpoint keeps.

        Raises InputError if the log has them no more.
        """
        log, left = self._log, self.start.counts.rows_read
        if not left:
            return
        log.on_note(f"reading {left:,} rows again, for the histories of their users")
        if "-" in log.inputs:
            raise InputError(
                "standard input cannot be read twice, and the histories of users need the rows that the run has "
                "learned from before: give a file"
            )
        header = _header(log, [self.spec])
        with LogReader(log.inputs, format=log.format, batch_bytes=log.batch_bytes, header=header) as reader:
            for batch in joined(reader.batches(self._in_log), log.tables, self.spec.wanted_columns()):
                rows = min(left, batch.rows)
                histories.fill(batch if rows == batch.rows else batch.part(0, rows))
                left -= rows
                if not left:
                    return
        raise InputError(
            f"the log lacks {left:,} of the {self.start.counts.rows_read:,} rows that the run has learned from so far, "
            "which the histories of users need: give the same files, in the same order, new ones after them"
        )


def _header(log: Log, specs: Sequence[ModelSpec]) -> Header:
    """What the specs say of the first lines of files. Raises SpecError if they name different columns."""
    named = {each.input.columns for each in specs} - {None}
    if len(named) > 1:
        raise SpecError(
            "input.columns: the specs name different columns for one log; expected the same in all"
        )
    known = frozenset(each.input.label for each in specs)
    any_label = any(each.input.positive is not None for each in specs)
    return Header(next(iter(named), None), log.no_header, known, any_label, Dialect.of(specs[0].input))


def _resolve(spec: ModelSpec, reader: LogReader | EventLog | TableReader, log: Log) -> RunStart:
    """Resolve the spec against the log's columns, then those that only a side table has."""
    if isinstance(reader, EventLog):
        return _resolve_by_events(spec, reader, log)
    in_log = (*reader.columns(), *_expected_later(spec, reader, log))
    names = dict.fromkeys(in_log)
    for table in log.tables:
        if table.key not in in_log:
            raise SpecError(f"input: no column {table.key!r} in the log; it has: {listed(in_log, table.key)}")
        names |= dict.fromkeys(table.columns)
    if log.unlabelled:
        _check_fields(spec, names)
        names |= dict.fromkeys(_only_learned_from(spec))
    resolved = spec.resolve(tuple(names), reader.kinds()).with_columns(reader.columns_without_header)
    check_comparable(resolved)
    wanted = _each_once([resolved.wanted_columns(), [table.key for table in log.tables]])
    columns = tuple(name for name in wanted if name in in_log)
    return RunStart(spec, resolved, columns, {table.name: table.sha256 for table in log.tables})


def _check_fields(spec: ModelSpec, columns: Mapping[str, None]) -> None:
    """Raise SpecError for a required field whose column is missing."""
    for name, field in spec.fields.items():
        if not (field.optional or field.is_derived or (field.column or name) in columns):
            column = field.column or name
            raise SpecError(
                f"fields.{name}: no column {column!r} in the log; it has: {listed(columns, column)}"
            )


def _only_learned_from(spec: ModelSpec) -> tuple[str, ...]:
    """The columns of [input] that scoring a row does not need. Histories and lists need the others too."""
    given, needed = spec.input, set[str | None]()
    for name, field in spec.fields.items():
        if field.history is not None:
            return ()
        needed.add(field.column or name)
        if field.list is not None:
            needed.add(given.request)
    return tuple(name for name in given.named_columns if name not in needed)


def _resolve_by_events(spec: ModelSpec, events: EventLog, log: Log) -> RunStart:
    """Resolve the spec by the first impressions; columns that only a side table has are not read from the events."""
    elsewhere = {
        name: FieldSpec(side="item" if table.name == "items" else "user")
        for table in log.tables
        for name in table.columns
    }
    resolved = events.resolve(spec, elsewhere)
    found = events.columns()
    wanted = _each_once([resolved.wanted_columns(), [table.key for table in log.tables]])
    absent = [
        name
        for name, field in resolved.fields.items()
        if not field.is_derived and (field.column or name) not in {*found, *elsewhere}
    ]
    if absent:
        log.on_note(f"none of the first impressions has {', '.join(absent)}: without a value until one does")
    columns = tuple(name for name in wanted if name in found or name not in elsewhere)
    return RunStart(spec, resolved, columns, {table.name: table.sha256 for table in log.tables})


def _expected_later(spec: ModelSpec, reader: LogReader | TableReader, log: Log) -> tuple[str, ...]:
    """The columns of fields that no row has named so far, but that later rows may name."""
    known = {*reader.columns(), *(name for table in log.tables for name in table.columns)}
    columns = {field.column or name: field.is_derived for name, field in spec.fields.items()}
    later = tuple(name for name in columns if name not in known and reader.may_have(name))
    # kinds has objects seen without members
    missing = [name for name in later if name not in reader.kinds() and not columns[name]]
    if missing:
        log.on_note(f"no row at the log's beginning has {', '.join(missing)}: without a value until one does")
    return later


def _each_once(names: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for some in names for name in some))


def default_threads() -> int:
    """The number of hashing threads that leaves one core to the learner."""
    return max(1, (os.cpu_count() or 2) - 1)


@contextmanager
def examples_of(
    batches: Iterable[RowBatch], maker: ExampleMaker, threads: int | None = None
) -> Iterator[Iterator[Examples]]:
    """Hash `batches` in `threads` threads ahead of the consumer; examples come in the order of the batches.

    The queue is bounded: memory does not grow with the log. An error in a batch is raised in that batch's place, after
    all earlier batches. Leaving the context stops the threads, whether or not all batches were taken.
    """
    threads = threads or default_threads()
    ready: queue.Queue[Future[Examples] | None] = queue.Queue(maxsize=threads + _SPARE_BATCHES)
    stop = threading.Event()

    def put(item: Future[Examples] | None) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=_POLL_S)
                return True
            except queue.Full:
                continue
        return False

    def read() -> None:
        try:
            for batch in batches:
                if not put(pool.submit(maker.make, batch)):
                    return
        except BaseException as error:  # passed to the learner's thread, which raises it
            failed: Future[Examples] = Future()
            failed.set_exception(error)
            put(failed)
        put(None)

    with ThreadPoolExecutor(threads, thread_name_prefix="hash") as pool:
        reader = threading.Thread(target=read, name="read", daemon=True)
        reader.start()
        try:
            yield (item.result() for item in iter(ready.get, None))
        finally:
            stop.set()
            while not ready.empty():
                if (item := ready.get_nowait()) is not None:
                    item.cancel()
            # A reader blocked on an idle pipe is abandoned: waiting for it could delay the end of the run for ever.
            reader.join(_READER_STOP_S)
