"""What a user reads when there is no store behind a URL, or one that goes away, is silent or refuses."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrie.demo.processes import free_port
from model_store.errors import StoreError, StoreUnavailable
from model_store.redis.embedded import EmbeddedValkey
from model_store.store import Store


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    held = EmbeddedValkey.join(tmp_path)
    yield held
    held.close()


def test_nobody_listening_is_unavailable_and_says_what_to_check_but_no_password() -> None:
    port = free_port()
    says = rf"redis://me:…@127.0.0.1:{port}/0 does not answer .*is it running"
    with pytest.raises(StoreUnavailable, match=says) as caught:
        Store.open(f"redis://me:s3cr3t@127.0.0.1:{port}/0")
    assert "s3cr3t" not in str(caught.value)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(StoreUnavailable, match="Timeout"):
            Store.open(f"redis://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.05)
    for url in ("cluster://127.0.0.1:1,127.0.0.1:2", "sentinel://127.0.0.1:1/shop"):
        with pytest.raises(StoreUnavailable, match="does not answer"):
            Store.open(url)


def test_a_store_that_goes_away_is_unavailable_on_every_path_and_answers_again_when_it_is_back(
    valkey: EmbeddedValkey,
) -> None:
    with Store.open(f"unix://{valkey.socket}") as store, Store.open(f"embedded:{valkey.directory}") as other:
        store.records.put_users([("u", {"age": "25"})])
        assert other.records.user("u") == {"age": "25"}
        other.close()
        valkey.close()
        for ask in (
            store.ping,
            store.model("ads").active,
            lambda: store.records.user("u"),
            lambda: store.records.items(["a"]),
            lambda: list(store.records.scan_items()),
            lambda: store.records.put_users([("u", {})]),
        ):
            with pytest.raises(StoreUnavailable):
                ask()
        again = EmbeddedValkey.join(valkey.directory)
        assert store.records.user("u") == {"age": "25"}
        assert store.model("ads").active() is None
        again.close()


def test_what_the_store_refuses_or_answers_with_an_error_is_said(valkey: EmbeddedValkey) -> None:
    with Store.open(f"unix://{valkey.socket}") as store:
        store.client.set("ftrie:user:u", "no hash")
        with pytest.raises(StoreError, match=r"answered with an error: .*WRONGTYPE"):
            store.records.user("u")
        assert store.records.user("w") == {}
        store.client.config_set("requirepass", "right")
        try:
            with pytest.raises(StoreUnavailable, match="refused the name or password"):
                Store.open(f"unix://:wrong@{valkey.socket}")
        finally:
            store.client.config_set("requirepass", "")
