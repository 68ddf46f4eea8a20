"""`ftrie evaluate --report`: reliability, importance, worst rows and drift, against slow definitions."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrie.cli import run
from model_store.artefact.artefact import Artefact
from model_store.spec.spec import parse_spec
from tests.ftrie.test_report import Page
from tests.trainer.oracles import diagnostics as oracle
from tests.trainer.oracles.diagnostics import Row
from tests.trainer.runs.test_evaluate import CURVES, LEARNERS, NAMES, SPEC, Definition, rows_of, write
from trainer.examples.open_log import Log
from trainer.learn.metrics.reliability import wilson
from trainer.logs.rejects import RejectLog
from trainer.runs import diagnostics, importance
from trainer.runs.diagnostics import expected_index, stability_index
from trainer.runs.train import train

SEED = 7
TIMED = SPEC.replace('request = "request"', 'request = "request"\ntimestamp = "time"') + f"seed = {SEED}\n"
COLUMNS = [*NAMES, "time"]
FIELDS = ["age", "likes", "place", "brand", "price"]
FIRST = 1_700_000_000 // 86_400 * 86_400


def log_rows(count: int, seed: int, *, hours: float = 0.25) -> list[dict[str, str]]:
    """Requests of four rows; a request has one age. Every `hours` another row; the brands change over time."""
    rows = rows_of(count, seed)
    for number, row in enumerate(rows):
        row["age"] = rows[number // 4 * 4]["age"]
        row["importance"] = str(
            round(float(row["importance"]) * 64) / 64
        )  # so that sums are exact in any order
        row["time"] = str(int(FIRST + number * hours * 3600))
        if number > count // 2 and row["brand"] == "puma":
            row["brand"] = "new"
    return rows


def model(spec: str, tmp_path: Path) -> Artefact:
    log = write(tmp_path / "learned.csv", log_rows(400, seed=1), COLUMNS)
    with RejectLog() as rejects:
        return train(parse_spec(spec), Log([str(log)]), rejects=rejects).model.artefact()


def saved(artefact: Artefact, tmp_path: Path) -> Path:
    artefact.write(tmp_path / "model.arrow")
    return tmp_path / "model.arrow"


def reported(capsys: pytest.CaptureFixture[str], tmp_path: Path, *arguments: object) -> Any:
    capsys.readouterr()
    command = ["evaluate", *map(str, arguments), "--report", str(tmp_path / "page.html"), "--json"]
    assert run(command) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)["report"]


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert run([*map(str, arguments)]) != 0
    return capsys.readouterr().err


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


@pytest.fixture(scope="module", params=[*LEARNERS, "calibrated"])
def artefact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Artefact:
    name = "single" if request.param == "calibrated" else request.param
    made = model(TIMED + LEARNERS[name], tmp_path_factory.mktemp("model"))
    return replace(made, calibration=CURVES) if request.param == "calibrated" else made


def same_reliability(found: Any, rows: Sequence[Row]) -> None:
    total = sum(row.weight for row in rows)
    assert found["logloss"] == pytest.approx(sum(row.weight * row.loss for row in rows) / total)
    assert found["mean_prediction"] == pytest.approx(sum(row.weight * row.p for row in rows) / total)
    assert (found["ece"], found["by_chance"]) == pytest.approx(oracle.ece(rows))
    wanted = [oracle.bin_figures(each) for each in oracle.bins(rows)]
    assert found["bins"] == [pytest.approx(each) for each in wanted]


def test_reliability_of_all_rows_and_of_each_value_is_that_of_its_definition(
    artefact: Artefact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = log_rows(600, seed=2)
    log = write(tmp_path / "log.csv", rows, COLUMNS)
    report = reported(capsys, tmp_path, saved(artefact, tmp_path), log, "--repeats", 0)
    assert report["variants"] == ["base", "plain"]
    for variant in report["variants"]:
        scored = Scored(artefact, variant).rows(rows)
        same_reliability(report["total"]["variants"][variant], scored)
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


def values_of(row: Mapping[str, str], name: str) -> list[str]:
    """The row's values of a field as keys write them."""
    values = row[name].split("|") if name == "likes" else [row[name]]
    escaped = (value.replace("%", "%25").replace("*", "%2A").replace("=", "%3D") for value in values)
    return [value for value in escaped if value]


def test_permutation_importance_is_the_rise_of_the_log_loss_with_exchanged_values(
    artefact: Artefact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = log_rows(120, seed=3)
    log = write(tmp_path / "log.csv", rows, COLUMNS)
    report = reported(capsys, tmp_path, saved(artefact, tmp_path), log, "--repeats", 2)["importance"]
    requests = [row["request"] for row in rows]
    assert (report["rows"], report["requests"], report["repeats"]) == (120, 30, 2)
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
            scored = Scored(artefact, variant)
            wanted = oracle.rise(scored.rows(rows), [scored.rows(each) for each in exchanged], requests)
            found = field["rises"][variant]
            assert (found["logloss"], found["low"], found["high"]) == pytest.approx(wanted, abs=1e-9)
    order = [max(rise["logloss"] for rise in each["rises"].values()) for each in report["fields"]]
    assert order == sorted(order, reverse=True)
    assert report["fields"][0]["rises"]["base"]["logloss"] > 0.0
    likes = next(each for each in report["fields"] if each["field"] == "likes")
    assert likes["rises"]["plain"] == {"logloss": 0.0, "low": 0.0, "high": 0.0}  # a field it does not use


def test_importance_by_weight_is_the_mean_size_of_contributions(
    artefact: Artefact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = log_rows(150, seed=4)
    log = write(tmp_path / "log.csv", rows, COLUMNS)
    report = reported(capsys, tmp_path, saved(artefact, tmp_path), log, "--repeats", 0)["importance"]
    assert report["fields"] == []
    total = sum(float(row["importance"]) for row in rows)
    for bit, variant in enumerate(["base", "plain"]):
        definition, by_key, by_owner = Definition(artefact), Counter[str](), Counter[str]()
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


def test_the_worst_rows_are_those_with_the_largest_log_loss_and_their_keys_add_up(
    artefact: Artefact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = log_rows(200, seed=5)
    log = write(tmp_path / "log.csv", rows, COLUMNS)
    arguments = (saved(artefact, tmp_path), log, "--repeats", 0, "--worst", 7, "--variant", "plain")
    report = reported(capsys, tmp_path, *arguments)
    assert report["variants"] == list(report["worst"]) == list(report["total"]["variants"]) == ["plain"]
    scored = Scored(artefact, "plain").rows(rows)
    order = sorted(range(len(rows)), key=lambda number: -round(scored[number].loss, 12))[:7]
    found = report["worst"]["plain"]
    assert [each["logloss"] for each in found] == pytest.approx([scored[number].loss for number in order])
    for each in found:
        number = each["audit"]["line"] - 2
        row, audit = rows[number], each["audit"]
        assert each["logloss"] == pytest.approx(scored[number].loss)
        assert (each["label"], audit["file"]) == (int(row["click"]), str(log))
        assert each["values"] == {name: row[name] for name in FIELDS}
        assert audit["ctr"] == pytest.approx(scored[number].p)
        keys = [key for field in audit["fields"] for key in field["keys"]]
        assert audit["score"] == pytest.approx(sum(key["contribution"] for key in keys))


def test_periods_are_hours_then_days_and_fields_are_compared_with_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artefact = model(TIMED + LEARNERS["single"], tmp_path)
    for hours, length in ((0.05, 3600), (0.3, 86_400)):
        rows = log_rows(400, seed=6, hours=hours)
        rows[3]["time"] = rows[9]["time"] = ""
        log = write(tmp_path / "log.csv", rows, COLUMNS)
        drift = reported(capsys, tmp_path, saved(artefact, tmp_path), log, "--repeats", 0)["drift"]
        assert (drift["by"], drift["length"], drift["untimed"]) == ("time", length, 2)
        scored, definition = Scored(artefact, "base").rows(rows), Definition(artefact)
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
        counts = {
            name: [
                Counter(value for number in mine for value in values_of(rows[number], name) or ["absent"])
                for _, mine in sorted(periods.items())
            ]
            for name in ("age", "likes", "brand")
        }
        found_fields = {each["field"]: each for each in drift["fields"]}
        for name, each in counts.items():
            wanted = [oracle.psi(each[0], later) for later in each]
            assert found_fields[name]["psi"] == pytest.approx(wanted)
            n, m, values = each[0].total(), each[-1].total(), len({*each[0], *each[-1]})
            assert found_fields[name]["by_chance"] == pytest.approx((values - 1) * (1 / n + 1 / m))
        assert drift["fields"][0]["field"] == "brand"  # the one that was changed


def test_without_times_periods_are_blocks_of_rows_that_grow_with_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnostics, "FIRST_BLOCK", 10)
    monkeypatch.setattr(diagnostics, "MOST_BLOCKS", 4)
    artefact = model(SPEC + LEARNERS["single"], tmp_path)
    rows = log_rows(130, seed=7)
    parts = [
        write(tmp_path / f"{begin}.csv", rows[begin:end], COLUMNS) for begin, end in ((0, 33), (33, 130))
    ]
    drift = reported(capsys, tmp_path, saved(artefact, tmp_path), *parts, "--repeats", 0)["drift"]
    assert (drift["by"], drift["length"], drift["untimed"]) == ("rows", 40, 0)
    assert [each["begin"] for each in drift["periods"]] == [1, 41, 81, 121]
    scored = Scored(artefact, "base").rows(rows)
    for found in drift["periods"]:
        mine = scored[found["begin"] - 1 : found["begin"] + 39]
        assert found["group"]["rows"] == len(mine)
        same_reliability(found["group"]["variants"]["base"], mine)


def test_threads_and_files_change_nothing(
    artefact: Artefact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, file = log_rows(300, seed=8), saved(artefact, tmp_path)
    parts = [
        write(tmp_path / f"{begin}.csv", rows[begin:end], COLUMNS) for begin, end in ((0, 148), (148, 300))
    ]
    one = reported(capsys, tmp_path, file, *parts, "--threads", 1)
    page = (tmp_path / "page.html").read_text()
    assert reported(capsys, tmp_path, file, *parts, "--threads", 3) == one
    assert (tmp_path / "page.html").read_text() == page
    whole = reported(capsys, tmp_path, file, write(tmp_path / "whole.csv", rows, COLUMNS))
    for name in ("total", "slices", "importance"):
        assert flat(whole[name]) == pytest.approx(flat(one[name]))


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """All leaves by path."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    found: dict[str, Any] = {}
    for name, each in pairs:
        found |= flat(each, f"{path}/{name}") if isinstance(each, dict | list) else {f"{path}/{name}": each}
    return found


def test_a_long_log_is_permuted_on_a_sample_of_whole_requests(
    artefact: Artefact, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importance, "MOST_SAMPLED", 200)
    log = write(tmp_path / "log.csv", log_rows(2000, seed=9), COLUMNS)
    found = reported(capsys, tmp_path, saved(artefact, tmp_path), log, "--repeats", 1)["importance"]
    assert 50 <= found["rows"] <= 200
    assert found["rows"] == 4 * found["requests"]
    assert len(found["fields"]) == len(FIELDS)


def test_a_log_of_one_class_or_without_rows_is_reported_as_far_as_it_goes(
    artefact: Artefact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = saved(artefact, tmp_path)
    for rows in ([row | {"click": "0"} for row in log_rows(100, seed=10)], []):
        log = write(tmp_path / "log.csv", rows, COLUMNS)
        report = reported(capsys, tmp_path, file, log, "--repeats", 1)
        own = report["total"]["variants"]["base"]
        assert (own["auc"], own["normalized_entropy"], own["calibration"]) == (None, None, None)
        assert [field["values"] for field in report["slices"]] == [[] for _ in report["slices"]]
        assert (report["total"]["rows"], report["importance"]["rows"]) == (len(rows), len(rows))
        Page((tmp_path / "page.html").read_text())
        assert run(["evaluate", str(file), str(log), "--report", str(tmp_path / "page.svg")]) == 0


def test_events_are_reported_on_as_the_rows_that_they_are_joined_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random, impressions, clicks = (
        np.random.default_rng(3),
        tmp_path / "impressions.jsonl",
        tmp_path / "clicks.jsonl",
    )
    shown, clicked = [], []
    for number in range(200):
        ts = FIRST + number * 1800
        items = [{"id": f"i{item}", "features": {"price": int(random.integers(1, 9))}} for item in range(4)]
        device = str(random.choice(["phone", "tablet"]))
        request = {"request_id": f"r{number}", "ts": ts, "cookie": "u", "context": {"device": device}}
        shown.append(json.dumps(request | {"items": items}))
        if random.random() < 0.6:
            clicked.append(json.dumps({"request_id": f"r{number}", "ts": ts + 5, "item": f"i{number % 3}"}))
    impressions.write_text("\n".join(shown) + "\n")
    clicks.write_text("\n".join(clicked) + "\n")
    spec = tmp_path / "hotels.toml"
    spec.write_text(
        '[model]\nname = "hotels"\n[input]\nlabel = "label"\ntimestamp = "ts"\n[fields]\ndevice = {}\n'
        'id = { side = "item" }\nprice = { side = "item", kind = "number", bucket = "log" }\n[learner]\nalpha = 0.2\n'
    )
    saving = ["--save", str(tmp_path / "model.arrow")]
    assert run(["train", str(spec), str(impressions), str(clicks), *saving]) == 0
    report = reported(capsys, tmp_path, tmp_path / "model.arrow", impressions, clicks)
    by = {each["field"]: each["by"] for each in report["importance"]["fields"]}
    assert by == {"device": "request", "id": "row", "price": "row"}
    assert (report["total"]["rows"], report["importance"]["requests"]) == (800, 200)
    assert report["importance"]["fields"][0]["field"] == "id"  # which alone decides the click
    assert [each["group"]["rows"] for each in report["drift"]["periods"]] == [192, 192, 192, 192, 32]
    assert {each["values"]["id"] for each in report["worst"]["base"]} <= {"i0", "i1", "i2"}


def test_rows_of_weight_0_change_no_mean_and_make_no_importance(
    artefact: Artefact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, rows = saved(artefact, tmp_path), log_rows(200, seed=11)
    for row in rows[100:]:
        row["importance"] = "0"
    all_rows = reported(capsys, tmp_path, file, write(tmp_path / "log.csv", rows, COLUMNS), "--repeats", 0)
    half = reported(capsys, tmp_path, file, write(tmp_path / "half.csv", rows[:100], COLUMNS), "--repeats", 0)
    for variant in ("base", "plain"):
        found, wanted = (each["total"]["variants"][variant] for each in (all_rows, half))
        for figure in ("logloss", "auc", "calibration", "mean_prediction"):
            assert found[figure] == pytest.approx(wanted[figure])
    none = write(tmp_path / "none.csv", [row | {"importance": "0"} for row in rows], COLUMNS)
    report = reported(capsys, tmp_path, file, none)
    assert report["importance"]["fields"] == []
    assert report["total"]["variants"]["base"]["bins"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--slice", "brands"], "--slice 'brands': no such field; fields: age, likes"),
        (["--slice", "price"], "--slice 'price' is a real number and has one key for all its values"),
        (["--variant", "other"], "no variant 'other'; the model has: base, plain"),
    ],
)
def test_what_cannot_be_reported_is_said_before_a_row_is_read(
    artefact: Artefact, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    log = write(tmp_path / "log.csv", log_rows(20, seed=12), COLUMNS)
    page = tmp_path / "page.html"
    said = refused(capsys, "evaluate", saved(artefact, tmp_path), log, "--report", page, *arguments)
    assert message in said
    assert "scoring" not in said and not page.exists()


def test_flags_of_the_report_need_it_and_it_replaces_no_input(
    artefact: Artefact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, log = saved(artefact, tmp_path), write(tmp_path / "log.csv", log_rows(20, seed=13), COLUMNS)
    assert "--slice belongs to --report FILE" in refused(capsys, "evaluate", file, log, "--slice", "age")
    assert "is an input of this run" in refused(capsys, "evaluate", file, log, "--report", log)
    assert "cannot write" in refused(capsys, "evaluate", file, log, "--report", "/nowhere/page.html")


def test_a_named_slice_counts_values_beyond_the_first_ones_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnostics, "VALUES", 2)
    monkeypatch.setattr(diagnostics, "_ABSENT", 3)
    artefact, rows = model(TIMED + LEARNERS["single"], tmp_path), log_rows(400, seed=14)
    log = write(tmp_path / "log.csv", rows, COLUMNS)
    arguments = (saved(artefact, tmp_path), log, "--repeats", 0, "--slice", "place", "--slice", "brand")
    report = reported(capsys, tmp_path, *arguments)
    assert [field["field"] for field in report["slices"]] == ["place", "brand"]
    found = {each["value"]: each["group"]["rows"] for each in report["slices"][0]["values"]}
    assert found == {"1": 100, "2": 100, None: 200}


def test_the_page_is_well_formed_says_everything_in_words_and_needs_nothing_else(
    artefact: Artefact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = log_rows(400, seed=15)
    rows[0]["brand"] = "<script>alert(1)</script>"
    log = write(tmp_path / "log.csv", rows, COLUMNS)
    report = reported(capsys, tmp_path, saved(artefact, tmp_path), log, "--repeats", 1)
    text = (tmp_path / "page.html").read_text()
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


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_of_a_rate_is_the_wilson_interval(counts: tuple[int, int]) -> None:
    clicks, rows = counts
    low, high = wilson(clicks / rows, rows)
    assert (low, high) == pytest.approx(oracle.wilson(clicks, rows), abs=1e-12)
    assert 0.0 <= low <= clicks / rows <= high <= 1.0


COUNTS = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=1, max_size=20)


@given(COUNTS)
def test_the_stability_index_is_that_of_its_definition_and_0_for_equal_distributions(
    counts: list[tuple[int, int]],
) -> None:
    first, later = (np.array(each, float) for each in zip(*counts, strict=True))
    there = [number for number, pair in enumerate(counts) if sum(pair)]
    if there:
        named = [{number: int(each[number]) for number in there} for each in (first, later)]
        assert stability_index(first, later) == pytest.approx(oracle.psi(*named), abs=1e-12)
    assert stability_index(first, first) == 0.0
    assert stability_index(first, later) >= 0.0
    assert expected_index(first, later) >= 0.0
