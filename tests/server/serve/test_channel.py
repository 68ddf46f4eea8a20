"""Messages between supervisor and worker: whole, in order, with open files, and an end that both sides see."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from server.serve.channel import MAX_DESCRIPTORS, Channel, ChannelClosed


def pair() -> tuple[Channel, Channel]:
    ours, theirs = Channel.pair()
    return ours, Channel(theirs)


def test_messages_come_whole_and_in_order_however_long() -> None:
    here, there = pair()
    bodies = [{"do": "ping"}, {"text": "x" * 3_000_000}, {"text": "ü€"}, {}]
    sender = threading.Thread(target=lambda: [here.send(body) for body in bodies])
    sender.start()
    assert [there.receive().body for _ in bodies] == bodies
    sender.join()


def test_descriptors_come_with_their_message() -> None:
    here, there = pair()
    files = [os.memfd_create(name) for name in ("a", "b")]
    for number, file in enumerate(files):
        os.write(file, b"%d" % number)
    here.send({"plain": True})
    here.send({"with": "files"}, files)
    assert there.receive().descriptors == ()
    received = there.receive().descriptors
    assert [os.pread(file, 9, 0) for file in received] == [b"0", b"1"]
    for file in (*files, *received):
        os.close(file)


def test_the_end_of_one_side_is_seen_by_the_other_and_what_is_too_much_refused() -> None:
    here, there = pair()
    with pytest.raises(ValueError, match="at most"):
        here.send({}, [0] * (MAX_DESCRIPTORS + 1))
    here.send({"last": 1})
    here.close()
    assert there.receive().body == {"last": 1}
    with pytest.raises(ChannelClosed):
        there.receive()
    with pytest.raises(ChannelClosed):
        there.send({})


def test_a_message_cut_short_is_the_end_and_leaves_no_file_open() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    there, before = Channel(theirs), len(os.listdir("/proc/self/fd"))
    file = os.memfd_create("a")
    socket.send_fds(ours, [b"\xff\x00\x00\x00"], [file])
    ours.send(b"{")
    ours.close()
    os.close(file)
    with pytest.raises(ChannelClosed):
        there.receive()
    assert len(os.listdir("/proc/self/fd")) == before - 1
