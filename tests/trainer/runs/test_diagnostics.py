"""`ftrie evaluate --report`: reliability, importance, worst rows and drift, against slow definitions."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import pytest

from ftrie.cli import run
from model_store.artefact.artefact import Artefact
from model_store.ratios import wilson
from tests.ftrie.draw.test_report import Page
from tests.trainer.oracles import diagnostics as oracle
from tests.trainer.oracles.diagnostics import Row
from tests.trainer.runs.judging import (
    CURVES,
    FTRL,
    NAMES,
    SPEC,
    Definition,
    Judge,
    Rows,
    not_drawn,
    of_learner,
    rows_of,
    trained,
    write,
)
from tests.trainer.runs.running import SPEC as EVENTS
from tests.worlds import event_logs
from trainer.runs import diagnostics, importance
from trainer.runs.diagnostics import expected_index, stability_index

SEED = 7
TIMED = SPEC.replace('request = "request"', 'request = "request"\ntimestamp = "time"') + f"seed = {SEED}\n"
COLUMNS = [*NAMES, "time"]
FIELDS = ["age", "likes", "place", "brand", "price"]
FIRST = 1_700_000_000 // 86_400 * 86_400


def log_rows(count: int, seed: int, *, hours: float = 0.25) -> Rows:
    """Requests of four rows; a request has one age. Every `hours` another row; the brands change over time."""
    rows = rows_of(count, seed)
    for number, row in enumerate(rows):
        row["age"] = rows[number // 4 * 4]["age"]
        row["importance"] = str(round(float(row["importance"]) * 64) / 64)  # sums are exact in any order
        row["time"] = str(int(FIRST + number * hours * 3600))
        if number > count // 2 and row["brand"] == "puma":
            row["brand"] = "new"
    return rows


class Scored:
    """The rows as a model must score them, calibrated if it is."""

    def __init__(self, artefact: Artefact, variant: str) -> None:
        self.artefact, self.variant = artefact, variant
        self.bit = list(artefact.spec.variants).index(variant)
        self.definition = Definition(artefact)

    def __call__(self, row: Mapping[str, str]) -> tuple[float, float]:
        score, uncertainty = self.definition.of(row, self.bit)
        p = self.definition.ctr(score, uncertainty)
        latent = NormalDist().inv_cdf(p) if self.definition.probit else score
        if self.artefact.calibration is not None:
            curve = self.artefact.calibration.curve(self.variant, row["age"].encode() or None)
            p = float(curve.apply(np.array([p]))[0]) if curve is not None else p
            latent = math.log(p / (1.0 - p))
        return latent, p

    def rows(self, rows: Sequence[Mapping[str, str]]) -> list[Row]:
        return oracle.scored(rows, self)


class Reported(NamedTuple):
    """A model, the rows of a log, and what is reported of them."""

    artefact: Artefact
    rows: Rows
    log: Path
    report: Any
    variants: Any


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Artefact:
    log = write(tmp_path_factory.mktemp("learned") / "log.csv", log_rows(400, seed=1), COLUMNS)
    return trained(TIMED + FTRL, log)


@pytest.fixture(scope="module", params=["calibrated", "per_variant", "adpredictor"])
def reported(request, timed: Artefact, tmp_path_factory) -> Reported:
    folder, rows = tmp_path_factory.mktemp("reported"), log_rows(240, seed=2)
    is_calibrated = request.param == "calibrated"
    artefact = of_learner(timed, TIMED, "single" if is_calibrated else request.param)
    artefact = replace(artefact, calibration=CURVES) if is_calibrated else artefact
    log, model, said = write(folder / "log.csv", rows, COLUMNS), folder / "model.arrow", io.StringIO()
    artefact.write(model)
    flags = ["--repeats", "2", "--worst", "7", "--report", str(folder / "page.html"), "--json"]
    with not_drawn(), contextlib.redirect_stdout(said):
        assert run(["evaluate", str(model), str(log), *flags]) == 0
    answer = json.loads(said.getvalue())
    return Reported(artefact, rows, log, answer["report"], answer["variants"])


def same_reliability(found: Any, rows: Sequence[Row]) -> None:
    total = sum(row.weight for row in rows)
    assert found["logloss"] == pytest.approx(sum(row.weight * row.loss for row in rows) / total)
    assert found["mean_prediction"] == pytest.approx(sum(row.weight * row.p for row in rows) / total)
    assert (found["ece"], found["by_chance"]) == pytest.approx(oracle.ece(rows))
    wanted = [oracle.bin_figures(each) for each in oracle.bins(rows)]
    assert found["bins"] == [pytest.approx(each) for each in wanted]


def values_of(row: Mapping[str, str], name: str) -> list[str]:
    """The row's values of a field as keys write them."""
    values = row[name].split("|") if name == "likes" else [row[name]]
    escaped = (value.replace("%", "%25").replace("*", "%2A").replace("=", "%3D") for value in values)
    return [value for value in escaped if value]


def test_reliability_of_all_rows_and_of_each_value_is_that_of_its_definition(reported: Reported) -> None:
    rows, report = reported.rows, reported.report
    assert report["variants"] == ["base", "plain"]
    for variant in report["variants"]:
        scored = Scored(reported.artefact, variant).rows(rows)
        total = report["total"]["variants"][variant]
        same_reliability(total, scored)
        assert total["auc"] == reported.variants[variant]["auc"]  # the page's is the command's
        assert total["logloss"] == pytest.approx(reported.variants[variant]["logloss"])
        for field in report["slices"]:
            for value in field["values"]:
                mine = [
                    each
                    for row, each in zip(rows, scored, strict=True)
                    if value["value"] in values_of(row, field["field"])
                ]
                assert value["group"]["rows"] == len(mine)
                same_reliability(value["group"]["variants"][variant], mine)
    sliced = {field["field"]: field for field in report["slices"]}
    assert list(sliced) == ["age", "likes", "place", "brand"]  # a real number has no values
    for name, field in sliced.items():
        counts = Counter(value for row in rows for value in values_of(row, name))
        clicks = Counter(value for row in rows if row["click"] == "1" for value in values_of(row, name))
        enough = {value for value in counts if min(clicks[value], counts[value] - clicks[value]) >= 20}
        assert {each["value"] for each in field["values"]} == enough
        assert field["left_out"] == len(counts) - len(enough)
        worst = [
            max(own["ece"] - own["by_chance"] for own in each["group"]["variants"].values())
            for each in field["values"]
        ]
        assert worst == sorted(worst, reverse=True)
    assert any(len(field["values"]) > 1 for field in sliced.values())


def test_permutation_importance_is_the_rise_of_the_log_loss_with_exchanged_values(reported: Reported) -> None:
    rows, report = reported.rows, reported.report["importance"]
    requests = [row["request"] for row in rows]
    assert (report["rows"], report["requests"], report["repeats"]) == (240, 60, 2)
    by = {each["field"]: each["by"] for each in report["fields"]}
    # Only the age is the same in all rows of a request, and of the user.
    assert by == {name: "request" if name == "age" else "row" for name in FIELDS}
    for field in report["fields"]:
        number, name = FIELDS.index(field["field"]), field["field"]
        exchanged = [
            oracle.permuted(
                rows,
                name,
                requests if by[name] == "request" else None,
                np.random.Generator(np.random.PCG64([SEED, number, repeat])).permutation,  # type: ignore[arg-type]
            )
            for repeat in range(2)
        ]
        for variant in ("base", "plain"):
            scored = Scored(reported.artefact, variant)
            wanted = oracle.rise(scored.rows(rows), [scored.rows(each) for each in exchanged], requests)
            found = field["rises"][variant]
            assert (found["logloss"], found["low"], found["high"]) == pytest.approx(wanted, abs=1e-9)
    order = [max(rise["logloss"] for rise in each["rises"].values()) for each in report["fields"]]
    assert order == sorted(order, reverse=True)
    assert report["fields"][0]["rises"]["base"]["logloss"] > 0.0
    likes = next(each for each in report["fields"] if each["field"] == "likes")
    assert likes["rises"]["plain"] == {"logloss": 0.0, "low": 0.0, "high": 0.0}  # a field it does not use


def test_importance_by_weight_is_the_mean_size_of_contributions(reported: Reported) -> None:
    rows, report = reported.rows, reported.report["importance"]
    total = sum(float(row["importance"]) for row in rows)
    definition = Definition(reported.artefact)
    for bit, variant in enumerate(["base", "plain"]):
        by_key, by_owner = Counter[str](), Counter[str]()
        for row in rows:
            for key, x, mask in definition.plan.keys(row):
                weight = float(definition.known[bit].get(key, (0.0, 0.0))[0]) if mask >> bit & 1 else 0.0
                by_key[key.decode()] += abs(weight * x) * float(row["importance"]) / total
                by_owner[key.decode().split("=")[0]] += abs(weight * x) * float(row["importance"]) / total
        found = {each["name"]: each["means"][variant] for each in report["weights"]}
        assert found == pytest.approx({name: by_owner[name] for name in found})
        assert {name for name, mean in by_owner.items() if mean} <= {*found, "bias"}
        top = [(each["name"], each["means"][variant]) for each in report["keys"][variant]]
        wanted = sorted((mean for key, mean in by_key.items() if key != "bias" and mean), reverse=True)
        assert [mean for _, mean in top] == pytest.approx(wanted[: importance.TOP_KEYS])
        assert all(mean == pytest.approx(by_key[key]) for key, mean in top)


def test_the_worst_rows_are_those_with_the_largest_log_loss_and_their_keys_add_up(reported: Reported) -> None:
    scored = Scored(reported.artefact, "plain").rows(reported.rows)
    order = sorted(range(len(scored)), key=lambda number: -round(scored[number].loss, 12))[:7]
    found = reported.report["worst"]["plain"]
    assert [each["logloss"] for each in found] == pytest.approx([scored[number].loss for number in order])
    for each in found:
        number = each["audit"]["line"] - 2
        row, audit = reported.rows[number], each["audit"]
        assert each["logloss"] == pytest.approx(scored[number].loss)
        assert (each["label"], audit["file"]) == (int(row["click"]), str(reported.log))
        assert each["values"] == {name: row[name] for name in FIELDS}
        assert audit["ctr"] == pytest.approx(scored[number].p)
        keys = [key for field in audit["fields"] for key in field["keys"]]
        assert audit["score"] == pytest.approx(sum(key["contribution"] for key in keys))


def test_of_one_variant_alone_and_without_permutation_nothing_else_is_reported(timed, judge):
    log = judge.log(log_rows(100, seed=5), names=COLUMNS)
    report = judge.reported(judge.model(timed), log, "--repeats", 0, "--worst", 3, "--variant", "plain")
    assert report["variants"] == list(report["worst"]) == list(report["total"]["variants"]) == ["plain"]
    assert len(report["worst"]["plain"]) == 3 and report["importance"]["fields"] == []


def test_periods_are_hours_then_days_and_fields_are_compared_with_the_first(timed, judge):
    model, definition = judge.model(timed), Definition(timed)
    for hours, length in ((0.05, 3600), (0.3, 86_400)):
        rows = log_rows(400, seed=6, hours=hours)
        rows[3]["time"] = rows[9]["time"] = ""
        drift = judge.reported(model, judge.log(rows, names=COLUMNS), "--repeats", 0)["drift"]
        assert (drift["by"], drift["length"], drift["untimed"]) == ("time", length, 2)
        scored = Scored(timed, "base").rows(rows)
        periods: dict[int, list[int]] = {}
        for number, row in enumerate(rows):
            if row["time"]:
                periods.setdefault(int(row["time"]) // length, []).append(number)
        assert len(drift["periods"]) == len(periods)
        for found, (at, mine) in zip(drift["periods"], sorted(periods.items()), strict=True):
            assert found["begin"] == f"{np.datetime64(at * length, 's')}Z"
            assert found["group"]["rows"] == len(mine)
            same_reliability(found["group"]["variants"]["base"], [scored[number] for number in mine])
            keys = [key for number in mine for key, *_ in definition.plan.keys(rows[number])]
            lacking = [key for key in keys if key not in definition.known[0]]
            assert found["lacking"] == pytest.approx(len(lacking) / len(keys))
        found_fields = {each["field"]: each for each in drift["fields"]}
        for name in ("age", "likes", "brand"):
            counts = [
                Counter(value for number in mine for value in values_of(rows[number], name) or ["absent"])
                for _, mine in sorted(periods.items())
            ]
            assert found_fields[name]["psi"] == pytest.approx(
                [oracle.psi(counts[0], each) for each in counts]
            )
            n, m, values = counts[0].total(), counts[-1].total(), len({*counts[0], *counts[-1]})
            assert found_fields[name]["by_chance"] == pytest.approx((values - 1) * (1 / n + 1 / m))
        assert drift["fields"][0]["field"] == "brand"  # the one that was changed


def test_without_times_periods_are_blocks_of_rows_that_grow_with_the_log(single, judge, monkeypatch):
    monkeypatch.setattr(diagnostics, "FIRST_BLOCK", 10)
    monkeypatch.setattr(diagnostics, "MOST_BLOCKS", 4)
    rows = log_rows(130, seed=7)
    parts = [judge.log(rows[begin:end], f"{begin}.csv", COLUMNS) for begin, end in ((0, 33), (33, 130))]
    drift = judge.reported(judge.model(single), *parts, "--repeats", 0)["drift"]
    assert (drift["by"], drift["length"], drift["untimed"]) == ("rows", 40, 0)
    assert [each["begin"] for each in drift["periods"]] == [1, 41, 81, 121]
    scored = Scored(single, "base").rows(rows)
    for found in drift["periods"]:
        mine = scored[found["begin"] - 1 : found["begin"] + 39]
        assert found["group"]["rows"] == len(mine)
        same_reliability(found["group"]["variants"]["base"], mine)


def test_threads_and_files_change_nothing(timed: Artefact, judge: Judge) -> None:
    rows, model = log_rows(300, seed=8), judge.model(timed)
    parts = [judge.log(rows[begin:end], f"{begin}.csv", COLUMNS) for begin, end in ((0, 148), (148, 300))]
    report = ("--report", judge.folder / "page.html")  # a function of the answer's "report"
    with not_drawn():
        one = judge.judged(model, *parts, *report, "--threads", 1)
        assert judge.judged(model, *parts, *report, "--threads", 3) == one
        whole = judge.judged(model, judge.log(rows, "whole.csv", COLUMNS), *report)
    assert {**whole, "report": None} == {**one, "report": None}
    for name in ("total", "slices", "importance"):
        assert flat(whole["report"][name]) == pytest.approx(flat(one["report"][name]))


def flat(value: Any, path: str = "") -> dict[str, Any]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    found: dict[str, Any] = {}
    for name, each in pairs:
        found |= flat(each, f"{path}/{name}") if isinstance(each, dict | list) else {f"{path}/{name}": each}
    return found


def test_a_long_log_is_permuted_on_a_sample_of_whole_requests(timed, judge, monkeypatch):
    monkeypatch.setattr(importance, "MOST_SAMPLED", 100)
    log = judge.log(log_rows(1000, seed=9), names=COLUMNS)
    found = judge.reported(judge.model(timed), log, "--repeats", 1)["importance"]
    assert 25 <= found["rows"] <= 100 and found["rows"] == 4 * found["requests"]
    assert len(found["fields"]) == len(FIELDS)


def test_a_column_whose_type_changes_from_file_to_file_is_permuted_as_one(timed, judge):
    rows, model = log_rows(200, seed=16), judge.model(timed)
    whole = judge.reported(model, judge.log(rows, names=COLUMNS), "--repeats", 1)
    as_list, as_text = judge.folder / "lists.jsonl", judge.folder / "texts.jsonl"
    lists = [row | {"likes": row["likes"].split("|") if row["likes"] else []} for row in rows[:100]]
    for path, part in ((as_list, lists), (as_text, rows[100:])):
        path.write_text("".join(f"{json.dumps(row)}\n" for row in part))
    found = judge.reported(model, as_list, as_text, "--repeats", 1)
    assert flat(found["importance"]) == pytest.approx(flat(whole["importance"]))


def test_a_log_of_one_class_or_without_rows_is_reported_as_far_as_it_goes(timed, judge):
    model, page = judge.model(timed), judge.folder / "page.html"
    log = judge.log([row | {"click": "0"} for row in log_rows(100, seed=10)], names=COLUMNS)
    report = judge.judged(model, log, "--repeats", 1, "--report", page)["report"]
    own = report["total"]["variants"]["base"]
    assert (own["auc"], own["normalized_entropy"], own["calibration"]) == (None, None, None)
    assert [field["values"] for field in report["slices"]] == [[] for _ in report["slices"]]
    assert (report["total"]["rows"], report["importance"]["rows"]) == (100, 100)
    Page(page.read_text())
    judge.said("evaluate", model, log, "--report", judge.folder / "page.svg")
    page.unlink()
    said = judge.refused("evaluate", model, judge.log([], names=COLUMNS), "--report", page)
    assert "no row could be judged (0 rejected)" in said
    Page(page.read_text())


def test_events_are_reported_on_as_the_rows_that_they_are_joined_to(judge: Judge) -> None:
    logs, spec, model = event_logs(200).write(judge.folder), judge.folder / "s.toml", judge.folder / "m.arrow"
    spec.write_text(EVENTS)
    judge.said("train", spec, *logs, "--save", model)
    report = judge.reported(model, *logs)
    by = {each["field"]: each["by"] for each in report["importance"]["fields"]}
    assert by == {"platform": "request", "device": "request", "position": "row", "price": "row"}
    shown = sum(line.count(b'"position"') for line in event_logs(200).impressions)
    assert (report["total"]["rows"], report["importance"]["requests"]) == (shown, 200)
    assert sum(each["group"]["rows"] for each in report["drift"]["periods"]) == shown
    assert report["importance"]["fields"][0]["field"] == "position"  # which decides most clicks


def test_rows_of_weight_0_change_no_mean_and_make_no_importance(timed: Artefact, judge: Judge) -> None:
    model, rows = judge.model(timed), log_rows(200, seed=11)
    for row in rows[100:]:
        row["importance"] = "0"
    whole, half = (
        judge.reported(model, judge.log(some, names=COLUMNS), "--repeats", 0) for some in (rows, rows[:100])
    )
    for variant in ("base", "plain"):
        found, wanted = (each["total"]["variants"][variant] for each in (whole, half))
        for figure in ("logloss", "auc", "calibration", "mean_prediction"):
            assert found[figure] == pytest.approx(wanted[figure])
    report = judge.reported(model, judge.log([row | {"importance": "0"} for row in rows], names=COLUMNS))
    assert report["importance"]["fields"] == []
    assert report["total"]["variants"]["base"]["bins"] == []


def test_what_cannot_be_reported_is_said_before_a_row_is_read(timed: Artefact, judge: Judge) -> None:
    model, log = judge.model(timed), judge.log(log_rows(20, seed=12), names=COLUMNS)
    page = judge.folder / "page.html"
    for flags, message in (
        (["--report", page, "--slice", "brands"], "--slice 'brands': no such field; fields: age, likes"),
        (
            ["--report", page, "--slice", "price"],
            "'price' is a real number and has one key for all its values",
        ),
        (["--report", page, "--variant", "other"], "no variant 'other'; the model has: base, plain"),
        (["--slice", "age"], "--slice belongs to --report FILE"),
        (["--report", log], "is an input of this run"),
    ):
        said = judge.refused("evaluate", model, log, *flags)
        assert message in said and "scoring" not in said and not page.exists()
    assert "cannot write" in judge.refused("evaluate", model, log, "--report", "/nowhere/page.html")


def test_a_named_slice_counts_values_beyond_the_first_ones_together(timed, judge, monkeypatch):
    monkeypatch.setattr(diagnostics, "VALUES", 2)
    monkeypatch.setattr(diagnostics, "_ABSENT", 3)
    log = judge.log(log_rows(400, seed=14), names=COLUMNS)
    flags = ("--repeats", 0, "--slice", "place", "--slice", "brand")
    report = judge.reported(judge.model(timed), log, *flags)
    assert [field["field"] for field in report["slices"]] == ["place", "brand"]
    found = {each["value"]: each["group"]["rows"] for each in report["slices"][0]["values"]}
    assert found == {"1": 100, "2": 100, None: 200}


def test_the_page_is_well_formed_says_everything_in_words_and_needs_nothing_else(timed, judge):
    rows = log_rows(400, seed=15)
    rows[0]["brand"] = "<script>alert(1)</script>"
    file, model, log = judge.folder / "page.html", judge.model(timed), judge.log(rows, names=COLUMNS)
    report = judge.judged(model, log, "--repeats", 1, "--report", file)["report"]
    text = file.read_text()
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "embed"} & set(page.tags)
    assert not re.search(r"https?:|url\(|@import", text)
    pictures = re.findall(r"<svg [^>]*>", text)
    assert len(pictures) > 10
    assert all('role="img"' in each and re.search(r'aria-label="[^"]{20,}"', each) for each in pictures)
    assert len(re.findall(r"<desc>[^<]+</desc>", text)) == len(pictures)
    assert "prefers-color-scheme:dark" in text
    said = " ".join(page.said)
    for name, own in report["total"]["variants"].items():
        assert name in said and f"{own['ece']:.5f}" in said
    for row in report["worst"]["base"]:
        assert f"line {row['audit']['line']}: " in said
    for each in report["importance"]["fields"]:
        assert f"{each['rises']['base']['logloss']:+.6f}" in said


@pytest.mark.parametrize("rows", [1, 2, 7, 100, 10_000])
def test_the_interval_of_a_rate_is_the_wilson_interval(rows: int) -> None:
    for clicks in sorted({0, 1, rows // 3, rows // 2, rows - 1, rows}):
        low, high = wilson(clicks / rows, rows)
        assert (low, high) == pytest.approx(oracle.wilson(clicks, rows), abs=1e-12)
        assert 0.0 <= low <= clicks / rows <= high <= 1.0


def test_the_stability_index_is_that_of_its_definition_and_0_for_equal_distributions() -> None:
    draw = np.random.default_rng(1)
    for values in (1, 2, 5, 20) * 5:
        first, later = (draw.integers(0, 500, values) * draw.integers(0, 2, values) * 1.0 for _ in range(2))
        named = [{n: int(each[n]) for n in range(values) if first[n] + later[n]} for each in (first, later)]
        if named[0]:
            assert stability_index(first, later) == pytest.approx(oracle.psi(*named), abs=1e-12)
        assert stability_index(first, first) == 0.0 and stability_index(first, later) >= 0.0
        assert expected_index(first, later) >= 0.0
