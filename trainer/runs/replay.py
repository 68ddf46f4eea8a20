"""`ftrie replay`: replay, save or publish, estimate."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from model_store.errors import InputError
from model_store.model_files import read_named
from model_store.spec.spec import ModelSpec
from model_store.store import Store
from trainer.events.fields import resolve_fields
from trainer.events.open_sources import EVENTS, ROWS, check_there, files_of_rows, kind_of, names_store
from trainer.examples.open_log import Log
from trainer.examples.side_tables import SideTable, side_tables
from trainer.learn.model import LearningModel
from trainer.logs.batch import STDIN
from trainer.logs.rejects import RejectLog, too_many_rejected
from trainer.off_policy.estimating import Estimates, EstimationRun, Read
from trainer.off_policy.logged import DECISION_LIST, DECISION_ROW, Layout, LoggedRows, LogOfRows
from trainer.off_policy.policies import EstimatorOptions, PolicyName, parse_choice
from trainer.output import Output, Progress
from trainer.runs.first_events import first_events
from trainer.runs.replay_logs import Replayed, replay_rows
from trainer.runs.warmup import (
    announce_scoring,
    compile_kernels,
    formats_of,
    kernels_are_ready,
    mark_scoring,
)

if TYPE_CHECKING:
    from trainer.runs.replay_logs import JoinedTap
    from trainer.runs.stream import EventLoop


@dataclass(frozen=True)
class Asked:
    """The flags of one replay, as they were given."""

    policies: tuple[str, ...]
    choices: tuple[str, ...]
    decision: str | None
    propensity: str | None
    position: str | None
    clip: float | None
    bootstrap: int
    seed: int
    without: tuple[str, ...]
    items: Path | None
    users: Path | None
    format: str | None
    rejects: Path | None
    threads: int | None
    save: Path | None
    publish: bool
    force: bool
    store: str


@dataclass(frozen=True)
class Done:
    """A replay, the model's SHA-256, its version if it was published, and the estimates that were asked for."""

    name: str
    replayed: Replayed
    sha256: str
    version: int | None
    estimates: Estimates | None

    def as_dict(self) -> dict[str, object]:
        """The JSON form."""
        return {
            "model": self.name,
            **self.replayed.as_dict(),
            "sha256": self.sha256,
            "version": self.version,
            "estimates": self.estimates.as_dict() if self.estimates is not None else None,
        }


def run(spec: ModelSpec, logs: list[str], asked: Asked, output: Output) -> Done:
    """Replay, then save, publish and estimate. Raises FtrieError."""
    check_there([log for log in logs if log != STDIN])
    kind = kind_of(logs, spec.input.label, asked.format)
    if asked.policies and STDIN in logs:
        raise InputError("standard input is read once, and estimates need the log a second time; name a file")
    if kind == EVENTS:
        _check_flags_of_events(asked)
    with ExitStack() as stack:
        needs_store = asked.publish or any(map(names_store, logs))
        store = stack.enter_context(Store.open(asked.store)) if needs_store else None
        if kind == EVENTS:
            spec = resolve_fields(spec, first_events(spec, logs, store), logs)
        estimating = _estimating(spec, asked, kind) if asked.policies else None
        inputs = files_of_rows(logs) if kind == ROWS else []
        _compile(spec, inputs, asked.format, output)
        if kind == ROWS:
            replayed, read = _of_rows(spec, inputs, asked, estimating, output)
        else:
            replayed, read = _of_events(spec, logs, asked, estimating, store, output)
        sha256, version = _hand_over(replayed, asked, store)
        estimates = _estimate(estimating, read, output) if estimating is not None else None
    return Done(spec.model.name, replayed, sha256, version, estimates)


def _check_flags_of_events(asked: Asked) -> None:
    given = {"--users": asked.users, "--format": asked.format, "--rejects": asked.rejects}
    if not asked.policies:
        given["--items"] = asked.items
    for flag, value in given.items():
        if value is not None:
            raise InputError(f"{flag} is for labelled rows; events carry their features, and are JSON")


def _estimating(spec: ModelSpec, asked: Asked, kind: str) -> EstimationRun:
    policies = [PolicyName.parse(each) for each in dict.fromkeys(asked.policies)]
    models = {each.name: read_named(each.name, asked.store) for each in policies if each.is_model}
    return EstimationRun(
        spec=spec,
        policies=policies,
        models=models,
        choices=[parse_choice(each) for each in dict.fromkeys(asked.choices)],
        items=SideTable.of_items(asked.items, spec.input) if asked.items else None,
        without=asked.without,
        decision=asked.decision or (DECISION_ROW if kind == ROWS else DECISION_LIST),
        options=EstimatorOptions(asked.clip, asked.bootstrap, asked.seed),
    )


def _of_rows(
    spec: ModelSpec, inputs: list[str], asked: Asked, estimating: EstimationRun | None, output: Output
) -> tuple[Replayed, Read]:
    """Replay labelled rows; they can be read again for estimates."""
    log = Log(inputs, asked.format, side_tables(asked.items, asked.users, spec.input), output.note)
    with RejectLog(asked.rejects) as rejects, output.progress("replaying") as bar:

        def show(model: LearningModel, expected: int | None) -> None:
            _show(bar, model, expected)

        replayed = replay_rows(spec, log, rejects=rejects, threads=asked.threads, on_progress=show)
    decision = estimating.decision if estimating is not None else DECISION_ROW
    quiet = Log(log.inputs, log.format, log.tables)  # the replay has shown its notes
    return replayed, LogOfRows(quiet, asked.propensity, asked.position, decision).read


def _of_events(
    spec: ModelSpec,
    logs: list[str],
    asked: Asked,
    estimating: EstimationRun | None,
    store: Store | None,
    output: Output,
) -> tuple[Replayed, Read]:
    """Replay events; for estimates, the rows that the join gave out were kept."""
    from trainer.runs.replay_logs import JoinedTap, as_events, replay_events

    tap: JoinedTap | None = None
    if estimating is not None:
        models = [as_events(each) for each in estimating.specs.values()]
        named = (spec.input.request, spec.input.item, asked.propensity, asked.position)
        wanted = [name for each in models for name in each.wanted_columns() if name != each.input.label]
        tap = JoinedTap(as_events(spec), [*filter(None, named), *wanted])
    with output.progress("replaying", unit="examples") as bar:

        def show(loop: EventLoop) -> None:
            _show(bar, loop.model, None)

        replayed = replay_events(spec, logs, store, tap=tap, on_progress=show, on_note=output.note)
    if replayed.rejected and not (replayed.counts["impressions"] or replayed.counts["feedback"]):
        raise InputError(
            f"{', '.join(logs)}: no line is an event ({next(iter(replayed.reasons))}), and none a row with the label "
            f"{spec.input.label!r}"
        )

    def read(spec: ModelSpec, models: Sequence[ModelSpec]) -> tuple[LoggedRows, Layout, list[ModelSpec]]:
        assert estimating is not None and tap is not None
        resolved = [as_events(each) for each in models]
        rows, layout = tap.read(resolved, asked.propensity, asked.position, estimating.decision)
        return rows, layout, resolved

    return replayed, read


def _show(bar: Progress, model: LearningModel, expected: int | None) -> None:
    logloss = model.metrics.recent_logloss()
    fields = {"log-loss": logloss} if logloss is not None else {}
    bar.update(model.rows, total=expected, **fields, keys=model.table.used)


def _estimate(estimating: EstimationRun, read: Read, output: Output) -> Estimates:
    if estimating.models:
        announce_scoring(output)
    with output.progress("estimating", unit="steps") as bar:

        def show(step: str, done: int, total: int | None) -> None:
            bar.update(done, total=total, of=step)

        found = estimating.run(read, show)
    if estimating.models:
        mark_scoring()
    return found


def _hand_over(replayed: Replayed, asked: Asked, store: Store | None) -> tuple[str, int | None]:
    """Save and publish the model, as asked; its SHA-256 and version."""
    if not replayed.examples and (asked.save is not None or asked.publish):
        raise InputError("nothing was learned from the log, so there is no model to save or publish")
    artefact = replayed.model.artefact()
    if asked.save is not None:
        artefact.write(asked.save)
    if asked.publish and not asked.force:
        share = replayed.rejected / (replayed.rejected + replayed.examples)
        withheld = too_many_rejected(share, replayed.rejected, replayed.reasons, "then replay again")
        if withheld:
            raise InputError(withheld)
    version = None
    if asked.publish and store is not None:
        version = store.model(artefact.spec.model.name).publish(artefact)
    return artefact.sha256, version


def _compile(spec: ModelSpec, inputs: list[str], format: str | None, output: Output) -> None:
    formats = formats_of(inputs, format) if inputs else ()
    if not kernels_are_ready(spec, formats):
        output.note("compiling kernels for the first time; some ten seconds, once")
    compile_kernels(spec, formats)
