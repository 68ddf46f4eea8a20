"""`ftrie store dead`: what the trainer could not learn from, as a table or as JSON. Flags and output only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from model_store.terminal import DEFAULT_STORE, JsonOption, StoreOption, print_json, print_table

if TYPE_CHECKING:
    from model_store.dead_letters import Letter

SHOWN_CHARACTERS = 80


def register(store: typer.Typer) -> None:
    """Add `ftrie store dead`."""
    store.command("dead", epilog="Example: ftrie store dead ads --last 5 --json")(dead)


def dead(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model's name.")],
    last: Annotated[int, typer.Option(min=1, metavar="N", help="How many of the latest.")] = 20,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """List events that the trainer could not learn from, latest first, with the reason."""
    from model_store.store import Store

    with Store.open(store) as opened:
        letters = list(opened.dead_letters(model).latest(last))
    if as_json:
        print_json([_as_json(number, letter) for number, letter in letters])
    elif letters:
        print_table(
            ["number", "source", "place", "reason", "event"],
            [
                [number, letter.source, letter.place, letter.reason, _short(letter.json)]
                for number, letter in letters
            ],
        )
    else:
        print(f"{model}: no dead letters")


def _as_json(number: int, letter: Letter) -> dict[str, Any]:
    return {
        "number": number,
        "source": letter.source,
        "place": letter.place,
        "reason": letter.reason,
        "event": _text(letter.json),
    }


def _short(event: bytes) -> str:
    text = _text(event[: 4 * SHOWN_CHARACTERS])
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


def _text(event: bytes) -> str:
    return event.decode("utf-8", "backslashreplace")
