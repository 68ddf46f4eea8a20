"""`ftrie store inspect`: a published version as tables or as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from ftrie.command import Commands
from ftrie.terminal import JsonOption, picked, print_json, print_table, warn
from model_store.flags import DEFAULT_STORE, Argument, Flag, StoreOption

if TYPE_CHECKING:
    from model_store.artefact.artefact import Artefact
    from model_store.artefact.inspection import WeightedKey
    from model_store.versions.manifest import Manifest

Table = tuple[list[str], list[list[Any]]]
Facts = dict[str, Any]
FACTS = "version kind rows bytes chunks sha256 spec_sha256 parent chain content created format refused"
"""What is shown of the manifest; chain: the versions needed to load it, itself last."""


def register(store: Commands) -> None:
    """Add `ftrie store inspect`."""
    store.command("inspect", epilog="Example: ftrie store inspect ads --prefix 'age*'")(inspect)


def inspect(
    model: Annotated[str, Argument("The model's name.", "MODEL")],
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
    from model_store.store import Store

    with Store.open(store) as opened:
        versions = opened.model(model, warn)
        manifest = versions.manifest(versions.active_or_fail() if version is None else version)
        chain = [each.version for each in versions.chain(manifest.version)]
        artefact = versions.materialise(manifest.version)
    if variant is not None:
        artefact = one_variant(artefact, variant)
    if prefix is not None:
        _show_prefix(model, manifest.version, artefact, prefix, top, as_json)
        return
    facts = picked(manifest, FACTS, bytes=manifest.size, chain=chain, created=manifest.created.isoformat())
    (_as_json if as_json else _as_tables)(model, manifest, facts, artefact, top)


def _show_prefix(model: str, version: int, artefact: Artefact, pattern: str, top: int, as_json: bool) -> None:
    from model_store.trie.prefixes import Prefixes

    found = Prefixes(artefact).under(pattern, top)
    if as_json:
        figures = {name: each._asdict() for name, each in found.variants.items()}
        answer = picked(found, "prefix keys variants branches top", variants=figures, top=found.heaviest)
        print_json({"model": model, "version": version, **answer})
        return
    names = list(artefact.spec.variants)
    heading = f"{model} version {version}, {found.prefix}*"
    tables: list[Table] = [
        (
            [heading, "keys", "non-zero", "sum w", "sum |w|"],
            [[n, s.keys, s.nonzero, s.weight_sum, s.absolute_sum] for n, s in found.variants.items()],
        ),
        (
            ["branch", "keys", *(f"sum |w| {name}" for name in names)],
            [[each.prefix, each.keys, *each.absolute_sums.values()] for each in found.branches],
        ),
        _heaviest(artefact, list(found.heaviest)),
    ]
    for columns, rows in tables:
        print_table(columns, rows)
        print()


def _as_tables(model: str, manifest: Manifest, facts: Facts, artefact: Artefact, top: int) -> None:
    from model_store.artefact.inspection import heaviest, summaries

    summed = [[each.name, each.keys, each.weight_sum, each.heaviest] for each in summaries(artefact)]
    tables: list[Table] = [
        (["manifest", model], [[name, str(value)] for name, value in facts.items()]),
        *(
            (["metric", variant], [[name, value] for name, value in values.items()])
            for variant, values in artefact.metrics.items()
        ),
        *_recent(manifest),
        (["field or cross", "keys", "sum |w|", "max |w|"], summed),
        _heaviest(artefact, heaviest(artefact, top)),
        *_curves(artefact),
    ]
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


def _as_json(model: str, manifest: Manifest, facts: Facts, artefact: Artefact, top: int) -> None:
    import json

    from model_store.artefact.inspection import heaviest, summaries
    from model_store.keys import plain_metrics

    print_json(
        {
            "model": model,
            **facts,
            "recent": json.loads(manifest.recent) if manifest.recent else None,
            "metrics": plain_metrics(artefact.metrics),
            "keys": summaries(artefact),
            "top": heaviest(artefact, top),
            "calibration": artefact.calibration and json.loads(artefact.calibration.to_json()),
        }
    )
