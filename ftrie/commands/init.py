"""`ftrie init`: reads a log's first rows and writes a commented spec to start from. See `trainer.inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ftrie.api.data import Format, log_of
from ftrie.command import command
from ftrie.commands.flags import DialectFlags
from ftrie.terminal import JsonOption, note, print_json, print_table
from model_store.flags import Argument, Flag

if TYPE_CHECKING:
    from trainer.inspect.guesses import Guess


@command(
    "Learn",
    1,
    "Examples: ftrie init clicks.csv.gz -o ads.toml; ftrie init clicks.tsv --no-header --label c1 -o "
    "ads.toml; ftrie init impressions.jsonl.gz clicks.jsonl.gz -o ads.toml",
)
def init(
    *,
    inputs: Annotated[
        list[str],
        Argument(
            "A log file (CSV, TSV, JSON lines, Parquet, Vowpal Wabbit, libsvm, libffm); - is standard input. "
            "Or files of impressions and their clicks.",
            "INPUT…",
            file="reads",
        ),
    ],
    output: Annotated[
        Path | None, Flag("Write the spec here, not to stdout.", "FILE", names="--output -o", file="writes")
    ] = None,
    label: Annotated[str | None, Flag("The column that says whether there was a click.", "NAME")] = None,
    quick: Annotated[bool, Flag("Only guess: leave out the measuring on the log's first rows.")] = False,
    force: Annotated[bool, Flag("Overwrite FILE.")] = False,
    format: Format,
    dialect: DialectFlags,
    as_json: JsonOption = False,
) -> None:
    """Write a commented spec to start from, guessed from the first rows of a log.

    Label, times, identities, numbers and lists are guessed from names and values; comments give the reasons. A log
    without a header gets the columns c1, c2, …, which the spec lists to be renamed; a label of two other values than
    1 and 0 gets `positive`, and clicks beside views get `views`. An attribute that never changes for an item gets the
    item's side; of equal columns the first is kept; a column that reveals the label is left out; position
    bias is reported. In impressions and clicks, which are joined, a value's side is its place in the event.
    """
    from ftrie import terminal
    from model_store.errors import InputError
    from model_store.files import write_whole
    from trainer.runs.first_spec import first_spec, steps_table

    if output is not None and output.exists() and not force:
        raise InputError(f"{output} exists already; overwrite it with --force")
    log = log_of(inputs, note=note, dialect=dialect.dialect(), **format)
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
