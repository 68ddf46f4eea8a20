"""`ftrie store`: lists, activates, collects, checks, imports and exports the versions of models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ftrie.command import Commands
from ftrie.commands import store_inspect, store_records
from ftrie.commands.flags import KEPT, KeepOption
from ftrie.terminal import JsonOption, note, print_json, print_table, progress, warn
from model_store.flags import DEFAULT_STORE, Argument, Flag, StoreOption

if TYPE_CHECKING:
    from model_store.versions.model_versions import ModelVersions

Model = Annotated[str, Argument("The model's name.", "MODEL")]
MODEL_FILE = ".arrow is an artefact, .json the JSON form."


def versions(model: Model, store: StoreOption = DEFAULT_STORE, as_json: JsonOption = False) -> None:
    """List the published versions of a model, oldest first. A delta's keys and bytes are those of its changes."""
    from model_store.store import Store

    with Store.open(store) as opened:
        listed = opened.model(model, warn).versions()
    if as_json:
        print_json(
            [
                {
                    "version": info.version,
                    "active": info.active,
                    "kind": info.kind,
                    "parent": info.parent,
                    "published": info.published.isoformat(),
                    "rows": info.rows,
                    "bytes": info.size,
                    "sha256": info.sha256,
                    "content": info.content,
                    "refused": info.refused,
                }
                for info in listed
            ]
        )
        return
    print_table(
        ["version", "active", "kind", "parent", "published", "keys", "bytes", "sha256", "refused"],
        [
            [
                info.version,
                "active" if info.active else "",
                info.kind,
                info.parent,
                f"{info.published:%Y-%m-%d %H:%M:%S} UTC",
                info.rows,
                info.size,
                info.sha256[:12],
                info.refused,
            ]
            for info in listed
        ],
    )


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
        pinned = versions.pinned()
    _print_active(model, version, before, as_json)
    _note_pin(model, pinned)


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
        pinned = versions.pinned()
    _print_active(model, now_active, before, as_json)
    _note_pin(model, pinned)


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
        print_json([entry.as_dict() for entry in entries])
    elif entries:
        rows = [[f"{each.at:%Y-%m-%d %H:%M:%S} UTC", each.who, each.tool, each.words] for each in entries]
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
    from dataclasses import asdict

    from model_store.errors import StoreError, counted
    from model_store.store import Store

    with Store.open(store) as opened:
        findings = opened.check(models or (), repair=repair)
    wrong = sum(not each.repaired for each in findings)
    if as_json:
        print_json({"findings": [asdict(each) for each in findings], "wrong": wrong})
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
    from model_store.artefact.arrow_format import DELTA
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
        deleted = _collect(versions, keep)
    if as_json:
        kind = {"kind": DELTA, "parent": read.parent} if read.parent else {}
        print_json({"model": model, "version": version, "rows": read.model.rows, "deleted": deleted, **kind})
    else:
        what = f"changed since version {read.parent} " if read.parent else ""
        print(f"{model}: version {version} is active, {read.model.rows:,} keys {what}from {file}")


def _collect(versions: ModelVersions, keep: int | None) -> list[int]:
    """Delete old versions. A failure only costs space, since the import is done."""
    from model_store.errors import StoreError

    try:
        return versions.gc(keep) if keep != 0 else []
    except StoreError as error:
        warn(f"old versions could not be deleted: {error}")
        return []


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
    from model_store.artefact.inspection import one_variant
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
        if as_delta:
            _export_delta(versions, chosen, file, as_json)
            return
        artefact = versions.materialise(chosen)
    if variant is not None:
        artefact = one_variant(artefact, variant)
    write_model(artefact, file)
    if artefact.calibration is not None and file.suffix == JSON:
        note("the JSON form has no calibration; the file gives uncalibrated predictions")
    if as_json:
        print_json({"model": model, "version": chosen, "rows": artefact.rows, "file": str(file)})
    else:
        print(f"{model}: wrote version {chosen}, {artefact.rows:,} keys, to {file}")


def _export_delta(versions: ModelVersions, version: int, file: Path, as_json: bool) -> None:
    from model_store.artefact.artefact import Delta
    from model_store.errors import ArtefactError
    from model_store.whole_file import write_whole

    delta = versions.fetch(version)
    if not isinstance(delta, Delta):
        raise ArtefactError(f"version {version} of {versions.model} is a snapshot; export it without --delta")
    write_whole(file, delta.to_bytes())
    if as_json:
        facts = {"model": versions.model, "version": version, "rows": delta.rows, "file": str(file)}
        print_json(facts | {"kind": "delta", "parent": delta.parent})
    else:
        print(
            f"{versions.model}: wrote version {version}, {delta.rows:,} keys changed since {delta.parent}, to {file}"
        )


def _note_pin(model: str, pinned: int | None) -> None:
    if pinned is not None:
        note(f"version {pinned} is pinned; the trainer activates nothing until: ftrie store resume {model}")


def _print_active(model: str, version: int, before: int | None, as_json: bool) -> None:
    if as_json:
        print_json({"model": model, "active": version, "before": before})
    else:
        print(f"{model}: version {version} is active" + (f" (before: {before})" if before else ""))


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
store_records.register_load(store)
store_records.register_dead(store)
