"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from errno import EACCES, EADDRINUSE, EMFILE
from pathlib import Path

import pytest

from model_store.errors import OutputError
from model_store.files import check_writable, port_taken, write_whole


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(pipe.read_bytes)
        check_writable(pipe)
        write_whole(pipe, b"model")
        assert reading.result() == b"model"
    assert pipe.is_fifo()


def test_the_target_of_a_link_is_written_and_the_link_stays(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    write_whole(link, b"model")
    assert link.is_symlink()
    assert target.read_bytes() == b"model"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "target"]


def test_a_path_that_cannot_be_written_is_known_before(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path in ("folder", "none/file"):
        with pytest.raises(OutputError, match=f"cannot write .*{path}"):
            check_writable(tmp_path / path)
        with pytest.raises(OutputError, match=f"cannot write .*{path}"):
            write_whole(tmp_path / path, b"")


def test_a_port_that_cannot_be_had_for_another_reason_is_not_called_taken() -> None:
    said = {code: port_taken(80, OSError(code, "")) for code in (EMFILE, EACCES, EADDRINUSE)}
    assert "descriptors" in said[EMFILE] and "1024" in said[EACCES]
    assert "taken" in said[EADDRINUSE] or "has the port" in said[EADDRINUSE]
