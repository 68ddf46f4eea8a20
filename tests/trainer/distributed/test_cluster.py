"""A crew on Ray: what members send each other, and what happens when they, or Ray, are lost. All kills are real."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs Ray: make distributed, or pip install 'ftrie[distributed]'")

from model_store.errors import ClusterError, InputError, UsageError
from tests.trainer.distributed import crew_scenarios
from tests.trainer.distributed.crew_scenarios import Printed, crew_of
from tests.waiting import eventually
from trainer.distributed.cluster import RayCrew
from trainer.distributed.methods import MemberLost, persist

WORKERS, REDUCERS = 2, 3
PARTS = [[(10.0 * sender + receiver, 100, True) for sender in range(WORKERS)] for receiver in range(REDUCERS)]


# --- Ray itself ------------------------------------------------------------------------------------------------------


class Scenario:
    def __init__(self, *words: str, **environment: str) -> None:
        root = Path(__file__).resolve().parents[3]
        # Not in tmp_path: a folder with a long path is not used, since paths of sockets must be short.
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        env = {**os.environ, "PYTHONPATH": str(root), "TMPDIR": self.folder.name, **environment}
        command = [sys.executable, "-u", crew_scenarios.__file__, *words]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
            start_new_session=True,
        )

    def line(self, key: str) -> dict[str, Any]:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            found: dict[str, Any] = json.loads(text)  # nothing else may be printed
            if key in found:
                return found
        raise AssertionError(f"no {key}: {self.process.stderr.read() if self.process.stderr else ''}")

    def end(self, timeout: float = 100) -> tuple[int, str]:
        """Its exit code and what it wrote on standard error."""
        _, errors = self.process.communicate(timeout=timeout)
        return self.process.returncode, errors


@pytest.fixture
def scenario() -> Iterator[Callable[..., Scenario]]:
    started: list[Scenario] = []

    def start(*words: str, **environment: str) -> Scenario:
        started.append(Scenario(*words, **environment))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
        each.process.communicate()
        each.folder.cleanup()


def family(pid: int) -> dict[int, str]:
    """The processes below one, with their command lines."""
    parents, commands = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            commands[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            parents[int(folder.name)] = int(fields[1])
        except OSError:
            continue
    found, waiting = {}, [pid]
    while waiting:
        above = waiting.pop()
        below = [each for each, parent in parents.items() if parent == above]
        found |= {each: commands[each] for each in below}
        waiting += below
    return found


def wait_for_the_end_of(pids: dict[int, str], seconds: float) -> None:
    eventually(lambda: not any(map(is_running, pids)), f"the end of {pids}", seconds)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


ON_LINUX = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")


@ON_LINUX
@pytest.mark.parametrize("part", ["gcs_server", pytest.param("raylet", marks=pytest.mark.slow)])
def test_ray_killed_under_a_run_is_an_error_that_says_how_to_go_on(scenario, part):
    run = scenario("a_long_step")
    run.line("members")
    processes = family(run.process.pid)
    [pid] = [pid for pid, command in processes.items() if command.split()[0].endswith(f"/{part}")]
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    error = run.line("error")
    assert time.monotonic() - began < 40 and error["error"] == "ClusterError" and error["code"] == 8
    assert error["message"].startswith("Ray at 127.0.0.1:") and "is away" in error["message"]
    assert "--resume goes on from the last checkpoint" in error["message"]
    code, _ = run.end()
    assert code == 8
    wait_for_the_end_of(processes, 100)  # what Ray has left notices by itself


@ON_LINUX
@pytest.mark.parametrize("how", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_nothing_is_left_of_ray_when_a_run_is_ended(scenario, how):
    run = scenario("a_long_step")
    members = run.line("members")["members"]
    processes = family(run.process.pid)
    assert {pid for _, pid in members.values()} <= processes.keys()
    run.process.send_signal(how)
    code, errors = run.end()
    assert code in {-how, 128 + how, 1}, errors
    # After SIGKILL there is nobody to end Ray: its own parts notice, some after a minute.
    wait_for_the_end_of(processes, 100)


@ON_LINUX
def test_ray_listens_on_loopback_only_and_leaves_nothing_after_ctrl_c(scenario, tmp_path):
    run = scenario("between_steps", HOME=str(tmp_path))
    run.line("members")
    processes = family(run.process.pid)
    listening = set[tuple[str, int]]()
    for pid in (run.process.pid, *processes):
        listening |= listeners(pid)
    assert listening and {address for address, _ in listening} <= {"127.0.0.1", "::ffff:127.0.0.1"}
    [folder] = Path(run.folder.name).glob("ftrie-ray-*")
    os.killpg(run.process.pid, signal.SIGINT)  # Ctrl-C reaches every process of the terminal's group
    code, errors = run.end()
    assert code in {-signal.SIGINT, 128 + signal.SIGINT, 1}, errors
    wait_for_the_end_of(processes, 100)
    assert not folder.exists() and not (tmp_path / ".ray").exists()


def listeners(pid: int) -> set[tuple[str, int]]:
    """The addresses that a process listens at."""
    found = set()
    try:
        sockets = {os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return found
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                address, _, port = fields[1].partition(":")
                words = [bytes.fromhex(address)[at : at + 4][::-1] for at in range(0, len(address) // 2, 4)]
                form = socket.AF_INET if table == "tcp" else socket.AF_INET6
                found.add((socket.inet_ntop(form, b"".join(words)), int(port, 16)))
    return found


@ON_LINUX
@pytest.mark.slow
def test_a_member_that_ray_ends_for_its_memory_each_time_ends_the_run(
    scenario: Callable[..., Scenario],
) -> None:
    error = scenario("out_of_memory").line("error")
    assert error["code"] == 8
    assert "lost 3 times in one iteration, which never ended" in error["message"]
    reason = "Ray ended it, since its host ran out of memory"
    assert f"on {socket.gethostname()} was lost: {reason}" in error["message"]


def test_an_address_where_nothing_listens_is_an_error_within_seconds() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        began = time.monotonic()
        for given in (address, f"ray://{address}"):
            with pytest.raises(ClusterError, match=f"no Ray cluster answers at {given}"):
                crew_of(1, 1, address=given)
        assert time.monotonic() - began < 10


def test_an_address_without_a_port_and_a_missing_ray_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UsageError, match="'head.example' has no port: expected HOST:PORT, ray://HOST:PORT or `auto`"
    ):
        crew_of(1, 1, address="head.example")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"needs Ray: .*python.* -m pip install 'ftrie\[distributed\]'$"):
        crew_of(1, 1)


# --- A cluster that is joined ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_workers_spread_over_the_nodes_and_move_when_a_node_goes(scenario: Callable[..., Scenario]) -> None:
    run = scenario("joined", "nodes")
    placed = run.line("workers")
    assert len(set(placed["workers"])) == 3 and len(set(placed["reducers"])) == 2
    lost = run.line("lost")["lost"]
    done = run.line("got")
    assert done["got"][1] == [[10.0 * sender + 1, 1_000_000, True] for sender in range(3)]
    assert lost not in done["workers"] and run.end()[0] == 0


@pytest.mark.slow
def test_a_cluster_without_room_for_all_workers_is_an_error(scenario: Callable[..., Scenario]) -> None:
    error = scenario("joined", "too many").line("error")
    assert error["code"] == 8
    assert (
        "could not be started within 5 s: 9 workers need as many CPUs, and the cluster has 3"
        in error["message"]
    )


@pytest.mark.slow
def test_a_joined_cluster_whose_head_is_killed_is_an_error(scenario: Callable[..., Scenario]) -> None:
    run = scenario("joined", "work")
    head = run.line("head")["head"]
    run.line("members")
    began = time.monotonic()
    for pid in (*head["gcs_server"], *head["raylet"]):
        os.kill(pid, signal.SIGKILL)
    error = run.line("error")
    assert time.monotonic() - began < 60 and error["code"] == 8 and "is away" in error["message"]


@pytest.mark.slow
def test_a_cluster_that_asks_for_a_token_is_joined_with_it_only(scenario: Callable[..., Scenario]) -> None:
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "of-this-test-" * 3}
    head = scenario("a_head", **token)
    address = head.line("address")["address"]
    error = scenario("a_long_step", address, RAY_AUTH_MODE="disabled").line("error")
    assert error["code"] == 8 and f"the Ray cluster at {address} cannot be joined" in error["message"]
    assert "If it asks for a token: set RAY_AUTH_MODE=token" in error["message"]
    run = scenario("a_long_step", address, **token)
    assert run.line("members")["members"].keys() == {"worker 0", "worker 1", "reducer 0", "reducer 1"}
    for each in (run, head):
        each.process.send_signal(signal.SIGTERM)
        each.end()


def test_other_processes_of_the_caller_go_on_when_ray_ends() -> None:
    program = (
        "import subprocess; from tests.trainer.distributed.crew_scenarios import crew_of\n"
        "other = subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "with crew_of(1, 1): pass\n"
        "print('ended' if other.poll() is not None else 'goes on'); other.kill()\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "goes on\n", done.stderr


# --- A crew that tests share. At the end: Ray takes a tenth of a core until the last of them -------------------------


@pytest.fixture(scope="module")
def output() -> Printed:
    return Printed()


@pytest.fixture(scope="module")
def shared(output: Printed) -> Iterator[RayCrew]:
    import ray

    ray.cloudpickle.register_pickle_by_value(crew_scenarios)
    with crew_of(WORKERS, REDUCERS, output=output, timeout_s=6.0) as crew:
        yield crew


@pytest.fixture
def crew(shared: RayCrew, output: Printed) -> RayCrew:
    """The shared crew, whole, with nothing reported."""
    persist(shared, lambda: (shared.ask_workers("send", 1), shared.ask_reducers("send", 1)))
    output.warnings.clear()
    return shared


# --- Steps -----------------------------------------------------------------------------------------------------------


def test_each_member_is_a_process_and_gets_what_each_of_the_others_sent_to_it(crew: RayCrew) -> None:
    pids = [pid for _, pid in crew.processes.values()]
    assert len({*pids, os.getpid()}) == WORKERS + REDUCERS + 1
    sent = crew.ask_workers("send", 100)
    assert sent.summaries == pids[:WORKERS] and sent.bytes == 100 * 4 * WORKERS * REDUCERS
    assert crew.ask_reducers("add", inbox=sent).summaries == PARTS


def test_parts_may_be_absent_or_of_megabytes_and_may_be_written_to(crew: RayCrew) -> None:
    sent = crew.ask_workers("send", 1_000_001)
    assert sent.bytes == 1_000_001 * 4 * WORKERS * (REDUCERS - 1)
    got = crew.ask_reducers("add", inbox=sent).summaries
    assert got[-1] == [None] * WORKERS
    assert got[1] == [(1.0, 1_000_001, True), (11.0, 1_000_001, True)]


def test_an_error_of_a_member_is_the_step_s_error(crew: RayCrew) -> None:
    with pytest.raises(InputError, match=r"^worker 1: row 7 of clicks.csv has no label$") as raised:
        crew.ask_workers("fail", "input")
    assert raised.value.__cause__ is None and "Traceback" not in str(raised.value)
    # A bug keeps the traceback of the member.
    with pytest.raises(IndexError, match=r"crew_scenarios\.py.*in fail(.|\n)*list index out of range"):
        crew.ask_workers("fail", "bug")
    assert crew.ask_reducers("add", inbox=crew.ask_workers("send", 100)).summaries == PARTS


# --- Members that are lost -------------------------------------------------------------------------------------------


def killed_in(crew: RayCrew, folder: Path, *names: str) -> None:
    """Ask all workers or reducers to work; kill the members of these names while they do."""
    ask = crew.ask_workers if names[0].startswith("worker") else crew.ask_reducers
    pids = [crew.processes[name][1] for name in names]
    files = {name.replace(" ", "-") for name in names}

    def kill() -> None:
        eventually(lambda: {each.name.rpartition("-")[0] for each in folder.iterdir()} >= files, "their work")
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with pytest.raises(MemberLost, match=f"{names[0]} on .* was lost: its process has ended"):
            ask("touch", str(folder), 3.0)
    finally:
        killer.join()


@pytest.mark.parametrize("name", ["worker 1", "reducer 0"])
def test_a_member_killed_in_a_step_is_replaced_and_the_step_has_the_same_result(crew, output, tmp_path, name):
    before = crew.processes
    killed_in(crew, tmp_path, name)
    crew.replace_lost()
    [warning] = output.warnings
    assert warning.startswith(f"{name} on {socket.gethostname()} was lost: its process has ended")
    assert "; started again on " in warning
    assert {each for each, process in crew.processes.items() if process != before[each]} == {name}
    assert crew.ask_reducers("add", inbox=crew.ask_workers("send", 100)).summaries == PARTS


def test_a_worker_and_a_reducer_lost_at_once_are_both_replaced(crew, output, tmp_path):
    os.kill(crew.processes["reducer 1"][1], signal.SIGKILL)
    killed_in(crew, tmp_path, "worker 0")
    crew.replace_lost()
    got = persist(crew, lambda: crew.ask_reducers("add", inbox=crew.ask_workers("send", 100)).summaries)
    assert got == PARTS
    assert {warning.partition(" on ")[0] for warning in output.warnings} == {"worker 0", "reducer 1"}


def test_a_member_killed_again_while_others_are_replaced_is_replaced_too(crew: RayCrew, tmp_path) -> None:
    killed_in(crew, tmp_path, "worker 0", "worker 1")
    crew.replace_lost()
    os.kill(crew.processes["worker 0"][1], signal.SIGKILL)
    with pytest.raises(MemberLost):
        crew.ask_workers("work", (1.0, 1.0))
    crew.replace_lost()
    assert crew.ask_workers("work", (0.0, 0.0)).summaries == [0, 1]


def test_parts_of_a_member_that_is_lost_after_its_step_still_arrive(crew: RayCrew) -> None:
    sent = crew.ask_workers("send", 1_000_000)
    os.kill(crew.processes["worker 0"][1], signal.SIGKILL)
    assert crew.ask_reducers("add", inbox=sent).summaries[1][0] == (1.0, 1_000_000, True)
    with pytest.raises(MemberLost):
        crew.ask_workers("send", 1)


def test_a_slow_member_is_reported_and_one_over_the_timeout_is_replaced(crew, output):
    began = time.monotonic()
    with pytest.raises(MemberLost, match="worker 1 on .* was lost: it has worked on the step 'work' for"):
        crew.ask_workers("work", (1.5, 60.0))  # slow after 5 s, lost after 7.5
    assert time.monotonic() - began < 30
    crew.replace_lost()
    assert crew.ask_workers("work", (0.0, 0.0)).summaries == [0, 1]
    slow, lost = output.warnings
    assert slow.startswith("worker 1 on ") and "is slow" in slow and "the others took " in slow
    assert "over --worker-timeout" in lost
