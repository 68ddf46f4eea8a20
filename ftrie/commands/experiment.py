"""`ftrie experiment`: how a model's traffic is divided, changed while servers run. Flags and output only.

A command reads the record, changes its own part of it and writes it back; servers follow within a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ftrie.commands.experiment_report import report
from ftrie.terminal import DEFAULT_STORE, JsonOption, StoreOption, note, print_json, print_table
from model_store.errors import counted

if TYPE_CHECKING:
    from model_store.versions.experiments import Experiment
    from server.ranking.experiments import Assignment


Model = Annotated[str, typer.Argument(metavar="MODEL", help="The model's name.")]
RevisionOption = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="Only if this still is the revision; 0: only if there is none."),
]
Edit = Callable[["Experiment"], "Experiment"]


def register(app: typer.Typer) -> None:
    """Add `ftrie experiment`."""
    group = typer.Typer(
        name="experiment",
        help="Divide a model's traffic between its variants, while servers run.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    group.command("show", epilog="Example: ftrie experiment show ads")(show)
    group.command("set", epilog="Example: ftrie experiment set ads base=0.9 plain=0.1")(set_)
    group.command("pin", epilog="Example: ftrie experiment pin ads u1=plain u2=base")(pin)
    group.command("unpin", epilog="Example: ftrie experiment unpin ads u1 u2")(unpin)
    group.command("shadow", epilog="Example: ftrie experiment shadow ads plain")(shadow)
    group.command("report", epilog="Example: ftrie experiment report ads --since 1h")(report)
    group.command("stop", epilog="Example: ftrie experiment stop ads --winner base")(stop)
    group.command("clear", epilog="Example: ftrie experiment clear ads")(clear)
    app.add_typer(group)


def show(model: Model, store: StoreOption = DEFAULT_STORE, as_json: JsonOption = False) -> None:
    """Show a model's experiment, and the share of traffic that each variant gets."""
    from model_store.store import Store
    from server.sync.experiment_sync import assigned_by_spec

    with Store.open(store) as opened:
        versions = opened.model(model)
        record, spec = versions.experiment(), assigned_by_spec(versions)
    after = spec and spec.asked_for(record)
    if after and after.problem:
        note(f"servers refuse this experiment: {after.problem}")
    say(model, record, after, None, as_json)


def set_(
    model: Model,
    shares: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VARIANT=SHARE]...", help="Fractions that sum to 1; a variant not named gets nothing."
        ),
    ] = None,
    salt: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help='What cookies are hashed with; "" for the model\'s name.'),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help='What to order by where a request names nothing; "" for the click rate.'
        ),
    ] = None,
    revision: RevisionOption = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Divide the traffic by these shares, from now on; says which part of the cookies moves."""
    wanted = _shares(shares or [])
    if not wanted and salt is None and objective is None:
        raise typer.BadParameter("give shares such as base=0.9 plain=0.1, --salt or --objective")

    def edit(before: Experiment) -> Experiment:
        changed = before.divided(wanted, salt) if wanted else before
        salted = changed if salt is None else replace(changed, salt=salt)
        return salted if objective is None else replace(salted, objective=objective)

    _change(model, edit, revision, store, as_json)


def pin(
    model: Model,
    pins: Annotated[list[str], typer.Argument(metavar="COOKIE=VARIANT...", help="Who gets what.")],
    revision: RevisionOption = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Give cookies a variant whatever the shares, such as your own for a test. At most 10,000 in all."""
    wanted = _pairs(pins, "COOKIE=VARIANT")
    _change(model, lambda before: before.pinned(wanted), revision, store, as_json)


def unpin(
    model: Model,
    cookies: Annotated[
        list[str] | None, typer.Argument(metavar="COOKIE...", help="Whose pins to remove.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Remove all pins.")] = False,
    revision: RevisionOption = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Remove pins; these cookies are divided by the shares again."""
    if every == bool(cookies):
        raise typer.BadParameter("give either cookies or --all")
    _change(
        model,
        lambda before: before.unpinned(before.pins if every else cookies or ()),
        revision,
        store,
        as_json,
    )


def shadow(
    model: Model,
    variants: Annotated[
        list[str] | None, typer.Argument(metavar="VARIANT...", help="All that are to be scored unseen.")
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="Score none.")] = False,
    revision: RevisionOption = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Score variants beside the one that answers; with --shadow-log, servers write down what they had answered."""
    if off == bool(variants):
        raise typer.BadParameter("give either variants or --off")
    _change(model, lambda before: replace(before, shadows=tuple(variants or ())), revision, store, as_json)


def stop(
    model: Model,
    winner: Annotated[str, typer.Option(metavar="VARIANT", help="Answers everything from now on.")],
    revision: RevisionOption = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """End the experiment: one variant answers every request, pins and shadows rest. `set` shares to start it again."""
    _change(model, lambda before: before.stopped(winner), revision, store, as_json)


def clear(model: Model, store: StoreOption = DEFAULT_STORE, as_json: JsonOption = False) -> None:
    """Forget the experiment, even one that cannot be read: the shares of the spec divide the traffic again."""
    from model_store.store import Store
    from server.sync.experiment_sync import assigned_by_spec

    with Store.open(store) as opened:
        versions = opened.model(model)
        record = versions.experiments.clear()
        spec = assigned_by_spec(versions)
    say(model, record, spec and spec.asked_for(record), None, as_json)


def _change(model: str, edit: Edit, revision: int | None, store: str, as_json: bool) -> None:
    """Edit the record if the outcome fits the active version. Raises ExperimentError, ExperimentChanged."""
    from model_store.store import Store
    from server.ranking.experiments import Assignment, check_objective
    from server.sync.experiment_sync import assigned_by_spec

    seen: list[Experiment] = []

    with Store.open(store) as opened:
        versions = opened.model(model)
        spec = assigned_by_spec(versions)
        if spec is None:
            note(f"no version of {model} is active yet, so the names of variants are not checked")

        def checked(before: Experiment) -> Experiment:
            seen.append(before)
            after = edit(before)
            check_objective(after.objective)
            if spec is not None:
                Assignment(model, spec.variants, spec.spec_shares, after)
            return after

        record = versions.experiments.change(checked, revision)
    after = spec and spec.asked_for(record)
    moves = spec.asked_for(seen[-1]).moves_to(after) if spec and after else None
    say(model, record, after, moves, as_json)


def _shares(texts: Sequence[str]) -> dict[str, float]:
    """`["base=0.9", "plain=0.1"]` → `{"base": 0.9, "plain": 0.1}`."""
    shares: dict[str, float] = {}
    for name, value in _pairs(texts, "VARIANT=SHARE").items():
        try:
            shares[name] = float(value)
        except ValueError:
            raise typer.BadParameter(
                f"got '{name}={value}', expected VARIANT=SHARE with a number from 0 to 1"
            ) from None
    return shares


def _pairs(texts: Sequence[str], expected: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, value = _pair(text, expected)
        if pairs.setdefault(name, value) != value:
            raise typer.BadParameter(f"got {name!r} twice: {pairs[name]} and {value}")
    return pairs


def _pair(text: str, expected: str) -> tuple[str, str]:
    """The parts before and after the last `=`: a cookie may have one of its own."""
    name, equals, value = text.rpartition("=")
    if not equals or not name or not value:
        raise typer.BadParameter(f"got {text!r}, expected {expected}")
    return name, value


# --- What an experiment looks like on the terminal and as JSON. Nothing here reads or changes one ---


def say(
    model: str, record: Experiment | None, after: Assignment | None, moves: float | None, as_json: bool
) -> None:
    """Print a record and what comes of it: `after`, None where no version is active; `moves`, a fraction of cookies."""
    if as_json:
        _say_as_json(model, record, after, moves)
        return
    if after is not None:
        _print_variants(after)
    if record is None:
        print(f"{model}: no experiment; the shares are those of the spec")
        return
    print(f"{model}: revision {record.revision}, {_state(record)}, {counted(len(record.pins), 'pin')}")
    if record.salt:
        print(f"salt: {record.salt}")
    if record.objective:
        print(f"objective: {record.objective}")
    if moves is not None:
        print(f"moves {moves:.1%} of the cookies to another variant")


def _state(record: Experiment) -> str:
    return record.state if record.running else f"{record.state}: {record.winner} answers everything"


def _print_variants(after: Assignment) -> None:
    pins = list(after.experiment.pins.values()) if after.experiment is not None else []
    rows = [
        [name, after.shares[bit], after.spec_shares[bit], pins.count(name), bit in after.shadows]
        for bit, name in enumerate(after.variants)
    ]
    print_table(["variant", "share", "share in the spec", "pins", "shadow"], rows)


def _say_as_json(
    model: str, record: Experiment | None, after: Assignment | None, moves: float | None
) -> None:
    print_json(
        {
            "model": model,
            "experiment": record and record.plain(),
            "in_force": after and dict(zip(after.variants, after.shares, strict=True)),
            "problem": (after and after.problem) or None,
            "moves": moves,
        }
    )
