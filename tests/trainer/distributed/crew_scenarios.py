"""Members to try a crew with, and runs of it in a process of its own: `python crew_scenarios.py SCENARIO`.

A run prints JSON lines: where its members are, warnings, and how it ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from model_store.errors import FtrieError, InputError
from trainer.distributed.cluster import RayCrew
from trainer.distributed.methods import persist

Outbox = tuple[Any, list[Any]]


class Tally:
    """A member with one committed number; `other` members are of the other kind."""

    def __init__(self, kind: str, number: int, others: int) -> None:
        self.kind, self.number, self.others = kind, number, others
        self.total = 0.0
        self.writable = True

    def send(self, size: int, *, inbox: Sequence[Any] = ()) -> Outbox:
        """An array of `size` for each of the others, all of them different; nothing for the last one if size is odd."""
        parts = [np.full(size, 10.0 * self.number + other, np.float32) for other in range(self.others)]
        return os.getpid(), [*parts[:-1], None if size % 2 else parts[-1]]

    def add(self, *, inbox: Sequence[Any]) -> Outbox:
        """The first number and the size of each part that has come."""
        self.total += sum(float(part.sum()) for part in inbox if part is not None)
        got = [None if part is None else (float(part[0]), part.size, part.flags.writeable) for part in inbox]
        return got, [None] * self.others

    def work(self, seconds: Sequence[float], *, inbox: Sequence[Any] = ()) -> Outbox:
        """Take the time that is listed for this member."""
        time.sleep(seconds[self.number])
        return self.number, [np.ones(3)] * self.others

    def fail(self, how: str, *, inbox: Sequence[Any] = ()) -> Outbox:
        if self.number == 1:
            if how == "bug":
                return [][self.number], []
            raise InputError(f"{self.kind} {self.number}: row 7 of clicks.csv has no label")
        return None, [None] * self.others

    def touch(self, folder: str, seconds: float, *, inbox: Sequence[Any] = ()) -> Outbox:
        Path(folder, f"{self.kind}-{self.number}-{os.getpid()}").touch()
        time.sleep(seconds)
        return self.number, [None] * self.others

    def eat(self, nbytes: int, *, inbox: Sequence[Any] = ()) -> Outbox:
        """Worker 1 takes memory, piece by piece so as to be ended at once, and keeps it for a while."""
        if self.number == 1:
            taken = [np.ones(1 << 27, np.uint8) for _ in range(nbytes >> 27)]
            time.sleep(30)
            return int(taken[-1][-1]), [None] * self.others
        return 1, [None] * self.others

    def where(self, *, inbox: Sequence[Any] = ()) -> Outbox:
        """The node of Ray that the member is on."""
        import ray

        return ray.get_runtime_context().get_node_id(), [None] * self.others


class Printed:
    """An output that keeps what it gets, and prints it where it is asked to."""

    def __init__(self, printing: bool = False) -> None:
        self.warnings: list[str] = []
        self._printing = printing

    def note(self, message: str, /) -> None:
        raise AssertionError(message)

    def warn(self, message: str, /) -> None:
        self.warnings.append(message)
        if self._printing:
            say(warning=message)

    def progress(self, description: str, /, total: int | None = None, unit: str = "rows") -> Any:
        raise AssertionError(description)


def crew_of(workers: int, reducers: int, **options: Any) -> RayCrew:
    return RayCrew(
        [partial(Tally, "worker", number, reducers) for number in range(workers)],
        [partial(Tally, "reducer", number, workers) for number in range(reducers)],
        **options,
    )


def say(**fields: Any) -> None:
    """Print, also while a crew is open, which has standard output go to standard error."""
    print(json.dumps(fields), flush=True, file=sys.__stdout__)


def a_long_step(address: str | None = None) -> None:
    with crew_of(2, 2, address=address, output=Printed(True)) as crew:
        say(members=crew.processes)
        persist(crew, lambda: crew.ask_workers("work", (120.0, 120.0)))


def between_steps() -> None:
    with crew_of(1, 1) as crew:
        say(members=crew.processes)
        time.sleep(2)
        crew.ask_workers("work", (120.0,))


def out_of_memory() -> None:
    """A worker takes more memory than Ray lets the host use.

    Ray counts the memory of the whole host: the room that is left for the worker alone (4 GB, or half of what is free)
    is more than what the tests beside this one take meanwhile, or Ray would end members that took nothing.
    """
    total, used = host_memory()
    room = min(4 << 30, (total - used) // 2)
    os.environ |= {
        "RAY_memory_usage_threshold": f"{(used + room) / total:.3f}",
        "RAY_memory_monitor_refresh_ms": "100",
    }
    with crew_of(2, 1, output=Printed(True)) as crew:
        persist(crew, lambda: crew.ask_workers("eat", room * 3 // 2))


def host_memory() -> tuple[int, int]:
    """The bytes of the host's memory, and how many are used."""
    found = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, available = (int(found[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
    return total, total - available


def a_head() -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        say(address=cluster.address)
        time.sleep(300)
    finally:
        cluster.shutdown()


def _wait_until_used(address: str) -> None:
    """Run a task on each node: one that has just been added is known before the scheduler takes it into account."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

    ray.init(address=address, logging_level="error")
    try:
        on = [On(node["NodeID"], soft=False) for node in ray.nodes()]
        task = ray.remote(lambda: None)
        ray.get([task.options(num_cpus=1, scheduling_strategy=each).remote() for each in on])
    finally:
        ray.shutdown()


def joined(what: str) -> None:
    """Join a cluster of several nodes on this machine, and do `what` there."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    pids = {
        name: [each.process.pid for each in found] for name, found in cluster.head_node.all_processes.items()
    }
    try:
        say(address=cluster.address, head=pids)
        if what == "nodes":
            _lose_a_node(cluster, nodes)
        elif what == "too many":
            crew_of(9, 1, address=cluster.address, placed_s=5.0)
        else:
            a_long_step(cluster.address)
    finally:
        cluster.shutdown()


def _lose_a_node(cluster: Any, nodes: list[Any]) -> None:
    extra = cluster.add_node(num_cpus=1)
    _wait_until_used(cluster.address)
    with crew_of(3, 2, address=cluster.address, output=Printed(True)) as crew:
        places = crew.ask_workers("where").summaries
        say(workers=places, reducers=crew.ask_reducers("where").summaries)
        own = cluster.head_node.node_id
        lost = next(node for node in [*nodes, extra] if node.node_id in places and node.node_id != own)
        sent = crew.ask_workers("send", 1_000_000)
        cluster.remove_node(lost, allow_graceful=False)
        say(lost=lost.node_id)

        def send_again() -> None:
            nonlocal sent
            sent = crew.ask_workers("send", 1_000_000)

        got = persist(crew, lambda: crew.ask_reducers("add", inbox=sent).summaries, send_again)
        say(got=got, workers=crew.ask_workers("where").summaries)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # as the command line does
    try:
        globals()[sys.argv[1]](*sys.argv[2:])
    except FtrieError as error:
        say(error=type(error).__name__, code=error.exit_code, message=str(error))
        sys.exit(error.exit_code)
