"""Which fields a trainer has, and what they learn: resolved once, by the first impressions or the first file."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager

import pyarrow as pa

from model_store.errors import InputError, SpecError, Stopped
from model_store.spec.spec import ModelSpec
from model_store.store import Store
from model_store.waiting import StopRequest
from trainer.events.columns import Wanted, resolve_fields
from trainer.events.events import IMPRESSION, READ_BYTES, Source
from trainer.events.histories import EventHistories
from trainer.events.join import EventCounts
from trainer.events.parse import gathered
from trainer.examples.derived import DerivedColumns, RowHistories
from trainer.examples.learned import Columns, with_learned
from trainer.output import SILENT, Output
from trainer.runs import status
from trainer.sources.files import RowSource
from trainer.sources.merge import Merger
from trainer.sources.open_sources import open_rows, open_sources

LOOK_EVERY_S = 0.5
ENOUGH = 100
"""After this many impressions without one of the spec's fields the spec is wrong."""
LEARNED_FROM = 1_000
"""This many rows, or items shown, must be there before fields learn from them."""
_ITEMS = b'"items"'


def resolve_by_impressions(
    spec: ModelSpec,
    names: Sequence[str],
    store: Store,
    stop: StopRequest,
    *,
    once: bool = False,
    known: Sequence[ModelSpec] = (),
    output: Output = SILENT,
) -> ModelSpec:
    """The spec with its fields resolved or checked by the first impressions in the sources.

    Without `once` it waits: for an impression if the spec has no [fields], for ENOUGH of them if they lack a field, for
    LEARNED_FROM items if a field has to learn. known: see `open_log`. Raises SpecError, InputError, StoreUnavailable,
    and Stopped if a signal comes meanwhile.
    """
    reported, reported_idle, began_s = "", False, time.monotonic()
    while True:
        data = first_events(spec, names, store)
        if not data and not reported_idle and time.monotonic() - began_s >= status.IDLE_AFTER_S:
            reported_idle = True
            with _opened(spec, names, store) as sources:
                output.warn(status.idle_reason(spec.model.name, sources, EventCounts()))
        try:
            resolved = resolve_fields(spec, data, names).with_learned_of(known)
            least = 0 if once or not resolved.has_to_learn else LEARNED_FROM
            if found := with_learned([resolved], items_shown(resolved, names, store), output.warn, least):
                return found[0]
            missing = f"fields learn from the first items shown, at least {LEARNED_FROM:,}"
        except SpecError as error:
            # One read returns about READ_BYTES of impressions at most.
            sizes = [len(line) for line in data.splitlines() if _ITEMS in line]
            many = len(sizes) >= ENOUGH or sum(sizes) >= READ_BYTES // 2
            if once or (many if spec.fields else sizes):  # more would change nothing
                raise
            missing = str(error).partition(";")[0]
        if reported != missing:
            output.warn(f"waiting for more impressions: {missing}")
            reported = missing
        _wait(stop, "a first impression")


def resolve_by_file(
    spec: ModelSpec,
    source: RowSource,
    stop: StopRequest,
    *,
    once: bool = False,
    known: Sequence[ModelSpec] = (),
    output: Output = SILENT,
) -> ModelSpec:
    """The spec resolved by the columns of the first file. Without `once` it waits for that.

    Fields learn from the rows that are there; without `once` it waits for LEARNED_FROM of them. known: see `open_log`.

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
        _wait(stop, "a first file")
    resolved = spec.resolve(columns).with_columns(source.columns_without_header).with_learned_of(known)
    while resolved.has_to_learn:
        rows, least = _rows_of_file(resolved, source.name), 0 if once else LEARNED_FROM
        if found := with_learned([resolved], rows, output.warn, least):
            return found[0]
        if not reported:
            output.note(
                f"waiting for the first {LEARNED_FROM:,} rows of {source.name}, from which fields learn"
            )
            reported = True
        _wait(stop, "the first rows")
    return resolved


def _rows_of_file(spec: ModelSpec, name: str) -> Iterator[tuple[Columns, int]]:
    histories, derived = RowHistories.of(spec), DerivedColumns(spec)
    with closing(open_rows([name], spec, once=True)) as source:
        while (rows := source.read(spec.wanted_columns())) is not None:
            batch = rows.batch if histories is None else histories.fill(rows.batch)
            for filled in derived.of([batch]):
                yield filled.columns, filled.rows


def items_shown(spec: ModelSpec, names: Sequence[str], store: Store | None) -> Iterator[tuple[Columns, int]]:
    """The items of all impressions, in the order of the events, with the values of derived and history fields.

    Nothing is consumed. Raises InputError, StoreUnavailable.
    """
    latest, histories = _LatestRows(), EventHistories.of(spec)
    sources = open_sources(names, spec, store, once=True)
    with closing(Merger(sources, Wanted.of(spec), latest, once=True)) as merger:
        while not merger.ended:
            merged = merger.poll(LOOK_EVERY_S)
            if merged is None:
                continue
            if histories is not None:
                histories.take(merged, latest)
            shown = merged.kind == IMPRESSION
            if merged.rows[shown].any():
                at = pa.array(gathered(merged.row[shown], merged.rows[shown]))
                yield {name: column.take(at) for name, column in latest.table(0).items()}, len(at)


class _LatestRows:
    """The rows that a merger has added last, as segment number 0."""

    def add(self, columns: Mapping[str, pa.Array], /) -> int:
        self._columns = columns
        return 0

    def table(self, number: int, /) -> Mapping[str, pa.Array]:
        return self._columns

    def replace(self, number: int, columns: Mapping[str, pa.Array], /) -> None:
        self._columns = columns


def first_events(spec: ModelSpec, names: Sequence[str], store: Store | None) -> bytes:
    """The result of one read of each source from its beginning. Nothing is consumed."""
    with _opened(spec, names, store) as sources:
        chunks = [source.read() for source in sources]
    return b"".join(chunk.data for chunk in chunks if chunk is not None)


@contextmanager
def _opened(spec: ModelSpec, names: Sequence[str], store: Store | None) -> Iterator[list[Source]]:
    sources = open_sources(names, spec, store, once=True)
    try:
        yield sources
    finally:
        for source in sources:
            source.close()


def _wait(stop: StopRequest, what: str) -> None:
    if stop.wait(LOOK_EVERY_S):
        raise Stopped(f"stopped while waiting for {what}", stop.number)
