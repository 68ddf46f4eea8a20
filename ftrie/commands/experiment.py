"""`ftrie experiment`: shows and changes how a model's traffic is divided, while servers run.

A command reads the experiment's record, changes its part and writes the record back; servers follow within a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ftrie.command import Commands
from ftrie.commands.experiment_report import report
from ftrie.terminal import JsonOption, note, print_json, print_table, warn
from model_store.errors import counted
from model_store.flags import DEFAULT_STORE, Argument, Flag, StoreOption

if TYPE_CHECKING:
    from model_store.versions.experiments import Experiment
    from server.ranking.experiments import Assignment


Model = Annotated[str, Argument("The model's name.", "MODEL")]
RevisionOption = Annotated[
    int | None, Flag("Only if this is still the revision; 0: only if there is none.", "N", min=0)
]
Edit = Callable[["Experiment"], "Experiment"]


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
    _print_experiment(model, record, after, None, as_json)


def set_(
    model: Model,
    shares: Annotated[
        list[str] | None,
        Argument("Fractions that sum to 1; a variant not named gets nothing.", "[VARIANT=SHARE]..."),
    ] = None,
    salt: Annotated[
        str | None, Flag('Salt of the hash of cookies; "" for the model\'s name.', "TEXT")
    ] = None,
    objective: Annotated[
        str | None, Flag('What to order by if a request has no objective; "" for the click rate.', "TEXT")
    ] = None,
    revision: RevisionOption = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Divide the traffic by these shares from now on; prints the share of cookies that change variant."""
    wanted = _shares(shares or [])
    if not wanted and salt is None and objective is None:
        raise typer.BadParameter("give shares such as base=0.9 plain=0.1, --salt or --objective")

    def edit(before: Experiment) -> Experiment:
        changed = before.divided(wanted, salt) if wanted else before
        salted = changed if salt is None else replace(changed, salt=salt)
        return salted if objective is None else replace(salted, objective=objective)

    _change("set", model, edit, revision, store, as_json)


def pin(
    model: Model,
    pins: Annotated[list[str], Argument("Cookies and their variants.", "COOKIE=VARIANT...")],
    revision: RevisionOption = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Pin cookies to a variant regardless of the shares, such as your own for a test. At most 10,000 in all."""
    wanted = _pairs(pins, "COOKIE=VARIANT")
    _change("pin", model, lambda before: before.pinned(wanted), revision, store, as_json)


def unpin(
    model: Model,
    cookies: Annotated[list[str] | None, Argument("Cookies whose pins to remove.", "COOKIE...")] = None,
    every: Annotated[bool, Flag("Remove all pins.", names="--all")] = False,
    revision: RevisionOption = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Remove pins; the shares decide about these cookies again."""
    if every == bool(cookies):
        raise typer.BadParameter("give either cookies or --all")
    _change(
        "unpin",
        model,
        lambda before: before.unpinned(before.pins if every else cookies or ()),
        revision,
        store,
        as_json,
    )


def shadow(
    model: Model,
    variants: Annotated[
        list[str] | None, Argument("The variants to score in the shadow.", "VARIANT...")
    ] = None,
    off: Annotated[bool, Flag("Score none.")] = False,
    revision: RevisionOption = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Score variants in addition to the one that answers; servers with --shadow-log log their answers."""
    if off == bool(variants):
        raise typer.BadParameter("give either variants or --off")
    shadows = tuple(variants or ())
    _change("shadow", model, lambda before: replace(before, shadows=shadows), revision, store, as_json)


def stop(
    model: Model,
    winner: Annotated[str, Flag("The variant that answers all requests.", "VARIANT")],
    revision: RevisionOption = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """End the experiment: one variant answers all requests, pins and shadows are ignored; `set` restarts it."""
    _change("stop", model, lambda before: before.stopped(winner), revision, store, as_json)


def clear(model: Model, store: StoreOption = DEFAULT_STORE, as_json: JsonOption = False) -> None:
    """Delete the experiment, even an unreadable one: the shares of the spec divide the traffic again."""
    from model_store.store import Store
    from model_store.versions.audit import By
    from server.sync.experiment_sync import assigned_by_spec

    with Store.open(store) as opened:
        versions = opened.model(model, warn)
        record = versions.experiments.clear(By("ftrie experiment clear"))
        spec = assigned_by_spec(versions)
    _print_experiment(model, record, spec and spec.asked_for(record), None, as_json)


def _change(command: str, model: str, edit: Edit, revision: int | None, store: str, as_json: bool) -> None:
    """Edit the record if the result fits the active version. Raises ExperimentError, ExperimentChanged."""
    from model_store.store import Store
    from model_store.versions.audit import By
    from server.sync.experiment_sync import change_experiment

    with Store.open(store) as opened:
        versions = opened.model(model, warn)
        by = By(f"ftrie experiment {command}")
        changed = change_experiment(versions, edit, by=by, revision=revision)
    if changed.by_spec is None:
        note(f"no version of {model} is active yet, so the names of variants are not checked")
    after = changed.by_spec and changed.by_spec.asked_for(changed.record)
    _print_experiment(model, changed.record, after, changed.moves, as_json)


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
    """The parts before and after the last `=`; a cookie may contain `=`."""
    name, equals, value = text.rpartition("=")
    if not equals or not name or not value:
        raise typer.BadParameter(f"got {text!r}, expected {expected}")
    return name, value


def _print_experiment(
    model: str, record: Experiment | None, after: Assignment | None, moves: float | None, as_json: bool
) -> None:
    """Print a record. after: its effect, None if no version is active; moves: the share of cookies that move."""
    if as_json:
        _print_as_json(model, record, after, moves)
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


def _print_as_json(
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


experiment = Commands(
    "experiment",
    "Divide a model's traffic between its variants, while servers run.",
    ("Serve", 5),
    no_args_is_help=True,
)
experiment.command("show", epilog="Example: ftrie experiment show ads")(show)
experiment.command("set", epilog="Example: ftrie experiment set ads base=0.9 plain=0.1")(set_)
experiment.command("pin", epilog="Example: ftrie experiment pin ads u1=plain u2=base")(pin)
experiment.command("unpin", epilog="Example: ftrie experiment unpin ads u1 u2")(unpin)
experiment.command("shadow", epilog="Example: ftrie experiment shadow ads plain")(shadow)
experiment.command("report", epilog="Example: ftrie experiment report ads --since 1h")(report)
experiment.command("stop", epilog="Example: ftrie experiment stop ads --winner base")(stop)
experiment.command("clear", epilog="Example: ftrie experiment clear ads")(clear)
