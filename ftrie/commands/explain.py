"""`ftrie explain`: one Explain call from the command line, drawn as bars."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from ftrie.command import command
from ftrie.commands.flags import RankFlags, ServerFlags
from ftrie.terminal import JsonOption, print_json, print_table, print_unknown
from model_store.flags import Argument

if TYPE_CHECKING:
    from ftrie.client.messages import Contributions, ExplainedItem, Explanation

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
    from ftrie.client.client import Client

    with Client(server.address, server.timeout, server.access()) as client:
        explanation = client.explain(model, **request.options())
    if as_json:
        print_json(_as_json(explanation))
    else:
        _show(explanation)


def _as_json(explanation: Explanation) -> dict[str, Any]:
    """The answer in JSON types; in keys, bytes that are not UTF-8 are escaped."""
    answer = asdict(explanation)
    for item in answer["items"]:
        for group in item["groups"]:
            for key in group["keys"]:
                key["key"] = _text(key["key"])
    return answer


def _text(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")


def _show(explanation: Explanation) -> None:
    for place, explained in enumerate(explanation.items, 1):
        item = explained.item
        unsure = "" if item.uncertainty is None else f", uncertainty {item.uncertainty:.5f}"
        title = f"{place}. {item.id}: ctr {item.ctr:.5f}{unsure}, score {item.score:.5f}, the sum of"
        print_table(("field or cross", "adds", "", "key", "weight", "x"), _rows(explained), title)
        print()
    print(f"{explanation.model} version {explanation.version}, variant {explanation.variant}")
    for problem in explanation.degraded:
        print(f"degraded: {problem}")
    if explanation.unknown_items:
        print(f"unknown items: {', '.join(explanation.unknown_items)}")
    print_unknown(explanation.unknown_fields, explanation.known_fields)


def _rows(explained: ExplainedItem) -> list[tuple[Any, ...]]:
    """A row for each group, the largest contribution first; one key is in its group's row, several are below it."""
    longest = max((abs(group.sum) for group in explained.groups), default=0.0) or 1.0
    rows: list[tuple[Any, ...]] = []
    for group in sorted(explained.groups, key=lambda group: -abs(group.sum)):
        rows += _rows_of(group, longest)
    return rows


def _rows_of(group: Contributions, longest: float) -> list[tuple[Any, ...]]:
    keys = [(_text(key.key), f"{key.weight:.5f}", f"{key.x:g}") for key in group.keys]
    bar = (UP if group.sum > 0 else DOWN) * round(BAR_WIDTH * abs(group.sum) / longest)
    if len(keys) == 1:
        return [(group.name, group.sum, bar, *(keys[0] if keys[0][0] else ("", "", "")))]
    below = [("", key.contribution, "", *shown) for key, shown in zip(group.keys, keys, strict=True)]
    return [(group.name, group.sum, bar, "", "", ""), *below]
