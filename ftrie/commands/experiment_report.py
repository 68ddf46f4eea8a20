"""`ftrie experiment report`: the flags and the output, as tables or JSON; ftrie.outcomes computes the figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ftrie.terminal import JsonOption, note, print_json, print_table, warn
from model_store.errors import counted, listed
from model_store.flags import DEFAULT_STORE, Argument, Flag, StoreOption

if TYPE_CHECKING:
    from ftrie.outcomes import Outcome, Outcomes
    from model_store.ratios import Interval, Ratio


ALL = "all"
NAMELESS = "(none)"
"""Shown for requests whose event names no variant."""
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
    from server.sync.experiment_sync import assigned_by_spec, divided_since

    now = datetime.now(UTC)
    begin = _moment(since, now, "--since")
    end = now if until is None else _moment(until, now, "--until")
    if not begin < end:
        raise typer.BadParameter(f"--since ({begin:%F %T}) is not before --until ({end:%F %T})")
    begin = max(begin, now - timedelta(seconds=KEPT_S))  # older sums have expired
    with Store.open(store) as opened:
        versions = opened.model(model, warn)
        cells = list(versions.online.read(_minute(begin), _minute(end) + 1, _minute(now)))
        by_spec, record = assigned_by_spec(versions), versions.experiment()
        after = by_spec.asked_for(record) if by_spec is not None else None
        shares = dict(zip(after.variants, after.shares, strict=True)) if after is not None else {}
        divided = divided_since(versions, record)
    found = outcomes(cells, shares, base, effect, divided)
    if base is not None and cells and base not in found.variants:
        raise typer.BadParameter(
            f"--base {base}: no requests; expected one of {listed(found.variants, base)}"
        )
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
        warn(f"the requests do not match the shares: got {got}, expected {expected}; check for lost requests")
    elif _minute(begin) < divided and cells:
        note(f"the shares changed within this time; they are tested from {_written(divided)} on")


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


def _written(minute: int) -> str:
    return f"{datetime.fromtimestamp(60 * minute, UTC):%F %H:%M}"


def _print_report(model: str, since: str, until: str, effect: float, found: Outcomes) -> None:
    """Print a table, a picture, the differences, and how many requests would detect the effect."""
    listed = [*((name or NAMELESS, each) for name, each in found.variants.items()), (ALL, found.all)]
    print(f"{model}: {counted(found.all.sums.requests, 'request')} from {since} to {until}, UTC")
    print(found.verdict.text)
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
            "per click",
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
            "verdict": asdict(found.verdict),
            "mismatch_p": found.mismatch_p,
            "mismatched": found.is_mismatched,
            "shares": dict(found.shares),
            "variants": {name: _plain(each) for name, each in found.variants.items()},
            "all": _plain(found.all),
        }
    )


def picture(listed: Sequence[tuple[str, Outcome]]) -> Iterator[str]:
    """Each click rate with its interval on a common scale: ├──●──┤."""
    known = [(name, each.ctr, _ends(each.ctr)) for name, each in listed]
    drawn = [(name, ctr.value, each) for name, ctr, each in known if ctr is not None and each is not None]
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
    calibrated = outcome.calibration.logarithmic() if outcome.calibration is not None else None
    return [
        name,
        sums.requests,
        sums.shown,
        sums.clicks,
        _percent(_value(outcome.ctr)),
        _interval(_ends(outcome.ctr), _percent),
        "—" if outcome.calibration is None else f"{outcome.calibration.value:.3f}",
        _interval(calibrated, lambda value: f"{value:.3f}"),
        sums.conversions,
        _percent(_value(outcome.conversion_rate)),
        _versions(outcome.versions),
    ]


def _value(ratio: Ratio | None) -> float | None:
    return ratio.value if ratio is not None else None


def _ends(ratio: Ratio | None) -> Interval | None:
    return ratio.interval() if ratio is not None else None


def _compared(name: str, base: str, outcome: Outcome, effect: float) -> str:
    from ftrie.outcomes import POWER, TINY
    from model_store.ratios import BUCKETS

    lift, difference = outcome.lift, outcome.difference
    if lift is None or difference is None:
        return (
            f"{name} against {base}: not compared before each has {TINY} clicks, {TINY} shows without one, and "
            f"requests of all {BUCKETS} groups of cookies; it has those of {outcome.buckets}"
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


def _versions(versions: tuple[int, int]) -> str:
    first, last = versions
    return "—" if not last else f"{first}" if first == last else f"{first} to {last}"


def _interval(interval: Interval | None, shown: Callable[[float], str]) -> str:
    return "—" if interval is None else f"{shown(interval.low)} to {shown(interval.high)}"


def _percent(share: float | None) -> str:
    return "—" if share is None else f"{100 * share:.3f} %"


def _plain(outcome: Outcome) -> dict[str, Any]:
    """An outcome as JSON; an interval is a list of its two ends."""
    calibration = outcome.calibration
    return {
        **asdict(outcome.sums),
        "buckets": outcome.buckets,
        "ctr": _value(outcome.ctr),
        "ctr_interval": _ends(outcome.ctr),
        "calibration": _value(calibration),
        "calibration_interval": calibration.logarithmic() if calibration is not None else None,
        "conversion_rate": _value(outcome.conversion_rate),
        "conversion_rate_interval": _ends(outcome.conversion_rate),
        "difference": outcome.difference and asdict(outcome.difference),
        "lift": outcome.lift and asdict(outcome.lift),
        "requests_needed": outcome.needed,
        "detectable": outcome.detectable,
        "versions": list(outcome.versions),
    }
