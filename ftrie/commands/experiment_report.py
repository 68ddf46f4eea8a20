"""`ftrie experiment report`: the flags and the output, as tables or JSON; ftrie.outcomes computes the figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ftrie.terminal import DEFAULT_STORE, JsonOption, StoreOption, note, print_json, print_table, warn
from model_store.errors import counted

if TYPE_CHECKING:
    from ftrie.outcomes import Interval, Outcome, Outcomes
    from model_store.versions.model_versions import ModelVersions


ALL = "all"
NAMELESS = "(none)"
"""Shown for requests whose event names no variant."""
PICTURE_WIDTH = 48


def report(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model's name.")],
    since: Annotated[
        str,
        typer.Option(metavar="TIME", help="Start: 90s, 30m, 1h or 7d ago, or a time in ISO-8601."),
    ] = "1h",
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="End, in the same form; default: now.")
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            metavar="VARIANT", help="The variant the others are compared with; default: the spec's first."
        ),
    ] = None,
    effect: Annotated[
        float,
        typer.Option(min=1e-6, max=10.0, metavar="X", help="The relative change of the CTR to detect."),
    ] = 0.05,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Compare variants by what users did: click rates with intervals, calibration, the difference to the base.

    Includes requests that the trainer has closed: see the window of [join] in the spec.
    """
    from ftrie.outcomes import outcomes
    from model_store.store import Store
    from model_store.versions.online_metrics import KEPT_S

    now = datetime.now(UTC)
    begin = _moment(since, now, "--since")
    end = now if until is None else _moment(until, now, "--until")
    if not begin < end:
        raise typer.BadParameter(f"--since ({begin:%F %T}) is not before --until ({end:%F %T})")
    begin = max(begin, now - timedelta(seconds=KEPT_S))  # older sums have expired
    with Store.open(store) as opened:
        versions = opened.model(model, warn)
        cells = list(versions.online.read(range(_minute(begin), _minute(end) + 1)))
        shares = _shares(versions, begin) if cells else {}
    found = outcomes(cells, shares, base, effect)
    if base is not None and cells and base not in found.variants:
        raise typer.BadParameter(f"--base {base}: no requests; expected one of {', '.join(found.variants)}")
    output = (model, f"{begin:%F %H:%M}", f"{end:%F %H:%M}", effect, found)
    if as_json:
        _print_as_json(*output)
    elif not cells:
        print(f"{model}: no requests counted in this time; is `ftrie trainer` running, and its window over?")
    else:
        _print_report(*output)
    if found.is_mismatched:
        got = ", ".join(f"{name} {each.sums.requests:,}" for name, each in found.variants.items())
        expected = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
        warn(
            f"the requests do not match the shares (p {found.mismatch_p:.2g}): got {got}, expected {expected}; "
            "before trusting any difference, check for lost requests and for cookies with many requests"
        )


def _shares(versions: ModelVersions, begin: datetime) -> dict[str, float]:
    """The variants' shares of the traffic; empty if they have changed since `begin`."""
    from server.sync.experiment_sync import assigned_by_spec

    spec, record = assigned_by_spec(versions), versions.experiment()
    if spec is None:
        return {}
    if record is not None and record.updated is not None and record.updated > begin:
        note(f"the experiment was changed at {record.updated:%F %T}, so the shares are not tested")
        return {}
    after = spec.asked_for(record)
    return dict(zip(after.variants, after.shares, strict=True))


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


def _print_report(model: str, since: str, until: str, effect: float, found: Outcomes) -> None:
    """Print a table, a picture, the differences, and how many requests would detect the effect."""
    listed = [*((name or NAMELESS, each) for name, each in found.variants.items()), (ALL, found.all)]
    print(f"{model}: {counted(found.all.sums.requests, 'request')} from {since} to {until}, UTC")
    print_table(
        [
            "variant",
            "requests",
            "shown",
            "clicks",
            "CTR",
            "95 %",
            "calibration",
            "95 %",
            "conversions",
            "versions",
        ],
        [_row(name, outcome) for name, outcome in listed],
    )
    print()
    for line in picture(listed):
        print(line)
    print()
    for name, outcome in found.variants.items():
        if name != found.base:
            print(_compared(name or NAMELESS, found.base or NAMELESS, outcome, effect))


def _print_as_json(model: str, since: str, until: str, effect: float, found: Outcomes) -> None:
    """Print everything as one object."""
    print_json(
        {
            "model": model,
            "since": since,
            "until": until,
            "effect": effect,
            "base": found.base,
            "minutes": found.minutes,
            "mismatch_p": found.mismatch_p,
            "mismatched": found.is_mismatched,
            "shares": dict(found.shares),
            "variants": {name: _plain(each) for name, each in found.variants.items()},
            "all": _plain(found.all),
        }
    )


def picture(listed: Sequence[tuple[str, Outcome]]) -> Iterator[str]:
    """Each click rate with its interval on a common scale: ├──●──┤."""
    known = [(name, each.ctr, each.ctr_interval) for name, each in listed]
    drawn = [(name, ctr, each) for name, ctr, each in known if ctr is not None and each is not None]
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
    sums = outcome.sums
    return [
        name,
        sums.requests,
        sums.shown,
        sums.clicks,
        _percent(outcome.ctr),
        _interval(outcome.ctr_interval, _percent),
        "—" if outcome.calibration is None else f"{outcome.calibration:.3f}",
        _interval(outcome.calibration_interval, lambda value: f"{value:.3f}"),
        sums.conversions,
        _versions(outcome.versions),
    ]


def _compared(name: str, base: str, outcome: Outcome, effect: float) -> str:
    from ftrie.outcomes import TINY

    found = outcome.difference
    if found is None:
        return (
            f"{name} against {base}: not compared before each has {TINY} clicks and {TINY} shows without one"
        )
    relative, absolute = found.relative_interval, found.absolute_interval
    text = (
        f"{name} against {base}: CTR {found.relative:+.1%} (95 %: {relative.low:+.1%} to {relative.high:+.1%}), "
        f"{100 * found.absolute:+.3f} points ({100 * absolute.low:+.3f} to {100 * absolute.high:+.3f}), "
        f"p {found.p:.4f}"
    )
    if outcome.lift is not None:
        always = outcome.lift.interval
        text += f"\n  however often one looks, 95 %: {always.low:+.1%} to {always.high:+.1%}, p {outcome.lift.p:.4f}"
    return f"{text}\n{_power(outcome, effect)}"


def _power(outcome: Outcome, effect: float) -> str:
    """The requests needed, and the effect detectable with those there are."""
    from ftrie.outcomes import POWER

    needed, detectable = outcome.needed or 0, outcome.detectable or 0.0
    text = f"  ±{effect:.1%} is detected with {POWER:.0%} power by {needed:,} requests of both"
    return f"{text}; with the current ones, ±{detectable:.1%}"


def _versions(versions: tuple[int, ...]) -> str:
    known = [version for version in versions if version]
    if not known:
        return "—"
    return f"{known[0]}" if len(known) == 1 else f"{known[0]} to {known[-1]}, {len(known):,}"


def _interval(interval: Interval | None, shown: Any) -> str:
    return "—" if interval is None else f"{shown(interval.low)} to {shown(interval.high)}"


def _percent(share: float | None) -> str:
    return "—" if share is None else f"{100 * share:.3f} %"


def _plain(outcome: Outcome) -> dict[str, Any]:
    """An outcome as JSON; an interval is a list of its two ends."""
    found = outcome.difference
    return {
        **asdict(outcome.sums),
        "ctr": outcome.ctr,
        "ctr_interval": _ends(outcome.ctr_interval),
        "calibration": outcome.calibration,
        "calibration_interval": _ends(outcome.calibration_interval),
        "difference": found
        and {
            "absolute": found.absolute,
            "absolute_interval": _ends(found.absolute_interval),
            "relative": found.relative,
            "relative_interval": _ends(found.relative_interval),
            "p": found.p,
        },
        "lift": outcome.lift
        and {
            "relative": outcome.lift.relative,
            "interval": _ends(outcome.lift.interval),
            "p": outcome.lift.p,
        },
        "requests_needed": outcome.needed,
        "detectable": outcome.detectable,
        "versions": list(outcome.versions),
    }


def _ends(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [interval.low, interval.high]
