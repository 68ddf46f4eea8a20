"""Which fields a trainer learns from: resolved once, by the first impressions or the first file it reads."""

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
from trainer.runs import status
from trainer.runs.signals import StopRequest
from trainer.runs.stream import Counts

LOOK_EVERY_S = 0.5
ENOUGH = 100
"""After so many impressions without one of the spec's fields the spec is wrong."""
_ITEMS = b'"items"'


def resolve_by_impressions(
    spec: ModelSpec,
    names: Sequence[str],
    store: Store,
    stop: StopRequest,
    *,
    once: bool = False,
    output: Output = SILENT,
) -> ModelSpec:
    """The spec with its fields resolved or checked by the first impressions in the sources.

    Without `once` it waits: for an impression if the spec has no [fields], for ENOUGH of them if they lack a field.
    Raises SpecError, InputError, StoreUnavailable, and Stopped if a signal comes meanwhile.
    """
    reported, reported_idle, began_s = "", False, time.monotonic()
    while True:
        data = first_events(spec, names, store)
        if not data and not reported_idle and time.monotonic() - began_s >= status.IDLE_AFTER_S:
            reported_idle = True
            output.warn(_idle_reason(spec, names, store))
        try:
            return resolve_fields(spec, data, names)
        except SpecError as error:
            if once or _is_enough(spec, data):
                raise
            missing = str(error).partition(";")[0]
        if reported != missing:
            output.warn(f"waiting for more impressions: {missing}")
            reported = missing
        if stop.wait(LOOK_EVERY_S):
            raise Stopped("stopped while waiting for a first impression", stop.number)


def resolve_by_file(
    spec: ModelSpec, source: RowSource, stop: StopRequest, *, once: bool = False, output: Output = SILENT
) -> ModelSpec:
    """The spec resolved by the columns of the first file. Without `once` it waits for that.

    Raises SpecError, InputError, and Stopped if a signal comes meanwhile.
    """
    if spec.learner.subsample is not None:
        raise SpecError(
            "learner.subsample: in a file that grows it is unknown whether all rows of a request are there; leave it "
            "out, or learn from impressions and clicks"
        )
    listed = [name for name, field in spec.fields.items() if field.list is not None]
    if listed:
        raise SpecError(
            f"fields.{listed[0]}: list compares the rows of a request, and in a file that grows it is unknown whether "
            "all of them are there; learn from impressions and clicks, or use `ftrie train`"
        )
    reported = False
    while (columns := source.columns()) is None:
        if once:
            raise InputError(f"{source.name}: there is no file of rows; expected one")
        if not reported:
            output.note(f"waiting for a first file of {source.name}")
            reported = True
        if stop.wait(LOOK_EVERY_S):
            raise Stopped("stopped while waiting for a first file", stop.number)
    return spec.resolve(columns).with_columns(source.columns_without_header)


def first_events(spec: ModelSpec, names: Sequence[str], store: Store | None) -> bytes:
    """The result of one read of each source from its beginning. Nothing is consumed."""
    sources = open_sources(names, spec, store, (), lambda text: None, once=True)
    try:
        chunks = [source.read() for source in sources]
    finally:
        for source in sources:
            source.close()
    return b"".join(chunk.data for chunk in chunks if chunk is not None)


def _is_enough(spec: ModelSpec, data: bytes) -> bool:
    """Whether more impressions would change nothing. One read returns about READ_BYTES of them at most."""
    sizes = [len(line) for line in data.splitlines() if _ITEMS in line]
    return len(sizes) >= ENOUGH or sum(sizes) >= READ_BYTES // 2 if spec.fields else bool(sizes)


def _idle_reason(spec: ModelSpec, names: Sequence[str], store: Store) -> str:
    sources = open_sources(names, spec, store, (), lambda text: None, once=True)
    try:
        return status.idle_reason(spec.model.name, sources, Counts())
    finally:
        for source in sources:
            source.close()
