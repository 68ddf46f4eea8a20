"""Tutorials: Markdown files of docs/tutorials/ that are executed as notebooks (jupytext, nbclient) and rendered again.

A tutorial is Markdown as GitHub shows it; its ```python and ```bash blocks are the cells. `execute` runs them in one
kernel, in an empty folder, and gives the notebook with its outputs; `render` makes Markdown of it, for the site:
printed text as blocks, tables as HTML, pictures as files beside the page.
"""

from __future__ import annotations

import base64
import os
import re
import sys
from pathlib import Path
from typing import Any

import jupytext
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS = Path(__file__).with_name("tutorials")
TIMEOUT_S = 300
"""For one cell; the test holds each tutorial to less."""
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def execute(tutorial: Path, folder: Path) -> Any:
    """Run the cells of a tutorial in `folder`; gives the executed notebook (nbformat).

    Raises nbclient's CellExecutionError with the cell and its traceback where a cell fails.
    """
    notebook = jupytext.read(tutorial, fmt="md")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("FTRIE_")},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}",
        "COLUMNS": "100",
        "NO_COLOR": "1",
    }
    client = NotebookClient(
        notebook, timeout=TIMEOUT_S, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute(env=environment)
    return notebook


def render(notebook: Any, name: str, folder: Path) -> str:
    """The Markdown of an executed notebook; pictures are written to `folder` as `name`-1.png and so on."""
    parts, pictures = [], 0
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(_fence(cell.source.removeprefix("%%bash\n"), _language(cell.source)))
        printed = ""
        for output in cell.outputs:
            if output.output_type == "stream":
                printed += output.text
                continue
            if printed:
                parts.append(_fence(_last_state(printed), "text"))
                printed = ""
            data = output.get("data", {})
            if "image/png" in data:
                pictures += 1
                file = f"{name}-{pictures}.png"
                (folder / file).write_bytes(base64.b64decode(data["image/png"]))
                parts.append(f"![{_title(notebook)}, picture {pictures}]({file})")
            elif "text/html" in data:
                # One line: a blank line within would end the HTML for Markdown.
                html = "".join(line.strip() for line in data["text/html"].splitlines())
                parts.append(f'<div class="ftrie-output">{html}</div>')
            elif "text/plain" in data:
                parts.append(_fence(data["text/plain"], "text"))
        if printed:
            parts.append(_fence(_last_state(printed), "text"))
    return "\n\n".join(parts) + "\n"


def printed_text(notebook: Any) -> str:
    """All that the cells printed or gave, as plain text."""
    texts = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            texts.append(output.get("text") or output.get("data", {}).get("text/plain", ""))
    return _ESCAPES.sub("", "\n".join(texts))


def _title(notebook: Any) -> str:
    return notebook.cells[0].source.splitlines()[0].lstrip("# ")


def _language(source: str) -> str:
    return "sh" if source.startswith("%%bash") else "python"


def _fence(text: str, language: str) -> str:
    text = _ESCAPES.sub("", text).strip("\n")
    return f"```{language}\n{text}\n```"


def _last_state(text: str) -> str:
    """What a terminal would show: of a line that was overwritten by a carriage return, the last state."""
    return "\n".join(line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))
