"""Runs processes of ftrie as threads of this one, of which one at a time runs, under a clock that passes by waiting.

Which thread runs next is drawn from a seed, at each wait and at each system call that `Failing` sees; so a seed is one
order of everything, and replays. While all threads wait, the clock jumps to the end of the first wait: an hour takes as
long as what is done in it. The store is real, but for its clock: on the way to it, what asks for its time is given that
of the simulation.
"""

from __future__ import annotations

import concurrent.futures.thread
import errno
import hashlib
import os
import queue
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from unittest.mock import patch

import grpc

from model_store import jit
from model_store.clock import Event
from model_store.spec.spec import ModelSpec
from server.ranking.warmup import warm_kernels
from tests.sweeps.failing import REFUSALS, Failing
from trainer.runs.warmup import compile_trainer

T = TypeVar("T")

START_S = 1_700_000_000.0
MOST_TURNS = 100_000
"""Of threads while the clock does not move: more are a loop that does not wait."""
STAYS = 0.85
"""How often a thread goes on after a system call, rather than another one."""
KILL = "kill"
REFUSAL_TEXTS = {
    "OOM": b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    "READONLY": b"-READONLY You can't write against a read only replica.\r\n",
}
NEVER = float("inf")

_allocate = threading._allocate_lock  # type: ignore[attr-defined]
_start, _join, _is_alive = threading.Thread.start, threading.Thread.join, threading.Thread.is_alive


class Killed(BaseException):
    """The process of this thread was killed: nothing that it does from now on has an effect."""


@dataclass
class Fault:
    """In a process, a system call fails: of these kinds, the one after `skip` others, `times` in a row."""

    process: str
    kinds: Sequence[str]
    failure: str
    skip: int = 0
    times: int = 1
    met: int = 0


@dataclass
class Process:
    """What dies together."""

    name: str
    dead: bool = False
    stopped_until: float = 0.0
    """By SIGSTOP."""


@dataclass(eq=False)
class Task:
    """A thread. It may run once `ready` says so or the time is `due`; gate: held while others run."""

    name: str
    process: Process | None
    ready: Callable[[], bool] | None = None
    due: float = NEVER
    ended: bool = False
    gate: Any = field(default_factory=_allocate)

    def is_able(self, now_s: float) -> bool:
        if self.due > now_s and self.ready is None:  # most of them
            return self.process is not None and self.process.dead
        if self.process is not None and (self.process.dead or now_s < self.process.stopped_until):
            return self.process.dead
        return self.due <= now_s or (self.ready is not None and self.ready())

    @property
    def able_at(self) -> float:
        """When it can run next, if nothing else happens."""
        stopped_until = self.process.stopped_until if self.process is not None else 0.0
        return max(stopped_until, self.due if self.ready is None or not self.ready() else 0.0)


class Lock:
    """A lock whose waits are the simulation's."""

    def __init__(self) -> None:
        self._lock = _allocate()
        self.locked, self.release = self._lock.locked, self._lock.release

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._lock.acquire(False):
            return True
        if not blocking:
            return False
        simulation = Simulation.now
        if simulation is None or simulation.task is None:
            return bool(self._lock.acquire(True, timeout))
        until = simulation.monotonic() + timeout if timeout >= 0 else NEVER
        while not self._lock.acquire(False):
            if not simulation.block(lambda: not self._lock.locked(), until):
                return False
        return True

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Simulation(Failing):
    """While entered, this thread is the driver; threads that are started are simulated."""

    now: Simulation | None = None

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.draw = random.Random(seed)
        self.faults: list[Fault] = []
        self.errors: list[str] = []
        self.away_until = 0.0
        """Until then the store refuses connections."""
        self._monotonic_s, self._wall_s = 1000.0, START_S - 1000.0
        self._turns = 0
        self._tasks: list[Task] = []
        self._threads: list[threading.Thread] = []
        self._of_thread: dict[int, Task] = {}
        self._real = threading.local()
        self._unanswered = set[int]()
        self._scripts: dict[bytes, bytes] = {}
        self._answers: dict[int, bytes] = {}

    # -- the clock

    def monotonic(self) -> float:
        return self._monotonic_s

    def time(self) -> float:
        return self._monotonic_s + self._wall_s

    def wait(self, event: Event, seconds: float) -> bool:
        return event.wait(seconds)

    def sleep(self, seconds: float) -> None:
        self.block(None, self._monotonic_s + max(0.0, seconds))

    def jump(self, seconds: float) -> None:
        """Set the wall clock."""
        self._wall_s += seconds

    def suspend(self, seconds: float) -> None:
        """Let time pass in which nothing runs."""
        self._monotonic_s += seconds

    # -- threads

    @property
    def task(self) -> Task | None:
        """Of this thread; None if it is not simulated."""
        return None if getattr(self._real, "wait", False) else self._of_thread.get(threading.get_ident())

    def block(self, ready: Callable[[], bool] | None, until: float = NEVER) -> bool:
        """Let others run until it is ready, or the clock has come to `until`; whether it is ready."""
        task = self.task
        assert task is not None
        self._check_alive(task)
        task.ready, task.due = ready, until
        self._turn(task)
        task.ready, task.due = None, NEVER
        self._check_alive(task)
        return ready is None or ready()

    def start(self, process: Process | None, name: str, run: Callable[[], None]) -> Task:
        """Run this in a thread, of a process."""
        return self._started(threading.Thread(target=run, name=name, daemon=True), process)

    def kill(self, process: Process) -> None:
        """End its threads where they are."""
        process.dead = True

    def ended(self, process: Process) -> bool:
        """Whether no thread of it is left."""
        return not any(task.process is process for task in self._tasks)

    def outside(self, work: Callable[[], T]) -> T:
        """Do this as if nothing were simulated."""
        before, self._real.wait = getattr(self._real, "wait", False), True
        try:
            return work()
        finally:
            self._real.wait = before

    @contextmanager
    def inside(self, process: Process) -> Iterator[None]:
        """This thread is one of the process."""
        task = self.task
        assert task is not None
        before, task.process = task.process, process
        try:
            yield
        finally:
            task.process = before

    def _started(self, thread: threading.Thread, process: Process | None) -> Task:
        task, run = Task(thread.name, process), thread.run
        task.gate.acquire()
        task.ready = lambda: True

        def body() -> None:
            task.gate.acquire()
            self._of_thread[threading.get_ident()] = task
            try:
                self._check_alive(task)
                task.ready = None
                run()
            except Killed:
                pass
            except BaseException as error:
                if not (process and process.dead):
                    self.errors.append(f"{task.name}: {error!r}")
                    self.error = error
            task.ended = True
            self._tasks.remove(task)
            del self._of_thread[threading.get_ident()]
            self._next().gate.release()

        thread.run = body  # type: ignore[method-assign]
        thread.__dict__["task"] = task
        self.outside(lambda: _start(thread))
        self._tasks.append(task)
        self._threads.append(thread)
        return task

    def _check_alive(self, task: Task) -> None:
        if task.process is not None and task.process.dead:
            raise Killed

    def _turn(self, task: Task) -> None:
        chosen = self._next()
        if chosen is not task:
            chosen.gate.release()
            task.gate.acquire()

    def _next(self) -> Task:
        while True:
            now = self._monotonic_s
            if able := [each for each in self._tasks if each.is_able(now)]:
                self._turns += 1
                if self._turns < MOST_TURNS:
                    return able[self.draw.randrange(len(able))] if len(able) > 1 else able[0]
                self.errors.append(f"a loop that does not wait: {[each.name for each in able]}")
                self._turns = 0
            due = min(each.able_at for each in self._tasks)
            if due == NEVER:
                raise AssertionError(f"all wait for each other: {[each.name for each in self._tasks]}")
            self._monotonic_s, self._turns = max(now, due), 0

    # -- system calls

    def _fail(self, kind: str) -> str | None:
        task = self.task
        process = task.process if task is not None else None
        if task is None or process is None:
            return None
        self._check_alive(task)
        if self.draw.random() > STAYS:
            self.block(lambda: True)
        if kind in ("connect", "send", "receive") and self._monotonic_s < self.away_until:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        for fault in self.faults:
            if fault.process == process.name and kind in fault.kinds and fault.met < fault.times:
                if fault.skip:
                    fault.skip -= 1
                    continue
                fault.met += 1
                return self._met(fault.failure, process)
        return None

    def _met(self, failure: str, process: Process) -> str | None:
        if failure == KILL:
            self.kill(process)
            raise Killed
        if failure in REFUSALS or failure == "short":
            return failure
        if failure == "timeout":
            self.sleep(1.0)
            raise TimeoutError("timed out")
        code = getattr(errno, failure)
        raise OSError(code, os.strerror(code))

    def _sending(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def send(wire: Any, data: Any, *flags: int) -> Any:
            self._unanswered.add(wire.fileno())
            return real(wire, self._timed(bytes(data)), *flags)

        return super()._sending(send)

    def _receiving(self, real: Callable[..., bytes]) -> Callable[..., bytes]:
        return self._once(super()._receiving(real), real)

    def _receiving_into(self, real: Callable[..., int]) -> Callable[..., int]:
        return self._once(super()._receiving_into(real), real)

    def _once(self, counted: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
        """An answer is one call, though it may arrive in several parts."""

        def receive(wire: Any, *words: Any) -> Any:
            is_first = wire.fileno() in self._unanswered or wire.fileno() in self._answers
            self._unanswered.discard(wire.fileno())
            return (counted if is_first else real)(wire, *words)

        return receive

    def _refused(self, wire: socket.socket, data: Any, failure: str) -> bool:
        """Answered here: the store itself would refuse the other processes too."""
        self._answers[wire.fileno()] = REFUSAL_TEXTS[failure] * len(parsed(bytes(data)) or ())
        return True

    def _receiving(self, real: Callable[..., Any]) -> Callable[..., Any]:
        receive = super()._receiving(real)

        def call(wire: socket.socket, *words: Any) -> Any:
            answer = self._answers.pop(wire.fileno(), None)
            if answer is None:
                return receive(wire, *words)
            if isinstance(words[0], int):
                return answer
            words[0][: len(answer)] = answer
            return len(answer)

        return call

    # -- the store's clock

    def _timed(self, data: bytes) -> bytes:
        """Commands to the store, with the simulation's time for the store's."""
        if self.task is None or not re.search(rb"\r\n(TIME|XADD|XREAD|EVAL|EVALSHA|LOAD)\r\n", data):
            return data
        commands = parsed(data)
        return data if commands is None else b"".join(packed(self._with_time(each)) for each in commands)

    def _with_time(self, words: list[bytes]) -> list[bytes]:
        now_ms = int(self.time() * 1000)
        match words[0].upper():
            case b"TIME":
                seconds, ms = divmod(now_ms, 1000)
                return [b"EVAL", b"return ARGV", b"0", b"%d" % seconds, b"%d" % (ms * 1000)]
            case b"XADD" if b"*" in words:
                at = words.index(b"*")
                rest = [*words[2:at], *words[at + 1 :], b"%d" % (at - 2), b"%d" % now_ms]
                return [b"EVAL", _ADD, b"1", words[1], *rest]
            case b"XREAD" if b"BLOCK" in words:
                at = words.index(b"BLOCK")
                self.sleep(int(words[at + 1]) / 1000)
                return [*words[:at], *words[at + 2 :]]
            case b"SCRIPT" if words[1].upper() == b"LOAD":
                return [*words[:2], self._script(words[2])]
            case b"EVAL":
                return [words[0], self._script(words[1]), *words[2:], b"%d" % now_ms]
            case b"EVALSHA":
                # One that was loaded without the simulation's clock is unknown: then it is loaded with it.
                return [words[0], self._scripts.get(words[1], b"0" * 40), *words[2:], b"%d" % now_ms]
        return words

    def _script(self, text: bytes) -> bytes:
        timed = _STAR + text.replace(
            b"redis.call('TIME')", b"{math.floor(clock_ms / 1000), clock_ms % 1000 * 1000}"
        )
        timed = re.sub(rb"'XADD', (KEYS\[\d\]),(.*?)'\*'", rb"'XADD', \1,\2star(\1)", timed)
        sha = hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
        self._scripts[sha] = hashlib.sha1(timed, usedforsecurity=False).hexdigest().encode()
        return timed

    # -- this process

    def __enter__(self) -> Simulation:
        assert Simulation.now is None
        Simulation.now = self
        driver = Task("driver", None)
        driver.gate.acquire()
        self._tasks.append(driver)
        self._of_thread[threading.get_ident()] = driver
        random.seed(self.draw.random())
        for owner, name, replacement in (
            (threading, "_allocate_lock", Lock),
            (threading, "Lock", Lock),
            (threading, "RLock", threading._PyRLock),  # type: ignore[attr-defined]
            (threading, "_time", self.monotonic),
            (threading.Thread, "start", _simulated_start),
            (threading.Thread, "join", _simulated_join),
            (threading.Thread, "is_alive", _simulated_is_alive),
            (concurrent.futures.thread.ThreadPoolExecutor, "submit", _run_at_once),
            (time, "time", self.time),
            (time, "time_ns", lambda: int(self.time() * 1e9)),
            (time, "monotonic", self.monotonic),
            (time, "sleep", self.sleep),
            (time, "clock_gettime", lambda _: self.monotonic()),
        ):
            self._patches.enter_context(patch.object(owner, name, replacement))
        for place in (
            "server.serve.gate",
            "server.serve.worker",
            "server.sync.model_sync",
            "model_store.waiting",
        ):
            self._patches.enter_context(patch(f"{place}.SimpleQueue", queue._PySimpleQueue))  # type: ignore[attr-defined]
        self._patches.enter_context(patch("trainer.events.waiting_rows.Lock", Lock))
        # Each server and trainer would load and run all kernels when it starts: here that is done once (`warm`). Nor is
        # the memory of each version given back to the system: that visits all objects of this process.
        for place in (
            "trainer.runs.trainer.compile_trainer",
            "server.sync.model_sync.warm_kernels",
            "server.serve.worker.warm_kernels",
            "server.sync.model_builder.return_free_memory",
        ):
            self._patches.enter_context(patch(place, lambda *_: None))
        # A new trainer adds up the hours of three days, minute by minute.
        self._patches.enter_context(patch("trainer.publish.online_metrics._HOURS_KEPT", 1))
        # Nor are streams read as often.
        self._patches.enter_context(patch("trainer.sources.merge._PAUSE_S", 0.2))
        # redis-py parses its package's metadata for each connection.
        self._patches.enter_context(patch("redis.utils.get_lib_version", lambda: "0"))
        compile_kernel = jit._Kernel.compile
        self._patches.enter_context(
            patch.object(jit._Kernel, "compile", lambda *words: self.outside(lambda: compile_kernel(*words)))
        )
        super().__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for task in self._tasks:
            if task.process is not None:
                task.process.dead = True
        with suppress(AssertionError):
            self.block(lambda: len(self._tasks) == 1)
        super().__exit__(*_)
        Simulation.now = None
        for (
            thread
        ) in self._threads:  # what has ended for the simulation still holds what it used, for a moment
            _join(thread, 10.0)


def _simulated_start(thread: threading.Thread) -> None:
    simulation = Simulation.now
    task = simulation.task if simulation is not None else None
    if simulation is None or task is None:
        return _start(thread)
    simulation._started(thread, task.process)


def _simulated_join(thread: threading.Thread, timeout: float | None = None) -> None:
    simulation, task = Simulation.now, thread.__dict__.get("task")
    if simulation is None or simulation.task is None or task is None:
        return _join(thread, timeout)
    until = NEVER if timeout is None else simulation.monotonic() + max(0.0, timeout)
    if task.ended or simulation.block(lambda: task.ended, until):
        simulation.outside(lambda: _join(thread))


def _simulated_is_alive(thread: threading.Thread) -> bool:
    task = thread.__dict__.get("task")
    return _is_alive(thread) if task is None else not task.ended


def _run_at_once(
    executor: Any, work: Callable[..., Any], /, *words: Any, **named: Any
) -> concurrent.futures.Future[Any]:
    future = concurrent.futures.Future[Any]()
    try:
        future.set_result(work(*words, **named))
    except Exception as error:
        future.set_exception(error)
    return future


_STAR = b"""
local clock_ms = tonumber(table.remove(ARGV))
local function star(key)
  local last = redis.pcall('XREVRANGE', key, '+', '-', 'COUNT', 1)
  local last_ms = #last > 0 and tonumber(string.match(last[1][1], '^%d+')) or 0
  return string.format('%.0f-*', math.max(clock_ms, last_ms))
end
"""
"""The id that the store gives an entry: by its clock, but no earlier than the last one's."""
_ADD = (
    _STAR
    + b"""
local at = tonumber(table.remove(ARGV))
table.insert(ARGV, at + 1, star(KEYS[1]))
return redis.call('XADD', KEYS[1], unpack(ARGV))
"""
)


def parsed(data: bytes) -> list[list[bytes]] | None:
    """The commands of a request, as words; None if it is a part of one."""
    found, at = [], 0
    try:
        while at < len(data):
            words = []
            end = data.index(b"\r\n", at)
            count, at = int(data[at + 1 : end]), end + 2
            for _ in range(count):
                end = data.index(b"\r\n", at)
                size, at = int(data[at + 1 : end]), end + 2
                words.append(data[at : at + size])
                at += size + 2
            found.append(words)
    except ValueError:
        return None
    return found if at == len(data) else None


def packed(words: Sequence[bytes]) -> bytes:
    """A command as it is sent."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def warm(spec: ModelSpec) -> None:
    """Do what is done once a process: compile, or load, the kernels, and start grpc's own threads."""
    grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    warm_kernels()
    compile_trainer(spec)
