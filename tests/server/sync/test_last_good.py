"""The model and the experiment on disk: whole or nothing, verified before use, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from model_store.errors import ArtefactError, OutputError
from model_store.versions.experiments import Experiment
from server.model.shared_memory import Parts, SharedBlock
from server.sync.last_good import INDEX, KeptExperiments, LastGood
from server.sync.state_folder import read_checked, write_checked


def block(number: int) -> SharedBlock:
    return SharedBlock.write({"number": number}, {"numbers": np.full(100, number)})


@pytest.fixture
def parts() -> Parts:
    return Parts("shop", 3, "ab", "cd", 9, block(1), block(2), None, block(4), block(5))


def read(folder: Path) -> Parts:
    last = LastGood(folder, "shop")
    kept = last.kept()
    assert kept is not None
    return last.load(kept)


def test_what_was_saved_is_read_back_and_an_empty_folder_holds_nothing(tmp_path: Path, parts: Parts) -> None:
    assert LastGood(tmp_path, "shop").kept() is None
    assert LastGood(tmp_path / "new", "shop").kept() is None
    LastGood(tmp_path / "new", "shop").save(parts)
    back = read(tmp_path / "new")
    assert (back.name, back.version, back.sha256, back.content) == ("shop", 3, "ab", "cd")
    assert (back.items_generation, back.fresh) == (9, None)
    blocks = (back.base, back.values, back.items, back.catalogue)
    assert [block.arrays["numbers"][0] for block in blocks] == [1, 2, 4, 5]


def test_blocks_that_stay_are_written_once_and_those_out_of_use_removed(tmp_path: Path, parts: Parts) -> None:
    last = LastGood(tmp_path, "shop")
    last.save(parts)
    base = next(tmp_path.glob("base-*"))
    written = base.stat().st_mtime_ns
    (tmp_path / ".values-half.part.99").write_bytes(b"left by a crash")
    last.save(replace(parts, version=4, values=block(7), fresh=block(8)))
    assert base.stat().st_mtime_ns == written
    assert sorted(path.name.partition("-")[0] for path in tmp_path.iterdir()) == [
        "base",
        "catalogue",
        "fresh",
        "items",
        INDEX,
        "values",
    ]
    again = LastGood(tmp_path, "shop")
    kept = again.kept()
    assert kept is not None
    loaded = again.load(kept)
    again.save(replace(loaded, version=5))
    assert base.stat().st_mtime_ns == written, "what was read from disk needs no writing"
    base.unlink()
    again.save(replace(loaded, version=6))
    assert read(tmp_path).base.arrays["numbers"][0] == 1, "but what somebody has removed is written again"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [flip, cut, Path.unlink])
def test_a_damaged_block_is_never_read(tmp_path: Path, parts: Parts, damage: Callable[[Path], None]) -> None:
    for part in ("base", "values", "items", "catalogue"):
        LastGood(tmp_path / part, "shop").save(parts)
        damage(next((tmp_path / part).glob(f"{part}-*")))
        with pytest.raises(ArtefactError):
            read(tmp_path / part)


def test_an_index_that_is_damaged_or_another_models_is_never_followed(tmp_path: Path, parts: Parts) -> None:
    LastGood(tmp_path, "shop").save(parts)
    with pytest.raises(ArtefactError, match="holds the model 'shop', expected 'ads'"):
        LastGood(tmp_path, "ads").kept()
    whole = (tmp_path / INDEX).read_bytes()
    for damage in (flip, cut):
        (tmp_path / INDEX).write_bytes(whole)
        damage(tmp_path / INDEX)
        with pytest.raises(ArtefactError, match="damaged"):
            LastGood(tmp_path, "shop").kept()
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):  # a disk that takes nothing
        LastGood(tmp_path / "file" / "below", "shop").save(parts)


def test_an_index_that_is_whole_and_another_document_is_damaged(tmp_path: Path, parts: Parts) -> None:
    LastGood(tmp_path, "shop").save(parts)
    document = read_checked(tmp_path / INDEX)
    write_checked(tmp_path / INDEX, [document])
    with pytest.raises(ArtefactError, match="expected 'shop'"):
        LastGood(tmp_path, "shop").kept()
    for changed in ({"blocks": None}, {"blocks": {}}, {"blocks": {"base": 3}}):
        write_checked(tmp_path / INDEX, document | changed)
        with pytest.raises(ArtefactError, match="damaged"):
            read(tmp_path)


RECORD = Experiment(revision=3, shares={"plain": 1.0}, pins={"ü": "base"}, salt="autumn")


def test_a_record_is_kept_with_those_before_and_replaced(tmp_path: Path) -> None:
    kept = KeptExperiments(tmp_path / "new")
    assert not kept.load("ads")
    for records in ([RECORD, Experiment()], [RECORD]):
        kept.save("ads", *(record.to_json() for record in records))
        assert KeptExperiments(tmp_path / "new").load("ads") == records


def test_a_damaged_file_is_told_and_not_used(tmp_path: Path) -> None:
    kept, file = KeptExperiments(tmp_path), tmp_path / "ads.json"
    kept.save("ads", RECORD.to_json())
    flipped = file.read_bytes().replace(b"autumn", b"auturn")
    for damage, told in (
        (b"", r"ads\.json is damaged"),
        (b"{}", r"ads\.json is damaged"),
        (b'{"format": 2, "check": "", "document": 3}', r"ads\.json is damaged"),
        (b'{"format": 1}', r"ads\.json has format 1, expected 2"),
        (b"\xff", r"ads\.json is damaged"),
        (flipped, "checksum"),
    ):
        file.write_bytes(damage)
        with pytest.raises(ArtefactError, match=told):
            kept.load("ads")
    with pytest.raises(OutputError):  # a disk that takes nothing
        KeptExperiments(file).save("ads", RECORD.to_json())
