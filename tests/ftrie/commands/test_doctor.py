"""`ftrie doctor` as typed and `ftrie.doctor`: answers at 80 columns, as JSON and in notebooks; input; refusals."""

from __future__ import annotations

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ftrie
from ftrie.commands.doctor import finding_lines
from model_store.errors import SpecError, UsageError
from tests.ftrie.conftest import Ask, Say
from tests.trainer.inspect.planted import clean, csv, events, jsonl, parquet, table
from trainer.inspect.findings import CHECKS, SEVERITIES, Finding

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/doctor.md").read_text("utf-8")
SPEC = '[model]\nname = "m"\n[input]\nlabel = "click"\n[fields]\ndevice = {}\nbrand = { side = "item" }\n'


def leaking() -> dict[str, Any]:
    columns: dict[str, Any] = clean(4000)
    columns["reve<nue"] = np.where(columns["click"] == 1, 1.25, 0.0)
    return columns


def test_a_clean_log_ends_with_0_and_says_so(tmp_path: Path, say: Say) -> None:
    code, said, _ = say("doctor", parquet(clean(4000), tmp_path))
    out = said.splitlines()
    assert (code, out[-1]) == (0, "nothing found")
    assert out[0].startswith("4,000 rows, 9 columns, ")
    guessed = "guessed: label click, timestamp ts, request request_id, cookie user_id,"
    assert " ".join(out[1:-1]).startswith(guessed)


def test_an_error_ends_with_9_and_a_table_is_examined_as_its_file_is(tmp_path: Path, say: Say) -> None:
    path = csv(leaking(), tmp_path)
    code, out, _ = say("doctor", path)
    assert code == 9
    assert re.search(r"^error     label-leak +[0-9]+ of [0-9]+ clicks$", out, re.M)
    assert 'do        [input] ignore = ["reve<nue"], or no entry in [fields]' in out.splitlines()
    assert all(len(line) <= 80 for line in out.replace(str(path), "log.csv").splitlines())
    code, out, err = say("doctor", path, "--json")
    assert (code, err) == (9, "")
    answer = json.loads(out)
    assert (answer["rows"], answer["columns"], answer["errors"], answer["is_guessed"]) == (4000, 10, 1, True)
    leak = answer["findings"][0]
    assert (leak["severity"], leak["check"], leak["columns"]) == ("error", "label-leak", ["reve<nue"])
    assert leak["where"].endswith("log.csv:" + leak["where"].rpartition(":")[2]) and leak["example"] == "1.25"

    batches = (batch for batch in table(leaking()).to_batches(max_chunksize=900))
    by_file, by_table = (ftrie.doctor(data, label="click", progress=False) for data in (path, batches))
    findings = [{**each, "columns": list(each["columns"])} for each in by_file.to_dict()["findings"]]
    assert answer["findings"] == findings
    for found in (by_file, by_table):
        assert [(each.check, each.columns) for each in found] == [("label-leak", ("reve<nue",))]
        assert len(found) == len(found.findings) == 1 and found.errors == found.findings
        assert not found.warnings
    assert by_table.findings[0].where.startswith("table:") and by_table.roles["label"] == "click"
    assert repr(by_table) == "Diagnosis(4,000 rows: 1 error)"


def test_the_findings_are_a_table_and_html_that_escapes_what_the_log_holds() -> None:
    found, empty = (ftrie.doctor(data, progress=False) for data in (leaking(), clean(4000)))
    assert found.table.num_rows == 1
    assert found.table["check"].to_pylist() == ["label-leak"]
    assert found.table["columns"].to_pylist() == [["reve<nue"]]
    assert empty.table.schema == found.table.schema and empty.table.num_rows == 0
    assert "reve&lt;nue" in found._repr_html_() and "reve<nue" not in found._repr_html_()
    assert "nothing found" in empty._repr_html_()


def test_a_spec_says_what_is_learned(tmp_path: Path, ask: Ask) -> None:
    spec, items = tmp_path / "spec.toml", tmp_path / "items.csv"
    spec.write_text(SPEC)
    items.write_text("item,brand\n" + "".join(f"sku{number},b{number % 3}\n" for number in range(20)))
    words = ["doctor", csv(leaking(), tmp_path), "--spec", spec]
    assert [each["check"] for each in ask(*words)["findings"]] == ["missing-columns", "label-leak"]
    spec.write_text(SPEC.replace("[fields]", 'item = "item_id"\n[fields]'))
    found = ask(*words, "--items", items)["findings"]
    assert [(each["check"], each["severity"]) for each in found] == [("label-leak", "note")]
    used = ftrie.Spec(SPEC).merge(fields={"brand": None, "reve<nue": {}})
    assert [each.severity for each in ftrie.doctor(leaking(), used, progress=False)] == ["error"]


@pytest.mark.parametrize(
    "words", [[], ["--no-header", "--label", "c1"], ["--format", "events"]], ids=" ".join
)
def test_standard_input_is_read_once(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    path = csv(clean(4000), tmp_path, header=not words)
    if "events" in words:
        path = jsonl([event for each in events(clean(4000)) for event in each], tmp_path, "events.jsonl")
    readable, writable = os.pipe()
    with ThreadPoolExecutor() as pool, os.fdopen(readable) as stdin, os.fdopen(writable, "wb") as pipe:
        monkeypatch.setattr("sys.stdin", stdin)
        done = pool.submit(lambda: (pipe.write(path.read_bytes()), pipe.close()))
        code, out, err = say("doctor", "-", *words)
        done.result()
    assert code == 0, err
    assert out.startswith("4,000 rows")
    assert "examining: " in err


def test_refusals_name_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say) -> None:
    monkeypatch.chdir(tmp_path)
    csv(clean(400), tmp_path)
    Path("spec.toml").write_text(SPEC)
    Path("other.toml").write_text(SPEC.replace("click", "bought"))
    jsonl([{"request_id": "r", "ts": 1700000000, "items": [{"id": "a"}]}], tmp_path, "events.jsonl")
    for words, expected, message in (
        ("absent.csv", 3, "absent.csv"),
        ("log.csv --spec spec.toml --label click", 2, "--label belongs to a log without --spec"),
        ("spec.toml log.csv", 2, "spec.toml is a spec, not a log: give it as --spec"),
        ("log.csv --items items.csv", 2, "--items and --users need --spec"),
        ("log.csv --label clicked", 2, "no column 'clicked'"),
        ("log.csv --spec other.toml", 2, "no column 'bought'"),
        ("events.jsonl --format events --no-header", 3, "--no-header is for CSV and TSV"),
    ):
        code, _, err = say("doctor", *words.split())
        assert (code, message in err) == (expected, True), err
    with pytest.raises(UsageError, match="without a spec"):
        ftrie.doctor(clean(400), SPEC, "click", progress=False)
    with pytest.raises(UsageError, match="need a spec"):
        ftrie.doctor(clean(400), items={"item": ["a"]}, progress=False)
    with pytest.raises(SpecError, match="name it with label"):
        ftrie.doctor({"size": ["x", "y", "z"]}, progress=False)


def test_long_names_fold_and_are_never_cut() -> None:
    place = {"where": "file.csv:3", "example": "y" * 90}
    lines = finding_lines(Finding("warning", "encoding", "x" * 200, "a remedy " * 20, 5, 10, **place), 80)
    assert max(map(len, lines)) <= 80
    assert "".join(line[10:] for line in lines).count("x") == 200
    assert sum(line.startswith("do ") for line in lines) == 1


def test_the_page_lists_every_check_with_its_severities() -> None:
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| ([a-z, ]+) \|", PAGE, re.M))
    assert list(rows) == list(CHECKS)
    for severities in rows.values():
        assert set(severities.split(", ")) <= set(SEVERITIES)
