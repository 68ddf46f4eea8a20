"""Whole keys of a model made elsewhere: from the user's record, the item's, and the request, all of them scored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ftrie.api.client import Client
from ftrie.cli import run
from model_store.store import Store
from tests.server import shop
from tests.server.one_process import Server

WEIGHTS = {"u": 1.0, "w": 2.0, "i": 4.0, "c": 8.0, "v": 16.0}


@pytest.fixture
def client(store: Store, store_url: str, tmp_path: Path, start: Callable[[], Server]) -> Client:
    """Of a server of a model without a spec, whose user, item and candidate are stored with whole keys."""
    model = {"list": [{"fid": "0", "key": key, "value": x} for key, x in WEIGHTS.items()], "type": "t"}
    (tmp_path / "m.json").write_text(json.dumps(model))
    assert run(["store", "import", shop.NAME, str(tmp_path / "m.json"), "--store", store_url]) == 0
    store.records.put_users([("ann", {"user_raw": json.dumps(["u", "w", "unheard of"])}), ("bob", {})])
    store.records.put_items([("shoe", {"item_raw": json.dumps(["i"])}), ("hat", {})])
    running = start()
    assert running.ready.wait(180)
    return Client(running.address, timeout_s=20.0)


def test_stored_keys_of_users_and_items_and_those_of_the_request_all_count(client: Client) -> None:
    def score(cookie: str, item: str, **given: dict[str, list[str]]) -> float:
        answer = client.rank(cookie=cookie, candidates=[item], **given)  # type: ignore[arg-type]
        assert (answer.degraded, answer.unknown_fields) == ((), ())
        return answer.items[0].score

    with client:
        context = {"raw_keys": ["c"]}
        assert score("ann", "shoe", context=context) == 1 + 2 + 4 + 8
        assert score("ann", "shoe") == 1 + 2 + 4
        assert score("bob", "shoe") == 4
        assert score("ann", "hat") == 1 + 2
        # Given inline, the user's keys replace the stored ones, and the context's do not.
        assert score("ann", "hat", user={"raw_keys": ["v"]}, context=context) == 16 + 8
        explained = client.explain(cookie="ann", candidates=["shoe"], context=context)
        groups = {
            group.name: {key.key.decode(): key.contribution for key in group.keys}
            for group in explained.items[0].groups
        }
    assert groups == {"raw": {"c": 8.0}, "user_raw": {"u": 1.0, "w": 2.0}, "item_raw": {"i": 4.0}}
