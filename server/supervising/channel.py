"""The control channel between supervisor and worker: JSON messages over a Unix socket pair, open files beside them.

A message is a length of 4 bytes, little endian, and that many bytes of JSON; the descriptors travel with the length.
What the messages say is in `server.supervising.messages`. Both ends run the same release of ftrie.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

MAX_MESSAGE_BYTES = 64 << 20
MAX_DESCRIPTORS = 16
SEND_TIMEOUT_S = 5.0
_LENGTH = struct.Struct("<I")


class ChannelClosed(Exception):
    """The other end is gone, or takes nothing in: the process there is to be treated as dead."""


@dataclass(frozen=True)
class Message:
    """What was received. Who takes it owns `descriptors`, and closes them."""

    body: dict[str, Any]
    descriptors: tuple[int, ...] = ()


class Channel:
    """One end. Thread safety: any thread may send; one thread receives."""

    def __init__(self, end: socket.socket) -> None:
        """Takes over a connected, blocking stream socket of the Unix family."""
        # A send waits for room at most this long: an end that takes nothing must not hold up the others.
        seconds, microseconds = int(SEND_TIMEOUT_S), int(SEND_TIMEOUT_S % 1 * 1e6)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", seconds, microseconds))
        self._socket = end
        self._sending = threading.Lock()

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """A channel, and the socket of its other end, which a child inherits."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(ours), theirs

    def send(self, body: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send one message whole; the descriptors stay the caller's too. Raises ChannelClosed."""
        if len(descriptors) > MAX_DESCRIPTORS:
            raise ValueError(
                f"got {len(descriptors)} descriptors; a message carries at most {MAX_DESCRIPTORS}"
            )
        text = json.dumps(body, allow_nan=False).encode()
        with self._sending:
            try:
                # A length of four bytes goes into an empty or half-full buffer whole, or not at all.
                socket.send_fds(self._socket, [_LENGTH.pack(len(text))], descriptors)
                self._socket.sendall(text)
            except OSError as error:
                self.hang_up()  # half a message may be on its way: nothing may follow it
                raise ChannelClosed(f"the other end takes no message: {error.strerror}") from error

    def receive(self) -> Message:
        """Wait for the next message. Raises ChannelClosed at the end of the stream."""
        head, descriptors = self._head()
        try:
            (length,) = _LENGTH.unpack(head)
            if length > MAX_MESSAGE_BYTES:
                raise ChannelClosed(f"a message of {length} bytes; the most is {MAX_MESSAGE_BYTES}")
            return Message(json.loads(self._exactly(length)), tuple(descriptors))
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise

    def hang_up(self) -> None:
        """End both directions: the other end and a waiting `receive` see the end of the stream."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Hang up and let go of the descriptor. No thread may still receive."""
        self.hang_up()
        self._socket.close()

    def _head(self) -> tuple[bytes, list[int]]:
        try:
            head, descriptors, _, _ = socket.recv_fds(self._socket, _LENGTH.size, MAX_DESCRIPTORS)
        except OSError as error:
            raise ChannelClosed(f"the channel broke: {error.strerror}") from error
        try:
            rest = self._exactly(_LENGTH.size - len(head)) if head else b""
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        if not head:
            raise ChannelClosed("the other end has closed the channel")
        return head + rest, descriptors

    def _exactly(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            try:
                piece = self._socket.recv(min(count - len(received), 1 << 20))
            except OSError as error:
                raise ChannelClosed(f"the channel broke: {error.strerror}") from error
            if not piece:
                raise ChannelClosed("the other end closed the channel within a message")
            received += piece
        return bytes(received)
