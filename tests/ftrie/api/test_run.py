"""ftrie.train equals `ftrie train`; the run's report, metrics, plots and page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

import ftrie
from model_store.errors import InputError, UsageError
from tests.ftrie.api.logs import ALL_KINDS, all_kinds_rows, bare
from tests.ftrie.conftest import Ask

ROWS = 1_000


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    return all_kinds_rows(ROWS)


@pytest.fixture(scope="module")
def run(rows: pa.Table) -> ftrie.Run:
    """A run of which each window and each slice is told."""
    return ftrie.train(ALL_KINDS, rows, window=250, slices=["age"], progress=False)


def test_the_model_and_report_of_the_command(rows: pa.Table, tmp_path: Path, ask: Ask) -> None:
    log, spec, saved = tmp_path / "rows.parquet", tmp_path / "kinds.toml", tmp_path / "m.arrow"
    pa.parquet.write_table(rows, log)
    ALL_KINDS.save(spec)
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
    assert "log-loss" in run._repr_html_() and repr(run).startswith("Run('kinds': 1,000 rows")


def test_pages_and_pictures(run: ftrie.Run, tmp_path: Path) -> None:
    run.save_report(tmp_path / "run.html")
    run.save_report(tmp_path / "run.svg")
    assert "How kinds learned" in (tmp_path / "run.html").read_text()
    assert (tmp_path / "run.svg").read_text().startswith("<svg")
    pytest.importorskip("altair")
    curve = run.plot_learning().to_dict()
    drawn = curve["datasets"]["rows"]
    assert "Progressive log-loss" in curve["title"]
    assert [row["mean"] for row in drawn] == run.metrics["total_logloss"].to_pylist()
    assert {row["series"] for row in drawn} == {"base", "plain"}
    assert "Progressive AUC" in run.plot_learning("auc").to_dict()["title"]
    assert run.plot_calibration().to_dict()["title"] == "Calibration"
    assert len({row["name"] for row in run.plot_slices("age").to_dict()["datasets"]["rows"]}) >= 4
    with pytest.raises(UsageError, match="no figure 'f1' in the metrics; expected one of logloss, auc"):
        run.plot_learning("f1")


def test_plots_without_altair_name_the_extra_and_there_is_no_other_figure(
    run: ftrie.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(UsageError, match=r"pip install 'ftrie\[notebook\]'"):
        run.plot_learning()


def test_a_warning_points_at_the_caller_and_a_run_starts_from_a_model(rows: pa.Table) -> None:
    spec = ALL_KINDS.merge(fields={"size": {"optional": True}})
    with pytest.warns(ftrie.FtrieWarning, match="no column was found for the optional fields size") as caught:
        ftrie.train(spec, rows, progress=False)
    assert [each.filename for each in caught if each.category is ftrie.FtrieWarning] == [__file__]
    first = ftrie.train(ALL_KINDS, rows.slice(0, 700), progress=False).model
    second = ftrie.train(first.spec, rows.slice(700), initial=first, progress=False)
    fresh = ftrie.train(first.spec, rows.slice(700), progress=False)
    loss, without = (run.report.variants["base"].logloss for run in (second, fresh))
    assert loss is not None and without is not None and loss < without


def test_a_log_that_ends_early_is_an_error(rows: pa.Table) -> None:
    def failing() -> object:
        yield rows
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        ftrie.train(ALL_KINDS, failing(), progress=False)
    with pytest.raises(InputError, match="no rows and no columns"):
        ftrie.train(ALL_KINDS, iter([]), progress=False)


def test_import_is_lazy_and_complete() -> None:
    code = (
        "import sys, ftrie; heavy = {'numba', 'pyarrow', 'grpc', 'numpy', 'typer'} & {*sys.modules}; "
        "assert not heavy, heavy; [getattr(ftrie, name) for name in ftrie.__all__]; "
        "assert ftrie.__all__ == dir(ftrie)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="has no attribute 'Trian'; it has: .*; did you mean train?"):
        ftrie.Trian  # noqa: B018


def test_rows_without_a_value_are_a_slice() -> None:
    data = {"y": [1, 0, 1, 0, 0], "f": ["a", None, "a", None, ""]}
    run = ftrie.train(bare(), data, slices=["f"], progress=False)
    assert {each.value: each.rows for each in run.report.slices["f"]} == {"a": 2, "": 3}
