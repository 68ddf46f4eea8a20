"""A doctor that cries wolf is not asked again: clean logs, simulated and real, have no error and hardly a warning."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from model_store.errors import InputError, SpecError
from model_store.spec.spec import parse_spec
from tests.conftest import _click_log
from tests.trainer.inspect.planted import clean, csv, diagnosed, parquet, sampled, table
from trainer.examples.open_log import Log
from trainer.formats.tables import table_of
from trainer.inspect.examine import examine
from trainer.inspect.guesses import guess_all
from trainer.runs.first_spec import SpecDraft


@pytest.mark.parametrize("seed", range(3))
def test_a_clean_log_is_clean(tmp_path: Path, seed: int) -> None:
    assert diagnosed(parquet(clean(seed=seed), tmp_path)).findings == ()


def test_the_same_is_found_in_every_format(tmp_path: Path) -> None:
    columns = clean(4000)
    columns["price"] = np.where(np.arange(4000) % 100 == 7, np.inf, columns["price"])
    columns["click_value"] = np.where(columns["click"] == 1, 2.5, 0.0)
    given = table(columns)
    gzipped = tmp_path / "log.csv.gz"
    gzipped.write_bytes(gzip.compress(csv(columns, tmp_path).read_bytes()))
    tsv = tmp_path / "log.tsv"
    tsv.write_text(csv(columns, tmp_path).read_text().replace(",", "\t"))
    by = {
        "parquet": diagnosed(parquet(columns, tmp_path)),
        "csv": diagnosed(csv(columns, tmp_path)),
        "gz": diagnosed(gzipped),
        "tsv": diagnosed(tsv),
        "table": examine(Log((), table=table_of(given))),
        "stream": examine(Log((), table=table_of(batch for batch in given.to_batches(max_chunksize=700)))),
    }
    for name, found in by.items():
        told = [(each.severity, each.check, each.columns, each.count) for each in found.findings]
        assert (
            told
            == [
                ("error", "label-leak", ("click_value",), int(columns["click"].sum())),
                ("warning", "not-finite", ("price",), 40),
                ("note", "ids-never-repeat", ("price",), 4000),
            ][: len(told)]
        ), name
        assert len(told) >= 2


def test_a_log_without_a_header(tmp_path: Path) -> None:
    columns = clean(4000)
    columns["landed"] = columns["click"] * 7
    found = diagnosed(csv(columns, tmp_path, header=False), no_header=True, label="c1")
    assert found.roles["label"] == "c1" and [each.columns for each in found.errors] == [("c10",)]


@pytest.mark.parametrize(
    ("name", "row", "leak"),
    [
        ("log.vw", "{sign} |user u{user} |item i{item} price:{price}{leak}", " |after landed"),
        ("log.libsvm", "{click} 1:{price} {user}:1{leak}", " 77:1"),
        ("log.libffm", "{click} 0:1:{price} 1:{user}:1{leak}", " 2:77:1"),
    ],
)
def test_formats_whose_rows_name_their_features(tmp_path: Path, name: str, row: str, leak: str) -> None:
    random = np.random.default_rng(4)
    for tells in (False, True):
        lines = []
        for _ in range(4000):
            click = int(random.random() < 0.1)
            values = {
                "click": click,
                "sign": 1 if click else -1,
                "user": random.integers(3, 70),
                "item": random.integers(0, 20),
            }
            lines.append(
                row.format(**values, price=round(random.random(), 3), leak=leak if tells and click else "")
            )
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n")
        found = diagnosed(path)
        assert found.rows == 4000
        assert bool(found.of_check("label-leak")) == tells, found.findings
        assert {each.check for each in found.findings if each.severity == "error"} <= {"label-leak"}


def test_a_log_of_two_files_whose_columns_change_their_type(tmp_path: Path) -> None:
    """JSON lines: what was a number becomes text in the second file."""
    first, second = (tmp_path / name for name in ("a.jsonl", "b.jsonl"))
    first.write_text("".join(f'{{"click": {n % 9 == 0:d}, "size": {n % 13}}}\n' for n in range(3000)))
    second.write_text("".join(f'{{"click": {n % 9 == 0:d}, "size": "XL"}}\n' for n in range(200)))
    found = diagnosed(first, second)
    assert found.rows == 3200 and [each.check for each in found.findings] == ["mixed-types"]
    assert found.findings[0].where == f"{second}:1"


def test_a_short_log_and_those_without_rows_or_a_label(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("click,user\n1,a\n0,b\n0,c\n")
    assert [each.check for each in diagnosed(path).findings] == ["few-clicks"]
    with pytest.raises(SpecError, match="no column 'clicked'"):
        diagnosed(path, label="clicked")
    path.write_text("click,user\n")
    with pytest.raises(InputError):
        diagnosed(path)
    path.write_text("size,user\n1,a\n2,b\n3,c\n")
    with pytest.raises(SpecError, match="name it with --label"):
        diagnosed(path)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_log() -> None:
    """A stream of rows whose every value is new: what is kept is bounded."""
    import tracemalloc

    def batches(rows: int) -> Any:
        for first in range(0, rows, 20_000):
            row = np.arange(first, first + 20_000)
            yield pa.table({"click": (row % 11 == 0).astype(np.int64), "a": row * 3, "b": row * 5 + 0.5})

    peaks = []
    for rows in (60_000, 160_000):
        tracemalloc.start()
        examine(Log((), table=table_of(batches(rows))), label="click")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # The hashes of rows grow until there are a million of them: 24 bytes each, and as much while they are sorted.
    assert peaks[1] - peaks[0] < 100_000 * 100


def test_the_simulated_market_is_clean(simulated_events: Path) -> None:
    found = diagnosed(simulated_events / "impressions.jsonl", simulated_events / "clicks.jsonl")
    assert found.rows > 20_000 and {each.severity for each in found.findings} <= {"note"}


REAL = {
    "avazu/clicks_2014-10-21_28.csv.gz": {"values-explode"},
    "open_bandit/bts_men/men.csv.gz": set(),
    "open_bandit/random_men/men.csv.gz": set(),
}
"""Of each real log, the checks that warn: avazu's device_ip is new in 86 % of the rows."""


@pytest.mark.parametrize("name", REAL)
def test_real_logs_are_clean(name: str, tmp_path: Path) -> None:
    path = _click_log(name)
    found = diagnosed(path)
    assert not found.errors and {each.check for each in found.warnings} == REAL[name]
    text = SpecDraft(str(path), guess_all(sampled(path))).text()
    by_spec = diagnosed(path, spec=parse_spec(text))
    assert not by_spec.errors and {each.check for each in by_spec.warnings} == REAL[name]


@pytest.mark.slow
def test_real_events_are_clean() -> None:
    folder = _click_log("trivago")
    found = diagnosed(folder / "impressions.jsonl.gz", folder / "clicks.jsonl.gz")
    assert [each.check for each in found.findings] == ["position-bias"]
