"""The crew of a distributed run on Ray: members are actors, and parts go from one to the other through Ray's store.

A step is one call of each member. Its reply is a small first result, which the driver takes, and one further result for
each receiver, which the driver only refers to: Ray moves it between the hosts (parts below Ray's bound for inlining,
100 kB, travel with the reply instead). A member copies what it receives, since Ray hands out views of its store, and a
view that is kept would fill the store. An FtrieError in a step is that step's error; anything else is a bug and keeps
its remote traceback.

A member that is gone, or much slower than the others, is reported by MemberLost, and `replace_lost` starts it again,
empty. When Ray itself is gone, no member can be replaced: that is a ClusterError, found by asking Ray's control service
each second, since Ray would wait for a minute and then end the process.

Needs the extra `distributed`; Ray is imported when a crew is opened.
"""

from __future__ import annotations

import copy
import os
import secrets
import shutil
import signal
import socket
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

from model_store.errors import ClusterError, FtrieError, UsageError, counted, installing
from trainer.distributed.messages import nbytes
from trainer.distributed.methods import MemberLost, Replies
from trainer.distributed.reducer import Reducer
from trainer.distributed.worker import Worker
from trainer.output import SILENT, Output

WORKER, REDUCER = "worker", "reducer"
_POLL_S = 1.0
_PLACED_S = 120.0
_AWAY_S, _AWAY_HERE_S = 20.0, 3.0
_ANSWER_S = 5.0
_SLOW, _SLOW_S = 3.0, 5.0
_STARTS = 3
_ENDED_S = 3.0
_MOST_LOSSES = 3
_STORE_BYTES = (128 << 20, 1 << 30)
_STORE_SHARE = 0.1
_SOCKET_PATH = 107 - len("/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")
_RESUME = "--resume goes on from the last checkpoint"

_TOKEN = secrets.token_hex(32)
"""Of the clusters that this process starts: nobody else can join them. Ray reads it once in a process."""


class _Reply(NamedTuple):
    """A member's first result. sizes: the bytes of each part, None for one that is not sent."""

    summary: Any
    sizes: list[int | None]
    seconds: float


class _Actor:
    """What runs in a member's process: the member, and its steps."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._member = make()

    def hello(self) -> tuple[str, int, str]:
        """Host name, process id and version of ftrie."""
        return socket.gethostname(), os.getpid(), version("ftrie")

    def run(self, step: str, arguments: tuple[Any, ...], receivers: int, *parts: Any) -> list[Any]:
        """One step: its reply or its FtrieError, then what goes to each receiver."""
        began = time.perf_counter()
        try:
            summary, sent = getattr(self._member, step)(*arguments, inbox=copy.deepcopy(parts))
        except FtrieError as error:
            return [_picklable(error), *[None] * receivers]
        sizes = [None if part is None else nbytes(part) for part in sent]
        return [_Reply(summary, sizes, time.perf_counter() - began), *sent]


def _picklable(error: FtrieError) -> FtrieError:
    """The error, or one of the same message and exit code, if it cannot be sent."""
    try:
        copy.copy(error)  # made from the same arguments as by Ray
    except Exception:
        plain = FtrieError(str(error))
        plain.exit_code = error.exit_code
        return plain
    return error


@dataclass
class _Member:
    """An actor as the driver knows it; lost: why it is gone."""

    kind: str
    number: int
    make: Callable[[], Any]
    actor: Any = None
    host: str = ""
    pid: int = 0
    lost: str | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.number} on {self.host}" if self.host else f"{self.kind} {self.number}"


class RayCrew:
    """Workers and reducers as Ray actors; a `trainer.distributed.methods.Crew`.

    makers: make each member in its process, again whenever it is replaced; picklable. timeout_s: a member that still
    works so long after half of its kind have finished is lost; None: never. Use as a context manager.
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
        self._members = {
            WORKER: [_Member(WORKER, number, make) for number, make in enumerate(workers)],
            REDUCER: [_Member(REDUCER, number, make) for number, make in enumerate(reducers)],
        }
        self._losses = Counter[str]()
        self._silent_since_s = 0.0
        self._ray = the_ray()
        self._open = ExitStack()
        try:
            with _own_handlers():
                connect = (
                    _started_here(self._ray, self.workers) if address is None else _joined(self._ray, address)
                )
                self._control = self._open.enter_context(connect)
            self._away_s = _AWAY_HERE_S if address is None else _AWAY_S
            self._class = self._ray.remote(max_restarts=0, max_task_retries=0)(_Actor)
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

    def replace_lost(self) -> None:
        """Start lost members again, empty. Raises ClusterError if Ray is away, or one step is never finished."""
        lost = [each for members in self._members.values() for each in members if each.lost is not None]
        step, times = max(self._losses.items(), key=lambda each: each[1], default=("", 0))
        if times >= _MOST_LOSSES:
            raise ClusterError(
                f"members were lost {times} times at the step {step!r}, which never ended; the last time "
                + "; ".join(f"{each}: {each.lost}" for each in lost)
                + f"; {_RESUME}, perhaps with more --workers or hosts with more memory"
            )
        self._check_ray()
        began = time.perf_counter()
        notes = [f"{each} was lost: {each.lost}" for each in lost]
        for each in lost:
            with suppress(Exception):
                self._ray.kill(each.actor)
        self._start(lost)
        for each, note in zip(lost, notes, strict=True):
            seconds = time.perf_counter() - began
            self._output.warn(f"{note}; started again on {each.host} in {seconds:.1f} s")

    def _ask(
        self, kind: str, receivers: int, step: str, arguments: tuple[Any, ...], inbox: Replies | None
    ) -> Replies:
        results = []
        for each in self._members[kind]:
            parts = [] if inbox is None else [sent[each.number] for sent in inbox.parts]
            call = each.actor.run.options(num_returns=1 + receivers)
            results.append(call.remote(step, arguments, receivers, *parts))
        try:
            replies = self._wait(kind, step, [each[0] for each in results])
        except (self._ray.exceptions.RaySystemError, ConnectionError) as error:
            if isinstance(error, self._ray.exceptions.RayTaskError):
                raise  # a member's own
            raise self._away(_first_line(error).rstrip(".")) from None
        del self._losses[f"{kind} {step}"]
        parts = [
            [None if size is None else part for size, part in zip(reply.sizes, sent[1:], strict=True)]
            for reply, sent in zip(replies, results, strict=True)
        ]
        sizes = [size for reply in replies for size in reply.sizes if size is not None]
        return Replies([reply.summary for reply in replies], parts, sum(sizes))

    def _wait(self, kind: str, step: str, first_results: list[Any]) -> list[_Reply]:
        """The replies of all members of a kind. Raises MemberLost as soon as one is known to be lost."""
        members = self._members[kind]
        waiting = dict(zip(first_results, members, strict=True))
        replies: dict[int, _Reply] = {}
        began, half_s, warned = time.monotonic(), 0.0, set[int]()
        while waiting:
            ready, _ = self._ray.wait([*waiting], num_returns=len(waiting), timeout=_POLL_S)
            for result in ready:
                member = waiting.pop(result)
                reply = self._reply(member, result)
                if isinstance(reply, FtrieError):
                    raise reply
                if reply is not None:
                    replies[member.number] = reply
            if waiting:
                self._check_ray()
            lost = [each for each in members if each.lost is not None]
            if waiting and not lost and 2 * len(replies) >= len(members) > 1:
                half_s = half_s or time.monotonic()
                median = statistics.median(each.seconds for each in replies.values())
                for member in waiting.values():
                    self._watch(member, step, time.monotonic() - began, median, half_s, warned)
                lost = [each for each in members if each.lost is not None]
            if lost or len(replies) + len(waiting) < len(members):
                self._losses[f"{kind} {step}"] += 1
                raise MemberLost("; ".join(f"{each} was lost: {each.lost}" for each in lost))
        return [replies[number] for number in range(len(members))]

    def _reply(self, member: _Member, result: Any) -> _Reply | FtrieError | None:
        """A member's reply; None if it, or what was sent to it, is lost."""
        errors = self._ray.exceptions
        gone = (
            errors.RayActorError,
            errors.OutOfMemoryError,
            errors.NodeDiedError,
            errors.WorkerCrashedError,
        )
        try:
            reply: _Reply | FtrieError = self._ray.get(result)
            return reply
        except gone as error:
            self._check_ray(now=True)
            member.lost = _reason(error)
        except errors.ObjectLostError:
            self._check_ray(now=True)  # of a member whose host is gone; asking that member will say so
        except errors.RayTaskError as error:
            if not isinstance(error.cause, errors.ObjectLostError):
                raise
        return None

    def _watch(
        self, member: _Member, step: str, seconds: float, median: float, half_s: float, warned: set[int]
    ) -> None:
        """Report a member that is slow, and give one up that is too slow."""
        waited = time.monotonic() - half_s
        if self._timeout_s is not None and waited > self._timeout_s:
            member.lost = (
                f"it has worked on the step {step!r} for {seconds:.0f} s, over --worker-timeout after the others had "
                f"finished (median {median:.1f} s)"
            )
        elif member.number not in warned and seconds > max(_SLOW * median, _SLOW_S):
            warned.add(member.number)
            limit = (
                ""
                if self._timeout_s is None
                else f"; it is replaced after {self._timeout_s - waited:.0f} s more"
            )
            self._output.warn(
                f"{member} is slow: it has worked on the step {step!r} for {seconds:.0f} s, the others took "
                f"{median:.1f} s (median){limit}"
            )

    def _start(self, members: Sequence[_Member]) -> None:
        """Start members, and wait until they answer. Raises ClusterError."""
        waiting = {self._created(each): each for each in members}
        end_s = time.monotonic() + self._placed_s
        while waiting:
            ready, _ = self._ray.wait([*waiting], num_returns=len(waiting), timeout=_POLL_S)
            for result in ready:
                member = waiting.pop(result)
                try:
                    member.host, member.pid, found = self._ray.get(result)
                except (self._ray.exceptions.RayError, ConnectionError) as error:
                    self._check_ray(now=True)
                    if getattr(error, "actor_init_failed", False) or time.monotonic() > end_s:
                        raise _not_started(member, error) from None
                    time.sleep(_POLL_S / 4)
                    waiting[self._created(member)] = member
                    continue
                if found != version("ftrie"):
                    raise ClusterError(
                        f"{member.host} has ftrie {found}, and this host {version('ftrie')}: every host needs the same"
                    )
            if waiting:
                self._check_ray()
            if waiting and time.monotonic() > end_s:
                raise self._not_placed(len(waiting))

    def _created(self, member: _Member) -> Any:
        """Create a member's actor; returns its answer to `hello`.

        Workers take a CPU each. Reducers work while workers wait and take none: Ray does not spread what takes none,
        so their hosts are chosen here.
        """
        options = {"num_cpus": 1, "scheduling_strategy": "SPREAD"}
        if member.kind == REDUCER:
            nodes = [node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
            ids = sorted(node["NodeID"] for node in nodes)
            affinity = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
            options = {
                "num_cpus": 0,
                "scheduling_strategy": affinity(ids[member.number % len(ids)], soft=False),
            }
        member.actor, member.lost = self._class.options(**options).remote(member.make), None
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

    def _check_ray(self, *, now: bool = False) -> None:
        """Raise ClusterError if Ray's control service has not answered for some time; now: wait until that is known."""
        while not _answers(self._control):
            self._silent_since_s = self._silent_since_s or time.monotonic()
            if time.monotonic() - self._silent_since_s > self._away_s:
                raise self._away(f"nothing has answered there for {self._away_s:.0f} s")
            if not now:
                return
            time.sleep(_POLL_S / 4)
        self._silent_since_s = 0.0
        if now and not self._is_own_node_alive():
            raise self._away("the part of Ray on this host has ended")

    def _is_own_node_alive(self) -> bool:
        own = self._ray.get_runtime_context().get_node_id()
        return any(node["Alive"] for node in self._ray.nodes() if node["NodeID"] == own)

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
        [partial(_worker, number, reducers, plan) for number, plan in enumerate(plans)],
        [partial(Reducer, number, len(plans)) for number in range(reducers)],
        address=address,
        timeout_s=timeout_s,
        output=output,
    )


def _worker(number: int, reducers: int, plan: Any) -> Worker:
    from trainer.distributed.shard import build_shard

    return Worker(number, reducers, partial(build_shard, plan))


def the_ray() -> Any:
    """The module `ray`. Raises UsageError without the extra."""
    try:
        import ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise UsageError(f"training on several workers needs Ray: {installing('distributed')}") from error
    return ray


_QUIET = {"log_to_driver": False, "logging_level": "error"}


@contextmanager
def _started_here(ray: Any, workers: int) -> Iterator[tuple[str, int]]:
    """Ray on this machine's loopback interface, and nothing of it afterwards. Yields where its control service is."""
    psutil = ray._private.services.psutil
    own = {each.pid for each in psutil.Process().children(recursive=True)}
    with _folder() as folder, _environment(), _on_loopback(ray), _silent(ray):
        started = None
        for attempt in range(_STARTS):
            try:
                started = ray.init(
                    address="local",
                    num_cpus=workers,
                    object_store_memory=_store_bytes(),
                    include_dashboard=False,
                    _node_ip_address="127.0.0.1",
                    _temp_dir=folder,
                    **_QUIET,
                )
                break
            except Exception as error:  # Ray raises plain Exception
                _end_half_started(error)
                ray.shutdown()
                if attempt == _STARTS - 1:
                    raise ClusterError(
                        f"Ray could not be started, {_STARTS} times: {_first_line(error)} Where the machine is "
                        "busy, its parts do not find each other in time."
                    ) from error
        assert started is not None
        processes = [each for each in psutil.Process().children(recursive=True) if each.pid not in own]
        try:
            yield _host_and_port(started.address_info["gcs_address"])
        finally:
            ray.shutdown()
            # Where a part of Ray was killed, others of its parts go on for a minute, to report it to each other.
            _, left = psutil.wait_procs(processes, timeout=_ENDED_S)
            for each in left:
                with suppress(psutil.NoSuchProcess):
                    each.kill()


def _end_half_started(error: BaseException) -> None:
    """End the processes of a Ray that did not start: it leaves them to whoever holds the node, and nobody does."""
    trace = error.__traceback__
    while trace is not None:
        node: Any = trace.tb_frame.f_locals.get("self")
        if hasattr(node, "kill_all_processes"):
            node.kill_all_processes(check_alive=False, allow_graceful=False)
        trace = trace.tb_next


@contextmanager
def _joined(ray: Any, address: str) -> Iterator[tuple[str, int]]:
    """A Ray that is there. Yields where its control service is, or for a ray:// address that of its clients."""
    found = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    control = None if found == "auto" else _host_and_port(found.removeprefix("ray://"))
    if control is not None and not _answers(control):
        raise ClusterError(
            f"no Ray cluster answers at {found}: expected HOST:PORT of its head (ray start --head prints it), or `auto`"
        )
    with _silent(ray):
        try:
            ray.init(address=found, **_QUIET)
        except (Exception, SystemExit) as error:
            ray.shutdown()
            why = _first_line(error) + _hint(error)
            raise ClusterError(f"the Ray cluster at {found} cannot be joined: {why}") from error
        try:
            if control is None or not found.startswith("ray://"):
                control = _host_and_port(ray.get_runtime_context().gcs_address)
            yield control
        finally:
            ray.shutdown()


def _hint(error: BaseException) -> str:
    text = str(error).lower()
    if "version" in text:
        return " Every host needs the same Python, Ray and ftrie."
    if "token" in text or "failed to connect" in text:
        return " If it asks for a token: set RAY_AUTH_MODE=token, and put it into ~/.ray/auth_token or RAY_AUTH_TOKEN."
    if "node" in text:
        return " This host has to be a part of it (ray start --address HOST:PORT), or the address ray://HOST:10001."
    return ""


@contextmanager
def _folder() -> Iterator[str]:
    """A new folder for Ray's sockets and logs, with a path that is short enough for sockets."""
    base = tempfile.gettempdir()
    if len(base) + len("/ftrie-ray-12345678") > _SOCKET_PATH:
        base = "/tmp"
    folder = tempfile.mkdtemp(prefix="ftrie-ray-", dir=base)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _environment() -> Iterator[None]:
    """Only this run's processes may speak to the Ray it starts, unless the user has set how.

    Ray from 2.59 on asks for a token, and otherwise takes the user's, or writes one for him.
    """
    if "RAY_AUTH_MODE" in os.environ:
        yield
        return
    before, os.environ["RAY_AUTH_TOKEN"] = os.environ.get("RAY_AUTH_TOKEN"), _TOKEN
    try:
        yield
    finally:
        os.environ.pop("RAY_AUTH_MODE", None)  # which Ray has set
        del os.environ["RAY_AUTH_TOKEN"]
        if before is not None:
            os.environ["RAY_AUTH_TOKEN"] = before


@contextmanager
def _on_loopback(ray: Any) -> Iterator[None]:
    """Have Ray listen on loopback: on Linux it replaces 127.0.0.1 by an address that others reach, here as on macOS."""
    constants = ray._private.ray_constants
    before, constants.ENABLE_RAY_CLUSTER = getattr(constants, "ENABLE_RAY_CLUSTER", None), False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _silent(ray: Any) -> Iterator[None]:
    """Keep Ray from printing on standard output what it knows of lost processes: that is where answers go."""
    module = ray._private.worker
    before, module.print_to_stdstream = getattr(module, "print_to_stdstream", None), lambda *_, **__: None
    try:
        yield
    finally:
        module.print_to_stdstream = before


@contextmanager
def _own_handlers() -> Iterator[None]:
    """Keep this process's handling of SIGTERM, which Ray replaces when it starts."""
    try:
        before = signal.getsignal(signal.SIGTERM)
        yield
    finally:
        with suppress(ValueError):  # not in the main thread, where Ray leaves it too
            signal.signal(signal.SIGTERM, before)


def _store_bytes() -> int:
    """The size of the object store: what is in flight in one step; Ray writes to disk what does not fit."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    least, most = _STORE_BYTES
    return min(max(int(memory * _STORE_SHARE), least), most)


def _answers(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=_ANSWER_S).close()
    except OSError:
        return False
    return True


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    try:
        return host.strip("[]"), int(port)
    except ValueError:
        raise UsageError(
            f"the Ray address {address!r} has no port: expected HOST:PORT, ray://HOST:PORT or `auto`"
        ) from None


def _reason(error: Exception) -> str:
    """Why a member is gone, from what Ray says."""
    text = str(error)
    if type(error).__name__ == "OutOfMemoryError" or "OOM" in text.partition("Some common causes")[0]:
        return "Ray ended it, since its host ran out of memory"
    if type(error).__name__ == "NodeDiedError" or "node has died" in text or "node was" in text:
        return "its host is away"
    return "its process has ended (killed, out of memory, or crashed)"


def _not_started(member: _Member, error: BaseException) -> ClusterError:
    if "ModuleNotFoundError" in str(error):
        return ClusterError(
            f"{member} could not be started, since its host lacks ftrie or a part of it: pip install "
            f"'ftrie[distributed]=={version('ftrie')}' on every host"
        )
    return ClusterError(f"{member} could not be started: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0].rstrip(".") + "."
