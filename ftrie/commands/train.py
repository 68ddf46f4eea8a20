"""`ftrie train`: its flags and output. A run is `trainer.runs.train`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ftrie import terminal
from ftrie.terminal import DEFAULT_STORE, JsonOption, StoreOption, note, print_json, print_table, warn
from model_store.errors import Stopped

if TYPE_CHECKING:
    from trainer.learn.metrics.records import VariantMetrics
    from trainer.publish.publisher import PublishOptions
    from trainer.runs.train import Report


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
    publish_every: Annotated[
        str | None,
        typer.Option(
            metavar="N|30s",
            help="Publish while it learns too, what changed since the last time: rows, or a time such as 30s, 5m.",
        ),
    ] = None,
    snapshot_every: Annotated[
        int, typer.Option(min=0, metavar="N", help="With it: the whole model after so many of changes.")
    ] = 10,
    publish_threshold: Annotated[
        float,
        typer.Option(
            min=0.0, metavar="X", help="With it: hold a weight back until it has moved by more than X."
        ),
    ] = 0.0,
    keep: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="With it: versions the store keeps, as `ftrie store gc`; 0 keeps all."
        ),
    ] = 5,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the run's figures here, as JSON.")
    ] = None,
    metrics: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write metrics here as it learns, JSON lines for `ftrie report`."),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Rows from one line of metrics to the next; default: 1,000 at first, growing with the log.",
        ),
    ] = None,
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
            "--format",
            metavar="NAME",
            help="csv, tsv, jsonl, parquet, vw, libsvm or libffm; default: told from the file.",
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Hashing threads; the result does not depend on it.")
    ] = None,
    batch_bytes: Annotated[
        int,
        typer.Option(
            min=1024, metavar="N", help="Bytes of text read at once; the result does not depend on it."
        ),
    ] = 1 << 20,
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the run's state here as it learns, the last three times."),
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(metavar="N|5m", help="How often: rows, or a time such as 30s, 5m, 1h; default 5m."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint in DIR, if there is one.")
    ] = False,
    init_from: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION|FILE",
            help="Begin with a published model: its version in the store, `active`, or a FILE.arrow.",
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Publish even if more than a tenth of the rows were rejected."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Learn every variant of SPEC in one pass over click logs; save or publish the model.

    A bad row is counted, listed with --rejects, and skipped. A log that breaks off in the middle is an error: the
    model of the rows before it can still be saved with --save, but is never published. With --checkpoint and --resume
    a run that was killed goes on as if nothing had happened.
    """
    from model_store.spec.spec import load_spec
    from model_store.store import Store
    from model_store.whole_file import check_writable
    from trainer.logs.batch import expand
    from trainer.publish.publisher import Publisher
    from trainer.runs.finish_run import hand_over
    from trainer.runs.train_options import Asked, learn

    model_spec = load_spec(spec)
    publish = publish or activate or publish_every is not None
    how = _publishing(publish_every, snapshot_every, publish_threshold, activate, keep)
    if checkpoint is None and (resume or every is not None):
        raise typer.BadParameter("--resume and --every say how --checkpoint DIR is used; name the folder")
    asked = Asked(
        items=items,
        users=users,
        rejects=rejects,
        strict=strict,
        metrics=metrics,
        window=window,
        slices=tuple(slices),
        checkpoints=checkpoint,
        every="5m" if every is None else every,
        resume=resume,
        init_from=init_from,
        store=store,
        format=input_format,
        threads=threads,
        batch_bytes=batch_bytes,
        force=force,
    )
    # Outputs are looked at first: a wrong path or URL should not cost a training run, nor a log.
    expand(inputs)
    if save is not None and save.suffix == ".json":
        raise typer.BadParameter("a model is saved as .arrow; `ftrie store export` writes the JSON form")
    for path in filter(None, (save, report, metrics)):
        check_writable(path)
    with Store.open(store) if publish else nullcontext() as opened:
        if opened and activate:
            opened.model(model_spec.model.name).refuse_beside_a_trainer()
        publisher = Publisher(opened.model(model_spec.model.name), how, warn) if opened and how else None
        run = learn(model_spec, inputs, asked, terminal, publisher)
        hand_over(run, save, opened, activate, publisher, terminal)
    if report is not None:
        run.report.write(report)
    if run.failure is not None:
        if not isinstance(run.failure, Stopped):
            note(f"{run.report.rows:,} rows were learned before this")
        raise run.failure
    show(run.report, as_json)


def _publishing(
    every: str | None, snapshot_every: int, threshold: float, activate: bool, keep: int
) -> PublishOptions | None:
    """How to publish while learning; None if it was not asked for."""
    from trainer.checkpoint.schedule import Every
    from trainer.publish.publisher import PublishOptions

    if every is None:
        return None
    if not threshold < float("inf"):
        raise typer.BadParameter("--publish-threshold is a weight, from 0 up")
    return PublishOptions(Every.parse(every), snapshot_every, threshold, activate, keep or None)


# --- What `ftrie train` prints at its end: a run's report in a few lines and tables, or as JSON ---


_MOST_REASONS = 5
_MANY_KEYS = 10_000


def show(report: Report, as_json: bool) -> None:
    """Print the report: as JSON, or as a few lines and a table."""
    if as_json:
        print_json(report.as_dict())
        return
    rate = report.rows / report.seconds if report.seconds else 0.0
    print(
        f"{report.rows:,} rows in {report.seconds:.1f} s ({rate:,.0f} rows/s), {report.rejected:,} rejected"
        + (f", {report.subsampled:,} not drawn" if report.subsampled else "")
        + f"; {report.keys:,} keys, {report.nonzero:,} with a weight"
        + (f", {report.evicted:,} dropped" if report.evicted else "")
        + (f"; version {report.version}" if report.version is not None else "")
        + _published(report)
    )
    for line in (_reasons(report), _labels(report), _size(report)):
        if line:
            print(line)
    show_variants(report.variants)
    _show_calibration(report)


def show_variants(variants: Mapping[str, VariantMetrics]) -> None:
    """Print the metrics of all variants over all rows."""
    change = ["difference"] if len(variants) > 1 else []
    print_table(
        ["variant", "log-loss, all rows", *change, "AUC", "calibration", "normalized entropy"],
        [
            [name, m.logloss, *(_change(m) for _ in change), m.auc, m.calibration, m.normalized_entropy]
            for name, m in variants.items()
        ],
    )


def _published(report: Report) -> str:
    """The versions of a run that publishes while it learns."""
    counts = report.published
    if not counts.snapshots + counts.deltas + counts.failed:
        return ""
    failed = f", {counts.failed:,} could not be published" if counts.failed else ""
    refused = f", {counts.refused:,} refused by the guard" if counts.refused else ""
    return f" ({counts.snapshots:,} whole, {counts.deltas:,} of changes{failed}{refused})"


def _show_calibration(report: Report) -> None:
    """What the curves did for the predictions that came after each was fitted."""
    if not report.calibration:
        return
    fitted = [
        [name, c.logloss, c.logloss_corrected, c.calibration, c.calibration_corrected, c.values]
        for name, c in report.calibration.items()
        if c.logloss is not None
    ]
    print()
    if fitted:
        heading = ["calibrated", "log-loss", "corrected", "calibration", "corrected", "values of their own"]
        print_table(heading, fitted)
    else:
        print("no curve could be judged: that takes 100 clicks, 100 other rows, and as many rows again")


def _reasons(report: Report) -> str:
    """Why rows were rejected, most frequent first."""
    counts = [f"{reason} ({count:,})" for reason, count in report.reasons.items()]
    more = [f"and {len(counts) - _MOST_REASONS} more"] if len(counts) > _MOST_REASONS else []
    return f"rejected for: {', '.join(counts[:_MOST_REASONS] + more)}" if counts else ""


def _labels(report: Report) -> str:
    """That labels were written as -1 and +1, where they were."""
    return "labels are read as -1/+1: -1 is no click" if report.labels.get("-1") else ""


def _size(report: Report) -> str:
    """The memory of the table, in all and a key, and of the filters that guard it; of a small one it says nothing."""
    memory = report.memory
    if memory is None or report.keys < _MANY_KEYS:
        return ""
    filters = f", filters {memory.filters / 1e6:,.1f} MB" if memory.filters else ""
    return f"table {memory.table / 1e6:,.1f} MB, {memory.table / report.keys:.1f} bytes a key{filters}"


def _change(metrics: VariantMetrics) -> str | None:
    """How the log-loss differs from the first variant's, with half its 95 % interval; None for the first itself."""
    found = metrics.difference
    if found is None or found.logloss is None:
        return None
    if found.low is None or found.high is None:
        return f"{found.logloss:+.5f}"
    return f"{found.logloss:+.5f} ± {(found.high - found.low) / 2:.5f}"
