"""`ftrie rank`: one Rank call from the command line. The call itself is `ftrie.client.client`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ftrie.commands.flags import (
    AddressOption,
    CandidateSetOption,
    CandidatesOption,
    CapOption,
    ContextOption,
    CookieOption,
    ExploreOption,
    FilterOption,
    ObjectiveOption,
    RequestIdOption,
    TimeoutOption,
    TlsCaOption,
    TlsCertOption,
    TlsKeyOption,
    TokenOption,
    TopKOption,
    UserOption,
    VariantOption,
    question_of,
)
from ftrie.terminal import JsonOption, print_json, print_table

if TYPE_CHECKING:
    from ftrie.client.messages import RankedItem, Ranking

MORE = ("objective", "uncertainty", "propensity")


def register(app: typer.Typer) -> None:
    """Add `ftrie rank`."""
    app.command(
        "rank", epilog="Example: ftrie rank ads --cookie u1 --candidates a,b,c --context hour=21 --top-k 2"
    )(rank)


def rank(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model's name.")],
    address: AddressOption = "127.0.0.1:50051",
    cookie: CookieOption = "",
    candidates: CandidatesOption = "",
    candidate_set: CandidateSetOption = "",
    context: ContextOption = None,
    user: UserOption = None,
    top_k: TopKOption = None,
    variant: VariantOption = None,
    objective: ObjectiveOption = "",
    filters: FilterOption = None,
    caps: CapOption = None,
    explore: ExploreOption = "",
    request_id: RequestIdOption = "",
    timeout: TimeoutOption = 5.0,
    tls_ca: TlsCaOption = "",
    tls_cert: TlsCertOption = "",
    tls_key: TlsKeyOption = "",
    token: TokenOption = "",
    as_json: JsonOption = False,
) -> None:
    """Ask a server to rank candidates; prints a table, best first."""
    from ftrie.client.access import Access
    from ftrie.client.client import Client

    asked = question_of(
        cookie, candidates, candidate_set, context, user, top_k, variant, request_id, objective, filters, caps, explore
    )  # fmt: skip
    with Client(address, timeout, Access(tls_ca, tls_cert, tls_key, token)) as client:
        ranking = client.rank(model, **asked)
    if as_json:
        print_json(_as_json(ranking))
    else:
        _show(ranking)


def _more(ranking: Ranking) -> list[str]:
    """What is said of some item beside ctr and score."""
    return [name for name in MORE if any(getattr(item, name) is not None for item in ranking.items)]


def _as_json(ranking: Ranking) -> dict[str, Any]:
    """The answer, each item as `{id: ctr}`; where more was asked for, `items` with all of it as well."""
    answer = {
        "cookie": ranking.cookie,
        "ctr": [{item.id: item.ctr} for item in ranking.items],
        "request_id": ranking.request_id,
        "version": ranking.version,
        "variant": ranking.variant,
        "degraded": ranking.degraded,
        "unknown_items": ranking.unknown_items,
        "unknown_fields": ranking.unknown_fields,
    }
    return {**answer, "items": [asdict(item) for item in ranking.items]} if _more(ranking) else answer


def _show(ranking: Ranking) -> None:
    more = _more(ranking)

    def row(place: int, item: RankedItem) -> tuple[Any, ...]:
        return place, item.id, item.ctr, item.score, *(getattr(item, name) for name in more)

    rows = [row(place, item) for place, item in enumerate(ranking.items, 1)]
    print_table(("rank", "item", "ctr", "score", *more), rows)
    print(
        f"{ranking.model} version {ranking.version}, variant {ranking.variant}, request {ranking.request_id}"
    )
    for problem in ranking.degraded:
        print(f"degraded: {problem}")
    if ranking.unknown_items:
        print(f"unknown items: {', '.join(ranking.unknown_items)}")
    if ranking.unknown_fields:
        print(f"unknown fields: {', '.join(ranking.unknown_fields)}")
