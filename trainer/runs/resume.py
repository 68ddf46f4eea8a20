"""Where a run starts: with an empty model, with the keys of a published model (`--init-from`), or from a checkpoint.

`ftrie train` and `ftrie trainer` start in the same way: `resumed_start` or `resumed_spec` returns what an earlier run
had resolved, and `start_model` gives the new model its state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

import numpy.typing as npt

from model_store.artefact.artefact import Artefact
from model_store.errors import CheckpointError, InputError, SpecError, UsageError
from model_store.model_files import read_named
from model_store.spec.spec import ModelSpec, spec_from_json
from trainer.checkpoint import Checkpoint
from trainer.checkpoint.description import Description
from trainer.examples.open_log import Log, RunStart
from trainer.formats.rejects import RowCounts
from trainer.learn.learners.registry import check_start
from trainer.learn.model import LearningModel
from trainer.learn.warm_start import NO_FEATURE, features_of_keys
from trainer.output import Output

ACTIVE = "active"


class Restorable(Protocol):
    """A model, or a loop around one, whose state a checkpoint holds."""

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]], /) -> None:
        """Take over the arrays. Raises KeyError, ValueError, TypeError or IndexError if they are of another layout."""


def initial_model(spec: ModelSpec, init_from: str | None, store: str) -> Artefact | None:
    """The model that `--init-from` names: a file, a version of this model in the store, or its active version.

    Raises SpecError where no model can start the spec's learner.
    """
    if init_from is None:
        return None
    check_start(spec.learner)
    if init_from.endswith(".arrow"):
        return read_named(init_from, store).artefact
    if init_from == ACTIVE:
        return read_named(spec.model.name, store).artefact
    if init_from.isascii() and init_from.isdigit():
        return read_named(f"{spec.model.name}:{init_from}", store).artefact
    raise UsageError(
        f"--init-from {init_from!r}: expected a version of {spec.model.name!r} in the store such as 7, "
        f"{ACTIVE!r}, or a file ending in .arrow"
    )


def resumed_start(spec: ModelSpec, checkpoint: Checkpoint, log: Log, output: Output) -> RunStart:
    """Where a run over logs resumes: columns and kinds as the first run resolved them. Raises InputError."""
    before = checkpoint.description
    sides = {table.name: table.sha256 for table in log.tables}
    _check_sides(before.sides, sides)
    for name in (name for name in sides if sides[name] != before.sides[name]):
        output.note(
            f"the file of {name} has changed since the checkpoint; from here on, rows are joined with the new one"
        )
    return start_of(before, spec, resumed_spec(spec, checkpoint), sides)


def start_of(before: Description, spec: ModelSpec, resolved: ModelSpec, sides: dict[str, str]) -> RunStart:
    """Where a run starts that continues the one described; spec: as given, resolved: by the first run."""
    return RunStart(
        spec=spec,
        resolved=resolved,
        columns=before.columns,
        sides=sides,
        initial=before.initial,
        read=before.read,
        seconds=before.seconds,
        counts=RowCounts(before.rows_read, before.subsampled, before.minus_labels, before.doubled),
    )


def resumed_spec(spec: ModelSpec, checkpoint: Checkpoint) -> ModelSpec:
    """The spec as the first run resolved it, with this run's [guard]."""
    resolved = spec_from_json(checkpoint.description.resolved, str(checkpoint.path))
    return resolved.model_copy(update={"guard": spec.guard})


def start_model(
    model: LearningModel,
    output: Output,
    *,
    checkpoint: Checkpoint | None,
    initial: Artefact | None,
    whole: Restorable | None = None,
) -> str | None:
    """Give a new model its state: the checkpoint's, else the keys of the published model `initial`, else none.

    whole: what the checkpoint restores if it holds more than the model. Returns the SHA-256 of the published model that
    the first run started from. Raises CheckpointError, SpecError.
    """
    if checkpoint is not None:
        _restore(whole or model, checkpoint)
        return checkpoint.description.initial
    return _warm_start(model, initial, output) if initial is not None else None


def layout_error(checkpoint: Checkpoint, error: Exception) -> CheckpointError:
    """The error for an undamaged checkpoint that lacks state which this version needs."""
    missing = f"no {error}" if isinstance(error, KeyError) else str(error)
    return CheckpointError(
        f"{checkpoint.path} does not hold the state of this ftrie's learners ({missing}); it was written by ftrie "
        f"{checkpoint.description.ftrie}: resume with that version, or start again with another folder"
    )


def _restore(what: Restorable, checkpoint: Checkpoint) -> None:
    try:
        what.restore(checkpoint.arrays)
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise layout_error(checkpoint, error) from error


def _warm_start(model: LearningModel, initial: Artefact, output: Output) -> str:
    """Give a new model the keys of a published one; returns its SHA-256.

    Raises SpecError if the spec has none of the keys' fields, or its learner cannot be warm-started. If most keys are
    of fields or crosses that the spec lacks, that is a warning.
    """
    taken = model.warm_start(initial)
    features = features_of_keys(initial, model.maker)
    if (features == NO_FEATURE).any() and not (features > 0).any():  # 0 is the bias, a key of every model
        raise SpecError(
            "no key of the model to start from is of a field or cross of this spec: it was learned from the fields "
            f"{', '.join(initial.spec.fields)}; this spec has {', '.join(model.spec.fields)}"
        )
    started = (
        f"starting with {taken:,} of the {initial.rows:,} keys of the model of {initial.spec.model.name!r}"
    )
    if 2 * int((features == NO_FEATURE).sum()) > initial.rows:
        output.warn(
            f"{started}: most are of fields or crosses that this spec does not have. That model was learned from "
            f"{_fields_and_crosses(initial.spec)}; this spec has {_fields_and_crosses(model.spec)}"
        )
    else:
        output.note(started)
    return initial.sha256


def _fields_and_crosses(spec: ModelSpec) -> str:
    return ", ".join([*spec.fields, *("*".join(cross.fields) for cross in spec.crosses)])


def _check_sides(earlier: Collection[str], now: Collection[str]) -> None:
    """Raise InputError unless the run joins files of items and users exactly if the earlier run did."""
    for name in ("items", "users"):
        if (name in earlier) != (name in now):
            how = "with" if name in earlier else "without"
            raise InputError(f"the run to resume was started {how} --{name}; give the same")
