"""A chart of ftrie.draw on a page: made once in the browser, then only its rows are sent."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any

from fastapi import FastAPI, Response
from nicegui import ui

from ftrie.dashboard.access import prefix_of

MOST_ROWS = 2_000
# The path contains a hash of the content, so what is cached never becomes stale.
FOREVER = "public, max-age=31536000, immutable"
Rows = Sequence[dict[str, Any]]


@cache
def library() -> tuple[str, bytes]:
    """The path of the JavaScript that draws, and its text, compressed by gzip; from vl-convert. 3 s in a process."""
    import vl_convert

    bundle: Any = vl_convert.javascript_bundle  # its type asks for a snippet; without one it is all of Vega
    text = bundle().encode()
    return f"/charts/{hashlib.sha256(text).hexdigest()[:16]}.js", gzip.compress(text)


def library_url() -> str:
    """Where the browser of this page finds the drawing code: behind a proxy, below the proxy's path."""
    return prefix_of(ui.context.client.request) + library()[0]


def serve_library(app: FastAPI) -> None:
    """Answer requests for the drawing code."""
    path, text = library()

    @app.get(path, include_in_schema=False)
    def drawing_code() -> Response:
        return Response(
            text, media_type="text/javascript", headers={"Cache-Control": FOREVER, "Content-Encoding": "gzip"}
        )


class Chart(ui.element, component="chart.js"):
    """One chart. Emits `pick` with the row that was clicked."""

    def __init__(self, light: dict[str, Any], dark: dict[str, Any], rows: Rows) -> None:
        """light: a Vega-Lite specification whose data are the rows; dark: the configuration on a dark page."""
        super().__init__()
        self._update_method = "update_chart"
        self._props["library"] = library_url()
        self._props["spec"] = {"light": light, "dark": dark}
        self._props["rows"] = list(rows)

    def show(self, light: dict[str, Any], rows: Rows) -> None:
        """Draw these rows instead. Raises ValueError for more than MOST_ROWS."""
        if len(rows) > MOST_ROWS:
            raise ValueError(f"got {len(rows):,} rows for a chart, expected at most {MOST_ROWS:,}")
        spec = self._props["spec"]
        if list(rows) != self._props["rows"] or light != spec["light"]:
            self._props["rows"] = list(rows)
            self._props["spec"] = {**spec, "light": light}
            self.update()
