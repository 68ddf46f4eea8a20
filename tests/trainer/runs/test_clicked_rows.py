"""A model of what follows a click: the rows it learns, when, and its own online metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from model_store.errors import SpecError
from model_store.spec.spec import ModelSpec, parse_spec
from model_store.versions.online_metrics import CTR_UNIT
from tests.trainer.runs.test_checkpoints_and_rows import Running, clicked, running
from trainer.runs.replay import replay_events

TEXT = """
model = { name = "purchase" }
input = { label = "click", rows = "clicked" }
fields = { f = {} }
[join]
positive = "conversion"
window = "10s"
lateness = "0s"
late_within = "1h"
"""


def spec(late: str = "count") -> ModelSpec:
    return parse_spec(f'{TEXT}late = "{late}"\n').resolve(("f", "click"))


def shown(request: str, ts: int, **models: Any) -> dict[str, Any]:
    """An impression that another model answered, with what `models` predicted of each item."""
    items = [
        {"id": i, "features": {"f": i}, "ctr": 0.9, **({"models": models} if models else {})} for i in "abc"
    ]
    return {"request_id": request, "ts": ts, "model": "ads", "version": 4, "variant": "x", "items": items}


def bought(request: str, item: str, ts: int) -> dict[str, Any]:
    return clicked(request, item, ts) | {"event": "conversion"}


def rates(now: Running) -> tuple[int, int]:
    """How many rows, and how many positives, the model has learned."""
    return now.run.model.metrics.rows, now.run.model.metrics.clicked


OWN = {"purchase": {"version": 7, "variant": "base", "ctr": 0.25}}


def test_only_clicked_rows_are_learned_and_count_as_shown(tmp_path: Path) -> None:
    with running(tmp_path, spec=spec()) as now:
        for event in (
            shown("r", 1_000, **OWN), bought("r", "b", 1_001), clicked("r", "a", 1_002), clicked("r", "b", 1_003),
            shown("s", 1_004, purchase={"version": "?", "variant": 1, "ctr": "soon"}), clicked("s", "c", 1_005),
            shown("t", 2_000), clicked("r", "c", 2_001),
        ):  # fmt: skip
            now.learn(event)
        counts = now.run.join.counts
        # b of r at once, a of r and c of s when their windows closed; the click on c of r was late.
        assert rates(now) == (3, 1)
        assert (counts.positives, counts.negatives, counts.late) == (1, 2, 1)
        totals = now.run.online.totals()["base"]
        assert (totals.requests, totals.shown, totals.clicks, totals.positives) == (1, 2, 1, 1)
        assert totals.ctr_nano * CTR_UNIT == pytest.approx(0.5), (
            "of both clicked items, as purchase predicted them"
        )
        # What the junk said of purchase is no prediction, and another model's is none either.
        assert [each.without_ctr for name, each in now.run.online.totals().items() if name != "base"] == [1]
        assert now.run.online.evidence()[7].expected == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("late", "expected"),
    [
        # After the window: the click on b, the conversion of a; and both of c.
        ("count", (1, 0)),
        ("correct", (5, 2)),
        ("weigh", (5, 2)),
    ],
)
def test_late_clicks_and_conversions(tmp_path: Path, late: str, expected: tuple[int, int]) -> None:
    with running(tmp_path, spec=spec(late)) as now:
        for event in (
            shown("r", 1_000), clicked("r", "a", 1_001), shown("s", 1_100), clicked("r", "b", 1_101),
            bought("r", "a", 1_102), clicked("r", "c", 1_103), bought("r", "c", 1_104),
        ):  # fmt: skip
            now.learn(event)
        rows, positives = rates(now)
        assert (rows, positives) == expected


def test_rows_that_are_weighed_are_learned_at_once_and_a_run_goes_on_with_the_same_bits(
    tmp_path: Path,
) -> None:
    events = [shown("r", 1_000), clicked("r", "a", 1_001), clicked("r", "b", 1_002), bought("r", "a", 1_003)]
    (tmp_path / "whole").mkdir()
    with running(tmp_path / "whole", spec=spec("weigh")) as now:
        for event in events:
            now.learn(event)
        assert rates(now)[0] == 3, "no window has closed"
        whole = now.run.state()
    for event in events:
        with running(tmp_path, spec=spec("weigh")) as now:
            now.take(event)
            parts = now.run.state()
    assert {name: array.tobytes() for name, array in whole.items()} == {
        name: array.tobytes() for name, array in parts.items()
    }


def test_a_spec_of_clicked_rows_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(SpecError, match='set join.positive = "conversion"'):
        parse_spec(TEXT.replace('positive = "conversion"', ""))
    with pytest.raises(SpecError, match='late = "weigh" weighs the gradient'):
        parse_spec(f'{TEXT}late = "weigh"\n[learner]\nalgorithm = "adpredictor"\n')


def test_a_replay_learns_the_same_rows(tmp_path: Path) -> None:
    with running(tmp_path, spec=spec()) as now:
        for event in (
            shown("r", 1_000),
            clicked("r", "a", 1_001),
            clicked("r", "b", 1_002),
            shown("s", 2_000),
        ):
            now.learn(event)
        learned = rates(now)
    replayed = replay_events(parse_spec(TEXT), [str(tmp_path / "events.jsonl")])
    assert (replayed.examples, replayed.join["negatives"]) == learned[:1] * 2 == (2, 2)
