"""Store URLs, and what a user reads when there is no store behind one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from model_store.errors import StoreError, StoreUnavailable
from model_store.redis.embedded import EmbeddedValkey
from model_store.store import Store


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    held = EmbeddedValkey.join(tmp_path)
    yield held
    held.close()


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def test_a_unix_url_reaches_the_same_store(valkey: EmbeddedValkey) -> None:
    with Store.open(f"unix://{valkey.socket}") as one, Store.open(f"embedded:{valkey.directory}") as other:
        one.records.put_users([("u", {"age": "25"})])
        assert other.records.user("u") == {"age": "25"}


def test_nobody_listening_is_unavailable_and_says_what_to_check(free_port: int) -> None:
    with pytest.raises(
        StoreUnavailable, match=rf"redis://127.0.0.1:{free_port} does not answer .*is it running"
    ):
        Store.open(f"redis://127.0.0.1:{free_port}")


def test_a_store_that_goes_away_is_unavailable_on_every_path(valkey: EmbeddedValkey) -> None:
    with Store.open(f"unix://{valkey.socket}") as store:
        store.records.user("u")
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


def test_a_store_that_comes_back_answers_again(valkey: EmbeddedValkey) -> None:
    with Store.open(f"unix://{valkey.socket}") as store:
        store.records.put_users([("u", {"age": "25"})])
        valkey.close()
        with pytest.raises(StoreUnavailable):
            store.records.user("u")
        again = EmbeddedValkey.join(valkey.directory)
        assert store.records.user("u") == {"age": "25"}
        assert store.model("ads").active() is None
        again.close()


def test_a_store_that_is_silent_is_unavailable_when_the_time_is_up(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(StoreUnavailable, match="Timeout"):
            Store.open(f"redis://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.05)


@pytest.mark.parametrize("url", ["", "http://host", "ftrie", "embedded", "/tmp/socket"])
def test_another_url_is_refused_with_those_allowed(url: str) -> None:
    with pytest.raises(StoreError, match="expected redis://HOST:PORT, rediss://HOST:PORT, unix://"):
        Store.open(url)


def test_embedded_without_a_directory_is_refused() -> None:
    with pytest.raises(StoreError, match="expected embedded:DIR"):
        Store.open("embedded:")


def test_a_port_that_is_none_is_refused() -> None:
    with pytest.raises(StoreError, match="cannot read the store's URL"):
        Store.open("redis://localhost:seven")


def test_messages_do_not_show_the_password(free_port: int) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        Store.open(f"redis://me:s3cr3t@127.0.0.1:{free_port}/0")
    assert "s3cr3t" not in str(caught.value)
    assert f"redis://me:…@127.0.0.1:{free_port}/0" in str(caught.value)


def test_a_refused_password_says_so(valkey: EmbeddedValkey) -> None:
    with Store.open(f"unix://{valkey.socket}") as store:
        store.client.config_set("requirepass", "right")
        try:
            with pytest.raises(StoreUnavailable, match="refused the name or password"):
                Store.open(f"unix://:wrong@{valkey.socket}")
        finally:
            store.client.config_set("requirepass", "")


def test_an_error_the_store_answers_is_a_store_error(valkey: EmbeddedValkey) -> None:
    with Store.open(f"unix://{valkey.socket}") as store:
        store.client.set("ftrie:user:u", "no hash")
        with pytest.raises(StoreError, match=r"answered with an error: .*WRONGTYPE"):
            store.records.user("u")
        store.client.set("ftrie:user:v", "1")
        assert store.records.user("w") == {}
