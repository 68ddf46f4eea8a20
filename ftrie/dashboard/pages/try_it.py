"""The page for trying rankings: a request as a form, the ranking of each variant, why, and what if."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import islice
from threading import Lock
from typing import Any, Literal

from nicegui import ui

from ftrie.api.messages import ExplainedItem, Options, Ranking
from ftrie.api.ranker import Ranker
from ftrie.dashboard.feed import Feed, ModelState
from ftrie.dashboard.pages.layout import (
    Page,
    Picture,
    Refresh,
    Table,
    Text,
    View,
    button,
    card,
    choose,
    fields,
    percent,
    warning,
)
from ftrie.dashboard.shared import Models
from ftrie.draw.charts import bars
from ftrie.draw.notebook import paragraph
from model_store.artefact.artefact import Artefact
from model_store.artefact.inspection import key_ranges, key_text
from model_store.errors import FtrieError, UsageError, VersionNotFound
from model_store.features.objective import Objective
from model_store.records.records import ItemsState
from model_store.spec.keys import unescape
from model_store.spec.kinds import KINDS
from model_store.spec.spec import ModelSpec

MOST_BARS = 15
MOST_CANDIDATES = 1_000
MOST_VALUES = 200
EXAMPLES = 8


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
        page.choice = fields()
        page.contributions = Picture("No item was ranked.")
        page.sums = Text("quiet")
    with card("What if", "The same request with one value changed: how the order moves.").classes("half"):
        page.change = fields()
        page.moved_by, page.moved = Text("quiet"), Table("How the items move")

    async def refresh() -> None:
        # Not in `build`, which the page waits for: the form reads the store.
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
            self._objective = _Field("order by, such as ctr * price")
            self._top = ui.number("how many", value=10, min=1, max=100).props("dense outlined")
            button("Rank", self.rank)
        names = [name for side in self._fields.values() for name in side]
        with self.choice:
            state = self._view.state
            self._variant = choose("Variant", list(state.variants), state.base, self.rank)
            self._item = choose("Item", [], None, self.rank)
        with self.change:
            self._name = choose("Field", names, names[0] if names else None)
            self._known, self._value = form.values, _Field("other value")
            self._name.on_value_change(self._offer)
            self._offer()
            button("What if", self.what_if)
        await self.rank()

    def _offer(self) -> None:
        """Offer the known values of the field that is changed."""
        self._value.offer(self._known.get(self._name.value or "", ()))

    def _request(self) -> Options:
        given = {
            side: {name: field.text for name, field in fields.items() if field.text}
            for side, fields in self._fields.items()
        }
        candidates = [part.strip() for part in self._candidates.text.split(",") if part.strip()]
        return {
            "cookie": self._cookie.text,
            "user": given["user"],
            "context": given["context"],
            "candidates": candidates,
            "candidate_set": "" if candidates else self._set.text,
            "objective": self._objective.text,
            "top_k": int(self._top.value or 10),
        }

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
            for name, other in (explained.item.models or {}).items():
                score += f", {name}.ctr {percent(other.ctr, 3)} by its version {other.version}"
            self.sums.show(paragraph(f"{explained.item.id} by {variant}: {score}" + rest))

    async def what_if(self) -> None:
        """Rank the same request with one value changed."""
        request, name = self._request(), self._name.value
        if not name:
            return
        side: Literal["user", "context"] = "context" if name in self._fields["context"] else "user"
        other = changed(request, side, name, self._value.text)
        found = await self._asked(self._trial.compare, request, other, self._variant.value)
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
    # What other models that the objective names predict of an item, beside its own rate.
    items = [item for ranking in found.values() for item in ranking.items]
    others = list(dict.fromkeys(name for item in items for name in item.models or ()))
    rates = {name: [f"CTR {name}", *(f"{other}.ctr" for other in others)] for name in found}
    columns = ["rank", *(column for name in found for column in (name, *rates[name]))]
    longest = max((len(ranking.items) for ranking in found.values()), default=0)
    rows: list[list[Any]] = []
    for place in range(longest):
        row: list[Any] = [place + 1]
        for ranking in found.values():
            item = ranking.items[place] if place < len(ranking.items) else None
            if item is None:
                row += ["", "", *("" for _ in others)]
            else:
                known = "" if item.id not in ranking.unknown_items else " (not in the store)"
                row += [f"{item.id}{known}", percent(item.ctr, 3)]
                row += [percent((item.models or {})[other].ctr, 3) for other in others]
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


# -- the rankings


@dataclass(frozen=True)
class RequestForm:
    """The fields of a request, by side, some ids of items to begin with, and values of fields that the model has."""

    user: tuple[str, ...]
    context: tuple[str, ...]
    items: tuple[str, ...]
    values: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Answer:
    """What one version says of a request. unknown: of the request, what neither the model nor the store knows."""

    version: int
    rankings: Mapping[str, Ranking]
    explained: ExplainedItem | None
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class Move:
    """One item of a changed request: its places, from 1, None where it is not among the best, and its click rates."""

    item: str
    before: int | None
    after: int | None
    ctr_before: float | None
    ctr_after: float | None


class TryIt:
    """Ranks in this process with the active version of one model, over the store's items and users. Thread-safe."""

    def __init__(self, feed: Feed, models: Models, model: str) -> None:
        self._feed, self._models, self._model, self._lock = feed, models, model, Lock()
        self._ranker: Ranker | None = None
        self._items: ItemsState | None = None
        self._others: dict[str, TryIt] = {}
        self._beside: dict[str, Ranker] = {}

    def form(self) -> RequestForm:
        """The fields of a request. Raises FtrieError."""
        state = self._feed.model(self._model)
        spec = self._spec(state)
        records = self._feed.store.records
        # The first that a scan meets: to sort all items would read the whole store.
        items = tuple(sorted(name for name, _ in islice(records.scan_items(), EXAMPLES)))
        user, context = _columns(spec, "user"), _columns(spec, "context")
        known = (
            _known_values(self._models.artefact(state, state.active), (*user, *context))
            if state.active
            else {}
        )
        return RequestForm(user=user, context=context, items=items, values=known)

    def ask(self, request: Options, variant: str, item: str = "") -> Answer:
        """The ranking by every variant, and why `variant` scores one item so: `item`, or else its best one.

        Raises FtrieError.
        """
        with self._lock:
            ranker = self._current(request.get("objective") or "")
            rankings = {name: _ranked(ranker, request, name) for name in ranker.variants}
            ids = [each.id for each in rankings[variant].items]
            chosen, explained = item if item in ids else next(iter(ids), ""), None
            if chosen:
                # Alone: its score does not depend on the other candidates, and an explanation takes at most 100.
                alone: Options = {**request, "candidates": [chosen], "candidate_set": "", "variant": variant}
                (explained,) = ranker.explain(**alone).items
            return Answer(
                ranker.version, rankings, explained, self._unknown(request, rankings[variant], explained)
            )

    def compare(self, before: Options, after: Options, variant: str) -> tuple[int, list[Move]]:
        """The version, and how its order moves from one request to another. Raises FtrieError."""
        with self._lock:
            ranker = self._current(after.get("objective") or "")
            return ranker.version, moves(*(_ranked(ranker, each, variant) for each in (before, after)))

    def _unknown(
        self, request: Options, ranking: Ranking, explained: ExplainedItem | None
    ) -> tuple[str, ...]:
        found = [f"item {name!r}: not in the store" for name in ranking.unknown_items]
        cookie = request.get("cookie")
        if cookie and not self._feed.store.records.user(cookie):
            found.append(f"cookie {cookie!r}: the store has no record of this user")
        if explained is not None:
            weighted = {group.name for group in explained.groups if group.keys}
            given = _own_values(request)
            found += [f"{name} {value!r}: no weight" for name, value in given.items() if name not in weighted]
        return tuple(found)

    def _current(self, objective: str = "") -> Ranker:
        """The ranker of the active version, over the store's items as they are now. With the lock held.

        And beside it, those of the models that the objective names. Raises FtrieError.
        """
        for name in Objective.of(objective).models if objective else ():
            if name != self._model and name in self._feed.names:
                other = self._others.setdefault(name, TryIt(self._feed, self._models, name))
                self._beside[name] = other._current()
        state = self._feed.model(self._model)
        if state.active is None:
            raise VersionNotFound(f"no version of {self._model} is active")
        store, ranker = self._feed.store, self._ranker
        items = store.records.item_changes.state()  # before the items: later changes are seen the next time
        if ranker is None or (ranker.version, self._items) != (state.active, items):
            artefact = self._models.artefact(state, state.active)
            if ranker is None:
                self._ranker = ranker = Ranker(
                    artefact, store, store, version=state.active, beside=self._beside
                )
            else:
                # None: the items that were coded before are kept.
                changed = None if items == self._items else store
                ranker.update(artefact, changed, version=state.active)
            self._items = items
        return ranker

    def _spec(self, state: ModelState) -> ModelSpec:
        if state.spec is None:
            raise VersionNotFound(f"no version of {self._model} is active")
        return state.spec


def moves(before: Ranking, after: Ranking) -> list[Move]:
    """How the items of two rankings have moved, in the order of the later one, then those that are gone."""
    old = {item.id: (place, item.ctr) for place, item in enumerate(before.items, 1)}
    new = {item.id: (place, item.ctr) for place, item in enumerate(after.items, 1)}
    none: tuple[None, None] = (None, None)
    return [
        Move(
            name,
            old.get(name, none)[0],
            new.get(name, none)[0],
            old.get(name, none)[1],
            new.get(name, none)[1],
        )
        for name in (*new, *(name for name in old if name not in new))
    ]


def changed(request: Options, side: Literal["user", "context"], name: str, value: str) -> Options:
    """The request with another value of one of the fields of `side`."""
    features = request.get(side)
    assert not isinstance(features, str)  # the form gives the user's id as the cookie
    made = request.copy()
    made[side] = {**(features or {}), name: value}
    return made


def _own_values(request: Options) -> dict[str, Any]:
    """The values of the request itself, by field."""
    user = request.get("user")
    assert not isinstance(user, str)
    return {**(user or {}), **(request.get("context") or {})}


def _ranked(ranker: Ranker, request: Options, variant: str) -> Ranking:
    candidates = request.get("candidates") or ()
    if len(candidates) > MOST_CANDIDATES:
        raise UsageError(f"got {len(candidates):,} candidates, expected at most {MOST_CANDIDATES:,}")
    if not candidates and not request.get("candidate_set"):
        raise UsageError("there are no candidates: give ids of items, or the name of a candidate set")
    asked: Options = {**request, "variant": variant}
    return ranker.rank(**asked)


def _known_values(artefact: Artefact, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Values that the model has keys of, at most MOST_VALUES of every field whose values are categories."""
    found: dict[str, tuple[str, ...]] = {}
    for name, begin, end in key_ranges(artefact):
        field = artefact.spec.fields.get(name)
        if name in names and field is not None and KINDS[field.kind].token_is_text:
            keys = (artefact.key(row) for row in range(begin, min(end, begin + MOST_VALUES)))
            values = (unescape(key.partition(b"=")[2]).decode("utf-8", "backslashreplace") for key in keys)
            found[name] = (*found.get(name, ()), *values)[:MOST_VALUES]
    return found


def _columns(spec: ModelSpec, side: str) -> tuple[str, ...]:
    """The fields of one side that a request may give: all but histories, which the store has."""
    return tuple(name for name, each in spec.fields.items() if each.side == side and each.history is None)


PAGE = Page("/try", "Try it", build)
