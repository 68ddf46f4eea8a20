"""Compiling the kernels of the loop before events come: some are read, joined and learned from a small file."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from model_store.jit import kernels_are_cached, mark_kernels_cached
from model_store.spec.sections import FieldSpec, InputSection, ModelSection
from model_store.spec.spec import ModelSpec
from trainer.events.columns import Wanted
from trainer.events.merge import Merger
from trainer.events.open_sources import open_sources
from trainer.examples.hashing import ExampleMaker
from trainer.join.join import Join
from trainer.join.rows import Segments
from trainer.learn.model import LearningModel
from trainer.output import SILENT, Output
from trainer.runs.dead_letters import DeadLetterOutbox
from trainer.runs.stream import EventLoop
from trainer.runs.warmup import compile_kernels, kernels_are_ready

PART = "trainer"
_MEMORY = 1 << 20


def compile_loop(spec: ModelSpec, output: Output = SILENT) -> None:
    """Compile whatever a trainer of this spec runs; says so where it takes long."""
    if not (kernels_are_ready(spec, publishes=True) and kernels_are_cached(PART)):
        output.note("compiling kernels for the first time; up to a minute, once")
    compile_kernels(spec, publishes=True)
    if kernels_are_cached(PART):
        return
    small = ModelSpec(
        model=ModelSection(name="x"),
        input=InputSection(label="click"),
        fields={"f": FieldSpec(), "s": FieldSpec(kind="set")},
        join=spec.join,
    )
    with TemporaryDirectory(prefix="ftrie-") as folder:
        events = Path(folder) / "events.jsonl"
        events.write_text("".join(json.dumps(event) + "\n" for event in _EVENTS), "utf-8")
        sources = open_sources([str(events)], small, None, once=True)
        segments = Segments(Path(folder) / "segments", _MEMORY)
        merger = Merger(sources, Wanted.of(small), segments, once=True)
        loop = EventLoop(
            merger, Join(small.join), segments, LearningModel(ExampleMaker(small)), DeadLetterOutbox(None)
        )
        while not loop.ended:
            loop.step(1.0)
        loop.finish()
        loop.before_checkpoint()  # with [join] late = "correct" the state names segments, which must be on disk
        loop.restore(loop.state())
        merger.close()
    mark_kernels_cached(PART)


_SHOWN = {"request_id": "r", "ts": 1, "items": [{"id": "a", "features": {"f": "x", "s": ["y"]}}, {"id": "b"}]}
_EVENTS = (_SHOWN, {"request_id": "r", "ts": 2, "item": "a"}, {"request_id": "s", "ts": 3, "item": "a"})
