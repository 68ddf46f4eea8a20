"""Compiling every kernel of the server before the first request does: a small model, built, changed and asked."""

from __future__ import annotations

import numpy as np

from ctr.v1.ranking_pb2 import RankRequest
from model_store.artefact import Artefact
from model_store.features import FeaturePlan
from model_store.spec import parse_spec
from server.catalogue import Catalogue
from server.impressions.form import Form
from server.layers.live_model import LiveModel
from server.receiving.item_ids import ItemIds
from server.receiving.plain_features import PlainReader
from server.receiving.request import Received
from server.selection.warm_up import options_for_warming, warm_up_approximation
from server.serving import Serving
from server.user_records.cache import StoredUser
from server.user_records.wanted import WantedFields

_SPEC = """
model = { name = "warm-up" }
input = { label = "click" }
crosses = [{ fields = ["hour", "brand"] }]
[fields]
hour = {}
brand = { side = "item" }
"""
_KEYS = (b"bias", b"brand=nike", b"hour*brand=7*nike", b"hour=7")
_FRESH = (b"hour*brand=8*nova",)


def warm_up() -> None:
    """Compile all kernels of trie, layers and ranker, or load them from the cache. Seconds the first time."""
    before, after = _artefact(_KEYS), _artefact(tuple(sorted(_KEYS + _FRESH)))
    plan = FeaturePlan.of(before.spec)
    items = Catalogue.build(plan, [("shoe", {"brand": "nike"})], Form(before.spec, plan))
    model = LiveModel("warm-up")
    model.load(1, "", before, items)
    model.apply(2, "", after.changes_since(before, version=1))
    _ask(Serving.bind(model.parts))
    _ask(Serving.bind(model.rebuild()))
    warm_up_approximation()
    _receive(FeaturePlan.of(before.spec))


def _ask(serving: Serving) -> None:
    trie = serving.model.base.trie
    trie.get(b"hour=7")
    trie.longest_prefix(b"hour=7")
    ranking = serving.ranker.rank({"hour": "7"}, ["shoe", "unknown"], [("boot", {"brand": "nike"})])
    serving.lines.items(ranking)
    serving.ranker.rank({"hour": "7"}, ["shoe"], shadows=(0,))
    for options in options_for_warming():
        serving.ranker.rank({"hour": "7"}, ["shoe", "unknown"], [], top_k=1, options=options)


def _receive(plan: FeaturePlan) -> None:
    """Read a request from its bytes, lay its features over those of a user, and write an answer."""
    request = RankRequest(item_ids=["shoe"])
    request.context.values["hour"] = "7"
    received = Received(request.SerializeToString())
    given, ids = PlainReader(plan).read(received), received.item_ids
    assert given is not None and isinstance(ids, ItemIds)
    ids.ranked(np.zeros(1, np.int64), np.zeros(1), np.zeros(1))
    wanted = WantedFields.of(plan, None)
    user = StoredUser("warm-up", ["8"] * len(wanted.hash_fields.names), 0.0)
    user.tokens(wanted).under(given, user)


def _artefact(keys: tuple[bytes, ...]) -> Artefact:
    return Artefact.from_columns(
        key_data=np.frombuffer(b"".join(keys), np.uint8),
        key_offsets=np.cumsum([0, *map(len, keys)], dtype=np.int64),
        weight=np.ones(len(keys), np.float32),
        variants=np.ones(len(keys), np.uint32),
        rate=np.ones(len(keys), np.float32),
        spec=parse_spec(_SPEC),
        metrics={},
    )
