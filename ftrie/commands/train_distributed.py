"""`ftrie train-distributed`: flags and output. A run is `trainer.runs.train_distributed`."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ftrie import terminal
from ftrie.api.data import CachedLog, log_of
from ftrie.command import command
from ftrie.commands.flags import RejectsOption, SpecArgument, StrictOption
from ftrie.commands.train import print_variants, rejected_for
from ftrie.terminal import JsonOption, note, note_once, print_json, print_table, warn
from model_store.errors import counted
from model_store.flags import DEFAULT_STORE, Argument, Flag, StoreOption
from trainer.settings import DistributedOptions, ForceOption, SaveOption

if TYPE_CHECKING:
    from trainer.distributed.checkpoint import DistributedCheckpoints
    from trainer.runs.train_distributed import DistributedReport

NOT_CONVERGED = 10
"""The exit code if a problem has not converged; the model is saved and published all the same."""


@dataclass(frozen=True)
class IterationCheckpointFlags:
    """Where the run's state is kept."""

    checkpoint: Annotated[
        Path | None, Flag("Write checkpoints of the run here; the last three are kept.", "DIR", file="writes")
    ] = None
    every: Annotated[
        int | None, Flag("Iterations from one checkpoint to the next; default 5.", "N", min=1)
    ] = None
    resume: Annotated[bool, Flag("Resume from the newest checkpoint in DIR, if there is one.")] = False

    def opened(self) -> DistributedCheckpoints | None:
        """The folder of checkpoints, locked for this run; None without --checkpoint. Raises CheckpointError."""
        from trainer.distributed.checkpoint import DistributedCheckpoints

        if self.checkpoint is None:
            if self.resume or self.every is not None:
                raise typer.BadParameter("--resume and --every need --checkpoint DIR")
            return None
        found = DistributedCheckpoints(self.checkpoint, self.every or 5, resume=self.resume, on_warning=warn)
        if found.earlier is not None:
            note(f"resuming from {found.earlier.path}: {found.earlier.state.where}")
        elif self.resume:
            note(f"no checkpoint in {self.checkpoint} yet; starting with the first iteration")
        return found


@command(
    "Learn",
    4,
    "Example: ftrie train-distributed ads.toml 'clicks/*.csv.gz' --workers 8 --held-out 0.05 --activate",
)
def train_distributed(
    spec: SpecArgument,
    inputs: Annotated[
        list[str],
        Argument(
            "Log files or globs; every worker's machine must have them at the same path.",
            "INPUT…",
            file="reads",
        ),
    ],
    *,
    options: DistributedOptions,
    store: StoreOption = DEFAULT_STORE,
    publish: Annotated[bool, Flag("Publish the model to the store.")] = False,
    activate: Annotated[bool, Flag("Publish the model and make servers switch to it.")] = False,
    report: Annotated[
        Path | None, Flag("Write the report of the run here, as JSON.", "FILE", file="writes")
    ] = None,
    rejects: RejectsOption = None,
    strict: StrictOption = False,
    save: SaveOption = None,
    log: CachedLog,
    start: IterationCheckpointFlags,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Learn every variant of SPEC with several processes, on one machine or many; save or publish the model.

    The workers hold the rows in memory and find, by iterations, the weights that minimise the log-loss of all rows plus
    the penalties l1 and l2 of the spec. `--workers 2` starts Ray on this machine; `--address` joins a cluster of
    machines. Needs the extra `distributed`. A log that one machine learns in time is better learned by `ftrie train`,
    with --passes.
    """
    from model_store.spec.spec import load_spec
    from model_store.store import Store
    from trainer.distributed.cluster import check_ray
    from trainer.distributed.dealing import check_distributable, check_inputs
    from trainer.formats.rejects import RejectLog
    from trainer.runs.train import finish_run
    from trainer.runs.train_distributed import train_distributed as run_distributed
    from trainer.runs.warmup import compile_kernels, formats_of

    model_spec = load_spec(spec)
    check_distributable(model_spec)
    check_inputs([*inputs, *options.held_out.inputs], log["format"], model_spec.input.label)
    publish = publish or activate
    if save is not None and save.suffix == ".json":
        raise typer.BadParameter("a model is saved as .arrow; `ftrie store export` writes the JSON form")
    with Store.open(store) if publish else nullcontext() as opened, ExitStack() as stack:
        if opened is not None and activate:
            opened.model(model_spec.model.name).refuse_beside_a_trainer()
        checkpoints = start.opened()
        if checkpoints is not None:
            stack.enter_context(checkpoints)
        check_ray()  # now, before minutes of compiling
        rows = log_of(inputs, model_spec.input, note=note_once(), **log)
        compile_kernels(model_spec, formats_of(rows, options.held_out.inputs), output=terminal)
        run = run_distributed(
            *(model_spec, rows, options),
            rejects=stack.enter_context(RejectLog(rejects)),
            strict=strict,
            checkpoints=checkpoints,
            force=force,
            output=terminal,
        )
        finish_run(run, save, opened, activate, None, terminal)
    if report is not None:
        run.report.write(report)
    if run.failure is not None:
        raise run.failure
    print_report(run.report, as_json)
    for warning in run.report.warnings:
        warn(warning)
    if run.report.not_converged:
        raise typer.Exit(NOT_CONVERGED)


def print_report(report: DistributedReport, as_json: bool) -> None:
    """Print the report as JSON, or as a few lines and tables."""
    if as_json:
        print_json(report.as_dict())
        return
    print(
        f"{report.rows:,} rows on {counted(len(report.workers), 'worker')}"
        + (f", {report.held_out:,} held out" if report.held_out else "")
        + f", {counted(report.iterations, 'iteration')} of {report.method} in {report.seconds:.1f} s, "
        f"{report.bytes / 1e6:,.1f} MB sent, {report.rejected:,} rejected"
        + (f", {report.subsampled:,} not drawn" if report.subsampled else "")
        + f"; {report.keys:,} keys, {report.nonzero:,} with a weight"
        + (f"; version {report.version}" if report.version is not None else "")
        + (f"; {counted(report.recoveries, 'iteration')} repeated" if report.recoveries else "")
    )
    if report.reasons:
        print(rejected_for(report.reasons))
    heads = ["problem", "iterations", "kept", "objective", "converged", "non-zeros", "held-out log-loss"]
    rows = []
    for each in report.problems:
        solution, sent = each.solution, sum(iteration.bytes for iteration in each.iterations)
        kept = solution.number if solution.l1 is None else f"{solution.number}, l1 {solution.l1:g}"
        figures = each.objective, each.converged, solution.nonzero, solution.held_out, round(sent / 1e6, 1)
        rows.append([each.name, each.iterations[-1].number, kept, *figures])
    print_table([*heads, "sent, MB"], rows)
    print()
    print_variants(report.variants, report.judged)
