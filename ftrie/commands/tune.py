"""`ftrie tune`: flags and output of a search for the learner's parameters. The search lives in `trainer.tuning`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ftrie.terminal import JsonOption, note, print_json, print_table, progress, warn
from model_store.errors import InputError, OutputError

if TYPE_CHECKING:
    from model_store.spec.spec import ModelSpec
    from trainer.tune.candidates import Candidate
    from trainer.tune.halving import Comparison, Tuning


def register(app: typer.Typer) -> None:
    """Add `ftrie tune`."""
    epilog = (
        "Example: ftrie tune ads.toml 'clicks/*.csv.gz' --try alpha=0.03,0.1,0.3 --try l1=0,1,3 -o best.toml"
    )
    app.command("tune", epilog=epilog)(tune)


def tune(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help="The model spec, a TOML file.")],
    inputs: Annotated[
        list[str], typer.Argument(metavar="INPUT…", help="Log files or globs, read in this order.")
    ],
    tries: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="NAME=V,V…",
            help="Values to try of a parameter of [learner]; repeated: every combination. "
            "Default: alpha and beta, twelve points around those of SPEC.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write SPEC here with the best parameters."),
    ] = None,
    judge_last: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Judge by this last part of the rows only, such as 0.1.")
    ] = 1.0,
    by: Annotated[str, typer.Option(metavar="METRIC", help="Rank by logloss or by auc.")] = "logloss",
    variant: Annotated[
        str | None, typer.Option(help="The variant whose features are used; default: the first.")
    ] = None,
    halving: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="ROWS",
            help="Successive halving: of each rung, from ROWS rows on, a third goes on.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the output file.")] = False,
    items: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Take columns that the log lacks from this file of items."),
    ] = None,
    users: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The same from a file of users, by input.cookie.")
    ] = None,
    input_format: Annotated[
        str | None,
        typer.Option("--format", metavar="NAME", help="As of `ftrie train`; default: told from the file."),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Hashing threads.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Try parameters of the learner on a log, and rank them by their progressive metrics.

    Candidates of alpha, beta, l1 and l2 are variants of one pass, up to 32, where the spec has one variant or each has
    its own values; others are models that learn side by side. A bad row is counted and skipped.
    """
    from model_store.spec.spec import load_spec
    from trainer.tune.best_spec import with_best
    from trainer.tune.candidates import candidates_of
    from trainer.tune.halving import Comparison

    if by not in ("logloss", "auc"):
        raise typer.BadParameter(f"--by {by}: expected logloss or auc")
    if judge_last == 0.0:
        raise typer.BadParameter("--judge-last 0: expected a part of the log above 0")
    if output is not None and output.exists() and not force:
        raise OutputError(f"{output} exists; name another file, or overwrite it with --force")
    model_spec = load_spec(spec)
    candidates = candidates_of(model_spec, tries or [])
    text = spec.read_text(encoding="utf-8")
    if output is not None:
        with_best(text, model_spec, candidates[0])  # fails now if the file cannot be edited
    comparison = Comparison(judge_last, by, variant, halving)
    found = _search(model_spec, candidates, comparison, inputs, items, users, input_format, threads)
    if output is not None:
        from model_store.whole_file import write_whole

        write_whole(output, with_best(text, model_spec, found.ranking[0].parameters).encode())
    _show(found, output, as_json)


def _search(
    spec: ModelSpec,
    candidates: Sequence[Candidate],
    comparison: Comparison,
    inputs: list[str],
    items: Path | None,
    users: Path | None,
    input_format: str | None,
    threads: int | None,
) -> Tuning:
    from trainer.examples.open_log import Log
    from trainer.examples.side_tables import side_tables
    from trainer.runs.warmup import formats_of
    from trainer.tune.halving import tune as search
    from trainer.tune.passes import Repeated

    log = Log(inputs, input_format, side_tables(items, users, spec.input), note)
    note(f"{len(candidates)} candidates")
    _compile(spec, candidates, comparison, formats_of(inputs, input_format))
    with progress("tuning") as bar:
        repeated = Repeated(log, threads, lambda rows, total: bar.update(rows, total=total))
        found = search(spec, candidates, repeated, comparison)
    if not found.ranking:
        raise InputError(f"no row could be learned from ({found.rejected:,} rejected); nothing can be ranked")
    for warning in _warnings(found):
        warn(warning)
    return found


def _warnings(found: Tuning) -> list[str]:
    from trainer.logs.rejects import MOST_REJECTED

    if found.rejected_share <= MOST_REJECTED:
        return []
    return [
        f"{found.rejected:,} rows were rejected, {100 * found.rejected_share:.3g} % of those read: the ranking is "
        "that of the others alone; `ftrie train --rejects FILE` lists them"
    ]


def _compile(
    spec: ModelSpec, candidates: Sequence[Candidate], comparison: Comparison, formats: frozenset[str]
) -> None:
    from trainer.runs.warmup import compile_kernels, kernels_are_ready
    from trainer.tune.candidates import groups_of
    from trainer.tune.halving import compared_variant

    groups = groups_of(spec, candidates, range(len(candidates)), compared_variant(spec, comparison.variant))
    waiting = [group.spec for group in groups if not kernels_are_ready(group.spec, formats)]
    if waiting:
        note("compiling kernels for the first time; some ten seconds for each kind of learner, once")
    for each in waiting:
        compile_kernels(each, formats)


def _show(found: Tuning, output: Path | None, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "best": dict(found.ranking[0].parameters),
                "ranking": [each.as_dict() for each in found.ranking],
                "rejected": found.rejected,
                "passes": found.passes,
                "seconds": round(found.seconds, 6),
                "output": str(output) if output is not None else None,
                "warnings": _warnings(found),
            }
        )
        return
    names = list(found.ranking[0].parameters)
    rows = [
        [
            rank,
            *(_plain(each.parameters[name]) for name in names),
            each.outcome.metrics.logloss,
            each.outcome.metrics.auc,
            each.outcome.nonzero,
            each.judged_rows,
        ]
        for rank, each in enumerate(found.ranking, 1)
    ]
    print_table(["", *names, "log-loss", "AUC", "non-zeros", "rows judged"], rows)
    passes = "pass" if found.passes == 1 else "passes"
    print(f"{found.passes} {passes} in {found.seconds:.1f} s, {found.rejected:,} rows rejected", end="")
    print(f"; the best is in {output}" if output is not None else "")


def _plain(value: float | int | str) -> str:
    """A parameter as one would write it: 1e-06, and not 0.00000."""
    return value if isinstance(value, str) else f"{value:g}"
