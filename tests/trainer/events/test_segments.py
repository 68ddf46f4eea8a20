"""Rows come back in the order asked for, from memory and from the disk; files are whole, verified, not left over."""

from __future__ import annotations

import errno
import resource

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.errors import CheckpointError, OutputError
from trainer.checkpoint.folder import KEPT
from trainer.events.waiting_rows import Segments
from trainer.formats.stored_rows import MOST_ROWS

MANY = 1 << 30


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def asked(*rows: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    return numbers(*(segment for segment, _ in rows)), np.array([row for _, row in rows], np.int64)


def places(segments: Segments, *rows: tuple[int, int]) -> list[str]:
    return [row["at"] for row in gathered(segments, *rows)]


def gathered(segments: Segments, *rows: tuple[int, int]) -> list[dict]:
    """The rows as dicts, whatever the runs."""
    found = []
    for first, columns in segments.gather(*asked(*rows)):
        assert first == len(found)
        found += pa.table(columns).to_pylist()
    return found


def table(number: int, rows: int = 3) -> dict[str, pa.Array]:
    places = [f"{number}:{row}" for row in range(rows)]
    return {"at": pa.array(places), "n": pa.array([number * 10 + row for row in range(rows)])}


def filled(folder, count: int = 4, memory_bytes: int = MANY) -> Segments:
    segments = Segments(folder, memory_bytes)
    assert [segments.add(table(number)) for number in range(count)] == list(range(count))
    return segments


def restored(folder, *segments: int) -> Segments:
    again = Segments(folder, MANY)
    again.restore(numbers(*segments))
    return again


def commit(segments: Segments) -> None:
    """So many checkpoints that none that is kept names what was dropped before."""
    for _ in range(KEPT):
        segments.committed()


def files(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


ROWS = [(2, 1), (0, 0), (3, 2), (2, 0), (0, 0), (1, 1)]
PLACES = [f"{segment}:{row}" for segment, row in ROWS]


@pytest.mark.parametrize("on_disk", [False, True])
@given(rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2))))
def test_rows_come_in_the_order_asked_for(tmp_path_factory, on_disk, rows):
    folder = tmp_path_factory.mktemp("segments")
    segments = filled(folder)
    if on_disk:
        segments.flush()
        segments = restored(folder, 0, 1, 2, 3)
    assert places(segments, *rows) == [f"{segment}:{row}" for segment, row in rows]


def test_a_column_without_values_takes_the_others_type_and_another_type_makes_another_run(tmp_path):
    segments = Segments(tmp_path, MANY)
    for column in (pa.array([1, 2]), pa.nulls(2), pa.array([0.5, 1.5]), pa.array([3, None])):
        segments.add({"price": column})
    segment, row = asked((0, 0), (1, 0), (3, 0), (2, 1), (3, 1))
    runs = [(first, columns["price"]) for first, columns in segments.gather(segment, row)]
    assert [(first, column.to_pylist()) for first, column in runs] == [
        (0, [1, None, 3]),
        (3, [1.5]),
        (4, [None]),
    ]
    assert [column.type for _, column in runs] == [pa.int64(), pa.float64(), pa.int64()]
    segments.flush()
    again = Segments(tmp_path, MANY)
    assert [row["price"] for row in gathered(again, (0, 1), (1, 1), (2, 0))] == [2, None, 0.5]


def test_some_columns_may_be_asked_for_and_nothing_is_no_run(tmp_path):
    segments = filled(tmp_path)
    ((_, columns),) = segments.gather(*asked((1, 2)), ["n"])
    assert {name: column.to_pylist() for name, column in columns.items()} == {"n": [12]}
    assert list(segments.gather(*asked())) == []


def test_a_long_run_is_cut(tmp_path):
    segments = Segments(tmp_path, MANY)
    segments.add({"n": pa.array(np.arange(MOST_ROWS + 10))})
    row = np.arange(MOST_ROWS + 10)
    runs = list(segments.gather(np.zeros(row.size, np.int32), row))
    assert [(first, len(columns["n"])) for first, columns in runs] == [(0, MOST_ROWS), (MOST_ROWS, 10)]


def test_a_flush_writes_each_segment_once_and_numbers_go_on_behind_those_on_the_disk(tmp_path):
    segments = filled(tmp_path)
    segments.flush()
    before = files(tmp_path)
    stamps = [(tmp_path / name).stat().st_mtime_ns for name in before]
    segments.add(table(4))
    segments.flush()
    assert len(files(tmp_path)) == len(before) + 1
    assert [(tmp_path / name).stat().st_mtime_ns for name in before] == stamps
    assert Segments(tmp_path, MANY).add(table(5)) == 5


def test_what_is_not_needed_is_never_written(tmp_path):
    segments = filled(tmp_path)
    segments.keep(numbers(2))
    segments.flush()
    again = restored(tmp_path, 2)
    assert places(again, (2, 1)) == ["2:1"]
    with pytest.raises(CheckpointError, match="lacks 1 segment that the checkpoint names, the first is 0"):
        again.restore(numbers(0, 2))


def test_over_memory_rows_are_dropped_and_only_then_go_to_the_disk_and_come_back(tmp_path):
    bound = filled(tmp_path).memory_used // 2
    segments = filled(tmp_path, 4, bound)
    segments.free_memory(lambda: numbers(3))
    assert 0 < segments.memory_used <= bound and files(tmp_path) == []
    segments = filled(tmp_path, memory_bytes=1)
    segments.free_memory(lambda: numbers(0, 1, 2, 3))
    assert segments.memory_used == 0 and places(segments, *ROWS) == PLACES


def test_random_adding_and_dropping_stays_within_memory_and_loses_nothing(tmp_path):
    random, alive, bound = np.random.default_rng(3), set[int](), 20_000
    segments = Segments(tmp_path, bound)
    for number in range(150):
        alive.add(segments.add(table(number, int(random.integers(1, 60)))))
        alive = {each for each in alive if random.random() < 0.97}
        needed = numbers(*sorted(alive))
        segments.free_memory(lambda needed=needed: needed)
        assert segments.memory_used <= bound
        wanted = [(each, 0) for each in sorted(alive)]
        random.shuffle(wanted)
        assert places(segments, *wanted) == [f"{each}:0" for each, _ in wanted]
    assert files(tmp_path)


def test_a_file_goes_when_no_checkpoint_that_is_kept_can_name_it(tmp_path):
    segments = filled(tmp_path, 2)
    segments.flush()
    segments.committed()
    segments.keep(numbers())
    for _ in range(KEPT):
        assert len(files(tmp_path)) == 1
        segments.committed()
    assert files(tmp_path) == []


def test_files_that_no_checkpoint_names_go_also_after_a_crash(tmp_path):
    filled(tmp_path).flush()
    (tmp_path / "0000000009.begun").write_bytes(b"half")
    segments = Segments(tmp_path, MANY)
    assert len(files(tmp_path)) == 1
    segments.restore(numbers())
    commit(segments)
    assert files(tmp_path) == []


@pytest.mark.parametrize("place", [0.3, 0.9, 0.9999])
def test_a_damaged_file_is_named(tmp_path, place):
    filled(tmp_path).flush()
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[int(len(data) * place)] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=path.name):
        gathered(restored(tmp_path, 0), (0, 0))


def test_a_damaged_file_that_nobody_needs_goes_and_what_is_written_after_it_stays(tmp_path):
    filled(tmp_path).flush()
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"cut")
    segments = restored(tmp_path)
    number = segments.add(table(7))
    segments.flush()
    commit(segments)
    assert not path.exists() and places(restored(tmp_path, number), (number, 0)) == ["7:0"]


def test_a_full_disk_loses_nothing_and_can_be_tried_again(tmp_path):
    segments = filled(tmp_path, memory_bytes=1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        for attempt in (segments.flush, lambda: segments.free_memory(lambda: numbers(0, 1, 2, 3))):
            with pytest.raises(OutputError, match="nothing is lost") as raised:
                attempt()
            assert raised.value.__cause__.errno == errno.EFBIG and files(tmp_path) == []
        assert places(segments, *ROWS) == PLACES
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    segments.flush()
    assert places(Segments(tmp_path, MANY), *ROWS) == PLACES


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot use"):
        Segments(tmp_path / "file" / "segments", MANY)


def test_erased_rows_are_in_no_file_and_all_others_stay_where_they_were(tmp_path):
    """Given rows in memory and on disk, those erased have no value, here and after a restart."""
    segments = filled(tmp_path, 2)
    segments.flush()
    assert segments.add(table(2)) == 2
    segments.erase(*asked((0, 1), (2, 0)), numbers(2, 1))
    segments.flush()
    again = Segments(tmp_path, MANY)
    again.restore(numbers(0, 1, 2))
    for each in (segments, again):
        found = places(each, *((number, row) for number in range(3) for row in range(3)))
        assert found == ["0:0", None, None, "1:0", "1:1", "1:2", None, "2:1", "2:2"]
    assert not any(b"0:1" in path.read_bytes() for path in tmp_path.iterdir())
