"""`ftrie rank`: one Rank call from the command line."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

from ftrie.command import command
from ftrie.commands.flags import RankFlags, ServerFlags
from ftrie.terminal import JsonOption, picked, print_json, print_table
from model_store.errors import listed
from model_store.flags import Argument

if TYPE_CHECKING:
    from ftrie.api.messages import Explanation, Ranking

COLUMNS = "cookie ctr request_id version variant degraded unknown_items unknown_fields"
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
    from ftrie.api.client import Client, RankFailed

    options = request.options()
    with Client(server.address, server.timeout, server.access()) as client:
        ranking = client.rank(model, **options)
        more = [name for name in MORE if any(getattr(item, name) is not None for item in ranking.items)]
        if as_json:
            items = {"items": ranking.items} if more else {}
            print_json(picked(ranking, COLUMNS, ctr=[{item.id: item.ctr} for item in ranking.items]) | items)
            return
        others = list(dict.fromkeys(name for item in ranking.items for name in item.models or ()))
        rows = [
            (
                *(place, item.id, item.ctr, item.score, *(getattr(item, name) for name in more)),
                *((item.models or {})[name].ctr for name in others),
            )
            for place, item in enumerate(ranking.items, 1)
        ]
        print_table(("rank", "item", "ctr", "score", *more, *(f"{name}.ctr" for name in others)), rows)
        known: tuple[str, ...] = ()
        if ranking.unknown_fields:
            # An answer does not list the model's fields; an explanation does, of whatever item.
            with suppress(RankFailed):  # the ranking has succeeded
                user, context = options.get("user"), options.get("context")
                known = client.explain(model, candidates=["any"], user=user, context=context).known_fields
    print_rest(ranking, f", request {ranking.request_id}", known)


def print_rest(answer: Ranking | Explanation, request: str, known: Sequence[str]) -> None:
    """Print who answered, and what the answer lacks. known: the model's fields, of which one may have been meant."""
    print(f"{answer.model} version {answer.version}, variant {answer.variant}{request}")
    for problem in answer.degraded:
        print(f"degraded: {problem}")
    if answer.unknown_items:
        print(f"unknown items: {', '.join(answer.unknown_items)}")
    if answer.unknown_fields:
        has = f"; the model has: {listed(known, answer.unknown_fields[0])}" if known else ""
        print(f"unknown fields: {', '.join(answer.unknown_fields)}{has}")
