"""A load generator for servers that answer in order on a connection: HTTP/1.1, and Vowpal Wabbit's daemon.

    python -m benchmarks.rivals.plain_load http|vw HOST:PORT BODIES CALLS CONNECTIONS

BODIES is a file of requests, each behind its length (u32). Every connection has one call in the air. Prints JSON as
benchmarks.load does.
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


def pack(bodies: Sequence[bytes]) -> bytes:
    """A file of requests."""
    return b"".join(struct.pack(">I", len(body)) + body for body in bodies)


def unpack(data: bytes) -> list[bytes]:
    """The requests of a file."""
    bodies, at = [], 0
    while at < len(data):
        end = at + 4 + struct.unpack_from(">I", data, at)[0]
        bodies.append(data[at + 4 : end])
        at = end
    return bodies


def post(path: str, body: bytes) -> bytes:
    """An HTTP/1.1 request of JSON that keeps the connection."""
    lines = f"POST {path} HTTP/1.1\r\nhost: server\r\ncontent-type: application/json\r\n"
    return f"{lines}content-length: {len(body)}\r\n\r\n".encode() + body


def http_ended(answer: bytes) -> bool | None:
    """None while the answer goes on; then whether it is a good one."""
    head, blank, rest = answer.partition(b"\r\n\r\n")
    length = _LENGTH.search(head) if blank else None
    if length is None or len(rest) < int(length[1]):
        return None
    return head.startswith(b"HTTP/1.1 200")


def vw_ended(answer: bytes) -> bool | None:
    """Scores of a multi-line example end with an empty line."""
    return True if answer.endswith(b"\n\n") else None


ENDED: dict[str, Callable[[bytes], bool | None]] = {"http": http_ended, "vw": vw_ended}


def run(kind: str, address: str, bodies: list[bytes], calls: int, connections: int) -> dict[str, float]:
    """Make the calls, one at a time on each connection."""
    ended, next_body = ENDED[kind], cycle(bodies)
    host, _, port = address.rpartition(":")
    left, waiting, failed = calls, calls, 0
    answers: dict[socket.socket, bytes] = {}
    began, began_cpu = time.perf_counter(), time.process_time()
    with selectors.DefaultSelector() as selector:
        for _ in range(min(connections, calls)):
            opened = socket.create_connection((host, int(port)))
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(opened, selectors.EVENT_READ)
            opened.sendall(next(next_body))
            answers[opened], left = b"", left - 1
        while waiting:
            for key, _ in selector.select():
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                chunk = connection.recv(1 << 18)
                if not chunk:
                    raise ConnectionError("the server closed the connection")
                answers[connection] += chunk
                good = ended(answers[connection])
                if good is None:
                    continue
                waiting, failed = waiting - 1, failed + (not good)
                answers[connection] = b""
                if left:
                    left -= 1
                    connection.sendall(next(next_body))
    seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    return {"seconds": seconds, "calls": calls, "failed": failed, "cpu": cpu}


if __name__ == "__main__":
    kind, address, path, calls, connections = sys.argv[1:]
    print(json.dumps(run(kind, address, unpack(Path(path).read_bytes()), int(calls), int(connections))))
