"""`ftrie train`: flags, the files that a run writes, and its summary. A run is `trainer.runs.train`."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ftrie import terminal
from ftrie.api.data import CachedTimedLog, log_of
from ftrie.command import command
from ftrie.commands.flags import InputsArgument, RejectsOption, SpecArgument, StrictOption, ThreadsOption
from ftrie.terminal import JsonOption, note, note_once, print_json, print_table, warn
from model_store.errors import Stopped, counted
from model_store.flags import DEFAULT_STORE, Flag, StoreOption
from trainer.settings import Every, ForceOption, InitFromOption, KeepOption, SaveOption, ThresholdOption

if TYPE_CHECKING:
    from model_store.spec.spec import ModelSpec
    from trainer.checkpoint import Checkpoints
    from trainer.formats.rejects import RejectLog
    from trainer.learn.metrics.metrics import MetricsOptions
    from trainer.learn.metrics.records import MetricsFile, Regret, VariantMetrics
    from trainer.publish.publisher import PublishOptions
    from trainer.runs.loop import PassesReport, PassOptions
    from trainer.runs.train import Report

_MOST_REASONS = 5
_MANY_KEYS = 10_000


@dataclass(frozen=True)
class PublishingFlags:
    """How to publish while the run learns."""

    publish_every: Annotated[
        str | None,
        Flag("Publish changes while learning, every N rows or at intervals such as 30s, 5m.", "N|30s"),
    ] = None
    snapshot_every: Annotated[
        int, Flag("With --publish-every: a full snapshot every N deltas.", "N", min=0)
    ] = 10
    publish_threshold: ThresholdOption = 0.0
    keep: KeepOption = None

    def publishing(self, activate: bool) -> PublishOptions | None:
        """How to publish while learning; None without --publish-every. Raises UsageError."""
        from trainer.publish.publisher import PublishOptions

        if self.publish_every is None:
            return None
        check_threshold(self.publish_threshold)
        every = Every.parse(self.publish_every)
        return PublishOptions(every, self.snapshot_every, self.publish_threshold, activate, self.keep)


@dataclass(frozen=True)
class MetricsFlags:
    """Which metrics are computed while the run learns, and where they are written."""

    metrics: Annotated[
        Path | None,
        Flag("Write metrics here while learning, JSON lines for `ftrie report`.", "FILE", file="writes"),
    ] = None
    window: Annotated[
        int | None,
        Flag("Rows per line of metrics; default: 1,000 at first, growing with the log.", "N", min=1),
    ] = None
    slices: Annotated[
        tuple[str, ...],
        Flag(
            "Metrics for each value of a field too, or each key under a prefix such as 'device*os='; repeatable.",
            "NAME",
            names="--slice",
        ),
    ] = ()
    regret: Annotated[
        bool,
        Flag(
            "Compare every variant with the best fixed weights of the examples so far, found afterwards: its "
            "loss minus theirs, and the mean. Keeps the log in memory, up to 25 million keys of examples."
        ),
    ] = False

    def options(self, file: MetricsFile | None) -> MetricsOptions:
        """The metrics to compute, written to `file`."""
        from trainer.learn.metrics.metrics import MetricsOptions

        return MetricsOptions(self.window, self.slices, file, self.regret)


@dataclass(frozen=True)
class CheckpointFlags:
    """Where the run's state is kept, and where the run starts."""

    checkpoint: Annotated[
        Path | None, Flag("Write checkpoints of the run here; the last three are kept.", "DIR", file="writes")
    ] = None
    every: Annotated[
        str | None, Flag("Interval of checkpoints: rows, or a time such as 30s, 5m, 1h; default 5m.", "N|5m")
    ] = None
    resume: Annotated[bool, Flag("Resume from the newest checkpoint in DIR, if there is one.")] = False
    init_from: InitFromOption = None

    def opened(self, spec: ModelSpec) -> Checkpoints | None:
        """The folder of checkpoints, locked for this run; None without --checkpoint. Raises CheckpointError."""
        from trainer.checkpoint import Checkpoints

        if self.checkpoint is None:
            return None
        # The default is given here: --every without --checkpoint is an error.
        every = Every.parse("5m" if self.every is None else self.every)
        found = Checkpoints(self.checkpoint, every, spec, resume=self.resume, on_warning=warn)
        if found.earlier is not None:
            before = found.earlier.description
            note(f"resuming from {found.earlier.path}: {before.rows:,} rows learned, {before.keys:,} keys")
            if self.init_from is not None:
                note("--init-from is ignored: the checkpoint has what was learned since")
        elif self.resume:
            note(f"no checkpoint in {self.checkpoint} yet; starting with the first row")
        return found


@dataclass(frozen=True)
class PassFlags:
    """How often the log is learned."""

    passes: Annotated[
        int,
        Flag(
            "Learn the log up to N times: later passes take its blocks in an order shuffled by learner.seed.",
            "N",
            min=1,
        ),
    ] = 1
    tolerance: Annotated[
        float | None,
        Flag(
            "With --passes: stop after a pass that lowers no variant's log-loss by this share; default 0.0001.",
            "X",
            min=0.0,
            max=1.0,
        ),
    ] = None

    def options(self) -> PassOptions:
        """The passes to make. Raises typer.BadParameter."""
        from trainer.runs.loop import PassOptions

        # The default is not the flag's: --tolerance without --passes is an error.
        if self.tolerance is None:
            return PassOptions(self.passes)
        if self.passes == 1:
            raise typer.BadParameter("--tolerance needs --passes N, with N of 2 or more")
        return PassOptions(self.passes, self.tolerance)


@command("Learn", 3, "Example: ftrie train ads.toml 'clicks/*.csv.gz' --publish --activate")
def train(
    spec: SpecArgument,
    inputs: InputsArgument,
    *,
    store: StoreOption = DEFAULT_STORE,
    publish: Annotated[bool, Flag("Publish the model to the store.")] = False,
    activate: Annotated[bool, Flag("Publish the model and make servers switch to it.")] = False,
    publishing: PublishingFlags,
    report: Annotated[
        Path | None, Flag("Write the report of the run here, as JSON.", "FILE", file="writes")
    ] = None,
    watched: MetricsFlags,
    rejects: RejectsOption = None,
    strict: StrictOption = False,
    save: SaveOption = None,
    log: CachedTimedLog,
    several: PassFlags,
    threads: ThreadsOption = None,
    batch_bytes: Annotated[
        int, Flag("Bytes of text read at once; the result does not depend on it.", "N", min=1024)
    ] = 1 << 20,
    start: CheckpointFlags,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Learn every variant of SPEC from click logs, in one pass or several; save or publish the model.

    A bad row is counted, listed with --rejects, and skipped. A log that cannot be read to its end is an error: the
    model of the rows until then can be saved with --save, but is never published. With --checkpoint and --resume a run
    that was killed continues as if it had not been. `--passes 5` learns a short log up to five times.
    `ftrie train ads.toml clicks.csv --regret --metrics run.jsonl`, then `ftrie report run.jsonl`, draws how far the
    learner stays behind the best fixed weights.
    """
    from model_store.spec.spec import load_spec
    from model_store.store import Store
    from trainer.formats.reader import expand
    from trainer.publish.publisher import Publisher
    from trainer.runs.loop import initial_model
    from trainer.runs.train import finish_run
    from trainer.runs.warmup import train_compiled

    model_spec = load_spec(spec)
    publish = publish or activate or publishing.publish_every is not None
    how, passes = publishing.publishing(activate), several.options()
    passes.check(model_spec)
    if start.checkpoint is None and (start.resume or start.every is not None):
        raise typer.BadParameter("--resume and --every need --checkpoint DIR")
    # A wrong path or URL should not cost a training run, nor a log; outputs have been checked (ftrie.command).
    expand(inputs)
    if save is not None and save.suffix == ".json":
        raise typer.BadParameter("a model is saved as .arrow; `ftrie store export` writes the JSON form")
    with _interruptible(), Store.open(store) if publish else nullcontext() as opened:
        versions = opened.model(model_spec.model.name) if opened else None
        if versions and activate:
            # Before the run: while a trainer holds the lease, only an operator may activate, so hours later this would
            # fail.
            versions.refuse_beside_a_trainer()
        publisher = Publisher(versions, how, warn) if versions and how else None
        with _files(model_spec, start, rejects, strict, watched) as (checkpoints, reject_log, metrics):
            fresh = checkpoints is None or checkpoints.earlier is None
            initial = initial_model(model_spec, start.init_from, store) if fresh else None
            run = train_compiled(
                model_spec,
                log_of(inputs, model_spec.input, note=note_once(), batch_bytes=batch_bytes, **log),
                rejects=reject_log,
                threads=threads,
                metrics=metrics,
                checkpoints=checkpoints,
                initial=initial,
                publisher=publisher,
                force=force,
                passes=passes,
                output=terminal,
            )
        for warning in run.report.warnings:
            warn(warning)
        if run.lacks:
            note(run.lacks)
        finish_run(run, save, opened, activate, publisher, terminal)
    if report is not None:
        run.report.write(report)
    # Only now: --save and --report have kept what was learned until the failure.
    if run.failure is not None:
        if not isinstance(run.failure, Stopped):
            note(f"{run.report.rows:,} rows were learned before this")
        raise run.failure
    print_report(run.report, as_json)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C ends the command with what the run says of where it was; without a handler typer would say nothing."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        raise Stopped(str(stopped) or "stopped by Ctrl-C", signal.SIGINT) from None


def check_threshold(threshold: float) -> None:
    """Raise typer.BadParameter for a --publish-threshold that is not finite."""
    if not threshold < float("inf"):
        raise typer.BadParameter("--publish-threshold: expected a finite weight of 0 or more")


@contextmanager
def _files(
    spec: ModelSpec, start: CheckpointFlags, rejects: Path | None, strict: bool, watched: MetricsFlags
) -> Iterator[tuple[Checkpoints | None, RejectLog, MetricsOptions]]:
    """Open the files of a run; a resumed run appends to those of rejects and metrics where its checkpoint was."""
    from trainer.formats.rejects import RejectLog
    from trainer.learn.metrics.records import MetricsFile

    with ExitStack() as stack:
        checkpoints = start.opened(spec)
        if checkpoints is not None:
            stack.enter_context(checkpoints)
        earlier = checkpoints.earlier if checkpoints is not None else None
        before = earlier.description if earlier is not None else None
        reject_log = stack.enter_context(
            RejectLog(
                *(rejects, strict),
                counts=before.reject_counts if before else None,
                resume_at=before.rejects.kept_of(rejects) if before else 0,
            )
        )
        metrics = None
        if watched.metrics is not None:
            kept = before.metrics.kept_of(watched.metrics) if before else 0
            metrics = stack.enter_context(MetricsFile(watched.metrics, kept))
        yield checkpoints, reject_log, watched.options(metrics)


def print_report(report: Report, as_json: bool) -> None:
    """Print the report as JSON, or as a few lines and tables."""
    if as_json:
        print_json(report.as_dict())
        return
    counts, memory, collisions = report.published, report.memory, report.collisions
    parts = [
        f"{report.rows:,} rows",
        f", {len(report.passes.figures)} passes" if report.passes.figures else "",
        f" in {report.seconds:.1f} s ({report.rows_per_second:,.0f} rows/s), {report.rejected:,} rejected",
        f", {report.subsampled:,} not drawn" if report.subsampled else "",
        f"; {report.keys:,} keys, {report.nonzero:,} with a weight",
        f", {report.evicted:,} dropped" if report.evicted else "",
        f"; version {report.version}" if report.version is not None else "",
    ]
    if counts.snapshots + counts.deltas + counts.failed:
        failed = f", {counts.failed:,} could not be published" if counts.failed else ""
        refused = f", {counts.refused:,} refused by the guard" if counts.refused else ""
        held = f", {counts.held:,} held during the cooldown of a rollback" if counts.held else ""
        parts.append(f" ({counts.snapshots:,} snapshots, {counts.deltas:,} deltas{failed}{refused}{held})")
    print("".join(parts))
    if report.reasons:
        print(rejected_for(report.reasons))
    if report.labels.get("-1"):
        print("labels are read as -1/+1: -1 is no click")
    if memory is not None and report.keys >= _MANY_KEYS:
        filters = f", filters {memory.filters / 1e6:,.1f} MB" if memory.filters else ""
        table = memory.table
        print(f"table {table / 1e6:,.1f} MB, {table / report.keys:.1f} bytes a key{filters}")
    # With buckets the rate was measured; without, it is an estimate that matters only for many keys.
    if collisions and (collisions.setting or report.keys >= _MANY_KEYS):
        print(collisions)
    print_variants(report.variants)
    _print_calibration(report)
    _print_passes(report.passes)
    _print_regret(report.regret)


def print_variants(variants: Mapping[str, VariantMetrics], judged: str = "all rows") -> None:
    """Print the metrics of every variant as a table; `judged` names the rows."""
    from trainer.learn.metrics.figures import IN_TABLES

    change = ["difference"] if len(variants) > 1 else []  # of the log-loss, the first metric
    loss, *others = IN_TABLES.values()
    rows = []
    for name, figures in variants.items():
        first, *rest = (getattr(figures, each) for each in IN_TABLES)
        rows.append([name, first, *(_change(figures) for _ in change), *rest])
    print_table(["variant", f"{loss}, {judged}", *change, *others], rows)


def _print_calibration(report: Report) -> None:
    """Print what the calibration curves did for the predictions made after each curve was fitted."""
    if not report.calibration:
        return
    fitted = [
        [name, c.logloss, c.logloss_corrected, c.calibration, c.calibration_corrected, c.values]
        for name, c in report.calibration.items()
        if c.logloss is not None
    ]
    print()
    if fitted:
        heading = ["calibrated", "log-loss", "corrected", "calibration", "corrected", "own curves"]
        print_table(heading, fitted)
    else:
        print("no curve could be judged: that takes 100 clicks, 100 other rows, and as many rows again")


def _print_passes(passes: PassesReport) -> None:
    """Print the log-loss of each pass, of several, and why they ended."""
    if not passes.figures:
        return
    before = (None, *passes.figures)
    table = [
        [number, name, each.logloss[name], change and f"{change:+.3%}", round(each.rows / each.seconds)]
        for number, (each, last) in enumerate(zip(passes.figures, before, strict=False), 1)
        for name, change in each.change(last).items()
    ]
    print()
    print_table(["pass", "variant", "log-loss", "change", "rows/s"], table)
    ended = "converged" if passes.converged else "not converged"
    print(f"{ended}; from pass 2 on the rows were learned before, so only pass 1 validates the model")


def _print_regret(regret: Regret | None) -> None:
    """Print every variant's regret and its mean at the rows of the curve."""
    if regret is None:
        return
    ends = [each.rows for each in next(iter(regret.variants.values()))]
    heading = [f"{name}{what}" for name in regret.variants for what in (" regret", " mean")]
    table = [
        [
            rows,
            *(number for curve in regret.variants.values() for number in (curve[at].regret, curve[at].mean)),
        ]
        for at, rows in enumerate(ends)
    ]
    print()
    print_table(["rows", *heading], table)
    print(
        "the loss beyond that of the best fixed weights, without a penalty, of the rows so far; mean: per row"
    )
    if regret.unfinished:
        print(
            f"the solver ended early at {counted(regret.unfinished, 'point')}: the regret there may be larger"
        )


def rejected_for(reasons: Mapping[str, int]) -> str:
    """Why rows were rejected, most frequent first; "" if none was."""
    counts = [f"{reason} ({count:,})" for reason, count in reasons.items()]
    more = [f"and {len(counts) - _MOST_REASONS} more"] if len(counts) > _MOST_REASONS else []
    return f"rejected for: {', '.join(counts[:_MOST_REASONS] + more)}" if counts else ""


def _change(metrics: VariantMetrics) -> str | None:
    """The log-loss minus the first variant's, ± half its 95 % interval; None for the first variant itself."""
    found = metrics.difference
    if found is None or found.logloss is None:
        return None
    if found.low is None or found.high is None:
        return f"{found.logloss:+.5f}"
    return f"{found.logloss:+.5f} ± {(found.high - found.low) / 2:.5f}"
