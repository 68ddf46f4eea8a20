"""What `--impressions` may name; and lines from several processes in one file: whole, each once, whatever happens."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from model_store.errors import OutputError, ServerError, StoreError
from server.events import sinks
from server.events.sinks import RotatingFile
from server.settings import Settings
from tests.model_store.models import python


def check(*names: str) -> None:
    sinks.check(Settings(("shop",), "", impressions=names))


@pytest.mark.parametrize("name", ["kafka://x", "file:", "file", "", "stores", "redis:/:secret@host"])
def test_a_sink_that_is_none_is_refused_at_the_start(name: str) -> None:
    with pytest.raises(ServerError, match="expected store, redis://HOST:PORT or file:PATH") as refused:
        check(name)
    assert "secret" not in str(refused.value)


def test_one_that_cannot_be_is_told_at_the_start(tmp_path: Path) -> None:
    for url in ("redis://:secret@host:notaport", "redis://:secret@host:99999"):
        with pytest.raises(StoreError, match="cannot read the store's URL") as refused:
            check(url)
        assert "secret" not in str(refused.value)
    with pytest.raises(ServerError, match="one sink is given twice"):
        check("store", "store")
    with pytest.raises(OutputError, match="cannot write impressions to .*nowhere"):
        check(f"file:{tmp_path}/nowhere/x")


def lines(path: Path) -> list[str]:
    """Every line, oldest file first."""
    found = sorted(path.parent.glob(f"{path.name}*"), key=lambda each: each.suffix, reverse=True)
    oldest_first = [*(each for each in found if each != path), path]
    return [line for each in oldest_first for line in each.read_text().splitlines()]


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let the kernel refuse what would make a file larger, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_a_full_file_moves_on_and_the_oldest_goes(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "log", max_bytes=30, kept=2)
    for n in range(20):
        file.append(b"line %02d\n" % n)
    assert sorted(os.listdir(tmp_path)) == ["log", "log.1", "log.2"]
    written = lines(tmp_path / "log")
    assert written == [f"line {n:02d}" for n in range(12, 20)][-len(written) :]
    assert all(path.stat().st_size <= 30 for path in tmp_path.iterdir())


def test_processes_that_write_at_once_lose_and_tear_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from server.events.sinks import RotatingFile\n"
        "file = RotatingFile(sys.argv[1], max_bytes=2000, kept=1000)\n"
        "sys.stdin.readline()\n"
        "for n in range(200): file.append(f'{sys.argv[2]} {n} {n * 7}\\n'.encode())\n"
    )
    writers = [python(code, str(tmp_path / "log"), name) for name in ("a", "b", "c")]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    written = [line for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
    assert sorted(written) == sorted(f"{name} {n} {n * 7}" for name in "abc" for n in range(200))


def test_where_the_disk_is_full_nothing_of_a_batch_stays(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "log", max_bytes=1000, kept=1)
    file.append(b"before\n")
    with files_of_at_most(12), pytest.raises(OSError):
        file.append(b"does not fit\n")
    assert lines(tmp_path / "log") == ["before"]
    file.append(b"after\n")
    assert lines(tmp_path / "log") == ["before", "after"]


def test_long_lines_half_lines_and_files_that_are_moved_away(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "long", max_bytes=10, kept=3)
    for text in (b"short\n", b"x" * 50 + b"\n", b"short\n"):
        file.append(text)
    assert lines(tmp_path / "long") == ["short", "x" * 50, "short"]

    (tmp_path / "half").write_text("whole\nhal")
    RotatingFile(tmp_path / "half", max_bytes=1000, kept=1).append(b"next\n")
    assert lines(tmp_path / "half") == ["whole", "hal", "next"]

    file = RotatingFile(tmp_path / "log", max_bytes=1000, kept=1)
    file.append(b"one\n")
    (tmp_path / "log").rename(tmp_path / "moved")
    file.append(b"two\n")
    assert (tmp_path / "log").read_text() == "two\n"
