"""`ftrie replay`: flags and output. A replay is `trainer.runs.replay`, the estimates are `trainer.off_policy`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ftrie import terminal
from ftrie.api.data import Data, Log, log_of
from ftrie.api.estimate import PolicyFlags
from ftrie.command import command
from ftrie.commands.flags import RejectsOption, SpecArgument, ThreadsOption
from ftrie.commands.train import rejected_for
from ftrie.terminal import JsonOption, note, note_once, print_json, print_table, progress
from model_store.errors import InputError, NoSupport
from model_store.flags import DEFAULT_STORE, Argument, Flag, StoreOption
from trainer.settings import SaveOption

if TYPE_CHECKING:
    from model_store.spec.spec import ModelSpec
    from model_store.store import Store
    from trainer.off_policy.estimates import Estimate, Estimates, EstimationRun, PolicyValue, Read
    from trainer.runs.replay import Replayed

# A moment among the counts of a join, which no reader wants.
_A_TIME = "through_us"
_MOST_POSITIONS = 12
_OF_LISTS = {
    "item_position": "item-position, per list",
    "rips": "RIPS, per list",
    "cascade_dr": "cascade-DR, per list",
}


class ReplayLog(Log, total=False):
    """A log of labelled rows; of events, items alone."""

    items: Annotated[  # with its own help
        Data | None,
        Flag(
            "A file of items: the candidates, and columns that the log lacks, joined by input.item.",
            "FILE",
            type=Path | None,
            file="reads",
        ),
    ]


@command(
    "Judge",
    3,
    "Example: ftrie replay ads.toml 'impressions/*.jsonl.gz' 'clicks/*.jsonl.gz' --policy ads:7@base",
)
def replay(
    spec: SpecArgument,
    logs: Annotated[
        list[str],
        Argument(
            "Events, as sources of `ftrie trainer` (`store` names the store's own streams), or labelled rows.",
            "LOG…",
            file="reads",
        ),
    ],
    *,
    policies: PolicyFlags,
    log: ReplayLog,
    rejects: RejectsOption = None,
    threads: ThreadsOption = None,
    save: SaveOption = None,
    publish: Annotated[bool, Flag("Publish the learned model.")] = False,
    force: Annotated[
        bool, Flag("Publish even if more than a tenth of the rows or events were rejected.")
    ] = False,
    report: Annotated[
        Path | None, Flag("Write what --json prints to this file.", "FILE", file="writes")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Run a log through the trainer's own join and learner, faster than real time; publishes only with --publish.

    With --policy, also estimate the click rate that other policies would have had on this log, by importance weighting
    with the logged propensities: IPS, clipped IPS and SNIPS, each with 95 % intervals; of lists item-position and RIPS;
    with --reward-model also doubly robust estimates. Exit code 11 if the log cannot answer for one of the policies.
    """
    from model_store.files import write_whole
    from model_store.spec.spec import load_spec
    from model_store.store import Store
    from trainer.events.columns import resolve_fields
    from trainer.formats.batch import STDIN
    from trainer.formats.reader import EVENTS
    from trainer.formats.streams import is_pipe
    from trainer.learn.metrics.figures import IN_TABLES
    from trainer.off_policy.logged import DECISION_LIST, DECISION_ROW
    from trainer.runs.first_events import first_events
    from trainer.sources.open_sources import check_there, kind_of, names_store

    if save is not None and save.suffix != ".arrow":
        raise typer.BadParameter("a model is saved as .arrow; `ftrie store export` writes the JSON form")
    model_spec = load_spec(spec)
    check_there([each for each in logs if each != STDIN])
    of_events = kind_of(logs, model_spec.input.label, log["format"], are_sources=True) == EVENTS
    if policies.policy and any(map(is_pipe, logs)):
        raise InputError(
            "standard input and other pipes can be read only once, and estimates need the log a second time; "
            "name a file"
        )
    if of_events:
        _check_flags_of_events(policies, log, rejects)
    with ExitStack() as stack:
        # Only if needed: to open an embedded store starts a Valkey.
        needs_store = publish or any(map(names_store, logs))
        opened = stack.enter_context(Store.open(store)) if needs_store else None
        if of_events:
            model_spec = resolve_fields(model_spec, first_events(model_spec, logs, opened), logs)
        estimating = None
        if policies.policy:
            default = DECISION_LIST if of_events else DECISION_ROW
            estimating = policies.estimating(model_spec, log["items"], store, default)
        if of_events:
            replayed, read = _replay_events(model_spec, logs, policies, estimating, opened)
        else:
            replayed, read = _replay_rows(model_spec, logs, policies, estimating, log, rejects, threads)
        sha256, version = _finish(replayed, save, publish, force, opened)
        estimates = _estimate(estimating, read) if estimating is not None else None
    answer = {
        "model": model_spec.model.name,
        **replayed.as_dict(),
        "sha256": sha256,
        "version": version,
        "estimates": asdict(estimates) if estimates is not None else None,
    }
    if report is not None:
        write_whole(report, (json.dumps(answer, indent=2, allow_nan=False) + "\n").encode())
    if as_json:
        print_json(answer)
        check_answered(estimates)
        return
    _print_replay(model_spec.model.name, replayed)
    published = f", version {version}" if version is not None else ""
    print(f"model: {replayed.model.table.count:,} keys, SHA-256 {sha256}{published}")
    print_table(
        ["variant", *IN_TABLES.values()],
        [
            [name, *(getattr(figures, each) for each in IN_TABLES)]
            for name, figures in replayed.model.metrics.summary().items()
        ],
    )
    if estimates is not None:
        print()
        print_estimates(estimates)
        check_answered(estimates)


def _check_flags_of_events(policies: PolicyFlags, log: ReplayLog, rejects: Path | None) -> None:
    given: dict[str, object] = {"--users": log["users"], "--format": log["format"], "--rejects": rejects}
    given["--no-header"] = log["no_header"] or None
    if not policies.policy:
        given["--items"] = log["items"]
    for flag, value in given.items():
        if value is not None:
            raise InputError(f"{flag} is for labelled rows; events carry their features, and are JSON")


def _replay_rows(
    spec: ModelSpec,
    logs: Sequence[str],
    policies: PolicyFlags,
    estimating: EstimationRun | None,
    flags: ReplayLog,
    rejects: Path | None,
    threads: int | None,
) -> tuple[Replayed, Read]:
    """Replay labelled rows, which estimates read a second time."""
    from trainer.formats.rejects import RejectLog
    from trainer.off_policy.logged import DECISION_ROW, LogOfRows
    from trainer.runs.replay import replay_rows
    from trainer.runs.warmup import compile_kernels, formats_of
    from trainer.sources.open_sources import files_of_rows

    log = log_of(files_of_rows(logs), spec.input, note=note_once(), **flags)
    compile_kernels(spec, formats_of(log), output=terminal)
    with RejectLog(rejects) as reject_log:
        replayed = replay_rows(spec, log, rejects=reject_log, threads=threads, output=terminal)
    decision = estimating.decision if estimating is not None else DECISION_ROW
    quiet = replace(log, on_note=lambda text: None)  # the replay has printed the notes
    return replayed, LogOfRows(quiet, policies.propensity, policies.position, decision).read


def _replay_events(
    spec: ModelSpec,
    logs: Sequence[str],
    policies: PolicyFlags,
    estimating: EstimationRun | None,
    store: Store | None,
) -> tuple[Replayed, Read]:
    """Replay events; the joined rows are kept for estimates."""
    from trainer.off_policy.logged import DECISION_LIST
    from trainer.runs.replay import JoinedTap, replay_events
    from trainer.runs.warmup import compile_kernels

    compile_kernels(spec, output=terminal)
    models = list(estimating.specs.values()) if estimating is not None else []
    decision = estimating.decision if estimating is not None else DECISION_LIST
    tap = JoinedTap(spec, models, policies.propensity, policies.position, decision)
    # What is tapped is kept: only estimates are worth that.
    replayed = replay_events(spec, logs, store, tap=tap if estimating else None, output=terminal)
    if replayed.rejected and not (replayed.counts["impressions"] or replayed.counts["feedback"]):
        raise InputError(
            f"{', '.join(logs)}: no line is an event ({next(iter(replayed.reasons))}), and none is a row with the "
            f"label {spec.input.label!r}"
        )
    return replayed, tap.read


def _finish(
    replayed: Replayed, save: Path | None, publish: bool, force: bool, store: Store | None
) -> tuple[str, int | None]:
    """Save and publish the model if wanted; returns its SHA-256 and version."""
    from trainer.formats.rejects import no_usable_row, too_many_rejected

    if not replayed.examples:
        raise InputError(no_usable_row("learned from", replayed.rejected, replayed.reasons))
    artefact = replayed.model.artefact()
    if save is not None:
        artefact.write(save)
    if publish and not force:
        share, bad, reasons = replayed.rejected_share, replayed.rejected, replayed.reasons
        if withheld := too_many_rejected(share, bad, reasons, "then replay again"):
            raise InputError(withheld)
    if not publish or store is None:
        return artefact.sha256, None
    return artefact.sha256, store.model(artefact.spec.model.name).publish(artefact)


def _estimate(estimating: EstimationRun, read: Read) -> Estimates:
    from trainer.runs.warmup import compiling_scorer

    compiling = compiling_scorer(terminal) if estimating.models else nullcontext()
    with compiling, progress("estimating", unit="steps") as bar:
        return estimating.run(read, lambda step, done, total: bar.update(done, total=total, of=step))


def _print_replay(name: str, replayed: Replayed) -> None:
    rate = replayed.examples / replayed.seconds if replayed.seconds else 0.0
    faster = f"; {replayed.speed:,.0f} × real time ({_span(replayed)})" if replayed.speed else ""
    print(
        f"{name}: {replayed.examples:,} examples in {replayed.seconds:.1f} s ({rate:,.0f}/s), "
        f"{replayed.rejected:,} rejected{faster}"
    )
    for kind, counts in (("events", replayed.counts), ("join", replayed.join)):
        texts = [
            f"{count:,} {what.replace('_', ' ')}"
            for what, count in counts.items()
            if count and what != _A_TIME
        ]
        if texts:
            print(f"{kind}: {', '.join(texts)}")
    if replayed.reasons:
        print(rejected_for(replayed.reasons))


def _span(replayed: Replayed) -> str:
    seconds = replayed.span_s or 0.0
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit} of log"
    return f"{seconds:,.1f} s of log"


def check_answered(found: Estimates | None) -> None:
    """Leave with the exit code of NoSupport if the log could not answer for every policy."""
    if found is not None and any(policy.refused for policy in found.policies):
        raise typer.Exit(NoSupport.exit_code)


def print_estimates(
    found: Estimates, what: str = "click rate per item shown", unit: str = "candidates"
) -> None:
    """Print the estimates of all policies, and on what they rest."""
    kind = "one item a row" if found.decision == "row" else f"lists of {found.size:.1f} items on average"
    print(
        f"{what}, 95 % intervals; {found.rows:,} rows of {found.requests:,} requests, {kind}"
        + (f", {found.candidates:,} {unit}" if found.candidates else "")
        + f"; weights clipped at {found.limit:,.4g}"
    )
    estimates, support = list[list[str | float | None]](), []
    for policy in found.policies:
        of = policy.support
        weights = round(of.ess), round(of.clicks, 1), of.mean, of.largest
        support.append([policy.name, f"{of.matched:.1%}", *weights, f"{of.clipped:.1%}"])
        if policy.refused:
            estimates.append([policy.name, "refused", *["—"] * 5])
            continue
        snips, ips, clipped = (policy.estimates[name] for name in ("snips", "ips", "clipped"))
        intervals = _interval(snips.low, snips.high), _interval(snips.bootstrap_low, snips.bootstrap_high)
        others = _with_error(ips), _with_error(clipped), _with_error(policy.difference, sign="+")
        estimates.append([policy.name, snips.value, *intervals, *others])
    print_table(["policy", "SNIPS", "normal", "bootstrap", "IPS", "clipped", "to logged"], estimates)
    for columns in ({"dr": "DR", "switch_dr": "Switch-DR", "dros": "DRos", "dm": "DM"}, _OF_LISTS):
        rows = [
            [p.name, *map(_or_none(p), columns)]
            for p in found.policies
            if columns.keys() & p.estimates.keys()
        ]
        if rows:
            print()
            print_table(["policy", *columns.values()], rows)
    print()
    effective = ["effective rows", "effective clicks"]
    print_table(["policy", "matched", *effective, "mean weight", "largest", "over the clip"], support)
    positions = list(dict.fromkeys(each for policy in found.policies for each in policy.positions))
    if 1 < len(positions) <= _MOST_POSITIONS:
        rows = [
            [p.name, *(_with_error(p.positions[each]["snips"]) for each in positions)]
            for p in found.policies
            if p.positions
        ]
        print()
        print_table(["SNIPS by position", *positions], rows)
    for text in found.notes:
        note(text)
    for policy in found.policies:
        for text in policy.refused:
            note(f"{policy.name}: refused: {text}")
        for text in policy.warnings if not policy.refused else ():
            note(f"{policy.name}: {text}")


def _or_none(policy: PolicyValue) -> Callable[[str], str]:
    return lambda name: _with_error(policy.estimates[name]) if name in policy.estimates else "—"


def _interval(low: float | None, high: float | None) -> str:
    return "—" if low is None or high is None else f"{low:.5f} … {high:.5f}"


def _with_error(estimate: Estimate, sign: str = "") -> str:
    if estimate.value is None:
        return "—"
    from trainer.learn.metrics.figures import NORMAL_95

    error = f" ± {NORMAL_95 * estimate.error:.5f}" if estimate.error is not None else ""
    return f"{estimate.value:{sign}.5f}{error}"
