"""Compiling every kernel of the server before the first request does: a small model, built and asked."""

from __future__ import annotations

import numpy as np

from ctr.v1.ranking_pb2 import RankRequest
from model_store.artefact import Artefact
from model_store.spec import parse_spec
from server.catalogue import Catalogue
from server.model import Model
from server.ranker import Ranker
from server.receiving.request import received

_SPEC = """
model = { name = "warm-up" }
input = { label = "click" }
crosses = [{ fields = ["hour", "brand"] }]
[fields]
hour = {}
brand = { side = "item" }
"""
_KEYS = (b"bias", b"brand=nike", b"hour*brand=7*nike", b"hour=7")


def warm_up() -> None:
    """Compile all kernels of trie and ranker, or load them from the cache. Seconds the first time, then ~0.3 s."""
    artefact = Artefact.from_columns(
        key_data=np.frombuffer(b"".join(_KEYS), np.uint8),
        key_offsets=np.cumsum([0, *map(len, _KEYS)], dtype=np.int64),
        weight=np.ones(len(_KEYS), np.float32),
        variants=np.ones(len(_KEYS), np.uint32),
        rate=np.ones(len(_KEYS), np.float32),
        spec=parse_spec(_SPEC),
        metrics={},
    )
    model = Model.build(artefact, 1)
    model.base.trie.get_many(artefact.key_data, artefact.key_offsets)
    model.base.trie.get(b"hour=7")
    model.base.trie.longest_prefix(b"hour=7")
    received(RankRequest(item_ids=["shoe"]).SerializeToString())
    ranker = Ranker(model, Catalogue.build(model.plan, [("shoe", {"brand": "nike"})]))
    ranker.rank({"hour": "7"}, ["shoe", "unknown"], [("boot", {"brand": "nike"})])
