"""Runs over events, step by step: each checkpoint can be gone on from; rows of unknown items are left out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from model_store.errors import CheckpointError
from model_store.spec.sections import FieldSpec, InputSection, JoinSection, ModelSection
from model_store.spec.spec import ModelSpec
from trainer.checkpoint import Checkpoints
from trainer.checkpoint.folder import checkpoints_in
from trainer.events.columns import Wanted
from trainer.events.join import Join
from trainer.events.waiting_rows import Segments
from trainer.examples.hashing import ExampleMaker
from trainer.learn.model import LearningModel
from trainer.runs.status import Reporter, Status
from trainer.runs.stream import DeadLetterOutbox, EventLoop, SavedRun
from trainer.runs.trainer import OWNER, SEGMENTS, lease_owner
from trainer.settings import Every
from trainer.sources.merge import Merger
from trainer.sources.open_sources import open_sources

SPEC = ModelSpec(
    model=ModelSection(name="x"), input=InputSection(label="click"), fields={"f": FieldSpec()}
).resolve(("f", "click"))


def shown(request: str, ts: int) -> dict[str, Any]:
    return {"request_id": request, "ts": ts, "items": [{"id": i, "features": {"f": i}} for i in "ab"]}


def clicked(request: str, item: str, ts: int) -> dict[str, Any]:
    return {"request_id": request, "item": item, "ts": ts}


class Running:
    """A run over one file of events, without a store."""

    def __init__(self, log: Path, folder: Path, every: str, stack: ExitStack, spec: ModelSpec = SPEC) -> None:
        self._log = log
        checkpoints = stack.enter_context(Checkpoints(folder, Every.parse(every), spec, resume=True))
        saved = SavedRun(checkpoints.take(), [str(log)])
        sources = open_sources([str(log)], spec, None, saved.positions)
        segments = Segments(folder / SEGMENTS, 1 << 20)
        merger = Merger(sources, Wanted.of(spec), segments, positions=saved.positions)
        stack.callback(merger.close)
        model = LearningModel(ExampleMaker(spec))
        parts = (merger, Join(spec.join, spec.input.rows), segments, model, DeadLetterOutbox(None), saved)
        self.run = EventLoop(*parts, checkpoints=checkpoints)
        if saved.checkpoint is not None:
            self.run.restore(saved.checkpoint.arrays)
        self._reporter = Reporter(self.run, sources, 30.0)

    def status(self) -> Status:
        return self._reporter.status(None, ended=True)

    def take(self, event: dict[str, Any]) -> None:
        self.learn(event)
        self.run.save()

    def learn(self, event: dict[str, Any]) -> None:
        events = self.run.counts.events
        with self._log.open("a") as log:
            log.write(json.dumps(event) + "\n")
        while self.run.counts.events == events:
            self.run.step(0.1)


@contextmanager
def running(folder: Path, every: str = "1h", spec: ModelSpec = SPEC) -> Iterator[Running]:
    with ExitStack() as stack:
        yield Running(folder / "events.jsonl", folder / "state", every, stack, spec)


def test_checkpoints_of_the_same_row_take_no_rows_from_those_before(tmp_path: Path) -> None:
    """A checkpoint is called by the rows learned: one of as many takes the place of the last, and the others stay."""
    with running(tmp_path) as now:
        now.take(shown("r", 1_700_000_000))
        now.take(clicked("r", "a", 1_700_000_001))  # its checkpoint names the rows of r
        now.take(clicked("r", "b", 1_700_000_002))
        for later in range(6):  # the first closes the window of r, and none teaches anything
            now.take(shown("s", 1_700_002_000 + later))
    checkpoints_in(tmp_path / "state")[0].write_bytes(b"damaged")
    with running(tmp_path) as now:
        assert now.run.model.rows == 1
        while now.run.counts.events < 9:
            now.run.step(0.1)
        assert now.run.model.rows == 2


def test_a_disk_that_takes_no_rows_is_not_tried_again_at_each_step(tmp_path: Path) -> None:
    with running(tmp_path, every="1") as now:
        now.learn(shown("r", 1_700_000_000))
        now.learn(clicked("r", "a", 1_700_000_001))
        assert now.run.save_is_due()
        segments = tmp_path / "state" / SEGMENTS
        segments.rmdir()
        segments.touch()  # nothing can be written there
        now.run.save()
        assert not checkpoints_in(tmp_path / "state") and not now.run.save_is_due()
        now.learn(clicked("r", "b", 1_700_000_002))
        assert now.run.save_is_due()


@pytest.mark.parametrize("content", [b"", b"\xff\xfe"])
def test_a_name_of_the_lease_that_cannot_be_read_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / OWNER).write_bytes(content)
    with pytest.raises(CheckpointError, match="delete the file"):
        lease_owner(tmp_path)


LEARNS = SPEC.model_copy(update={"join": JoinSection(unknown_items="learn")})


def shown_unknown(request: str, ts: int, *unknown: str) -> dict[str, Any]:
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
        now.learn(shown_unknown("r", 1_700_000_000, "a", "b"))
        now.learn(clicked("r", "a", 1_700_000_001))
        now.learn(clicked("r", "c", 1_700_000_002))
        now.learn(shown_unknown("s", 1_700_000_003))
        now.run.finish()
        status = now.status()
        assert now.run.model.rows == status.examples == 4 and status.counts["unknown_items"] == 2
        assert balanced(status.counts, status.join)
        assert "2 rows of UNKNOWN ITEMS skipped" in status.line()


def test_a_run_that_goes_on_counts_on(tmp_path: Path) -> None:
    with running(tmp_path) as now:
        now.learn(shown_unknown("r", 1_700_000_000, "a", "b", "c"))
        now.take(clicked("r", "a", 1_700_000_001))
    with running(tmp_path) as now:
        now.run.finish()
        status = now.status()
        assert (status.examples, status.counts["unknown_items"]) == (0, 3)
        assert balanced(status.counts, status.join)


def test_a_spec_may_ask_for_them_and_has_the_hash_of_earlier_ones_if_it_does_not(tmp_path: Path) -> None:
    with running(tmp_path, spec=LEARNS) as now:
        now.learn(shown_unknown("r", 1_700_000_000, "a", "b"))
        now.run.finish()
        status = now.status()
        assert (status.examples, status.counts["unknown_items"]) == (3, 0)
    assert "unknown_items" not in SPEC.model_copy(update={"join": JoinSection(window="1h")}).to_json()
    assert '"unknown_items":"learn"' in LEARNS.to_json()
