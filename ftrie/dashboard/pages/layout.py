"""What all pages share: the frame with its navigation, and the pieces that a page is made of.

A page is a function that is given a `View`, puts its pieces on the page once, and returns a function that shows the
present state in them. That function is called at most once a second, on the event loop: it must be quick; what takes
longer runs in a thread (`asyncio.to_thread`). Pieces send to the browser only what has changed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, TypeAlias
from urllib.parse import urlencode

from nicegui import ui

from ftrie.dashboard.access import LOGOUT, prefix_of
from ftrie.dashboard.chart import Chart, library_url
from ftrie.dashboard.feed import Feed, ModelState
from ftrie.dashboard.shared import Models, Recent, Shared
from ftrie.draw.charts import ROWS, Spec, config
from ftrie.draw.notebook import html_table, paragraph
from model_store.errors import FtrieError

REFRESH_S = 1.0
FIRST_S = 0.2
"""How long a page waits for its first figures before it is sent without them."""
HOURS = {1: "last hour", 6: "last 6 hours", 24: "last day", 168: "last 7 days", 744: "last 31 days"}
DEFAULT_HOURS = 6

Refresh: TypeAlias = Callable[[], Awaitable[None] | None]
Cell: TypeAlias = "str | int | float | None"


@dataclass(frozen=True)
class Page:
    """A page of the dashboard: a file of `pages/` declares it, and ftrie.dashboard.app lists it.

    build: puts the pieces of the page together, and returns what shows the present state in them.
    """

    path: str
    title: str
    build: Callable[[View], Refresh]


@dataclass(frozen=True)
class View:
    """Who looks at what. pages: all, in the order of the navigation.

    model: empty if the store has none, or not the one that was asked for, which is `missing`.
    allow_changes: whether viewers may change the store.
    """

    feed: Feed
    page: Page
    pages: tuple[Page, ...]
    model: str
    missing: str
    hours: int
    viewer: str
    allow_changes: bool
    may_sign_out: bool
    logs: tuple[str, ...]
    effect: float
    shared: Shared

    @property
    def models(self) -> Models:
        """The whole models."""
        return self.shared.of(Models, self.model, lambda: Models(self.feed))

    @property
    def recent(self) -> Recent:
        """The latest traffic."""
        return self.shared.of(Recent, self.model, lambda: Recent(self.feed, self.model))

    @property
    def state(self) -> ModelState:
        """The model's latest snapshot."""
        return self.feed.model(self.model)

    @property
    def colours(self) -> dict[str, int]:
        """The number of each variant's colour, on every chart the same."""
        return {name: number for number, name in enumerate(self.state.variants)}

    def minutes(self) -> tuple[int, int]:
        """The first minute of the chosen time, and the one after the last."""
        stop = int(time.time()) // 60 + 1
        return stop - self.hours * 60, stop

    def link(self, path: str, **changes: Any) -> str:
        """The address of a page with the same choices, or some others."""
        return f"{path}?{urlencode({'model': self.model, 'hours': self.hours, **changes})}"


async def frame(view: View) -> None:
    """Put a whole page together, and keep it up to date."""
    title = view.page.title
    # The browser fetches the drawing code, 1 MB, while the page is put together.
    ui.add_head_html(f'<link rel="modulepreload" href="{library_url()}">')
    ui.page_title(f"{title} · {view.model or 'ftrie'}")
    with ui.header().classes("frame"):
        ui.html('<a class="skip" href="#content">Skip to the content</a>', sanitize=False)
        ui.label("ftrie").classes("brand")
        with ui.element("nav").props('aria-label="Pages"').classes("pages"):
            for page in view.pages:
                link = ui.link(page.title, view.link(page.path))
                if page is view.page:
                    link.props('aria-current="page"')
        with ui.row().classes("choices"):
            _choices(view)
            if view.may_sign_out:
                action = prefix_of(ui.context.client.request) + LOGOUT
                ui.html(
                    f'<form method="post" action="{action}"><button>Sign out</button></form>', sanitize=False
                )
    with ui.element("main").props('id="content"'):
        ui.html(f"<h1>{escape(title)}</h1>", sanitize=False)
        banner = Text("banner", 'role="status" aria-live="polite"')
        content = ui.element("div").classes("content")
    with content:
        if view.model:
            refresh = view.page.build(view)
        else:
            has = f"it has {', '.join(view.feed.names)}" if view.feed.names else ""
            Text().show(
                warning(f"The store has no model {view.missing!r}{'; ' if has else ''}{has}.")
                if view.missing
                else paragraph(
                    "The store has no model yet. `ftrie train SPEC LOG --publish --activate` makes one."
                )
            )

            def refresh() -> None:
                """Nothing: there is no model to show."""

    is_busy, failure = False, ""

    async def tick() -> None:
        nonlocal is_busy, failure
        # First: it makes a feed that nobody looked at read at once.
        view.feed.seen()
        problem = view.feed.problem or view.state.problem
        text = _away(view, problem) if problem else failure
        banner.show(paragraph(text) if text else "")
        # Once the model that was missing appears, the page is loaded again, with its pieces.
        come = view.missing or next(iter(view.feed.names), "")
        if not view.model and come in view.feed.names:
            ui.navigate.to(view.link(view.page.path, model=come))
        # A refresh that takes longer than the interval is not begun a second time.
        if is_busy:
            return
        is_busy = True
        try:
            done = refresh()
            if done is not None:
                await done
            failure = ""
        except FtrieError as error:
            failure = str(error)  # shown by the next tick, unless the whole store is away
        finally:
            is_busy = False

    # What is quick comes with the page itself; what is not follows.
    first = asyncio.create_task(tick())
    await asyncio.wait([first], timeout=FIRST_S)
    # Not immediately: `first` is the first.
    ui.timer(REFRESH_S, tick, immediate=False)


def _away(view: View, problem: str) -> str:
    at = view.state.at
    since = f" Shown is what was there at {time.strftime('%H:%M:%S', time.gmtime(at))} UTC." if at else ""
    what = "store" if view.feed.problem else "model"
    return (
        f"The {what} cannot be read: {problem.rstrip('?.')}.{since} This page goes on as soon as it can be."
    )


def _choices(view: View) -> None:
    names = list(view.feed.names) or ([view.model] if view.model else [])
    if names:
        choose(
            "Model",
            names,
            view.model or None,
            lambda e: ui.navigate.to(view.link(view.page.path, model=e.value)),
        ).props("options-dense")
    choose(
        "Time", HOURS, view.hours, lambda e: ui.navigate.to(view.link(view.page.path, hours=e.value))
    ).props("options-dense")
    dark = ui.dark_mode(None)
    ui.button(icon="contrast", on_click=lambda: dark.set_value(not dark.value)).props(
        'flat round aria-label="Light or dark"'
    )


# -- pieces


class Text:
    """A piece of HTML, sent again when it changes."""

    def __init__(self, classes: str = "", props: str = "") -> None:
        self._html = ui.html("", sanitize=False).classes(classes).props(props)

    def show(self, html: str) -> None:
        """Show this; every text in it must have been escaped."""
        if html != self._html.content:
            self._html.set_content(html)


class Table:
    """A table with a caption for screen readers, wide ones scroll by themselves."""

    def __init__(self, caption: str) -> None:
        self._text = Text("table", f'tabindex="0" role="region" aria-label="{escape(caption)}"')

    def show(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]], empty: str = "none") -> None:
        """Show these rows; `empty` if there are none."""
        self._text.show(html_table(columns, rows) if rows else paragraph(empty))


class Picture:
    """A chart, made when it first has rows; then only rows that have changed are sent."""

    def __init__(self, empty: str, on_pick: Callable[[dict[str, Any]], Any] | None = None) -> None:
        """empty: the text while there is nothing to draw; on_pick: called with the row that a viewer has clicked."""
        self._empty, self._on_pick = empty, on_pick
        self._chart: Chart | None = None
        self._place = ui.element("div").classes("picture")
        with self._place:
            self._text = Text("quiet")
            self._text.show(paragraph(empty))

    def show(self, chart: Spec) -> Chart | None:
        """Draw this chart; returns its element, or None if it has no rows."""
        rows = chart["datasets"][ROWS]
        spec = {name: part for name, part in chart.items() if name != "datasets"}
        self._text.show("" if rows else paragraph(self._empty))
        if not rows and self._chart is None:
            return None
        spec["config"] = config()
        if self._chart is None:
            with self._place:
                self._chart = Chart(spec, config(dark=True), rows)
            if self._on_pick is not None:
                pick = self._on_pick
                self._chart.on("pick", lambda event: pick(event.args))
        else:
            self._chart.show(spec, rows)
        return self._chart


def choose(label: str, options: Any, value: Any, on_change: Callable[..., Any] | None = None) -> Any:
    """A field for one of some options."""
    field = ui.select(options, value=value, label=label, on_change=on_change)
    return field.props("dense outlined").classes("choice")


def fields() -> Any:
    """A row of fields and buttons."""
    return ui.element("div").classes("row-of-fields")


def button(label: str, on_click: Callable[..., Any]) -> Any:
    """A button with a border."""
    return ui.button(label, on_click=on_click).props("no-caps outline")


def card(title: str, hint: str = "") -> Any:
    """A part of a page, with its heading."""
    section = ui.element("section").classes("card")
    with section:
        ui.html(
            f"<h2>{escape(title)}</h2>" + (f'<p class="hint">{escape(hint)}</p>' if hint else ""),
            sanitize=False,
        )
    return section


def tiles(values: Sequence[tuple[str, str, str]]) -> str:
    """Figures side by side as HTML: what, the figure, and a remark or a warning ("!…")."""
    parts = []
    for what, figure, remark in values:
        kind = "warning" if remark.startswith("!") else "remark"
        parts.append(
            f'<div class="tile"><dt>{escape(what)}</dt><dd>{escape(figure)}</dd>'
            f'<dd class="{kind}">{escape(remark.removeprefix("!"))}</dd></div>'
        )
    return f'<dl class="tiles">{"".join(parts)}</dl>'


def warning(text: str) -> str:
    """A line of text that must not be overlooked, as HTML."""
    return f'<p class="warning" role="alert">{escape(text)}</p>'


def said(text: str) -> str:
    """The one line of a page that sums up its figures, as HTML."""
    return f'<p class="said">{escape(text)}</p>'


# -- figures as text


def percent(share: float | None, digits: int = 2) -> str:
    """A share as text, — if unknown."""
    return "—" if share is None else f"{100.0 * share:.{digits}f} %"


def signed(share: float | None, digits: int = 1) -> str:
    """A relative difference as text."""
    return "—" if share is None else f"{100.0 * share:+.{digits}f} %"


def duration(seconds: float | None) -> str:
    """A time as text, in the unit that fits."""
    if seconds is None:
        return "—"
    for unit, size in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= 2.0 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10.0 or seconds == 0.0 else f"{seconds:.2g} s"


def milliseconds(seconds: float | None) -> str:
    """A short time as text."""
    return "—" if seconds is None else f"{1000.0 * seconds:.2f} ms"


def size(count: float) -> str:
    """Bytes as text."""
    for unit, least in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= least:
            return f"{count / least:.1f} {unit}"
    return f"{count:.0f} B"
