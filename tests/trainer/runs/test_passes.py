"""`ftrie train --passes`: what later passes learn, when they end, what they leave alone, and how they are resumed."""

from __future__ import annotations

import json
import os
import random
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftrie.cli import run
from model_store.artefact.artefact import Artefact
from model_store.errors import CheckpointError, SpecError
from model_store.spec.spec import load_spec
from model_store.store import Store
from tests.matrix import slow_except
from tests.trainer.runs.runs import Shop, rows
from tests.worlds import batch_of
from trainer.checkpoint.folder import checkpoints_in
from trainer.examples.hashing import ExampleMaker
from trainer.examples.open_log import Log
from trainer.examples.requests import WholeRequests
from trainer.formats import stored_rows
from trainer.formats.rejects import RejectLog
from trainer.learn.metrics.metrics import ProgressiveMetrics
from trainer.learn.model import LearningModel
from trainer.runs.loop import PassFigures, PassOptions
from trainer.runs.train import train

BLOCK = 200


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_rows, "BLOCK_ROWS", BLOCK)


@pytest.mark.parametrize(
    "name",
    slow_except(
        ["ftrl"], ["ftrl", "bloom", "poisson", "subsample", "own values in 16 bits by counts", "adpredictor"]
    ),
)
def test_passes_are_the_log_and_then_its_blocks_in_the_documented_order(shop: Shop, name: str) -> None:
    shop.use(name)
    shop.spec.write_text(shop.spec.read_text().replace("[learner]\n", "[learner]\nseed = 7\n"))
    content, spec, log = rows(900, 1), load_spec(shop.spec), Log([str(shop.log(900))], batch_bytes=9000)
    result = train(spec, log, rejects=RejectLog(), passes=PassOptions(3, 0.0))
    model = LearningModel(ExampleMaker(spec.resolve(list(content[0]))))
    (whole,) = whole_log(model, content)
    model.learn(model.maker.make(whole))
    keys = model.table.used
    for number in (2, 3):
        metrics = ProgressiveMetrics(list(model.spec.variants))
        draw = random.Random(f"{model.spec.learner.seed} {number}")
        for block in np.argsort([draw.random() for _ in range(-(-len(content) // BLOCK))]):
            first, end = int(block) * BLOCK, min((int(block) + 1) * BLOCK, len(content))
            model.learn(model.maker.make(part_of(whole, first, end)), again=metrics)
        expected = PassFigures.of(metrics, 0.0)
        assert replace(result.report.passes.figures[number - 1], seconds=0.0) == expected
    assert result.model.artefact().sha256 == model.artefact().sha256
    assert result.model.rows == model.rows == 3 * result.report.rows
    assert result.model.table.used == keys  # no key is admitted in a later pass


def whole_log(model: LearningModel, content: list[dict[str, bytes]]) -> list[Any]:
    """The log as one batch; where requests are sampled, with its clicked requests marked."""
    parts = list(WholeRequests(model.spec).of([batch_of(content)]))
    if len(parts) > 1:  # the last request waits for the end of the log
        clicked = np.concatenate([part.clicked for part in parts])  # type: ignore[arg-type]
        return [replace(batch_of(content), clicked=clicked)]
    return parts


def part_of(batch: Any, first: int, end: int) -> Any:
    return replace(
        batch,
        columns={name: column.slice(first, end - first) for name, column in batch.columns.items()},
        lines=batch.lines[first:end],
        rows=end - first,
        first_row=first,
        clicked=None if batch.clicked is None else batch.clicked[first:end],
    )


def test_files_of_every_format_and_standard_input_give_the_same_model(shop: Shop, monkeypatch) -> None:
    content, log = rows(900, 1), shop.log(900)
    expected = shop.expected([log], "--passes=3").model
    kinds = ("0.csv.gz", "1.parquet", "2.jsonl", "3.jsonl.gz")
    parts = [shop.own_log(content[n * 225 : (n + 1) * 225], name) for n, name in enumerate(kinds)]
    assert shop.learned("parts", parts, "--passes=3").model == expected
    with log.open("rb") as file:
        monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": file}))
        assert shop.learned("stdin", [Path("-")], "--passes=3").model == expected


def test_metrics_warnings_and_calibration_stay_those_of_the_first_pass(shop: Shop) -> None:
    log = shop.log(900)
    one, three = (shop.learned(str(n), [log], f"--passes={n}") for n in (1, 3))
    assert one == shop.expected([log])  # no flag is one pass
    assert (one.report["passes"], one.report["converged"]) == ([], False)
    assert (three.metrics, three.rejects) == (one.metrics, one.rejects)
    several = {"passes", "converged", "nonzero"}
    assert {k: v for k, v in three.report.items() if k not in several} == {
        k: v for k, v in one.report.items() if k not in several
    }
    models = [Artefact.read(shop.folder / str(n) / "save.arrow") for n in (1, 3)]
    assert models[0].metrics == models[1].metrics and models[0].sha256 != models[1].sha256
    passes = three.report["passes"]
    assert [each["pass"] for each in passes] == [1, 2, 3]
    assert {each["rows"] for each in passes} == {one.report["rows"]}
    for name, metrics in one.report["variants"].items():
        losses = [each["logloss"][name] for each in passes]
        assert losses[0] == metrics["logloss"] and losses[1] < losses[0]
        assert passes[0]["change"][name] is None
        assert passes[1]["change"][name] == losses[1] / losses[0] - 1.0


def test_passes_end_when_none_lowers_the_loss_by_the_tolerance(shop: Shop) -> None:
    log = shop.log(900)
    long = shop.expected([log], "--passes=6", "--tolerance=0").report
    falls = [-min(each["change"].values()) for each in long["passes"][1:]]  # of the variant that falls most
    assert sorted(falls, reverse=True) == falls
    tolerance = (falls[2] + falls[3]) / 2
    short = shop.learned("short", [log], "--passes=6", f"--tolerance={tolerance}").report
    assert len(short["passes"]) == 5 and short["converged"]
    assert any(change > -tolerance for change in long["passes"][3]["change"].values()), "one had converged"
    assert shop.learned("2", [log], "--passes=6", "--tolerance=1").report["passes"][2:] == []


def stop_after(monkeypatch: pytest.MonkeyPatch, batches: int, number: int = signal.SIGTERM) -> None:
    """Send this process the signal once the run has learned one batch less; not while it compiles its kernels."""
    learn, left = LearningModel.learn, [batches - 1]

    def learn_and_stop(model: LearningModel, *arguments: Any, **named: Any) -> None:
        learn(model, *arguments, **named)
        if model.spec.model.name != "warm-up":
            left[0] -= 1
            if not left[0]:
                signal.raise_signal(number)

    monkeypatch.setattr(LearningModel, "learn", learn_and_stop)


@pytest.mark.parametrize("name", slow_except(["ftrl"], ["ftrl", "bloom", "subsample"]))
def test_a_run_that_is_stopped_in_any_pass_goes_on_bit_by_bit(shop: Shop, name: str, monkeypatch) -> None:
    shop.use(name)
    logs, flags = [shop.log(500), shop.log(300, seed=2)], ["--passes=4", "--tolerance=0"]
    training, stops = shop.training(), 0
    for batches in (5, 3, 7, 5, 8, 6, 3):
        with monkeypatch.context() as patch:
            stop_after(patch, batches)
            more = [*flags, f"--threads={1 + batches % 3}"]
            code = run(training.keeping(logs, *more, batch_bytes=5000 + 1000 * batches))
        stops += code == 128 + signal.SIGTERM
        if code == 0:
            break
        for path in checkpoints_in(training.checkpoints)[: batches % 3]:
            path.unlink()  # as if killed before they were written
    assert stops >= 4 and run(training.keeping(logs, *flags)) == 0
    assert training.outcome() == shop.expected(logs, *flags)


def test_a_run_that_has_ended_goes_on_with_more_passes_but_not_with_fewer(shop: Shop, capsys) -> None:
    content = rows(900, 1)
    log = shop.own_log(content)
    expected = shop.learned("whole", [log], "--passes=4", "--tolerance=0")
    training = shop.training()
    two = training.keeping([log], "--passes=2", "--tolerance=0")
    assert run(two) == 0
    before = training.outcome()
    shop.own_log(content + rows(100, 3))  # the passes go on over the log as it was
    capsys.readouterr()
    assert run(two) == 0 and training.outcome() == before
    assert "the log is not read again" in capsys.readouterr().err
    assert run(training.keeping([log], "--passes=4", "--tolerance=0")) == 0
    assert training.outcome() == expected and run(two) == CheckpointError.exit_code
    assert "of a run in pass 4, but --passes is 2; expected 4 or more" in capsys.readouterr().err


def test_a_pass_that_has_begun_is_finished_whatever_the_tolerance(shop: Shop, monkeypatch) -> None:
    log, training = shop.log(900), shop.training()
    with monkeypatch.context() as patch:
        stop_after(patch, 5 + 9 + 6)
        assert run(training.keeping([log], "--passes=9", "--tolerance=0", batch_bytes=12_000)) == 143
    assert run(training.keeping([log], "--passes=9", "--tolerance=1")) == 0
    outcome = training.outcome()
    assert len(outcome.report["passes"]) == 3
    assert outcome.model == shop.expected([log], "--passes=3", "--tolerance=0").model


def test_a_run_is_resumed_with_passes_only_if_it_was_started_with_them_and_has_its_blocks(shop, capsys):
    log = shop.log(300)
    for first, then in ((1, 2), (2, 1)):
        training = shop.training(str(first))
        assert run(training.keeping([log], f"--passes={first}")) == 0
        assert run(training.keeping([log], f"--passes={then}")) == CheckpointError.exit_code
        assert "--passes, which is resumed with" in capsys.readouterr().err
    (training.checkpoints / "blocks").unlink()
    assert run(training.keeping([log], "--passes=3")) == CheckpointError.exit_code
    assert "blocks has 0 bytes, but the checkpoint names" in capsys.readouterr().err


def test_no_temporary_file_is_left_at_any_end(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = shop.folder / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(stored_rows.tempfile, "tempdir", str(temporary))
    log, training = shop.log(900), shop.training()
    learn, seen = LearningModel.learn, []

    def learn_and_look(model: LearningModel, *arguments: Any, **named: Any) -> None:
        learn(model, *arguments, **named)
        if model.spec.model.name != "warm-up":  # which has logs in temporary files
            seen.append(os.listdir(temporary))  # not while it runs either: a killed process leaves none

    monkeypatch.setattr(LearningModel, "learn", learn_and_look)
    assert run(training.arguments([log], "--passes=3")) == 0 and len(seen) > 10 and not any(seen)
    stop_after(monkeypatch, 8, signal.SIGINT)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        assert run(training.arguments([log], "--passes=3")) == 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGINT, before)
    assert os.listdir(temporary) == []


def test_passes_that_cannot_be_made_are_refused(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    for flag, learner, message in (
        ("--tolerance=0.1", "ftrl", "--tolerance needs --passes N"),
        ("--passes=2", "truncated gradient, time to live", "expected a number of rows, or --passes 1"),
        ("--passes=0", "ftrl", "--passes"),
    ):
        shop.use(learner)
        assert run(["train", str(shop.spec), str(shop.log(300)), flag]) == SpecError.exit_code
        assert message in capsys.readouterr().err


def test_later_passes_publish_deltas_whose_last_is_the_model(shop: Shop, store_url, store: Store) -> None:
    flags = ["--store", store_url, "--activate", "--publish-every=300", "--keep=0", "--batch-bytes=20000"]
    report = shop.learned("run", [shop.log(900)], "--passes=3", *flags).report
    assert report["published"]["deltas"] + report["published"]["snapshots"] > 900 // 300 + 1
    assert store.model("shop").active() == report["version"]
    saved = Artefact.read(shop.folder / "run" / "save.arrow")
    exported = shop.folder / "active.arrow"
    assert run(["store", "export", "shop", str(exported), "--store", store_url]) == 0
    published = Artefact.read(exported)
    assert published.metrics == saved.metrics and published.content == saved.content


def test_the_summary_has_a_table_of_passes(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.use("one variant")
    command = ["train", str(shop.spec), str(shop.log(300)), "--passes=2"]
    assert run(command) == 0
    said = capsys.readouterr()
    assert "learning, pass 1/2" in said.err and "learning, pass 2/2" in said.err
    lines = said.out.splitlines()
    assert ", 2 passes in " in lines[0]
    table = lines.index(next(line for line in lines if line.startswith("pass ")))
    assert [line.split()[0] for line in lines[table + 2 : table + 4]] == ["1", "2"]
    assert lines[-1].startswith("not converged; from pass 2 on the rows were learned before, so only pass 1 ")
    assert run([*command, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["passes"]) == 2
