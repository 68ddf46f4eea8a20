"""The state folder, the port, and what a successor finds."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from model_store.errors import ServerError
from server.serve.takeover import Inherited, Port
from server.settings import Settings
from server.sync.state_folder import RECORD, Process, StateFolder, has_supervisor


@pytest.fixture
def idle() -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    yield process
    process.kill()
    process.wait()


def test_a_folder_has_one_supervisor_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    assert not has_supervisor(str(folder))
    first = StateFolder(folder)
    assert folder.stat().st_mode & 0o077 == 0, "open to its owner only"
    assert has_supervisor(str(folder))
    with pytest.raises(
        ServerError,
        match=rf"process {os.getpid()} \(.*python.*\) has the state folder .*or another folder with --state",
    ):
        StateFolder(folder)
    first.close()
    StateFolder(folder).close()
    assert not has_supervisor("")
    assert not os.path.exists("lock"), "nobody looks for a supervisor where there is no folder"


def test_a_process_is_known_by_its_start_too(idle: subprocess.Popen[bytes]) -> None:
    process = Process.of(idle.pid)
    assert process is not None and process.alive()
    stranger = replace(process, started=process.started - 1)
    assert not stranger.alive()
    stranger.send(signal.SIGKILL)
    assert process.alive(), "a process that was given the number of another is not the one that was meant"
    process.send(signal.SIGKILL)
    assert idle.wait(30) == -signal.SIGKILL
    assert not process.alive()


def test_a_successor_finds_the_workers_that_still_run(tmp_path: Path, idle: subprocess.Popen[bytes]) -> None:
    process = Process.of(idle.pid)
    assert process is not None
    state = StateFolder(tmp_path)
    state.remember("127.0.0.1:4711", [process, Process(process.pid, 1)])
    assert state.left_behind() == ("127.0.0.1:4711", [process])
    settings = Settings(("shop",), "embedded:x")
    assert Inherited.of(state, settings).port == 4711
    assert Inherited.of(state, replace(settings, port=4711)).port == 4711
    assert Inherited.of(state, replace(settings, port=4712)).port == 0
    state.close()


def test_a_record_that_cannot_be_read_or_written_leaves_nobody_behind(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    for record in ("", "{", "[]", '{"address": 1}', '{"address": "a", "workers": [1]}'):
        (tmp_path / RECORD).write_text(record)
        assert state.left_behind() == ("", [])
    (tmp_path / RECORD).unlink()
    (tmp_path / RECORD).mkdir()
    state.remember("127.0.0.1:1", [])
    state.close()


def test_a_port_is_reserved_and_shared_by_who_knows_of_it() -> None:
    port = Port("127.0.0.1", 0, shared=False)
    with pytest.raises(ServerError, match="is the port taken"):
        Port("127.0.0.1", port.number, shared=False)
    Port("127.0.0.1", port.number, shared=True).close()
    port.close()
    Port("127.0.0.1", port.number, shared=False).close()
    listener = socket.create_server(("127.0.0.1", 0), reuse_port=True)
    with listener, pytest.raises(ServerError, match=rf"process {os.getpid()} \(.*python.*\) has the port"):
        Port("127.0.0.1", listener.getsockname()[1], shared=False)
    with pytest.raises(ServerError, match="or the host not one of this machine's"):
        Port("192.0.2.1", 0, shared=False)


def test_settings_travel_as_json() -> None:
    settings = Settings(("shop", "ads"), "redis://h", workers=2, metrics_port=0)
    assert Settings.from_json(json.loads(json.dumps(settings.to_json()))) == settings
    with pytest.raises(ServerError, match="does not know"):
        Settings.from_json({**settings.to_json(), "of the future": 1})
    with pytest.raises(ServerError, match="one or more different names"):
        Settings(("shop", "shop"), "redis://h")
