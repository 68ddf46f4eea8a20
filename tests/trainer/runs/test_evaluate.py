"""`ftrie evaluate` and `ftrie audit`: what they say of every row, against the definition of a score."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from ftrie.cli import run
from model_store.artefact.artefact import Artefact
from model_store.artefact.calibration import Calibration, IsotonicCurve, PowerCurve, VariantCurves
from model_store.artefact.json_model import render
from model_store.features.features import FeaturePlan
from model_store.spec.spec import ModelSpec, parse_spec
from model_store.store import Store
from tests.trainer.learn import naive_metrics
from trainer.examples.open_log import Log
from trainer.logs.rejects import RejectLog
from trainer.runs.train import train

SPEC = """
[model]
name = "shop"
[input]
label = "click"
weight = "importance"
request = "request"
[fields]
age = { side = "user" }
likes = { side = "user", kind = "set", separator = "|" }
place = {}
brand = { side = "item" }
price = { side = "item", kind = "number" }
[[crosses]]
fields = ["age", "brand"]
[[crosses]]
fields = ["likes", "price"]
[variants]
base = {}
plain = { without = ["age*brand", "likes"] }
[learner]
"""
LEARNERS = {
    "single": "alpha = 0.4\nbeta = 0.5\nl1 = 0.02\n",
    "per_variant": 'alpha = 0.4\nbeta = 0.5\nl1 = 0.02\nvalues = "per_variant"\n',
    "adpredictor": 'algorithm = "adpredictor"\nalpha = 0.4\nbeta = 0.5\nprior_ctr = 0.3\n',
}
NAMES = ["click", "importance", "request", "age", "likes", "place", "brand", "price"]
CURVES = Calibration(
    "power",
    "age",
    {
        "base": VariantCurves(PowerCurve(0.8, 1.1), {b"20": PowerCurve(0.5, 1.0)}),
        "plain": VariantCurves(None, {b"30": PowerCurve(1.2, 1.5)}),
    },
)


def rows_of(count: int, seed: int) -> list[dict[str, str]]:
    """Requests of four rows; the third and later places are clicked less."""
    random = np.random.default_rng(seed)
    return [
        {
            "click": str(int(random.random() < 0.5 / (1 + row % 4))),
            "importance": f"{random.uniform(0.2, 2.0):.2f}",
            "request": f"r{row // 4}",
            "age": str(random.choice(["", "20", "30", "4*0"])),
            "likes": "|".join(random.choice(["a", "b", "c=1"], random.integers(0, 3), replace=False)),
            "place": str(row % 4 + 1),
            "brand": str(random.choice(["nike", "puma", "b%2"])),
            "price": str(random.choice(["", "0.5", "-1", "2"])),
        }
        for row in range(count)
    ]


def write(path: Path, rows: list[dict[str, str]], names: list[str] = NAMES) -> Path:
    lines = [",".join(names), *(",".join(row[name] for name in names) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module", params=LEARNERS)
def artefact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Artefact:
    """A model that has seen a log like the one it is judged on, but not all of its keys."""
    log = write(tmp_path_factory.mktemp("log") / "log.csv", rows_of(400, seed=1))
    with RejectLog() as rejects:
        spec = parse_spec(SPEC + LEARNERS[request.param])
        return train(spec, Log([str(log)]), rejects=rejects).model.artefact()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The log to be judged on."""
    rows = rows_of(200, seed=2)
    rows[5]["brand"] = "unheard of"
    return write(tmp_path / "judged.csv", rows)


class Definition:
    """What a model must say of a row, from the definition alone."""

    def __init__(self, artefact: Artefact, spec: ModelSpec | None = None) -> None:
        self.artefact = artefact
        self.plan = FeaturePlan.of(spec or artefact.spec)
        keys = artefact.key_list()
        variants = range(len(artefact.spec.variants))
        self.known = {
            bit: dict(
                zip(keys, zip(artefact.weights_of(bit), artefact.rates_of(bit), strict=True), strict=True)
            )
            for bit in variants
        }

    def of(self, row: Mapping[str, str], bit: int = 0) -> tuple[float, float]:
        """Score and uncertainty."""
        keys = [(key, x) for key, x, mask in self.plan.keys(row) if mask >> bit & 1]
        found = [(*map(float, self.known[bit].get(key, self.unseen)), x) for key, x in keys]
        score = sum(w * x for w, _, x in found)
        if self.probit:
            return score, math.sqrt(sum(variance * x * x for _, variance, x in found))
        return score, sum(rate * abs(x) for _, rate, x in found)

    @property
    def unseen(self) -> tuple[float, float]:
        """The weight and the rate of a key that the model lacks."""
        learner = self.artefact.spec.learner
        return 0.0, learner.alpha if self.probit else learner.alpha / learner.beta

    @property
    def probit(self) -> bool:
        return self.artefact.spec.learner.algorithm == "adpredictor"

    def ctr(self, score: float, uncertainty: float) -> float:
        """The click rate before calibration."""
        if self.probit:
            return NormalDist().cdf(score / math.hypot(self.artefact.spec.learner.beta, uncertainty))
        return 1 / (1 + math.exp(-score))


def read(log: Path) -> list[dict[str, str]]:
    with log.open() as file:
        return list(csv.DictReader(file))


def judged(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    capsys.readouterr()
    assert run(["evaluate", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert run([*map(str, arguments)]) != 0
    return capsys.readouterr().err


def saved(artefact: Artefact, tmp_path: Path, name: str = "model.arrow") -> Path:
    artefact.write(tmp_path / name)
    return tmp_path / name


@pytest.mark.parametrize("variant", ["base", "plain"])
def test_every_row_has_the_score_and_uncertainty_of_their_definitions(
    artefact: Artefact, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], variant: str
) -> None:
    file = tmp_path / "predictions.csv"
    judged(capsys, saved(artefact, tmp_path), log, "--predictions", file, "--variant", variant)
    definition, bit = Definition(artefact), ["base", "plain"].index(variant)
    written = read(file)
    assert [int(row["line"]) for row in written] == list(range(2, 202))
    for row, predicted in zip(read(log), written, strict=True):
        score, uncertainty = definition.of(row, bit)
        assert float(predicted["score"]) == pytest.approx(score, abs=1e-9)
        assert float(predicted["uncertainty"]) == pytest.approx(uncertainty, abs=1e-9)
        assert float(predicted["ctr"]) == pytest.approx(definition.ctr(score, uncertainty), abs=1e-9)
        assert (predicted["label"], predicted["file"]) == (row["click"], str(log))


def test_metrics_of_rows_and_requests_are_those_of_their_definitions(
    artefact: Artefact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row | {"importance": "1"} for row in rows_of(200, seed=2)]
    log = write(tmp_path / "log.csv", rows)
    answer = judged(capsys, saved(artefact, tmp_path), log, "--k", 3, "--position", "place")
    definition, labels = Definition(artefact), [float(row["click"]) for row in rows]
    requests = [slice(first, first + 4) for first in range(0, 200, 4)]
    clicked = [each for each in requests if any(labels[each])]
    ranked = [each for each in clicked if not all(labels[each])]
    assert (answer["rows"], answer["clicks"], answer["rejected"]) == (200, sum(labels), 0)
    found = answer["requests"]
    assert (found["requests"], found["clicked"], found["judged"]) == (50, len(clicked), len(ranked))
    for bit, name in enumerate(["base", "plain"]):
        both = [definition.of(row, bit) for row in rows]
        ctr = [definition.ctr(*each) for each in both]
        metrics, order = answer["variants"][name], answer["requests"]["orders"][name]
        assert metrics["logloss"] == pytest.approx(naive_metrics.logloss(ctr, labels))
        assert metrics["auc"] == pytest.approx(naive_metrics.auc(ctr, labels), abs=1e-3)
        assert metrics["calibration"] == pytest.approx(sum(ctr) / sum(labels))
        assert metrics["uncertainty"] == pytest.approx(np.mean([each for _, each in both]))
        mrr = np.mean([naive_metrics.reciprocal_rank(ctr[each], labels[each]) for each in ranked])
        ndcg = np.mean([naive_metrics.ndcg(ctr[each], labels[each], 3) for each in ranked])
        assert (order["mrr"], order["ndcg"]) == pytest.approx((mrr, ndcg))
    shown = [naive_metrics.reciprocal_rank([4, 3, 2, 1], labels[each]) for each in ranked]
    assert answer["requests"]["orders"]["shown order"]["mrr"] == pytest.approx(np.mean(shown))


def test_requests_of_one_row_have_no_order_to_judge(
    artefact: Artefact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row | {"request": f"u{number}"} for number, row in enumerate(rows_of(40, seed=5))]
    model, log = saved(artefact, tmp_path), write(tmp_path / "log.csv", rows)
    assert run(["evaluate", str(model), str(log)]) == 0
    out, err = capsys.readouterr()
    assert re.search(r"^base( +—){6}$", out, re.MULTILINE)
    assert "every request has one row" in err
    assert "input.request = 'request'" in err
    found = judged(capsys, model, log)["requests"]
    assert (found["judged"], found["single"], found["orders"]["base"]["mrr"]) == (0, 40, None)
    assert found["clicked"] == sum(int(row["click"]) for row in rows) > 0


def test_a_request_whose_rows_are_all_clicked_is_left_out_and_counted(
    artefact: Artefact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row | {"request": f"r{number // 2}"} for number, row in enumerate(rows_of(6, seed=6))]
    for row, click in zip(rows, "110100", strict=True):
        row["click"] = click
    model, log = saved(artefact, tmp_path), write(tmp_path / "log.csv", rows)
    assert run(["evaluate", str(model), str(log)]) == 0
    out, err = capsys.readouterr()
    assert "3 requests, 2 with a click; the figures are means over 1 of them" in out
    assert "leave out 1 request with a click but no unclicked row" in err


def test_a_log_that_is_not_sorted_by_request_is_warned_of(
    artefact: Artefact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row | {"request": f"r{number % 2}"} for number, row in enumerate(rows_of(6, seed=8))]
    model, log = saved(artefact, tmp_path), write(tmp_path / "log.csv", rows)
    assert run(["evaluate", str(model), str(log)]) == 0
    said = capsys.readouterr().err
    assert (
        "4 times a request continued after rows of another, and counts as several; sort the log by 'request'"
        in said
    )
    assert judged(capsys, model, log)["requests"]["resumed"] == 4


def test_rows_without_a_request_id_are_requests_of_their_own_in_files_of_one_row_too(
    artefact: Artefact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        row | {"request": "", "click": click} for row, click in zip(rows_of(2, seed=7), "01", strict=True)
    ]
    files = [write(tmp_path / f"{number}.csv", [row]) for number, row in enumerate(rows)]
    found = judged(capsys, saved(artefact, tmp_path), *files)["requests"]
    assert (found["requests"], found["single"], found["judged"]) == (2, 2, 0)


def test_threads_and_files_change_nothing(
    artefact: Artefact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, model = rows_of(300, seed=3), saved(artefact, tmp_path)
    whole = write(tmp_path / "whole.csv", rows)
    parts = [write(tmp_path / f"{begin}.csv", rows[begin:end]) for begin, end in ((0, 148), (148, 300))]
    one, other = judged(capsys, model, whole, "--threads", 1), judged(capsys, model, *parts, "--threads", 3)
    assert other == one


def test_a_field_left_out_counts_for_no_row_and_its_column_may_be_missing(
    artefact: Artefact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, model = rows_of(100, seed=4), saved(artefact, tmp_path)
    short = write(tmp_path / "short.csv", rows, [name for name in NAMES if name not in ("brand", "place")])
    file = tmp_path / "predictions.csv"
    leaving = ["--without", "brand", "--without", "place"]
    judged(capsys, model, short, *leaving, "--predictions", file)
    definition = Definition(artefact)
    for row, predicted in zip(rows, read(file), strict=True):
        score, uncertainty = definition.of(row | {"brand": "", "place": ""})
        assert float(predicted["score"]) == pytest.approx(score, abs=1e-9)
        assert float(predicted["uncertainty"]) == pytest.approx(uncertainty, abs=1e-9)
    long = write(tmp_path / "long.csv", rows)
    assert judged(capsys, model, long, *leaving) == judged(capsys, model, short, *leaving)
    cross, whole = judged(capsys, model, long, "--without", "brand*age"), judged(capsys, model, long)
    assert cross["variants"]["plain"]["logloss"] == whole["variants"]["plain"]["logloss"]
    assert cross["variants"]["base"]["logloss"] != whole["variants"]["base"]["logloss"]


def test_click_rates_go_through_the_curve_of_the_row_and_both_are_judged(
    artefact: Artefact, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = judged(capsys, saved(artefact, tmp_path), log)
    calibrated = saved(replace(artefact, calibration=CURVES), tmp_path, "calibrated.arrow")
    assert plain["uncalibrated"] is None
    for name in ("base", "plain"):
        file = tmp_path / f"{name}.csv"
        answer = judged(capsys, calibrated, log, "--predictions", file, "--variant", name)
        ctr = []
        for row, predicted in zip(read(log), read(file), strict=True):
            curve = CURVES.curve(name, row["age"].encode() or None)
            score, uncertainty = float(predicted["score"]), float(predicted["uncertainty"])
            p = np.array([Definition(artefact).ctr(score, uncertainty)])
            wanted = (p if curve is None else curve.apply(p))[0]
            assert float(predicted["ctr"]) == pytest.approx(wanted)
            ctr.append(wanted)
        weights = [float(row["importance"]) for row in read(log)]
        clicks = sum(w * float(row["click"]) for w, row in zip(weights, read(log), strict=True))
        assert answer["variants"][name]["calibration"] == pytest.approx(np.dot(weights, ctr) / clicks)
        for metric, value in answer["uncalibrated"][name].items():
            if metric != "difference":
                assert value == pytest.approx(plain["variants"][name][metric])
        assert answer["requests"] == plain["requests"]


def test_an_audit_names_every_key_and_its_parts_add_up_to_the_score(
    artefact: Artefact, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = saved(replace(artefact, calibration=CURVES), tmp_path)
    file = tmp_path / "predictions.csv"
    for bit, variant in enumerate(["base", "plain"]):
        judged(capsys, model, log, "--predictions", file, "--variant", variant)
        for number in (1, 6, 200):
            row, predicted = read(log)[number - 1], read(file)[number - 1]
            assert (
                run(["audit", str(model), str(log), "--row", str(number), "--variant", variant, "--json"])
                == 0
            )
            found = json.loads(capsys.readouterr().out)
            keys = [key for field in found["fields"] for key in field["keys"]]
            wanted = {key.decode() for key, _, mask in Definition(artefact).plan.keys(row) if mask >> bit & 1}
            assert {key["key"] for key in keys} == wanted
            assert found["score"] == pytest.approx(float(predicted["score"]))
            assert found["ctr"] == pytest.approx(float(predicted["ctr"]))
            assert found["uncertainty"] == pytest.approx(float(predicted["uncertainty"]))
            assert found["score"] == pytest.approx(sum(field["contribution"] for field in found["fields"]))
            assert (found["line"], found["variant"]) == (number + 1, variant)
    by_key = {key["key"]: key for key in keys}
    assert all(
        each["key"].startswith(f"{field['name']}=") for field in found["fields"][1:] for each in field["keys"]
    )
    assert by_key["bias"]["contribution"] == by_key["bias"]["weight"]


def test_an_audit_shows_what_the_model_lacks(
    artefact: Artefact, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["audit", str(saved(artefact, tmp_path)), str(log), "--row", "6"]) == 0
    lines = capsys.readouterr().out.splitlines()
    [line] = [line for line in lines if "brand=unheard of" in line and not line.startswith("age*brand")]
    assert "not in the model" in line
    assert line.split()[-1] == f"{Definition(artefact).unseen[1]:.5f}"
    assert any(line.startswith("score ") for line in lines)


def test_a_model_of_the_store_goes_by_name_and_version(
    artefact: Artefact,
    log: Path,
    tmp_path: Path,
    store: Store,
    store_url: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    versions = store.model("shop")
    versions.publish_and_activate(artefact)
    other = replace(artefact, weight=artefact.weight * 2)
    versions.publish(other)
    by_file = judged(capsys, saved(other, tmp_path), log)
    by_version = judged(capsys, "shop:2", log, "--store", store_url)
    active = judged(capsys, "shop", log, "--store", store_url)
    assert (by_version["model"], active["model"], by_file["model"]) == ("shop:2", "shop:1", "model.arrow")
    assert by_version | {"model": ""} == by_file | {"model": ""}
    assert active["variants"] != by_version["variants"]
    assert "no version 3" in refused(capsys, "evaluate", "shop:3", log, "--store", store_url)
    assert "whole number" in refused(capsys, "evaluate", "shop:x", log, "--store", store_url)


def test_a_json_model_scores_by_the_spec_given_and_knows_no_rates(
    artefact: Artefact, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if artefact.per_variant or Definition(artefact).probit:
        pytest.skip("the JSON form has one weight a key, and no variances")
    file, spec = tmp_path / "model.json", tmp_path / "shop.toml"
    file.write_bytes(render(artefact))
    spec.write_text(SPEC)
    answer = judged(capsys, file, log, "--spec", spec)
    native = judged(capsys, saved(artefact, tmp_path), log)
    assert answer["variants"]["base"]["logloss"] == pytest.approx(native["variants"]["base"]["logloss"])
    assert answer["variants"]["base"]["uncertainty"] is None
    assert "--spec" in refused(capsys, "evaluate", file, log)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--without", "brands"], "--without brands: no such field or cross; fields: age, likes"),
        (["--variant", "other"], "no variant 'other'; the model has: base, plain"),
        (["--position", "rank"], "no column 'rank' in the log; it has: click"),
        (["--predictions", "LOG"], "is an input of this run"),
        (["--predictions", "/nowhere/p.csv"], "cannot write /nowhere/p.csv"),
        (["--spec", "shop.toml"], "has its own spec"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_read(
    artefact: Artefact,
    log: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    given = [str(log) if each == "LOG" else each for each in arguments]
    assert message in refused(capsys, "evaluate", saved(artefact, tmp_path), log, *given)


def test_bad_rows_are_counted_and_an_unfinished_file_of_predictions_does_not_appear(
    artefact: Artefact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, model = rows_of(50, seed=5), saved(artefact, tmp_path)
    rows[20]["click"] = "perhaps"
    log, file = write(tmp_path / "log.csv", rows), tmp_path / "predictions.csv"
    assert judged(capsys, model, log, "--predictions", file)["rejected"] == 1
    assert [int(row["line"]) for row in read(file)] == [n for n in range(2, 52) if n != 22]
    file.unlink()
    refused(capsys, "evaluate", model, log, "--strict", "--predictions", file)
    assert not file.exists()
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".")]


def test_an_audit_of_a_row_that_is_not_there_says_how_many_there_are(
    artefact: Artefact, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = saved(artefact, tmp_path)
    assert "the log has only 200 rows" in refused(capsys, "audit", model, log, "--row", "201")


def test_the_tables_say_what_the_json_says(
    artefact: Artefact, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    curves = Calibration("isotonic", None, {"base": VariantCurves(IsotonicCurve(((0.2, 0.1),)))})
    model = saved(replace(artefact, calibration=curves), tmp_path)
    assert run(["evaluate", str(model), str(log)]) == 0
    shown = capsys.readouterr().out
    answer = judged(capsys, model, log)
    for name, metrics in answer["variants"].items():
        assert f"{metrics['logloss']:.5f}" in shown
        assert f"{answer['uncalibrated'][name]['logloss']:.5f}" in shown
        assert f"{answer['requests']['orders'][name]['mrr']:.5f}" in shown


def test_members_with_an_x_of_their_own_count_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, log, model = tmp_path / "words.toml", tmp_path / "log.vw", tmp_path / "words.arrow"
    spec.write_text('[model]\nname = "words"\n[input]\nlabel = "label"\n[learner]\nl1 = 0.0\n')
    log.write_text("1 |a x y:2 x:0.5 |b z\n-1 |a y |b w:0.5\n1 |a x |c q\n")
    assert run(["train", str(spec), str(log), "--save", str(model)]) == 0
    file = tmp_path / "predictions.csv"
    judged(capsys, model, log, "--predictions", file)
    for number, predicted in enumerate(read(file), start=1):
        assert run(["audit", str(model), str(log), "--row", str(number), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["score"] == pytest.approx(float(predicted["score"]))
        assert found["uncertainty"] == pytest.approx(float(predicted["uncertainty"]))
        xs = {key["key"]: key["x"] for field in found["fields"] for key in field["keys"]}
        if number == 1:
            assert xs == {"bias": 1.0, "a=x": 1.5, "a=y": 2.0, "b=z": 1.0}
