"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from model_store.errors import OutputError
from model_store.whole_file import check_writable, write_whole


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    check_writable(pipe)
    write_whole(pipe, b"model")
    reader.join()
    assert got == [b"model"]
    assert pipe.is_fifo()


def test_the_target_of_a_link_is_written_and_the_link_stays(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    write_whole(link, b"model")
    assert link.is_symlink()
    assert target.read_bytes() == b"model"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "target"]


@pytest.mark.parametrize("path", ["folder", "none/file"])
def test_a_path_that_cannot_be_written_is_known_before(tmp_path: Path, path: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match=f"cannot write .*{path}"):
        check_writable(tmp_path / path)
    with pytest.raises(OutputError, match=f"cannot write .*{path}"):
        write_whole(tmp_path / path, b"")
