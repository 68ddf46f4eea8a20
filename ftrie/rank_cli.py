"""`ftrie rank`: one Rank call from the command line. The call itself is `ftrie.client`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ftrie.access_options import AddressOption, TlsCaOption, TlsCertOption, TlsKeyOption, TokenOption
from model_store.terminal import JsonOption, print_json, print_table

if TYPE_CHECKING:
    from ftrie.client import Ranking

MAX_TOP_K = 2**31 - 1  # an int32 on the wire


def register(app: typer.Typer) -> None:
    """Add `ftrie rank`."""
    app.command(
        "rank", epilog="Example: ftrie rank ads --cookie u1 --candidates a,b,c --context hour=21 --top-k 2"
    )(rank)


def rank(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model's name.")],
    address: AddressOption = "127.0.0.1:50051",
    cookie: Annotated[str, typer.Option(help="The user; may be left out.")] = "",
    candidates: Annotated[str, typer.Option(metavar="A,B,C", help="Item ids, separated by commas.")] = "",
    candidate_set: Annotated[str, typer.Option(metavar="NAME", help="A set of items in the store.")] = "",
    context: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=VALUE", help="A feature of this moment; twice for a set."),
    ] = None,
    user: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=VALUE", help="A feature of the user, over the stored one."),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(min=1, max=MAX_TOP_K, help="How many items; all if left out.")
    ] = None,
    variant: Annotated[str | None, typer.Option(help="Force a variant; else the cookie decides.")] = None,
    timeout: Annotated[float, typer.Option(min=0.001, metavar="SECONDS", help="How long to wait.")] = 5.0,
    tls_ca: TlsCaOption = "",
    tls_cert: TlsCertOption = "",
    tls_key: TlsKeyOption = "",
    token: TokenOption = "",
    as_json: JsonOption = False,
) -> None:
    """Ask a server to rank candidates; prints a table, best first."""
    from ftrie.access import Access
    from ftrie.client import Client

    if bool(candidates) == bool(candidate_set):
        raise typer.BadParameter("give either --candidates A,B,C or --candidate-set NAME")
    with Client(address, timeout, Access(tls_ca, tls_cert, tls_key, token)) as client:
        ranking = client.rank(
            model,
            cookie=cookie,
            candidates=[item.strip() for item in candidates.split(",")] if candidates else (),
            candidate_set=candidate_set,
            context=_features("--context", context),
            user=_features("--user", user),
            top_k=top_k,
            variant=variant,
        )
    if as_json:
        print_json({"cookie": ranking.cookie, "ctr": [{item.id: item.ctr} for item in ranking.items]})
    else:
        _show(ranking)


def _features(flag: str, pairs: Sequence[str] | None) -> dict[str, str | list[str]]:
    """`["hour=21", "tag=a", "tag=b"]` → `{"hour": "21", "tag": ["a", "b"]}`."""
    features: dict[str, str | list[str]] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"got {pair!r}, expected FIELD=VALUE", param_hint=flag)
        before = features.get(name)
        if before is None:
            features[name] = value
        else:
            features[name] = [*([before] if isinstance(before, str) else before), value]
    return features


def _show(ranking: Ranking) -> None:
    rows = [(place, item.id, item.ctr, item.score) for place, item in enumerate(ranking.items, 1)]
    print_table(("rank", "item", "ctr", "score"), rows)
    print(f"{ranking.model} version {ranking.version}, variant {ranking.variant}")
    for problem in ranking.degraded:
        print(f"degraded: {problem}")
    if ranking.unknown_items:
        print(f"unknown items: {', '.join(ranking.unknown_items)}")
    if ranking.unknown_fields:
        print(f"unknown fields: {', '.join(ranking.unknown_fields)}")
