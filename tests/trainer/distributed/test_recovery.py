"""A run on Ray has the same bits as one in this process, also when members are killed in the middle of an iteration."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs Ray: make distributed, or pip install 'ftrie[distributed]'")

from model_store.errors import InputError
from model_store.spec.spec import parse_spec
from tests.trainer.distributed.in_process import InProcessCrew
from tests.trainer.distributed.test_methods import SPEC, minimise, problems, weights, write_log
from trainer.distributed.cluster import RayCrew, open_crew
from trainer.distributed.dealing import ShardPlan, plan_shards
from trainer.distributed.methods import Replies, persist, register
from trainer.distributed.problem import Problem
from trainer.examples.open_log import Log
from trainer.settings import MethodOptions

OPTIONS = MethodOptions("surrogate", iterations=6, tolerance=0.0)
WORKERS, REDUCERS = 2, 2


class Killing:
    """A crew whose members are killed as a step is asked for. at: who, by (kind, step, time)."""

    def __init__(self, crew: RayCrew) -> None:
        self.workers, self.reducers, self._crew = crew.workers, crew.reducers, crew
        self.at: dict[tuple[str, str, int], list[str]] = {}
        self._asked = Counter[tuple[str, str]]()

    def ask_workers(self, step: str, *arguments: Any, inbox: Replies | None = None) -> Replies:
        self._kill("worker", step)
        return self._crew.ask_workers(step, *arguments, inbox=inbox)

    def ask_reducers(self, step: str, *arguments: Any, inbox: Replies | None = None) -> Replies:
        self._kill("reducer", step)
        return self._crew.ask_reducers(step, *arguments, inbox=inbox)

    def fetch(self, part: Any) -> Any:
        return self._crew.fetch(part)

    def replace_lost(self) -> None:
        self._crew.replace_lost()

    def _kill(self, kind: str, step: str) -> None:
        self._asked[kind, step] += 1
        for name in self.at.get((kind, step, self._asked[kind, step]), ()):
            os.kill(self._crew.processes[name][1], signal.SIGKILL)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    return write_log(tmp_path_factory.mktemp("log") / "log.csv")


@pytest.fixture(scope="module")
def plans(log: Log) -> list[ShardPlan]:
    return plan_shards(parse_spec(SPEC), log, WORKERS)


@pytest.fixture(scope="module")
def problem(log: Log) -> Problem:
    (found,), _ = problems(SPEC, log)
    return found


@pytest.fixture(scope="module")
def expected(plans: list[ShardPlan], problem: Problem) -> tuple[float, dict[bytes, float]]:
    """The objective and the weights of a run in this process."""
    crew = InProcessCrew(plans, REDUCERS)
    register(crew)
    objective, _ = minimise(crew, problem, OPTIONS)
    return objective, weights(crew)


@pytest.fixture(scope="module")
def shared(plans: list[ShardPlan]) -> Iterator[RayCrew]:
    with open_crew(plans, REDUCERS) as crew:
        yield crew


@pytest.fixture
def crew(shared: RayCrew) -> Killing:
    persist(shared, lambda: register(shared))
    return Killing(shared)


def test_a_run_on_ray_has_the_bits_of_one_in_this_process(crew, problem, expected):
    objective, iterations = minimise(crew, problem, OPTIONS)
    assert (objective, weights(crew)) == expected and all(each.bytes > 0 for each in iterations)


@pytest.mark.parametrize(
    "at",
    [
        {("worker", "propose", 3): ["worker 1"]},
        {("reducer", "accept", 4): ["reducer 1"]},
        {("worker", "losses", 2): ["worker 0", "worker 1"]},
        {("worker", "propose", 3): ["worker 1"], ("worker", "restore", 1): ["worker 1"]},  # again
        {("worker", "propose", 2): ["worker 0", "reducer 1"]},
    ],
    ids=["worker", "reducer", "both workers", "in its recovery", "a worker and a reducer"],
)
def test_members_killed_in_an_iteration_do_not_change_a_bit(crew, problem, expected, at):
    crew.at = at
    objective, _ = minimise(crew, problem, OPTIONS)
    assert (objective, weights(crew)) == expected


def test_a_log_that_changes_before_a_worker_is_replaced_is_an_error(crew, problem, plans):
    path = Path(plans[0].log.files[0])
    before = path.read_text()
    crew.at = {("worker", "propose", 2): ["worker 0"]}
    path.write_text(before + "1,s1,u1,0.5,1\n")
    try:
        with pytest.raises(InputError, match="must not change during the run"):
            minimise(crew, problem, OPTIONS)
    finally:
        path.write_text(before)
