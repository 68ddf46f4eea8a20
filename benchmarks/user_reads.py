"""Ways for concurrent requests to read users from Valkey: processor time a look-up, every cookie new.

    python -m benchmarks.user_reads            four ways, one server
    python -m benchmarks.user_reads --cluster  a connection to each node beside redis-py's RedisCluster, three masters

The readers have core 0, Valkey core 1. "plain" is what a server does: each thread has a connection, a plain socket with
hiredis. "redis-py" is its connection a thread. "shared, leader" and "shared, reader" send the look-ups that wait in one
packed batch over one connection: whichever request comes first reads for all, or a thread does nothing else. Processor
time, since that is what a busy server lacks; the wait for the answer is the same for all four.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.common import ROUNDS, Spread, alternate, report
from model_store.keys import USER, record_key
from model_store.records.lookups import HashFields, packed
from model_store.redis.direct_connection import DirectConnection
from model_store.store import Store

FIELDS = HashFields(tuple(f"field{n}" for n in range(8)))
USERS = 10_000
THREADS = (1, 8, 32)
READ_CORE, STORE_CORE = 0, 1
Read = Callable[[str], list[Any]]


def command(cookie: str) -> bytes:
    """The look-up as it is sent."""
    names = [name.encode() for name in FIELDS.names]
    return packed(b"HMGET", record_key(USER, cookie), *names)


def plain(store: Store) -> Read:
    """What `Lookups` does."""
    return lambda cookie: store.records.user_values(cookie, FIELDS)


def redis_py(store: Store) -> Read:
    """redis-py's connection a thread."""
    local = threading.local()

    def read(cookie: str) -> list[Any]:
        if not hasattr(local, "connection"):
            local.connection = store._connection.single(5.0)
        local.connection.send_packed_command((command(cookie),), check_health=False)
        values: list[Any] = local.connection.read_response()
        return values

    return read


class Waiting:
    """One look-up that waits. `turn` is released when it is answered, or when it is to read for all."""

    def __init__(self, cookie: str) -> None:
        self.command = command(cookie)
        self.values: list[Any] | None = None
        self.turn = threading.Lock()
        self.turn.acquire()


class Shared:
    """Look-ups in one queue and one connection."""

    def __init__(self, store: Store) -> None:
        self._connection = DirectConnection(store._connection, 5.0)
        self._queue: list[Waiting] = []
        self._busy = False
        self._lock = threading.Lock()

    def _answer_all(self) -> None:
        with self._lock:
            batch, self._queue = self._queue, []
        if batch:
            answers = self._connection.ask_each([(b"", each.command) for each in batch], 5.0)
            for each, values in zip(batch, answers, strict=True):
                each.values = values
                each.turn.release()


class Leader(Shared):
    """Who finds the connection free reads for all that wait, then passes it on."""

    def read(self, cookie: str) -> list[Any]:
        mine = Waiting(cookie)
        with self._lock:
            self._queue.append(mine)
            leads, self._busy = not self._busy, True
        if not leads:
            mine.turn.acquire()
        if mine.values is None:
            self._answer_all()
            with self._lock:
                if self._queue:
                    self._queue[0].turn.release()
                else:
                    self._busy = False
        assert mine.values is not None
        return mine.values


class Reader(Shared):
    """A thread of its own reads for all."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._wake = threading.Semaphore(0)
        threading.Thread(target=self._run, daemon=True).start()

    def read(self, cookie: str) -> list[Any]:
        mine = Waiting(cookie)
        with self._lock:
            self._queue.append(mine)
            wakes, self._busy = not self._busy, True
        if wakes:
            self._wake.release()
        mine.turn.acquire()
        assert mine.values is not None
        return mine.values

    def _run(self) -> None:
        while True:
            self._answer_all()
            with self._lock:
                self._busy = bool(self._queue)
            if not self._busy:
                self._wake.acquire()


def microseconds(read: Read, threads: int) -> float:
    """Processor time of this process for each of USERS look-ups by so many threads, in µs."""

    def run(first: int) -> None:
        for n in range(first, USERS, threads):
            read(f"u{n}")

    running = [threading.Thread(target=run, args=(first,)) for first in range(threads)]
    began = time.process_time()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return (time.process_time() - began) / USERS * 1e6


def pin(process: int, *cores: int) -> None:
    for task in Path(f"/proc/{process}/task").iterdir():
        with suppress(ProcessLookupError):  # a thread that has ended
            os.sched_setaffinity(int(task.name), cores)


def cluster_client(store: Store) -> Read:
    """redis-py's client for a cluster, which all threads share."""
    client = store.client
    return lambda cookie: client.hmget(record_key(USER, cookie), FIELDS.names)


def on_a_cluster() -> None:
    """What a server does on a cluster, beside redis-py's client."""
    from tests.stores import Cluster, running

    with (
        tempfile.TemporaryDirectory(prefix="ftrie-") as folder,
        running(Cluster, Path(folder)) as cluster,
        Store.open(cluster.url) as store,
    ):
        values = {name: f"value{n}" for n, name in enumerate(FIELDS.names)}
        store.records.put_users((f"u{n}", values) for n in range(USERS))
        for node in cluster.nodes:
            pin(node.process.pid, STORE_CORE)
        pin(os.getpid(), READ_CORE)
        measure(
            "user_reads_cluster",
            f"Reading 8 fields of a user of a cluster of three, µs of processor time; {USERS:,} cookies, each once",
            {"plain": plain(store), "RedisCluster": cluster_client(store)},
        )


def main() -> None:
    if "--cluster" in sys.argv:
        on_a_cluster()
        return
    with tempfile.TemporaryDirectory(prefix="ftrie-") as folder, Store.open(f"embedded:{folder}") as store:
        values = {name: f"value{n}" for n, name in enumerate(FIELDS.names)}
        store.records.put_users((f"u{n}", values) for n in range(USERS))
        pin(store.client.info("server")["process_id"], STORE_CORE)
        pin(os.getpid(), READ_CORE)
        reads: dict[str, Read] = {
            "plain": plain(store),
            "redis-py": redis_py(store),
            "shared, leader": Leader(store).read,
            "shared, reader": Reader(store).read,
        }
        measure(
            "user_reads",
            f"Reading 8 fields of a user, µs of processor time; {USERS:,} cookies, each once",
            reads,
        )


def measure(name: str, title: str, reads: Mapping[str, Read]) -> None:
    rows = []
    for threads in THREADS:
        contestants = {
            way: (lambda read=read, threads=threads: microseconds(read, threads))
            for way, read in reads.items()
        }
        for way, measured in alternate(contestants).items():
            spread = Spread.of(measured)
            rows.append((threads, way, *(round(x, 1) for x in (spread.median, spread.low, spread.high))))
    pin(os.getpid(), READ_CORE, STORE_CORE)
    report(name, f"{title}; medians of {ROUNDS} rounds", ("concurrent", "way", "µs", "low", "high"), rows)


if __name__ == "__main__":
    main()
