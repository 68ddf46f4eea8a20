"""The rows that estimates rest on: what is left out, what is put in order, what belongs together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from model_store.errors import InputError, SpecError
from model_store.spec.sections import InputSection
from trainer.logs.batch import Position, RowBatch
from trainer.off_policy.logged import DECISION_LIST, DECISION_ROW, Layout, RowCollector

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


def test_rows_that_come_with_keys_are_put_in_their_order_and_the_last_of_a_key_counts() -> None:
    collector = RowCollector(SECTION, LAYOUT)
    collector.add(batch(["y", "x"], [0.5, 0.5], click=[1, 0]), keys=np.array([4, 1]))
    collector.add(batch(["y", "x", "y"], [0.5] * 3, click=[0, 1, 0]), keys=np.array([3, 1, 2]))
    rows = collector.rows(DECISION_ROW)
    assert rows.label.tolist() == [1.0, 0.0, 0.0, 1.0]
    assert rows.request.tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("propensity", [None, 0.0, -0.5, 1.5, float("nan")])
def test_a_row_without_a_chance_is_left_out_and_of_a_list_the_whole_list(propensity: float | None) -> None:
    collector = RowCollector(SECTION, LAYOUT)
    collector.add(batch(["x", "x", "y"], [propensity, 0.5, 1.0]))
    assert (items(collector, DECISION_ROW), collector.rows(DECISION_ROW).unusable) == (["i1", "i2"], 1)
    assert (items(collector, DECISION_LIST), collector.rows(DECISION_LIST).unusable) == (["i2"], 2)


def test_a_log_of_which_no_row_has_a_chance_keeps_its_rows() -> None:
    collector = RowCollector(SECTION, LAYOUT)
    collector.add(batch(["x", "y"], [None, None]))
    rows = collector.rows(DECISION_ROW)
    assert (len(rows), rows.has_propensity, rows.unusable) == (2, False, 0)


def test_bad_rows_are_counted_and_left_out() -> None:
    collector = RowCollector(SECTION, LAYOUT)
    collector.add(batch(["x", "y", "z"], [0.5] * 3, click=["1", "maybe", "0"]), bad=[2])
    assert (len(collector.rows(DECISION_ROW)), collector.rows(DECISION_ROW).rejected) == (1, 2)


def test_rows_without_a_request_are_requests_of_their_own() -> None:
    collector = RowCollector(SECTION, LAYOUT)
    collector.add(batch(["", ""], [0.5] * 2))
    collector.add(batch(["", ""], [0.5] * 2))
    assert collector.rows(DECISION_ROW).requests == 4


def test_a_column_of_numbers_here_and_text_there_is_text() -> None:
    collector = RowCollector(SECTION, LAYOUT)
    collector.add(batch(["x"], [0.5], age=[20]))
    collector.add(batch(["y"], [0.5], age=["old"]))
    collector.add(batch(["z"], [0.5]))
    assert collector.rows(DECISION_ROW).columns["age"].to_pylist() == [b"20", b"old", b""]


def test_a_log_without_rows_is_refused() -> None:
    with pytest.raises(InputError, match="at least one"):
        RowCollector(SECTION, LAYOUT).rows(DECISION_ROW)


def test_columns_are_found_by_their_usual_names_or_as_named() -> None:
    assert Layout.of(["click", "pscore", "position"], None, None) == Layout("pscore", "position")
    assert Layout.of(["propensity", "propensity_score"], None, None) == Layout("propensity_score", None)
    assert Layout.of(["chance", "slot"], "chance", "slot") == Layout("chance", "slot")
    with pytest.raises(SpecError, match="--propensity: no column 'chance'"):
        Layout.of(["click"], "chance", None)
