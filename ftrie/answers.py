"""Answers of a server as frozen dataclasses. Their fields are those of `ctr.v1`, whose comments tell the meaning."""

from __future__ import annotations

from dataclasses import dataclass

from ctr.v1.ranking_pb2 import Contributions as ContributionsMessage
from ctr.v1.ranking_pb2 import ExplainResponse, RankResponse
from ctr.v1.ranking_pb2 import RankedItem as ItemMessage


@dataclass(frozen=True, slots=True)
class RankedItem:
    """One candidate: its predicted click-through rate, and the score (logit) it comes from.

    objective, uncertainty and propensity are None where nothing asked for them; so is an objective without a value.
    """

    id: str
    ctr: float
    score: float
    objective: float | None = None
    uncertainty: float | None = None
    propensity: float | None = None

    @classmethod
    def of(cls, item: ItemMessage) -> RankedItem:
        """From the wire."""
        return cls(
            item.id,
            item.ctr,
            item.score,
            item.objective if item.HasField("objective") else None,
            item.uncertainty if item.HasField("uncertainty") else None,
            item.propensity if item.HasField("propensity") else None,
        )


@dataclass(frozen=True, slots=True)
class Ranking:
    """An answer; the fields are those of `ctr.v1.RankResponse`."""

    request_id: str
    cookie: str
    model: str
    version: int
    variant: str
    items: tuple[RankedItem, ...]
    degraded: tuple[str, ...]
    unknown_items: tuple[str, ...]
    unknown_fields: tuple[str, ...]

    @classmethod
    def of(cls, response: RankResponse) -> Ranking:
        """From the wire."""
        return cls(
            request_id=response.request_id,
            cookie=response.cookie,
            model=response.model,
            version=response.version,
            variant=response.variant,
            items=tuple(map(RankedItem.of, response.items)),
            degraded=tuple(response.degraded),
            unknown_items=tuple(response.unknown_items),
            unknown_fields=tuple(response.unknown_fields),
        )


@dataclass(frozen=True, slots=True)
class KeyContribution:
    """What one key of the model added to a score: weight · x."""

    key: bytes
    weight: float
    x: float
    contribution: float
    rate: float


@dataclass(frozen=True, slots=True)
class Contributions:
    """The keys of one field or cross, of the bias, or of what rounding leaves over."""

    name: str
    sum: float
    keys: tuple[KeyContribution, ...]

    @classmethod
    def of(cls, group: ContributionsMessage) -> Contributions:
        """From the wire."""
        keys = (KeyContribution(k.key, k.weight, k.x, k.contribution, k.rate) for k in group.keys)
        return cls(group.name, group.sum, tuple(keys))


@dataclass(frozen=True, slots=True)
class ExplainedItem:
    """One candidate and its groups; the contributions of all, added up one after the other, are its score exactly."""

    item: RankedItem
    groups: tuple[Contributions, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """An answer; the fields are those of `ctr.v1.ExplainResponse`."""

    request_id: str
    model: str
    version: int
    variant: str
    items: tuple[ExplainedItem, ...]
    degraded: tuple[str, ...]
    unknown_items: tuple[str, ...]
    unknown_fields: tuple[str, ...]

    @classmethod
    def of(cls, response: ExplainResponse) -> Explanation:
        """From the wire."""
        return cls(
            request_id=response.request_id,
            model=response.model,
            version=response.version,
            variant=response.variant,
            items=tuple(
                ExplainedItem(RankedItem.of(each.item), tuple(map(Contributions.of, each.groups)))
                for each in response.items
            ),
            degraded=tuple(response.degraded),
            unknown_items=tuple(response.unknown_items),
            unknown_fields=tuple(response.unknown_fields),
        )
