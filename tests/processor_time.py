"""`pytest --processor-time`: how much processor time each test takes, with that of its fixtures and its processes.

Durations say how long a test waits; what a machine of two cores can run in five minutes is a matter of processor time.
Measured are the threads of the process that runs the test and the child processes that have ended and been waited for,
in set-up, call and teardown; a fixture of a wider scope counts for the test that needs it first. Each process of xdist
imports and collects all tests before it runs its first.
"""

from __future__ import annotations

import resource
import sys
from collections import defaultdict
from collections.abc import Generator, Mapping
from typing import Any

import pytest

MOST = 40
_FIRST = "imports and collection, in each process"


def processor_s() -> tuple[float, float]:
    """Seconds of processor time of this process, and of its children that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    own, children = (usage.ru_utime + usage.ru_stime for usage in usages)
    return own, children


class _CompilingTime:
    """Seconds by the clock in which numba compiled, once it is imported."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._listening: Any = None

    def listen(self) -> None:
        if self._listening is None and "model_store.jit" in sys.modules:
            from model_store.jit import on_compile

            self._listening = on_compile(on_end=self._ended)
            self._listening.__enter__()

    def _ended(self, name: str, seconds: float, inside: int) -> None:
        self.seconds += 0.0 if inside else seconds


class ProcessorTime:
    """The plugin. In a process of xdist it measures; in the one that reports it adds up and prints."""

    def __init__(self) -> None:
        self._before = (0.0, 0.0)
        self._compiling = _CompilingTime()
        self.seconds: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
        """By test: of the process, of its children, of these for compiling, and by the clock."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, Any]:
        """Add to each report what has been spent since the one before."""
        report = yield
        now = processor_s()
        report.processor_s = [b - a for a, b in zip(self._before, now, strict=True)] + [
            self._compiling.seconds
        ]
        self._before, self._compiling.seconds = now, 0.0
        self._compiling.listen()
        return report

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Keep the time until here apart; xdist's controller collects nothing."""
        self._before = processor_s()
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_FIRST] = self._before

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a process spent before its first test."""
        self._add(_FIRST, [*node.workeroutput.get(_FIRST, (0.0, 0.0)), 0.0, 0.0])

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Add up the phases of each test."""
        self._add(report.nodeid, [*report.processor_s, report.duration])

    def _add(self, name: str, seconds: list[float]) -> None:
        self.seconds[name] = [a + b for a, b in zip(self.seconds[name], seconds, strict=True)]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the folders, the files and the tests that take most."""
        for title, names in (
            ("folder", {name: "/".join(name.partition("::")[0].split("/")[:3]) for name in self.seconds}),
            ("file", {name: name.partition("::")[0] for name in self.seconds}),
            ("test", {name: name for name in self.seconds}),
        ):
            terminalreporter.section(f"processor time by {title}", "-")
            terminalreporter.line("   total  process  children  compiling  by the clock")
            for line in _rows(self.seconds, names, title == "folder"):
                terminalreporter.line(line)


def _rows(seconds: Mapping[str, list[float]], names: Mapping[str, str], is_whole: bool) -> list[str]:
    sums: dict[str, list[float]] = {}
    for name, own in seconds.items():
        before = sums.get(names[name], [0.0, 0.0, 0.0, 0.0])
        sums[names[name]] = [a + b for a, b in zip(before, own, strict=True)]
    if is_whole and seconds:  # none where tests were collected only
        sums["all"] = [sum(each) for each in zip(*seconds.values(), strict=True)]
    ordered = sorted(sums.items(), key=lambda item: -item[1][0] - item[1][1])[: None if is_whole else MOST]
    return [
        f"{own + children:8.1f} {own:8.1f} {children:9.1f} {compiling:10.1f} {clock:13.1f}  {name[:120]}"
        for name, (own, children, compiling, clock) in ordered
    ]
