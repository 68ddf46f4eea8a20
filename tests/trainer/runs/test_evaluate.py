"""`ftrie evaluate` and `ftrie audit`: what they say of every row, against the definition of a score."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ftrie.cli import run
from model_store.artefact.artefact import Artefact
from model_store.artefact.calibration import Calibration, IsotonicCurve, VariantCurves
from model_store.artefact.json_model import render
from tests.trainer.learn import metrics_oracle as oracle
from tests.trainer.learn import naive_metrics
from tests.trainer.runs.judging import (
    CURVES,
    LEARNERS,
    NAMES,
    SPEC,
    Definition,
    Judge,
    of_learner,
    read,
    rows_of,
)
from trainer.learn.metrics.records import VariantMetrics
from trainer.learn.metrics.warnings import gain_warnings


@pytest.fixture(scope="module", params=LEARNERS)
def artefact(request: pytest.FixtureRequest, single: Artefact) -> Artefact:
    return of_learner(single, SPEC, request.param)


@pytest.fixture
def log(judge: Judge) -> Path:
    rows = rows_of(200, seed=2)
    rows[5]["brand"] = "unheard of"
    return judge.log(rows, "judged.csv")


@pytest.mark.parametrize(("bit", "variant"), [(0, "base"), (1, "plain")])
def test_every_row_has_the_score_of_its_definition_and_an_audit_names_the_keys_it_is_the_sum_of(
    artefact: Artefact, log: Path, judge: Judge, bit: int, variant: str
) -> None:
    file, model = judge.folder / "predictions.csv", judge.model(artefact)
    judge.judged(model, log, "--predictions", file, "--variant", variant)
    definition, rows, written = Definition(artefact), read(log), read(file)
    assert [int(row["line"]) for row in written] == list(range(2, 202))
    for row, predicted in zip(rows, written, strict=True):
        score, uncertainty = definition.of(row, bit)
        assert float(predicted["score"]) == pytest.approx(score, abs=1e-9)
        assert float(predicted["uncertainty"]) == pytest.approx(uncertainty, abs=1e-9)
        assert float(predicted["ctr"]) == pytest.approx(definition.ctr(score, uncertainty), abs=1e-9)
        assert (predicted["label"], predicted["file"]) == (row["click"], str(log))
    calibrated = judge.model(replace(artefact, calibration=CURVES), "calibrated.arrow")
    judge.judged(calibrated, log, "--predictions", file, "--variant", variant)
    written = read(file)
    for number in (1, 6, 200):
        row, predicted = rows[number - 1], written[number - 1]
        found = judge.answer("audit", calibrated, log, "--row", number, "--variant", variant)
        keys = [key for field in found["fields"] for key in field["keys"]]
        wanted = {key.decode() for key, _, mask in definition.plan.keys(row) if mask >> bit & 1}
        assert {key["key"] for key in keys} == wanted
        for name in ("score", "ctr", "uncertainty"):
            assert found[name] == pytest.approx(float(predicted[name]))
        assert found["score"] == pytest.approx(sum(field["contribution"] for field in found["fields"]))
        assert (found["line"], found["variant"]) == (number + 1, variant)
        assert all(
            key["key"].startswith(f"{field['name']}=")
            for field in found["fields"][1:]
            for key in field["keys"]
        )
        (bias,) = [key for key in keys if key["key"] == "bias"]
        assert bias["contribution"] == bias["weight"]


def test_metrics_of_rows_and_requests_are_those_of_their_definitions(artefact, judge):
    rows = [row | {"importance": "1"} for row in rows_of(200, seed=2)]
    answer = judge.judged(judge.model(artefact), judge.log(rows), "--k", 3, "--position", "place")
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
        metrics, order = answer["variants"][name], found["orders"][name]
        judged = [oracle.Row((math.log(p / (1 - p)),), y, 1.0, 0) for p, y in zip(ctr, labels, strict=True)]
        assert metrics["logloss"] == pytest.approx(oracle.logloss(judged, 0))
        assert metrics["auc"] == pytest.approx(oracle.auc(judged, 0), abs=1e-3)
        assert metrics["calibration"] == pytest.approx(sum(ctr) / sum(labels))
        assert metrics["uncertainty"] == pytest.approx(np.mean([each for _, each in both]))
        mrr = np.mean([naive_metrics.reciprocal_rank(ctr[each], labels[each]) for each in ranked])
        ndcg = np.mean([naive_metrics.ndcg(ctr[each], labels[each], 3) for each in ranked])
        assert (order["mrr"], order["ndcg"]) == pytest.approx((mrr, ndcg))
    shown = [naive_metrics.reciprocal_rank([4, 3, 2, 1], labels[each]) for each in ranked]
    assert found["orders"]["shown order"]["mrr"] == pytest.approx(np.mean(shown))


def test_requests_without_an_order_to_judge_are_left_out_counted_and_told(single, judge):
    model = judge.model(single)
    of_one_row = [row | {"request": f"u{number}"} for number, row in enumerate(rows_of(40, seed=5))]
    log = judge.log(of_one_row)
    out, err = judge.said("evaluate", model, log)
    assert re.search(r"^base( +—){6}$", out, re.MULTILINE)
    assert "every request has one row" in err and "input.request = 'request'" in err
    found = judge.judged(model, log)["requests"]
    assert (found["judged"], found["single"], found["orders"]["base"]["mrr"]) == (0, 40, None)
    assert found["clicked"] == sum(int(row["click"]) for row in of_one_row) > 0

    one_all_clicked = [
        row | {"request": f"r{number // 2}", "click": click}
        for number, (row, click) in enumerate(zip(rows_of(6, seed=6), "110100", strict=True))
    ]
    out, err = judge.said("evaluate", model, judge.log(one_all_clicked))
    assert "3 requests, 2 with a click; the figures are means over 1 of them" in out
    assert "leave out 1 request with a click but no unclicked row" in err

    unsorted = judge.log(
        [row | {"request": f"r{number % 2}"} for number, row in enumerate(rows_of(6, seed=8))]
    )
    _, err = judge.said("evaluate", model, unsorted)
    assert "4 times a request continued after rows of another, and counts as several; sort the log by" in err
    assert judge.judged(model, unsorted)["requests"]["resumed"] == 4

    nameless = [row | {"request": "", "click": click} for row, click in zip(rows_of(2, 7), "01", strict=True)]
    files = [judge.log([row], f"{number}.csv") for number, row in enumerate(nameless)]
    found = judge.judged(model, *files)["requests"]
    assert (found["requests"], found["single"], found["judged"]) == (2, 2, 0)


def test_a_field_left_out_counts_for_no_row_and_its_column_may_be_missing(artefact, judge):
    rows, model, file = rows_of(100, seed=4), judge.model(artefact), judge.folder / "predictions.csv"
    short = judge.log(rows, "short.csv", [name for name in NAMES if name not in ("brand", "place")])
    leaving = ["--without", "brand", "--without", "place"]
    without = judge.judged(model, short, *leaving, "--predictions", file)
    definition = Definition(artefact)
    for row, predicted in zip(rows, read(file), strict=True):
        score, uncertainty = definition.of(row | {"brand": "", "place": ""})
        assert float(predicted["score"]) == pytest.approx(score, abs=1e-9)
        assert float(predicted["uncertainty"]) == pytest.approx(uncertainty, abs=1e-9)
    long = judge.log(rows)
    assert judge.judged(model, long, *leaving) == without
    cross, whole = judge.judged(model, long, "--without", "brand*age"), judge.judged(model, long)
    assert cross["variants"]["plain"]["logloss"] == whole["variants"]["plain"]["logloss"]
    assert cross["variants"]["base"]["logloss"] != whole["variants"]["base"]["logloss"]


def test_calibrated_click_rates_are_judged_beside_those_before_calibration(artefact, log, judge):
    """Which curve a row's click rate goes through, test_diagnostics.py compares with the definition."""
    plain, rows, file = judge.judged(judge.model(artefact), log), read(log), judge.folder / "ctr.csv"
    calibrated = judge.model(replace(artefact, calibration=CURVES), "calibrated.arrow")
    assert plain["uncalibrated"] is None
    weights = [float(row["importance"]) for row in rows]
    clicks = sum(w * float(row["click"]) for w, row in zip(weights, rows, strict=True))
    for name in ("base", "plain"):
        answer = judge.judged(calibrated, log, "--predictions", file, "--variant", name)
        ctr = [float(row["ctr"]) for row in read(file)]
        assert answer["variants"][name]["calibration"] == pytest.approx(np.dot(weights, ctr) / clicks)
        for metric, value in answer["uncalibrated"][name].items():
            if metric != "difference":
                assert value == pytest.approx(plain["variants"][name][metric])
        assert answer["requests"] == plain["requests"]


def test_an_audit_shows_what_the_model_lacks_and_how_many_rows_there_are(artefact, log, judge):
    model = judge.model(artefact)
    lines = judge.said("audit", model, log, "--row", 6)[0].splitlines()
    [line] = [line for line in lines if "brand=unheard of" in line and not line.startswith("age*brand")]
    assert "not in the model" in line
    assert line.split()[-1] == f"{Definition(artefact).unseen[1]:.5f}"
    assert any(line.startswith("score ") for line in lines)
    assert "the log has only 200 rows" in judge.refused("audit", model, log, "--row", "201")


def test_a_model_of_the_store_goes_by_name_and_version(single, log, judge, store, store_url):
    versions = store.model("shop")
    versions.publish_and_activate(single)
    other = replace(single, weight=single.weight * 2)
    versions.publish(other)
    by_file = judge.judged(judge.model(other), log)
    by_version = judge.judged("shop:2", log, "--store", store_url)
    active = judge.judged("shop", log, "--store", store_url)
    assert (by_version["model"], active["model"], by_file["model"]) == ("shop:2", "shop:1", "model.arrow")
    assert by_version | {"model": ""} == by_file | {"model": ""}
    assert active["variants"] != by_version["variants"]
    assert "no version 3" in judge.refused("evaluate", "shop:3", log, "--store", store_url)
    assert "whole number" in judge.refused("evaluate", "shop:x", log, "--store", store_url)


def test_a_json_model_scores_by_the_spec_given_and_knows_no_rates(single, log, judge):
    file, spec = judge.folder / "model.json", judge.folder / "shop.toml"
    file.write_bytes(render(single))
    spec.write_text(SPEC)
    answer, native = judge.judged(file, log, "--spec", spec), judge.judged(judge.model(single), log)
    assert answer["variants"]["base"]["logloss"] == pytest.approx(native["variants"]["base"]["logloss"])
    assert answer["variants"]["base"]["uncertainty"] is None
    assert "--spec" in judge.refused("evaluate", file, log)


def test_what_cannot_be_done_is_said_before_anything_is_read(single, log, judge):
    model = judge.model(single)
    for flag, value, message in (
        ("--without", "brands", "--without brands: no such field or cross; fields and crosses: age, likes"),
        ("--variant", "other", "no variant 'other'; the model has: base, plain"),
        ("--position", "rank", "no column 'rank' in the log; it has: click"),
        ("--predictions", log, "is an input of this run"),
        ("--predictions", "/nowhere/p.csv", "cannot write /nowhere/p.csv"),
        ("--spec", "shop.toml", "has its own spec"),
    ):
        assert message in judge.refused("evaluate", model, log, flag, value)


def test_bad_rows_are_counted_and_an_unfinished_file_of_predictions_does_not_appear(single, judge):
    rows, model, file = rows_of(50, seed=5), judge.model(single), judge.folder / "predictions.csv"
    rows[20]["click"] = "perhaps"
    log = judge.log(rows)
    assert judge.judged(model, log, "--predictions", file)["rejected"] == 1
    assert [int(row["line"]) for row in read(file)] == [n for n in range(2, 52) if n != 22]
    file.unlink()
    judge.refused("evaluate", model, log, "--strict", "--predictions", file)
    assert not file.exists()
    assert not [each for each in judge.folder.iterdir() if each.name.startswith(".")]


def test_the_tables_say_what_the_json_says(single: Artefact, log: Path, judge: Judge) -> None:
    curves = Calibration("isotonic", None, {"base": VariantCurves(IsotonicCurve(((0.2, 0.1),)))})
    model = judge.model(replace(single, calibration=curves))
    shown, answer = judge.said("evaluate", model, log)[0], judge.judged(model, log)
    for name, metrics in answer["variants"].items():
        assert f"{metrics['logloss']:.5f}" in shown
        assert f"{answer['uncalibrated'][name]['logloss']:.5f}" in shown
        assert f"{answer['requests']['orders'][name]['mrr']:.5f}" in shown


def test_a_model_that_is_hardly_better_than_one_rate_is_told(single: Artefact, judge: Judge) -> None:
    model, rows = judge.model(single), rows_of(400, seed=6)
    for row, each in enumerate(rows):
        each["click"] = str(row % 2)
    found = judge.judged(model, judge.log(rows))["variants"]["base"]
    higher = f"that of base is {100 * (found['normalized_entropy'] - 1):.2g} % higher"
    assert higher in judge.said("evaluate", model, judge.log(rows))[1]
    metrics = VariantMetrics(**found)
    for entropy, said in ((0.98, ()), (0.993, ("only 0.7 % lower",))):
        (told, *_) = (
            *gain_warnings({"a": metrics.model_copy(update={"normalized_entropy": entropy})}, 60, 90),
            "",
        )
        assert all(each in told for each in said) and bool(told) == bool(said)


def test_members_with_an_x_of_their_own_count_with_it(judge: Judge) -> None:
    spec, log, model = (judge.folder / name for name in ("words.toml", "log.vw", "words.arrow"))
    spec.write_text('[model]\nname = "words"\n[input]\nlabel = "label"\n[learner]\nl1 = 0.0\n')
    log.write_text("1 |a x y:2 x:0.5 |b z\n-1 |a y |b w:0.5\n1 |a x |c q\n")
    assert run(["train", str(spec), str(log), "--save", str(model)]) == 0
    file = judge.folder / "predictions.csv"
    judge.judged(model, log, "--predictions", file)
    for number, predicted in enumerate(read(file), start=1):
        found = judge.answer("audit", model, log, "--row", number)
        assert found["score"] == pytest.approx(float(predicted["score"]))
        assert found["uncertainty"] == pytest.approx(float(predicted["uncertainty"]))
        xs = {key["key"]: key["x"] for field in found["fields"] for key in field["keys"]}
        assert number != 1 or xs == {"bias": 1.0, "a=x": 1.5, "a=y": 2.0, "b=z": 1.0}
