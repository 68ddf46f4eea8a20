"""Where feedback goes: the servers' FeedbackService, or the store's stream itself. One batch, taken or not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, Protocol

from ftrie.access import OPEN, Access
from ftrie.client import Client
from ftrie.reporting import Feedback as ReportedFeedback
from ftrie.reporting import ReportFailed
from model_store.errors import StoreError
from model_store.store import Store

CALL_S = 5.0


@dataclass(frozen=True)
class Feedback:
    """What happened to one item of one answer; at: seconds since 1970. event_id: the same however often it is sent."""

    model: str
    request_id: str
    item: str
    event: Literal["click", "conversion"]
    at: float
    value: float

    @property
    def event_id(self) -> str:
        """Who clicks an item of an answer twice clicks once."""
        return f"{self.request_id}/{self.item}/{self.event}"

    def reported(self) -> ReportedFeedback:
        """As the client takes it."""
        at = datetime.fromtimestamp(self.at, UTC)
        return ReportedFeedback(self.request_id, self.item, self.event, self.event_id, at, self.value)


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
        self._clients = [Client(address, CALL_S, access) for address in addresses]
        self._turn = 0

    def send(self, model: str, events: Sequence[Feedback]) -> Receipt:
        """As of Sink."""
        client = self._clients[self._turn % len(self._clients)]
        self._turn += 1
        try:
            report = client.report(model, [event.reported() for event in events])
        except ReportFailed as error:
            raise NotTaken(error.code.name) from error
        return Receipt(report.accepted, report.duplicates, len(report.rejected))

    def close(self) -> None:
        """As of Sink."""
        for client in self._clients:
            client.close()


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


def _payload(event: Feedback) -> bytes:
    members = {
        "request_id": event.request_id,
        "item": event.item,
        "ts": event.at,
        "event": event.event,
        "event_id": event.event_id,
    }
    return json.dumps(members | ({"value": event.value} if event.value else {})).encode()
