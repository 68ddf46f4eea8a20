"""The table of formats of labelled rows, and which of them a file has."""

from __future__ import annotations

from pathlib import PurePath

from model_store.errors import InputError, listed
from trainer.formats import csv, jsonl, parquet, sparse
from trainer.formats.row_file import Format
from trainer.formats.streams import BOM

FORMATS: dict[str, Format] = {
    format.name: format for module in (csv, jsonl, parquet, sparse) for format in module.FORMATS
}
EVENTS = "events"
"""The format of impressions and their feedback, which `trainer.examples.event_log` reads."""
_COMPRESSED = (".gz", ".zst")


def check_format(format: str | None) -> str | None:
    """Return `format` if it is known or None, else raise InputError."""
    if format is not None and format not in (EVENTS, *FORMATS):
        raise InputError(
            f"format {format!r} is not known; expected one of {listed([*FORMATS, EVENTS], format)}"
        )
    return format


def format_by_name(name: str) -> str | None:
    """The format by the file's extension, or None."""
    path = PurePath(name.lower())
    if path.suffix in _COMPRESSED:
        path = path.with_suffix("")
    return next((each.name for each in FORMATS.values() if path.suffix in each.extensions), None)


def format_of(name: str, head: bytes) -> str:
    """The format by the file's extension, else by its first bytes. Raises InputError if neither tells it.

    A file called .csv whose cells are separated by tabs is TSV, and the reverse; one that holds Parquet or JSON objects
    is that. `misnamed` says so.
    """
    head = head.removeprefix(BOM)
    named = FORMATS.get(format_by_name(name) or "")
    if named is None or (named.separator and head.startswith((b"PAR1", b'{"'))):
        return _by_content(name, head).name
    if named.separator:
        for other in FORMATS.values():
            if (
                other.separator
                and other is not named
                and _is_separated_by(other.separator, named.separator, head)
            ):
                return other.name
    return named.name


def misnamed(name: str, format: str) -> str:
    """A remark for the user if `format_of` found another format than the name tells, else ""."""
    by_name = format_by_name(name)
    if by_name is None or by_name == format or not FORMATS[by_name].separator:
        return ""
    return f"{name}: {FORMATS[format].holds}: read as {format}; --format {by_name} reads it as its name says"


def _by_content(name: str, head: bytes) -> Format:
    text = head.lstrip()
    for format in sorted(FORMATS.values(), key=lambda each: bool(each.separator)):
        if format.begins(text):
            return format
    raise InputError(
        f"{name}: cannot tell its format from its name or first line; expected one of {', '.join(FORMATS)}, "
        "which --format can name"
    )


def _is_separated_by(theirs: bytes, ours: bytes, head: bytes) -> bool:
    """True if the first line has separators of the other format and none of this one.

    Or if all lines have as many of the other, and fewer than half of them as many of this one as the first.
    """
    lines = [line for line in head[: head.rfind(b"\n") + 1].splitlines() or head.splitlines() if line.strip()]
    others, own = ([line.count(mark) for line in lines] for mark in (theirs, ours))
    if not lines or not others[0]:
        return False
    return not own[0] or (len(set(others)) == 1 and 2 * own.count(own[0]) < len(own))
