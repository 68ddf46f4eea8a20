"""Compiles, in one process a core, what `ftrie train`, `serve` and `demo` run; `ftrie warmup` prints the result.

Each process compiles one part after another. A kernel that two parts need is compiled by the process that comes first,
while the other waits for it (model_store.jit). A part whose kernels are cached takes a moment.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Self

from model_store.errors import FtrieError
from model_store.jit import CACHE_FOLDER, kernels_are_cached, mark_kernels_cached, on_compile
from trainer.output import SILENT, Output, Progress

_MARK = "warmup"
# About as many kernels as all parts have; the bar corrects its total at the end.
_ESTIMATE = 330
_LOG_TAIL = 600
_SPEC = '[model]\nname = "warm-up"\n[input]\nlabel = "click"\n[fields]\nf = {}\n'
_VARIANTS = "[variants]\na = {}\nb = {}\n"


def _compile_learning(more: str) -> None:
    from model_store.spec.spec import parse_spec
    from trainer.runs.warmup import compile_kernels

    for publishes in (False, True):
        compile_kernels(parse_spec(_SPEC + more), ["csv"], publishes=publishes)


def _ranking() -> ModuleType:
    """server.ranking.warmup, which imports numba."""
    from server.ranking import warmup

    return warmup


def _compile_serving() -> None:
    _ranking().run_kernels()
    mark_kernels_cached(_ranking().KERNELS)


# In the order in which they are begun. The second and the fourth only take work off the third.
_PARTS: dict[str, Callable[[], None]] = {
    "train several variants": lambda: _compile_learning(_VARIANTS),
    "rank several variants": lambda: _ranking().run_variant_kernels(),
    "serve": _compile_serving,
    "read requests": lambda: _ranking().run_request_kernels(),
    "train": lambda: _compile_learning(""),
}
SERVING = ("rank several variants", "serve", "read requests")
BESIDE_TRAINING = (*SERVING, "train")
"""For a caller that trains several variants meanwhile: training compiles the rest."""


@dataclass(frozen=True)
class Part:
    """One part that was compiled. kernels: how many were, rather than read from the cache."""

    name: str
    seconds: float
    kernels: int


@dataclass
class Warmup:
    """What was compiled. kernels: seconds of each kernel that Python calls, with what is compiled into it."""

    seconds: float = 0.0
    parts: list[Part] = field(default_factory=list)
    kernels: dict[str, float] = field(default_factory=dict)


def warm_up(processes: int | None = None, output: Output = SILENT) -> Warmup:
    """Compile all parts in this number of processes, by default one a core; returns at once if they are cached.

    Raises FtrieError if a process fails, OSError if the cache folder cannot be written.
    """
    with Compilation(tuple(_PARTS), processes) as compilation:
        return compilation.wait_for(tuple(_PARTS), output)


class Compilation:
    """A context in which processes compile parts, while the caller does something else; they end with it.

    Nothing is compiled if a compilation of these parts has ended before. Raises OSError if the cache folder cannot be
    written.
    """

    def __init__(self, parts: Sequence[str], processes: int | None = None) -> None:
        self._began, self._made, self._compiled = time.perf_counter(), Warmup(), 0
        self._parts, self._mark = parts, "-".join([_MARK, *parts]).replace(" ", "-")
        self._left = set[str]() if kernels_are_cached(self._mark) else set(parts)
        self._told: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._workers: list[_Worker] = []
        self._processes = min(processes or os.cpu_count() or 1, len(self._left))

    def __enter__(self) -> Self:
        if self._left:
            CACHE_FOLDER.mkdir(parents=True, exist_ok=True)
        waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        for name in self._parts:
            waiting.put(name)
        self._workers = [_Worker(waiting, self._told) for _ in range(self._processes)]
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.end()

    def wait_for(self, parts: Sequence[str], output: Output = SILENT) -> Warmup:
        """Wait until these parts are compiled; what was compiled up to then. Raises FtrieError if a process fails."""
        if self._left.intersection(parts):
            with output.progress("compiling, once a machine", _ESTIMATE, "kernels") as bar:
                while self._left.intersection(parts):
                    self._take(bar)
                bar.update(self._compiled, total=self._compiled)
            if not self._left:
                mark_kernels_cached(self._mark)
        self._made.seconds = time.perf_counter() - self._began
        return self._made

    def _take(self, bar: Progress) -> None:
        line, made = self._told.get(), self._made
        if "part" in line:
            self._left.remove(line["part"])
            made.parts.append(Part(line["part"], line["seconds"], line["kernels"]))
        elif "kernel" in line:
            self._compiled += 1
            name = line["kernel"]
            if not line["inside"]:
                made.kernels[name] = made.kernels.get(name, 0.0) + line["seconds"]
            bar.update(self._compiled, total=max(_ESTIMATE, self._compiled + 1), now=name.split(".")[-1])
        elif line["failed"]:
            raise FtrieError(f"compiling the kernels failed: {line['failed']}")


class _Worker:
    """A process that compiles parts, and a thread that hands them to it and passes on what it prints."""

    def __init__(self, waiting: queue.SimpleQueue[str], told: queue.SimpleQueue[dict[str, Any]]) -> None:
        # A pipe that nobody reads would fill. `_run` closes the file.
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        self._process = subprocess.Popen(
            (sys.executable, "-m", "ftrie.warmup"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
        )
        self._waiting, self._told = waiting, told
        threading.Thread(target=self._run, daemon=True).start()

    def end(self) -> None:
        """End the process, also in the middle of a part."""
        self._process.kill()
        self._process.wait()

    def _run(self) -> None:
        process = self._process
        assert process.stdin and process.stdout
        try:
            while True:
                process.stdin.write(self._waiting.get_nowait() + "\n")
                process.stdin.flush()
                for line in process.stdout:
                    self._told.put(answer := json.loads(line))
                    if "part" in answer:
                        break
                else:
                    break
        except (queue.Empty, OSError):  # no part is left, or the process has ended
            pass
        # This closes stdin, which ends the process.
        process.communicate()
        code = process.returncode
        with self._errors:
            self._errors.seek(0)
            error = self._errors.read()[-_LOG_TAIL:] or f"exit code {code}"
        self._told.put({"failed": error if code else ""})


def _work() -> None:
    """Compile the parts named on stdin; print each compiled kernel, and each part at its end, as a JSON line."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # nothing else may print there

    def put(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    for line in sys.stdin:
        name, began, kernels = line.strip(), time.perf_counter(), 0

        def compiled(kernel: str, seconds: float, inside: int) -> None:
            nonlocal kernels
            kernels += 1
            put({"kernel": kernel, "seconds": seconds, "inside": inside})

        with on_compile(on_end=compiled):
            _PARTS[name]()
        put({"part": name, "seconds": time.perf_counter() - began, "kernels": kernels})


if __name__ == "__main__":
    _work()
