"""From a ranking to an `ExplainResponse`: each item of the answer with the keys that its score is the sum of.

Keys are made as the spec says and looked up one by one: slow, and independent of the ranking kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from ctr.v1.ranking_pb2 import Contributions, ExplainedItem, ExplainResponse, KeyContribution
from model_store.features.features import FeaturePlan
from model_store.spec.kinds import Token
from model_store.spec.values import Value
from server.errors import Degradation
from server.model.columns import Catalogue, id_tokens
from server.model.model import Model
from server.ranking.answer import item_messages
from server.ranking.query import Query, Ranking, TokenArrays
from server.ranking.scoring_kernels import FIRST_INLINE, NO_ITEM
from server.ranking.served import ServedVersion

ROUNDING = "rounding"
MAX_ROUNDINGS = 3
Tokens = dict[str, Sequence[Token]]


def explain_response(
    query: Query, ranking: Ranking, served: ServedVersion, degraded: Sequence[Degradation]
) -> bytes:
    """The answer as bytes. O(items · keys · length)."""
    items = []
    for item, (uncertainty, groups) in zip(
        item_messages(query, ranking), explained_items(query, ranking, served), strict=True
    ):
        if uncertainty is not None:
            item.uncertainty = uncertainty
        items.append(ExplainedItem(item=item, groups=map(_group, groups)))
    return ExplainResponse(
        request_id=query.request_id,
        model=served.name,
        version=served.version,
        variant=query.variant_of(served.variant_names),
        items=items,
        degraded=[each.message() for each in (*degraded, *ranking.notes)],
        unknown_items=query.unknown_items,
        unknown_fields=query.unknown_fields,
        known_fields=known_fields(query, served),
    ).SerializeToString()


def known_fields(query: Query, served: ServedVersion) -> list[str]:
    """The model's fields by name, if the request has one that is not among them."""
    plan = served.model.plan
    return sorted({field.name for field in plan.fields}) if query.unknown_fields else []


def explained_items(
    query: Query, ranking: Ranking, served: ServedVersion
) -> Iterator[tuple[float | None, tuple[Group, ...]]]:
    """Of each item of the answer its uncertainty, None without the probit link, and the keys behind its score."""
    model, candidates = served.model, query.candidates
    of_request = request_tokens(model.plan, query.features.tokens)
    known = None if ranking.uncertainties is None else ranking.uncertainties.tolist()
    rows = candidates.rows[ranking.order].tolist()
    for at, (row, item_id, score) in enumerate(zip(rows, ranking.ids, ranking.score, strict=True)):
        features = candidates.items[FIRST_INLINE - row][1] if row <= FIRST_INLINE else None
        tokens = of_request | item_tokens(model, served.catalogue, item_id, features)
        uncertainty, variant = known[at] if known is not None else None, query.variant
        if query.teams is not None and ranking.teams is not None:
            variant = query.teams.variants[ranking.teams[at]]
        if uncertainty is None and len(model.priors):
            uncertainty = deviation(model, tokens, variant)
        yield uncertainty, explained(model, tokens, variant, score)


def _group(group: Group) -> Contributions:
    keys = (
        KeyContribution(
            key=key.key, weight=key.weight, x=key.x, contribution=key.value, learning_rate=key.rate
        )
        for key in group.keys
    )
    return Contributions(name=group.name, sum=group.sum, keys=keys)


@dataclass(frozen=True, slots=True)
class Contribution:
    """One key of the model: its weight for the variant, the x that it is multiplied by, and its learning rate.

    With the probit link, weight is the mean of the key's posterior and rate its variance.
    """

    key: bytes
    weight: float
    x: float
    rate: float

    @property
    def value(self) -> float:
        """weight · x."""
        return self.weight * self.x


@dataclass(frozen=True, slots=True)
class Group:
    """The keys of the bias, of a field or of a cross, in the order in which the spec makes them."""

    name: str
    keys: tuple[Contribution, ...]
    sum: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sum", sum(key.value for key in self.keys))


def explained(
    model: Model, tokens: Mapping[str, Sequence[Token]], variant: int, score: float
) -> tuple[Group, ...]:
    """The keys that `variant` knows, by field and cross; all their values, added up in order, are exactly `score`.

    The ranking kernel adds the same numbers in another order, so that sums differ in their last bits: a last group,
    ROUNDING, holds what is left over, if anything is. O(keys · length).
    """
    keys = _known(model, tokens, variant)
    groups = [
        Group(name, tuple(key for _, key in several)) for name, several in groupby(keys, lambda pair: pair[0])
    ]
    # Last, so that the sum of all values in their order is the score, to the bit.
    rest = _rest([key.value for group in groups for key in group.keys], score)
    if rest:
        groups.append(Group(ROUNDING, tuple(Contribution(b"", value, 1.0, 0.0) for value in rest)))
    return tuple(groups)


def _known(
    model: Model, tokens: Mapping[str, Sequence[Token]], variant: int
) -> Iterator[tuple[str, Contribution]]:
    for name, key, x, mask in model.plan.keys_of(tokens):
        entry = model.look_up(key, variant) if mask >> variant & 1 else None
        if entry is not None:
            yield name, Contribution(key, entry.weight, x, entry.rate)


def deviation(model: Model, tokens: Mapping[str, Sequence[Token]], variant: int) -> float:
    """The standard deviation of a score under the probit link: also keys that the model lacks have a variance."""
    total, prior = 0.0, float(model.priors[variant])
    for _, key, x, mask in model.plan.keys_of(tokens):
        if mask >> variant & 1:
            entry = model.look_up(key, variant)
            total += (prior if entry is None else entry.rate) * x * x
    return math.sqrt(total)


def _rest(values: Sequence[float], score: float) -> list[float]:
    """What to add to the sum of `values`, number after number, so that it is `score`; nothing if that is not finite.

    One number nearly always, three at most: a difference that is itself rounded leaves less each time.
    """
    total = 0.0
    # One after the other, as a reader adds them: `sum` compensates its rounding from Python 3.12 on.
    for value in values:
        total += value
    rest: list[float] = []
    while total != score and math.isfinite(score - total) and len(rest) < MAX_ROUNDINGS:
        rest.append(score - total)
        total += rest[-1]
    return rest


def request_tokens(plan: FeaturePlan, tokens: TokenArrays) -> Tokens:
    """The tokens of the request's fields, by field."""
    value_start, begin, x, text = tokens
    return {
        field.name: [
            Token(text[begin[at] : begin[at + 1] - 1].tobytes(), float(x[at]))
            for at in range(value_start[place], value_start[place + 1])
        ]
        for place, field in enumerate(plan.request_fields)
    }


def item_tokens(
    model: Model, catalogue: Catalogue, item_id: str, features: Mapping[str, Value] | None
) -> Tokens:
    """The tokens of an item: of its `features` where they are given, else as the catalogue has it, if it does.

    Where a field is the item's id and has no value, the item's own id is its value. Raises FieldValueError.
    """
    found: Tokens = {}
    row = int(catalogue.rows.rows([item_id])[0][0]) if features is None else NO_ITEM
    for column, plan in enumerate(model.plan.item_fields):
        if row != NO_ITEM:
            tokens = catalogue.tokens_at(row, column)
        else:
            tokens = plan.tokens(None if features is None else features.get(plan.name))
        if not tokens and plan.name in model.item_id_fields:
            tokens = id_tokens(plan, item_id)
        found[plan.name] = tokens
    return found
