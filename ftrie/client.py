"""The Python client: plain values in, frozen dataclasses out. Nothing here reads a file or prints.

with Client("127.0.0.1:50051") as client: ranking = client.rank("ads", cookie="u1", candidates=["a", "b"],
context={"hour": 21}, top_k=1) print(ranking.items[0].id, ranking.items[0].ctr)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TypeAlias

import grpc

from ctr.v1.ranking_pb2 import Features, RankRequest, RankResponse
from ftrie.access import OPEN, Access
from model_store.errors import FieldValueError, ServerError

RAW_KEYS = "raw_keys"  # a list under this name is whole keys, for the model's raw field
METHOD = "/ctr.v1.RankingService/Rank"
DEFAULT_TIMEOUT_S = 5.0

Scalar: TypeAlias = str | int | float | bool
FeatureValues: TypeAlias = Mapping[str, Scalar | Sequence[str] | Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class RankedItem:
    """One candidate: its predicted click-through rate, and the score (logit) it comes from."""

    id: str
    ctr: float
    score: float


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


class RankFailed(ServerError):
    """The server answered with an error, or did not answer. `code` is the gRPC status."""

    def __init__(self, message: str, code: grpc.StatusCode) -> None:
        super().__init__(message)
        self.code = code


class Client:
    """A connection to one server. Thread safety: may be shared by all threads."""

    def __init__(self, address: str, timeout_s: float = DEFAULT_TIMEOUT_S, access: Access = OPEN) -> None:
        """`address` is host:port; `access` says whether by TLS and with which token. Connects on the first call.

        Raises ServerError where `access` does not do for the address.
        """
        self.address = address
        self._timeout_s = timeout_s
        self._channel = access.channel(address)
        self._metadata = access.metadata()
        self._rank = self._channel.unary_unary(
            METHOD,
            request_serializer=RankRequest.SerializeToString,
            response_deserializer=RankResponse.FromString,
        )

    def rank(
        self,
        model: str = "",
        *,
        cookie: str = "",
        candidates: Sequence[str] = (),
        items: Mapping[str, FeatureValues] | None = None,
        candidate_set: str = "",
        user: FeatureValues | None = None,
        context: FeatureValues | None = None,
        top_k: int | None = None,
        variant: str | None = None,
        request_id: str = "",
        timeout_s: float | None = None,
    ) -> Ranking:
        """Rank candidates given by id, spelled out in `items` (id to features), or by a set's name.

        Features are values by field name; a list is a set, a mapping to numbers a weighted set; a list under `raw_keys`
        is whole keys of a model made elsewhere. Raises RankFailed with the server's message and status, FieldValueError
        for text that is not Unicode.
        """
        try:
            request = RankRequest(
                model=model,
                request_id=request_id,
                cookie=cookie,
                item_ids=candidates,
                candidate_set=candidate_set,
                top_k=top_k,
                variant=variant,
            )
            _fill(request.user, user)
            _fill(request.context, context)
            for item_id, features in (items or {}).items():
                _fill(request.items.add(id=item_id).features, features)
        except UnicodeEncodeError as error:
            raise FieldValueError(
                f"got {error.object!r}, which is not Unicode text; expected UTF-8"
            ) from None
        return _ranking(self._call(request, self._timeout_s if timeout_s is None else timeout_s))

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, request: RankRequest, timeout_s: float) -> RankResponse:
        try:
            response: RankResponse = self._rank(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise RankFailed(
                f"{self.address}: {error.code().name}: {error.details()}", error.code()
            ) from error
        return response


def _fill(features: Features, values: FeatureValues | None) -> None:
    for name, value in (values or {}).items():
        if isinstance(value, str):
            features.values[name] = value
        elif isinstance(value, bool):
            features.values[name] = "true" if value else "false"
        elif isinstance(value, int):
            features.values[name] = str(value)
        elif isinstance(value, float):
            features.numbers[name] = value
        elif isinstance(value, Mapping):
            features.weighted_sets[name].members.update(value)
        elif name == RAW_KEYS:
            features.raw_keys.extend(value)
        else:
            features.sets[name].values.extend(value)


def _ranking(response: RankResponse) -> Ranking:
    return Ranking(
        request_id=response.request_id,
        cookie=response.cookie,
        model=response.model,
        version=response.version,
        variant=response.variant,
        items=tuple(RankedItem(item.id, item.ctr, item.score) for item in response.items),
        degraded=tuple(response.degraded),
        unknown_items=tuple(response.unknown_items),
        unknown_fields=tuple(response.unknown_fields),
    )
