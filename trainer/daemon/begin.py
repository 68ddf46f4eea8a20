"""How a trainer begins: with nothing, or where its last checkpoint stands. Opens the sources and makes the model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from model_store.spec import ModelSpec, spec_from_json
from model_store.store import Store
from model_store.terminal import note, warn
from trainer.asked import initial_model
from trainer.beginning import begin_with, restore
from trainer.checkpoint import Keeper
from trainer.daemon.asked import Asked
from trainer.daemon.compiling import compile_loop
from trainer.daemon.learner import Learner, Named
from trainer.daemon.letters import Letters
from trainer.daemon.loop import EventLoop, Loop
from trainer.daemon.row_loop import RowLoop
from trainer.daemon.saving import SEGMENTS, Saved
from trainer.daemon.settling import settle, settle_rows
from trainer.daemon.signals import StopAsked
from trainer.events.merging import Merger
from trainer.events.sources.opening import check_there, open_sources
from trainer.events.sources.row_opening import are_rows, open_rows
from trainer.events.wanted import Wanted
from trainer.hashing.examples import ExampleMaker
from trainer.joining.join import Join
from trainer.joining.segments import Segments
from trainer.model import LearningModel


def begin(
    spec: ModelSpec,
    asked: Asked,
    saved: Saved,
    keeper: Keeper,
    store: Store,
    stop: StopAsked,
    stack: ExitStack,
) -> Learner:
    """The learner, its model restored. Raises SpecError, InputError, CheckpointError, StoreUnavailable, Stopped."""
    if asked.once and saved.checkpoint is None:
        check_there(asked.sources)
    rows = are_rows(asked.sources, spec)
    compile_loop(spec)
    opened = begin_rows if rows else begin_events
    loop, sources = opened(spec, asked, saved, store, stop, stack)
    initial = _restored(loop, saved) if saved.checkpoint else _begun(loop.model, asked)
    return Learner(spec, loop, sources, asked.sources, keeper, saved, asked.max_lag_s, initial)


def begin_events(
    spec: ModelSpec, asked: Asked, saved: Saved, store: Store, stop: StopAsked, stack: ExitStack
) -> tuple[Loop, Sequence[Named]]:
    """Impressions and feedback, which are joined."""
    resolved = _before(spec, saved) or settle(spec, asked.sources, store, stop, once=asked.once)
    sources = open_sources(asked.sources, spec, store, saved.places, warn, once=asked.once)
    segments = Segments(asked.folder / SEGMENTS, asked.memory_bytes)
    merger = Merger(
        *(sources, Wanted.of(resolved), segments),
        places=saved.places,
        idle_s=asked.idle_s,
        once=asked.once,
        on_note=warn,
    )
    stack.callback(merger.close)
    model, letters = _model(resolved, asked), _letters(spec, saved, store)
    return EventLoop(merger, Join(resolved.join), segments, model, letters, counts=saved.counts), sources


def begin_rows(
    spec: ModelSpec, asked: Asked, saved: Saved, store: Store, stop: StopAsked, stack: ExitStack
) -> tuple[Loop, Sequence[Named]]:
    """Rows that have their label already."""
    source = open_rows(asked.sources, spec, saved.places, warn, once=asked.once)
    stack.callback(source.close)
    resolved = _before(spec, saved) or settle_rows(spec, source, stop, once=asked.once)
    model, letters = _model(resolved, asked), _letters(spec, saved, store)
    return RowLoop(source, saved.places, model, letters, saved.counts, once=asked.once), [source]


def _model(resolved: ModelSpec, asked: Asked) -> LearningModel:
    return LearningModel(ExampleMaker(resolved), keep_seen=asked.publish is not None)


def _letters(spec: ModelSpec, saved: Saved, store: Store) -> Letters:
    name = spec.model.name
    return Letters(
        store.dead_letters(name),
        saved.part("letters"),
        lambda text: warn(f"{text}, and listed by: ftrie store dead {name}"),
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
        if not are_rows(asked.sources, model.spec):
            note(
                f"beginning with no model: until the first window of {model.spec.join.window} has closed only clicks "
                "are learned from; --init-from begins with a published model, `ftrie replay` makes one of a log"
            )
        return None
    return begin_with(initial, model, note, warn)


def _before(spec: ModelSpec, saved: Saved) -> ModelSpec | None:
    """The spec with its fields named, as it was when the first run began; the guard is that of this run."""
    if saved.checkpoint is None:
        return None
    before = spec_from_json(saved.checkpoint.description.resolved, str(saved.checkpoint.path))
    return before.model_copy(update={"guard": spec.guard})
