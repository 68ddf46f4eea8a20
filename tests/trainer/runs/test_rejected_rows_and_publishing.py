"""Labels written as -1 and +1, and models that are not published because too many of their rows were rejected."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from ftrie.cli import run
from model_store.store import Store

SPEC = '[model]\nname = "m"\n[input]\nlabel = "click"\n[fields]\nsite = {}\n'


@pytest.fixture
def spec(tmp_path: Path) -> str:
    (tmp_path / "m.toml").write_text(SPEC)
    return str(tmp_path / "m.toml")


def write_log(path: Path, labels: list[str]) -> str:
    """A log in the format that the name says, one row a label."""
    sites = [f"s{row % 5}" for row in range(len(labels))]
    rows = list(zip(labels, sites, strict=True))
    if path.suffix == ".parquet":
        numbers = pa.array([int(label) for label in labels], pa.int8())
        pyarrow.parquet.write_table(pa.table({"click": numbers, "site": sites}), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(f'{{"click": {label}, "site": "{site}"}}\n' for label, site in rows))
    else:
        comma = "\t" if path.suffix == ".tsv" else ","
        path.write_text("".join(comma.join(row) + "\n" for row in [("click", "site"), *rows]))
    return str(path)


@pytest.mark.parametrize("name", ["log.csv", "log.tsv", "log.jsonl", "log.parquet"])
def test_labels_of_minus_one_and_one_are_learned_and_told(name: str, spec: str, tmp_path, capsys) -> None:
    log = write_log(tmp_path / name, ["-1"] * 180 + ["1"] * 20)
    assert run(["train", spec, log]) == 0
    out = capsys.readouterr().out
    assert "200 rows" in out and "0 rejected" in out
    assert "labels are read as -1/+1: -1 is no click" in out
    assert run(["train", spec, log, "--json"]) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert (answer["labels"], answer["warnings"], err) == ({"1": 20, "0": 0, "-1": 180}, [], "")
    assert answer["variants"]["base"]["normalized_entropy"] > 0.5  # of a click rate of 10 %


def test_a_sign_before_the_one_is_a_click_and_a_log_that_mixes_0_and_minus_one_is_warned_of(
    spec: str, tmp_path: Path, capsys
) -> None:
    log = write_log(tmp_path / "log.csv", ["0"] * 50 + ["-1", "-1.0"] * 20 + ["1", "+1", "+1.0"])
    assert run(["train", spec, log, "--json"]) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert answer["labels"] == {"1": 3, "0": 50, "-1": 40}
    assert json.loads(err)["warning"] == answer["warnings"][0]
    assert "0 in 50 rows and -1 in 40: both are read as no click" in answer["warnings"][0]


def test_init_takes_a_column_of_minus_one_and_one_for_the_label(tmp_path: Path, capsys) -> None:
    assert run(["init", write_log(tmp_path / "log.csv", ["-1", "1"] * 20), "--json"]) == 0
    assert 'label = "click"' in json.loads(capsys.readouterr().out)["spec"]


@pytest.mark.parametrize("flags", [["--publish"], ["--activate", "--publish-every", "10"]])
def test_a_model_most_of_whose_rows_were_rejected_is_not_published(
    flags: list[str], spec: str, tmp_path: Path, store: Store, store_url: str, capsys
) -> None:
    log, versions = write_log(tmp_path / "log.csv", ["no"] * 180 + ["1"] * 20), store.model("m")
    command = ["train", spec, log, "--store", store_url, *flags]
    assert run(command) == 3
    err = capsys.readouterr().err
    assert "180 rows were rejected, 90 % of those read: nothing is published" in err
    assert f"{log}:2: click: got 'no', expected 1, 0, -1, true or false" in err
    assert "--rejects FILE" in err and "--force" in err and versions.versions() == []
    assert run([*command, "--force"]) == 0 and versions.versions()
    assert (versions.active() is not None) == ("--activate" in flags)
    tenth = write_log(tmp_path / "log.csv", ["0", "0", "0", "1", "no", "0", "0", "0", "1", "0"] * 10)
    before = len(versions.versions())
    assert run(["train", spec, tenth, "--store", store_url, *flags]) == 0  # a tenth may be rejected
    assert len(versions.versions()) > before


@pytest.mark.parametrize(("labels", "rejected"), [(["no"] * 30, 30), ([], 0)], ids=["rejected", "empty"])
def test_a_log_without_a_good_row_is_a_failure_that_says_why(
    labels, rejected, spec, tmp_path, capsys
) -> None:
    log, model = write_log(tmp_path / "log.csv", labels), tmp_path / "m.arrow"
    assert run(["train", spec, write_log(tmp_path / "good.csv", ["1", "0"] * 20), "--save", str(model)]) == 0
    why = f"{log}:2: click: got 'no', expected" if labels else ""
    for command in (["train", spec], ["evaluate", str(model)], ["tune", spec, "--try", "alpha=0.1,1"]):
        capsys.readouterr()
        assert run([*command[:2], log, *command[2:]]) == 3
        err = capsys.readouterr().err
        assert f"({rejected} rejected" in err and (why in err or command[0] == "tune")


@pytest.mark.parametrize(("label", "each"), [("0", "no row is a click"), ("1", "every row is a click")])
def test_a_log_of_one_label_is_a_failure_unless_forced_or_a_model_goes_on(
    label, each, spec, tmp_path, capsys
) -> None:
    log, model = write_log(tmp_path / "log.csv", [label] * 30), tmp_path / "m.arrow"
    assert run(["train", spec, log, "--save", str(model)]) == 3 and model.exists()
    assert f"{each} by column 'click', of 30: nothing can be learned" in capsys.readouterr().err
    assert run(["train", spec, log, "--force"]) == 0
    assert run(["train", spec, log, "--init-from", str(model)]) == 0
    assert each in capsys.readouterr().err


def test_tune_warns_where_most_rows_were_rejected(spec: str, tmp_path: Path, capsys) -> None:
    log = write_log(tmp_path / "log.csv", ["no"] * 180 + ["1", "0"] * 10)
    assert run(["tune", spec, log, "--try", "alpha=0.1,1", "--json"]) == 0
    out, err = capsys.readouterr()
    warning, *_ = json.loads(out)["warnings"]
    assert (
        warning.startswith("180 rows were rejected, 90 %")
        and json.loads(err.splitlines()[0])["warning"] == warning
    )


def test_rows_that_are_not_drawn_hide_no_rejected_ones(tmp_path, store: Store, store_url, capsys) -> None:
    spec = tmp_path / "m.toml"
    spec.write_text(SPEC + "[learner]\nsubsample = { unclicked = 0.05 }\n")
    log = write_log(tmp_path / "log.csv", ["no"] * 1900 + ["1"] * 20)
    assert run(["train", str(spec), log, "--store", store_url, "--publish"]) == 3
    assert "nothing is published" in capsys.readouterr().err
    mostly_good = ["0"] * 1900 + ["1"] * 20
    assert run(["train", str(spec), write_log(tmp_path / "b.csv", mostly_good)]) == 0
