"""What the page for trying rankings shows: a request as a form, ranked by every variant, explained, and changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from threading import Lock

from ftrie.client.messages import ExplainedItem, Ranking
from ftrie.dashboard.feed import Feed, ModelState
from ftrie.dashboard.shared import Models
from ftrie.library.ranker import Ranker
from model_store.artefact.artefact import Artefact
from model_store.artefact.key_ranges import key_ranges
from model_store.errors import UsageError, VersionNotFound
from model_store.records.records import ItemsState
from model_store.spec.keys import unescape
from model_store.spec.spec import ModelSpec

MOST_CANDIDATES = 1_000
MOST_VALUES = 200
EXAMPLES = 8


@dataclass(frozen=True)
class Request:
    """What the form asks. Empty texts are left out; candidates: ids, or else the name of a candidate set."""

    cookie: str = ""
    user: Mapping[str, str] = field(default_factory=dict)
    context: Mapping[str, str] = field(default_factory=dict)
    candidates: tuple[str, ...] = ()
    candidate_set: str = ""
    top_k: int = 10

    def changed(self, side: str, name: str, value: str) -> Request:
        """With another value of one of the fields of `side`, user or context."""
        if side == "context":
            return replace(self, context={**self.context, name: value})
        return replace(self, user={**self.user, name: value})


@dataclass(frozen=True)
class Form:
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

    def form(self) -> Form:
        """The fields of a request. Raises FtrieError."""
        state = self._feed.model(self._model)
        spec = self._spec(state)
        records = self._feed.store.records
        items = tuple(sorted(name for name, _ in islice(records.scan_items(), EXAMPLES)))
        user, context = _columns(spec, "user"), _columns(spec, "context")
        known = (
            _known_values(self._models.artefact(state, state.active), (*user, *context))
            if state.active
            else {}
        )
        return Form(user=user, context=context, items=items, values=known)

    def ask(self, request: Request, variant: str, item: str = "") -> Answer:
        """The ranking by every variant, and why `variant` scores one item so: `item`, or else its best one.

        Raises FtrieError.
        """
        with self._lock:
            ranker = self._current()
            rankings = {name: _ranked(ranker, request, name) for name in ranker.variants}
            ids = [each.id for each in rankings[variant].items]
            chosen, explained = item if item in ids else next(iter(ids), ""), None
            if chosen:
                explanation = ranker.explain(
                    user=dict(request.user) or None,
                    context=dict(request.context) or None,
                    candidates=[chosen],
                    cookie=request.cookie,
                    variant=variant,
                )
                (explained,) = explanation.items
            return Answer(
                ranker.version, rankings, explained, self._unknown(request, rankings[variant], explained)
            )

    def compare(self, before: Request, after: Request, variant: str) -> tuple[int, list[Move]]:
        """The version, and how its order moves from one request to another. Raises FtrieError."""
        with self._lock:
            ranker = self._current()
            return ranker.version, moves(*(_ranked(ranker, each, variant) for each in (before, after)))

    def _unknown(
        self, request: Request, ranking: Ranking, explained: ExplainedItem | None
    ) -> tuple[str, ...]:
        found = [f"item {name!r}: not in the store" for name in ranking.unknown_items]
        if request.cookie and not self._feed.store.records.user(request.cookie):
            found.append(f"cookie {request.cookie!r}: the store has no record of this user")
        if explained is not None:
            weighted = {group.name for group in explained.groups if group.keys}
            given = {**request.user, **request.context}
            found += [f"{name} {value!r}: no weight" for name, value in given.items() if name not in weighted]
        return tuple(found)

    def _current(self) -> Ranker:
        """The ranker of the active version, over the store's items as they are now. With the lock held."""
        state = self._feed.model(self._model)
        if state.active is None:
            raise VersionNotFound(f"no version of {self._model} is active")
        store, ranker = self._feed.store, self._ranker
        items = store.records.item_changes.state()  # before the items: later changes are seen the next time
        if ranker is None or (ranker.version, self._items) != (state.active, items):
            artefact = self._models.artefact(state, state.active)
            if ranker is None:
                self._ranker = ranker = Ranker(artefact, store, store, version=state.active)
            else:
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


def _ranked(ranker: Ranker, request: Request, variant: str) -> Ranking:
    if len(request.candidates) > MOST_CANDIDATES:
        raise UsageError(f"got {len(request.candidates):,} candidates, expected at most {MOST_CANDIDATES:,}")
    if not request.candidates and not request.candidate_set:
        raise UsageError("there are no candidates: give ids of items, or the name of a candidate set")
    return ranker.rank(
        user=dict(request.user) or None,
        context=dict(request.context) or None,
        candidates=list(request.candidates) or None,
        cookie=request.cookie,
        variant=variant,
        top_k=request.top_k,
        candidate_set="" if request.candidates else request.candidate_set,
    )


def _known_values(artefact: Artefact, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Values that the model has keys of, at most MOST_VALUES of every field whose values are categories."""
    found: dict[str, tuple[str, ...]] = {}
    for name, begin, end in key_ranges(artefact):
        field = artefact.spec.fields.get(name)
        if name in names and field is not None and field.kind == "category":
            keys = (artefact.key(row) for row in range(begin, min(end, begin + MOST_VALUES)))
            values = (unescape(key.partition(b"=")[2]).decode("utf-8", "backslashreplace") for key in keys)
            found[name] = (*found.get(name, ()), *values)[:MOST_VALUES]
    return found


def _columns(spec: ModelSpec, side: str) -> tuple[str, ...]:
    """The fields of one side that a request may give: none of histories, which the store has."""
    return tuple(name for name, each in spec.fields.items() if each.side == side and each.history is None)
