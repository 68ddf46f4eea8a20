"""Connections for one thread's hot path: they send command bytes and return answers within a time limit.

It uses a plain socket and hiredis, since a look-up through redis-py's connection takes 1.5 times as long; and one
connection per thread, since passing answers between threads costs more than the system calls that a shared pipeline
saves (docs/features.md has the figures). redis-py opens the connection and handles TLS, passwords and databases.

`DirectConnection` is one connection, `ClusterConnection` one to each node that was asked so far.
"""

from __future__ import annotations

import math
import socket
import struct
import time
from collections.abc import Sequence
from traceback import clear_frames
from typing import Any

import hiredis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from model_store.errors import StoreUnavailable
from model_store.redis.connection import StoreConnection
from model_store.redis.servers import Address, slot_of

READ_BYTES = 1 << 16
# Bounds a call that nodes send back and forth; its time limit usually ends it first.
MOST_REDIRECTIONS = 8
ASKING = b"*1\r\n$6\r\nASKING\r\n"

Answer = Any
"""Text, None, an integer, an `AnsweredError`, or a list of these. Bytes that are not UTF-8 become surrogates."""


class AnsweredError(Exception):
    """An error answer to one command, such as WRONGTYPE. Returned, not raised."""


class DirectConnection:
    """A connection owned by one thread, opened on first use.

    Invariant: between calls no answer is outstanding. Any failure, including a timeout, closes the connection, so that
    a late answer is never taken for that of another command.
    """

    def __init__(self, store: StoreConnection, timeout_s: float, fixed: Address | None = None) -> None:
        """fixed: the node of a cluster."""
        self._store = store
        self._connection = store.single(timeout_s, fixed)
        self._socket: socket.socket | None = None
        self._waits_ms = 0
        self._reader = _reader()

    def ask_each(self, keyed: Sequence[tuple[bytes, bytes]], wait_s: float) -> list[Answer]:
        """Send packed commands, each with its key, and return their answers within `wait_s` seconds.

        A dropped connection is reopened once. Raises StoreUnavailable.
        """
        until = time.monotonic() + wait_s
        try:
            return self.exchange([command for _, command in keyed], wait_s, until)
        except RedisError as error:
            raise self._store.translated(error) from error

    def exchange(self, commands: Sequence[bytes], wait_s: float, until: float) -> list[Answer]:
        """Same as `ask_each`, until a time of the monotonic clock. Raises redis-py's errors."""
        command, answers = b"".join(commands), len(commands)
        try:
            return self.receive(self.send(command, wait_s, until), answers, wait_s, until)
        except RedisConnectionError:
            # An idle connection may have been closed by the server or a proxy. What is sent here may be repeated:
            # reads, SET NX, and scripts that know their call. A timeout is not repeated: it has used the time up.
            wait_s = until - time.monotonic()
            return self.receive(self.send(command, wait_s, until), answers, wait_s, until)

    def send(self, command: bytes, wait_s: float, until: float) -> socket.socket:
        """Send packed commands; returns what `receive` needs, which must come next. Raises redis-py's errors."""
        try:
            wire, left_s = self._socket, wait_s
            if wire is None:
                wire, left_s = self._open(wait_s), until - time.monotonic()
            self._wait_at_most(wire, left_s)
            # One send for all commands of a call: its answers arrive together too, mostly by one `recv`.
            wire.sendall(command)
            return wire
        # BaseException: an interrupt must close it too, or the next command would read the answer to this one.
        except BaseException as error:
            self._fail(error, wait_s)
            raise

    def receive(self, wire: socket.socket, answers: int, wait_s: float, until: float) -> list[Answer]:
        """The answers to what was sent. Raises redis-py's errors."""
        try:
            return self._receive(wire, answers, until)
        except BaseException as error:
            self._fail(error, wait_s)
            raise

    @property
    def is_open(self) -> bool:
        """False before the first use, and after a failure."""
        return self._socket is not None

    def close(self) -> None:
        """Close it; the next use opens it again. Any thread may call this."""
        # Before the disconnect: its owner, if that is another thread, must not take the closed socket for open.
        self._socket = None
        self._connection.disconnect()

    def distrust(self) -> None:
        """Note that the server cannot answer. The next use looks for another one, if there can be one."""
        self.close()  # Sentinel is asked for the master when the connection is opened again

    def _fail(self, error: BaseException, wait_s: float) -> None:
        """Close the connection. Raises redis-py's error for one of the socket."""
        self.close()
        # redis-py's `_connect` keeps its error in the frame that the error keeps: a circle with all callers.
        cause: BaseException | None = error
        while cause is not None:
            clear_frames(cause.__traceback__)
            cause = cause.__context__
        # SO_RCVTIMEO and SO_SNDTIMEO end a blocking call with EAGAIN, which Python raises as BlockingIOError.
        if isinstance(error, TimeoutError | BlockingIOError):
            raise RedisTimeoutError(f"no answer within {wait_s * 1000:.0f} ms") from None
        if isinstance(error, OSError):
            raise RedisConnectionError(str(error)) from error

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
                # More than was asked for would be taken for the answers to the next commands.
                if reader.has_data():
                    raise ConnectionResetError("the store sent an unexpected answer")
                return received
            self._wait_at_most(wire, until - time.monotonic())

    def _open(self, wait_s: float) -> socket.socket:
        connection = self._connection
        # settimeout(0) would make the socket non-blocking, and a negative number raises ValueError.
        connection.socket_timeout = connection.socket_connect_timeout = max(wait_s, 0.001)
        connection.connect()
        wire: socket.socket = connection._sock  # redis-py has no public name for it
        # A new reader: the old one may hold a part of an answer that the connection before was closed in.
        self._reader, self._waits_ms = _reader(), 0
        if _is_plain(wire):
            # Blocking, since the limits that `_wait_at_most` gives the kernel hold for blocking calls only.
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
        # Each limit costs two system calls, as many as a read itself; most reads have the same one.
        if wait_ms == self._waits_ms:
            return
        if _is_plain(wire):
            # A struct timeval: seconds and microseconds, in native sizes.
            limit = struct.pack("@ll", wait_ms // 1000, wait_ms % 1000 * 1000)
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        else:
            wire.settimeout(wait_ms / 1000)
        self._waits_ms = wait_ms


class ClusterConnection:
    """A connection to each node of a cluster that holds what was asked for, owned by one thread.

    `ask_each`, `distrust`, `close` are as in `DirectConnection`. The commands of one call are sent to all nodes before
    any answer is read, and redirections are followed, within the time limit.
    """

    def __init__(self, store: StoreConnection, timeout_s: float) -> None:
        assert store.nodes is not None
        self._store, self._timeout_s = store, timeout_s
        self._nodes = store.nodes
        self._connections: dict[Address, DirectConnection] = {}

    def ask_each(self, keyed: Sequence[tuple[bytes, bytes]], wait_s: float) -> list[Answer]:
        """Same as in `DirectConnection`."""
        call = _Call(keyed, time.monotonic() + wait_s)
        todo = list(range(len(keyed)))
        try:
            for _ in range(MOST_REDIRECTIONS):
                todo = self._round(call, todo)
                if not todo:
                    return call.answers
        except RedisError as error:
            raise self._store.translated(error) from error
        raise StoreUnavailable(f"{self._store.shown_url} is moving keys to and fro; try again shortly")

    def distrust(self) -> None:
        """Nothing to do: a node that cannot answer is noted when its error arrives."""

    def close(self) -> None:
        """Close all connections. Any thread may call this."""
        # A copy: the owning thread may add a connection meanwhile.
        for connection in list(self._connections.values()):
            connection.close()

    def _round(self, call: _Call, todo: Sequence[int]) -> list[int]:
        """Ask each node for its part; returns what is to be asked of another node. Raises redis-py's errors."""
        parts: dict[Address, list[int]] = {}
        for number in todo:
            parts.setdefault(self._nodes.address(call.slots[number], call.left_s()), []).append(number)
        # All nodes are sent their part before one is waited for: together they take as long as the slowest one.
        again: list[int] = []
        sent = []
        for address, numbers in parts.items():
            connection = self._at(address)
            was_open, wait_s = connection.is_open, call.left_s()
            try:
                wire = connection.send(b"".join([call.commands[n] for n in numbers]), wait_s, call.until)
                sent.append((address, was_open, wire))
            except RedisError as error:
                again += self._after_failure(call, address, was_open, numbers, error)
        for address, was_open, wire in sent:
            numbers = parts[address]
            try:
                found = self._at(address).receive(wire, len(numbers), call.left_s(), call.until)
            except RedisError as error:
                again += self._after_failure(call, address, was_open, numbers, error)
            else:
                for number, answer in zip(numbers, found, strict=True):
                    call.answers[number] = answer
                    if type(answer) is AnsweredError and self._is_redirected(call, number, address):
                        again.append(number)
        return again

    def _after_failure(
        self, call: _Call, address: Address, was_open: bool, numbers: list[int], error: RedisError
    ) -> list[int]:
        """What to ask again: of the same node if its connection was an old one, of another one if it holds the keys."""
        # A timeout has used up the time of the whole call, so there is none left to ask another node.
        if isinstance(error, RedisTimeoutError) or call.left_s() <= 0:
            self._nodes.failed(address)
            raise error
        # An old connection may have been closed while idle, which says nothing about its node. A new one that fails
        # does.
        if not was_open:
            self._nodes.failed(address)
            # `address` asks for the slots again: if this node still holds one of them, nobody else can answer.
            if address in {self._nodes.address(call.slots[number], call.left_s()) for number in numbers}:
                raise error
        return numbers

    def _is_redirected(self, call: _Call, number: int, asked: Address) -> bool:
        """Whether to ask another node after this error. For a key that has moved alone (ASK) it is asked here."""
        kind, _, where = str(call.answers[number]).partition(" ")
        if kind in ("CLUSTERDOWN", "READONLY"):
            self._nodes.failed(asked)
        if kind not in ("MOVED", "ASK"):
            return False
        host, _, port = where.partition(" ")[2].rpartition(":")
        # A node without a name of its own has that of the node that answered (Redis 7).
        there = (host or asked[0], int(port))
        if kind == "MOVED":
            self._nodes.moved(call.slots[number], there)
            return True
        # ASKING holds for one command on this connection. The slot stays with the node asked first until all its keys
        # have moved, so nothing is noted.
        commands = [ASKING, call.commands[number]]
        call.answers[number] = self._at(there).exchange(commands, call.left_s(), call.until)[1]
        return False

    def _at(self, address: Address) -> DirectConnection:
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = DirectConnection(self._store, self._timeout_s, address)
        return connection


class _Call:
    """The commands of one call of a `ClusterConnection` with their slots, and the answers so far."""

    def __init__(self, keyed: Sequence[tuple[bytes, bytes]], until: float) -> None:
        self.slots = [slot_of(key) for key, _ in keyed]
        self.commands = [command for _, command in keyed]
        self.answers: list[Answer] = [None] * len(keyed)
        self.until = until

    def left_s(self) -> float:
        return self.until - time.monotonic()


def _is_plain(wire: socket.socket) -> bool:
    return type(wire) is socket.socket  # a TLS socket reads ahead and must enforce the timeout itself


def _reader() -> Any:
    return hiredis.Reader(
        replyError=AnsweredError,
        # Bytes that are no answers cannot be resynchronised: handled as a lost connection.
        protocolError=ConnectionResetError,
        encoding="utf-8",
        errors="surrogateescape",
    )
