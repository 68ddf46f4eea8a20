"""`ftrie store`: the versions of models, the records that requests name by id, and the keys of the store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ftrie.command import Commands
from ftrie.terminal import JsonOption, note, note_once, picked, plain, print_json, print_table, progress, warn
from model_store.flags import DEFAULT_STORE, Argument, Flag, StoreOption
from trainer.settings import KEPT, KeepOption

if TYPE_CHECKING:
    from model_store.artefact.artefact import Artefact
    from model_store.artefact.inspection import WeightedKey
    from model_store.versions.manifest import Manifest
    from model_store.versions.model_versions import ModelVersions

Table = tuple[list[str], list[list[Any]]]
Facts = dict[str, Any]
FACTS = "version kind rows bytes chunks sha256 spec_sha256 parent chain content created format refused"
"""What is shown of the manifest; chain: the versions needed to load it, itself last."""
Model = Annotated[str, Argument("The model's name.", "MODEL")]
RecordFile = Annotated[
    Path,
    Argument(".csv, .tsv, .jsonl or .parquet, optionally followed by .gz or .zst.", "FILE", file="reads"),
]
SHOWN_CHARACTERS = 80
MODEL_FILE = ".arrow is an artefact, .json the JSON form."


@contextmanager
def _opened(store: str, model: str) -> Iterator[ModelVersions]:
    from model_store.store import Store

    with Store.open(store) as opened:
        yield opened.model(model, warn)


def versions(model: Model, store: StoreOption = DEFAULT_STORE, as_json: JsonOption = False) -> None:
    """List the published versions of a model, oldest first. A delta's keys and bytes are those of its changes."""
    with _opened(store, model) as versions:
        listed = versions.versions()
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
    from model_store.versions.audit import By

    with _opened(store, model) as versions:
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
    from model_store.versions.audit import By

    with _opened(store, model) as versions:
        now_active, before = versions.go_back(version, by=By("ftrie store rollback"))
        _show_active(versions, now_active, before, as_json)


def resume(model: Model, store: StoreOption = DEFAULT_STORE, as_json: JsonOption = False) -> None:
    """Let the trainer activate versions again, after a manual `activate` or `rollback`."""
    from model_store.versions.audit import By

    with _opened(store, model) as versions:
        pinned = versions.resume(By("ftrie store resume"))
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
    with _opened(store, model) as versions:
        entries = versions.audit.read(last)
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
    with _opened(store, model) as versions:
        deleted = versions.gc(keep, dry_run=dry_run)
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


def forget(
    cookie: Annotated[str, Argument("The person's cookie, the id of their record.", "COOKIE")],
    model: Annotated[str | None, Flag("Only this model; the record stays.", "NAME")] = None,
    file: Annotated[
        list[Path] | None,
        Flag(
            "A file of impressions, clicks, recorded requests or shadows: their lines are removed. None that a trainer "
            "follows. Repeatable.",
            "FILE",
            file="writes",
        ),
    ] = None,
    dry_run: Annotated[bool, Flag("Only show what would be removed.")] = False,
    wait: Annotated[
        float, Flag("How long running trainers are waited for, in seconds.", "S", min=0.0)
    ] = 10.0,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Forget a person: their record, histories, events, pins, and what running trainers hold of them.

    Says what is kept, and what the store cannot reach. Exit code 5 if a running trainer has not forgotten in time.
    """
    from model_store.errors import StoreError, counted
    from model_store.store import Store
    from model_store.versions.audit import By

    by, files = By("ftrie store forget"), file or []
    with Store.open(store) as opened:
        found = opened.forget(cookie, model, files=files, dry_run=dry_run, wait_s=wait, by=by, on_junk=warn)
    late = 0 if dry_run else sum(not each.forgot for each in found.trainers)
    if as_json:
        print_json({**vars(found), "late": late})
    else:
        _print_tables(
            *(_table(each) for each in (found.models, found.trainers) if each),
            *([(["file", "lines"], [*map(list, found.files.items())])] if files else []),
            (["not reached", "what to do"], [*map(list, found.elsewhere.items())]),
        )
        what = "a user record" if found.record else "no user record"
        note(f"{'would remove' if dry_run else 'removed'} the above, and {what}; {found.model_keeps}")
    if late:
        note(
            f"{counted(late, 'running trainer')} has not said in time that it forgot: run again, with a longer --wait"
        )
        raise typer.Exit(StoreError.exit_code)


def _table(rows: Sequence[Any]) -> Table:
    return [name.replace("_", " ") for name in vars(rows[0])], [[*vars(row).values()] for row in rows]


def inspect(
    model: Model,
    version: Annotated[int | None, Argument("Default: the active version.", "VERSION", min=1)] = None,
    top: Annotated[int, Flag("How many of the heaviest keys to show.", "N", min=0)] = 10,
    variant: Annotated[str | None, Flag("Show only the keys and weights of this variant.", "NAME")] = None,
    prefix: Annotated[
        str | None,
        Flag(
            "Show only the keys under a prefix such as age* (a final * is a wildcard): counts and weights per "
            "variant, and the branches below.",
            "PREFIX",
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Show a version: its manifest, metrics, keys per field and heaviest keys; of a delta, those of the whole model."""
    from model_store.artefact.inspection import one_variant

    with _opened(store, model) as versions:
        manifest = versions.manifest(versions.active_or_fail() if version is None else version)
        chain = [each.version for each in versions.chain(manifest.version)]
        artefact = versions.materialise(manifest.version)
    if variant is not None:
        artefact = one_variant(artefact, variant)
    if prefix is not None:
        _show_prefix(model, manifest.version, artefact, prefix, top, as_json)
        return
    facts = picked(manifest, FACTS, bytes=manifest.size, chain=chain, created=manifest.created.isoformat())
    _show_version(model, manifest, facts, artefact, top, as_json)


def _show_prefix(model: str, version: int, artefact: Artefact, pattern: str, top: int, as_json: bool) -> None:
    from model_store.artefact.inspection import Prefixes

    found = Prefixes(artefact).under(pattern, top)
    if as_json:
        figures = {name: each._asdict() for name, each in found.variants.items()}
        answer = picked(found, "prefix keys variants branches top", variants=figures, top=found.heaviest)
        print_json({"model": model, "version": version, **answer})
        return
    names = list(artefact.spec.variants)
    heading = f"{model} version {version}, {found.prefix}*"
    _print_tables(
        (
            [heading, "keys", "non-zero", "sum w", "sum |w|"],
            [[n, s.keys, s.nonzero, s.weight_sum, s.absolute_sum] for n, s in found.variants.items()],
        ),
        (
            ["branch", "keys", *(f"sum |w| {name}" for name in names)],
            [[each.prefix, each.keys, *each.absolute_sums.values()] for each in found.branches],
        ),
        _heaviest(artefact, list(found.heaviest)),
    )


def _show_version(
    model: str, manifest: Manifest, facts: Facts, artefact: Artefact, top: int, as_json: bool
) -> None:
    import json

    from model_store.artefact.inspection import heaviest, summaries
    from model_store.keys import plain_metrics

    keys, heavy = summaries(artefact), heaviest(artefact, top)
    if as_json:
        print_json(
            {
                "model": model,
                **facts,
                "recent": json.loads(manifest.recent) if manifest.recent else None,
                "metrics": plain_metrics(artefact.metrics),
                "keys": keys,
                "top": heavy,
                "calibration": artefact.calibration and json.loads(artefact.calibration.to_json()),
            }
        )
        return
    columns = ["field or cross", "keys", "sum |w|", "max |w|"]
    _print_tables(
        (["manifest", model], [[name, str(value)] for name, value in facts.items()]),
        *(
            (["metric", variant], [[name, value] for name, value in values.items()])
            for variant, values in artefact.metrics.items()
        ),
        *_recent(manifest),
        (columns, [[each.name, each.keys, each.weight_sum, each.heaviest] for each in keys]),
        _heaviest(artefact, heavy),
        *_curves(artefact),
    )


def _print_tables(*tables: Table) -> None:
    for columns, rows in tables:
        print_table(columns, rows)
        print()


def _heaviest(artefact: Artefact, keys: list[WeightedKey]) -> Table:
    """One column of weights, or one per variant where each has its own."""
    if not artefact.per_variant:
        return ["key", "weight", "variants"], [[k.key, k.weight, ", ".join(k.variants)] for k in keys]
    names = list(artefact.spec.variants)
    return ["key", *names], [[k.key, *(k.weights.get(name) for name in names)] for k in keys]


def _curves(artefact: Artefact) -> list[Table]:
    """The calibration, if any: each curve at some predictions."""
    from model_store.artefact.inspection import CURVE_AT, curve_lines

    if (calibration := artefact.calibration) is None:
        return []
    heading = [
        f"{calibration.kind} calibration",
        calibration.by or "value",
        *(f"{p:g} becomes" for p in CURVE_AT),
    ]
    return [(heading, [[line.variant, line.value, *line.ctr] for line in curve_lines(calibration)])]


def _recent(manifest: Manifest) -> list[Table]:
    """The figures that a guard judged the version by, if one did."""
    from model_store.versions.manifest import RecentFigures

    if not manifest.recent:
        return []
    recent = RecentFigures.from_json(manifest.recent)
    heading = [f"last {recent.examples:,} examples", "log-loss", "error", "predicted clicks", "clicks"]
    rows = [[n, v.logloss, v.logloss_error, v.predicted, recent.clicks] for n, v in recent.variants.items()]
    return [(heading, rows)]


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
    from model_store.versions.audit import By

    with _opened(store, model) as versions:
        read = read_model(file, spec, versions)
        if read.remark:
            note(read.remark)
        with progress(f"publish {model}", unit="bytes") as bar:
            # With an epoch of its own, which fences off a trainer that began before.
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

    if as_delta and (check_ending(file) == JSON or variant is not None):
        raise typer.BadParameter(
            f"--delta writes the stored bytes; it does not combine with {JSON} or --variant"
        )
    # Before the store is opened and a whole model is read.
    check_ending(file)
    with _opened(store, model) as versions:
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
    from trainer.formats.record_files import read_ids

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
    from trainer.formats.record_files import ITEM_IDS, USER_IDS, read_records

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
    # A character of UTF-8 has at most 4 bytes; an event may have many more.
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
store.command("forget", epilog="Example: ftrie store forget u1 --dry-run")(forget)
store.command("inspect", epilog="Example: ftrie store inspect ads --prefix 'age*'")(inspect)
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
