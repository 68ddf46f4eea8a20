"""`ftrie store load`: users, items and candidate sets from files. `tables` reads the files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from model_store.terminal import DEFAULT_STORE, JsonOption, StoreOption, print_json, progress

RecordFile = Annotated[
    Path, typer.Argument(metavar="FILE", help=".csv, .tsv, .jsonl or .parquet; .gz or .zst after it.")
]


def register(store: typer.Typer) -> None:
    """Add `ftrie store load`."""
    load = typer.Typer(
        name="load", help="Load what requests refer to by id.", no_args_is_help=True, rich_markup_mode=None
    )
    load.command("users", epilog="Example: ftrie store load users users.csv --id-column cookie")(users)
    load.command("items", epilog="Example: ftrie store load items items.parquet")(items)
    load.command("candidates", epilog="Example: ftrie store load candidates home home.txt")(candidates)
    store.add_typer(load)


def users(
    file: RecordFile,
    id_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="By default cookie, user or user_id.")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Load user records, one a row; a row replaces the user's whole record."""
    _load("users", file, id_column, store, as_json)


def items(
    file: RecordFile,
    id_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="By default item, item_id or id.")
    ] = None,
    only: Annotated[
        bool,
        typer.Option(
            "--only",
            help="Have servers read all items again, and forget those that the store lacks.",
        ),
    ] = False,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Load item records, one a row; a row replaces the item's whole record. Running servers follow."""
    _load("items", file, id_column, store, as_json, only=only)


def candidates(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The candidate set's name.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="One item id a line.")],
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Replace a named candidate set by the ids of a file, in their order."""
    from model_store.store import Store
    from model_store.tables import read_ids

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
    from model_store.tables import ITEM_IDS, USER_IDS, read_records

    records = read_records(file, USER_IDS if kind == "users" else ITEM_IDS, id_column)
    with Store.open(store) as opened, progress(f"load {kind}", unit="rows") as bar:
        put = opened.records.put_users if kind == "users" else opened.records.put_items
        rows = put(records, bar.update)
        if only:
            opened.records.only_these_items()
    if as_json:
        print_json({"kind": kind, "rows": rows})
    else:
        print(f"{kind}: {rows:,} rows from {file}")
