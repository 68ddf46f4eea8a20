"""How a run begins: with the first row and no model, with a published model, or where an earlier run has stopped."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import numpy.typing as npt

from model_store.artefact.artefact import Artefact
from model_store.errors import CheckpointError, InputError, SpecError
from model_store.spec.spec import ModelSpec, spec_from_json
from trainer.checkpoint import Checkpoint
from trainer.examples.open_log import Log, RunStart
from trainer.learn.model import LearningModel
from trainer.learn.warm_start import NO_FEATURE, features_of_keys


def go_on(spec: ModelSpec, earlier: Checkpoint, log: Log) -> RunStart:
    """What was settled when the run began; the columns of this log have no say in it."""
    before = earlier.description
    sides = {table.name: table.sha256 for table in log.tables}
    _check_sides(before.sides, sides)
    for name in (name for name in sides if sides[name] != before.sides[name]):
        log.on_note(
            f"the file of {name} has changed since the checkpoint; rows from here on are joined with the new one"
        )
    resolved = spec_from_json(before.resolved, str(earlier.path)).model_copy(update={"guard": spec.guard})
    return RunStart(
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
