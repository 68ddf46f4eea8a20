"""Arena: what is appended, at once or later, is there in order; and what went wrong later is raised."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from trainer.learn.arena import Arena


def writing(text: bytes, begins: threading.Event | None = None):
    """Appends `text`; not before `begins` is set."""

    def write(memory, end):
        if begins is not None:
            assert begins.wait(30)
        if end + len(text) > memory.size:
            return -1
        memory[end : end + len(text)] = np.frombuffer(text, np.uint8)
        return end + len(text)

    return write


def content(arena: Arena) -> bytes:
    return arena.memory[: arena.end].tobytes()


def test_what_is_appended_is_there_in_order():
    arena = Arena()
    texts = [b"%07d." % number for number in range(1000)]
    for number, text in enumerate(texts):
        arena.append(writing(text), later=number % 3 > 0)
    assert content(arena) == b"".join(texts)


def test_another_thread_writes_what_is_appended_later_and_readers_wait_for_it():
    arena, begins = Arena(), threading.Event()
    arena.append(writing(b"late", begins), later=True)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(content(arena)))
    reader.start()
    reader.join(0.1)
    assert reader.is_alive()
    begins.set()
    reader.join(30)
    assert read == [b"late"]


@pytest.mark.parametrize("is_viewed", [False, True])
@pytest.mark.parametrize("later", [False, True])
def test_it_grows_while_it_is_appended_to(later, is_viewed):
    arena = Arena()
    viewed = arena.memory[:1] if is_viewed else None
    texts = [bytes([number]) * 300_000 for number in range(1, 10)]
    for text in texts:
        arena.append(writing(text), later=later)
    assert content(arena) == b"".join(texts)
    arena.truncate(300_000)
    assert content(arena) == texts[0] and arena.memory.size < 1 << 21
    del viewed


def test_what_goes_wrong_later_is_raised_by_the_next_use_and_once():
    arena = Arena()
    arena.append(writing(b"kept"))

    def fail(memory, end):
        raise MemoryError("no 8 bytes")

    arena.append(fail, later=True)
    with pytest.raises(MemoryError, match="no 8 bytes"):
        arena.append(writing(b"not reached"))
    assert content(arena) == b"kept"
    arena.append(writing(b", and more"), later=True)
    assert content(arena) == b"kept, and more"


def test_restored_entries_replace_what_is_still_being_written():
    arena = Arena()
    arena.append(writing(b"x" * 5_000_000), later=True)
    arena.restore(np.frombuffer(b"these", np.uint8))
    assert content(arena) == b"these"
    arena.append(writing(b" and those"))
    assert content(arena) == b"these and those"
