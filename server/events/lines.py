"""From an answer to its line: one JSON object, described in docs/events.md.

A call leaves references to objects that do not change any more; the writer's thread reads them here.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from model_store.errors import FtrieError
from server.model.columns import NO_FRAGMENTS, Catalogue, Fragments, InlineItem, StoredItem
from server.model.event_form import Form, quoted
from server.model.event_form_kernels import SKIPPED
from server.ranking.scoring_kernels import FIRST_INLINE, NO_ITEM

if TYPE_CHECKING:
    from server.ranking.query import Query, Ranking
    from server.ranking.served import ServedVersion


Array = npt.NDArray[Any]


class NoFragments(FtrieError):
    """The catalogue was built without fragments: the values of its items are not known."""


class Shown(NamedTuple):
    """An answer, as a call leaves it. time_s: when it was given, seconds since 1970."""

    time_s: float
    lines: Lines
    query: Query
    ranking: Ranking


@dataclass(frozen=True, slots=True)
class Lines:
    """Makes the lines of one version. Holds no part of the model, so that a waiting line does not keep a version alive.

    head: the members `model` and `version`; derived: the one of that name, or nothing.
    """

    model: str
    form: Form
    catalogue: Catalogue
    head: str
    derived: str
    variants: tuple[str, ...]

    @classmethod
    def of(cls, served: ServedVersion) -> Lines:
        """The lines of a version."""
        derivation = served.model.spec.derivation
        derived = f',"derived":"{derivation}"' if derivation else ""
        head = f'"model":{quoted(served.name)},"version":{served.version}'
        return cls(served.name, served.form, served.catalogue, head, derived, served.variant_names)

    def line(self, shown: Shown) -> bytes:
        """The line, without its end. O(features + bytes of the items). Raises NoFragments."""
        query = shown.query
        cookie = query.cookie
        user, context = self.form.request(query.features.values())
        items = self.items(shown.ranking, query.teams.names if query.teams is not None else ())
        who = f'"cookie":{quoted(cookie)},' if cookie else ""
        # Six digits: microseconds, the precision in which the ages of the user's events were computed.
        deferred = '"event":"deferred",' if query.deferred else ""
        by = ""
        if shown.ranking.others:
            # What reproduces the order: its objective here, and with each item the predictions that went into it.
            assert query.options is not None and query.options.objective is not None
            by = f',"objective":{quoted(query.options.objective.text)}'
        start = (
            f'{{"request_id":{quoted(query.request_id)},{deferred}"ts":{shown.time_s:.6f},{who}{self.head},"variant":'
            f'{quoted(query.variant_of(self.variants))}{self.derived}{by},"user":{{{user}}},"context":{{{context}}},'
            f'{_own(shown.ranking)}"items":['
        )
        return b"%b%b]}" % (start.encode(), items)

    def items(self, ranking: Ranking, teams: Sequence[str] = ()) -> bytes:
        """The items, commas between them. An item that was shown twice is written once, at its first position.

        teams: the names of interleaved variants. O(bytes of the items). Raises NoFragments, FieldValueError.
        """
        # Indexing by an array copies: the numbers are replaced below, and the query may be kept in `recent`.
        rows = ranking.candidates.rows[ranking.order]
        which: list[int | str] = rows.tolist()
        # Most answers have items of the catalogue only, which the kernel writes without a Python object for each.
        more = list[bytes]()
        if which and min(rows.tolist()) < 0:
            more = self._inline_items(ranking, rows, which)
        _skip_repeated(rows, which)
        known = self._fragments() if len(more) < len(which) else NO_FRAGMENTS
        ctrs = np.ascontiguousarray(ranking.ctrs, np.float64)  # the kernel is compiled for this kind of array
        chances = _NO_CHANCES
        if ranking.propensities is not None:
            chances = np.ascontiguousarray(ranking.propensities, np.float64)
        tails = _predictions(ranking)
        if teams:
            placed = _placed(ranking, teams)
            tails = [b"%b%b" % both for both in zip(tails, placed, strict=True)] if tails else placed
        return known.written(more, rows, ctrs, chances, tails)

    def _inline_items(self, ranking: Ranking, rows: Array, which: list[int | str]) -> list[bytes]:
        """The texts of the items that are not wholly in the catalogue; `rows` gets their numbers, negative.

        which: identifies each item; set for these.
        """
        made: list[bytes] = []
        unknown = frozenset(ranking.candidates.unknown)
        for place, row in enumerate(rows.tolist()):
            if row < 0:
                which[place], fragment = self._inline_item(ranking, place, row, unknown)
                made.append(fragment)
                rows[place] = -len(made)
        return made

    def _inline_item(
        self, ranking: Ranking, place: int, row: int, unknown: Set[str]
    ) -> tuple[int | str, bytes]:
        """What identifies an item, and its fragment. unknown: the items of which the store has no record."""
        if row == NO_ITEM:
            item: InlineItem = (ranking.candidates.ids[int(ranking.order[place])], {})
        else:
            item = ranking.candidates.items[FIRST_INLINE - row]
        item_id, features = item
        if not isinstance(features, StoredItem):
            is_unknown = not features and item_id in unknown
            return item_id, self.form.shown(item_id, features, unknown=is_unknown).encode()
        stored = self.form.stored(self._fragments().features_at(features.row))
        return features.row, self.form.shown(item_id, {**stored, **features.given}).encode()

    def _fragments(self) -> Fragments:
        fragments = self.catalogue.fragments
        if fragments is None:
            raise NoFragments("the catalogue holds no values of its items, only their tokens")
        return fragments


def _own(ranking: Ranking) -> str:
    """In apprentice mode the member that says what the model would have shown, and how near that is; else nothing."""
    own = ranking.own
    if own is None or not own.order.size:
        return ""
    ids = ",".join(map(quoted, ranking.candidates.ids_at(own.order)))
    overlap = np.intersect1d(own.order, ranking.order).size
    return (
        f'"apprentice":{{"first":{int(own.order[0] == ranking.order[0])},"overlap":{overlap},'
        f'"clicks":{float(own.ctr.sum())!r},"ids":[{ids}]}},'
    )


_NO_CHANCES = np.empty(0)


def _predictions(ranking: Ranking) -> Sequence[bytes]:
    """The member `models` of each item, with a comma before it; nothing if no other model has predicted."""
    found = list[str]()
    for name, other in ranking.others.items():
        head = f'{quoted(name)}:{{"version":{other.version},"variant":{quoted(other.variant)},"ctr":'
        mine = [f"{head}{ctr!r}}}" for ctr in np.nan_to_num(other.ctr).tolist()]
        found = mine if not found else [f"{before},{each}" for before, each in zip(found, mine, strict=True)]
    return [f',"models":{{{each}}}'.encode() for each in found]


def _placed(ranking: Ranking, teams: Sequence[str]) -> list[bytes]:
    """The members that an item has of the draft."""
    assert ranking.teams is not None and ranking.credits is not None
    heads = [f',"team":{quoted(name)},"credit":' for name in teams]
    placed = zip(ranking.teams.tolist(), ranking.credits.tolist(), strict=True)
    return [f"{heads[team]}{credit:.12g}".encode() for team, credit in placed]


def _skip_repeated(rows: Array, which: Sequence[int | str]) -> None:
    """Skip every repetition of an item."""
    if len(set(which)) < len(which):
        seen: set[int | str] = set()
        for place, each in enumerate(which):
            if each in seen:
                rows[place] = SKIPPED
            seen.add(each)
