"""What `ftrie train` was asked for, and the files that a run holds open while it learns. The flags are in `cli`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from model_store.errors import UsageError
from trainer.output import Output

if TYPE_CHECKING:
    from model_store.artefact.artefact import Artefact
    from model_store.spec.spec import ModelSpec
    from trainer.checkpoint import Checkpoints
    from trainer.checkpoint.description import Description
    from trainer.learn.metrics.metrics import MetricsOptions
    from trainer.logs.rejects import RejectLog
    from trainer.publish.publisher import Publisher
    from trainer.runs.train import Progress, Run

ACTIVE = "active"


@dataclass(frozen=True)
class Asked:
    """The flags of one run, as they were given."""

    items: Path | None
    users: Path | None
    rejects: Path | None
    strict: bool
    metrics: Path | None
    window: int | None
    slices: tuple[str, ...]
    checkpoints: Path | None
    every: str
    resume: bool
    init_from: str | None
    store: str
    format: str | None
    threads: int | None
    batch_bytes: int
    force: bool


@dataclass(frozen=True)
class _Opened:
    """What a run writes to while it learns; None where it was not asked for."""

    keeper: Checkpoints | None
    rejects: RejectLog
    metrics: MetricsOptions


def learn(
    spec: ModelSpec, inputs: list[str], asked: Asked, output: Output, publisher: Publisher | None = None
) -> Run:
    """Do a whole run, and show how it advances."""
    from trainer.examples.open_log import Log
    from trainer.examples.side_tables import side_tables
    from trainer.runs.train import train
    from trainer.runs.warmup import compile_kernels, formats_of, kernels_are_ready

    with _opened(spec, asked, output) as opened:
        formats, slices = formats_of(inputs, asked.format), bool(asked.slices)
        publishes = publisher is not None
        if not kernels_are_ready(spec, formats, slices=slices, publishes=publishes):
            output.note("compiling kernels for the first time; some ten seconds, once")
        compile_kernels(spec, formats, slices=slices, publishes=publishes)
        tables = side_tables(asked.items, asked.users, spec.input)
        begins = opened.keeper is None or opened.keeper.earlier is None
        with output.progress("learning") as bar:

            def show(at: Progress) -> None:
                fields = {"recent log-loss": at.logloss} if at.logloss is not None else {}
                bar.update(at.rows, total=at.expected_rows, **fields, keys=at.keys)

            run = train(
                spec,
                Log(inputs, asked.format, tables, output.note, asked.batch_bytes),
                rejects=opened.rejects,
                threads=asked.threads,
                metrics=opened.metrics,
                keeper=opened.keeper,
                initial=initial_model(spec, asked.init_from, asked.store) if begins else None,
                publisher=publisher,
                force=asked.force,
                on_progress=show,
                on_warning=output.warn,
            )
    for warning in run.report.warnings:
        output.warn(warning)
    if run.absent:
        output.note(
            f"no column was found for the optional fields {', '.join(run.absent)}; no row has a value of them"
        )
    return run


@contextmanager
def _opened(spec: ModelSpec, asked: Asked, output: Output) -> Iterator[_Opened]:
    from trainer.learn.metrics.metrics import MetricsOptions
    from trainer.learn.metrics.records import MetricsFile
    from trainer.logs.rejects import RejectLog

    with ExitStack() as stack:
        keeper = stack.enter_context(_keeper(spec, asked, output)) if asked.checkpoints is not None else None
        before = keeper.earlier.description if keeper is not None and keeper.earlier is not None else None
        rejects = stack.enter_context(
            RejectLog(
                *(asked.rejects, asked.strict),
                counts=before.reject_counts if before else None,
                resume_at=before.rejects.kept_of(asked.rejects) if before else 0,
            )
        )
        metrics = None
        if asked.metrics is not None:
            kept = before.metrics.kept_of(asked.metrics) if before else 0
            metrics = stack.enter_context(MetricsFile(asked.metrics, kept))
        yield _Opened(keeper, rejects, MetricsOptions(asked.window, asked.slices, metrics))


def _keeper(spec: ModelSpec, asked: Asked, output: Output) -> Checkpoints:
    from trainer.checkpoint import Checkpoints, Every

    assert asked.checkpoints is not None
    every = Every.parse(asked.every)
    keeper = Checkpoints(asked.checkpoints, every, spec, resume=asked.resume, on_warning=output.warn)
    if keeper.earlier is not None:
        _say_what_goes_on(keeper.earlier.path, keeper.earlier.description, asked, output)
    elif asked.resume:
        output.note(f"no checkpoint in {asked.checkpoints} yet; beginning with the first row")
    return keeper


def _say_what_goes_on(path: Path, before: Description, asked: Asked, output: Output) -> None:
    output.note(f"going on from {path}: {before.rows:,} rows learned, {before.keys:,} keys")
    if asked.init_from is not None:
        output.note("--init-from is passed over: the checkpoint has what was learned since")


def initial_model(spec: ModelSpec, init_from: str | None, store: str) -> Artefact | None:
    """The model to begin with: a file, a version of this model in the store, or its active one."""
    from model_store.model_files import read_named

    if init_from is None:
        return None
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
