"""Which format a log is in: by the name's extension, else by how its first bytes look."""

from __future__ import annotations

import re
from pathlib import PurePath

from model_store.errors import InputError
from trainer.sources.streams import Bytes

FORMATS = ("csv", "tsv", "jsonl", "parquet", "vw", "libsvm", "libffm")
EXTENSIONS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".vw": "vw",
    ".libsvm": "libsvm",
    ".svm": "libsvm",
    ".libffm": "libffm",
    ".ffm": "libffm",
}
_COMPRESSED = (".gz", ".zst")
_LOOK_BYTES = 64 * 1024
_NUMBER = rb"[+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?"
# The first line of a log whose rows name their features themselves, and which therefore has no header.
_SPARSE = {
    "vw": re.compile(rb"[+-]?[01](?:\.0*)?(?: +%b){0,2}(?: +'?[^ |\t]*)? *\|" % _NUMBER),
    "libsvm": re.compile(rb"[+-]?[01](?:\.0*)?(?:[ \t]+qid:\S+)?(?:[ \t]+[0-9]+:%b)+\s*(?:#|$)" % _NUMBER),
    "libffm": re.compile(rb"[+-]?[01](?:\.0*)?(?:[ \t]+[0-9]+:[0-9]+:%b)+\s*$" % _NUMBER),
}
# scikit-learn's dump_svmlight_file writes comments first.
_COMMENTED = re.compile(rb"(?:[ \t\r]*+(?:#[^\n]*+)?\n)++" + _SPARSE["libsvm"].pattern, re.MULTILINE)


def format_by_name(name: str) -> str | None:
    """The format that the file's extension tells, or None."""
    path = PurePath(name.lower())
    if path.suffix in _COMPRESSED:
        path = path.with_suffix("")
    return EXTENSIONS.get(path.suffix)


def format_by_content(name: str, data: Bytes) -> str:
    """The format that the first bytes tell; InputError if they do not."""
    head = data[:_LOOK_BYTES].tobytes()
    if head.startswith(b"PAR1"):
        return "parquet"
    text = head.lstrip()
    if text.startswith(b"{"):
        return "jsonl"
    line = text.partition(b"\n")[0]
    for format, pattern in _SPARSE.items():
        if pattern.match(line):
            return format
    if _COMMENTED.match(text):
        return "libsvm"
    if b"\t" in line:
        return "tsv"
    if b"," in line:
        return "csv"
    raise InputError(
        f"{name}: cannot tell its format from its name or first line; expected one of {', '.join(FORMATS)}, "
        "which --format can name"
    )


def check_format(format: str | None) -> str | None:
    """Return `format` if it is known or None, else raise InputError."""
    if format is not None and format not in FORMATS:
        raise InputError(f"format {format!r} is not known; expected one of {', '.join(FORMATS)}")
    return format
