"""`ftrie store load`: users, items and candidate sets from files; `ftrie store dead`: events that were not learned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ftrie.command import Commands
from ftrie.terminal import JsonOption, note_once, print_json, print_table, progress
from model_store.flags import DEFAULT_STORE, Argument, Flag, StoreOption

if TYPE_CHECKING:
    from model_store.streams.dead_letters import Letter


RecordFile = Annotated[
    Path,
    Argument(".csv, .tsv, .jsonl or .parquet, optionally followed by .gz or .zst.", "FILE", file="reads"),
]


def register_load(store: Commands) -> None:
    """Add `ftrie store load`."""
    load = Commands(
        "load", "Load users, items and candidate sets, which requests name by id.", no_args_is_help=True
    )
    load.command("users", epilog="Example: ftrie store load users users.csv --id-column cookie")(users)
    load.command("items", epilog="Example: ftrie store load items items.parquet")(items)
    load.command("candidates", epilog="Example: ftrie store load candidates home home.txt")(candidates)
    store.add_typer(load)


def users(
    file: RecordFile,
    id_column: Annotated[str | None, Flag("Default: cookie, user or user_id.", "NAME")] = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Load user records, one per row; a row replaces the user's whole record."""
    _load("users", file, id_column, store, as_json)


def items(
    file: RecordFile,
    id_column: Annotated[str | None, Flag("Default: item, item_id or id.", "NAME")] = None,
    only: Annotated[
        bool, Flag("Have servers read all items again and drop those that the store lacks.")
    ] = False,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Load item records, one per row; a row replaces the item's whole record. Running servers follow."""
    _load("items", file, id_column, store, as_json, only=only)


def candidates(
    name: Annotated[str, Argument("The candidate set's name.", "NAME")],
    file: Annotated[Path, Argument("One item id per line.", "FILE", file="reads")],
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Replace a named candidate set with the ids of a file, in order."""
    from model_store.store import Store
    from trainer.logs.record_files import read_ids

    ids = list(read_ids(file))
    with Store.open(store) as opened:
        opened.records.put_candidates(name, ids)
    if as_json:
        print_json({"candidates": name, "ids": len(ids)})
    else:
        print(f"candidates {name}: {len(ids):,} ids from {file}")


def _load(
    kind: str, file: Path, id_column: str | None, store: str, as_json: bool, *, only: bool = False
) -> None:
    from model_store.store import Store
    from trainer.logs.record_files import ITEM_IDS, USER_IDS, read_records

    records = read_records(file, USER_IDS if kind == "users" else ITEM_IDS, id_column, note_once())
    with Store.open(store) as opened, progress(f"load {kind}", unit="rows") as bar:
        put = opened.records.put_users if kind == "users" else opened.records.put_items
        rows = put(records, bar.update)
        if only:
            opened.records.only_these_items()
    if as_json:
        print_json({"kind": kind, "rows": rows})
    else:
        print(f"{kind}: {rows:,} rows from {file}")


SHOWN_CHARACTERS = 80


def register_dead(store: Commands) -> None:
    """Add `ftrie store dead`."""
    store.command("dead", epilog="Example: ftrie store dead ads --last 5 --json")(dead)


def dead(
    model: Annotated[str, Argument("The model's name.", "MODEL")],
    last: Annotated[int, Flag("How many of the latest to show.", "N", min=1)] = 20,
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
