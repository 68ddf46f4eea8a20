"""`ftrie replay`: its flags. What was asked for is done in `trainer.replaying`, and shown by `replaying.shown`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from model_store.terminal import DEFAULT_STORE, JsonOption, StoreOption


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
    from model_store.spec import load_spec
    from model_store.whole_file import check_writable
    from trainer.replaying.asked import Asked, run
    from trainer.replaying.shown import show

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
    show(run(load_spec(spec), logs, asked), report, as_json)
