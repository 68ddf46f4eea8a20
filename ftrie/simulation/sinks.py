"""Where feedback goes: the servers' FeedbackService, or the store's stream itself. One batch, taken or not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import grpc

from ctr.v1.feedback_pb2 import (
    FEEDBACK_KIND_CLICK,
    FEEDBACK_KIND_CONVERSION,
    FeedbackEvent,
    ReportRequest,
    ReportResponse,
)
from ftrie.access import OPEN, Access
from ftrie.simulation.visitors import CLICK
from model_store.errors import StoreError
from model_store.store import Store

REPORT = "/ctr.v1.FeedbackService/Report"
CALL_S = 5.0


@dataclass(frozen=True)
class Feedback:
    """What happened to one item of one answer; at: seconds since 1970. event_id: the same however often it is sent."""

    model: str
    request_id: str
    item: str
    event: str
    at: float
    value: float

    @property
    def event_id(self) -> str:
        """Who clicks an item of an answer twice clicks once."""
        return f"{self.request_id}/{self.item}/{self.event}"


@dataclass(frozen=True)
class Receipt:
    """What became of a batch that was taken."""

    accepted: int
    duplicates: int = 0
    rejected: int = 0


class NotTaken(Exception):
    """A batch may have been lost, or not: send it again. `status` is the gRPC status, or what the store said."""

    def __init__(self, status: str) -> None:
        super().__init__(status)
        self.status = status


class Sink(Protocol):
    """Takes batches of one model's feedback, at most 1,000 events. One thread."""

    def send(self, model: str, events: Sequence[Feedback]) -> Receipt:
        """Returns once they are in the store. Raises NotTaken."""

    def close(self) -> None:
        """Close the connections."""


class Service:
    """FeedbackService of several servers, in turn: after a failure the next one is asked."""

    def __init__(self, addresses: Sequence[str], access: Access = OPEN) -> None:
        self._channels = [access.channel(address) for address in addresses]
        self._metadata = access.metadata()
        self._calls = [
            channel.unary_unary(
                REPORT,
                request_serializer=ReportRequest.SerializeToString,
                response_deserializer=ReportResponse.FromString,
            )
            for channel in self._channels
        ]
        self._turn = 0

    def send(self, model: str, events: Sequence[Feedback]) -> Receipt:
        """As of Sink."""
        call = self._calls[self._turn % len(self._calls)]
        self._turn += 1
        request = ReportRequest(model=model, events=map(_message, events))
        try:
            answer = call(request, timeout=CALL_S, metadata=self._metadata)
        except grpc.RpcError as error:
            raise NotTaken(error.code().name) from error
        return Receipt(answer.accepted, answer.duplicates, len(answer.rejected))

    def close(self) -> None:
        """As of Sink."""
        for channel in self._channels:
            channel.close()


class Stream:
    """The stream of clicks in the store, as a system writes it that has no use for the service."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def send(self, model: str, events: Sequence[Feedback]) -> Receipt:
        """As of Sink."""
        try:
            return Receipt(self._store.clicks(model).append([_payload(event) for event in events]))
        except StoreError as error:
            raise NotTaken(type(error).__name__) from error

    def close(self) -> None:
        """The store is its owner's."""


def _message(event: Feedback) -> FeedbackEvent:
    message = FeedbackEvent(
        event_id=event.event_id,
        request_id=event.request_id,
        item_id=event.item,
        kind=FEEDBACK_KIND_CLICK if event.event == CLICK else FEEDBACK_KIND_CONVERSION,
        value=event.value,
    )
    message.time.FromNanoseconds(int(event.at * 1e6) * 1000)
    return message


def _payload(event: Feedback) -> bytes:
    members = {
        "request_id": event.request_id,
        "item": event.item,
        "ts": event.at,
        "event": event.event,
        "event_id": event.event_id,
    }
    return json.dumps(members | ({"value": event.value} if event.value else {})).encode()
