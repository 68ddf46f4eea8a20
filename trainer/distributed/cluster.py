"""The crew of a distributed run on Ray: members are actors, and parts go from one to the other through Ray's store.

A step is one call of each member. Its results are a small reply, which the driver takes, and one for each receiver,
which the driver only refers to: Ray moves it between the hosts (parts below Ray's bound for inlining, 100 kB, travel
with the reply instead). All results belong to the driver, so they outlive the process that made them. A member copies
what it receives, since Ray hands out views of its store, and a view that is kept would fill the store. An FtrieError in
a step is that step's error; anything else is a bug and keeps its remote traceback.

A member that is gone, or much slower than the others, is reported by MemberLost, and `replace_lost` makes a new, empty
one. Ray does not restart members by itself: it would say nothing if it did so between two calls, and would not always
know why. When Ray itself is gone, no member can be replaced: that is a ClusterError, found by asking Ray's control
service each second, since Ray would wait for a minute and then end the process.

Needs the extra `distributed`; Ray is imported when a crew is opened.
"""

from __future__ import annotations

import copy
import os
import secrets
import signal
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from model_store.errors import ClusterError, FtrieError, UsageError, counted, installing
from trainer.distributed.methods import MemberLost, Replies, nbytes
from trainer.distributed.reducer import Reducer
from trainer.distributed.shard import build_shard
from trainer.distributed.worker import Worker
from trainer.output import SILENT, Output

WORKER, REDUCER = "worker", "reducer"
_POLL_S = 1.0
_PLACED_S = 120.0
_AWAY_S = 20.0
_SLOW, _SLOW_S = 3.0, 5.0
_RESUME = "--resume goes on from the last checkpoint"
_ENDED = "its process has ended (killed, out of memory, or crashed)"
_LONGEST_FOLDER = 24
"""Ray's sockets are in its folder, and a socket's path has 107 bytes at most."""

_TOKEN = secrets.token_hex(32)
"""Of the clusters that this process starts: nobody else can join them. Ray reads it once in a process."""


class _Reply(NamedTuple):
    """What the driver takes of a step. sizes: the bytes of each part, None for one that is not sent."""

    summary: Any
    sizes: list[int | None]
    seconds: float


class _Actor:
    """What runs in a member's process: the member, and its steps."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._member = make()

    def hello(self) -> tuple[str, int, str]:
        """Host name, process id, and version of ftrie."""
        return socket.gethostname(), os.getpid(), version("ftrie")

    def run(self, step: str, arguments: tuple[Any, ...], receivers: int, *parts: Any) -> list[Any]:
        """One step: its reply, then what goes to each receiver."""
        began = time.perf_counter()
        summary, sent = getattr(self._member, step)(*arguments, inbox=copy.deepcopy(parts))
        sent = sent or [None] * receivers
        sizes = [None if part is None else nbytes(part) for part in sent]
        return [_Reply(summary, sizes, time.perf_counter() - began), *sent]


@dataclass(eq=False)
class _CrewMember:
    """A member as the driver knows it. actor: None once its process is gone; lost: why a step has failed."""

    kind: str
    number: int
    make: Callable[[], Any]
    actor: Any = None
    host: str = ""
    pid: int = 0
    lost: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.number} on {self.host}" if self.host else f"{self.kind} {self.number}"


class RayCrew:
    """Workers and reducers as Ray actors; a `trainer.distributed.methods.Crew`.

    workers, reducers: make each member in its process, also when it is replaced; picklable. timeout_s: a member that
    still works so long after half of its kind have finished is lost; None: never. Use as a context manager.
    """

    def __init__(
        self,
        workers: Sequence[Callable[[], Any]],
        reducers: Sequence[Callable[[], Any]],
        *,
        address: str | None = None,
        timeout_s: float | None = None,
        output: Output = SILENT,
        placed_s: float = _PLACED_S,
    ) -> None:
        self.workers, self.reducers = len(workers), len(reducers)
        self._timeout_s, self._placed_s, self._output = timeout_s, placed_s, output
        self._open = ExitStack()
        try:
            self._ray, self._control = self._open.enter_context(_connected(address, self.workers))
            self._own_node = self._ray.get_runtime_context().get_node_id()
            self._class = self._ray.remote(max_restarts=0, max_task_retries=0)(_Actor)
            self._members = {
                kind: [_CrewMember(kind, number, make) for number, make in enumerate(makers)]
                for kind, makers in ((WORKER, workers), (REDUCER, reducers))
            }
            self._start([*self._members[WORKER], *self._members[REDUCER]])
        except BaseException:
            self._open.close()
            raise

    def __enter__(self) -> RayCrew:
        return self

    def __exit__(self, *raised: object) -> None:
        self._open.close()

    @property
    def processes(self) -> dict[str, tuple[str, int]]:
        """Host and process id of each member, by name."""
        everyone = [*self._members[WORKER], *self._members[REDUCER]]
        return {f"{each.kind} {each.number}": (each.host, each.pid) for each in everyone}

    def ask_workers(self, step: str, *arguments: Any, inbox: Replies | None = None) -> Replies:
        """All workers do a step; each finds in its inbox what the reducers sent to it in `inbox`."""
        return self._ask(WORKER, self.reducers, step, arguments, inbox)

    def ask_reducers(self, step: str, *arguments: Any, inbox: Replies | None = None) -> Replies:
        """All reducers do a step, with what the workers sent to them."""
        return self._ask(REDUCER, self.workers, step, arguments, inbox)

    def fetch(self, part: Any) -> Any:
        """A part that a member sent. Raises MemberLost if it was on a host that is gone."""
        try:
            return self._ray.get(part)
        except self._ray.exceptions.ObjectLostError as error:
            self._check_ray()
            raise MemberLost(_reason(error)) from None

    def replace_lost(self) -> None:
        """Start lost members again, and wait for them. Raises ClusterError if Ray is away or has no room for them."""
        began = time.perf_counter()
        lost = [each for members in self._members.values() for each in members if each.lost]
        notes = [f"{each} was lost: {each.lost}" for each in lost]
        self._start(lost)
        for each, note in zip(lost, notes, strict=True):
            self._output.warn(f"{note}; started again on {each.host} in {time.perf_counter() - began:.1f} s")

    def _ask(
        self, kind: str, receivers: int, step: str, arguments: tuple[Any, ...], inbox: Replies | None
    ) -> Replies:
        results, members = [], self._members[kind]
        _raise_lost(each for each in members if each.actor is None)
        try:
            for each in members:
                parts = [] if inbox is None else [sent[each.number] for sent in inbox.parts]
                call = each.actor.run.options(num_returns=1 + receivers)
                results.append(call.remote(step, arguments, receivers, *parts))
            replies = self._wait(kind, step, [each[0] for each in results])
        except ConnectionError as error:  # of a ray:// address
            raise self._away(_first_line(error)) from None
        parts = [
            [None if size is None else part for size, part in zip(reply.sizes, sent[1:], strict=True)]
            for reply, sent in zip(replies, results, strict=True)
        ]
        sizes = [size for reply in replies for size in reply.sizes if size is not None]
        return Replies([reply.summary for reply in replies], parts, sum(sizes))

    def _wait(self, kind: str, step: str, results: list[Any]) -> list[_Reply]:
        """The replies of all members of a kind. Raises MemberLost as soon as one is known to be lost."""
        members = self._members[kind]
        waiting = dict(zip(results, members, strict=True))
        replies: dict[int, _Reply] = {}
        began, half_s, warned = time.monotonic(), 0.0, set[int]()
        while waiting:
            ready, _ = self._ray.wait([*waiting], num_returns=len(waiting), timeout=_POLL_S)
            for result in ready:
                member = waiting.pop(result)
                reply = self._reply(member, result)
                if reply is not None:
                    replies[member.number] = reply
            if waiting:
                self._check_ray()
            if waiting and 2 * len(replies) >= len(members) > 1:
                half_s = half_s or time.monotonic()
                median = statistics.median(each.seconds for each in replies.values())
                for member in waiting.values():
                    self._watch(member, step, time.monotonic() - began, median, half_s, warned)
            _raise_lost(each for each in members if each.lost)
        return [replies[number] for number in range(len(members))]

    def _reply(self, member: _CrewMember, result: Any) -> _Reply | None:
        """A member's reply; None if it, or what was sent to it, is lost."""
        errors = self._ray.exceptions
        try:
            reply: _Reply = self._ray.get(result)
            member.lost = ""
            return reply
        except errors.RayError as error:
            cause = error.cause if isinstance(error, errors.RayTaskError) else error
            if isinstance(cause, FtrieError):
                raise cause from None
            if not isinstance(cause, errors.RayError):
                raise
            self._check_ray()
            self._lose(member, _reason(cause), is_gone=not isinstance(cause, errors.ObjectLostError))
        return None

    def _lose(self, member: _CrewMember, reason: str, *, is_gone: bool = True) -> None:
        """Note why a member's step failed, and end what may be left of a process that is gone."""
        member.lost = reason
        if is_gone:
            self._ray.kill(member.actor)
            member.actor = None

    def _watch(
        self, member: _CrewMember, step: str, seconds: float, median: float, half_s: float, warned: set[int]
    ) -> None:
        """Report a member that is slow, and end one that is too slow."""
        waited = time.monotonic() - half_s
        if self._timeout_s is not None and waited > self._timeout_s:
            self._lose(
                member,
                f"it has worked on the step {step!r} for {seconds:.0f} s, over --worker-timeout after the others had "
                f"finished (median {median:.1f} s)",
            )
        elif member.number not in warned and seconds > max(_SLOW * median, _SLOW_S):
            warned.add(member.number)
            left = None if self._timeout_s is None else self._timeout_s - waited
            self._output.warn(
                f"{member} is slow: it has worked on the step {step!r} for {seconds:.0f} s, the others took "
                f"{median:.1f} s (median)"
                + ("" if left is None else f"; it is replaced after {left:.0f} s more")
            )

    def _start(self, members: Sequence[_CrewMember]) -> None:
        """Start members that have no process, and wait until all of these answer. Raises ClusterError."""
        waiting = {self._greet(each): each for each in members}
        end_s = time.monotonic() + self._placed_s
        while waiting:
            ready, _ = self._ray.wait([*waiting], num_returns=len(waiting), timeout=_POLL_S)
            for result in ready:
                member = waiting.pop(result)
                try:
                    member.host, member.pid, found = self._ray.get(result)
                except self._ray.exceptions.RayError as error:
                    if getattr(error, "actor_init_failed", False):
                        raise _not_started(member, error) from None
                    time.sleep(_POLL_S / 4)
                    self._lose(member, member.lost)
                    waiting[self._greet(member)] = member
                    continue
                member.lost = ""
                if found != version("ftrie"):
                    raise ClusterError(
                        f"{member.host} has ftrie {found}, and this host {version('ftrie')}: every host needs the same"
                    )
            self._check_ray()
            if waiting and time.monotonic() > end_s:
                raise self._not_placed(len(waiting))

    def _greet(self, member: _CrewMember) -> Any:
        """Ask a member for its host and process; start it if it has none. Raises ClusterError if Ray is away."""
        if member.actor is None:
            nodes = [node for node in self._ray.nodes() if node["Alive"]]
            if all(node["NodeID"] != self._own_node for node in nodes):
                raise self._away("the part of Ray on this host has ended")
            options = {"num_cpus": 1, "scheduling_strategy": "SPREAD"}
            if member.kind == REDUCER:
                # Reducers work while workers wait, and take no CPU. Ray does not spread what takes none.
                ids = sorted(node["NodeID"] for node in nodes if node["Resources"].get("CPU"))
                affinity = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
                # Not soft: Ray would take any node instead of one that has just joined. One that has gone meanwhile
                # fails, and `_start` asks for another.
                host = affinity(ids[member.number % len(ids)], soft=False)
                options = {"num_cpus": 0, "scheduling_strategy": host}
            member.actor = self._class.options(**options).remote(member.make)
        return member.actor.hello.remote()

    def _not_placed(self, waiting: int) -> ClusterError:
        total = self._ray.cluster_resources().get("CPU", 0.0)
        free = self._ray.available_resources().get("CPU", 0.0)
        room = (
            ""
            if total < self.workers
            else " (others take the rest, or its hosts are too busy to start processes)"
        )
        return ClusterError(
            f"{counted(waiting, 'member')} could not be started within {self._placed_s:.0f} s: "
            f"{counted(self.workers, 'worker')} need as many CPUs, and the cluster has {total:g}, of which {free:g} "
            f"are free{room}; give fewer --workers, or add hosts"
        )

    def _check_ray(self) -> None:
        """Wait while Ray's control service does not answer. Raises ClusterError after some time."""
        end_s = time.monotonic() + _AWAY_S
        while not _answers(self._control):
            if time.monotonic() > end_s:
                raise self._away(f"nothing has answered there for {_AWAY_S:.0f} s")
            time.sleep(_POLL_S)

    def _away(self, reason: str) -> ClusterError:
        host, port = self._control
        return ClusterError(
            f"Ray at {host}:{port} is away: {reason}; the workers' rows and the weights since the last checkpoint are "
            f"lost; once Ray is there again, {_RESUME}"
        )


def open_crew(
    plans: Sequence[Any],
    reducers: int,
    *,
    address: str | None = None,
    timeout_s: float | None = None,
    output: Output = SILENT,
) -> RayCrew:
    """A worker for each shard's plan, and reducers; on a Ray that is started here, or on the one at an address.

    Raises UsageError without Ray, ClusterError if it cannot be started or joined, or has no room for all workers.
    """
    return RayCrew(
        [partial(Worker, number, reducers, partial(build_shard, plan)) for number, plan in enumerate(plans)],
        [partial(Reducer, number, len(plans)) for number in range(reducers)],
        address=address,
        timeout_s=timeout_s,
        output=output,
    )


def check_ray() -> None:
    """Raise UsageError without the extra. Ray is not imported yet, since it reads variables then."""
    if find_spec("ray") is None:
        raise UsageError(f"training on several workers needs Ray: {installing('distributed')}")


@contextmanager
def _connected(address: str | None, workers: int) -> Iterator[tuple[Any, tuple[str, int]]]:
    """The module `ray`, connected to a cluster or to one that is started here, and where its control service is.

    For a ray:// address that is where its clients connect. What is started here listens on loopback only, and asks for
    a token that only this run's processes have, unless the user has set how. Ray prints what it knows of lost processes
    on standard output, which is for answers, so nothing goes there meanwhile. How SIGTERM is handled stays as it was.
    """
    check_ray()
    with ExitStack() as stack:
        if address is None:
            found, failed = "local", "Ray could not be started"
            base = tempfile.gettempdir()
            folder = tempfile.TemporaryDirectory(
                prefix="ftrie-ray-",
                dir=base if len(base) <= _LONGEST_FOLDER else "/tmp",
                ignore_cleanup_errors=True,
            )
            # The first is read when Ray is imported; without it Ray takes an address that other hosts reach.
            own = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
            if "RAY_AUTH_MODE" not in os.environ:
                own["RAY_AUTH_TOKEN"] = _TOKEN
            options: dict[str, Any] = {
                "num_cpus": workers,
                "object_store_memory": _store_bytes(),
                "include_dashboard": False,
                "_temp_dir": stack.enter_context(folder),
            }
            stack.enter_context(_environment(own))
        else:
            found = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
            failed, options = f"the Ray cluster at {found} cannot be joined", {}
            if found != "auto" and not _answers(_host_and_port(found)):
                raise ClusterError(
                    f"no Ray cluster answers at {found}: expected HOST:PORT of its head (ray start --head prints it), "
                    "or `auto`"
                )
        import ray

        stack.enter_context(redirect_stdout(stack.enter_context(Path(os.devnull).open("w"))))
        stack.callback(ray.shutdown)
        before = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address=found, log_to_driver=False, logging_level="error", **options)
        except (Exception, SystemExit) as error:  # Ray raises plain Exception
            raise ClusterError(f"{failed}: {_first_line(error)}{_hint(error)}") from error
        with suppress(ValueError):  # not in the main thread, where Ray leaves it too
            signal.signal(signal.SIGTERM, before)
        control = found if "://" in found else ray.get_runtime_context().gcs_address
        yield ray, _host_and_port(control)


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Environment variables that are set for a while, and RAY_AUTH_MODE, which Ray sets."""
    before = {name: os.environ.get(name) for name in (*variables, "RAY_AUTH_MODE")}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _hint(error: BaseException) -> str:
    text = str(error).lower()
    if "version" in text:
        return " Every host needs the same Python, Ray and ftrie."
    if "token" in text or "failed to connect" in text:
        return " If it asks for a token: set RAY_AUTH_MODE=token, and put it into ~/.ray/auth_token or RAY_AUTH_TOKEN."
    if "node" in text:
        return " This host has to be a part of it (ray start --address HOST:PORT), or the address ray://HOST:10001."
    return ""


def _store_bytes() -> int:
    """The size of the object store: what is in flight in one step; Ray writes to disk what does not fit."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(max(memory // 10, 128 << 20), 1 << 30)


def _answers(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=5.0).close()
    except OSError:
        return False
    return True


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        return host.strip("[]"), int(port)
    except ValueError:
        raise UsageError(
            f"the Ray address {address!r} has no port: expected HOST:PORT, ray://HOST:PORT or `auto`"
        ) from None


def _raise_lost(members: Iterable[_CrewMember]) -> None:
    if lost := [f"{each} was lost: {each.lost}" for each in members]:
        raise MemberLost("; ".join(lost))


def _reason(error: Exception) -> str:
    """Why a member is gone, from what Ray says."""
    text, kind = str(error), type(error).__name__
    # Ray lists the system's OOM killer among the common causes of any end.
    said = text.partition("Some common causes")[0]
    if kind == "OutOfMemoryError" or any(
        words in said for words in ("OOM", "OUT_OF_MEMORY", "low on memory")
    ):
        return "Ray ended it, since its host ran out of memory"
    if kind.startswith("Object"):
        return "what was sent to it was on a host that is away"
    if kind == "NodeDiedError" or "node has died" in text or "node was" in text:
        return "its host is away"
    return _ENDED


def _not_started(member: _CrewMember, error: BaseException) -> ClusterError:
    if "ModuleNotFoundError" in str(error):
        return ClusterError(
            f"{member} could not be started, since its host lacks ftrie or a part of it: pip install "
            f"'ftrie[distributed]=={version('ftrie')}' on every host"
        )
    return ClusterError(f"{member} could not be started: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0].rstrip(".") + "."
