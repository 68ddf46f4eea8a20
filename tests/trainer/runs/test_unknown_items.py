"""Rows of items of which the server knew nothing are not learned from, unless the spec asks for it; each is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model_store.spec.sections import JoinSection
from tests.trainer.runs.test_checkpoints_and_rows import SPEC, clicked, running

LEARNS = SPEC.model_copy(update={"join": JoinSection(unknown_items="learn")})


def shown(request: str, ts: int, *unknown: str) -> dict[str, Any]:
    items = [{"id": i, "features": {} if i in unknown else {"f": i}} for i in "abc"]
    return {
        "request_id": request,
        "ts": ts,
        "items": [item | ({"unknown": 1} if item["id"] in unknown else {}) for item in items],
    }


def balanced(counts: dict[str, int], join: dict[str, int]) -> bool:
    learned = counts["examples"] + counts["bad_rows"] + counts["subsampled"] + counts["unknown_items"]
    return join["positives"] + join["negatives"] + join["corrections"] == learned


def test_rows_of_unknown_items_are_left_out_and_counted(tmp_path: Path) -> None:
    with running(tmp_path) as now:
        now.learn(shown("r", 1_700_000_000, "a", "b"))
        now.learn(clicked("r", "a", 1_700_000_001))
        now.learn(clicked("r", "c", 1_700_000_002))
        now.learn(shown("s", 1_700_000_003))
        now.run.finish()
        status = now.run.status(None, ended=True)
        assert now.run.model.rows == status.examples == 4
        assert status.counts["unknown_items"] == 2
        assert balanced(status.counts, status.join)
        assert "2 rows of UNKNOWN ITEMS skipped" in status.line()


def test_a_run_that_goes_on_counts_on(tmp_path: Path) -> None:
    with running(tmp_path) as now:
        now.learn(shown("r", 1_700_000_000, "a", "b", "c"))
        now.take(clicked("r", "a", 1_700_000_001))
    with running(tmp_path) as now:
        now.run.finish()
        status = now.run.status(None, ended=True)
        assert (status.examples, status.counts["unknown_items"]) == (0, 3)
        assert balanced(status.counts, status.join)


def test_a_spec_may_ask_for_them(tmp_path: Path) -> None:
    with running(tmp_path, spec=LEARNS) as now:
        now.learn(shown("r", 1_700_000_000, "a", "b"))
        now.run.finish()
        status = now.run.status(None, ended=True)
        assert (status.examples, status.counts["unknown_items"]) == (3, 0)


def test_a_spec_that_does_not_ask_has_the_hash_of_one_before_there_was_the_question() -> None:
    assert "unknown_items" not in SPEC.model_copy(update={"join": JoinSection(window="1h")}).to_json()
    assert '"unknown_items":"learn"' in LEARNS.to_json()
