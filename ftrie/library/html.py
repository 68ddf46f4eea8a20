"""Small pieces of HTML for notebooks: paragraphs, tables, folded parts. Every text is escaped: values come from logs.

Colours are the notebook's own, so that light and dark themes both read well.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from html import escape
from typing import Any

import pyarrow as pa

from model_store.errors import shown

_SHOWN = 10
_CELL = "padding:0.15em 0.8em;font-variant-numeric:tabular-nums"


def paragraph(text: str) -> str:
    """A line of text."""
    return f"<p>{escape(text)}</p>"


def html_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table; numbers are right-aligned and shown with a few digits, None is empty."""
    numeric = [
        bool(rows) and all(isinstance(row[number], int | float | None) for row in rows)
        for number in range(len(columns))
    ]
    head = "".join(_cell("th", name, right) for name, right in zip(columns, numeric, strict=True))
    body = "".join(
        "<tr>"
        + "".join(_cell("td", _text(value), right) for value, right in zip(row, numeric, strict=True))
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def details(summary: str, *parts: str) -> str:
    """Parts of HTML that are folded until a reader opens them."""
    return f"<details><summary>{escape(summary)}</summary>{''.join(parts)}</details>"


def _cell(tag: str, text: str, right: bool) -> str:
    return f'<{tag} style="{_CELL};text-align:{"right" if right else "left"}">{escape(text)}</{tag}>'


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else shown(value)


def _arrow_table(table: pa.Table) -> str:
    rows = [list(row.values()) for row in table.slice(0, _SHOWN).to_pylist()]
    return html_table(table.column_names, rows) + paragraph(f"{table.num_rows:,} rows")


def show_tables() -> None:
    """Have a notebook show Arrow tables, the type of many answers, as tables; where nothing else shows them already."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    if shell is not None:
        html = shell.display_formatter.formatters["text/html"]
        if html.for_type(pa.Table) is None:
            html.for_type(pa.Table, _arrow_table)


show_tables()
