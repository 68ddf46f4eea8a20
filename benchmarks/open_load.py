"""An open load: calls begin when they are due, however long those before them take, as independent users' calls do.

    python -m benchmarks.open_load HOST:PORT METHOD BODIES RATE SECONDS CONNECTIONS TIMES

Calls fall due at random (a Poisson process of RATE a second). A call's time counts from when it was due. TIMES is
written as int64 pairs: when it was due, in nanoseconds of the system's monotonic clock, and the nanoseconds until its
answer, -1 if it failed. Prints JSON: seconds, calls, failed, cpu.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import sys
import time
from array import array
from collections import deque
from contextlib import suppress
from itertools import cycle
from pathlib import Path

from benchmarks.load import END_STREAM, HEADERS, RST_STREAM, Connection, Load, headers, split

LAST_ANSWERS_S = 10.0
PRIORITY = -10


class OpenConnection(Connection):
    """A connection with any number of calls in the air, each with the time at which it was due."""

    def __init__(self, address: str, header_block: bytes, times: array[int]) -> None:
        self._times = times
        self._due: dict[int, int] = {}
        self._held: deque[tuple[int, bytes]] = deque()
        super().__init__(address, header_block, 0, Load([b""], 0))

    @property
    def unanswered(self) -> int:
        return len(self._due) + len(self._held)

    def begin(self, due_ns: int, body: bytes) -> None:
        """Begin a call as soon as the server's window has room for it."""
        self._held.append((due_ns, body))
        self.send()

    def send(self) -> None:
        """Send what is held back, as far as the window goes."""
        out = []
        while self._held and len(self._held[0][1]) <= self._window:
            due_ns, body = self._held.popleft()
            self._window -= len(body)
            self._due[self._stream] = due_ns
            out.append(self._call(body))
        if out:
            self.socket.sendall(b"".join(out))

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        ended = (kind == HEADERS and flags & END_STREAM) or kind == RST_STREAM
        if ended and stream not in self._due:
            return  # a server that refuses a call before it has read it also resets its stream (RFC 9113, 8.1)
        if ended:
            due_ns = self._due.pop(stream)
            took_ns = time.monotonic_ns() - due_ns
            self._times.extend((due_ns, took_ns if stream in self._answered else -1))
        super()._frame(kind, flags, stream, payload)


def run(
    address: str, method: str, bodies: list[bytes], rate: float, seconds: float, count: int
) -> tuple[array[int], dict[str, float]]:
    """Call for so long; returns the times, and how it went."""
    times: array[int] = array("q")
    block = headers(address, method)
    connections = [OpenConnection(address, block, times) for _ in range(count)]
    next_connection, next_body, draw = cycle(connections), cycle(bodies), random.Random(1)
    began, began_cpu = time.monotonic_ns(), time.process_time()
    end = began + int(seconds * 1e9)
    due = began
    with selectors.SelectSelector() as selector:  # unlike epoll's, its timeout is finer than a millisecond
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        while due < end or any(connection.unanswered for connection in connections):
            now = time.monotonic_ns()
            while due < end and due <= now:
                next(next_connection).begin(due, next(next_body))
                due += int(draw.expovariate(rate) * 1e9)
            if now > end + LAST_ANSWERS_S * 1e9:
                break
            for key, _ in selector.select(max(min(due - now, 10**8), 0) / 1e9 if due < end else 0.1):
                key.data.receive()
    lost = sum(connection.unanswered for connection in connections)
    failed = lost + sum(took < 0 for took in times[1::2])
    cpu = time.process_time() - began_cpu
    return times, {"seconds": seconds, "calls": len(times) // 2 + lost, "failed": failed, "cpu": cpu}


if __name__ == "__main__":
    address, method, path, rate, seconds, count, out = sys.argv[1:]
    with suppress(
        OSError
    ):  # the load stands for other machines: what else runs on its core should not delay it
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    bodies = split(Path(path).read_bytes())
    times, answer = run(address, method, bodies, float(rate), float(seconds), int(count))
    Path(out).write_bytes(times.tobytes())
    print(json.dumps(answer))
