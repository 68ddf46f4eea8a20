"""`ftrie experiment report`: what each variant came to. Flags, and which stretch of time; `outcomes` computes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from model_store.terminal import DEFAULT_STORE, JsonOption, StoreOption, note, warn

if TYPE_CHECKING:
    from model_store.model_versions import ModelVersions

LONGEST = timedelta(days=8)


def report(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model's name.")],
    since: Annotated[
        str,
        typer.Option(metavar="TIME", help="From when on: 90s, 30m, 1h or 7d ago, or a moment in ISO-8601."),
    ] = "1h",
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Until when, likewise; by default until now.")
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            metavar="VARIANT", help="What the others are compared with; by default the spec's first."
        ),
    ] = None,
    effect: Annotated[
        float,
        typer.Option(
            min=1e-6, max=10.0, metavar="X", help="The relative change of the CTR that should be seen."
        ),
    ] = 0.05,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Compare variants by what users did: click rates with intervals, calibration, the difference to the base.

    Counted are requests whose time for clicks is over, by the trainer: see the window of [join] in the spec.
    """
    from model_store.store import Store
    from server.outcomes.outcomes import outcomes
    from server.outcomes.showing import say, say_as_json

    now = datetime.now(UTC)
    begin = _moment(since, now, "--since")
    end = now if until is None else _moment(until, now, "--until")
    if not begin < end:
        raise typer.BadParameter(f"--since ({begin:%F %T}) is not before --until ({end:%F %T})")
    begin = max(begin, now - LONGEST)  # what came before has expired
    with Store.open(store) as opened:
        versions = opened.model(model, warn)
        cells = list(versions.online.read(range(_minute(begin), _minute(end) + 1)))
        shares = _shares(versions, begin) if cells else {}
    found = outcomes(cells, shares, base, effect)
    if base is not None and cells and base not in found.variants:
        raise typer.BadParameter(f"--base {base}: no request of it; there are: {', '.join(found.variants)}")
    shown = (model, f"{begin:%F %H:%M}", f"{end:%F %H:%M}", effect, found)
    if as_json:
        say_as_json(*shown)
    elif not cells:
        print(
            f"{model}: no request of this time has been counted; is `ftrie trainer` running, and its window over?"
        )
    else:
        say(*shown)
    if found.is_mismatched:
        got = ", ".join(f"{name} {each.sums.requests:,}" for name, each in found.variants.items())
        asked = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
        warn(
            f"the requests do not fall as the shares say (p {found.mismatch_p:.2g}): got {got}, expected {asked}; "
            "before you believe any difference, find out which requests are lost, and whether few cookies make many"
        )


def _shares(versions: ModelVersions, begin: datetime) -> dict[str, float]:
    """The variants' shares of the traffic, if they have been the same since `begin`; else none."""
    from server.followed_experiment import assigned_by_spec

    spec, record = assigned_by_spec(versions), versions.experiment()
    if spec is None:
        return {}
    if record is not None and record.updated is not None and record.updated > begin:
        note(f"the experiment was changed at {record.updated:%F %T}, so the shares are not judged")
        return {}
    after = spec.asked_for(record)
    return dict(zip(after.variants, after.shares, strict=True))


def _moment(text: str, now: datetime, flag: str) -> datetime:
    """`1h` is an hour ago; a moment without a zone is UTC."""
    from model_store.durations import seconds_of

    try:
        return now - timedelta(seconds=seconds_of(text))
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f'{flag}: got {text!r}; expected a time ago such as "90s", "30m", "1h" or "7d", or a moment in ISO-8601'
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _minute(moment: datetime) -> int:
    return int(moment.timestamp()) // 60
