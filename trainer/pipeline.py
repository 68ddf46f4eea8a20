"""Reading, hashing and learning side by side: a reader thread, hashing threads, and one learner, in input order.

Batches are submitted in order and taken in order, so the number of threads changes the speed and nothing else.
The queue between them is bounded: memory does not grow with the log.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from trainer.hashing.examples import ExampleMaker, Examples
from trainer.sources import RowBatch

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
