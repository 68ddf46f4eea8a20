"""A connection for one thread's hot path: sends command bytes and returns answers within a time limit.

It uses a plain socket and hiredis, since a look-up through redis-py's connection takes 1.5 times as long; and one
connection per thread, since passing answers between threads costs more than the system calls that a shared pipeline
saves (docs/features.md has the figures). redis-py opens the connection and handles TLS, passwords and databases.
"""

from __future__ import annotations

import math
import socket
import struct
import time
from typing import Any

import hiredis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from model_store.redis.connection import StoreConnection

READ_BYTES = 1 << 16

Answer = Any
"""Text, None, an integer, an `AnsweredError`, or a list of these. Bytes that are not UTF-8 become surrogates."""


class AnsweredError(Exception):
    """An error answer to one command, such as WRONGTYPE. Returned, not raised."""


class DirectConnection:
    """A connection owned by one thread, opened on first use.

    Invariant: between calls no answer is outstanding. Any failure, including a timeout, closes the connection, so that
    a late answer is never taken for that of another command.
    """

    def __init__(self, store: StoreConnection, timeout_s: float) -> None:
        self._store = store
        self._connection = store.single(timeout_s)
        self._socket: socket.socket | None = None
        self._waits_ms = 0
        self._reader = _reader()

    def ask(self, command: bytes, answers: int, wait_s: float) -> list[Answer]:
        """Send packed commands and return their `answers` answers within `wait_s` seconds.

        A dropped connection is reopened once. Raises StoreUnavailable.
        """
        until = time.monotonic() + wait_s
        try:
            try:
                return self._exchange(command, answers, wait_s, until)
            except RedisConnectionError:
                return self._exchange(command, answers, until - time.monotonic(), until)
        except RedisError as error:
            raise self._store.translated(error) from error

    def close(self) -> None:
        """Close it; the next use opens it again. Any thread may call this."""
        self._socket = None
        self._connection.disconnect()

    def _exchange(self, command: bytes, answers: int, wait_s: float, until: float) -> list[Answer]:
        try:
            wire = self._socket
            if wire is None:
                wire, wait_s = self._open(wait_s), until - time.monotonic()
            self._wait_at_most(wire, wait_s)
            wire.sendall(command)
            return self._receive(wire, answers, until)
        except (TimeoutError, BlockingIOError):
            self.close()
            raise RedisTimeoutError(f"no answer within {wait_s * 1000:.0f} ms") from None
        except OSError as error:
            self.close()
            raise RedisConnectionError(str(error)) from error
        except BaseException:
            self.close()
            raise

    def _receive(self, wire: socket.socket, answers: int, until: float) -> list[Answer]:
        reader, received = self._reader, list[Answer]()
        while True:
            data = wire.recv(READ_BYTES)
            if not data:
                raise ConnectionResetError("the store closed the connection")
            reader.feed(data)
            while len(received) < answers and (answer := reader.gets()) is not False:
                received.append(answer)
            if len(received) == answers:
                if reader.has_data():
                    raise ConnectionResetError("the store sent an unexpected answer")
                return received
            self._wait_at_most(wire, until - time.monotonic())

    def _open(self, wait_s: float) -> socket.socket:
        connection = self._connection
        connection.socket_timeout = connection.socket_connect_timeout = max(wait_s, 0.001)
        connection.connect()
        wire: socket.socket = connection._sock  # redis-py has no public name for it
        self._reader, self._waits_ms = _reader(), 0
        if _is_plain(wire):
            wire.settimeout(None)
        self._socket = wire
        return wire

    def _wait_at_most(self, wire: socket.socket, wait_s: float) -> None:
        """Bound each system call. Raises TimeoutError if no time is left.

        For a plain socket the kernel enforces the timeout; Python's own timeout would poll the socket before each call,
        doubling the system calls.
        """
        wait_ms = math.ceil(wait_s * 1000)
        if wait_ms <= 0:  # for the kernel 0 means no timeout
            raise TimeoutError
        if wait_ms == self._waits_ms:
            return
        if _is_plain(wire):
            limit = struct.pack("@ll", wait_ms // 1000, wait_ms % 1000 * 1000)
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        else:
            wire.settimeout(wait_ms / 1000)
        self._waits_ms = wait_ms


def _is_plain(wire: socket.socket) -> bool:
    return type(wire) is socket.socket  # a TLS socket reads ahead and must enforce the timeout itself


def _reader() -> Any:
    return hiredis.Reader(
        replyError=AnsweredError,
        protocolError=ConnectionResetError,
        encoding="utf-8",
        errors="surrogateescape",
    )
