"""How a run begins: with the first row and no model, with a published model, or where an earlier run has stopped."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from model_store.artefact import Artefact
from model_store.errors import CheckpointError, InputError, SpecError
from model_store.spec import ModelSpec, spec_from_json
from trainer.checkpoint import Checkpoint
from trainer.model import LearningModel
from trainer.side_tables import SideTable
from trainer.sources import LogReader, ReadFile
from trainer.warm_start import NO_FEATURE, features_of_keys


@dataclass(frozen=True)
class Beginning:
    """What stays the same over all the runs that go on from one another, and where the one before has stopped.

    spec: as given; resolved: by the first log; columns: what is read from the log; sides: SHA-256 of the files of items
    and users; initial: of the model begun with. read: how far each file was read; rows_read: rows delivered, learned
    from or not; subsampled: of them, not drawn; minus_labels: rows whose label is written as -1; seconds: what all the
    runs took.
    """

    spec: ModelSpec
    resolved: ModelSpec
    columns: tuple[str, ...]
    sides: dict[str, str]
    initial: str | None = None
    read: tuple[ReadFile, ...] = ()
    rows_read: int = 0
    subsampled: int = 0
    minus_labels: int = 0
    seconds: float = 0.0


def begin(
    spec: ModelSpec, reader: LogReader, tables: Sequence[SideTable], on_note: Callable[[str], None]
) -> Beginning:
    """Resolve the spec by the log's columns, then those that only a table has."""
    in_log = (*reader.columns(), *_expected_later(spec, reader, tables, on_note))
    names = dict.fromkeys(in_log)
    for table in tables:
        if table.key not in in_log:
            raise SpecError(f"input: no column {table.key!r} in the log; it has: {', '.join(in_log)}")
        names |= dict.fromkeys(table.columns)
    resolved = spec.resolve(tuple(names), reader.kinds())
    wanted = dict.fromkeys((*resolved.wanted_columns(), *(table.key for table in tables)))
    columns = tuple(name for name in wanted if name in in_log)
    return Beginning(spec, resolved, columns, {table.name: table.sha256 for table in tables})


def _expected_later(
    spec: ModelSpec, reader: LogReader, tables: Sequence[SideTable], on_note: Callable[[str], None]
) -> tuple[str, ...]:
    """The columns of fields that no row has named so far, but that rows farther down may."""
    known = {*reader.columns(), *(name for table in tables for name in table.columns)}
    columns = dict.fromkeys(field.column or name for name, field in spec.fields.items())
    later = tuple(name for name in columns if name not in known and reader.may_have(name))
    missing = [
        name for name in later if name not in reader.kinds()
    ]  # an object is there, though no column yet
    if missing:
        on_note(f"no row at the log's beginning has {', '.join(missing)}: without a value until one does")
    return later


def go_on(
    spec: ModelSpec, earlier: Checkpoint, tables: Sequence[SideTable], on_note: Callable[[str], None]
) -> Beginning:
    """What was settled when the run began; the columns of this log have no say in it."""
    before = earlier.description
    sides = {table.name: table.sha256 for table in tables}
    _check_sides(before.sides, sides)
    for name in (name for name in sides if sides[name] != before.sides[name]):
        on_note(
            f"the file of {name} has changed since the checkpoint; rows from here on are joined with the new one"
        )
    resolved = spec_from_json(before.resolved, str(earlier.path)).model_copy(update={"guard": spec.guard})
    return Beginning(
        spec=spec,
        resolved=resolved,
        columns=before.columns,
        sides=sides,
        initial=before.initial,
        read=before.read,
        seconds=before.seconds,
        rows_read=before.rows_read,
        subsampled=before.subsampled,
        minus_labels=before.minus_labels,
    )


class Restorable(Protocol):
    """What takes over the arrays of a checkpoint."""

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]], /) -> None:
        """Take them over. KeyError, ValueError, TypeError or IndexError where they are not what it wrote."""


def begin_with(
    initial: Artefact,
    model: LearningModel,
    on_note: Callable[[str], None],
    on_warning: Callable[[str], None],
) -> str:
    """Give a new model the keys of a published one; returns its SHA-256.

    Raises SpecError if no key is of the spec, or its learner cannot begin so. Where most keys are of other fields or
    crosses, that is a warning: the model begins with little.
    """
    taken = model.warm_start(initial)
    features = features_of_keys(initial, model.maker)
    if (features == NO_FEATURE).any() and not (features > 0).any():  # 0 is the bias, a key of every model
        raise SpecError(
            "no key of the model to begin with is of a field or cross of this spec: it was learned from the fields "
            f"{', '.join(initial.spec.fields)}; this spec has {', '.join(model.spec.fields)}"
        )
    begun = (
        f"beginning with {taken:,} of the {initial.rows:,} keys of the model of {initial.spec.model.name!r}"
    )
    if 2 * int((features == NO_FEATURE).sum()) > initial.rows:
        on_warning(
            f"{begun}: most are of fields or crosses that this spec does not have. That model was learned from "
            f"{_owners(initial.spec)}; this spec has {_owners(model.spec)}"
        )
    else:
        on_note(begun)
    return initial.sha256


def restore(what: Restorable, earlier: Checkpoint) -> None:
    """Give a new model, or a trainer's loop, the state of a checkpoint. CheckpointError if it is of another layout."""
    try:
        what.restore(earlier.arrays)
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise of_another_layout(earlier, error) from error


def of_another_layout(earlier: Checkpoint, error: Exception) -> CheckpointError:
    """A sound checkpoint that does not hold what this ftrie needs of it."""
    missing = f"no {error}" if isinstance(error, KeyError) else str(error)
    return CheckpointError(
        f"{earlier.path} does not hold the state of this ftrie's learners ({missing}); it was written by ftrie "
        f"{earlier.description.ftrie}: go on with that one, or begin anew with another folder"
    )


def _owners(spec: ModelSpec) -> str:
    return ", ".join([*spec.fields, *("*".join(cross.fields) for cross in spec.crosses)])


def _check_sides(earlier: Collection[str], now: Collection[str]) -> None:
    """Raise InputError unless the same files of items and users are joined as in the run before."""
    for name in ("items", "users"):
        if (name in earlier) != (name in now):
            said = "with" if name in earlier else "without"
            raise InputError(f"the run to go on with was begun {said} --{name}; give the same")
