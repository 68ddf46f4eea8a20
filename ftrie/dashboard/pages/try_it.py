"""The page for trying rankings: a request as a form, the ranking of each variant, why, and what if."""

from __future__ import annotations

import asyncio
from typing import Any

from nicegui import ui

from ftrie.charts.kinds import bars
from ftrie.client.messages import ExplainedItem, Ranking
from ftrie.dashboard.pages.layout import (
    Picture,
    Refresh,
    Table,
    Text,
    View,
    card,
    paragraph,
    percent,
    warning,
)
from ftrie.dashboard.queries.try_it import Form, Request, TryIt, moves
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
        page.contributions = Picture("Rank first.")
        page.sums = Text("quiet")
    with card("What if", "The same request with one value changed: how the order moves.").classes("half"):
        page.change = ui.element("div").classes("row-of-fields")
        page.moved = Table("How the items move")

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
    moved: Table

    def __init__(self, view: View) -> None:
        self._view = view
        self._trial = view.shared.of(TryIt, view.model, lambda: TryIt(view.feed, view.models, view.model))
        self._fields: dict[str, dict[str, Any]] = {}
        self.is_new = True

    async def begin(self) -> None:
        """Make the form, and rank some items at once."""
        form = await asyncio.to_thread(self._trial.form)
        self.is_new = False
        with self.form:
            self._cookie = _field("cookie")
            self._candidates = _field("candidates, separated by commas", ", ".join(form.items))
            self._set = _field("or the name of a candidate set")
            self._fields = {
                side: {name: _field(f"{side}: {name}", form.values.get(name, "")) for name in names}
                for side, names in _sides(form)
            }
            self._top = ui.number("how many", value=10, min=1, max=100).props("dense outlined")
            ui.button("Rank", on_click=self.rank).props("no-caps outline")
        names = [name for fields in self._fields.values() for name in fields]
        with self.choice:
            self._variant = ui.select(
                list(self._view.state.variants),
                value=self._view.state.base,
                label="Variant",
                on_change=self.explain,
            )
            self._item = ui.select([], label="Item", on_change=self.explain)
            for each in (self._variant, self._item):
                each.props("dense outlined").classes("choice")
        with self.change:
            self._name = (
                ui.select(names, value=names[0] if names else None, label="Field")
                .props("dense outlined")
                .classes("choice")
            )
            self._value = _field("other value")
            ui.button("What if", on_click=self.what_if).props("no-caps outline")
        await self.rank()

    def _request(self) -> Request:
        given = {
            side: {n: f.value.strip() for n, f in fields.items() if (f.value or "").strip()}
            for side, fields in self._fields.items()
        }
        return Request(
            cookie=(self._cookie.value or "").strip(),
            user=given["user"],
            context=given["context"],
            candidates=tuple(
                part.strip() for part in (self._candidates.value or "").split(",") if part.strip()
            ),
            candidate_set=(self._set.value or "").strip(),
            top_k=int(self._top.value or 10),
        )

    async def rank(self) -> None:
        """Rank by every variant, and explain the best item."""
        found = await self._asked(self._trial.rank, self._request())
        if found is None:
            return
        self.rankings.show(*_side_by_side(found))
        ids = [item.id for item in found[self._variant.value].items]
        chosen = self._item.value if self._item.value in ids else ids[0] if ids else None
        self._item.set_options(ids, value=chosen)
        version = next(iter(found.values())).version
        notes = [f"version {version}"]
        notes += [
            f"unknown items: {', '.join(r.unknown_items)}"
            for r in list(found.values())[:1]
            if r.unknown_items
        ]
        self.problem.show("".join(paragraph(note) for note in notes))
        await self.explain()

    async def explain(self) -> None:
        """Draw the contributions to the chosen item's score."""
        if not self._item.value:
            return
        found = await self._asked(
            self._trial.explain, self._request(), self._variant.value, [self._item.value]
        )
        if found:
            rows, rest = _contributions(found[0])
            self.contributions.show(bars(rows, value_title="contribution to the log-odds", signed=True))
            score = f"score {found[0].item.score:.5f}, click rate {percent(found[0].item.ctr, 3)}"
            self.sums.show(paragraph(f"{self._item.value} by {self._variant.value}: {score}" + rest))

    async def what_if(self) -> None:
        """Rank the same request with one value changed."""
        request, name = self._request(), self._name.value
        if not name:
            return
        side = "context" if name in self._fields["context"] else "user"
        changed = Request(
            **{**vars(request), side: {**getattr(request, side), name: (self._value.value or "").strip()}}
        )
        before = await self._asked(self._trial.rank, request)
        after = await self._asked(self._trial.rank, changed)
        if before is None or after is None:
            return
        variant = self._variant.value
        self.moved.show(
            ["item", "was", "is", "CTR was", "CTR is"],
            [
                [m.item, m.before or "—", m.after or "—", percent(m.ctr_before, 3), percent(m.ctr_after, 3)]
                for m in moves(before[variant], after[variant])
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


def _sides(form: Form) -> list[tuple[str, tuple[str, ...]]]:
    return [("context", form.context), ("user", form.user)]


def _field(label: str, value: str = "") -> Any:
    return ui.input(label, value=value).props("dense outlined").classes("field")


def _side_by_side(found: dict[str, Ranking]) -> tuple[list[str], list[list[Any]]]:
    columns = ["rank", *(column for name in found for column in (name, f"CTR {name}"))]
    longest = max((len(ranking.items) for ranking in found.values()), default=0)
    rows: list[list[Any]] = []
    for place in range(longest):
        row: list[Any] = [place + 1]
        for ranking in found.values():
            item = ranking.items[place] if place < len(ranking.items) else None
            row += [item.id, percent(item.ctr, 3)] if item is not None else ["", ""]
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
