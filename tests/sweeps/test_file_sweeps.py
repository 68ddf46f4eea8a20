"""The n-th failure of what writes files: checkpoints, artefacts, the last good model, impressions, caches, reports."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from ctr.v1.ranking_pb2 import RankRequest
from model_store.artefact.artefact import Artefact
from model_store.errors import FtrieError
from model_store.files import write_whole
from model_store.model_files import write_model
from model_store.versions.experiments import Experiment
from server.events.sinks import RotatingFile
from server.model.shared_memory import Parts, SharedBlock
from server.serve.observers import Recorder
from server.sync.last_good import KeptExperiments, LastGood
from server.sync.state_folder import StateFolder
from tests.model_store.models import KEYS, model
from tests.sweeps.failing import Failing
from tests.sweeps.sweep import Operation, sweep
from tests.trainer.formats.test_stored_rows import keep, numbers, values
from trainer.checkpoint.folder import CheckpointFolder, checkpoints_in
from trainer.events.waiting_rows import Segments
from trainer.formats.rejects import Reject, RejectLog
from trainer.formats.stored_rows import Blocks, CachedLog
from trainer.learn.metrics.records import End, MetricsFile
from trainer.runs.trainer import lease_owner

OLD, NEW = (model(weights=[weight] * len(KEYS)) for weight in (1.0, 2.0))


@contextmanager
def folder_with(folder: Path, prepare: Callable[[Path], object]) -> Iterator[Path]:
    """A fresh folder, in which `prepare` has put the old state."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    prepare(folder)
    yield folder
    shutil.rmtree(folder)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def try_all(
    name: str,
    tmp_path: Path,
    prepare: Callable[[Path], object],
    act: Callable[[Path], object],
    state: Callable[[Path], object],
    **how: object,
) -> None:
    world = partial(folder_with, tmp_path / "w", prepare)
    operation = Operation(name, world, act, state, **how)  # type: ignore[arg-type]
    sweep(operation)


def unexpected(*expected: str) -> Callable[[Path], list[str]]:
    """The files that are none of these."""
    return lambda folder: [name for name in names(folder) if name not in expected]


def test_a_file_written_whole(tmp_path: Path) -> None:
    try_all(
        "a whole file",
        tmp_path,
        lambda folder: (folder / "f").write_bytes(b"old"),
        lambda folder: write_whole(folder / "f", b"new" * 10_000),
        lambda folder: (folder / "f").read_bytes(),
        leaves=unexpected("f"),
    )


def test_a_file_is_on_disk_before_it_has_its_name_and_then_the_name_is(tmp_path: Path) -> None:
    with Failing() as counted:
        write_whole(tmp_path / "f", b"new")
    assert counted.calls == ["open", "write", "sync", "rename", "sync"]


@pytest.mark.parametrize("name", ["m.arrow", "m.json"])
def test_a_model_file(tmp_path: Path, name: str) -> None:
    def state(folder: Path) -> object:
        path = folder / name
        return path.read_bytes() if name.endswith("json") else Artefact.read(path).content

    try_all(
        name,
        tmp_path,
        lambda folder: write_model(OLD, folder / name),
        lambda folder: write_model(NEW, folder / name),
        state,
        leaves=unexpected(name),
    )


def checkpoint(rows: int, folder: Path) -> None:
    with CheckpointFolder(folder / "c", lambda text: None) as opened:
        opened.write(rows, {"rows": rows}, {"weights": np.arange(rows)})


def newest_checkpoint(folder: Path) -> object:
    with CheckpointFolder(folder / "c", lambda text: None) as opened:
        found = opened.newest()
        assert found is not None and found[3] == 0, "a damaged checkpoint"
        assert len(found[2]["weights"]) == found[1]["rows"]
        return found[1]["rows"]


def test_a_checkpoint(tmp_path: Path) -> None:
    def prepare(folder: Path) -> None:
        for rows in (10, 20, 30):
            checkpoint(rows, folder)

    try_all(
        "checkpoint",
        tmp_path,
        prepare,
        partial(checkpoint, 40),
        newest_checkpoint,
        raises=(FtrieError, OSError),
        leaves=lambda folder: [name for name in names(folder) if name.endswith(".begun")],
    )


def test_checkpoints_with_one_that_was_begun_and_one_that_is_damaged(tmp_path: Path) -> None:
    def prepare(folder: Path) -> None:
        for rows in (10, 20):
            checkpoint(rows, folder)
        newest, *_ = checkpoints_in(folder / "c")
        newest.write_bytes(b"cut")
        newest.with_suffix(".begun").write_bytes(b"cut")

    def find(folder: Path) -> None:
        with CheckpointFolder(folder / "c", lambda text: None) as opened:
            opened.newest()

    def state(folder: Path) -> object:
        return [name for name in names(folder) if not name.endswith(".begun")]

    try_all("checkpoint found", tmp_path, prepare, find, state)


def block(number: int) -> SharedBlock:
    return SharedBlock.write({"number": number}, {"numbers": np.full(100, number)})


def test_the_last_good_model(tmp_path: Path) -> None:
    old = Parts("shop", 3, "ab", "cd", 9, block(1), block(2), None, block(4), block(5))
    new = replace(old, version=4, values=block(7), fresh=block(8))

    def state(folder: Path) -> object:
        last = LastGood(folder / "shop", "shop")
        kept = last.kept()
        assert kept is not None
        parts = last.load(kept)
        return parts.version, int(parts.values.arrays["numbers"][0])

    try_all(
        "last good",
        tmp_path,
        lambda folder: LastGood(folder / "shop", "shop").save(old),
        lambda folder: LastGood(folder / "shop", "shop").save(new),
        state,
        raises=(FtrieError, OSError),
    )


def test_the_kept_experiment(tmp_path: Path) -> None:
    def state(folder: Path) -> object:
        return KeptExperiments(folder / "e").load("shop")

    old, new = (Experiment(shares={"a": share, "b": 1.0 - share}).to_json() for share in (0.5, 0.25))
    try_all(
        "experiment on disk",
        tmp_path,
        lambda folder: KeptExperiments(folder / "e").save("shop", old),
        lambda folder: KeptExperiments(folder / "e").save("shop", new),
        state,
        leaves=unexpected("shop.json"),
    )


def spooled(folder: Path) -> list[str]:
    """The lines of the file and of its full ones, oldest first; a part of a line is one too."""
    paths = sorted(folder.glob("i*"), key=lambda path: -int(path.suffix[1:] or 0) if path.suffix[1:] else 1)
    return [line for path in paths for line in path.read_text().split("\n") if line]


@pytest.mark.parametrize("before", [1, 3])
def test_impressions_in_a_file(tmp_path: Path, before: int) -> None:
    """With 3 batches before it is full, so that the next one begins another."""

    def append(number: int, folder: Path) -> None:
        lines = "".join(f"{number}-{n}\n" for n in range(5))
        if f"{number}-0" not in spooled(folder):
            RotatingFile(folder / "i", 64, 9).append(lines.encode())

    def prepare(folder: Path) -> None:
        for number in range(before):
            append(number, folder)

    try_all("impressions", tmp_path, prepare, partial(append, 7), spooled, raises=(OSError,))


BATCHES = numbers(60, 20)


def test_rows_for_later_passes(tmp_path: Path) -> None:
    """Of a pass that is resumed: the index of its checkpoint says what is there."""
    kept: dict[str, npt.NDArray[np.int64]] = {}

    def prepare(folder: Path) -> None:
        with Blocks(folder / "rows") as blocks:
            keep(blocks, BATCHES[:1])
            kept["index"] = kept["begun"] = blocks.index(20)

    def act(folder: Path) -> None:
        with Blocks(folder / "rows", kept["begun"]) as blocks:
            keep(blocks, BATCHES[1:])
            kept["index"] = blocks.index(60)

    def state(folder: Path) -> object:
        with Blocks(folder / "rows", kept["index"]) as blocks:
            return values(blocks.read(range(len(blocks))))

    try_all("rows for later passes", tmp_path, prepare, act, state, leaves=unexpected("rows"))


def test_rows_for_later_passes_in_a_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found: list[object] = []

    def act(folder: Path) -> None:
        found.clear()
        with Blocks() as blocks:
            keep(blocks, BATCHES)
            found.extend(values(blocks.read(range(len(blocks)))))

    try_all(
        "temporary rows",
        tmp_path,
        lambda folder: found.clear(),
        act,
        lambda folder: list(found),
        leaves=names,
    )


def test_a_cache(tmp_path: Path) -> None:
    """A run whose cache cannot be written reads its log all the same, and says so."""
    log = tmp_path / "log.csv"
    log.write_text("a,b\n" + "".join(f"{n},{str(n) * 3000}\n" for n in range(9)))

    def read(folder: Path) -> list[str]:
        notes: list[str] = []
        with CachedLog([str(log)], folder / "cache", 3, {}, batch_bytes=9000, on_note=notes.append) as cached:
            rows = [row for batch in cached.batches(["a", "b"]) for row in pa.array(batch.columns["a"])]
        assert len(rows) == 9
        assert len(notes) > 1 or (folder / "cache").exists(), notes
        return notes

    def state(folder: Path) -> object:
        is_kept = names(folder) == ["cache"]
        return is_kept and "the rows are read from" in read(folder)[0]

    read(tmp_path)  # what is compiled once is compiled now
    (tmp_path / "cache").unlink()
    try_all(
        "cache", tmp_path, lambda folder: None, read, state, is_best_effort=True, leaves=unexpected("cache")
    )


def test_rows_that_wait_for_their_clicks(tmp_path: Path) -> None:
    """Nothing is lost: what could not be written is still in memory, and is tried again."""
    opened: dict[Path, Segments] = {}

    def prepare(folder: Path) -> None:
        segments = opened[folder] = Segments(folder / "s", 1 << 30)
        segments.add({"at": pa.array(["0:0", "0:1"])})
        segments.flush()
        segments.add({"at": pa.array(["1:0"])})

    def act(folder: Path) -> None:
        opened[folder].flush()

    def state(folder: Path) -> object:
        in_memory = [opened[folder].table(number)["at"].to_pylist() for number in (0, 1)]
        assert in_memory == [["0:0", "0:1"], ["1:0"]]
        return names(folder)

    try_all("rows that wait", tmp_path, prepare, act, state)


def test_rejected_rows(tmp_path: Path) -> None:
    """From the place that a checkpoint knows on: what a failed try has written behind it goes."""
    at = 0

    def add(folder: Path) -> None:
        nonlocal at
        with RejectLog(folder / "rejects", resume_at=at) as log:
            log.add(Reject("log", 1, "a bad row"))
            at = at or log.sync()

    def prepare(folder: Path) -> None:
        nonlocal at
        at = 0
        add(folder)

    try_all("rejects", tmp_path, prepare, add, lambda folder: (folder / "rejects").read_bytes())


def test_metrics(tmp_path: Path) -> None:
    at = 0

    def add(folder: Path) -> None:
        with closing(MetricsFile(folder / "metrics", at)) as file:
            file.write(End(rows=1))

    def prepare(folder: Path) -> None:
        nonlocal at
        at = 0
        add(folder)
        at = (folder / "metrics").stat().st_size

    try_all("metrics", tmp_path, prepare, add, lambda folder: (folder / "metrics").read_bytes())


def test_a_trainers_owner(tmp_path: Path) -> None:
    try_all("owner", tmp_path, lambda folder: None, lease_owner, names, leaves=unexpected("owner"))


def test_a_servers_folder_and_its_record(tmp_path: Path) -> None:
    """A server without the record goes on; a successor then finds the workers of the one before, or none."""

    def remember(port: int, folder: Path) -> None:
        with closing(StateFolder(folder / "state")) as opened:
            opened.remember(f"h:{port}", [])

    def state(folder: Path) -> object:
        with closing(StateFolder(folder / "state")) as opened:
            return opened.left_behind()

    try_all(
        "takeover record",
        tmp_path,
        partial(remember, 1),
        partial(remember, 2),
        state,
        raises=(FtrieError, OSError),
        is_best_effort=True,
        leaves=unexpected("server.json", "lock"),
    )


def test_recorded_requests(tmp_path: Path) -> None:
    """A line is whole or absent, and what fails ends the recording."""
    message = RankRequest(cookie="c", item_ids=["a"]).SerializeToString()

    def record(folder: Path) -> None:
        if len(state(folder)) == 1:
            recorder = Recorder(str(folder / "r"), 1.0)
            recorder.take(message)
            recorder.close()

    def prepare(folder: Path) -> None:
        (folder / "r").write_text('{"request": {}}\n')

    def state(folder: Path) -> list[Any]:
        text = (folder / "r").read_text()
        assert text.endswith("\n")
        return [json.loads(line)["request"] for line in text.splitlines()]

    try_all("recorded requests", tmp_path, prepare, record, state, is_best_effort=True)
