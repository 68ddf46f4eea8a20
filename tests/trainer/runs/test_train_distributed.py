"""A distributed run ends at the minimum, however many workers there are, who is lost, and how often it is resumed."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftrie.cli import run as cli
from model_store.artefact.artefact import Artefact
from model_store.errors import CheckpointError, InputError, SpecError, Stopped, UsageError
from model_store.spec.spec import ModelSpec, load_spec, parse_spec
from tests.trainer.distributed.in_process import InProcessCrew
from tests.trainer.oracles.duality import Sparse, bounds, matrix_of
from tests.trainer.runs.runs import Shared, rows, write_log
from trainer.checkpoint.folder import checkpoints_in
from trainer.distributed.checkpoint import DistributedCheckpoints
from trainer.distributed.dealing import plan_shards
from trainer.distributed.problem import problems_of
from trainer.distributed.shard import build_shard
from trainer.examples.hashing import ExampleMaker
from trainer.examples.open_log import Log
from trainer.examples.side_tables import side_tables
from trainer.formats.rejects import RejectLog
from trainer.learn.model import LearningModel
from trainer.output import SILENT
from trainer.runs.evaluate import evaluate
from trainer.runs.train import finish_run
from trainer.runs.train_distributed import DistributedRun, train_distributed
from trainer.settings import DistributedOptions, HeldOutRows, MethodOptions

SPEC = """
[model]
name = "shop"
[input]
label = "click"
weight = "importance"
request = "request"
[fields]
age = { side = "user" }
tags = { side = "user", kind = "set", separator = "|" }
brand = { side = "item" }
price = { side = "item", kind = "number", bucket = "log" }
size = { side = "item", kind = "number" }
[[crosses]]
fields = ["brand", "age"]
[variants]
base = { share = 0.5 }
plain = { share = 0.3, without = ["age*brand"] }
lean = { share = 0.2, without = ["tags"] }
[learner]
alpha = 0.3
l1 = 0.5
l2 = 0.4
"""
OWN = SPEC.replace('"tags"] }', '"tags"], l1 = 1.5 }') + 'values = "per_variant"\n'
ONE = SPEC[: SPEC.index("[variants]")] + SPEC[SPEC.index("[learner]") :].replace("l2 = 0.4", "l2 = 0.0")
SPECS = {"shared values": SPEC, "own values": OWN, "one variant, no l2": ONE}
CLOSE = 1e-3
TIGHT = MethodOptions(tolerance=1e-9)
Crew = Callable[[InProcessCrew], None]


def opener(prepare: Crew = lambda crew: None) -> Any:
    """Opens a crew in this process, which `prepare` may change."""

    @contextmanager
    def opened(plans: Any, reducers: int, **_: Any) -> Iterator[InProcessCrew]:
        crew = InProcessCrew(plans, reducers)
        prepare(crew)
        yield crew

    return opened


@pytest.fixture(scope="module")
def log(shared_runs: Shared) -> Log:
    return Log([str(shared_runs.log(700, seed)) for seed in (1, 2)], batch_bytes=9000)


@pytest.fixture(scope="module")
def of_two(log: Log) -> Callable[..., DistributedRun]:
    return cache(lambda text, **how: trained(parse_spec(text), log, **how))


def trained(
    spec: ModelSpec, log: Log, workers: int = 2, *, method: MethodOptions = TIGHT, **how: Any
) -> DistributedRun:
    options = DistributedOptions(
        workers=workers, reducers=min(workers, 2), method=method, held_out=how.pop("held_out", HeldOutRows())
    )
    how = {"rejects": RejectLog(), "crew": opener()} | how
    return train_distributed(spec, log, options, **how)


def artefact_of(run: DistributedRun) -> Artefact:
    assert run.failure is None
    return run.model.artefact()


def gaps(spec: ModelSpec, log: Log, artefact: Artefact) -> list[float]:
    """How far the artefact's weights are from the minimum of each problem, at most, relative to the objective."""
    (plan,) = plan_shards(spec, log, 1)
    shard, maker = build_shard(plan), ExampleMaker(plan.start.resolved)
    data, offsets = shard.keys.texts(np.arange(shard.keys.hashes.size))
    ends = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    place = {key: number for number, key in enumerate(artefact.key_list())}
    at = np.array([place.get(data[first:end].tobytes(), artefact.rows) for first, end in ends])
    columns = artefact.weight.reshape(artefact.rows, -1).astype(np.float64)
    features, matrix = shard.keys.features, matrix_of(shard.rows, at.size)
    size, found = matrix.shape[0], []
    for problem in problems_of(maker.spec, maker.rules.masks, maker.feature_rules):
        w = np.append(columns[:, problem.column], 0.0)[at]
        variants = [
            (problem.bits[features[matrix.keys]] >> np.uint32(v)) & 1 != 0 for v in range(problem.variants)
        ]
        whole = Sparse(
            np.concatenate([matrix.rows[variant] + v * size for v, variant in enumerate(variants)]),
            np.concatenate([matrix.keys[variant] for variant in variants]),
            np.concatenate([matrix.x[variant] for variant in variants]),
            (problem.variants * size, at.size),
        )
        weights = shard.rows.weights if shard.rows.weights.size else np.ones(size)
        value, least = bounds(
            whole,
            np.tile(shard.rows.labels.astype(np.float64), problem.variants),
            np.tile(weights, problem.variants),
            problem.l1[features],
            problem.l2[features],
            w,
        )
        found.append((value - least) / value)
    return found


@pytest.mark.parametrize("name", SPECS)
def test_the_model_is_the_minimum_for_any_number_of_workers(log, of_two, name):
    text = SPECS[name]
    runs = [of_two(text), *(trained(parse_spec(text), log, n) for n in ((1, 4) if text is SPEC else (3,)))]
    for run in runs:
        assert max(gaps(parse_spec(text), log, artefact_of(run))) < CLOSE
        assert len(run.report.problems) == (3 if text is OWN else 1)
        assert all(each.converged for each in run.report.problems)


def test_a_run_that_ends_above_the_minimum_says_so(log, of_two) -> None:
    report = trained(parse_spec(ONE), log, method=MethodOptions("admm", iterations=1)).report
    (warning,) = report.not_converged
    assert warning.startswith("base has not converged after 1 iterations") and warning in report.warnings
    assert not report.as_dict()["problems"][0]["converged"] and not of_two(ONE).report.not_converged


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        (SPEC, ("worker", 1, "build", 1)),
        (SPEC, ("worker", 1, "judge", 1)),
        (OWN, ("worker", 0, "first_weights", 2)),  # of the second problem, before its first iteration
        (OWN, ("reducer", 1, "average", 3)),
        (OWN, ("reducer", 0, "published", 1)),
    ],
    ids=lambda each: "-".join(map(str, each)) if isinstance(each, tuple) else "",
)
def test_a_member_lost_outside_of_an_iteration_changes_no_bit(log, of_two, text, lost) -> None:
    how = HeldOutRows(share=0.1)
    expected = of_two(text, held_out=how)
    run = trained(parse_spec(text), log, held_out=how, crew=opener(lambda crew: crew.fail_at.add(lost)))
    assert artefact_of(run).to_bytes() == artefact_of(expected).to_bytes()
    assert run.report.variants == expected.report.variants and run.report.recoveries == 1
    assert [len(each.iterations) for each in run.report.problems] == [
        len(each.iterations) for each in expected.report.problems
    ]


@pytest.mark.parametrize(("method", "text"), [("surrogate", SPEC), ("admm", OWN)], ids=["surrogate", "admm"])
def test_a_resumed_run_ends_as_one_that_never_stopped(log, tmp_path, capsys, text, method):
    spec, options = parse_spec(text), MethodOptions(method, iterations=12, tolerance=1e-9)
    folder = tmp_path / "state"
    with DistributedCheckpoints(folder, 4) as checkpoints:
        expected = trained(spec, log, method=options, checkpoints=checkpoints)
    assert artefact_of(expected).to_bytes() == artefact_of(trained(spec, log, method=options)).to_bytes()
    assert len(checkpoints_in(folder)) == 3 and cli(["checkpoint", str(folder), "--json"]) == 0
    newest = json.loads(capsys.readouterr().out)[0]
    assert (newest["damaged"], newest["workers"], newest["method"]) == (None, 2, method)
    checkpoints_in(folder)[0].unlink()  # as if the run had been killed before it wrote this
    with DistributedCheckpoints(folder, 4, resume=True) as checkpoints:
        run = trained(spec, log, method=options, checkpoints=checkpoints)
    assert artefact_of(run).to_bytes() == artefact_of(expected).to_bytes()
    got, wanted = (
        [replace(each, bytes=0, seconds=0.0) for problem in report.problems for each in problem.iterations]
        for report in (run.report, expected.report)
    )
    assert got == wanted


@pytest.mark.parametrize("is_saved", [True, False])
def test_a_signal_ends_the_run_after_the_iteration_and_the_checkpoint_goes_on(
    log, of_two, tmp_path, is_saved
):
    def interrupt(crew: InProcessCrew) -> None:
        ask = crew.ask_workers

        def asking(step: str, *arguments: Any, **how: Any) -> Any:
            if step == "propose" and crew.asked.get("worker propose") == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            return ask(step, *arguments, **how)

        crew.ask_workers = asking  # type: ignore[method-assign]

    spec, folder = parse_spec(SPEC), tmp_path / "state"
    with DistributedCheckpoints(folder, 100) as checkpoints:
        if not is_saved:
            (folder / f"{4:015d}.checkpoint" / "in the way").mkdir(parents=True)
        run = trained(spec, log, checkpoints=checkpoints, crew=opener(interrupt))
    if not is_saved:
        assert isinstance(run.failure, CheckpointError)
        assert "after iteration 3, which could not be saved" in str(run.failure)
        return
    assert isinstance(run.failure, Stopped) and run.failure.exit_code == 143
    assert "after iteration 3" in str(run.failure)
    with DistributedCheckpoints(folder, 100, resume=True) as checkpoints:
        resumed = trained(spec, log, checkpoints=checkpoints)
    assert artefact_of(resumed).to_bytes() == artefact_of(of_two(SPEC)).to_bytes()


def test_what_would_change_the_rows_or_the_objective_is_refused(tmp_path: Path) -> None:
    path, folder, method = write_log(tmp_path / "a.csv", rows(300, 1)), tmp_path / "state", MethodOptions()
    method, log = replace(method, iterations=3), Log([str(path)])
    with DistributedCheckpoints(folder, 1) as checkpoints:
        trained(parse_spec(SPEC), log, method=method, checkpoints=checkpoints)

    def refused(text: str = SPEC, **change: Any) -> str:
        with (
            DistributedCheckpoints(folder, 1, resume=True) as checkpoints,
            pytest.raises(CheckpointError) as error,
        ):
            trained(parse_spec(text), log, checkpoints=checkpoints, **({"method": method} | change))
        return str(error.value)

    assert "--workers 2, and this run has 3" in refused(workers=3)
    admm = MethodOptions("admm", iterations=3)
    assert "--method surrogate, and this run has admm" in refused(method=admm)
    assert "--held-out none, and this run has 0.2" in refused(held_out=HeldOutRows(share=0.2))
    assert "learner.l1 was 0.5, is 0.6" in refused(SPEC.replace("l1 = 0.5", "l1 = 0.6"))
    with path.open("ab") as file:
        file.write(b"\n")
    assert re.search("had [0-9,]+ bytes when", refused())


def test_a_folder_of_another_command_is_refused(tmp_path: Path) -> None:
    from trainer.checkpoint.file import write

    folder = tmp_path / "state"
    folder.mkdir()
    with (folder / "000000000000005.checkpoint").open("wb") as file:
        write(file, {"rows": 5}, {})
    with pytest.raises(CheckpointError, match="not of `ftrie train-distributed`"):
        DistributedCheckpoints(folder, 5, resume=True)
    with pytest.raises(CheckpointError, match="holds checkpoints of an earlier run"):
        DistributedCheckpoints(folder, 5)


def test_the_metrics_are_those_of_the_rows_held_out(log: Log) -> None:
    spec, held = parse_spec(SPEC), HeldOutRows(inputs=(log.inputs[1],))
    run = trained(spec, replace(log, inputs=log.inputs[:1]), held_out=held)
    judged = evaluate(artefact_of(run), Log([log.inputs[1]]), rejects=RejectLog())
    assert run.report.held_out == judged.rows and run.report.judged == "held-out rows"
    for name, metrics in judged.variants.items():
        found = run.report.variants[name]
        assert found.logloss == pytest.approx(metrics.logloss, abs=1e-6)
        assert found.auc == pytest.approx(metrics.auc, abs=1e-6)
        assert artefact_of(run).metrics[name]["logloss"] == found.logloss


def test_a_share_held_out_is_not_learned_and_is_the_same_for_any_number_of_workers(log, of_two):
    spec = parse_spec(SPEC)
    last = replace(TIGHT, keep="last")
    one, four = (
        trained(spec, log, workers, method=last, held_out=HeldOutRows(share=0.2)).report for workers in (1, 4)
    )
    assert one.held_out == four.held_out > 100
    assert one.rows == four.rows == of_two(SPEC).report.rows - one.held_out
    assert one.variants["base"].logloss == pytest.approx(four.variants["base"].logloss, rel=CLOSE)
    for l1, warnings in ((0.001, 1), (30.0, 0)):  # too weak for the rows held out, or strong enough
        spec = parse_spec(ONE.replace("l1 = 0.5", f"l1 = {l1}"))
        report = trained(spec, log, held_out=HeldOutRows(share=0.3)).report
        assert list(report.warnings) == report.as_dict()["warnings"]
        found = [text for text in report.warnings if text not in report.not_converged]
        assert len(found) == warnings
        assert all("a greater learner.l1 or l2 predicts better" in text for text in found)
        (problem,) = report.problems
        least = min(each.held_out for each in problem.iterations)
        assert problem.solution.held_out == least == pytest.approx(report.variants["base"].logloss)


def test_the_best_of_several_penalties_is_published_and_resumed_from(log: Log, tmp_path: Path) -> None:
    spec, path = parse_spec(OWN), (200.0, 20.0, 0.01)
    options = DistributedOptions(
        workers=2, reducers=2, method=TIGHT, held_out=HeldOutRows(share=0.3), penalties=path
    )

    def trained_to(kept: Path, **more: Any) -> DistributedRun:
        with DistributedCheckpoints(kept, 1, **more) as checkpoints:
            return train_distributed(
                spec, log, options, rejects=RejectLog(), crew=opener(), checkpoints=checkpoints
            )

    run = trained_to(tmp_path / "whole")
    for problem in run.report.problems:
        assert list(dict.fromkeys(each.l1 for each in problem.iterations)) == [*path]
        assert problem.solution.held_out == min(each.held_out for each in problem.iterations)
    held = {each.name: each.solution.held_out for each in run.report.problems}
    assert held == pytest.approx({name: each.logloss for name, each in run.report.variants.items()})
    assert not [text for text in run.report.warnings if "the greatest tried" in text]
    for newest in checkpoints_in(tmp_path / "whole")[:2]:
        newest.unlink()
    again = trained_to(tmp_path / "whole", resume=True)
    assert artefact_of(again).key_list() == artefact_of(run).key_list()
    np.testing.assert_array_equal(artefact_of(again).weight, artefact_of(run).weight)


@pytest.mark.parametrize("text", [SPEC, OWN], ids=["shared values", "own values"])
def test_a_trainer_starts_with_the_published_weights_and_rates(of_two, text):
    artefact = artefact_of(of_two(text))
    model = LearningModel(ExampleMaker(artefact.spec))
    assert model.warm_start(artefact) == artefact.rows
    started = model.artefact()
    assert started.key_list() == artefact.key_list()
    np.testing.assert_array_equal(started.weight, artefact.weight)
    np.testing.assert_array_equal(started.variants, artefact.variants)
    np.testing.assert_allclose(started.rate, artefact.rate, rtol=1e-6)
    assert (artefact.rate < np.float32(0.3)).any(), "what was seen often has a lower rate than a new key"


def test_bad_rows_are_reported_in_the_order_of_the_log_and_too_many_or_one_class_withhold_the_model(
    log, tmp_path
):
    spec = parse_spec(SPEC)
    with RejectLog(tmp_path / "bad.jsonl") as rejects:
        run = trained(spec, log, rejects=rejects)
    assert run.report.rejected == rejects.count == 16 and run.withheld == ""
    assert run.report.reasons == {"click": 16}
    assert len((tmp_path / "bad.jsonl").read_text().splitlines()) == 16
    bad = [row | {"click": b"?"} if i % 3 == 0 else row for i, row in enumerate(rows(300, 4))]
    worse = Log([str(write_log(tmp_path / "worse.csv", bad))])
    assert "nothing is published where more than 10 % are" in trained(spec, worse).withheld
    assert trained(spec, worse, force=True).withheld == ""
    same = Log([str(write_log(tmp_path / "same.csv", [row | {"click": b"0"} for row in rows(300, 4)]))])
    run = trained(spec, same)
    assert "no row is a click by column 'click', of 300" in run.withheld and run.report.of_one_class
    finish_run(run, None, None, False, None, SILENT)
    assert isinstance(run.failure, InputError)


def test_a_guard_needs_rows_that_were_not_learned_and_a_time_to_live_is_refused(log: Log) -> None:
    spec = parse_spec(SPEC + "[guard]\n")
    with pytest.raises(UsageError, match="--held-out"):
        trained(spec, log)
    with pytest.raises(SpecError, match="ttl"):  # which needs one order of all rows
        trained(parse_spec(SPEC + 'ttl = "30d"\n'), log)
    run = trained(spec, log, held_out=HeldOutRows(share=0.3))
    assert run.model.recent is not None
    figures = run.model.recent.figures(5)
    assert figures.examples == run.report.held_out and figures.keys == 5
    assert figures.variants["plain"].logloss == pytest.approx(run.report.variants["plain"].logloss)


def real_log(spec: ModelSpec, log: Path, items: Path | None = None) -> Log:
    return Log([str(log)], tables=side_tables(items, None, spec.input))


@pytest.fixture(params=["avazu", "open_bandit"])
def real(request: pytest.FixtureRequest) -> tuple[ModelSpec, Log]:
    spec = load_spec(Path(__file__).resolve().parents[3] / f"examples/{request.param}.toml")
    if request.param == "avazu":
        # What one pass learns best with, l1 = 0.1 and no l2, has its minimum where every row is learned by heart.
        learner = spec.learner.model_copy(update={"l1": 0.5, "l2": 1.0})
        spec = spec.model_copy(update={"learner": learner})
        return spec, real_log(spec, request.getfixturevalue("avazu_log"))
    folder: Path = request.getfixturevalue("open_bandit_folder")
    return spec, real_log(spec, folder / "men.csv.gz", folder / "item_context.csv")


@pytest.mark.slow
def test_on_real_logs_the_model_is_the_minimum_too(real: tuple[ModelSpec, Log]) -> None:
    """Of two workers, also where one is lost; of four, the test below."""
    spec, log = real
    lost = opener(lambda crew: crew.fail_at.add(("worker", 1, "propose", 3)))
    run, again = (trained(spec, log, 2, method=MethodOptions(), crew=crew) for crew in (opener(), lost))
    assert max(gaps(spec, log, artefact_of(run))) < CLOSE
    assert again.report.problems[0].objective == run.report.problems[0].objective


@pytest.mark.slow
def test_on_real_logs_the_objective_is_that_of_scikit_learn(
    real: tuple[ModelSpec, Log], tmp_path: Path
) -> None:
    """Of their first rows: of all, scikit-learn needs two minutes to its minimum."""
    pytest.importorskip("sklearn", reason="the comparison needs scikit-learn: the extra `peers`")
    from benchmarks.distributed import scikit_learn_objective

    spec, log = real
    spec = spec.model_copy(update={"variants": dict(list(spec.variants.items())[:1])})
    lines = gzip.decompress(Path(log.inputs[0]).read_bytes()).splitlines(keepends=True)
    first = tmp_path / "first.csv"
    first.write_bytes(b"".join(lines[:3000]))
    log = replace(log, inputs=(str(first),))
    wanted = scikit_learn_objective(spec, log)
    found = trained(spec, log, 4, method=MethodOptions()).report.problems[0].objective
    assert found == pytest.approx(wanted, rel=CLOSE)
