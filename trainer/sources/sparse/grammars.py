"""The three text formats: what their columns are called, and how those names stand in the text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trainer.sources.sparse.kernels import LIBFFM, LIBSVM, VW

LABEL = "label"
IMPORTANCE = "importance"
TAG = "tag"
QUERY = "qid"
FEATURES = "features"  # what has no name of its own: all of libsvm, and Vowpal Wabbit's nameless namespace
_OF_THE_ROW = (LABEL, IMPORTANCE, TAG)
_NAMESPACE = re.compile(rb"\|([^ \t\r:|\n]*)")
_FIELD = re.compile(rb"[ \t]0*([0-9]+):[0-9]+:")


@dataclass(frozen=True)
class Grammar:
    """One format. `number` is what the kernels call it.

    row_columns: those with one value a row; text_column and weight: which of them is text, and which is the weight.
    names_in: the names of the other columns, as they stand in a text of good lines; name_of and column_of: from what
    a column is called to its name in the text (None: nothing is called so), and back.
    """

    format: str
    number: int
    row_columns: tuple[str, ...]
    text_column: str | None
    names_in: Callable[[bytes], Iterator[bytes]]
    name_of: Callable[[str], bytes | None]
    column_of: Callable[[bytes], str]
    weight: str | None = None


def _vw_name(column: str) -> bytes | None:
    if column == FEATURES:
        return b""
    name = column[1:] if column.startswith("|") else column
    encoded = name.encode("utf-8", "surrogatepass")
    if not encoded or _NAMESPACE.fullmatch(b"|" + encoded) is None or _vw_column(encoded) != column:
        return None
    return encoded


def _vw_column(name: bytes) -> str:
    """A namespace is called as in the text; one that is called like another column has its bar before it."""
    text = name.decode()
    if not text:
        return FEATURES
    return f"|{text}" if text in (*_OF_THE_ROW, FEATURES) else text


def _ffm_name(column: str) -> bytes | None:
    return column.encode() if re.fullmatch("0|[1-9][0-9]*", column, re.ASCII) else None


VOWPAL_WABBIT = Grammar(
    "vw",
    VW,
    _OF_THE_ROW,
    TAG,
    lambda text: (found[1] for found in _NAMESPACE.finditer(text)),
    _vw_name,
    _vw_column,
    IMPORTANCE,
)
LIBSVM_TEXT = Grammar(
    "libsvm",
    LIBSVM,
    (LABEL, QUERY),
    QUERY,
    lambda text: iter([b""]),
    lambda column: b"" if column == FEATURES else None,
    lambda name: FEATURES,
)
LIBFFM_TEXT = Grammar(
    "libffm",
    LIBFFM,
    (LABEL,),
    None,
    lambda text: (found[1] for found in _FIELD.finditer(text)),
    _ffm_name,
    lambda name: name.decode(),
)
GRAMMARS = {grammar.format: grammar for grammar in (VOWPAL_WABBIT, LIBSVM_TEXT, LIBFFM_TEXT)}
