"""Which columns a trainer learns from: settled once, by its first impressions, and kept in its checkpoints."""

from __future__ import annotations

import time
from collections.abc import Sequence

from model_store.errors import InputError, SpecError, Stopped
from model_store.spec.spec import ModelSpec
from model_store.store import Store
from trainer.events.events import READ_BYTES
from trainer.events.fields import resolve_fields
from trainer.events.open_sources import open_sources
from trainer.events.rows import RowSource
from trainer.output import SILENT, Output
from trainer.runs import status as quiet
from trainer.runs.signals import StopAsked
from trainer.runs.stream import Counts

LOOK_EVERY_S = 0.5
ENOUGH = 100
"""Impressions without a field that the spec has: then it is the spec that is wrong, and not that it was early."""
_SHOWN = b'"items"'


def settle(
    spec: ModelSpec,
    names: Sequence[str],
    store: Store,
    stop: StopAsked,
    *,
    once: bool = False,
    output: Output = SILENT,
) -> ModelSpec:
    """The spec with its fields named, or checked against the first impressions that the sources have.

    A spec without [fields] waits for an impression, and a field that none has so far for ENOUGH of them, but with
    `once`. Raises SpecError, InputError, StoreUnavailable, and Stopped if a signal comes meanwhile.
    """
    told, told_quiet, began_s = "", False, time.monotonic()
    while True:
        data = first_events(spec, names, store)
        if not data and not told_quiet and time.monotonic() - began_s >= quiet.QUIET_S:
            told_quiet = True
            output.warn(_why_nothing(spec, names, store))
        try:
            return resolve_fields(spec, data, names)
        except SpecError as error:
            if once or _is_enough(spec, data):
                raise
            missing = str(error).partition(";")[0]
        if told != missing:
            output.warn(f"waiting for more impressions: {missing}")
            told = missing
        if stop.wait(LOOK_EVERY_S):
            raise Stopped("stopped while waiting for a first impression", stop.number)


def _is_enough(spec: ModelSpec, data: bytes) -> bool:
    """Whether waiting for more impressions would change nothing: one look brings about READ_BYTES of them at most."""
    shown = [len(line) for line in data.splitlines() if _SHOWN in line]
    return len(shown) >= ENOUGH or sum(shown) >= READ_BYTES // 2 if spec.fields else bool(shown)


def _why_nothing(spec: ModelSpec, names: Sequence[str], store: Store) -> str:
    sources = open_sources(names, spec, store, (), lambda text: None, once=True)
    try:
        return quiet.why_nothing(spec.model.name, sources, Counts())
    finally:
        for source in sources:
            source.close()


def settle_rows(
    spec: ModelSpec, source: RowSource, stop: StopAsked, *, once: bool = False, output: Output = SILENT
) -> ModelSpec:
    """The spec resolved by the columns of the first file, which is waited for, but with `once`.

    Raises SpecError, InputError, and Stopped if a signal comes meanwhile.
    """
    if spec.learner.subsample is not None:
        raise SpecError(
            "learner.subsample: rows of a file that grows cannot be told to be all of their request; leave it out, or "
            "learn from impressions and clicks"
        )
    told = False
    while (columns := source.columns()) is None:
        if once:
            raise InputError(f"{source.name}: there is no file of rows; expected one")
        if not told:
            output.note(f"waiting for a first file of {source.name}")
            told = True
        if stop.wait(LOOK_EVERY_S):
            raise Stopped("stopped while waiting for a first file", stop.number)
    return spec.resolve(columns)


def first_events(spec: ModelSpec, names: Sequence[str], store: Store | None) -> bytes:
    """What one read of each source brings, from its beginning; nothing is taken out of it."""
    sources = open_sources(names, spec, store, (), lambda text: None, once=True)
    try:
        stretches = [source.read() for source in sources]
    finally:
        for source in sources:
            source.close()
    return b"".join(chunk.data for chunk in stretches if chunk is not None)
