"""A call and the question it puts to the ranker: plain records. Nothing here reads a store or ranks by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc

from server.errors import Degradation
from server.ranking import wire
from server.ranking.features import PlainFeatures
from server.ranking.request import Received
from server.ranking.select.options import Options
from server.ranking.served import ServedVersion

if TYPE_CHECKING:
    from server.ranking.ranker import Ranking
    from server.ranking.served import ModelHandle


@dataclass(slots=True)
class Call:
    """One call, from when it is known what serves it. For one thread.

    until_s: its deadline on the monotonic clock. degraded: what its answer must say was left out. store_ns,
    ranking_ns: how long these stages took.
    """

    message: Received
    request_id: str
    context: grpc.ServicerContext
    current: ModelHandle
    served: ServedVersion
    explain: bool
    until_s: float
    degraded: list[Degradation] = field(default_factory=list)
    store_ns: int = 0
    ranking_ns: int = 0


@dataclass(slots=True)
class Question:
    """One ranking question, and the message it came in, if it came in one. `spelled` is as the request has it."""

    fields: wire.Fields | PlainFeatures
    item_ids: Sequence[str]
    spelled: Sequence[wire.Spelled]
    variant: int
    top_k: int | None
    message: Received | None = None
    options: Options | None = None
    shadows: Sequence[int] = ()

    def ask(self, served: ServedVersion, until_s: float = math.inf) -> Ranking:
        """Rank with `served`, which need not be the one that the question was put to.

        Raises FieldValueError, and DeadlinePassed as `Ranker.rank`.
        """
        fields = self.fields
        if isinstance(fields, PlainFeatures) and fields.reader is not served.plain and self.message:
            fields = wire.fields(self.message.with_features(), served)
        spelled = served.catalogue.under(self.spelled) if self.spelled else ()
        return served.ranker.rank(
            fields,
            self.item_ids,
            spelled,
            self.variant,
            self.top_k,
            options=self.options,
            shadows=self.shadows,
            until_s=until_s,
        )
