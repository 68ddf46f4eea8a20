"""Growing files as a source: rotated, cut back, copied, compressed and deleted while they are read."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from model_store.errors import InputError
from server.events.sinks import RotatingFile
from tests.matrix import examples
from trainer.events.events import NEVER_US, SourcePosition
from trainer.sources import file_tracker
from trainer.sources.files import FileSource
from trainer.sources.open_files import PlainFile


def event(number: int) -> bytes:
    return json.dumps({"request_id": f"r{number}", "item": "a", "pad": "x" * (number % 40)}).encode() + b"\n"


class Reading:
    """Reads a source by and by, reopening it where it stands when asked to."""

    def __init__(
        self, name: Path | str, *, once: bool = False, position: SourcePosition | None = None
    ) -> None:
        self.name, self.once = str(name), once
        self.notes: list[str] = []
        self.lines: list[bytes] = []
        self.at: SourcePosition = position or {}
        self.source = self._open()

    def _open(self) -> FileSource:
        return FileSource(self.name, self.at, self.notes.append, once=self.once)

    def reopen(self) -> None:
        """As after a kill: from JSON, at the last position."""
        self.source.close()
        self.at = json.loads(json.dumps(self.at))
        self.source = self._open()

    def step(self, count: int | None = None) -> bool:
        """One read; of what it brings, only `count` lines are taken, and the source is opened there again."""
        chunk = self.source.read()
        if chunk is None:
            return False
        taken = len(chunk) if count is None else min(count, len(chunk))
        starts = chunk.starts.tolist()
        self.lines += [chunk.data[starts[i] : starts[i + 1]] for i in range(taken)]
        self.at = self.source.position(chunk, taken)
        if taken < len(chunk):
            self.reopen()
        return True

    def all(self) -> list[bytes]:
        while self.step():
            pass
        return self.lines


@pytest.fixture(autouse=True)
def looks_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_tracker, "RESTS", 0.0)


@pytest.fixture
def lost_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_tracker, "GONE_S", 0.0)


def events(*numbers: int) -> list[bytes]:
    """The lines from one number to before another, as of range."""
    return [event(n) for n in range(*numbers)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def append(path: Path, *lines: bytes) -> None:
    with path.open("ab") as file:
        file.write(b"".join(lines))


def test_a_file_that_is_not_there_yet_is_waited_for_and_that_is_said_once(log: Path) -> None:
    reading = Reading(log)
    assert reading.all() == [] and reading.all() == []
    assert len(reading.notes) == 1 and "waiting for it" in reading.notes[0]
    append(log, event(0))
    assert reading.all() == events(1) and reading.source.watermark_us() == 0


def test_a_line_is_read_once_it_is_ended_or_with_once_by_the_end_of_the_file(log: Path) -> None:
    append(log, event(0), event(1)[:10])
    reading = Reading(log)
    assert reading.all() == events(1)
    reading.reopen()
    assert reading.all() == events(1)
    append(log, event(1)[10:-1])
    assert reading.all() == events(1)
    once = Reading(log, once=True)
    assert once.all() == events(2) and once.source.watermark_us() == NEVER_US
    append(log, b"\n", event(2))
    once.reopen()
    assert once.all() == reading.all() == events(3)


def test_blank_lines_and_a_byte_order_mark_are_passed_over_and_long_lines_read_whole(log: Path) -> None:
    long = json.dumps({"pad": "x" * 3_000_000}).encode() + b"\n"
    append(log, b"\xef\xbb\xbf", b"\n", event(1), b"\r\n", b"\n", long, event(2))
    reading = Reading(log)
    assert reading.all() == [event(1), long, event(2)]
    reading.reopen()
    append(log, b"\n\n", event(3))
    assert reading.all() == [event(1), long, event(2), event(3)]


def test_where_an_event_stands_is_told_by_its_file_and_line(log: Path) -> None:
    append(log, b"\n", event(1), b"\n", event(2))
    source = FileSource(str(log), {}, print, once=True)
    chunk = source.read()
    assert chunk is not None
    assert [source.where(chunk, number) for number in (0, 1)] == [f"{log}:2", f"{log}:4"]
    append(log, event(3)[:-1])  # a last line without its end
    again = FileSource(str(log), source.position(chunk, 2), print, once=True)
    rest = again.read()
    assert rest is not None and again.where(rest, 0) == f"{log}:5"


def test_a_line_that_never_ends_is_refused(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.sources.file_tracker.MAX_ROW_BYTES", 1 << 20)
    append(log, event(1), b"x" * (3 << 20))
    reading = Reading(log)
    reading.step()
    with pytest.raises(InputError, match=r"events\.jsonl:2: a line longer than"):
        reading.step()


def test_files_rotated_before_the_first_read_are_read_oldest_first(log: Path, tmp_path: Path) -> None:
    for number, name in enumerate((".2026-01-01", "-20260131", ".12", ".2", ".1", "")):
        append(Path(f"{log}{name}"), event(number))
    append(log.with_name("events.jsonl.1.idx"), b"not one of them\n")
    # by date: both marks as they sort; then by number, falling
    assert sorted(Reading(log).all()) == sorted(events(6))
    assert Reading(log).all()[2:] == events(2, 6)
    folder = tmp_path / "folder"
    folder.mkdir()
    for number, name in enumerate(("a.jsonl.2", "a.jsonl.1", "a.jsonl", "b.jsonl", "part.1", "part.2")):
        append(folder / name, event(number))
    assert Reading(folder).all() == events(6)


def pack(path: Path, packing: str = "gzip", *, keep: bool = False) -> None:
    data, suffix = path.read_bytes(), {"gzip": "gz", "zstd": "zst"}[packing]
    packed = gzip.compress(data) if packing == "gzip" else pa.compress(data, "zstd", asbytes=True)
    Path(f"{path}.{suffix}").write_bytes(packed)
    if not keep:
        path.unlink()


def test_the_half_line_at_the_end_of_a_compressed_file_is_a_line(log: Path) -> None:
    append(log, event(0), event(1)[:-1])
    reading = Reading(log)
    assert reading.all() == events(1)
    log.rename(f"{log}.1")
    pack(Path(f"{log}.1"))
    assert reading.all() == events(2)


def test_a_compressed_file_cut_short_is_read_as_far_as_it_goes_and_said(log: Path) -> None:
    lines = events(20_000)
    packed = gzip.compress(b"".join(lines))
    whole = Path(f"{log}.1.gz")
    whole.write_bytes(packed[: len(packed) // 2])
    reading = Reading(log)
    count = len(reading.all())
    assert 0 < count < len(lines) and reading.lines == lines[:count]
    assert [note for note in reading.notes if "cut short" in note]
    whole.write_bytes(packed)  # and once it is whole, all of it, in position
    assert reading.all() == lines


def copy_and_cut_back(log: Path) -> None:
    shutil.copy(log, f"{log}.1")
    os.truncate(log, 0)


@pytest.mark.parametrize("reopens", [True, False])
def test_a_copy_that_is_still_being_written_is_not_another_file(log: Path, reopens: bool) -> None:
    append(log, *events(6))
    reading = Reading(log)
    reading.all()
    copy = Path(f"{log}.1")
    append(copy, *events(2))
    if reopens:
        reading.reopen()
    assert reading.all() == events(6)
    append(copy, *events(2, 6))
    os.truncate(log, 0)
    append(log, event(6))
    assert reading.all() == events(7)


def test_a_file_that_begins_like_another_for_some_lines_is_another(tmp_path: Path) -> None:
    append(tmp_path / "a.jsonl", event(1), event(2), event(3))
    append(tmp_path / "b.jsonl", event(1), event(4))
    assert Reading(tmp_path).all() == [event(n) for n in (1, 2, 3, 1, 4)]


def test_a_file_that_was_cut_back_or_overwritten_is_read_from_its_start_and_that_is_said(log: Path) -> None:
    append(log, *events(2))
    reading = Reading(log)
    reading.all()
    os.truncate(log, 0)
    append(log, event(2))
    assert reading.all() == events(3)
    assert "cut back" in reading.notes[0] and reading.source.lost == 0
    with log.open("wb") as file:  # same inode
        file.write(b"".join(events(3, 9)))
    assert reading.all() == events(9)


def test_the_unread_rest_of_a_deleted_file_is_read_while_it_is_open(log: Path) -> None:
    append(log, *events(30_000))
    reading = Reading(log)
    reading.step()
    assert len(reading.lines) < 30_000
    log.unlink()
    append(log, event(30_000))
    assert reading.all() == events(30_001)


def test_the_unread_rest_of_a_file_deleted_meanwhile_is_counted_and_said(log: Path, lost_soon: None) -> None:
    append(log, *(event(40 * n) for n in range(100, 110)))
    reading = Reading(log)
    reading.step(4)
    log.rename(f"{log}.9")
    Path(f"{log}.9").unlink()
    append(log, event(1))
    reading.source.close()
    reading.reopen()
    assert reading.all()[4:] == [event(1)]
    assert reading.source.lost == 6 and "about 6 events" in reading.notes[-1]
    append(log, event(2))
    reading.all()
    assert reading.at["lost"] == 6
    reading.reopen()
    assert reading.all()[4:] == [event(1), event(2)] and reading.source.lost == 6


def test_what_was_cut_off_before_it_was_read_is_counted(log: Path, lost_soon: None) -> None:
    append(log, event(40), event(80))
    reading = Reading(log)
    reading.step(1)
    os.truncate(log, 0)
    append(log, event(1))
    reading.reopen()
    assert reading.all() == [event(40), event(1)] and reading.source.lost == 1


def test_a_folder_is_read_in_the_order_of_names_and_new_files_join(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    reading, matching = Reading(folder), Reading(folder / "*.jsonl")
    assert reading.all() == matching.all() == []
    folder.mkdir()
    append(folder / "b.jsonl", event(2))
    append(folder / "a.jsonl", event(1))
    append(folder / ".hidden", b"not this\n")
    append(folder / "c.jsonl.tmp", b"nor this\n")
    assert reading.all() == matching.all() == [event(1), event(2)]
    reading.reopen()
    append(folder / "c.jsonl", event(3))
    append(folder / "b.jsonl", event(4))
    append(folder / "d.txt", event(5))
    assert reading.all() == [event(1), event(2), event(4), event(3), event(5)]
    assert matching.all() == [event(1), event(2), event(4), event(3)]


def test_a_new_file_with_the_inode_of_a_deleted_one_is_new(log: Path) -> None:
    append(log, *events(2))
    reading = Reading(log)
    reading.all()
    reading.source.close()
    log.unlink()
    append(log, *events(2, 5))
    # Where the file system gave another inode, the position is made to know the new file by it.
    reading.at["files"][0][1] = log.stat().st_ino
    reading.reopen()
    assert reading.all() == events(5)


def test_lag_is_the_bytes_that_are_not_read(log: Path) -> None:
    append(log, *events(2))
    reading = Reading(log)
    assert reading.source.lag().bytes == len(event(0) + event(1))
    reading.all()
    assert reading.source.lag().bytes == 0


@pytest.mark.parametrize("taken", [0, 1])
def test_a_file_that_is_replaced_while_it_is_recognized_is_not_taken_for_its_successor(
    log: Path, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, *events(2))
    reading = Reading(log)
    reading.step(taken)
    append(log, event(2))
    head = PlainFile.head

    def replaced_after(file: PlainFile) -> bytes:
        monkeypatch.setattr(PlainFile, "head", head)
        was = head(file)
        copy_and_cut_back(log)
        append(log, *events(3, 9))
        return was

    monkeypatch.setattr(PlainFile, "head", replaced_after)
    assert reading.all() == events(9) and PlainFile.head is head


MOVING = """
import gzip, os, shutil, sys
from tests.trainer.events.test_sources_files import event
log, count, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
file = open(log, "ab", buffering=0)
for number in range(count):
    file.write(event(number))
    if number % 100 == 99:
        for old in range(number // 100, 0, -1):
            for end in ("", ".gz"):
                if os.path.exists(f"{log}.{old}{end}"):
                    os.rename(f"{log}.{old}{end}", f"{log}.{old + 1}{end}")
        if how == "rename":
            os.rename(log, f"{log}.1")
            file = open(log, "ab", buffering=0)
        else:
            shutil.copyfile(log, f"{log}.1")
            os.truncate(log, 0)
        if os.path.exists(f"{log}.2"):
            with open(f"{log}.2", "rb") as plain, gzip.open(f"{log}.2.gz", "wb") as packed:
                shutil.copyfileobj(plain, packed)
            os.unlink(f"{log}.2")
"""
"""As logrotate does it: numbers move on, and what is older than the last is compressed."""


WRITER = """
import sys
from server.events.sinks import RotatingFile
from tests.trainer.events.test_sources_files import event
file = RotatingFile(sys.argv[1], 6000, 50)
for number in range(int(sys.argv[2])):
    file.append(event(number))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "how", "named"),
    [(MOVING, "rename", "folder"), (MOVING, "copytruncate", "file"), (WRITER, "rotate", "file")],
    ids=["rename", "copytruncate", "rotating file"],
)
def test_every_line_is_read_once_while_another_process_moves_the_files_on(
    log: Path, script: str, how: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_tracker, "RESTS", 5.0 if script == MOVING else 0.0)
    count = 1000
    log.touch()
    writer = subprocess.Popen([sys.executable, "-c", script, str(log), str(count), how])
    reading = Reading(log if named == "file" else log.parent)
    reads = 0
    while writer.poll() is None:
        reading.step(7 if reads % 5 == 0 else None)
        reads += 1
    assert writer.returncode == 0
    reading.reopen()  # so that it looks at once
    monkeypatch.setattr(file_tracker, "RESTS", 0.0)
    assert reading.all() == events(count) and reading.source.lost == 0


def test_reading_can_go_on_from_every_place(log: Path) -> None:
    file = RotatingFile(log, 500, 100)
    for number in range(40):
        file.append(event(number))
    positions: list[SourcePosition] = [{}]
    source = FileSource(str(log), {}, print)
    while (chunk := source.read()) is not None:
        positions += [source.position(chunk, count) for count in range(1, len(chunk) + 1)]
    assert len(positions) == 41
    pack(Path(f"{log}.3"))
    for taken, position in enumerate(positions):
        assert Reading(log, position=position).all() == events(taken, 40)


ACTS = {
    "append": (1, 5),
    "half": (1, 20),
    "rotate": (0, 0),
    "copytruncate": (0, 0),
    "gzip": (1, 3),
    "zstd": (1, 3),
}
ACTS |= {"read": (0, 8), "reopen": (0, 0)}
STEPS = st.lists(
    st.one_of(st.tuples(st.just(name), st.integers(*bounds)) for name, bounds in ACTS.items()), max_size=40
)


class Life:
    """A log that lives: lines are written to it in order, and files move on, whatever else happens."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "events.jsonl"
        self.log.touch()
        self.written: list[bytes] = []
        self._half = b""

    def append(self, count: int, path: Path | None = None) -> None:
        for _ in range(count):
            line = event(len(self.written))
            append(path or self.log, line[len(self._half) :])
            self._half = b""
            self.written.append(line)

    def late(self, count: int) -> None:
        self.append(count, self.old(1))

    def half(self, size: int) -> None:
        if not self._half:
            self._half = event(len(self.written))[:size]
            append(self.log, self._half)

    def rotate(self, _: int) -> None:
        if self._make_room():
            self.log.rename(self.old(1))
            self.log.touch()

    def copytruncate(self, _: int) -> None:
        if self._make_room():
            self.copy(1)
            self.cut(0)

    def copy(self, number: int) -> None:
        shutil.copy(self.log, self.old(number))

    def cut(self, _: int) -> None:
        os.truncate(self.log, 0)

    def gzip(self, number: int, packing: str = "gzip", *, keep: bool = False) -> None:
        if self.old(number).exists():
            pack(self.old(number), packing, keep=keep)

    def zstd(self, number: int) -> None:
        self.gzip(number, "zstd")

    def keep(self, number: int) -> None:
        self.gzip(number, keep=True)

    def unlink(self, number: int) -> None:
        self.old(number).unlink()

    def old(self, number: int, end: str = "") -> Path:
        return Path(f"{self.log}.{number}{end}")

    def _make_room(self) -> bool:
        """Move all numbers on, unless nothing is to be rotated, or half a line."""
        if self._half or not self.log.stat().st_size:
            return False
        for number in range(60, 0, -1):
            for end in ("", ".gz", ".zst"):
                if self.old(number, end).exists():
                    self.old(number, end).rename(self.old(number + 1, end))
        return True


def script(text: str) -> list[tuple[str, int]]:
    return [(name, int(value or 0)) for name, _, value in (each.partition(" ") for each in text.split(", "))]


@examples(60)
@given(steps=STEPS)
@example(script("append 2, read 1, rotate, late 1, append 1"))  # by a writer that has the old file open still
@example(script("append 5, read 2, rotate, append 1, gzip 1"))
@example(script("append 5, read 2, rotate, append 1, gzip 1, reopen"))
@example(script("append 5, read 2, rotate, append 1, zstd 1"))
@example(script("append 5, read 2, rotate, append 1, zstd 1, reopen"))
@example(script("append 5, rotate, keep 1, read 9, unlink 1, reopen"))  # compressed beside its original
@example(script("append 9, read 2, copytruncate, append 1, reopen"))
# A copy stands there, but the original is still whole; then it is cut back.
@example(script("append 3, read 1, copy 1, read 9, append 1, read 9, copy 1, cut, append 5"))
def test_whatever_happens_to_the_files_every_line_is_read_once_and_in_order(tmp_path_factory, steps):
    life = Life(tmp_path_factory.mktemp("life"))
    reading = Reading(life.log)
    for name, value in steps:
        if name == "reopen":
            reading.reopen()
        else:
            (reading.step if name == "read" else getattr(life, name))(value)
        assert reading.lines == life.written[: len(reading.lines)]
    assert reading.all() == life.written
    reading.reopen()
    assert reading.all() == life.written and reading.source.lost == 0
    reading.source.close()
