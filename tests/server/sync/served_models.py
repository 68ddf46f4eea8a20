"""Models of the shop that differ in keys or tell nothing apart, and what a server makes of those published."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ftrie.api.client import Client
from model_store.artefact.artefact import Artefact
from model_store.spec.keys import BIAS
from model_store.store import Store
from server.telemetry.status import ModelStatus
from tests.server import shop
from tests.server.one_process import Server

CANDIDATES = list(shop.ITEMS)


def part_of(whole: Artefact, rows: slice) -> Artefact:
    ends = whole.key_offsets
    first, last = int(ends[rows.start]), int(ends[rows.stop])
    return Artefact.from_columns(
        key_data=whole.key_data[first:last],
        key_offsets=ends[rows.start : rows.stop + 1] - first,
        weight=whole.weight[rows],
        variants=whole.variants[rows],
        rate=whole.rate[rows],
        spec=whole.spec,
        metrics={},
    )


def flat() -> Artefact:
    """A model of the shop that knows only the bias: every item scores the same."""
    row = list(shop.masks()).index(BIAS)
    return part_of(shop.artefact(1), slice(row, row + 1))


def some_models() -> list[Artefact]:
    """Models that differ in weights, and in which keys they have."""
    rows = shop.artefact(1).rows
    return [
        part_of(shop.artefact(1), slice(0, rows - 20)),
        part_of(shop.artefact(2), slice(0, rows - 20)),
        part_of(shop.artefact(2), slice(10, rows - 5)),
        part_of(shop.artefact(3), slice(0, rows)),
    ]


def publish(store: Store, model: Artefact, before: Artefact | None = None, parent: int = 0) -> int:
    """Publish and activate a snapshot, or the delta that leads there."""
    versions = store.model(shop.NAME)
    version = versions.publish(model) if before is None else publish_delta(store, model, before, parent)
    versions.activate(version)
    return version


def publish_delta(store: Store, model: Artefact, before: Artefact, parent: int, refused: str = "") -> int:
    """Publish the delta that leads from the version `parent` to this model, without activating it."""
    return store.model(shop.NAME).publish(model.changes_since(before), parent=parent, refused=refused)


def status(server: Server) -> ModelStatus:
    return server.status()[0]


def scores(client: Client, cookie: str = "", variant: str = "base") -> dict[str, float]:
    answer = client.rank(cookie=cookie, candidates=CANDIDATES, variant=variant)
    return {item.id: item.score for item in answer.items}


def expected(cookie: str = "", seed: int = 1) -> dict[str, float]:
    """What `scores` must be of the model `seed`."""
    user = {"device": cookie, **shop.USERS[cookie]} if cookie else {}
    return {item: shop.expected_score({**user, **fields}, 0, seed) for item, fields in shop.ITEMS.items()}


@contextmanager
def asking(server: Server) -> Iterator[Client]:
    """A client of a server that is ready."""
    assert server.ready.wait(180)
    with Client(server.address, timeout_s=20.0) as client:
        yield client
