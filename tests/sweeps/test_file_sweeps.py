"""The n-th failure of what writes files: checkpoints, artefacts, the last good model, impressions, caches, reports."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from model_store.artefact.artefact import Artefact
from model_store.errors import FtrieError
from model_store.files import write_whole
from model_store.model_files import write_model
from model_store.versions.experiments import Experiment
from server.events.sinks import RotatingFile
from server.model.shared_memory import Parts, SharedBlock
from server.sync.last_good import KeptExperiments, LastGood
from tests.model_store.models import KEYS, model
from tests.sweeps.failing import Failing
from tests.sweeps.sweep import Operation, sweep
from trainer.checkpoint.folder import CheckpointFolder

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
    try_all(
        "experiment off disk",
        tmp_path,
        lambda folder: KeptExperiments(folder / "e").save("shop", old),
        lambda folder: KeptExperiments(folder / "e").save("shop", None),
        state,
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
