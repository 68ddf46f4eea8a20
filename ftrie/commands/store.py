"""`ftrie store`: the versions of models, the records that requests name by id, and the keys of the store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ftrie.command import Commands
from ftrie.commands import store_inspect
from ftrie.commands.flags import KEPT, KeepOption
from ftrie.terminal import JsonOption, note, note_once, picked, plain, print_json, print_table, progress, warn
from model_store.flags import DEFAULT_STORE, Argument, Flag, StoreOption

if TYPE_CHECKING:
    from model_store.versions.model_versions import ModelVersions

Model = Annotated[str, Argument("The model's name.", "MODEL")]
RecordFile = Annotated[
    Path,
    Argument(".csv, .tsv, .jsonl or .parquet, optionally followed by .gz or .zst.", "FILE", file="reads"),
]
SHOWN_CHARACTERS = 80
MODEL_FILE = ".arrow is an artefact, .json the JSON form."


def versions(model: Model, store: StoreOption = DEFAULT_STORE, as_json: JsonOption = False) -> None:
    """List the published versions of a model, oldest first. A delta's keys and bytes are those of its changes."""
    from model_store.store import Store

    with Store.open(store) as opened:
        listed = opened.model(model, warn).versions()
    if as_json:
        names = "version active kind parent published rows bytes sha256 content refused"
        print_json([picked(info, names, bytes=info.size) for info in listed])
        return
    columns = "version active kind parent published keys bytes sha256 refused"
    rows = [
        picked(
            info,
            columns,
            active="active" if info.active else "",
            keys=info.rows,
            bytes=info.size,
            sha256=info.sha256[:12],
        )
        for info in listed
    ]
    print_table(columns.split(), [[*row.values()] for row in rows])


def activate(
    model: Model,
    version: Annotated[int, Argument("The version to serve.", "VERSION", min=1)],
    force: Annotated[
        bool, Flag("Even if a guard or a server has refused it; the trainer continues from it.")
    ] = False,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Activate a version after verifying its bytes. Running servers follow."""
    from model_store.store import Store
    from model_store.versions.audit import By

    with Store.open(store) as opened:
        versions = opened.model(model, warn)
        before = versions.activate(version, force=force, by=By("ftrie store activate"))
        _show_active(versions, version, before, as_json)


def rollback(
    model: Model,
    version: Annotated[
        int | None, Argument("The version to activate; default: the one active before.", "VERSION", min=1)
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Activate the version that was active before, or VERSION."""
    from model_store.store import Store
    from model_store.versions.audit import By

    with Store.open(store) as opened:
        versions = opened.model(model, warn)
        now_active, before = versions.go_back(version, by=By("ftrie store rollback"))
        _show_active(versions, now_active, before, as_json)


def resume(model: Model, store: StoreOption = DEFAULT_STORE, as_json: JsonOption = False) -> None:
    """Let the trainer activate versions again, after a manual `activate` or `rollback`."""
    from model_store.store import Store
    from model_store.versions.audit import By

    with Store.open(store) as opened:
        pinned = opened.model(model, warn).resume(By("ftrie store resume"))
    if as_json:
        print_json({"model": model, "pinned": pinned})
    elif pinned is None:
        print(f"{model}: no version was pinned; the trainer activates what it publishes")
    else:
        print(f"{model}: the trainer activates versions again; version {pinned} was pinned")


def audit(
    model: Model,
    last: Annotated[int, Flag("How many of the latest to show.", "N", min=1)] = 20,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """List what operators changed: who activated versions and changed the experiment, latest first."""
    from model_store.store import Store

    with Store.open(store) as opened:
        entries = opened.model(model, warn).audit.read(last)
    if as_json:
        print_json(entries)
    elif entries:
        rows = [[each.at, each.who, each.tool, each.words] for each in entries]
        print_table(["time", "who", "tool", "change"], rows)
    else:
        print(f"{model}: no change by an operator is known")


def gc(
    model: Model,
    keep: Annotated[int | None, Flag(KEPT, "N", min=1)] = None,
    dry_run: Annotated[bool, Flag("Only show what would be deleted.")] = False,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Delete old versions, but never the active one, the target of a rollback, or what a kept delta needs."""
    from model_store.store import Store

    with Store.open(store) as opened:
        deleted = opened.model(model, warn).gc(keep, dry_run=dry_run)
    if as_json:
        print_json({"model": model, "deleted": deleted, "dry_run": dry_run})
    else:
        listed = ", ".join(map(str, deleted)) or "nothing"
        print(f"{model}: {'would delete' if dry_run else 'deleted'} {listed}")


def check(
    models: Annotated[
        list[str] | None,
        Argument("The models to check; default: all, and users, items and candidates.", "[MODEL]..."),
    ] = None,
    repair: Annotated[bool, Flag("Repair invalid values.")] = False,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Find keys with invalid values, and repair them. Exit code 5 while invalid values remain.

    Reads the bytes of every version. A trainer and servers may be running.
    """
    from model_store.errors import StoreError, counted
    from model_store.store import Store

    with Store.open(store) as opened:
        findings = opened.check(models or (), repair=repair)
    wrong = sum(not each.repaired for each in findings)
    if as_json:
        print_json({"findings": findings, "wrong": wrong})
    elif findings:
        rows = [[each.key, each.found, each.expected, each.repair] for each in findings]
        print_table(["key", "found", "expected", "repaired" if repair else "--repair does"], rows)
    else:
        print("all keys are valid")
    if wrong:
        remedy = "they cannot be repaired" if repair else "run again with --repair"
        note(f"{counted(wrong, 'invalid value')}; {remedy}")
        raise typer.Exit(StoreError.exit_code)


def import_(
    model: Model,
    file: Annotated[Path, Argument(MODEL_FILE, "FILE", file="reads")],
    spec: Annotated[
        Path | None,
        Flag(
            "The spec of a .json model; default: the active version's, else an inferred one.",
            "TOML",
            file="reads",
        ),
    ] = None,
    keep: KeepOption = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Publish a model from a file and activate it. A delta is applied to the newest version that it can change."""
    from model_store.errors import StoreError
    from model_store.keys import DELTA
    from model_store.model_files import read_model
    from model_store.store import Store
    from model_store.versions.audit import By

    with Store.open(store) as opened:
        versions = opened.model(model, warn)
        read = read_model(file, spec, versions)
        if read.remark:
            note(read.remark)
        with progress(f"publish {model}", unit="bytes") as bar:
            version = versions.publish_and_activate(
                read.model,
                on_progress=lambda done, total: bar.update(done, total=total),
                by=By("ftrie store import"),
            )
        deleted = []
        try:
            deleted = versions.gc(keep) if keep != 0 else []
        except StoreError as error:  # that costs only space: the import is done
            warn(f"old versions could not be deleted: {error}")
    if as_json:
        kind = {"kind": DELTA, "parent": read.parent} if read.parent else {}
        print_json({"model": model, "version": version, "rows": read.model.rows, "deleted": deleted, **kind})
    else:
        what = f"changed since version {read.parent} " if read.parent else ""
        print(f"{model}: version {version} is active, {read.model.rows:,} keys {what}from {file}")


def export(
    model: Model,
    file: Annotated[Path, Argument(MODEL_FILE, "FILE", file="writes")],
    version: Annotated[int | None, Flag("The version; default: the active one.", "N", min=1)] = None,
    variant: Annotated[
        str | None,
        Flag(
            "Only this variant, as a model of its own; required for .json if each variant has its own weights.",
            "NAME",
        ),
    ] = None,
    as_delta: Annotated[bool, Flag("Write a delta as stored, not the whole model.", names="--delta")] = False,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Write a published version to a file; for a delta, the whole model."""
    from model_store.artefact.artefact import Delta
    from model_store.artefact.inspection import one_variant
    from model_store.errors import ArtefactError
    from model_store.files import write_whole
    from model_store.model_files import JSON, check_ending, write_model
    from model_store.store import Store

    if as_delta and (check_ending(file) == JSON or variant is not None):
        raise typer.BadParameter(
            f"--delta writes the stored bytes; it does not combine with {JSON} or --variant"
        )
    check_ending(file)
    with Store.open(store) as opened:
        versions = opened.model(model, warn)
        chosen = versions.active_or_fail() if version is None else version
        exported = versions.fetch(chosen) if as_delta else versions.materialise(chosen)
    kind: dict[str, object] = {}
    changed = ""
    if isinstance(exported, Delta):
        write_whole(file, exported.to_bytes())
        kind, changed = {"kind": "delta", "parent": exported.parent}, f" changed since {exported.parent}"
    elif as_delta:
        raise ArtefactError(f"version {chosen} of {model} is a snapshot; export it without --delta")
    else:
        exported = one_variant(exported, variant) if variant is not None else exported
        write_model(exported, file)
        if exported.calibration is not None and file.suffix == JSON:
            note("the JSON form has no calibration; the file gives uncalibrated predictions")
    if as_json:
        print_json({"model": model, "version": chosen, "rows": exported.rows, "file": str(file), **kind})
    else:
        print(f"{model}: wrote version {chosen}, {exported.rows:,} keys{changed}, to {file}")


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


def dead(
    model: Model,
    last: Annotated[int, Flag("How many of the latest to show.", "N", min=1)] = 20,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """List events that the trainer could not learn from, latest first, with the reason."""
    from model_store.store import Store

    with Store.open(store) as opened:
        letters = list(opened.dead_letters(model).latest(last))
    if as_json:
        names = "number source place reason event"
        print_json([picked(letter, names, number=number, event=letter.json) for number, letter in letters])
    elif letters:
        columns = ["number", "source", "place", "reason", "event"]
        rows = [[n, each.source, each.place, each.reason, _short(each.json)] for n, each in letters]
        print_table(columns, rows)
    else:
        print(f"{model}: no dead letters")


def _short(event: bytes) -> str:
    text: str = plain(event[: 4 * SHOWN_CHARACTERS])
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


def _show_active(versions: ModelVersions, version: int, before: int | None, as_json: bool) -> None:
    model, pinned = versions.model, versions.pinned()
    if as_json:
        print_json({"model": model, "active": version, "before": before})
    else:
        print(f"{model}: version {version} is active" + (f" (before: {before})" if before else ""))
    if pinned is not None:
        note(f"version {pinned} is pinned; the trainer activates nothing until: ftrie store resume {model}")


store = Commands(
    "store",
    "Inspect published models, choose the active version, import, export and load.",
    ("Store", 1),
    no_args_is_help=True,
)
store.command("versions", epilog="Example: ftrie store versions ads")(versions)
store.command("activate", epilog="Example: ftrie store activate ads 7")(activate)
store.command("rollback", epilog="Example: ftrie store rollback ads")(rollback)
store.command("resume", epilog="Example: ftrie store resume ads")(resume)
store.command("audit", epilog="Example: ftrie store audit ads --last 5")(audit)
store.command("gc", epilog="Example: ftrie store gc ads --keep 3 --dry-run")(gc)
store.command("check", epilog="Example: ftrie store check ads --repair")(check)
store_inspect.register(store)
store.command("import", epilog="Example: ftrie store import ads model.json --spec ads.toml")(import_)
store.command("export", epilog="Example: ftrie store export ads model.arrow --version 7")(export)
load = Commands(
    "load", "Load users, items and candidate sets, which requests name by id.", no_args_is_help=True
)
load.command("users", epilog="Example: ftrie store load users users.csv --id-column cookie")(users)
load.command("items", epilog="Example: ftrie store load items items.parquet")(items)
load.command("candidates", epilog="Example: ftrie store load candidates home home.txt")(candidates)
store.add_typer(load)
store.command("dead", epilog="Example: ftrie store dead ads --last 5 --json")(dead)
