"""The methods reach the minimum that a plain solver finds, however the rows are dealt and whichever worker is lost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store.errors import ClusterError
from model_store.spec.spec import parse_spec
from tests.trainer.distributed.in_process import InProcessCrew
from tests.trainer.oracles import penalized
from trainer.distributed.dealing import plan_shards
from trainer.distributed.methods import (
    Iteration,
    MethodState,
    Minimiser,
    register,
    solution,
)
from trainer.distributed.problem import Problem, problems_of
from trainer.distributed.reducer import Reducer
from trainer.distributed.shard import Shard, build_shard
from trainer.distributed.worker import sparse
from trainer.examples.hashing import ExampleMaker
from trainer.examples.open_log import Log
from trainer.settings import METHODS, HeldOutRows, MethodOptions

SPEC = """
[model]
name = "ads"
[input]
label = "click"
weight = "weight"
[fields]
site = {}
user = { side = "user" }
price = { kind = "number" }
[[crosses]]
fields = ["site", "user"]
[learner]
l1 = 1.5
l2 = 0.2
[rules."user="]
l1 = 2.0
"""
BY_KEY = dict[bytes, np.ndarray]


def write_log(path: Path, rows: int = 500) -> Log:
    draw = np.random.default_rng(3)
    sites, users = draw.zipf(1.5, rows) % 12, draw.integers(30, size=rows)
    prices = draw.uniform(0, 2, rows)
    rate = 1 / (1 + np.exp(1.5 - 0.15 * (sites % 7) - 0.8 * (users % 3) + prices))
    lines = ["click,site,user,price,weight"]
    for click, site, user, price in zip(draw.random(rows) < rate, sites, users, prices, strict=True):
        lines.append(f"{int(click)},s{site},u{user},{price:.3f},{1 + user % 2}")
    path.write_text("\n".join(lines) + "\n")
    return Log([str(path)], batch_bytes=1 << 10)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    return write_log(tmp_path_factory.mktemp("methods") / "log.csv")


@pytest.fixture(scope="module")
def problem(log: Log) -> Problem:
    (problem,), _ = problems(SPEC, log)
    return problem


@pytest.fixture(scope="module")
def least(log: Log, problem: Problem) -> tuple[BY_KEY, float]:
    """The weights and the objective at the minimum."""
    return optimum(problems(SPEC, log)[1], problem)


@pytest.fixture(scope="module")
def undisturbed(log: Log, problem: Problem) -> Callable[[str], tuple[float, BY_KEY]]:
    """What six iterations of a method find with two workers."""

    @cache
    def found(method: str) -> tuple[float, BY_KEY]:
        crew = crew_of(SPEC, log, 2)
        return minimise(crew, problem, MethodOptions(method, iterations=6))[0], weights(crew)

    return found


def problems(spec_text: str, log: Log, l1: float | None = None) -> tuple[list[Problem], Shard]:
    """The problems, and all rows as one shard."""
    (plan,) = plan_shards(parse_spec(spec_text), log, 1)
    maker = ExampleMaker(plan.start.resolved)
    return list(problems_of(maker.spec, maker.rules.masks, maker.feature_rules, l1)), build_shard(plan)


def optimum(shard: Shard, problem: Problem) -> tuple[BY_KEY, float]:
    """The minimum by the oracle, with each variant's rows as rows of their own."""
    features = shard.keys.features
    size = shard.rows.labels.size
    x = np.zeros((problem.variants * size, features.size))
    values = shard.rows.x if shard.rows.x.size else np.ones(shard.rows.ids.size)
    for variant in range(problem.variants):
        uses = (problem.bits[features] >> np.uint32(variant)) & np.uint32(1)
        for row in range(size):
            for index in range(shard.rows.starts[row], shard.rows.starts[row + 1]):
                key = shard.rows.ids[index]
                x[variant * size + row, key] += values[index] * uses[key]
    y = np.tile(shard.rows.labels.astype(float), problem.variants)
    omega = np.tile(shard.rows.weights, problem.variants)
    w, value = penalized.minimum(x, y, omega, problem.l1[features], problem.l2[features])
    return {shard_key(shard, key): w[key] for key in np.flatnonzero(w)}, value


def shard_key(shard: Shard, key: int) -> bytes:
    return bytes(shard.keys.data[shard.keys.offsets[key] : shard.keys.offsets[key + 1]])


def crew_of(
    spec_text: str, log: Log, workers: int, reducers: int = 2, held: float = 0.0, loss: str = "rows"
) -> InProcessCrew:
    plans = plan_shards(parse_spec(spec_text), log, workers, held_out=HeldOutRows(held))
    crew = InProcessCrew(plans, reducers)
    register(crew, loss)
    return crew


def minimise(crew: InProcessCrew, problem: Problem, options: MethodOptions) -> tuple[float, list[Iteration]]:
    iterations: list[Iteration] = []
    minimiser = Minimiser(crew, problem, options, on_iteration=iterations.append)
    minimiser.run()
    return minimiser.finish(), iterations


def weights(crew: InProcessCrew, column: int = 0, columns: int = 1) -> BY_KEY:
    found = {}
    for data, offsets, _, numbers in solution(crew, columns):
        for number, row in enumerate(numbers):
            if row[column]:
                key = bytes(data[offsets[number] : offsets[number + 1]])
                assert key not in found
                found[key] = row[column]
    return found


@pytest.mark.parametrize(
    ("method", "workers"), [("surrogate", 1), ("surrogate", 4), ("admm", 2), ("admm", 4)]
)
def test_the_minimum_is_found_however_many_workers_there_are(log, problem, least, method, workers):
    expected, lowest = least
    crew = crew_of(SPEC, log, workers)
    found, iterations = minimise(
        crew, problem, MethodOptions(method, iterations=150, tolerance=1e-8, rho=3.0)
    )
    assert lowest * (1 - 1e-9) <= found == pytest.approx(lowest, rel=1e-3)
    assert all(each.bytes > 0 for each in iterations)
    if method == "surrogate":
        assert found == pytest.approx(lowest, rel=1e-5)
        objectives = [each.objective for each in iterations]
        assert all(later <= earlier * (1 + 1e-6) for earlier, later in pairwise(objectives))  # never rises
        assert weights(crew).keys() >= {key for key, w in expected.items() if abs(w) > 0.02}
        for key, w in weights(crew).items():
            assert w == pytest.approx(expected.get(key, 0.0), abs=0.02)


RARE = SPEC.replace("l1 = 1.5\nl2 = 0.2", "l1 = 0.05").replace("l1 = 2.0", "l1 = 0.05")


@pytest.fixture(scope="module")
def rare(tmp_path_factory: pytest.TempPathFactory) -> tuple[Log, Problem, float]:
    """A log of users with two rows each, some of weight 10, which hardly any l1 keeps from being learned by heart."""
    draw, lines = np.random.default_rng(5), ["click,site,user,price,weight"]
    for _ in range(600):
        site, user = draw.integers(6), draw.integers(300)
        click, price = int(draw.random() < 0.05 + 0.1 * (site % 3)), draw.uniform(0, 2)
        lines.append(f"{click},s{site},u{user},{price:.3f},{draw.choice([1, 10])}")
    path = tmp_path_factory.mktemp("rare") / "log.csv"
    path.write_text("\n".join(lines) + "\n")
    log = Log([str(path)], batch_bytes=1 << 10)
    (problem,), _ = problems(RARE, log)
    least, _ = minimise(crew_of(RARE, log, 1), problem, MethodOptions(iterations=300, tolerance=1e-10))
    return log, problem, least


@pytest.mark.parametrize(
    ("method", "workers", "rho", "reached"),
    [("surrogate", 3, 1.0, True), ("admm", 1, 0.1, True), ("admm", 2, 1.0, False)],
)
def test_what_says_that_it_has_converged_has(rare, method, workers, rho, reached):
    log, problem, least = rare
    minimiser = Minimiser(crew_of(RARE, log, workers), problem, MethodOptions(method, 60, rho=rho))
    minimiser.run()
    found, converged = minimiser.finish(), minimiser.progress.converged
    assert (found == pytest.approx(least, rel=1e-3)) == reached >= converged
    assert converged or method == "admm"


LOSSES = [
    ("worker", 1, "gradient", 3),
    ("worker", 0, "propose", 2),
    ("worker", 1, "losses", 4),
    ("worker", 1, "accept", 2),
    ("worker", 0, "start", 1),
    ("worker", 0, "squares", 1),
    ("reducer", 0, "screen", 3),
    ("reducer", 1, "combine", 2),
    ("reducer", 1, "accept", 3),
    ("reducer", 0, "average", 1),
    ("reducer", 0, "squares", 1),
    ("worker", 1, "solve", 3),
    ("reducer", 0, "agree", 3),
    ("worker", 0, "agree", 2),
    ("reducer", 1, "dump", 2),
]


@pytest.mark.parametrize("lost", LOSSES, ids=lambda each: "-".join(map(str, each)))
def test_a_member_lost_at_any_step_does_not_change_the_result(log, problem, undisturbed, lost):
    method = "admm" if lost[2] in {"solve", "agree"} else "surrogate"
    crew = crew_of(SPEC, log, 2)
    crew.asked.clear()
    crew.fail_at = {lost}
    found = minimise(crew, problem, MethodOptions(method, iterations=6))[0]
    assert (found, weights(crew)) == undisturbed(method) and crew.asked["reducer register"] == 1


def test_a_worker_and_a_reducer_lost_at_once_do_not_change_the_result(log, problem, undisturbed):
    crew = crew_of(SPEC, log, 2)
    crew.asked.clear()
    crew.fail_at = {("worker", 0, "propose", 3), ("reducer", 1, "begin", 2)}
    assert (minimise(crew, problem, MethodOptions(iterations=6))[0], weights(crew)) == undisturbed(
        "surrogate"
    )


def test_an_iteration_that_loses_members_again_and_again_is_an_error(log: Log, problem: Problem) -> None:
    crew = crew_of(SPEC, log, 2)
    crew.fail_at = {("worker", 0, "propose", time) for time in (2, 3, 4)}
    with pytest.raises(
        ClusterError, match="lost 3 times in one iteration.*a worker was lost; --resume"
    ) as raised:
        minimise(crew, problem, MethodOptions(iterations=6))
    assert raised.value.exit_code == 8


@pytest.mark.parametrize("method", ["surrogate", "admm"])
@pytest.mark.parametrize("lost", [(), ("reducer", 1, "step_back", 1), ("worker", 0, "squares", 1)])
def test_the_iteration_that_predicts_held_out_rows_best_is_kept(log, method, lost):
    weak = SPEC.replace("l1 = 1.5", "l1 = 1.0").replace("l1 = 2.0", "l1 = 1.0").replace("0.2", "0.0")
    (problem,), _ = problems(weak, log)

    def ended(keep: str, iterations: int, *lost: Any) -> tuple[float, BY_KEY, list[Iteration]]:
        crew = crew_of(weak, log, 2, held=0.3)
        crew.asked.clear()
        crew.fail_at = {lost} - {()}
        objective, found = minimise(crew, problem, MethodOptions(method, iterations, 0.0, keep=keep))
        return objective, weights(crew), found

    *best, iterations = ended("best", 20, *lost)
    number = min((each.held_out, each.number) for each in iterations)[1]
    assert number == {"surrogate": 0, "admm": 2}[method]
    assert best == [*ended("last", number)[:2]] != [*ended("last", 20)[:2]]


@pytest.mark.parametrize(
    "lost", [("worker", 1, "begin", 2), ("reducer", 0, "begin", 3), ("reducer", 1, "squares", 1)]
)
def test_a_path_of_penalties_goes_through_the_minimum_of_each_and_keeps_the_best(log, lost):
    path = [problems(SPEC, log, l1)[0][0] for l1 in (9.0, 3.0, 0.5)]
    tight = MethodOptions(iterations=200, tolerance=1e-9)

    def followed(*lost: Any) -> tuple[list[float], list[Iteration], int, float, BY_KEY]:
        crew, found, ends = crew_of(SPEC, log, 2, held=0.3), list[Iteration](), list[float]()
        crew.asked.clear()
        crew.fail_at = {lost} - {()}
        minimiser = Minimiser(crew, path[0], tight, then=path[1:], on_iteration=found.append)
        while not minimiser.ended:
            before = minimiser.progress
            minimiser.iterate()
            if minimiser.progress.penalty != before.penalty:
                ends.append(before.objective)
        ends.append(minimiser.progress.objective)
        objective = minimiser.finish()
        return ends, found, minimiser.kept, objective, weights(crew)

    ends, found, number, *kept = followed(*lost)
    assert kept == [*followed()[3:]]
    alone = [minimise(crew_of(SPEC, log, 2, held=0.3), each, tight)[1][-1].objective for each in path]
    assert ends == pytest.approx(alone, rel=1e-6)
    assert found[number].held_out == min(each.held_out for each in found)
    assert kept[0] == pytest.approx(found[number].objective, rel=1e-9)
    assert len(kept[1]) == found[number].nonzero


@pytest.mark.parametrize("method", METHODS)
def test_a_run_resumed_from_a_checkpoint_gives_the_same_result(log, problem, undisturbed, method):
    stopped = Minimiser(crew_of(SPEC, log, 2), problem, MethodOptions(method, iterations=3))
    stopped.run()
    progress = MethodState(**vars(stopped.progress) | {"converged": False})
    crew = crew_of(SPEC, log, 2)
    later = Minimiser(
        crew, problem, MethodOptions(method, iterations=6), progress=progress, saved=stopped.saved
    )
    later.resume()
    later.run()
    assert (later.finish(), weights(crew)) == undisturbed(method)


def test_a_key_on_one_worker_only_and_an_empty_shard(tmp_path: Path) -> None:
    names = []
    for number, rows in enumerate((["1,a", "0,b"] * 30, ["0,c", "1,a"] * 30, [])):
        path = tmp_path / f"{number}.csv"
        path.write_text("\n".join(["click,site", *rows]) + "\n")
        names.append(str(path))
    spec = '[model]\nname = "ads"\n[input]\nlabel = "click"\n[fields]\nsite = {}\n[learner]\nl1 = 0.5\n'
    log = Log(names)
    (problem,), shard = problems(spec, Log(names[:2]))
    x = np.zeros((shard.rows.labels.size, shard.keys.hashes.size))
    x[np.repeat(np.arange(len(x)), np.diff(shard.rows.starts)), shard.rows.ids] = 1.0
    ones = np.ones(x.shape[1])
    _, least = penalized.minimum(
        x, shard.rows.labels.astype(float), np.ones(len(x)), 0.5 * ones, 0.0 * ones, rounds=20_000
    )
    for method in ("surrogate", "admm"):
        crew = crew_of(spec, log, 3)
        found, _ = minimise(crew, problem, MethodOptions(method, iterations=200, tolerance=1e-7))
        assert found == pytest.approx(least, rel=1e-3)
        assert {b"site=b", b"site=c"} <= weights(crew).keys()


def test_held_out_rows_are_judged_and_not_learned(log, problem, least):
    alone, several = (
        minimise(crew_of(SPEC, log, workers, held=0.3), problem, MethodOptions(tolerance=1e-7, keep="last"))
        for workers in (1, 3)
    )
    assert several[0] == pytest.approx(alone[0], rel=1e-4) != pytest.approx(least[1], rel=1e-3)
    losses = [iterations[-1].held_out for _, iterations in (alone, several)]
    assert losses[0] is not None and losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """Two files, and so two workers' shards, of 60 and 440 rows, whose click rates differ."""
    folder = tmp_path_factory.mktemp("uneven")
    header, *rows = (folder / write_log(folder / "log.csv").inputs[0]).read_text().splitlines()
    rows.sort(key=lambda row: row[0] == "0")
    names = []
    for name, part in (("a.csv", rows[:60]), ("b.csv", rows[60:])):
        (folder / name).write_text("\n".join([header, *part]) + "\n")
        names.append(str(folder / name))
    return Log(names, batch_bytes=1 << 10)


@pytest.mark.parametrize("method", ["surrogate", "admm"])
def test_with_the_mean_of_each_worker_all_workers_count_the_same(uneven: Log, method: str) -> None:
    (problem,), shard = problems(SPEC, uneven)
    crew = crew_of(SPEC, uneven, 2, loss="workers")
    first, second = (each._shard.rows.importance for each in crew.members["worker"])
    whole = shard.rows.importance
    assert first == pytest.approx(second) == pytest.approx(whole / 2)
    sizes = [each.importance for each in crew.ask_workers("build").summaries]
    assert sum(sizes) == whole and sizes[0] != pytest.approx(sizes[1], rel=0.5)
    shares = {
        int(each._shard.rows.labels.size): whole / 2 / size
        for each, size in zip(crew.members["worker"], sizes, strict=True)
    }
    omega = np.concatenate([shard.rows.weights[:60] * shares[60], shard.rows.weights[60:] * shares[440]])
    scaled = dataclasses.replace(shard, rows=shard.rows._replace(weights=omega))
    _, lowest = optimum(scaled, problem)
    options = MethodOptions(method, iterations=150, tolerance=1e-8, rho=3.0, loss="workers")
    found = minimise(crew, problem, options)[0]
    assert found == pytest.approx(lowest, rel=1e-3)
    assert optimum(shard, problem)[1] != pytest.approx(lowest, rel=0.02)
    # A worker that is lost weighs its rows again.
    lossy = crew_of(SPEC, uneven, 2, loss="workers")
    lossy.fail_at = {("worker", 1, "gradient" if method == "surrogate" else "solve", 3)}
    assert minimise(lossy, problem, options)[0] == found


@pytest.mark.parametrize("workers", [1, 3])
def test_plain_consensus_finds_the_same_minimum(log, problem, least, workers):
    options = MethodOptions("admm", iterations=150, tolerance=1e-8, rho=3.0, consensus="plain")
    found, _ = minimise(crew_of(SPEC, log, workers), problem, options)
    assert found == pytest.approx(least[1], rel=1e-3)


@pytest.mark.parametrize("plain", [False, True])
def test_a_consensus_is_the_one_of_the_book(log: Log, plain: bool) -> None:
    """`Reducer.agree` against the dense form, in which a worker without a key minimises its part of the sum as well."""
    random, workers, rho = np.random.default_rng(4), 3, 0.7
    hashes = np.arange(10, 18, dtype=np.uint64)
    holds = random.random((workers, hashes.size)) < 0.6
    holds[0, 0], holds[:, 1] = True, [False, True, False]
    holds, hashes = holds[:, holds.any(axis=0)], hashes[holds.any(axis=0)]
    kept = [np.flatnonzero(each) for each in holds]
    l1, l2 = 0.5, 0.3
    problem = Problem("base", 0, 1, np.ones(1, np.uint32), np.full(1, l1), np.full(1, l2), 0.1, 1.0)
    reducer = Reducer(0, workers)
    reducer.register(inbox=[(hashes[at], np.zeros(at.size, np.uint16), np.full(at.size, 9.0)) for at in kept])
    reducer.begin(problem)
    theta, pull = np.zeros(hashes.size), np.zeros((workers, hashes.size))
    reducer.average(inbox=[sparse(np.zeros(at.size)) for at in kept])
    counted = np.ones_like(holds) if plain else holds
    for _ in range(4):
        w = np.where(holds, theta + random.normal(0.0, 2.0, holds.shape), theta - pull / rho)
        away = w + pull / rho - theta
        (_, _, residuals), _ = reducer.agree(
            rho, plain, False, inbox=[sparse(each[at]) for each, at in zip(away, kept, strict=True)]
        )
        number = counted.sum(axis=0)
        middle = (counted * (w + pull / rho)).sum(axis=0) / number
        bend = rho * number
        new = np.sign(middle) * np.maximum(np.abs(bend * middle) - l1, 0.0) / (bend + l2)
        moved = np.square(rho * (new - theta))
        theta = new
        pull = np.where(counted, pull + rho * (w - theta), 0.0)
        assert reducer._state.theta == pytest.approx(theta, abs=1e-5)
        expected = [
            (counted * np.square(w - theta)).sum(),
            (number * moved).sum(),
            max((counted * np.square(w)).sum(), (number * np.square(theta)).sum()),
            np.square(pull).sum(),
        ]
        assert list(residuals) == pytest.approx(expected, rel=1e-4)
