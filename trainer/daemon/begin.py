"""How a trainer begins: with nothing, or where its last checkpoint stands. Opens the sources and makes the model."""

from __future__ import annotations

from contextlib import ExitStack

from model_store.spec import ModelSpec, spec_from_json
from model_store.store import Store
from model_store.terminal import note, warn
from trainer.asked import initial_model
from trainer.checkpoint import Keeper
from trainer.daemon.asked import Asked
from trainer.daemon.compiling import compile_loop
from trainer.daemon.learner import Learner
from trainer.daemon.letters import Letters
from trainer.daemon.loop import EventLoop
from trainer.daemon.saving import SEGMENTS, Saved
from trainer.daemon.settling import settle
from trainer.daemon.signals import StopAsked
from trainer.events.merging import Merger
from trainer.events.sources.opening import open_sources
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
    compile_loop(spec)
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
    publishes = asked.publish is not None
    loop = EventLoop(
        merger,
        Join(resolved.join),
        segments,
        LearningModel(ExampleMaker(resolved), keep_seen=publishes),
        Letters(store.dead_letters(spec.model.name), saved.part("letters")),
        counts=saved.counts,
    )
    initial = _restored(loop, saved) if saved.checkpoint else _begun(loop.model, asked)
    return Learner(spec, loop, sources, asked.sources, keeper, saved, asked.max_lag_s, initial)


def _restored(loop: EventLoop, saved: Saved) -> str | None:
    """Give the loop the checkpoint's state; returns the SHA-256 of the model that the first run began with."""
    assert saved.checkpoint is not None
    loop.restore(saved.checkpoint.arrays)
    return saved.checkpoint.description.initial


def _begun(model: LearningModel, asked: Asked) -> str | None:
    """Begin with the published model that was asked for, if one was; returns its SHA-256."""
    initial = initial_model(model.spec, asked.init_from, asked.store)
    if initial is None:
        return None
    note(f"beginning with {model.warm_start(initial):,} of the {initial.rows:,} keys of {asked.init_from}")
    return initial.sha256


def _before(spec: ModelSpec, saved: Saved) -> ModelSpec | None:
    """The spec with its fields named, as it was when the first run began; the guard is that of this run."""
    if saved.checkpoint is None:
        return None
    before = spec_from_json(saved.checkpoint.description.resolved, str(saved.checkpoint.path))
    return before.model_copy(update={"guard": spec.guard})
