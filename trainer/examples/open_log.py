"""Reading, hashing and learning side by side: a reader thread, hashing threads, and one learner, in input order.

Batches are submitted in order and taken in order, so the number of threads changes the speed and nothing else.
The queue between them is bounded: memory does not grow with the log.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from model_store.errors import SpecError
from model_store.spec.spec import ModelSpec
from trainer.examples.hashing import ExampleMaker, Examples
from trainer.examples.side_tables import SideTable
from trainer.logs.batch import RowBatch
from trainer.logs.positions import ReadFile
from trainer.logs.reader import LogReader

_END = None
_POLL_S = 0.1
_PATIENCE_S = 2.0
_SPARE_BATCHES = 3  # so that a slow batch starves nobody; fewer cost a tenth of the speed on two cores


def default_threads() -> int:
    """Hashing threads that leave a core to the learner."""
    return max(1, (os.cpu_count() or 2) - 1)


@contextmanager
def examples_of(
    batches: Iterable[RowBatch], maker: ExampleMaker, threads: int
) -> Iterator[Iterator[Examples]]:
    """Hash `batches` in `threads` threads, ahead of whoever iterates, in order.

    An error in a batch is raised where that batch would have come: all before it are delivered. Leaving the context
    stops the threads, whether or not all batches were taken; a reader that waits for a pipe is left behind.
    """
    ready: queue.Queue[Future[Examples] | None] = queue.Queue(maxsize=threads + _SPARE_BATCHES)
    stop = threading.Event()
    with ThreadPoolExecutor(threads, thread_name_prefix="hash") as pool:
        reader = threading.Thread(
            target=_read, args=(batches, maker, pool, ready, stop), name="read", daemon=True
        )
        reader.start()
        try:
            yield _take(ready)
        finally:
            stop.set()
            _drain(ready)
            # A pipe that brings nothing would hold the reader, and with it the end of the run, for ever.
            reader.join(_PATIENCE_S)


def _read(
    batches: Iterable[RowBatch],
    maker: ExampleMaker,
    pool: ThreadPoolExecutor,
    ready: queue.Queue[Future[Examples] | None],
    stop: threading.Event,
) -> None:
    try:
        for batch in batches:
            if not _put(ready, pool.submit(maker.make, batch), stop):
                return
    except BaseException as error:  # handed to the learner's thread, which raises it
        failed: Future[Examples] = Future()
        failed.set_exception(error)
        _put(ready, failed, stop)
    _put(ready, _END, stop)


def _put(
    ready: queue.Queue[Future[Examples] | None], item: Future[Examples] | None, stop: threading.Event
) -> bool:
    while not stop.is_set():
        try:
            ready.put(item, timeout=_POLL_S)
            return True
        except queue.Full:
            continue
    return False


def _take(ready: queue.Queue[Future[Examples] | None]) -> Iterator[Examples]:
    while (item := ready.get()) is not _END:
        yield item.result()


def _drain(ready: queue.Queue[Future[Examples] | None]) -> None:
    while not ready.empty():
        item = ready.get_nowait()
        if item is not None:
            item.cancel()


@dataclass(frozen=True)
class Beginning:
    """What stays the same over all the runs that go on from one another, and where the one before has stopped.

    spec: as given; resolved: by the first log; columns: what is read from the log; sides: SHA-256 of the files of items
    and users; initial: of the model begun with. read: how far each file was read; rows_read: rows delivered, learned
    from or not; subsampled: of them, not drawn; minus_labels: rows whose label is written as -1; seconds: what all the
    runs took.
    """

    spec: ModelSpec
    resolved: ModelSpec
    columns: tuple[str, ...]
    sides: dict[str, str]
    initial: str | None = None
    read: tuple[ReadFile, ...] = ()
    rows_read: int = 0
    subsampled: int = 0
    minus_labels: int = 0
    seconds: float = 0.0


def begin(
    spec: ModelSpec, reader: LogReader, tables: Sequence[SideTable], on_note: Callable[[str], None]
) -> Beginning:
    """Resolve the spec by the log's columns, then those that only a table has."""
    in_log = (*reader.columns(), *_expected_later(spec, reader, tables, on_note))
    names = dict.fromkeys(in_log)
    for table in tables:
        if table.key not in in_log:
            raise SpecError(f"input: no column {table.key!r} in the log; it has: {', '.join(in_log)}")
        names |= dict.fromkeys(table.columns)
    resolved = spec.resolve(tuple(names), reader.kinds())
    wanted = dict.fromkeys((*resolved.wanted_columns(), *(table.key for table in tables)))
    columns = tuple(name for name in wanted if name in in_log)
    return Beginning(spec, resolved, columns, {table.name: table.sha256 for table in tables})


def _expected_later(
    spec: ModelSpec, reader: LogReader, tables: Sequence[SideTable], on_note: Callable[[str], None]
) -> tuple[str, ...]:
    """The columns of fields that no row has named so far, but that rows farther down may."""
    known = {*reader.columns(), *(name for table in tables for name in table.columns)}
    columns = dict.fromkeys(field.column or name for name, field in spec.fields.items())
    later = tuple(name for name in columns if name not in known and reader.may_have(name))
    missing = [
        name for name in later if name not in reader.kinds()
    ]  # an object is there, though no column yet
    if missing:
        on_note(f"no row at the log's beginning has {', '.join(missing)}: without a value until one does")
    return later
