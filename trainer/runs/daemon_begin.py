"""How a trainer begins: with nothing, or where its last checkpoint stands. Opens the sources and makes the model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from model_store.spec.spec import ModelSpec, spec_from_json
from model_store.store import Store
from trainer.checkpoint import Checkpoints
from trainer.events.columns import Wanted
from trainer.events.merge import Merger
from trainer.events.open_sources import ROWS, check_there, kind_of, open_rows, open_sources
from trainer.examples.hashing import ExampleMaker
from trainer.join.join import Join
from trainer.join.rows import Segments
from trainer.learn.model import LearningModel
from trainer.runs.daemon_learner import Learner, Named
from trainer.runs.daemon_options import Asked
from trainer.runs.daemon_warmup import compile_loop
from trainer.runs.dead_letters import Letters
from trainer.runs.first_events import settle, settle_rows
from trainer.runs.resume import begin_with, restore
from trainer.runs.saved_state import SEGMENTS, Saved
from trainer.runs.signals import StopAsked
from trainer.runs.stream import EventLoop, Loop, RowLoop
from trainer.runs.train_options import initial_model


def begin(
    spec: ModelSpec,
    asked: Asked,
    saved: Saved,
    keeper: Checkpoints,
    store: Store,
    stop: StopAsked,
    stack: ExitStack,
) -> Learner:
    """The learner, its model restored. Raises SpecError, InputError, CheckpointError, StoreUnavailable, Stopped."""
    if asked.once and saved.checkpoint is None:
        check_there(asked.sources)
    rows = kind_of(asked.sources, spec.input.label) == ROWS
    compile_loop(spec, asked.output)
    opened = begin_rows if rows else begin_events
    loop, sources = opened(spec, asked, saved, store, stop, stack)
    initial = _restored(loop, saved) if saved.checkpoint else _begun(loop.model, asked)
    return Learner(
        spec, loop, sources, asked.sources, keeper, saved, asked.max_lag_s, initial, asked.output.warn
    )


def begin_events(
    spec: ModelSpec, asked: Asked, saved: Saved, store: Store, stop: StopAsked, stack: ExitStack
) -> tuple[Loop, Sequence[Named]]:
    """Impressions and feedback, which are joined."""
    resolved = _before(spec, saved) or settle(
        *(spec, asked.sources, store, stop), once=asked.once, output=asked.output
    )
    sources = open_sources(asked.sources, spec, store, saved.positions, asked.output.warn, once=asked.once)
    segments = Segments(asked.folder / SEGMENTS, asked.memory_bytes)
    merger = Merger(
        *(sources, Wanted.of(resolved), segments),
        positions=saved.positions,
        idle_s=asked.idle_s,
        once=asked.once,
        on_note=asked.output.warn,
    )
    stack.callback(merger.close)
    model, letters = _model(resolved, asked), _letters(spec, asked, saved, store)
    return EventLoop(merger, Join(resolved.join), segments, model, letters, counts=saved.counts), sources


def begin_rows(
    spec: ModelSpec, asked: Asked, saved: Saved, store: Store, stop: StopAsked, stack: ExitStack
) -> tuple[Loop, Sequence[Named]]:
    """Rows that have their label already."""
    source = open_rows(asked.sources, spec, saved.positions, asked.output.warn, once=asked.once)
    stack.callback(source.close)
    resolved = _before(spec, saved) or settle_rows(spec, source, stop, once=asked.once, output=asked.output)
    model, letters = _model(resolved, asked), _letters(spec, asked, saved, store)
    return RowLoop(source, saved.positions, model, letters, saved.counts, once=asked.once), [source]


def _model(resolved: ModelSpec, asked: Asked) -> LearningModel:
    return LearningModel(ExampleMaker(resolved), keep_seen=asked.publish is not None)


def _letters(spec: ModelSpec, asked: Asked, saved: Saved, store: Store) -> Letters:
    name = spec.model.name
    return Letters(
        store.dead_letters(name),
        saved.part("letters"),
        lambda text: asked.output.warn(f"{text}, and listed by: ftrie store dead {name}"),
    )


def _restored(loop: Loop, saved: Saved) -> str | None:
    """Give the loop the checkpoint's state; returns the SHA-256 of the model that the first run began with."""
    assert saved.checkpoint is not None
    restore(loop, saved.checkpoint)
    return saved.checkpoint.description.initial


def _begun(model: LearningModel, asked: Asked) -> str | None:
    """Begin with the published model that was asked for, if one was; returns its SHA-256."""
    initial = initial_model(model.spec, asked.init_from, asked.store)
    if initial is None:
        if kind_of(asked.sources, model.spec.input.label) != ROWS:
            asked.output.note(
                f"beginning with no model: until the first window of {model.spec.join.window} has closed only clicks "
                "are learned from; --init-from begins with a published model, `ftrie replay` makes one of a log"
            )
        return None
    return begin_with(initial, model, asked.output.note, asked.output.warn)


def _before(spec: ModelSpec, saved: Saved) -> ModelSpec | None:
    """The spec with its fields named, as it was when the first run began; the guard is that of this run."""
    if saved.checkpoint is None:
        return None
    before = spec_from_json(saved.checkpoint.description.resolved, str(saved.checkpoint.path))
    return before.model_copy(update={"guard": spec.guard})
