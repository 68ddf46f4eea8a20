"""From an answer to its line: one JSON object, described in docs/events.md.

A call leaves references to objects that do not change any more; the writer's thread reads them here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ctr.v1.ranking_pb2 import Features
from model_store.errors import FtrieError
from model_store.features.values import Value
from server.model.catalogue import Catalogue, Spelled, StoredItem
from server.model.event_form import Form, Fragments, quoted, written_items
from server.model.event_form_kernels import SKIPPED
from server.ranking.features import PlainFeatures, WantedFields
from server.ranking.scoring_kernels import FIRST_SPELLED, NO_ITEM

if TYPE_CHECKING:
    from server.ranking.query import Question
    from server.ranking.ranker import Ranking
    from server.ranking.request import Received
    from server.ranking.served import ServedVersion


Array = npt.NDArray[Any]


class NoFragments(FtrieError):
    """The catalogue was built without fragments: the values of its items are not known."""


class Shown(NamedTuple):
    """An answer, as a call leaves it. time_s: when it was given, seconds since 1970."""

    time_s: float
    request_id: str
    lines: Lines
    question: Question
    ranking: Ranking


@dataclass(frozen=True, slots=True)
class Lines:
    """Makes the lines of one version. Holds no part of the model, so that a waiting line does not keep a version alive.

    heads: by variant, the members `model`, `version` and `variant`.
    """

    model: str
    form: Form
    catalogue: Catalogue
    wanted: WantedFields
    heads: tuple[str, ...]

    @classmethod
    def of(cls, served: ServedVersion) -> Lines:
        """The lines of a version. O(variants)."""
        heads = tuple(
            f'"model":{quoted(served.name)},"version":{served.version},"variant":{quoted(variant)}'
            for variant in served.variant_names
        )
        return cls(served.name, served.form, served.catalogue, served.wanted, heads)

    def line(self, shown: Shown) -> bytes:
        """The line, without its end. O(features + bytes of the items). Raises NoFragments."""
        question, ranking = shown.question, shown.ranking
        message = question.message
        cookie = "" if message is None else message.brief.cookie
        user, context = self.form.request(self._fields(question))
        items = self.items(ranking)
        who = f'"cookie":{quoted(cookie)},' if cookie else ""
        start = (
            f'{{"request_id":{quoted(shown.request_id)},"ts":{shown.time_s:.6f},{who}'
            f'{self.heads[question.variant]},"user":{{{user}}},"context":{{{context}}},"items":['
        )
        return b"%b%b]}" % (start.encode(), items)

    def _fields(self, question: Question) -> Mapping[str, Value]:
        """The request's features and the user's, as the values that were scored."""
        fields = question.fields
        if not isinstance(fields, PlainFeatures):
            return fields
        values: dict[str, Value] = {}
        if fields.user is not None:
            values = self.wanted.named(fields.user.cookie, fields.user.values)
            for bit, _ in fields.user.tokens(self.wanted).misfits:
                values.pop(self.wanted.fields[bit.bit_length() - 1].name, None)
        assert question.message is not None
        values.update(_inline(question.message))
        return values

    def items(self, ranking: Ranking) -> bytes:
        """The items, commas between them. An item that was shown twice is written once, at its first position.

        O(bytes of the items). Raises NoFragments, FieldValueError.
        """
        rows = ranking.rows[ranking.order]
        which: list[int | str] = rows.tolist()
        more = _NO_FRAGMENTS
        if which and min(rows.tolist()) < 0:
            more = self._spell_out(ranking, rows, which)
        _skip_repeated(rows, which)
        known = self._fragments() if len(more) < len(which) else _NO_FRAGMENTS
        ctrs = np.ascontiguousarray(ranking.ctrs, np.float64)  # the kernel is compiled for this kind of array
        chances = _NO_CHANCES
        if ranking.propensities is not None:
            chances = np.ascontiguousarray(ranking.propensities, np.float64)
        return written_items(known, more, rows, ctrs, chances)

    def _spell_out(self, ranking: Ranking, rows: Array, which: list[int | str]) -> Fragments:
        """Fragments of the items that are not wholly in the catalogue; `rows` gets their numbers, negative.

        which: identifies each item; set for these.
        """
        made: list[bytes] = []
        unknown = frozenset(ranking.unknown_items)
        for place, row in enumerate(rows.tolist()):
            if row < 0:
                which[place], fragment = self._spelled(ranking, place, row, unknown)
                made.append(fragment)
                rows[place] = -len(made)
        return Fragments.of(made)

    def _spelled(self, ranking: Ranking, place: int, row: int, unknown: Set[str]) -> tuple[int | str, bytes]:
        """What identifies an item, and its fragment. unknown: the items of which the store has no record."""
        if row == NO_ITEM:
            item: Spelled = (ranking.candidates[int(ranking.order[place])], {})
        else:
            item = ranking.extra[FIRST_SPELLED - row]
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


_NO_CHANCES = np.empty(0)
_NO_FRAGMENTS = Fragments.of(())


def _skip_repeated(rows: Array, which: Sequence[int | str]) -> None:
    """Skip every repetition of an item."""
    if len(set(which)) < len(which):
        seen: set[int | str] = set()
        for place, each in enumerate(which):
            if each in seen:
                rows[place] = SKIPPED
            seen.add(each)


def _inline(message: Received) -> dict[str, Value]:
    """The features of a message that has only texts."""
    assert message.found is not None
    _, user, user_end, context, context_end, _ = message.found.tolist()
    values: dict[str, Value] = {}
    for begin, end in ((user, user_end), (context, context_end)):
        if begin:
            values.update(Features.FromString(message.message[begin:end]).values)
    return values
