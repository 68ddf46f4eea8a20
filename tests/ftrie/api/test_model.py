"""ftrie.Model: predictions, weights, explanations, evaluations, differences, files; plain Python is the oracle."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ftrie
from ftrie.api.output import in_python
from ftrie.api.weights import heaviest
from ftrie.draw.notebook import show_tables
from model_store.errors import ArtefactError, SpecError, UsageError
from tests.ftrie.api.logs import ALL_KINDS, all_kinds_rows, bare
from tests.ftrie.conftest import Ask
from tests.matrix import slow_except
from trainer.examples.open_log import Log
from trainer.formats.rejects import RejectLog
from trainer.formats.tables import table_of
from trainer.runs.evaluate import PredictionFile, evaluate

ROWS = 1_000


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    return all_kinds_rows(ROWS)


@pytest.fixture(scope="module")
def model(rows: pa.Table) -> ftrie.Model:
    return ftrie.train(ALL_KINDS, rows, progress=False).model


def features_of(rows: pa.Table) -> pa.Table:
    return rows.drop_columns(["click", "request", "ts"])


def test_predict_is_what_evaluate_scores(model: ftrie.Model, rows: pa.Table, tmp_path: Path) -> None:
    found = model.predict(rows, score=True, uncertainty=True)
    assert found.num_rows == ROWS
    for number, name in enumerate(model.variants):
        path = tmp_path / f"{name}.csv"
        with RejectLog() as rejects, PredictionFile(path, number, ALL_KINDS.model_spec.input) as file:
            evaluate(model.artefact, Log((), table=table_of(rows)), rejects=rejects, predictions=file)
        written = pa.csv.read_csv(path)
        columns = {"ctr": name, "score": f"{name}.score", "uncertainty": f"{name}.uncertainty"}
        for kind, column in columns.items():
            assert found[column].to_pylist() == written[kind].to_pylist()


@pytest.mark.parametrize("algorithm", slow_except(["adpredictor"], ["adpredictor", "ogd"]))
def test_other_learners(algorithm: str, rows: pa.Table) -> None:
    learner = {"algorithm": algorithm, "values": None, "l1": None}
    spec = ALL_KINDS.merge(learner=learner, calibration=None, variants={"plain": {"alpha": None}})
    model = ftrie.train(spec, rows, progress=False).model
    found = model.predict(rows.slice(0, 30), uncertainty=True).to_pylist()
    for line, row in zip(found, features_of(rows).slice(0, 30).to_pylist(), strict=True):
        for name in model.variants:
            explained = model.explain(row, name)
            assert line[name] == pytest.approx(explained.ctr, abs=1e-12)
            assert line[f"{name}.uncertainty"] == pytest.approx(explained.audit.uncertainty, abs=1e-12)


def test_predict_needs_no_labels_nor_identities(model: ftrie.Model, rows: pa.Table) -> None:
    features, found = features_of(rows), model.predict(rows)
    assert model.predict(features) == found
    assert model.predict(features.to_pylist()[:50]) == model.predict(rows.slice(0, 50))
    assert model.predict(iter([features.slice(0, 7), features.slice(7)])) == found


def test_the_score_is_the_sum_of_the_weights(model: ftrie.Model, rows: pa.Table) -> None:
    table = model.weights().to_pylist()
    weights = {name: {line["key"]: line[f"weight.{name}"] for line in table} for name in model.variants}
    scores = model.predict(rows.slice(0, 20), score=True)
    for number, row in enumerate(features_of(rows).slice(0, 20).to_pylist()):
        for name in model.variants:
            explained = model.explain(row, name)
            lines = explained.table.to_pylist()
            expected = math.fsum((weights[name].get(line["key"]) or 0.0) * line["x"] for line in lines)
            assert scores[f"{name}.score"][number].as_py() == pytest.approx(expected, abs=1e-12)
            assert explained.score == pytest.approx(expected, abs=1e-12)
            assert explained.ctr == pytest.approx(scores[name][number].as_py(), abs=1e-12)


def test_a_bad_value_is_null_and_a_warning_and_a_missing_column_is_named(
    model: ftrie.Model, rows: pa.Table
) -> None:
    bad = features_of(rows).slice(0, 3).to_pylist()
    bad = [{**row, "price": text} for row, text in zip(bad, ["1.5", "much", "2"], strict=True)]
    with pytest.warns(ftrie.FtrieWarning, match=r"1 row could not be scored: table:2: price: got 'much'"):
        found = model.predict(bad)
    assert [value is None for value in found["base"].to_pylist()] == [False, True, False]
    with pytest.raises(SpecError, match=r"fields\.age: no column 'age' in the log; it has: ad, price, tags"):
        model.predict(features_of(rows).drop_columns(["age"]))
    with pytest.raises(SpecError, match="no variant 'none'"):
        model.explain(features_of(rows).to_pylist()[0], "none")


def test_weights_name_fields_and_users_of_keys(model: ftrie.Model) -> None:
    lines = {line["key"]: line for line in model.weights().to_pylist()}
    assert list(lines) == sorted(lines)
    assert lines["bias"]["field"] == "bias" and lines["bias"]["variants"] == "base, plain"
    crossed = next(line for key, line in lines.items() if key.startswith("age*ad="))
    assert crossed["field"] == "age*ad" and crossed["variants"] == "base" and crossed["weight.plain"] is None
    assert model.keys == len(lines)
    shared = ftrie.train(bare(), {"y": [1, 0] * 20, "f": ["ä", "b"] * 20}, progress=False).model.weights()
    assert shared.column_names == ["key", "field", "weight", "learning_rate", "variants"]
    assert [key for key in shared["key"].to_pylist() if key.startswith("f=")] == ["f=b", "f=ä"]


def test_errors_name_arguments_as_python_has_them(model: ftrie.Model, rows: pa.Table) -> None:
    for asked, said in (
        ({"without": ["agee"]}, r"^without agee: no such field or cross; .*; did you mean age\?$"),
        ({"slices": ["agee"]}, r"^slices 'agee': no such field; .*; did you mean age\?$"),
    ):
        with pytest.raises(SpecError, match=said):
            model.evaluate(rows, progress=False, **asked)
    assert in_python("give --no-header, or `ftrie init a.csv --no-header`") == (
        "give no_header, or `ftrie init a.csv --no-header`"
    )


def test_a_prediction_has_the_type_of_what_it_is_of(model: ftrie.Model, rows: pa.Table) -> None:
    pandas, features = pytest.importorskip("pandas"), features_of(rows).slice(0, 20)
    frame = features.to_pandas().set_index(pandas.Index(range(100, 120)))
    found = model.predict(frame)
    assert isinstance(found, pandas.DataFrame) and list(found.index) == list(frame.index)
    assert found.column("base").equals(found["base"])
    assert found["base"].tolist() == model.predict(features)["base"].to_pylist()
    polars = pytest.importorskip("polars")
    assert isinstance(model.predict(polars.from_arrow(features)), polars.DataFrame)


def test_a_notebook_shows_the_weights_as_a_table(model: ftrie.Model) -> None:
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell
    try:
        formatter = shell.instance().display_formatter
        show_tables()
        assert "<table><thead>" in formatter.format(model.weights())[0]["text/html"]
    finally:
        shell.clear_instance()


def test_evaluate_judges_variants_and_requests(model: ftrie.Model, rows: pa.Table, tmp_path: Path) -> None:
    found = model.evaluate(rows, diagnose=True, progress=False)
    assert [line["variant"] for line in found.table.to_pylist()] == ["base", "plain"]
    assert {"logloss", "auc", "mrr", "ndcg"} <= {*found.table.column_names}
    found.save_report(tmp_path / "e.html")
    assert "How far to trust kinds" in (tmp_path / "e.html").read_text()
    assert "1,000 rows" in repr(found) and "<table>" in found._repr_html_()
    with pytest.raises(UsageError, match="diagnose=True"):
        model.evaluate(rows, progress=False).save_report(tmp_path / "e.html")


def test_diff_lists_the_largest_changes_first(model: ftrie.Model, rows: pa.Table) -> None:
    def weights(of: ftrie.Model) -> dict[str, float]:
        lines = of.weights().to_pylist()
        return {line["key"]: line["weight.base"] for line in lines if line["weight.base"] is not None}

    older = ftrie.train(ALL_KINDS, rows.slice(0, 40), progress=False).model
    found, before, after = model.diff(older), weights(older), weights(model)
    assert found.added == len(after.keys() - before.keys()) > 0
    assert found.removed == len(before.keys() - after.keys())
    assert found.changed == sum(before[key] != after[key] for key in before.keys() & after.keys())
    lines = found.table.to_pylist()
    pairs = {key: (before.get(key), after.get(key)) for key in before.keys() | after.keys()}
    changed = {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
    assert {line["key"]: (line["before"], line["after"]) for line in lines} == changed
    changes = [abs(line["change"]) for line in lines]
    assert changes == sorted(changes, reverse=True) and found.largest == pytest.approx(changes[0])
    assert model.diff(model).table.num_rows == 0
    assert "keys" in str(found) and "<table>" in found._repr_html_()
    with pytest.raises(UsageError, match="no variant 'x' in both models"):
        model.diff(older, "x")


def test_files_and_the_json_form(model: ftrie.Model, tmp_path: Path) -> None:
    model.save(tmp_path / "m.arrow")
    assert ftrie.load(tmp_path / "m.arrow") == model
    written = {entry["key"] for entry in json.loads(model.to_json("plain"))["list"]}
    assert written <= {*model.weights()["key"].to_pylist()}
    (tmp_path / "broken.arrow").write_bytes(b"ARROW1 no more")
    with pytest.raises(ArtefactError, match=r"broken\.arrow"):
        ftrie.load(tmp_path / "broken.arrow")
    with pytest.raises(
        UsageError, match="expected NAME, NAME:VERSION with a whole number, or a file ending in .arrow"
    ):
        ftrie.load("m.json:x")


def test_what_notebooks_show_is_escaped() -> None:
    script = pa.table({"y": [1, 0] * 30, "f": ["<script>alert(1)</script>", "b"] * 30})
    run, other = (ftrie.train(bare(), data, progress=False) for data in (script, script.slice(0, 10)))
    explained, changes = run.model.explain({"f": "<script>x"}), run.model.diff(other.model)
    shown: list[Any] = [run, run.model, run.spec, explained, changes]
    for each in shown:
        assert "<script" not in each._repr_html_()


def test_plots(model: ftrie.Model, rows: pa.Table) -> None:
    pytest.importorskip("altair")
    drawn = model.plot_weights(5).to_dict()["datasets"]["rows"]
    keys, weights = heaviest(model.artefact, 0, 5)
    assert [(row["name"], row["value"]) for row in drawn] == list(zip(keys, weights, strict=True))
    with pytest.raises(UsageError, match="no variant 'z'"):
        model.plot_weights(variant="z")
    found = model.evaluate(rows, slices=["age"], progress=False)
    reliability = found.report.report
    assert reliability is not None
    bins = found.plot_calibration().to_dict()["datasets"]["rows"]
    assert list(dict.fromkeys(row["series"] for row in bins)) == ["base", "plain"]
    slices = found.plot_slices("age").to_dict()["datasets"]["rows"]
    values = {row["name"]: row["value"] for row in slices if row["series"] == "base"}
    (sliced,) = reliability.slices
    assert values == {each.value: each.group.variants["base"].calibration for each in sliced.values}
    with pytest.raises(UsageError, match="no slices by 'ad'; the evaluation has: age"):
        found.plot_slices("ad")
    with pytest.raises(UsageError, match=r"plot_calibration needs evaluate\(\.\.\., diagnose=True\)"):
        model.evaluate(rows, progress=False).plot_calibration()


def test_histories_and_lists_need_their_columns() -> None:
    number = {"kind": "number", "side": "item"}
    fields = {"price": number, "rank": {"list": "rank", "of": "price", **number}}
    data = {"y": [1, 0, 0, 1], "r": ["a", "a", "b", "b"], "price": [2.0, 1.0, 5.0, 7.0]}
    model = ftrie.train(bare(fields=fields, request="r"), data, progress=False).model
    with pytest.raises(SpecError, match=r"input\.request: no column 'r'"):
        model.predict({"price": [1.0]})
    assert model.predict({name: data[name] for name in ("r", "price")}) == model.predict(data)
    assert np.isfinite(model.predict(data)["base"].to_numpy()).all()


def test_the_heaviest_keys_are_those_of_a_full_sort(model: ftrie.Model) -> None:
    weights = model.artefact.weights_of(1)
    for count in (0, 1, 7, model.keys, model.keys + 1):
        keys, found = heaviest(model.artefact, 1, count)
        order = np.argsort(-np.abs(weights), kind="stable")[:count]
        assert found == weights[order].tolist()
        assert keys == [model.artefact.key(int(row)).decode() for row in order]


def test_a_prediction_file_has_the_ids_of_its_rows(tmp_path: Path, ask: Ask) -> None:
    log, model, out = tmp_path / "log.csv", tmp_path / "m.arrow", tmp_path / "out.csv"
    log.write_text("click,query,ad,when,age\n1,q1,a,5,x\n0,q1,b,5,y\n0,q2,,6,x\n")
    spec = bare("click", {"age": {}}, request="query", item="ad", timestamp="when")
    ftrie.train(spec, log, progress=False).model.save(model)
    ask("evaluate", model, log, "--predictions", out)
    lines = pa.csv.read_csv(out, convert_options=pa.csv.ConvertOptions(strings_can_be_null=False)).to_pylist()
    assert [(line["line"], line["request"], line["item"], line["timestamp"]) for line in lines] == [
        (2, "q1", "a", 5),
        (3, "q1", "b", 5),
        (4, "q2", "", 6),
    ]
    assert list(lines[0])[:6] == ["file", "line", "request", "item", "timestamp", "label"]
