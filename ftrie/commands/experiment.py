"""`ftrie experiment`: shows and changes how a model's traffic is divided, while servers run, and compares the variants.

A command reads the experiment's record, changes its part and writes the record back; servers follow within a second.
`ftrie.outcomes` computes the figures of a report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ftrie.command import Commands
from ftrie.terminal import JsonOption, note, print_json, print_table, warn
from model_store.errors import counted, listed
from model_store.flags import DEFAULT_STORE, Argument, Flag, StoreOption

if TYPE_CHECKING:
    from ftrie.outcomes import Outcome, Outcomes
    from model_store.versions.experiments import Experiment
    from server.ranking.experiments import Assignment


Model = Annotated[str, Argument("The model's name.", "MODEL")]
Edit = Callable[["Experiment"], "Experiment"]


@dataclass(frozen=True)
class EditFlags:
    """The record that a command changes, and how it answers."""

    revision: Annotated[
        int | None, Flag("Only if this is still the revision; 0: only if there is none.", "N", min=0)
    ] = None
    store: StoreOption = DEFAULT_STORE
    as_json: JsonOption = False


def show(model: Model, store: StoreOption = DEFAULT_STORE, as_json: JsonOption = False) -> None:
    """Show a model's experiment, and the share of traffic that each variant gets."""
    from model_store.store import Store
    from server.ranking.experiments import assigned_by_spec

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
    explore: Annotated[
        str | None,
        Flag('How requests explore that do not say: ucb:WIDTH or thompson:WIDTH; "" for not.', "HOW:WIDTH"),
    ] = None,
    explore_share: Annotated[
        float | None, Flag("At most this share of the requests explores, chosen by request id.", min=0, max=1)
    ] = None,
    explore_cost: Annotated[
        float | None,
        Flag("What exploration may cost of a request's expected clicks; 1: any.", "SHARE", min=0, max=1),
    ] = None,
    new_items: Annotated[
        str | None,
        Flag("The share of places that exploring requests give to items below N clicks.", "SHARE:N"),
    ] = None,
    apprentice: Annotated[
        bool | None,
        Flag(
            "Answer in the order in which the candidates come, learn from it, and log the model's order.",
            names="--apprentice/--no-apprentice",
        ),
    ] = None,
    interleave: Annotated[
        str | None,
        Flag(
            'Variants that answer each request together, in one list; "" for one by its share.',
            "NAME,NAME...",
        ),
    ] = None,
    draft: Annotated[
        str | None, Flag("How they are interleaved: team, the default, or probabilistic.", "METHOD")
    ] = None,
    flags: EditFlags = EditFlags(),
) -> None:
    """Divide the traffic by these shares from now on; prints the share of cookies that change variant."""
    from model_store.versions.experiments import TEAM

    wanted = _shares(shares or [])
    if draft is not None and not interleave:
        raise typer.BadParameter("--draft is of --interleave, which names the variants")
    if wanted and interleave:
        raise typer.BadParameter("give either shares or --interleave: shares end an interleaving")
    exploring = _explored(explore, explore_share, explore_cost, new_items)
    own: dict[str, Any] = {"salt": salt, "objective": objective, "apprentice": apprentice}
    given = {name: value for name, value in own.items() if value is not None}
    if not wanted and not given and exploring is None and interleave is None:
        raise typer.BadParameter(
            "give shares such as base=0.9 plain=0.1, --interleave, --salt, --objective, --explore or --apprentice"
        )

    def edit(before: Experiment) -> Experiment:
        changed = replace(before.divided(wanted) if wanted else before, **given)
        changed = changed if exploring is None else exploring(changed)
        if interleave is None:
            return changed
        return changed.interleaved([name for name in interleave.split(",") if name], draft or TEAM)

    _change("set", model, edit, flags)


def pin(
    model: Model,
    pins: Annotated[list[str], Argument("Cookies and their variants.", "COOKIE=VARIANT...")],
    flags: EditFlags = EditFlags(),
) -> None:
    """Pin cookies to a variant regardless of the shares, such as your own for a test. At most 10,000 in all."""
    wanted = _pairs(pins, "COOKIE=VARIANT")
    _change("pin", model, lambda before: before.pinned(wanted), flags)


def unpin(
    model: Model,
    cookies: Annotated[list[str] | None, Argument("Cookies whose pins to remove.", "COOKIE...")] = None,
    every: Annotated[bool, Flag("Remove all pins.", names="--all")] = False,
    flags: EditFlags = EditFlags(),
) -> None:
    """Remove pins; the shares decide about these cookies again."""
    if every == bool(cookies):
        raise typer.BadParameter("give either cookies or --all")
    _change(
        "unpin",
        model,
        lambda before: before.unpinned(before.pins if every else cookies or ()),
        flags,
    )


def shadow(
    model: Model,
    variants: Annotated[
        list[str] | None, Argument("The variants to score in the shadow.", "VARIANT...")
    ] = None,
    off: Annotated[bool, Flag("Score none.")] = False,
    flags: EditFlags = EditFlags(),
) -> None:
    """Score variants in addition to the one that answers; servers with --shadow-log log their answers."""
    if off == bool(variants):
        raise typer.BadParameter("give either variants or --off")
    shadows = tuple(variants or ())
    _change("shadow", model, lambda before: replace(before, shadows=shadows), flags)


def stop(
    model: Model,
    winner: Annotated[str, Flag("The variant that answers all requests.", "VARIANT")],
    flags: EditFlags = EditFlags(),
) -> None:
    """End the experiment: one variant answers all requests, pins and shadows are ignored; `set` restarts it."""
    _change("stop", model, lambda before: before.stopped(winner), flags)


def clear(model: Model, store: StoreOption = DEFAULT_STORE, as_json: JsonOption = False) -> None:
    """Delete the experiment, even an unreadable one: the shares of the spec divide the traffic again."""
    from model_store.store import Store
    from model_store.versions.audit import By
    from server.ranking.experiments import assigned_by_spec

    with Store.open(store) as opened:
        versions = opened.model(model, warn)
        record = versions.experiments.clear(By("ftrie experiment clear"))
        spec = assigned_by_spec(versions)
    _print_experiment(model, record, spec and spec.asked_for(record), None, as_json)


def _change(command: str, model: str, edit: Edit, flags: EditFlags) -> None:
    """Edit the record if the result fits the active version. Raises ExperimentError, ExperimentChanged."""
    from model_store.store import Store
    from model_store.versions.audit import By
    from server.ranking.experiments import change_experiment

    with Store.open(flags.store) as opened:
        versions = opened.model(model, warn)
        by = By(f"ftrie experiment {command}")
        # `edit` is called again if another operator has written meanwhile, with that record.
        changed = change_experiment(versions, edit, by=by, revision=flags.revision)
    if changed.by_spec is None:
        note(f"no version of {model} is active yet, so the names of variants are not checked")
    after = changed.by_spec and changed.by_spec.asked_for(changed.record)
    _print_experiment(model, changed.record, after, changed.moves, flags.as_json)


def _explored(how: str | None, share: float | None, cost: float | None, new_items: str | None) -> Edit | None:
    """The edit that these flags ask for; None if none is given. A flag that is left out keeps what the record has."""
    from ftrie.commands.flags import exploration_of
    from model_store.versions.experiments import THOMPSON, UCB, Explore

    parts: dict[str, Any] = {}
    if how:
        asked = exploration_of(how)
        assert asked is not None
        parts |= {"policy": THOMPSON if how.startswith(THOMPSON) else UCB, "width": asked.width}
    parts |= {name: given for name, given in (("share", share), ("cost", cost)) if given is not None}
    if new_items is not None:
        of_places, colon, below = new_items.partition(":")
        try:
            parts |= {"new_share": float(of_places), "new_below": float(below) if colon else 0.0}
        except ValueError:
            raise typer.BadParameter(
                f"got {new_items!r}, expected SHARE:N", param_hint="--new-items"
            ) from None
    if how == "" and parts:
        raise typer.BadParameter('--explore "" ends exploration; leave out the other flags of it')
    if how is None and not parts:
        return None

    def edit(before: Experiment) -> Experiment:
        if how == "":
            return replace(before, explore=None)
        if before.explore is None and "policy" not in parts:
            raise typer.BadParameter("nothing explores yet; give --explore too, such as --explore thompson:1")
        had = asdict(before.explore) if before.explore is not None else {}
        return replace(before, explore=Explore(**{**had, **parts}))

    return edit


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
        name, equals, value = text.rpartition("=")  # a cookie may contain one
        if not equals or not name or not value:
            raise typer.BadParameter(f"got {text!r}, expected {expected}")
        if pairs.setdefault(name, value) != value:
            raise typer.BadParameter(f"got {name!r} twice: {pairs[name]} and {value}")
    return pairs


def _print_experiment(
    model: str, record: Experiment | None, after: Assignment | None, moves: float | None, as_json: bool
) -> None:
    """Print a record. after: its effect, None if no version is active; moves: the share of cookies that move."""
    if as_json:
        in_force = after and dict(zip(after.variants, after.shares, strict=True))
        print_json(
            {
                "model": model,
                "experiment": record and record.plain(),
                "in_force": in_force,
                "problem": (after and after.problem) or None,
                "moves": moves,
            }
        )
        return
    if after is not None:
        pins = list(after.experiment.pins.values()) if after.experiment is not None else []
        rows = [
            [name, after.shares[bit], after.spec_shares[bit], pins.count(name), bit in after.shadows]
            for bit, name in enumerate(after.variants)
        ]
        print_table(["variant", "share", "share in the spec", "pins", "shadow"], rows)
    if record is None:
        print(f"{model}: no experiment; the shares are those of the spec")
        return
    state = record.state if record.running else f"{record.state}: {record.winner} answers everything"
    print(f"{model}: revision {record.revision}, {state}, {counted(len(record.pins), 'pin')}")
    if record.interleave:
        print(f"interleaved, {record.draft} draft: {' and '.join(record.interleave)}")
    if record.salt:
        print(f"salt: {record.salt}")
    if record.objective:
        print(f"objective: {record.objective}")
    if record.explore:
        print(f"explores: {record.explore}")
    if record.apprentice:
        print("apprentice: candidates are answered in the order in which they come")
    if moves is not None:
        print(f"moves {moves:.1%} of the cookies to another variant")


# -- the report


ALL = "all"
COLUMNS = (
    "variant", "requests", "shown", "clicks", "CTR", "95 %", "calibration", "95 %", "conversions", "per click",
    "versions",
)  # fmt: skip
PICTURE_WIDTH = 48


def report(
    model: Annotated[str, Argument("The model's name.", "MODEL")],
    since: Annotated[str, Flag("Start: 90s, 30m, 1h or 7d ago, or a time in ISO-8601.", "TIME")] = "1h",
    until: Annotated[str | None, Flag("End, in the same form; default: now.", "TIME")] = None,
    base: Annotated[
        str | None, Flag("The variant the others are compared with; default: the spec's first.", "VARIANT")
    ] = None,
    effect: Annotated[
        float, Flag("The relative change of the CTR to detect.", "X", min=1e-6, max=10.0)
    ] = 0.05,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Compare variants by what users did: a verdict, click rates with intervals, calibration, lifts against the base.

    Includes requests that the trainer has closed: see the window of [join] in the spec. Of times more than a day ago,
    whole hours are included.
    """
    from ftrie.outcomes import outcomes
    from model_store.store import Store
    from model_store.versions.online_metrics import KEPT_S
    from server.ranking.experiments import assigned_by_spec, divided_since

    now = datetime.now(UTC)
    begin = _moment(since, now, "--since")
    end = now if until is None else _moment(until, now, "--until")
    if not begin < end:
        raise typer.BadParameter(f"--since ({begin:%F %T}) is not before --until ({end:%F %T})")
    begin = max(begin, now - timedelta(seconds=KEPT_S))  # older sums have expired
    with Store.open(store) as opened:
        versions = opened.model(model, warn)
        # The present minute decides which slots `read` takes: hours for what is older than a day, else minutes.
        cells = list(versions.online.read(_minute(begin), _minute(end) + 1, _minute(now)))
        by_spec, record = assigned_by_spec(versions), versions.experiment()
        after = by_spec.asked_for(record) if by_spec is not None else None
        shares = dict(zip(after.variants, after.shares, strict=True)) if after is not None else {}
        divided, guard = divided_since(versions, record), versions.guard.record()
    together = record.together if record is not None else ""
    found = outcomes(cells, shares, base, effect, divided, guard, together)
    if base is not None and cells and base not in found.variants:
        raise typer.BadParameter(
            f"--base {base}: no requests; expected one of {listed(found.variants, base)}"
        )
    if as_json:
        print_json(
            {
                "model": model,
                "since": f"{begin:%F %H:%M}",
                "until": f"{end:%F %H:%M}",
                "effect": effect,
                "base": found.base,
                "verdict": found.verdict,
                "mismatch_p": found.mismatch_p,
                "mismatched": found.is_mismatched,
                "shares": found.shares,
                "preferences": [asdict(each) for each in found.preferences],
                "variants": {name: _plain(each) for name, each in found.variants.items()},
                "all": _plain(found.all),
                "apprentices": {name: asdict(each) for name, each in found.apprentices.items()},
            }
        )
    elif not cells:
        print(f"{model}: no requests counted in this time; is `ftrie trainer` running, and its window over?")
    else:
        requests = counted(found.all.sums.requests, "request")
        print(f"{model}: {requests} from {begin:%F %H:%M} to {end:%F %H:%M}, UTC")
        _print_report(effect, found)
    if found.is_mismatched:
        got = ", ".join(f"{name} {each.sums.requests:,}" for name, each in found.variants.items())
        expected = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
        warn(f"the requests do not match the shares: got {got}, expected {expected}; check for lost requests")
    elif _minute(begin) < divided and cells:
        since = f"{datetime.fromtimestamp(60 * divided, UTC):%F %H:%M}"
        note(f"the shares changed within this time; they are tested from {since} on")


def _moment(text: str, now: datetime, flag: str) -> datetime:
    """`1h` → an hour ago; a time without a zone is UTC."""
    from model_store.spec.sections import seconds_of

    try:
        return now - timedelta(seconds=seconds_of(text))
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f'{flag}: got {text!r}; expected a time ago such as "90s", "30m", "1h" or "7d", or a time in ISO-8601'
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _minute(moment: datetime) -> int:
    return int(moment.timestamp()) // 60


def _print_report(effect: float, found: Outcomes) -> None:
    """Print the verdict, a table, a picture, the differences, and how many requests would detect the effect."""
    from ftrie.outcomes import NAMELESS, credited

    listed = [*((name or NAMELESS, each) for name, each in found.variants.items()), (ALL, found.all)]
    print(found.verdict.text)
    print_table(COLUMNS, [_row(name, outcome) for name, outcome in listed])
    if found.all.sums.seen_share is not None:
        seen = (f"{name} {each.sums.seen_share or 1.0:.1%}" for name, each in listed)
        print(f"\nseen, of the items in lists: {', '.join(seen)}; the others are not in the figures")
    print()
    for line in picture(listed):
        print(line)
    print()
    for each in found.preferences:
        needed = "not known yet" if each.needed is None else f"{each.needed:,} requests"
        print(
            f"{each.variant} against {each.base}, interleaved in {each.requests:,} requests: {credited(each)}, "
            f"{each.credit:,.1f} to {each.of_base:,.1f} clicks; {effect:.1%} more credit is detected by {needed}"
        )
    for name, outcome in found.variants.items():
        if name != found.base and not (found.preferences and outcome.lift is None):
            print(_compared(name or NAMELESS, found.base or NAMELESS, outcome, effect))
    for name, apprentice in found.apprentices.items():
        print(f"apprentice {name or NAMELESS}: {apprentice.text}")
        print_table(["apprentice mode", "value", "95 %"], apprentice.rows)


def picture(listed: Sequence[tuple[str, Outcome]]) -> Iterator[str]:
    """Each click rate with its interval on a common scale: ├──●──┤."""
    drawn = [
        (name, each.ctr.value, each.ctr.interval)
        for name, each in listed
        if each.ctr.value is not None and each.ctr.interval is not None
    ]
    if not drawn:
        return
    low, high = min(each.low for _, _, each in drawn), max(each.high for _, _, each in drawn)
    wide = max(len(name) for name, _, _ in drawn)
    yield f"{'CTR'.ljust(wide)}  {_percent(low)}{_percent(high).rjust(PICTURE_WIDTH - len(_percent(low)))}"
    for name, ctr, each in drawn:
        ends = (_column(value, low, high) for value in (each.low, ctr, each.high))
        yield f"{name.ljust(wide)}  {_drawn(*ends)}"


def _column(value: float, low: float, high: float) -> int:
    return round((PICTURE_WIDTH - 1) * (value - low) / (high - low)) if high > low else 0


def _drawn(begin: int, middle: int, end: int) -> str:
    line = ["·"] * PICTURE_WIDTH
    line[begin : end + 1] = "─" * (end + 1 - begin)
    line[begin], line[end], line[middle] = "├", "┤", "●"
    return "".join(line)


def _row(name: str, outcome: Outcome) -> list[Any]:
    sums, (first, last) = outcome.sums, outcome.versions
    return [
        name,
        sums.requests,
        sums.shown,
        sums.clicks,
        *outcome.ctr.words(_percent),
        *outcome.calibration.words("{:.3f}".format),
        sums.conversions,
        outcome.conversion_rate.words(_percent)[0],
        "—" if not last else f"{first}" if first == last else f"{first} to {last}",
    ]


def _compared(name: str, base: str, outcome: Outcome, effect: float) -> str:
    from ftrie.outcomes import NEEDED, POWER

    lift, difference = outcome.lift, outcome.difference
    if lift is None or difference is None:
        return (
            f"{name} against {base}: not compared before each has {NEEDED}; it has those of {outcome.buckets}"
        )
    always, once = lift.interval, difference.interval
    return (
        f"{name} against {base}: CTR {lift.relative:+.1%}, however often one looks, 95 %: {always.low:+.1%} to "
        f"{always.high:+.1%}, p {lift.p:.4f}\n"
        f"  {100 * difference.absolute:+.3f} points; for one look, 95 %: {100 * once.low:+.3f} to "
        f"{100 * once.high:+.3f}\n"
        f"  ±{effect:.1%} is detected with {POWER:.0%} power by {outcome.needed or 0:,} requests of both, if new "
        f"cookies come; with the current ones, ±{outcome.detectable or 0.0:.1%}"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3f} %"


def _plain(outcome: Outcome) -> dict[str, Any]:
    """An outcome as JSON; an interval is a list of its two ends."""
    rates: dict[str, Any] = {}
    for name in ("ctr", "calibration", "conversion_rate"):
        rate = getattr(outcome, name)
        rates |= {name: rate.value, f"{name}_interval": rate.interval}
    return {
        **asdict(outcome.sums),
        "seen_share": outcome.sums.seen_share,
        "buckets": outcome.buckets,
        **rates,
        "difference": outcome.difference,
        "lift": outcome.lift,
        "requests_needed": outcome.needed,
        "detectable": outcome.detectable,
        "versions": outcome.versions,
    }


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
