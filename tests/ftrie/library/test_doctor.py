"""`ftrie.doctor` finds in tables and files what the command finds, and shows it as a table and as HTML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ftrie
from model_store.errors import SpecError, UsageError
from tests.ftrie.conftest import Say
from tests.trainer.doctor.planted import clean, csv, events, jsonl, table

SPEC = {
    "model": {"name": "m"},
    "input": {"label": "click"},
    "fields": {"device": {}, "price": {"kind": "number"}},
}


def leaking() -> dict[str, Any]:
    columns: dict[str, Any] = clean(4000)
    columns["reve<nue"] = np.where(columns["click"] == 1, 1.25, 0.0)
    return columns


def test_a_table_is_examined_as_its_file_is(tmp_path: Path, say: Say) -> None:
    path = csv(leaking(), tmp_path)
    by_file, by_table = (ftrie.doctor(data, progress=False) for data in (path, table(leaking())))
    code, out, _ = say("doctor", path, "--json")
    assert code == 9
    findings = [{**each, "columns": list(each["columns"])} for each in by_file.to_dict()["findings"]]
    assert json.loads(out)["findings"] == findings
    for found in (by_file, by_table):
        assert [(each.check, each.columns) for each in found] == [("label-leak", ("reve<nue",))]
        assert len(found) == len(found.findings) == 1 and found.errors == found.findings
        assert not found.warnings
    assert by_table.findings[0].where.startswith("table:")
    assert repr(by_table) == "Diagnosis(4,000 rows: 1 error)"
    columns = leaking()
    columns["was_it"] = columns.pop("click")
    batches = (batch for batch in table(columns).to_batches(max_chunksize=900))
    found = ftrie.doctor(batches, label="was_it", progress=False)
    assert found.rows == 4000 and found.roles["label"] == "was_it"
    assert found.of_check("label-leak")


def test_the_findings_are_a_table_and_html_that_escapes_what_the_log_holds() -> None:
    found, empty = (ftrie.doctor(data, progress=False) for data in (leaking(), clean(4000)))
    assert found.table.num_rows == 1
    assert found.table["check"].to_pylist() == ["label-leak"]
    assert found.table["columns"].to_pylist() == [["reve<nue"]]
    assert empty.table.schema == found.table.schema and empty.table.num_rows == 0
    assert "reve&lt;nue" in found._repr_html_() and "reve<nue" not in found._repr_html_()
    assert "nothing found" in empty._repr_html_()


def test_a_spec_says_what_is_learned() -> None:
    found = ftrie.doctor(leaking(), ftrie.Spec(SPEC), progress=False)
    assert [each.severity for each in found] == ["note"]
    used = {**SPEC, "fields": {"reve<nue": {}}}
    assert [each.severity for each in ftrie.doctor(leaking(), used, progress=False)] == ["error"]


def test_events_are_examined(tmp_path: Path) -> None:
    impressions, clicks = events(clean(4000))
    paths = [jsonl(impressions, tmp_path, "i.jsonl"), jsonl(clicks[::2], tmp_path, "c.jsonl")]
    found = ftrie.doctor(paths, progress=False)
    assert found.rows == 4000 and not found.errors


def test_refusals_name_the_remedy() -> None:
    with pytest.raises(UsageError, match="without a spec"):
        ftrie.doctor(clean(400), SPEC, "click", progress=False)
    with pytest.raises(UsageError, match="need a spec"):
        ftrie.doctor(clean(400), items={"item": ["a"]}, progress=False)
    with pytest.raises(SpecError, match="name it with --label"):
        ftrie.doctor({"size": ["x", "y", "z"]}, progress=False)
