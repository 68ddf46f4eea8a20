"""`ftrie replay`: its flags. What was asked for is done in `trainer.replaying`, and shown by `replaying.shown`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ftrie import terminal
from ftrie.terminal import DEFAULT_STORE, JsonOption, StoreOption, note, print_json, print_table

if TYPE_CHECKING:
    from trainer.off_policy.estimating import Estimates
    from trainer.off_policy.estimators import Estimate
    from trainer.off_policy.policies import PolicyValue
    from trainer.runs.replay import Done
    from trainer.runs.replay_logs import Replayed


def register(app: typer.Typer) -> None:
    """Add `ftrie replay`."""
    app.command(
        "replay",
        epilog="Example: ftrie replay ads.toml 'impressions/*.jsonl.gz' 'clicks/*.jsonl.gz' --policy ads:7@base",
    )(replay)


def replay(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help="The model spec, a TOML file.")],
    logs: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG…",
            help="Events, as sources of `ftrie trainer` (`store` names the store's own streams), or labelled rows.",
        ),
    ],
    policy: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            help="Estimate this policy's click rate: MODEL[:VERSION][@VARIANT], FILE.arrow[@VARIANT], "
            "learning[@VARIANT], uniform, logged; repeatable.",
        ),
    ] = [],  # noqa: B006
    choose: Annotated[
        list[str],
        typer.Option(
            metavar="HOW",
            help="How models choose: greedy, softmax:T, epsilon:E; repeatable. Default: greedy.",
        ),
    ] = ["greedy"],  # noqa: B006
    decision: Annotated[
        str | None,
        typer.Option(
            metavar="row|list",
            help="What a propensity is of: a row's one item, or an item's being in its request's list. "
            "Default: row for labelled rows, list for events.",
        ),
    ] = None,
    propensity: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="The chance with which a row was shown; default: propensity_score, propensity or pscore.",
        ),
    ] = None,
    position: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Estimates by its values too; default: position."),
    ] = None,
    clip: Annotated[
        float | None,
        typer.Option(min=1.0, metavar="W", help="Weights are clipped at W; default: the root of the rows."),
    ] = None,
    bootstrap: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Draws of requests for the bootstrap's intervals; 0: none."),
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Of these draws.")] = 1,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD", help="Models choose without this field or cross (a*b); repeatable."),
    ] = None,
    items: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The candidates, and columns of items that the log lacks; by input.item."
        ),
    ] = None,
    users: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Columns of users that the log lacks, by input.cookie."),
    ] = None,
    input_format: Annotated[
        str | None,
        typer.Option("--format", metavar="NAME", help="The format of labelled rows, as of `ftrie train`."),
    ] = None,
    rejects: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="List bad labelled rows here: JSON lines of file, line, reason."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Hashing threads for labelled rows; the result is the same.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE.arrow", help="Write the learned model to this file.")
    ] = None,
    publish: Annotated[bool, typer.Option("--publish", help="Publish the learned model.")] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Publish even if more than a tenth of the rows or events were rejected."
        ),
    ] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what --json prints to this file.")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Run a log through the trainer's own join and learner, faster than real time; nothing is published unasked.

    With --policy also: the click rate that other policies would have had on this log, by importance weighting of the
    propensities it was written with. IPS, clipped IPS and SNIPS, each with 95 % intervals.
    """
    from model_store.spec.spec import load_spec
    from model_store.whole_file import check_writable
    from trainer.runs.replay import Asked, run

    if save is not None and save.suffix != ".arrow":
        raise typer.BadParameter("a model is saved as .arrow; `ftrie store export` writes the JSON form")
    if decision not in (None, "row", "list"):
        raise typer.BadParameter(f"--decision {decision}: expected row or list")
    for path in filter(None, (save, report)):
        check_writable(path)
    asked = Asked(
        policies=tuple(policy),
        choices=tuple(choose),
        decision=decision,
        propensity=propensity,
        position=position,
        clip=clip,
        bootstrap=bootstrap,
        seed=seed,
        without=tuple(without or ()),
        items=items,
        users=users,
        format=input_format,
        rejects=rejects,
        threads=threads,
        save=save,
        publish=publish,
        force=force,
        store=store,
    )
    show(run(load_spec(spec), logs, asked, terminal), report, as_json)


# --- What `ftrie replay` prints: a few lines and tables, or the same as JSON ---


_A_TIME = "through_us"
_MOST_PLACES, _MOST_REASONS = 12, 5


def show(done: Done, report: Path | None, as_json: bool) -> None:
    """Print what was done, and write it to `report`. Raises OutputError."""
    from model_store.whole_file import write_whole

    answer = done.as_dict()
    if report is not None:
        write_whole(report, (json.dumps(answer, indent=2, allow_nan=False) + "\n").encode())
    if as_json:
        print_json(answer)
        return
    _show_replay(done)
    if done.estimates is not None:
        _show_estimates(done.estimates)


def _show_replay(done: Done) -> None:
    replayed = done.replayed
    rate = replayed.examples / replayed.seconds if replayed.seconds else 0.0
    faster = f"; {replayed.speed:,.0f} × real time ({_span(replayed)})" if replayed.speed else ""
    print(
        f"{done.name}: {replayed.examples:,} examples in {replayed.seconds:.1f} s ({rate:,.0f}/s), "
        f"{replayed.rejected:,} rejected{faster}"
    )
    for name, counts in (("events", replayed.counts), ("join", replayed.join)):
        told = [
            f"{count:,} {what.replace('_', ' ')}"
            for what, count in counts.items()
            if count and what != _A_TIME
        ]
        if told:
            print(f"{name}: {', '.join(told)}")
    if replayed.reasons:
        reasons = list(replayed.reasons.items())[:_MOST_REASONS]
        print(f"rejected for: {', '.join(f'{reason} ({count:,})' for reason, count in reasons)}")
    version = f", version {done.version}" if done.version is not None else ""
    print(f"model: {replayed.model.table.used:,} keys, SHA-256 {done.sha256}{version}")
    print_table(
        ["variant", "log-loss", "AUC", "calibration", "normalized entropy"],
        [
            [name, m.logloss, m.auc, m.calibration, m.normalized_entropy]
            for name, m in replayed.model.metrics.summary().items()
        ],
    )


def _span(replayed: Replayed) -> str:
    seconds = replayed.span_s or 0.0
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit} of log"
    return f"{seconds:,.1f} s of log"


def _show_estimates(found: Estimates) -> None:
    what = "one item a row" if found.decision == "row" else f"lists of {found.size:.1f} items on average"
    print(
        f"\nclick rate per item shown, 95 % intervals; {found.rows:,} rows of {found.requests:,} requests, {what}"
        + (f", {found.candidates:,} candidates" if found.candidates else "")
        + f"; weights clipped at {found.limit:,.4g}"
    )
    print_table(
        ["policy", "SNIPS", "normal", "bootstrap", "IPS", "clipped", "to logged"],
        [_estimates_of(policy) for policy in found.policies],
    )
    _show_support(found)
    _show_by_position(found)
    for text in found.notes:
        note(text)
    for policy in found.policies:
        for text in policy.warnings:
            note(f"{policy.name}: {text}")


def _show_support(found: Estimates) -> None:
    print()
    print_table(
        [
            "policy",
            "matched",
            "effective rows",
            "effective clicks",
            "mean weight",
            "largest",
            "over the clip",
        ],
        [_support_of(policy) for policy in found.policies],
    )


def _show_by_position(found: Estimates) -> None:
    places = list(dict.fromkeys(place for policy in found.policies for place in policy.positions))
    if 1 < len(places) <= _MOST_PLACES:
        print()
        print_table(
            ["SNIPS by position", *places],
            [
                [p.name, *(_with_error(p.positions[place]["snips"]) for place in places)]
                for p in found.policies
            ],
        )


def _estimates_of(policy: PolicyValue) -> list[object]:
    snips, ips, clipped = (policy.estimates[name] for name in ("snips", "ips", "clipped"))
    return [
        policy.name,
        snips.value,
        _interval(snips.low, snips.high),
        _interval(snips.bootstrap_low, snips.bootstrap_high),
        _with_error(ips),
        _with_error(clipped),
        _with_error(policy.difference, sign="+"),
    ]


def _support_of(policy: PolicyValue) -> list[object]:
    support = policy.support
    return [
        policy.name,
        f"{support.matched:.1%}",
        round(support.ess),
        round(support.clicks, 1),
        support.mean,
        support.largest,
        f"{support.clipped:.1%}",
    ]


def _interval(low: float | None, high: float | None) -> str:
    return "—" if low is None or high is None else f"{low:.5f} … {high:.5f}"


def _with_error(estimate: Estimate, sign: str = "") -> str:
    if estimate.value is None:
        return "—"
    from trainer.off_policy.estimators import Z

    error = f" ± {Z * estimate.error:.5f}" if estimate.error is not None else ""
    return f"{estimate.value:{sign}.5f}{error}"
