"""A load generator for one unary gRPC method whose requests differ: plain HTTP/2 over sockets, frames made beforehand.

h2load sends one body over and over; here every request takes the next body. Nothing is measured in the client but the
time until all answers are there. Run as a process of its own, on a core of its own:

    python -m benchmarks.load HOST:PORT METHOD BODIES CALLS CONNECTIONS STREAMS

BODIES is a file of messages, each behind its gRPC header (one byte 0, length u32). Prints JSON: seconds, calls, failed,
and cpu: the seconds of its core that the load itself took.
"""

from __future__ import annotations

import json
import selectors
import socket
import struct
import sys
import time
from itertools import cycle
from pathlib import Path

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
FRAME_LIMIT = 16_384
FIRST_WINDOW = 65_535
OUR_WINDOW = (1 << 31) - 1 - FIRST_WINDOW


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One HTTP/2 frame: length u24, type, flags, stream u32 (RFC 9113, section 4.1)."""
    return struct.pack(">IBBI", len(payload), kind, flags, stream)[1:] + payload


def literal(name: str, value: str) -> bytes:
    """A header field, literal without indexing (RFC 7541, section 6.2.2), so that every request's bytes are alike."""
    return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def headers(address: str, method: str) -> bytes:
    """The header block of one call. 0x83 and 0x86 are `:method POST` and `:scheme http` in the static table."""
    fields = {":path": method, ":authority": address, "content-type": "application/grpc", "te": "trailers"}
    return b"\x83\x86" + b"".join(literal(name, value) for name, value in fields.items())


class Connection:
    """One connection with a fixed number of calls in the air."""

    def __init__(self, address: str, header_block: bytes, streams: int, load: Load) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._headers = header_block
        self._load = load
        self._wanted = streams
        self._stream = 1
        self._window = FIRST_WINDOW
        self._received = b""
        self._answered: set[int] = set()
        window = frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", OUR_WINDOW))
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0) + window)
        self.send()

    def send(self) -> None:
        """Begin as many calls as are wanted and the server's window allows."""
        out = []
        while self._wanted and self._load.left:
            body = self._load.next_body
            if len(body) > self._window:
                break
            self._load.take()
            self._window -= len(body)
            self._wanted -= 1
            out.append(self._call(body))
        if out:
            self.socket.sendall(b"".join(out))

    def receive(self) -> None:
        """Take in what has come; answers make room for new calls."""
        chunk = self.socket.recv(1 << 18)
        if not chunk:
            raise ConnectionError("the server closed the connection")
        data, at = self._received + chunk, 0
        while len(data) - at >= 9:
            end = at + 9 + int.from_bytes(data[at : at + 3], "big")
            if end > len(data):
                break
            self._frame(
                data[at + 3], data[at + 4], int.from_bytes(data[at + 5 : at + 9], "big"), data[at + 9 : end]
            )
            at = end
        self._received = data[at:]
        self.send()

    def _call(self, body: bytes) -> bytes:
        """The frames of the next call."""
        out = [frame(HEADERS, END_HEADERS, self._stream, self._headers)]
        parts = [body[at : at + FRAME_LIMIT] for at in range(0, len(body), FRAME_LIMIT)]
        for part in parts:
            last = END_STREAM if part is parts[-1] else 0
            out.append(frame(DATA, last, self._stream, part))
        self._stream += 2
        return b"".join(out)

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == DATA:
            self._answered.add(stream)
        elif (kind == HEADERS and flags & END_STREAM) or kind == RST_STREAM:
            self._wanted += 1
            self._load.ended(ok=stream in self._answered)  # an error has trailers only, no message
            self._answered.discard(stream)
        elif kind == WINDOW_UPDATE and stream == 0:
            self._window += int.from_bytes(payload, "big")
        elif kind in (PING, SETTINGS) and not flags & ACK:
            self.socket.sendall(frame(kind, ACK, 0, payload if kind == PING else b""))
        elif kind == GOAWAY:
            raise ConnectionError(f"the server said goodbye: {payload[8:]!r}")


class Load:
    """How many calls are left, and which body is next."""

    def __init__(self, bodies: list[bytes], calls: int) -> None:
        self._bodies = cycle(bodies)
        self.next_body = next(self._bodies)
        self.left = self.waiting = calls
        self.failed = 0

    def take(self) -> None:
        self.left -= 1
        self.next_body = next(self._bodies)

    def ended(self, *, ok: bool) -> None:
        self.waiting -= 1
        self.failed += not ok


def split(data: bytes) -> list[bytes]:
    """The messages of a file, each still behind its header."""
    bodies, at = [], 0
    while at < len(data):
        end = at + 5 + int.from_bytes(data[at + 1 : at + 5], "big")
        bodies.append(data[at:end])
        at = end
    return bodies


def run(
    address: str, method: str, bodies: list[bytes], calls: int, connections: int, streams: int
) -> dict[str, float]:
    """Make `calls` calls, `connections` × `streams` of them at a time."""
    load = Load(bodies, calls)
    block = headers(address, method)
    began, began_cpu = time.perf_counter(), time.process_time()
    with selectors.DefaultSelector() as selector:
        for _ in range(connections):
            connection = Connection(address, block, streams, load)
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        while load.waiting:
            for key, _ in selector.select():
                key.data.receive()
    cpu = time.process_time() - began_cpu
    return {"seconds": time.perf_counter() - began, "calls": calls, "failed": load.failed, "cpu": cpu}


if __name__ == "__main__":
    address, method, path, calls, connections, streams = sys.argv[1:]
    bodies = split(Path(path).read_bytes())
    print(json.dumps(run(address, method, bodies, int(calls), int(connections), int(streams))))
