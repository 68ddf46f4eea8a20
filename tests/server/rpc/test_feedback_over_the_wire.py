"""Report without grpc and without protobuf: the bytes that a client in any language sends, over a plain socket.

HTTP/2 (RFC 9113) with headers spelled out (HPACK, RFC 7541, literals without indexing), gRPC's five bytes before the
message, and the message field by field: whatever a library of ours changes, these bytes must go on to work.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

from tests.server import shop
from tests.server.one_process import Server

DATA, HEADERS, SETTINGS, PING = 0, 1, 4, 6
END_STREAM, END_HEADERS, ACK = 1, 4, 1
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def field(number: int, value: bytes | int | float) -> bytes:
    """One field of a protobuf message; numbers up to 127, texts up to 127 bytes."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    if isinstance(value, float):
        return bytes([number << 3 | 1]) + struct.pack("<d", value)
    return bytes([number << 3 | 2, len(value)]) + value


CLICK = field(2, b"r1") + field(3, "item-ü".encode()) + field(4, 1)
SALE = field(1, b"order-7") + field(2, b"r1") + field(3, b"b") + field(4, 2) + field(6, 49.5)
SALE += field(5, b"\x08" + bytes([0x80, 0xE2, 0xCF, 0xAA, 0x06]))  # seconds = 1,700,000,000 as a varint
NOTHING = b""
REPORT = field(1, shop.NAME.encode()) + field(2, CLICK) + field(2, SALE) + field(2, NOTHING)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def header(name: str, value: str) -> bytes:
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def headers(path: str) -> bytes:
    pairs = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(header(*pair) for pair in pairs.items())


def frames(wire: socket.socket) -> Iterator[tuple[int, int, int, bytes]]:
    """Kind, flags, stream and payload of each frame that comes."""
    with wire.makefile("rb") as stream:
        while head := stream.read(9):
            size, kind, flags, number = int.from_bytes(head[:3], "big"), head[3], head[4], head[5:]
            yield kind, flags, int.from_bytes(number, "big"), stream.read(size)


def call(address: str, path: str, message: bytes) -> bytes:
    """The answer's message, without gRPC's five bytes before it."""
    host, _, port = address.rpartition(":")
    body = b"\0" + struct.pack(">I", len(message)) + message
    answer = b""
    with socket.create_connection((host, int(port)), timeout=20) as wire:
        wire.sendall(PREFACE + frame(SETTINGS, 0, 0))
        wire.sendall(frame(HEADERS, END_HEADERS, 1, headers(path)) + frame(DATA, END_STREAM, 1, body))
        for kind, flags, stream, payload in frames(wire):
            if kind in (SETTINGS, PING) and not flags & ACK:
                wire.sendall(frame(kind, ACK, 0, payload if kind == PING else b""))
            if stream == 1:
                answer += payload if kind == DATA else b""
                if flags & END_STREAM:
                    break
    assert answer[:1] == b"\0"
    assert len(answer) == 5 + int.from_bytes(answer[1:5], "big")
    return answer[5:]


def test_bytes_of_any_language_are_taken_and_answered_and_known_again(
    shared_server: Server, clicks: Callable[[], list[dict[str, Any]]]
) -> None:
    reported = call(shared_server.address, "/ctr.v1.FeedbackService/Report", REPORT)
    reason = b"request_id: got 0 bytes, expected 1 to 4,096"
    assert reported == field(1, 2) + field(3, field(1, 2) + field(2, reason))
    click, sale = clicks()
    assert (click["request_id"], click["item"], click["event"]) == ("r1", "item-ü", "click")
    assert sale == {
        "request_id": "r1",
        "item": "b",
        "ts": 1_700_000_000,
        "event": "conversion",
        "event_id": "order-7",
        "value": 49.5,
    }
    again = call(shared_server.address, "/ctr.v1.FeedbackService/Report", REPORT)
    assert again == field(2, 2) + reported[len(field(1, 2)) :]
