"""The page for trying rankings: a request as a form, the ranking of each variant, why, and what if."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from html import escape
from typing import Any

from nicegui import ui

from ftrie.client.messages import ExplainedItem, Ranking
from ftrie.dashboard.pages.layout import (
    Page,
    Picture,
    Refresh,
    Table,
    Text,
    View,
    card,
    percent,
    warning,
)
from ftrie.dashboard.queries.try_it import Request, TryIt
from ftrie.draw.charts import bars
from ftrie.draw.notebook import paragraph
from model_store.artefact.inspection import key_text
from model_store.errors import FtrieError

MOST_BARS = 15


def build(view: View) -> Refresh:
    """Put the page together."""
    page = _Trial(view)
    with card(
        "Request", "What is left empty is not sent; a cookie brings the user's stored features."
    ).classes("third"):
        page.form = ui.element("div").classes("form")
        page.problem = Text("quiet")
    with card("Ranking by each variant").classes("two-thirds"):
        page.rankings = Table("Ranking by each variant")
    with card("Why", "The contributions to one item's score; they add up to its log-odds.").classes("half"):
        page.choice = ui.element("div").classes("row-of-fields")
        page.contributions = Picture("No item was ranked.")
        page.sums = Text("quiet")
    with card("What if", "The same request with one value changed: how the order moves.").classes("half"):
        page.change = ui.element("div").classes("row-of-fields")
        page.moved_by, page.moved = Text("quiet"), Table("How the items move")

    async def refresh() -> None:
        if page.is_new:
            await page.begin()

    return refresh


class _Trial:
    """What one viewer has asked. The pieces are set by `build`."""

    form: Any
    problem: Text
    rankings: Table
    choice: Any
    contributions: Picture
    sums: Text
    change: Any
    moved_by: Text
    moved: Table

    def __init__(self, view: View) -> None:
        self._view = view
        self._trial = view.shared.of(TryIt, view.model, lambda: TryIt(view.feed, view.models, view.model))
        self._fields: dict[str, dict[str, _Field]] = {}
        self.is_new = True

    async def begin(self) -> None:
        """Make the form, and rank some items at once."""
        form = await asyncio.to_thread(self._trial.form)
        self.is_new = False
        with self.form:
            self._cookie = _Field("cookie")
            self._candidates = _Field("candidates, separated by commas", ", ".join(form.items))
            self._set = _Field("or the name of a candidate set")
            self._fields = {
                side: {name: _Field(f"{side}: {name}", *_first(form.values.get(name, ()))) for name in names}
                for side, names in (("context", form.context), ("user", form.user))
            }
            self._top = ui.number("how many", value=10, min=1, max=100).props("dense outlined")
            ui.button("Rank", on_click=self.rank).props("no-caps outline")
        names = [name for fields in self._fields.values() for name in fields]
        with self.choice:
            self._variant = ui.select(
                list(self._view.state.variants),
                value=self._view.state.base,
                label="Variant",
                on_change=self.rank,
            )
            self._item = ui.select([], label="Item", on_change=self.rank)
            for each in (self._variant, self._item):
                each.props("dense outlined").classes("choice")
        with self.change:
            self._name = (
                ui.select(names, value=names[0] if names else None, label="Field")
                .props("dense outlined")
                .classes("choice")
            )
            self._known, self._value = form.values, _Field("other value")
            self._name.on_value_change(self._offer)
            self._offer()
            ui.button("What if", on_click=self.what_if).props("no-caps outline")
        await self.rank()

    def _offer(self) -> None:
        """Offer the known values of the field that is changed."""
        self._value.offer(self._known.get(self._name.value or "", ()))

    def _request(self) -> Request:
        given = {
            side: {name: field.text for name, field in fields.items() if field.text}
            for side, fields in self._fields.items()
        }
        return Request(
            cookie=self._cookie.text,
            user=given["user"],
            context=given["context"],
            candidates=tuple(part.strip() for part in self._candidates.text.split(",") if part.strip()),
            candidate_set=self._set.text,
            top_k=int(self._top.value or 10),
        )

    async def rank(self) -> None:
        """Rank by every variant, and draw the contributions to the chosen item's score, or else to the best one's."""
        variant = self._variant.value
        found = await self._asked(self._trial.ask, self._request(), variant, self._item.value or "")
        if found is None:
            return
        self.rankings.show(*_side_by_side(found.rankings))
        explained = found.explained
        self._item.set_options(
            [item.id for item in found.rankings[variant].items],
            value=explained.item.id if explained is not None else None,
        )
        unknown = warning(f"Unknown: {'; '.join(found.unknown)}.") if found.unknown else ""
        self.problem.show(paragraph(f"version {found.version}") + unknown)
        rows, rest = _contributions(explained) if explained is not None else ([], "")
        self.contributions.show(bars(rows, value_title="contribution to the log-odds", signed=True))
        if explained is not None:
            score = f"score {explained.item.score:.5f}, click rate {percent(explained.item.ctr, 3)}"
            self.sums.show(paragraph(f"{explained.item.id} by {variant}: {score}" + rest))

    async def what_if(self) -> None:
        """Rank the same request with one value changed."""
        request, name = self._request(), self._name.value
        if not name:
            return
        side = "context" if name in self._fields["context"] else "user"
        changed = request.changed(side, name, self._value.text)
        found = await self._asked(self._trial.compare, request, changed, self._variant.value)
        if found is None:
            return
        version, moved = found
        self.moved_by.show(paragraph(f"{self._variant.value}, version {version}"))
        self.moved.show(
            ["item", "was", "is", "CTR was", "CTR is"],
            [
                [m.item, m.before or "—", m.after or "—", percent(m.ctr_before, 3), percent(m.ctr_after, 3)]
                for m in moved
            ],
        )

    async def _asked(self, ask: Any, *arguments: Any) -> Any:
        """What a question returns; None, with the problem shown, if it fails."""
        try:
            found = await asyncio.to_thread(ask, *arguments)
        except FtrieError as error:
            self.problem.show(warning(str(error)))
            return None
        self.problem.show("")
        return found


def _first(values: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    return next(iter(values), ""), values


class _Field:
    """A field for a text, with the values that the model knows to pick from."""

    def __init__(self, label: str, value: str = "", known: tuple[str, ...] = ()) -> None:
        self._input = ui.input(label, value=value).props("dense outlined").classes("field")
        self._known = ui.html("", sanitize=False)
        self._input.props(f"list=known-{self._input.id}")
        self.offer(known)

    @property
    def text(self) -> str:
        """What was typed, without blanks around it."""
        return (self._input.value or "").strip()

    def offer(self, known: tuple[str, ...]) -> None:
        """Let these values be picked."""
        options = "".join(f'<option value="{escape(value)}"></option>' for value in known)
        self._known.set_content(f'<datalist id="known-{self._input.id}">{options}</datalist>')


def _side_by_side(found: Mapping[str, Ranking]) -> tuple[list[str], list[list[Any]]]:
    columns = ["rank", *(column for name in found for column in (name, f"CTR {name}"))]
    longest = max((len(ranking.items) for ranking in found.values()), default=0)
    rows: list[list[Any]] = []
    for place in range(longest):
        row: list[Any] = [place + 1]
        for ranking in found.values():
            item = ranking.items[place] if place < len(ranking.items) else None
            if item is None:
                row += ["", ""]
            else:
                known = "" if item.id not in ranking.unknown_items else " (not in the store)"
                row += [f"{item.id}{known}", percent(item.ctr, 3)]
        rows.append(row)
    return columns, rows


def _contributions(item: ExplainedItem) -> tuple[list[dict[str, Any]], str]:
    """The keys of largest contribution as rows, and a text about the others."""
    keys = [(key_text(each.key), each.contribution) for group in item.groups for each in group.keys]
    keys += [(group.name, group.sum) for group in item.groups if not group.keys]
    ordered = sorted(keys, key=lambda each: -abs(each[1]))
    rows = [{"name": name, "value": value} for name, value in ordered[:MOST_BARS]]
    rest = ordered[MOST_BARS:]
    return rows, f"; {len(rest):,} others add up to {sum(value for _, value in rest):+.5f}" if rest else ""


PAGE = Page("/try", "Try it", build)
