"""`ftrie train`: flags and output of a training run. What a run does lives in `trainer.train`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from model_store.errors import InputError, StoreError
from model_store.terminal import (
    DEFAULT_STORE,
    JsonOption,
    StoreOption,
    note,
    print_json,
    print_table,
    progress,
)

if TYPE_CHECKING:
    from model_store.artefact import Artefact
    from model_store.model_versions import ModelVersions
    from model_store.spec import ModelSpec
    from model_store.store import Store
    from trainer.train import Progress, Report, Run
    from trainer.watching.metrics import Watching


def register(app: typer.Typer) -> None:
    """Add `ftrie train`."""
    app.command("train", epilog="Example: ftrie train ads.toml 'clicks/*.csv.gz' --publish --activate")(train)


def train(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help="The model spec, a TOML file.")],
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="INPUT…", help="Log files or globs, read in this order; - is standard input."),
    ],
    store: StoreOption = DEFAULT_STORE,
    publish: Annotated[bool, typer.Option("--publish", help="Publish the model to the store.")] = False,
    activate: Annotated[
        bool, typer.Option("--activate", help="Publish it and make servers switch to it.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the run's figures here, as JSON.")
    ] = None,
    metrics: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write metrics here as it learns, JSON lines for `ftrie report`."),
    ] = None,
    window: Annotated[
        int, typer.Option(min=1, metavar="N", help="Rows from one line of metrics to the next.")
    ] = 100_000,
    slices: Annotated[
        list[str],
        typer.Option(
            "--slice",
            metavar="NAME",
            help="Metrics for each value of a field too, or each key under a prefix such as 'device*os='; repeatable.",
        ),
    ] = [],  # noqa: B006
    rejects: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="List bad rows here: JSON lines of file, line, reason."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first bad row.")] = False,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE.arrow", help="Write the model to this file.")
    ] = None,
    items: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Take columns that the log lacks from this file of items, by input.item."
        ),
    ] = None,
    users: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The same from a file of users, by input.cookie."),
    ] = None,
    input_format: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="NAME", help="csv, tsv, jsonl or parquet; default: told from the file."
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Hashing threads; the result does not depend on it.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Learn every variant of SPEC in one pass over click logs; save or publish the model.

    A bad row is counted, listed with --rejects, and skipped. A log that breaks off in the middle is an error: the
    model of the rows before it can still be saved with --save, but is never published.
    """
    from model_store.spec import load_spec
    from model_store.store import Store
    from model_store.whole_file import check_writable
    from trainer.sources.inputs import expand

    model_spec = load_spec(spec)
    publish = publish or activate
    sides = Sides(items, users)
    # Outputs are looked at first: a wrong path or URL should not cost a training run, nor a log.
    _keep_what_is_read(
        (save, report, rejects, metrics), [str(spec), *expand(inputs), *filter(None, (items, users))]
    )
    if save is not None and save.suffix == ".json":
        raise typer.BadParameter("a model is saved as .arrow; `ftrie store export` writes the JSON form")
    for path in filter(None, (save, report, metrics)):
        check_writable(path)
    with Store.open(store) if publish else nullcontext() as opened:
        watched = Watched(metrics, window, tuple(slices))
        run = _learn(model_spec, inputs, sides, rejects, strict, input_format, threads, watched)
        _hand_over(run, save, opened, activate)
    if report is not None:
        run.report.write(report)
    if run.failure is not None:
        note(f"{run.report.rows:,} rows were learned before this")
        raise run.failure
    _show(run.report, as_json)


def _keep_what_is_read(outputs: Iterable[Path | None], inputs: Iterable[str | Path]) -> None:
    existing = [path for path in outputs if path is not None and path.is_file()]
    for name in map(Path, inputs if existing else ()):
        for path in existing:
            if name.exists() and path.samefile(name):
                raise InputError(f"{path} is an input of this run; write to another file")


class Sides(NamedTuple):
    """The files with features that do not stand in the log."""

    items: Path | None
    users: Path | None


class Watched(NamedTuple):
    """What to write of the metrics, and where."""

    file: Path | None
    window: int
    slices: tuple[str, ...]

    @contextmanager
    def watching(self) -> Iterator[Watching]:
        """Hold the metrics file open, if one is wanted."""
        from trainer.watching.metrics import Watching
        from trainer.watching.metrics_file import MetricsFile

        with MetricsFile(self.file) if self.file is not None else nullcontext() as opened:
            yield Watching(self.window, self.slices, opened)


def _learn(
    spec: ModelSpec,
    inputs: list[str],
    sides: Sides,
    rejects: Path | None,
    strict: bool,
    input_format: str | None,
    threads: int | None,
    watched: Watched,
) -> Run:
    from trainer.rejects import RejectLog
    from trainer.side_tables import SideTable
    from trainer.train import compile_kernels, kernels_are_ready, train

    if not kernels_are_ready():
        note("compiling kernels for the first time; some ten seconds, once")
    compile_kernels()
    tables = [SideTable.of_items(sides.items, spec.input)] if sides.items else []
    tables += [SideTable.of_users(sides.users, spec.input)] if sides.users else []
    with RejectLog(rejects, strict) as log, watched.watching() as watching, progress("learning") as bar:

        def show(at: Progress) -> None:
            fields = {"log-loss": at.logloss} if at.logloss is not None else {}
            bar.update(at.rows, total=at.expected_rows, **fields, keys=at.keys)

        run = train(
            *(spec, inputs),
            rejects=log,
            tables=tables,
            format=input_format,
            threads=threads,
            watching=watching,
            on_progress=show,
        )
    if run.absent:
        note(
            f"no column was found for the optional fields {', '.join(run.absent)}; no row has a value of them"
        )
    return run


def _hand_over(run: Run, save: Path | None, store: Store | None, activate: bool) -> None:
    """Save and publish the model, as asked. A model of no rows replaces nothing, a broken-off one is only saved."""
    if save is None and store is None:
        return
    if not run.report.rows:
        nothing = (
            f"no row could be learned from ({run.report.rejected:,} rejected); nothing is saved or published"
        )
        run.failure = run.failure or InputError(nothing)
        return
    artefact = run.model.artefact()
    if save is not None:
        artefact.write(save)
    if store is not None and run.failure is None:
        _publish(run, artefact, store, activate, saved=save is not None)


def _publish(run: Run, artefact: Artefact, store: Store, activate: bool, saved: bool) -> None:
    """Publish the model; what prevents it becomes the run's failure, and a model saved nowhere is kept in a file."""
    name = run.model.spec.model.name
    try:
        versions: ModelVersions = store.model(name)
        version = versions.publish_and_activate(artefact) if activate else versions.publish(artefact)
        run.report = replace(run.report, version=version)
    except StoreError as error:
        run.failure = error
        if not saved:
            kept = Path(f"{name}.unpublished.arrow")
            artefact.write(kept)
            note(f"the learned model is kept in {kept}; publish it by: ftrie store import {name} {kept}")


def _show(report: Report, as_json: bool) -> None:
    if as_json:
        print_json(report.as_dict())
        return
    rate = report.rows / report.seconds if report.seconds else 0.0
    print(
        f"{report.rows:,} rows in {report.seconds:.1f} s ({rate:,.0f} rows/s), {report.rejected:,} rejected; "
        f"{report.keys:,} keys, {report.nonzero:,} with a weight"
        + (f"; version {report.version}" if report.version is not None else "")
    )
    print_table(
        ["variant", "log-loss", "AUC", "calibration", "normalized entropy"],
        [
            [name, m.logloss, m.auc, m.calibration, m.normalized_entropy]
            for name, m in report.variants.items()
        ],
    )
