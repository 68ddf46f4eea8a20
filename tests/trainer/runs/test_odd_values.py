"""One odd row costs that row: lists, truth values and enormous numbers where a number or a label should stand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from model_store.spec.spec import parse_spec
from trainer.examples.open_log import Log
from trainer.logs.rejects import RejectLog
from trainer.runs.train import Run, train

SPEC = parse_spec(
    '[model]\nname = "odd"\n[input]\nlabel = "y"\nweight = "w"\n'
    '[fields]\nreal = { kind = "number" }\nsize = { kind = "number", bucket = "log" }\n'
)
ROW: dict[str, Any] = {"y": 1, "w": 1, "real": 2.5, "size": 7}


def run_on(path: Path, rows: list[dict[str, Any]]) -> Run:
    path.write_text("".join(json.dumps(ROW | row) + "\n" for row in rows))
    with RejectLog(path.with_suffix(".rejects")) as rejects:
        return train(SPEC, Log([str(path)]), rejects=rejects)


@pytest.mark.parametrize("column", list(ROW))
@pytest.mark.parametrize("others", [{}, {"y": "0"}], ids=["typed", "text"])
def test_a_list_in_a_column_of_scalars_is_a_bad_row(
    tmp_path: Path, column: str, others: dict[str, Any]
) -> None:
    run = run_on(tmp_path / "log.jsonl", [{}, {column: ["x"]}, others, {column: []}])
    assert (run.report.rows, run.report.rejected) == (2, 2)
    assert run.failure is None


@pytest.mark.parametrize("column", ["y", "w"])
def test_a_column_of_lists_holds_no_label_and_no_weight(tmp_path: Path, column: str) -> None:
    run = run_on(tmp_path / "log.jsonl", [{column: [1]}, {column: []}])
    assert (run.report.rows, run.report.rejected) == (0, 2)


@pytest.mark.parametrize("column", ["w", "real", "size"])
@pytest.mark.parametrize("rest", [[], [{"w": "1", "real": "2", "size": "3"}]], ids=["typed", "text"])
def test_true_is_no_number_whatever_else_the_column_holds(
    tmp_path: Path, column: str, rest: list[dict[str, Any]]
) -> None:
    run = run_on(tmp_path / "log.jsonl", [{column: True}, *rest])
    assert (run.report.rows, run.report.rejected) == (len(rest), 1)


@pytest.mark.parametrize("column", ["w", "real"])
def test_a_number_that_would_overflow_costs_its_row_and_not_the_model(tmp_path: Path, column: str) -> None:
    run = run_on(tmp_path / "log.jsonl", [{}, {column: 1e300}, {column: 1e24}, {"y": 0}])
    assert (run.report.rows, run.report.rejected) == (3, 1)
    run.report.write(tmp_path / "report.json")
    run.model.artefact()


@pytest.mark.parametrize("values", ["single", "per_variant"])
def test_raw_keys_spelled_like_those_of_other_fields_and_the_bias_are_learned_and_published(
    tmp_path: Path, values: str
) -> None:
    spec = parse_spec(
        '[model]\nname = "odd"\n[input]\nlabel = "y"\n[fields]\nu = {}\nraw = { kind = "raw", separator = "|" }\n'
        '[variants]\na = {}\nb = { without = ["u"] }\nc = { without = ["raw"] }\n'
        f'[learner]\nl1 = 0\nvalues = "{values}"\n'
    )
    log = tmp_path / "log.jsonl"
    raw = ["bias", "u=1", "bias|u=2|u=2", ""]
    rows = [{"y": row % 3 // 2, "u": row % 3, "raw": raw[row % 4]} for row in range(60)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with RejectLog(tmp_path / "rejects") as rejects:
        run = train(spec, Log([str(log)]), rejects=rejects)
    artefact = run.model.artefact()
    assert artefact.key_list() == [b"bias", b"u=0", b"u=1", b"u=2"]
