"""What `ftrie evaluate` and `ftrie audit` have in common: the flags that name a model and a log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="NAME (its active version) or NAME:VERSION in the store, or a file: .arrow, .json.",
    ),
]
InputsArgument = Annotated[
    list[str],
    typer.Argument(metavar="INPUT…", help="Log files or globs, read in this order; - is standard input."),
]
VariantOption = Annotated[str | None, typer.Option(metavar="NAME", help="Which variant; default: the first.")]
WithoutOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FIELD", help="Score without this field or cross (a*b), as if no row had it; may be repeated."
    ),
]
SpecOption = Annotated[Path | None, typer.Option(metavar="TOML", help="The spec of a .json model.")]
ItemsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Take columns that the log lacks from this file of items, by input.item."
    ),
]
UsersOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The same from a file of users, by input.cookie.")
]
FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format", metavar="NAME", help="The logs' format, as of `ftrie train`; default: told from the file."
    ),
]
