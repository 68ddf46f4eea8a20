"""Blocks: rows come back as they were kept, whatever the batches were, and a file that is not whole is refused."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.errors import CheckpointError, InputError, OutputError
from tests.matrix import examples
from trainer.formats import stored_rows as module
from trainer.formats.batch import Position, RowBatch
from trainer.formats.stored_rows import BLOCK_ROWS, Blocks, shuffled


def batches_of(columns: Sequence[pa.Array], *, clicked: bool = False) -> list[RowBatch]:
    """A batch of each array, one after the other in a stream."""
    found, first = list[RowBatch](), 0
    for column in columns:
        lines = np.arange(first, first + len(column))
        batch = RowBatch({"v": column}, lines, "log", (), len(column), Position("log"), first_row=first)
        found.append(replace(batch, clicked=lines % 3 == 0) if clicked else batch)
        first += len(column)
    return found


def numbers(rows: int, size: int) -> list[RowBatch]:
    whole = pa.array([b"%d" % row for row in range(rows)])
    return batches_of([whole.slice(first, size) for first in range(0, rows, size)])


def keep(blocks: Blocks, batches: Iterable[RowBatch]) -> None:
    for _ in blocks.keep(batches):
        pass


def values(batches: Iterable[RowBatch]) -> list[object]:
    return [value for batch in batches for value in batch.columns["v"].to_pylist()]


@examples(50)
@given(sizes=st.lists(st.integers(0, 9000), max_size=6), draw=st.randoms(use_true_random=False))
def test_blocks_come_back_in_any_order_whatever_the_batches_were(sizes: list[int], draw: Random) -> None:
    parts = [pa.array(range(1000 * number, 1000 * number + size)) for number, size in enumerate(sizes)]
    whole = [value for part in parts for value in part.to_pylist()]
    with Blocks() as blocks:
        keep(blocks, batches_of(parts, clicked=True))
        assert len(blocks) == -(-len(whole) // BLOCK_ROWS)
        order = list(range(len(blocks)))
        draw.shuffle(order)
        read = list(blocks.read(order))
        rows = [row for block in order for row in range(block * BLOCK_ROWS, (block + 1) * BLOCK_ROWS)]
        rows = [row for row in rows if row < len(whole)]
        assert values(read) == [whole[row] for row in rows]
        assert [each.first_row + row for each in read for row in range(each.rows)] == rows
        clicked = [bool(each) for batch in read if batch.clicked is not None for each in batch.clicked]
        assert clicked == [row % 3 == 0 for row in rows]
        for done in range(len(read) + 1):
            assert values(blocks.read(order, done)) == values(read[done:])


def test_every_batch_keeps_the_types_of_its_columns_and_their_names() -> None:
    kinds = [
        *(pa.array([1, None]), pa.array([0.5, 2.0]), pa.nulls(2), pa.array([True, None])),
        *(pa.array(["ü", ""]), pa.array([b"\xff", None]), pa.array([["a"], []])),
        pa.array([[("a", 1.5)], None], pa.map_(pa.string(), pa.float64())),
    ]
    named = {name: pa.array([name]) for name in ("", "clicked", "a b")}
    with Blocks() as blocks:
        keep(blocks, batches_of(kinds))
        assert [batch.columns["v"] for batch in blocks.read([0])] == kinds
        assert all(batch.clicked is None for batch in blocks.read([0]))
    with Blocks() as blocks:
        keep(blocks, [RowBatch(named, np.arange(1), "log", (), 1, Position("log"))])
        (read,) = blocks.read([0])
        assert (read.columns, read.clicked) == (named, None)


def test_orders_are_permutations_that_never_change() -> None:
    assert shuffled(8, 1, 2) == [2, 5, 3, 1, 7, 6, 4, 0]
    seen = {tuple(shuffled(50, seed, number)) for seed in (1, 2) for number in (2, 3, 4)}
    assert len(seen) == 6 and all(sorted(order) == list(range(50)) for order in seen)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_temporary_file_has_no_name(temporary: Path) -> None:
    with Blocks() as blocks:
        keep(blocks, numbers(10_000, 3000))
        assert os.listdir(temporary) == [] and len(values(blocks.read(range(3)))) == 10_000


def test_a_kept_file_goes_on_where_its_checkpoint_was(tmp_path: Path) -> None:
    path, batches = tmp_path / "blocks", numbers(10_000, 900)
    with Blocks(path) as blocks:
        keep(blocks, batches)
        whole, size = values(blocks.read(range(3))), path.stat().st_size
        index = blocks.index(4500)
    assert path.stat().st_size == size
    with Blocks(path, index) as blocks:
        assert path.stat().st_size < size and values(blocks.read(range(2))) == whole[:4500]
        keep(blocks, batches[5:])
        assert values(blocks.read(range(3))) == whole and path.stat().st_size == size


def test_a_kept_file_that_is_damaged_cut_short_or_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "blocks"
    with Blocks(path) as blocks:
        keep(blocks, numbers(5000, 1000))
        index = blocks.index(5000)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        with pytest.raises(InputError, match="is damaged: its bytes from"):
            list(blocks.read([1, 0]))
    for left in (100, 0):
        os.truncate(path, left)
        with pytest.raises(CheckpointError, match=f"blocks has {left} bytes, but the checkpoint names"):
            Blocks(path, index)
        assert path.stat().st_size == left
    with pytest.raises(OutputError, match="none/blocks: No such file or directory"):
        Blocks(tmp_path / "none" / "blocks")


def test_a_full_disk_names_the_folder_and_the_remedy(temporary: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Blocks() as blocks:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
        try:
            with pytest.raises(OutputError, match=f"temporary file in {temporary}: .*; TMPDIR names another"):
                keep(blocks, numbers(200_000, 5000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
