"""What the page for trying rankings shows: a request as a form, ranked by every variant, explained, and changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from threading import Lock

from ftrie.client.messages import ExplainedItem, Ranking
from ftrie.dashboard.feed import Feed, ModelState
from ftrie.dashboard.queries.models import Models
from ftrie.library.ranker import Ranker
from model_store.artefact.artefact import Artefact
from model_store.artefact.key_ranges import key_ranges
from model_store.errors import UsageError, VersionNotFound
from model_store.records.item_changes import ItemsState
from model_store.spec.keys import unescape
from model_store.spec.spec import ModelSpec

MOST_CANDIDATES = 1_000
MOST_EXPLAINED = 100
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

    def changed(self, name: str, value: str) -> Request:
        """With another value of one of the user's or the context's fields."""
        if name in self.context:
            return replace(self, context={**self.context, name: value})
        return replace(self, user={**self.user, name: value})


@dataclass(frozen=True)
class Form:
    """The fields of a request, by side, some ids of items to begin with, and values that the model knows, by field."""

    user: tuple[str, ...]
    context: tuple[str, ...]
    items: tuple[str, ...]
    values: Mapping[str, str]


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

    def rank(self, request: Request) -> dict[str, Ranking]:
        """The ranking by every variant. Raises FtrieError."""
        ranker = self._current()
        return {name: _ranked(ranker, request, name) for name in ranker.variants}

    def explain(self, request: Request, variant: str, items: Sequence[str]) -> list[ExplainedItem]:
        """The contributions to the scores of some candidates, best first. Raises FtrieError."""
        explanation = self._current().explain(
            user=dict(request.user) or None,
            context=dict(request.context) or None,
            candidates=list(items)[:MOST_EXPLAINED],
            cookie=request.cookie,
            variant=variant,
        )
        return list(explanation.items)

    def _current(self) -> Ranker:
        """The ranker of the active version, over the store's items as they are now."""
        state = self._feed.model(self._model)
        with self._lock:
            if state.active is None:
                raise VersionNotFound(f"no version of {self._model} is active")
            store, ranker = self._feed.store, self._ranker
            items = (
                store.records.item_changes.state()
            )  # before the items: later changes are seen the next time
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


def _known_values(artefact: Artefact, names: Sequence[str]) -> dict[str, str]:
    """A value that the model has a key of, of every field whose values are categories."""
    found: dict[str, str] = {}
    for name, begin, _ in key_ranges(artefact):
        field = artefact.spec.fields.get(name)
        if name in names and name not in found and field is not None and field.kind == "category":
            value = artefact.key(begin).partition(b"=")[2]
            found[name] = unescape(value).decode("utf-8", "backslashreplace")
    return found


def _columns(spec: ModelSpec, side: str) -> tuple[str, ...]:
    """The fields of one side that a request may give: none of histories, which the store has."""
    return tuple(name for name, each in spec.fields.items() if each.side == side and each.history is None)
