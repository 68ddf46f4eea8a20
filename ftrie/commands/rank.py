"""`ftrie rank`: one Rank call from the command line."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from ftrie.command import command
from ftrie.commands.flags import RankFlags, ServerFlags
from ftrie.terminal import JsonOption, print_json, print_table, print_unknown
from model_store.flags import Argument

if TYPE_CHECKING:
    from ftrie.client.messages import RankedItem, Ranking

MORE = ("objective", "uncertainty", "propensity")


@command(
    "Serve", 2, "Example: ftrie rank ads --cookie u1 --candidates a,b,c --context device=mobile --top-k 2"
)
def rank(
    model: Annotated[str, Argument("The model's name.", "MODEL")],
    request: RankFlags,
    server: ServerFlags,
    as_json: JsonOption = False,
) -> None:
    """Rank candidates on a server; prints a table, best first."""
    from ftrie.client.calls import RankFailed
    from ftrie.client.client import Client

    options = request.options()
    with Client(server.address, server.timeout, server.access()) as client:
        ranking = client.rank(model, **options)
        if as_json:
            print_json(_as_json(ranking))
            return
        _show(ranking)
        if ranking.unknown_fields:
            # An answer does not list the model's fields; an explanation does, of whatever item.
            known: tuple[str, ...] = ()
            with suppress(RankFailed):  # the ranking has succeeded
                user, context = options.get("user"), options.get("context")
                known = client.explain(model, candidates=["any"], user=user, context=context).known_fields
            print_unknown(ranking.unknown_fields, known)


def _more(ranking: Ranking) -> list[str]:
    """The columns other than ctr and score that some item has."""
    return [name for name in MORE if any(getattr(item, name) is not None for item in ranking.items)]


def _as_json(ranking: Ranking) -> dict[str, Any]:
    """The answer with items as `{id: ctr}`; with more columns also `items` as objects."""
    answer = {
        "cookie": ranking.cookie,
        "ctr": [{item.id: item.ctr} for item in ranking.items],
        "request_id": ranking.request_id,
        "version": ranking.version,
        "variant": ranking.variant,
        "degraded": [asdict(each) for each in ranking.degraded],
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
