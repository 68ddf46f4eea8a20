"""Keys of every byte, from the artefact through the store and the trie to an answer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ftrie.client.client import Client
from model_store.artefact.artefact import Artefact
from model_store.features.features import FeaturePlan
from model_store.spec.spec import parse_spec
from model_store.store import Store
from server.settings import Settings
from tests.server.one_process import Server

NAME = "bytes"
SPEC = parse_spec(
    f"""
[model]
name = "{NAME}"
[input]
label = "click"
[fields]
a = {{ side = "user" }}
b = {{ side = "item" }}
others = {{ side = "user", kind = "raw" }}
[[crosses]]
fields = ["a", "b"]
"""
).resolve(["click", "a", "b", "others"])
PLAN = FeaturePlan.of(SPEC)
TEXTS = [chr(point) for point in range(256)] + [
    "",
    "=",
    "a=b*c",
    "a*b",
    "\\",
    "\0\0",
    "\U0001f98a",
    "ß\u0301",
    "x" * 900,
]
RAW = [bytes([byte]) for byte in range(256)] + [b"\xff\xfe=\x00*", b"\xc3", b"\xed\xa0\x80"]


def weight(key: bytes) -> float:
    return float(np.float32(sum((at + 1) * byte for at, byte in enumerate(key)) % 997 / 997 - 0.5))


@pytest.fixture(scope="module")
def keys() -> list[bytes]:
    """Those of every text beside every fourth one, and the raw ones."""
    found = set(RAW)
    for number, text in enumerate(TEXTS):
        for other in TEXTS[number % 4 :: 4]:
            found.update(key for key, _, _ in PLAN.keys({"a": text, "b": other}))
    return sorted(found)


@pytest.fixture
def client(store: Store, store_url: str, keys: list[bytes]) -> Iterator[Client]:
    artefact = Artefact.from_columns(
        key_data=np.frombuffer(b"".join(keys), np.uint8),
        key_offsets=np.cumsum([0, *map(len, keys)], dtype=np.int64),
        weight=np.array([weight(key) for key in keys], np.float32),
        variants=np.ones(len(keys), np.uint32),
        rate=np.ones(len(keys), np.float32),
        spec=SPEC,
        metrics={},
    )
    assert artefact.key_list() == keys
    versions = store.model(NAME)
    versions.activate(versions.publish(artefact))
    server = Server(Settings((NAME,), store_url, drain_s=1.0))
    server.startup()
    assert server.ready.wait(180)
    with Client(server.address, 30) as connected:
        yield connected
    server.drain()
    server.shutdown()


def test_every_text_finds_its_keys_and_no_others(client: Client, keys: list[bytes]) -> None:
    known = set(keys)
    for text in [*TEXTS[:256:5], *TEXTS[256:]]:
        answer = client.rank(user={"a": text}, items={f"i{n}": {"b": b} for n, b in enumerate(TEXTS)})
        scores = {item.id: item.score for item in answer.items}
        for number, other in enumerate(TEXTS):
            mine = PLAN.keys({"a": text, "b": other})
            expected = sum(weight(key) * x for key, x, _ in mine if key in known)
            assert scores[f"i{number}"] == pytest.approx(expected, abs=1e-6), (text, other)


def test_raw_keys_of_any_text_are_found_whole(client: Client, keys: list[bytes]) -> None:
    base = client.rank(items={"i": {}}).items[0].score
    for raw in [key.decode() for key in keys if _is_text(key)][:300]:
        answer = client.rank(user={"raw_keys": [raw]}, items={"i": {}})
        assert answer.items[0].score - base == pytest.approx(weight(raw.encode()), abs=1e-6), raw


def _is_text(key: bytes) -> bool:
    try:
        return bool(key.decode())
    except UnicodeDecodeError:
        return False
