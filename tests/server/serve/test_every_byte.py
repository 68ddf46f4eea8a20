"""Keys of every byte, from the artefact through the store and the trie to an answer."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from ftrie.api.client import Client
from model_store.artefact.artefact import Artefact
from model_store.features.features import FeaturePlan
from model_store.spec.spec import parse_spec
from model_store.store import Store
from tests.server.one_process import serving

NAME = "bytes"
TEXT = """
[model]
name = "bytes"
[input]
label = "click"
[fields]
a = { side = "user" }
b = { side = "item" }
others = { side = "user", kind = "raw" }
[[crosses]]
fields = ["a", "b"]
"""
SPEC = parse_spec(TEXT).resolve(["click", "a", "b", "others"])
PLAN = FeaturePlan.of(SPEC)
ODD = ["", "=", "a=b*c", "a*b", "\\", "\0\0", "\U0001f98a", "ß\u0301", "x" * 900]
TEXTS = [chr(point) for point in range(256)] + ODD
RAW = [bytes([byte]) for byte in range(256)] + [b"\xff\xfe=\x00*", b"\xc3", b"\xed\xa0\x80"]


@cache
def known() -> list[bytes]:
    """The keys of every text beside every fourth one, and the raw ones."""
    pairs = ({"a": text, "b": b} for n, text in enumerate(TEXTS) for b in TEXTS[n % 4 :: 4])
    return sorted({key for pair in pairs for key, _, _ in PLAN.keys(pair)} | set(RAW))


def weight(key: bytes) -> float:
    return float(np.float32(sum((at + 1) * byte for at, byte in enumerate(key)) % 997 / 997 - 0.5))


def test_every_key_is_found_and_no_other(store: Store, store_url: str) -> None:
    artefact = Artefact.from_columns(
        key_data=np.frombuffer(b"".join(known()), np.uint8),
        key_offsets=np.cumsum([0, *map(len, known())], dtype=np.int64),
        weight=np.array([weight(key) for key in known()], np.float32),
        variants=np.ones(len(known()), np.uint32),
        rate=np.ones(len(known()), np.float32),
        spec=SPEC,
        metrics={},
    )
    assert artefact.key_list() == known()
    store.model(NAME).publish_and_activate(artefact)
    with serving(store_url, NAME) as server, Client(server.address, 30) as client:
        check_texts(client)
        check_raw_keys(client)


def check_texts(client: Client) -> None:
    keys = set(known())
    for text in [*TEXTS[:256:8], *ODD]:
        answer = client.rank(user={"a": text}, items={f"i{n}": {"b": b} for n, b in enumerate(TEXTS)})
        scores = {item.id: item.score for item in answer.items}
        for number, other in enumerate(TEXTS):
            mine = PLAN.keys({"a": text, "b": other})
            expected = sum(weight(key) * x for key, x, _ in mine if key in keys)
            assert scores[f"i{number}"] == pytest.approx(expected, abs=1e-6), (text, other)


def check_raw_keys(client: Client) -> None:
    base = client.rank(items={"i": {}}).items[0].score
    for raw in [*RAW[:128], *(key for key in known()[128::400] if key not in RAW)]:
        answer = client.rank(user={"raw_keys": [raw.decode()]}, items={"i": {}})
        assert answer.items[0].score - base == pytest.approx(weight(raw), abs=1e-6), raw
