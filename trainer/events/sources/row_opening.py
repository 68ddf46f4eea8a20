"""Which of the names that a user gives hold labelled rows instead of events, for trainer and replay; opening rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from model_store.errors import InputError
from model_store.spec import ModelSpec
from trainer.events.events import Place
from trainer.events.sources.chain import FileChain
from trainer.events.sources.opening import KINDS, STORE
from trainer.events.sources.row_format import format_of
from trainer.events.sources.rows import RowSource
from trainer.sources import json_rows
from trainer.sources.formats import format_by_name

ROWS = "rows="
_JSON = (None, "jsonl")


def are_rows(names: Sequence[str], spec: ModelSpec) -> bool:
    """True if the names hold labelled rows. Raises InputError where more than the one source of rows is named.

    Rows have no place in the order of events.
    """
    found = [holds_rows(name, spec.input.label) for name in names]
    if any(found) and len(names) > 1:
        raise InputError(
            f"{names[found.index(True)]} holds labelled rows, which are read in the order of their files; name it "
            "alone: one file, folder or glob"
        )
    return any(found)


def holds_rows(name: str, label: str) -> bool:
    """True for rows=PATH, and for a path whose first file holds rows; where there is none yet, by its extension.

    CSV, TSV, Parquet and the formats whose rows name their features hold nothing but rows. JSON lines hold rows if the
    label is among the columns of their first 64 KiB: an event has no label, it is what the join makes of it.
    """
    kind, equals, _ = name.partition("=")
    if equals and f"{kind}=" == ROWS:
        return True
    is_stream = "://" in name or name.partition("#")[0] == STORE or name.startswith("embedded:")
    if is_stream or (equals and kind in KINDS):
        return False
    chain = FileChain(name, {}, lambda text: None, once=True, least_lines=2)
    try:
        found = chain.first()
        if found is None:
            return format_by_name(name) not in _JSON
        record, opened = found
        head = opened.head()
        return format_of(record.path, head) not in _JSON or label in json_rows.columns(head)
    except InputError:
        return False
    finally:
        chain.close()


def open_rows(
    names: Sequence[str],
    spec: ModelSpec,
    places: Sequence[Place] = (),
    on_note: Callable[[str], None] = lambda text: None,
    *,
    once: bool = False,
) -> RowSource:
    """The one source of rows, at its place; see `open_sources`. Raises InputError for a place of another source."""
    [name] = (each.removeprefix(ROWS) for each in names)
    if not name or "://" in name:
        raise InputError(f"{ROWS}{name}: expected a file, a folder or a glob of CSV, TSV or JSON lines")
    read = next((place["source"] for place in places if "source" in place), name)
    if read != name:
        raise InputError(
            f"the checkpoint has read {read}; the source is now {name}; name the same one, or begin anew with another "
            "folder of checkpoints"
        )
    fields = [(field.column or key, field) for key, field in spec.fields.items()]
    return RowSource(
        *(name, places[0] if places else {}, on_note),
        once=once,
        objects=frozenset(column for column, field in fields if field.kind == "set"),
        optional=frozenset(column for column, field in fields if field.optional),
    )
