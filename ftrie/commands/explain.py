"""`ftrie explain`: one Explain call from the command line, drawn as bars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from ftrie.command import command
from ftrie.commands.flags import RankFlags, ServerFlags
from ftrie.commands.rank import print_rest
from ftrie.terminal import JsonOption, plain, print_json, print_table
from model_store.flags import Argument

if TYPE_CHECKING:
    from ftrie.api.messages import ExplainedItem

BAR_WIDTH = 24
UP, DOWN = "█", "░"


@command(
    "Serve", 3, "Example: ftrie explain ads --cookie u1 --candidates a,b --context device=mobile --top-k 1"
)
def explain(
    model: Annotated[str, Argument("The model's name.", "MODEL")],
    request: RankFlags,
    server: ServerFlags,
    as_json: JsonOption = False,
) -> None:
    """Ask a server which keys make up each candidate's score; prints a table of bars for each item, best first."""
    from ftrie.api.client import Client

    with Client(server.address, server.timeout, server.access()) as client:
        explanation = client.explain(model, **request.options())
    if as_json:
        print_json(explanation)
        return
    for place, explained in enumerate(explanation.items, 1):
        item = explained.item
        unsure = "" if item.uncertainty is None else f", uncertainty {item.uncertainty:.5f}"
        title = f"{place}. {item.id}: ctr {item.ctr:.5f}{unsure}, score {item.score:.5f}, the sum of"
        print_table(("field or cross", "adds", "", "key", "weight", "x"), _rows(explained), title)
        print()
    print_rest(explanation, "", explanation.known_fields)


def _rows(explained: ExplainedItem) -> list[tuple[Any, ...]]:
    """A row for each group, the largest contribution first; one key is in its group's row, several are below it."""
    longest = max((abs(group.sum) for group in explained.groups), default=0.0) or 1.0
    rows: list[tuple[Any, ...]] = []
    for group in sorted(explained.groups, key=lambda group: -abs(group.sum)):
        bar = (UP if group.sum > 0 else DOWN) * round(BAR_WIDTH * abs(group.sum) / longest)
        keys = [(plain(key.key), f"{key.weight:.5f}", f"{key.x:g}") for key in group.keys]
        if len(keys) == 1:
            rows.append((group.name, group.sum, bar, *(keys[0] if keys[0][0] else ("", "", ""))))
            continue
        rows.append((group.name, group.sum, bar, "", "", ""))
        rows += (("", key.contribution, "", *shown) for key, shown in zip(group.keys, keys, strict=True))
    return rows
