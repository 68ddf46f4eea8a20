"""Blocks of shared memory: what one process writes, another reads; a file is whole and right, or refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from model_store.errors import ArtefactError, OutputError
from server.model.shared_memory import ALIGNMENT, CHECKED_FROM, START, SharedBlock

ARRAYS = {
    "weights": np.arange(6, dtype=np.float32).reshape(2, 3),
    "nothing": np.empty(0, np.int32),
    "bytes": np.frombuffer(b"ftrie", np.uint8),
}
HEAD = {"name": "ads", "fields": ["age"]}


def block() -> SharedBlock:
    return SharedBlock.write(HEAD, ARRAYS)


def equal(found: SharedBlock) -> bool:
    same = found.head == HEAD and list(found.arrays) == list(ARRAYS)
    return same and all(
        np.array_equal(array, ARRAYS[name]) and array.dtype == ARRAYS[name].dtype
        for name, array in found.arrays.items()
    )


def test_arrays_are_what_was_written_aligned_and_of_the_one_kind_that_kernels_take() -> None:
    written = block()
    assert equal(written)
    for array in written.arrays.values():
        assert array.flags.c_contiguous and array.flags.writeable and array.flags.aligned
        assert array.ctypes.data % ALIGNMENT == 0


def test_another_process_reads_the_same_memory_and_sees_what_is_written_later() -> None:
    written = block()
    program = """
import sys
from server.model.shared_memory import SharedBlock
part = SharedBlock.open(int(sys.argv[1]), sys.argv[2])
print(part.uid, part.head["name"], part.arrays["weights"].tolist(), flush=True)
sys.stdin.readline()
print(part.arrays["weights"].tolist(), flush=True)
"""
    reader = subprocess.Popen(
        [sys.executable, "-c", program, str(written.fd), "some-uid"],
        pass_fds=[written.fd],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert reader.stdout is not None
    assert reader.stdout.readline() == "some-uid ads [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]\n"
    written.arrays["weights"][1, 2] = 9.0
    last, _ = reader.communicate("go on\n", timeout=60)
    assert last == "[[0.0, 1.0, 2.0], [3.0, 4.0, 9.0]]\n"


def test_arrays_outlive_the_descriptor_and_the_block() -> None:
    written = block()
    weights = written.arrays["weights"]
    written.close()
    written.close()
    assert written.fd == -1
    del written
    assert weights.sum() == 15.0


def test_another_use_of_a_block_has_another_uid_and_descriptor_and_is_mapped_once() -> None:
    first = block()
    again = first.reused()
    assert again.uid != first.uid
    one, other = SharedBlock.open(os.dup(first.fd), first.uid), SharedBlock.open(os.dup(again.fd), again.uid)
    assert one.memory is other.memory
    assert SharedBlock.open(os.dup(block().fd), "other").memory is not one.memory
    first.close()
    assert equal(SharedBlock.open(os.dup(again.fd), again.uid))
    assert equal(other)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only Linux seals memory")
def test_nobody_can_cut_a_block_short_under_its_readers() -> None:
    written = block()
    with pytest.raises(PermissionError):
        os.ftruncate(written.fd, 1)


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, bytes]:
    path = tmp_path / "block"
    block().save(path)
    return path, path.read_bytes()


def test_a_saved_block_is_loaded_again_and_any_damage_refused(saved: tuple[Path, bytes]) -> None:
    path, good = saved
    assert equal(SharedBlock.load(path))
    assert [each.name for each in path.parent.iterdir()] == ["block"]
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :])
        with pytest.raises(ArtefactError):
            SharedBlock.load(path)
    for wrong in (b"", good[:10], good[: START.size], good[:-1], good + b"\0"):
        path.write_bytes(wrong)
        with pytest.raises(ArtefactError, match="fetch it again"):
            SharedBlock.load(path)


def test_errors_say_what_stood_there_and_what_to_do(saved: tuple[Path, bytes]) -> None:
    path, good = saved
    for wrong, message in (
        (b"ARROW1\0\0" + good[8:], "it begins with b'ARROW1"),
        (good[:8] + b"\x09" + good[9:], "format 9 of parts, expected 2; fetch it again"),
        (good[:CHECKED_FROM] + good[CHECKED_FROM:].replace(b"ads", b"adz"), "damaged: SHA-256 is"),
    ):
        path.write_bytes(wrong)
        with pytest.raises(ArtefactError, match=message):
            SharedBlock.load(path)
    path.unlink()
    with pytest.raises(ArtefactError, match="cannot read .*: No such file"):
        SharedBlock.load(path)
    with pytest.raises(OutputError, match="No space left"):
        block().save("/dev/full")
