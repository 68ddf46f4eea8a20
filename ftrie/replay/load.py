"""Callers that put requests to a server, each waiting for its answer, and how long each answer took.

Where requests are due at a time of their own (--rate, --pace), the time counts from then, not from when a caller was
free: a server that stalls is charged for all who had to wait. Otherwise each caller calls again at once.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import grpc

from ftrie.access import Access
from ftrie.client import METHOD

CONNECTIONS = 8
"""At most so many connections: workers share a port, and each connection is one worker's."""


@dataclass
class Outcome:
    """What came of the calls. Latencies are of those that were answered, nanoseconds, in no order."""

    seconds: float = 0.0
    latencies_ns: array[int] = field(default_factory=lambda: array("Q"))
    errors: Counter[str] = field(default_factory=Counter)
    """gRPC status → calls."""

    @property
    def calls(self) -> int:
        """All that have ended."""
        return len(self.latencies_ns) + self.errors.total()


class Load:
    """Puts requests to one server for a while. `run` once."""

    def __init__(
        self, address: str, access: Access, schedule: Iterator[tuple[float, bytes]], timeout_s: float
    ) -> None:
        self._address = address
        self._access = access
        self._schedule = schedule
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._outcomes: list[Outcome] = []

    def run(self, concurrency: int, duration_s: float, advanced: Callable[[int], None]) -> Outcome:
        """Call with so many callers for so long; `advanced` is told the number of calls now and then."""
        channels = [
            self._access.channel(self._address, own_connection=True)
            for _ in range(min(concurrency, CONNECTIONS))
        ]
        began_ns = time.perf_counter_ns()
        callers = [
            threading.Thread(
                target=self._call, args=(channels[number % len(channels)], began_ns, duration_s), daemon=True
            )
            for number in range(concurrency)
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            while caller.is_alive():
                caller.join(0.1)
                advanced(sum(outcome.calls for outcome in list(self._outcomes)))
        for channel in channels:
            channel.close()
        return self._together((time.perf_counter_ns() - began_ns) / 1e9)

    def _call(self, channel: grpc.Channel, began_ns: int, duration_s: float) -> None:
        """One caller's life."""
        mine = Outcome()
        self._outcomes.append(mine)
        call = channel.unary_unary(METHOD, None, None)  # bytes out, bytes in
        metadata = self._access.metadata()
        while True:
            with self._lock:
                due_s, message = next(self._schedule)
            now_s = (time.perf_counter_ns() - began_ns) / 1e9
            if max(due_s, now_s) >= duration_s:
                return
            if due_s > now_s:
                time.sleep(due_s - now_s)
            from_ns = began_ns + int(due_s * 1e9) if due_s else time.perf_counter_ns()
            try:
                call(message, timeout=self._timeout_s, metadata=metadata)
            except grpc.RpcError as error:
                mine.errors[error.code().name] += 1
            else:
                mine.latencies_ns.append(time.perf_counter_ns() - from_ns)

    def _together(self, seconds: float) -> Outcome:
        whole = Outcome(seconds)
        for outcome in self._outcomes:
            whole.latencies_ns.extend(outcome.latencies_ns)
            whole.errors.update(outcome.errors)
        return whole
