"""ftrie.train equals `ftrie train`; the run's report, metrics, plots and page."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

import ftrie
from model_store.errors import InputError, UsageError
from tests.ftrie.conftest import Ask

ROWS = 1_000
SPEC = """
[model]
name = "ads"
[input]
label = "click"
timestamp = "ts"
[fields]
age = { side = "user" }
ad = { side = "item" }
[[crosses]]
fields = ["age", "ad"]
[variants]
base = { share = 0.5 }
plain = { share = 0.5, without = ["age*ad"] }
[learner]
l1 = 0.1
[calibration]
kind = "isotonic"
"""


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    random = np.random.default_rng(5)
    age, ad = random.integers(0, 4, ROWS), random.integers(0, 6, ROWS)
    click = random.random(ROWS) < 0.1 + 0.4 * (age == ad)
    return pa.table({"click": click.astype(int), "ts": 1_700_000_000 + np.arange(ROWS), "age": age, "ad": ad})


@pytest.fixture(scope="module")
def run(rows: pa.Table) -> ftrie.Run:
    """A run of which each window and each slice is told."""
    return ftrie.train(SPEC, rows, window=250, slices=["age"], progress=False)


def test_the_model_and_report_of_the_command(rows: pa.Table, tmp_path: Path, ask: Ask) -> None:
    log, spec, saved = tmp_path / "rows.csv", tmp_path / "ads.toml", tmp_path / "m.arrow"
    pa.csv.write_csv(rows, log)
    spec.write_text(SPEC)
    printed = ask("train", spec, log, "--save", saved, "--passes", "2")
    run = ftrie.train(spec, rows, passes=2, progress=False)
    assert run.model.artefact.to_bytes() == saved.read_bytes()
    for name in ("rows", "rejected", "keys", "nonzero", "variants", "calibration", "labels"):
        assert printed[name] == json.loads(json.dumps(run.report.as_dict()))[name]


def test_metrics_are_a_line_per_window_and_variant(run: ftrie.Run) -> None:
    metrics = run.metrics
    assert metrics.num_rows == 2 * ROWS / 250
    assert metrics["rows"].to_pylist()[-1] == ROWS and metrics["window_rows"].unique().to_pylist() == [250]
    last = {each["variant"]: each for each in metrics.to_pylist()[-2:]}
    for name, figures in run.report.variants.items():
        assert last[name]["total_logloss"] == figures.logloss and last[name]["total_auc"] == figures.auc
    assert {each.value for each in run.report.slices["age"]} == {"0", "1", "2", "3"}
    assert "log-loss" in run._repr_html_() and repr(run).startswith("Run('ads': 1,000 rows")


def test_a_run_starts_from_a_model(rows: pa.Table) -> None:
    first = ftrie.train(SPEC, rows.slice(0, 700), progress=False)
    second = ftrie.train(SPEC, rows.slice(700), initial=first.model, progress=False)
    fresh = ftrie.train(SPEC, rows.slice(700), progress=False)
    loss, without = (run.report.variants["base"].logloss for run in (second, fresh))
    assert loss is not None and without is not None and loss < without


def test_pages_and_pictures(run: ftrie.Run, tmp_path: Path) -> None:
    run.save_report(tmp_path / "run.html")
    run.save_report(tmp_path / "run.svg")
    assert "How ads learned" in (tmp_path / "run.html").read_text()
    assert (tmp_path / "run.svg").read_text().startswith("<svg")
    pytest.importorskip("altair")
    chart = run.plot_learning().to_dict()
    drawn = chart["datasets"]["rows"]
    metrics = run.metrics
    assert [row["mean"] for row in drawn] == metrics["total_logloss"].to_pylist()
    assert {row["series"] for row in drawn} == {"base", "plain"}
    assert "Progressive auc" in run.plot_learning("auc").to_dict()["title"]
    assert run.plot_calibration().to_dict()["title"] == "Calibration"
    assert len({row["name"] for row in run.plot_slices("age").to_dict()["datasets"]["rows"]}) >= 4
    with pytest.raises(UsageError, match="no figure 'f1' in the metrics; expected one of logloss, auc"):
        run.plot_learning("f1")


def test_plots_without_altair_name_the_extra(run: ftrie.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(UsageError, match=r"pip install 'ftrie\[notebook\]'"):
        run.plot_learning()


def test_a_warning_points_at_the_caller(rows: pa.Table) -> None:
    spec = ftrie.Spec(SPEC).replace(fields={"size": {"optional": True}})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ftrie.train(spec, rows, progress=False)
    found = [each for each in caught if each.category is ftrie.FtrieWarning]
    assert [str(each.message).partition(";")[0] for each in found] == [
        "no column was found for the optional fields size"
    ]
    assert found[0].filename == __file__


def test_a_log_that_ends_early_is_an_error(rows: pa.Table) -> None:
    def failing() -> object:
        yield rows
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        ftrie.train(SPEC, failing(), progress=False)
    with pytest.raises(InputError, match="no rows and no columns"):
        ftrie.train(SPEC, iter([]), progress=False)


def test_import_is_lazy_and_complete() -> None:
    code = (
        "import sys, ftrie; heavy = {'numba', 'pyarrow', 'grpc', 'numpy', 'typer'} & {*sys.modules}; "
        "assert not heavy, heavy; [getattr(ftrie, name) for name in ftrie.__all__]; "
        "assert set(ftrie.__all__) <= set(dir(ftrie))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="has no attribute 'Trian'; it has: "):
        ftrie.Trian  # noqa: B018


def test_rows_without_a_value_are_a_slice() -> None:
    data = {"y": [1, 0, 1, 0, 0], "f": ["a", None, "a", None, ""]}
    run = ftrie.train({"model": {"name": "t"}, "input": {"label": "y"}}, data, slices=["f"], progress=False)
    assert {each.value: each.rows for each in run.report.slices["f"]} == {"a": 2, "": 3}
