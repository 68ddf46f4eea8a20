"""The rows that estimates rest on: what is left out, what is put in order, what belongs together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from model_store.errors import InputError, SpecError
from model_store.spec.sections import InputSection
from model_store.spec.spec import ModelSpec, parse_spec
from trainer.examples.open_log import Log, open_log
from trainer.formats.batch import Position, RowBatch
from trainer.off_policy.logged import DECISION_LIST, DECISION_ROW, Layout, LogOfRows, RowCollector
from trainer.runs.replay import JoinedTap, replay_events

SECTION = InputSection(label="click", request="request", item="item")
LAYOUT = Layout("propensity", "position")


def batch(requests: list[str], propensities: list[Any], **more: list[Any]) -> RowBatch:
    rows = len(requests)
    columns = {
        "click": pa.array([0] * rows),
        "request": pa.array(requests),
        "item": pa.array([f"i{row}" for row in range(rows)]),
        "propensity": pa.array(propensities),
        **{name: pa.array(values) for name, values in more.items()},
    }
    return RowBatch(columns, np.arange(1, rows + 1), "log", (), rows, Position("log"))


def items(collector: RowCollector, decision: str) -> list[str]:
    return [item.decode() for item in collector.rows(decision).item.to_pylist()]


def test_rows_of_a_request_stand_side_by_side() -> None:
    collector = RowCollector(SECTION, LAYOUT)
    collector.add(batch(["x", "y", "x", "z", "y"], [0.5] * 5))
    rows = collector.rows(DECISION_ROW)
    assert rows.request.tolist() == [0, 0, 1, 1, 2]
    assert items(collector, DECISION_ROW) == ["i0", "i2", "i1", "i4", "i3"]
    decisions = rows.decisions(DECISION_LIST)
    assert (decisions.first.tolist(), decisions.size.tolist()) == ([0, 2, 4], [2, 2, 1])


def test_rows_of_a_cookie_are_one_cluster_and_without_one_those_of_a_request() -> None:
    collector = RowCollector(SECTION.model_copy(update={"cookie": "user"}), LAYOUT)
    collector.add(batch(["x", "y", "z", "z", "x"], [0.5] * 5, user=["u", "v", None, "", "u"]))
    collector.add(batch(["w"], [0.5], user=["v"]))
    rows = collector.rows(DECISION_ROW)
    assert items(collector, DECISION_ROW) == ["i0", "i4", "i1", "i2", "i3", "i0"]
    assert rows.cluster.tolist() == [0, 0, 1, 2, 2, 1]


def test_rows_that_come_with_keys_are_put_in_their_order_and_the_last_of_a_key_counts() -> None:
    collector = RowCollector(SECTION, LAYOUT)
    collector.add(batch(["y", "x"], [0.5, 0.5], click=[1, 0]), keys=np.array([4, 1]))
    collector.add(batch(["y", "x", "y"], [0.5] * 3, click=[0, 1, 0]), keys=np.array([3, 1, 2]))
    rows = collector.rows(DECISION_ROW)
    assert rows.label.tolist() == [1.0, 0.0, 0.0, 1.0] and rows.request.tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("propensity", [None, 0.0, -0.5, 1.5, float("nan")])
def test_a_row_without_a_chance_is_left_out_and_of_a_list_the_whole_list(propensity: float | None) -> None:
    collector = RowCollector(SECTION, LAYOUT)
    collector.add(batch(["x", "x", "y"], [propensity, 0.5, 1.0]))
    assert (items(collector, DECISION_ROW), collector.rows(DECISION_ROW).unusable) == (["i1", "i2"], 1)
    assert (items(collector, DECISION_LIST), collector.rows(DECISION_LIST).unusable) == (["i2"], 2)


def test_rows_without_any_chance_are_kept_and_bad_rows_and_rows_without_a_request_counted() -> None:
    collector = RowCollector(SECTION, LAYOUT)
    with pytest.raises(InputError, match="at least one"):
        collector.rows(DECISION_ROW)
    collector.add(batch(["x", "y"], [None, None]))
    rows = collector.rows(DECISION_ROW)
    assert (len(rows), rows.has_propensity, rows.unusable) == (2, False, 0)
    collector = RowCollector(SECTION, LAYOUT)
    collector.add(batch(["x", "y", "z"], [0.5] * 3, click=["1", "maybe", "0"]), bad=[2])
    assert (len(collector.rows(DECISION_ROW)), collector.rows(DECISION_ROW).rejected) == (1, 2)
    collector.add(batch(["", ""], [0.5] * 2))
    collector.add(batch(["", ""], [0.5] * 2))
    assert collector.rows(DECISION_ROW).requests == 5  # each a request of its own


def test_a_column_of_numbers_here_and_text_there_is_text() -> None:
    collector = RowCollector(SECTION, LAYOUT)
    collector.add(batch(["x"], [0.5], age=[20]))
    collector.add(batch(["y"], [0.5], age=["old"]))
    collector.add(batch(["z"], [0.5]))
    assert collector.rows(DECISION_ROW).columns["age"].to_pylist() == [b"20", b"old", b""]


def test_columns_are_found_by_their_usual_names_or_as_named() -> None:
    assert Layout.of(["click", "pscore", "position"], None, None) == Layout("pscore", "position")
    assert Layout.of(["propensity", "propensity_score"], None, None) == Layout("propensity_score", None)
    assert Layout.of(["chance", "slot"], "chance", "slot") == Layout("chance", "slot")
    with pytest.raises(SpecError, match="--propensity: no column 'chance'"):
        Layout.of(["click"], "chance", None)


PLAIN = """
[model]
name = "m"
[input]
label = "click"
timestamp = "ts"
cookie = "cookie"
item = "item"
request = "request"
[fields]
item = {side = "item"}
price = {side = "item", kind = "number"}
budget = {kind = "number"}
"""
COMPUTED = """
part = {side = "item", kind = "number", ratio = ["price", "budget"]}
place = {side = "item", kind = "number", list = "rank", of = "price"}
clicks = {side = "item", kind = "number", history = "clicked", measure = "count"}
before = {side = "user", kind = "set", history = "seen", measure = "last"}
"""


def a_log(folder: Path) -> Path:
    lines = ["click,ts,cookie,request,item,price,budget,propensity"]
    for request in range(60):
        for number in range(3):
            item = (request + number * 2) % 5
            lines.append(
                f"{int(item == 2)},{1700000000 + request * 9},u{request % 4},r{request},i{item},{item + 1.5},7,0.6"
            )
    path = folder / "log.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_rows_have_the_derived_and_history_values_that_train_learns_from(tmp_path: Path) -> None:
    log = Log([str(a_log(tmp_path))])
    plain, spec = parse_spec(PLAIN), parse_spec(PLAIN + COMPUTED)
    names = ("part", "place", "clicks", "before")
    with open_log(log, spec) as opened:
        learned = [batch.columns for batch in opened.rows()]
    for own, models in ((spec, [spec]), (plain, [spec]), (plain, [plain, spec])):
        rows, _, _ = LogOfRows(log, None, None, DECISION_ROW).read(own, models)
        for name in names:
            expected = [value for columns in learned for value in columns[name].to_pylist()]
            assert rows.columns[name].to_pylist() == expected and len(set(map(str, expected))) > 2


def test_two_models_may_not_compute_one_history_in_two_ways(tmp_path: Path) -> None:
    spec = parse_spec(PLAIN + COMPUTED)
    other = parse_spec(PLAIN + COMPUTED.replace('"count"', '"age"'))
    with pytest.raises(SpecError, match="two of the models compute the column 'clicks' in two ways"):
        LogOfRows(Log([str(a_log(tmp_path))]), None, None, DECISION_ROW).read(spec, [spec, other])


@pytest.mark.parametrize("models", [[PLAIN + COMPUTED], [PLAIN, PLAIN + COMPUTED]])
def test_a_history_that_the_replayed_spec_lacks_is_refused_over_events(models: list[str], tmp_path) -> None:
    specs: list[ModelSpec] = [parse_spec(each) for each in models]
    events = tmp_path / "events.jsonl"
    events.write_text('{"request_id": "r", "ts": 1700000000, "cookie": "u", "items": [{"id": "a"}]}\n')
    tap = JoinedTap(parse_spec(PLAIN), specs, None, None, DECISION_LIST)
    with pytest.raises(SpecError, match="fields.clicks: a model to estimate has this history"):
        replay_events(parse_spec(PLAIN), [str(events)], tap=tap)
