"""Turns the inputs a user names (files, globs, `-`) into a list of files. Opens nothing."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from pathlib import Path

from model_store.errors import InputError

STDIN = "-"


def expand(inputs: Sequence[str]) -> tuple[str, ...]:
    """The files that `inputs` name, in the order given; a glob stands for its matches, sorted.

    Raises InputError for a name that is no file, a glob without matches, a folder, or standard input named
    twice.
    """
    if not inputs:
        raise InputError("no input: expected one or more files, globs, or - for standard input")
    files = tuple(name for each in inputs for name in _expand_one(each))
    if files.count(STDIN) > 1:
        raise InputError("- (standard input) can be read only once, but stands in the inputs more than once")
    return files


def _expand_one(name: str) -> Iterator[str]:
    path = Path(name)
    if name == STDIN:
        yield name
    elif path.is_dir():
        raise InputError(f"{name} is a folder; name its files, for example {path}/*.csv.gz")
    elif path.exists():
        yield name
    elif glob.has_magic(name):
        yield from _matches(name)
    else:
        raise InputError(f"{name}: there is no such file (from the folder {Path.cwd()})")


def _matches(pattern: str) -> list[str]:
    files = sorted(name for name in glob.glob(pattern, recursive=True) if Path(name).is_file())
    if not files:
        raise InputError(f"{pattern} matches no file (from the folder {Path.cwd()})")
    return files
