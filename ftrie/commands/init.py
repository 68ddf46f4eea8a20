"""`ftrie init`: reads a log's first rows and writes a commented spec to start from. See `trainer.guess`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ftrie.commands.flags import DialectFlags, FormatOption, NoHeaderOption, grouped
from ftrie.terminal import JsonOption, note, print_json, print_table

if TYPE_CHECKING:
    from trainer.guess.guesses import Guess


def register(app: typer.Typer) -> None:
    """Add `ftrie init`."""
    examples = (
        "ftrie init clicks.csv.gz -o ads.toml; ftrie init clicks.tsv --no-header --label c1 -o ads.toml; "
        "ftrie init impressions.jsonl.gz clicks.jsonl.gz -o ads.toml"
    )
    app.command("init", epilog=f"Examples: {examples}")(init)


@grouped
def init(
    *,
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT…",
            help="A log file (CSV, TSV, JSON lines, Parquet, Vowpal Wabbit, libsvm, libffm); - is standard input. "
            "Or files of impressions and their clicks.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the spec here, not to stdout."),
    ] = None,
    label: Annotated[
        str | None, typer.Option(metavar="NAME", help="The column that tells whether there was a click.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only guess: leave out the measuring on the log's first rows.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
    format: FormatOption = None,
    no_header: NoHeaderOption = False,
    dialect: DialectFlags,
    as_json: JsonOption = False,
) -> None:
    """Write a commented spec to start from, guessed from the first rows of a log.

    Label, times, identities, numbers and lists are guessed from names and values; comments give the reasons. A log
    without a header gets the columns c1, c2, …, which the spec lists to be renamed; a label of two other values than
    1 and 0 gets `positive`, and clicks beside views get `views`. An attribute that never changes for an item gets the
    item's side; of equal columns the first is kept; a column that tells the label is left out; position bias is warned
    of. Of impressions and clicks, which are
    joined, a value's side is where it stands in the event.
    """
    from ftrie import terminal
    from model_store.errors import InputError
    from model_store.whole_file import write_whole
    from trainer.examples.open_log import Log
    from trainer.runs.first_spec import first_spec, steps_table

    if output is not None and output.exists() and not force:
        raise InputError(f"{output} exists already; overwrite it with --force")
    log = Log(inputs, format, (), note, no_header=no_header, dialect=dialect.dialect())
    found = first_spec(log, label, measures=not quick, output=terminal)
    text, choice = found.text, found.choice
    if output is not None:
        write_whole(output, text.encode())
    if as_json:
        columns = [_column(guess) for guess in found.guesses]
        print_json({"spec": text, "columns": columns, "measured": choice and choice.as_dict()})
        return
    if found.why_not:
        note(f"nothing was measured: {found.why_not}; the spec has a textbook rate")
    if output is None:
        print(text, end="")
    else:
        if choice is not None:
            head, *rows = steps_table(choice)
            print_table(head, rows)
        note(f"wrote {output}; next: ftrie doctor --spec {output} {' '.join(inputs)}")


def _column(guess: Guess) -> dict[str, Any]:
    return {
        "name": guess.name,
        "role": guess.role,
        "side": guess.side,
        "kind": guess.kind,
        "distinct": guess.profile.distinct,
        "filled": guess.profile.filled,
        "examples": guess.profile.examples(),
        "why": guess.why,
    }
