"""One odd row costs that row: lists, truth values and enormous numbers where a number or a label should stand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from model_store.spec.spec import parse_spec
from trainer.examples.open_log import Log
from trainer.formats.rejects import RejectLog
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


@pytest.mark.parametrize(
    ("column", "rows", "learned", "rejected"),
    [
        # A list in a column of scalars is a bad row; of numbers, or of text.
        *((column, [{}, {column: ["x"]}, {}, {column: []}], 2, 2) for column in ROW),
        *((column, [{}, {column: ["x"]}, {"y": "0"}, {column: []}], 2, 2) for column in ROW),
        # A column of lists holds no label and no weight.
        *((column, [{column: [1]}, {column: []}], 0, 2) for column in ("y", "w")),
        # True is no number whatever else the column holds.
        *((column, [{column: True}], 0, 1) for column in ("w", "real", "size")),
        *(
            (column, [{column: True}, {"w": "1", "real": "2", "size": "3"}], 1, 1)
            for column in ("w", "real", "size")
        ),
        # A number that would overflow costs its row and not the model.
        *((column, [{}, {column: 1e300}, {column: 1e24}, {"y": 0}], 3, 1) for column in ("w", "real")),
    ],
)
def test_an_odd_value_costs_its_row_and_not_the_model(tmp_path, column, rows, learned, rejected):
    run = run_on(tmp_path / "log.jsonl", rows)
    assert (run.report.rows, run.report.rejected) == (learned, rejected) and run.failure is None
    run.report.write(tmp_path / "report.json")
    run.model.artefact()


@pytest.mark.parametrize("values", ["single", "per_variant"])
def test_raw_keys_spelled_like_those_of_other_fields_and_the_bias_are_learned_and_published(tmp_path, values):
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
    assert run.model.artefact().key_list() == [b"bias", b"u=0", b"u=1", b"u=2"]
