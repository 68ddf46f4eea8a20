"""Tutorials: Markdown files of docs/tutorials/ that are executed as notebooks (jupytext, nbclient) and rendered again.

A tutorial is Markdown as GitHub shows it; its ```python and ```bash blocks are the cells. `execute` runs them in one
kernel, in an empty folder, and gives the notebook with its outputs; `render` makes Markdown of it, for the site:
printed text as blocks, tables as HTML, pictures as files beside the page.
"""

from __future__ import annotations

import base64
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jupytext

from ftrie.demo.processes import free_port

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS = Path(__file__).with_name("tutorials")
NODE = ROOT / ".venv/node/node_modules"
ROWS = 500_000
"""Of each day of the shop, as many as `ftrie demo` has."""
PORT = "50051"
TIMEOUT_S = 300
"""For one cell; the test holds each tutorial to less."""
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def prepare(folder: Path, rows: int = ROWS) -> None:
    """Put into `folder` what `ftrie demo --keep` leaves: the spec, two days of clicks, users and items."""
    shutil.copytree(_prepared(rows).name, folder, dirs_exist_ok=True)


@functools.cache
def _prepared(rows: int) -> tempfile.TemporaryDirectory[str]:
    """What `prepare` copies: simulating two days takes longer than most tutorials."""
    from ftrie.demo import market

    # The object is returned, not its name: the folder is removed with it.
    shop, kept = market.Shop(1), tempfile.TemporaryDirectory()
    folder = Path(kept.name)
    for day in (1, 2):
        shop.clicks(day, rows).write(folder / f"day-{day}.csv")
    shop.write_records(folder / "users.csv", folder / "items.csv")
    (folder / "shop.toml").write_text(market.SHOP_SPEC.read_text("utf-8"), "utf-8")
    return kept


def execute(tutorial: Path, folder: Path) -> Any:
    """Run the cells of a tutorial in `folder`; gives the executed notebook (nbformat).

    Servers listen on a free port instead of 50051; what is shown names 50051. Cells that start node are skipped where
    it, or gRPC for it, is not installed. Raises nbclient's CellExecutionError with the cell and its traceback where a
    cell fails.
    """
    from nbclient import NotebookClient
    from nbformat.v4 import new_code_cell

    notebook = jupytext.read(tutorial, fmt="md")
    environment = {
        # FTRIE_ variables of the caller would change what is shown.
        **{name: value for name, value in os.environ.items() if not name.startswith("FTRIE_")},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}",
        "NODE_PATH": str(NODE),
        "COLUMNS": "100",
    }
    port, sources = str(free_port()), [cell.source for cell in notebook.cells]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.source = cell.source.replace(PORT, port)
            if _starts_node(cell.source) and not has_node():
                cell.source = 'print("not run: Node.js or @grpc/grpc-js is not installed")'
    # Without a browser, charts are shown as pictures.
    notebook.cells.insert(0, new_code_cell("import altair\naltair.renderers.enable('png', scale_factor=2)"))
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    # The log lines of the servers that the cells start are no output of a cell.
    client.execute(env=environment, stderr=subprocess.DEVNULL)
    del notebook.cells[0]
    for cell, source in zip(notebook.cells, sources, strict=True):
        cell.source = source
        for output in cell.get("outputs", []):
            if "text" in output:
                output.text = output.text.replace(port, PORT)
    return notebook


def has_node() -> bool:
    """Whether Node.js is installed, with the packages that `make docs` puts beside the Python ones."""
    return shutil.which("node") is not None and (NODE / "@grpc/grpc-js").is_dir()


def _starts_node(source: str) -> bool:
    return source.startswith("%%bash") and re.search(r"^node ", source, re.MULTILINE) is not None


def render(notebook: Any, name: str, folder: Path) -> str:
    """The Markdown of an executed notebook; pictures are written to `folder` as `name`-1.png and so on."""
    parts, pictures = [], 0
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(_fence(cell.source.removeprefix("%%bash\n"), _language(cell.source)))
        printed = ""
        draws = any("image/png" in output.get("data", {}) for output in cell.outputs)
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
                parts.append(f'<div class="ftrie-output">{_one_line(data["text/html"])}</div>')
            elif "text/plain" in data and not draws:  # else the value is the chart itself
                parts.append(_fence(data["text/plain"], "text"))
        if printed:
            parts.append(_fence(_last_state(printed), "text"))
    return "\n\n".join(parts) + "\n"


def shown_text(notebook: Any) -> str:
    """All that the cells printed or gave, as text: of a value that shows itself as HTML, the HTML."""
    texts = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            texts.append(output.get("text") or data.get("text/html") or data.get("text/plain", ""))
    return _ESCAPES.sub("", "\n".join(texts))


def _title(notebook: Any) -> str:
    return notebook.cells[0].source.splitlines()[0].lstrip("# ")


def _language(source: str) -> str:
    return "sh" if source.startswith("%%bash") else "python"


def _fence(text: str, language: str) -> str:
    text = _ESCAPES.sub("", text).strip("\n")
    return f"```{language}\n{text}\n```"


def _one_line(html: str) -> str:
    """The HTML without line breaks, of which an empty line would end it for Markdown; those of <pre> stay, escaped."""
    html = re.sub(r"<pre.*?</pre>", lambda found: found[0].replace("\n", "&#10;"), html, flags=re.DOTALL)
    return "".join(line.strip() for line in html.splitlines())


def _last_state(text: str) -> str:
    """What a terminal would show: of a line that was overwritten by a carriage return, the last state."""
    return "\n".join(line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))
