"""Which of the names that a user gives hold labelled rows instead of events, and opening those."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from model_store.errors import InputError
from model_store.spec import ModelSpec
from trainer.events.events import Place
from trainer.events.sources.rows import RowSource
from trainer.sources.formats import format_by_name

ROWS = "rows="


def are_rows(names: Sequence[str], spec: ModelSpec) -> bool:
    """True if the names hold labelled rows: they say rows=PATH, or are files whose rows have the spec's label.

    An event has no label: it is what the join makes of it. Raises InputError where rows and events are named together:
    rows have no place in the order of events.
    """
    found = [name.startswith(ROWS) or _has_label(name, spec.input.label) for name in names]
    if any(found) and len(names) > 1:
        raise InputError(
            f"{names[found.index(True)]} holds labelled rows, which are read in the order of their files; name it "
            "alone: one file, folder or glob"
        )
    return any(found)


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


def _has_label(name: str, label: str) -> bool:
    """True if the first file that the name stands for has the label among its columns."""
    if "://" in name or "=" in name or name == "store" or name.startswith(("embedded:", "store#")):
        return False
    source = RowSource(name, {}, lambda text: None, once=True)
    try:
        columns = source.columns()
    except InputError:
        return False
    finally:
        source.close()
    if columns is None:
        return format_by_name(name) in ("csv", "tsv")
    return label in columns
