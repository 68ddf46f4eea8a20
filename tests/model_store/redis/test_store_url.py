"""Store URLs as text: what each part means, and what is refused."""

from __future__ import annotations

import pytest
from redis.connection import SSLConnection

from model_store.errors import StoreError
from model_store.redis.servers import CLUSTER, ONE, SENTINEL, StoreUrl, without_password
from model_store.store import Store

OTHERS = ("", "http://host", "ftrie", "embedded", "/tmp/socket")


def test_a_cluster_is_named_by_some_of_its_nodes_and_replicas_of_one_server_may_confirm_too() -> None:
    url = StoreUrl.parse("cluster://me:s%3Acret@a:7000,b,[::1]:7002?wait=1&health_check_interval=3")
    assert (url.kind, url.wait) == (CLUSTER, 1)
    assert url.seeds == (("a", 7000), ("b", 6379), ("::1", 7002))
    assert url.options == {"username": "me", "password": "s:cret", "health_check_interval": 3}
    assert StoreUrl.parse("redis://host/3?wait=2").wait == 2
    assert StoreUrl.parse("redis://host/3?wait=2").url == "redis://host/3"
    assert StoreUrl.parse("unix:///a/socket?db=1") == StoreUrl(ONE, "unix:///a/socket?db=1")


def test_sentinels_are_named_with_their_master_and_its_database() -> None:
    url = StoreUrl.parse("sentinel://:secret@a,b:26380/shop/2?sentinel_password=other")
    assert (url.kind, url.master) == (SENTINEL, "shop")
    assert url.seeds == (("a", 26379), ("b", 26380))
    assert url.options == {"password": "secret", "db": 2}
    assert url.asking == {"password": "other"}
    for host in ("cluster+tls://host", "sentinel+tls://host/shop"):
        url = StoreUrl.parse(f"{host}?ssl_ca_certs=/ca.pem")
        for options in (url.options, url.asking):
            assert options["connection_class"] is SSLConnection
            assert options["ssl_ca_certs"] == "/ca.pem"


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("cluster://host:seven", "expected HOST:PORT, or several with commas"),
        ("cluster://a,,b", "expected HOST:PORT, or several with commas"),
        ("cluster://host/1", "a cluster has only database 0"),
        ("sentinel://host", "no master is named; expected sentinel://HOST:PORT/MASTER"),
        ("sentinel://host/shop/two", "expected the number of a database"),
        ("redis://host?wait=many", "expected how many replicas"),
        ("redis://host?wait", "got wait without a value; expected wait=VALUE"),
        (
            "redis://host/staging",
            "got the database 'staging'; expected the number of a database after HOST:PORT/",
        ),
        ("rediss://host:6380/3/4", "got the database '3/4'; expected the number of a database"),
        ("redis://host?db=staging", "Invalid value for 'db'"),
        ("redis://host#3", "expected %23 for '#'"),
        ("sentinel://host/shop#3", "expected %23 for '#'"),
        (
            "unix:///a/socket?tiemout=3",
            "got the parameter 'tiemout'; expected one of wait, username, .*socket_timeout",
        ),
        ("redis://host?decode_responses=1", "got the parameter 'decode_responses'; expected one of "),
        ("unix:///a/socket?socket_keepalive=1", "got the parameter 'socket_keepalive'; expected one of "),
        ("cluster://host?db=3", "got the parameter 'db'; expected one of "),
        ("cluster://host?sentinel_password=x", "got the parameter 'sentinel_password'; expected one of "),
        ("sentinel://host/shop?tiemout=3", "got the parameter 'tiemout'; expected one of "),
        ("redis://host?ssl_ca_certs=ca.pem", "ssl_ca_certs is of TLS; expected rediss://"),
        ("redis+cluster://host", "expected redis://HOST:PORT"),
        *((url, "expected redis://HOST:PORT, rediss://HOST:PORT, unix://") for url in OTHERS),
        ("embedded:", "expected embedded:DIR"),
        ("redis://localhost:seven", "cannot read the store's URL"),
    ],
)
def test_what_a_url_cannot_mean_is_refused_with_what_it_may(url: str, complaint: str) -> None:
    with pytest.raises(StoreError, match=complaint):
        Store.open(url)


def test_a_socket_may_have_an_at_in_its_path() -> None:
    assert StoreUrl.parse("unix:///a@b/socket?db=1") == StoreUrl(ONE, "unix:///a@b/socket?db=1")


@pytest.mark.parametrize("letter", "#/?")
@pytest.mark.parametrize("url", ["redis://:pass{}word@host", "sentinel://:pass{}word@host/shop"])
def test_a_password_that_is_not_quoted_is_not_shown(url: str, letter: str) -> None:
    with pytest.raises(StoreError, match="expected %23 for '#', %2F for '/' and %3F for '\\?'") as refused:
        Store.open(url.format(letter))
    assert "word@" not in str(refused.value) and "pass" not in str(refused.value).replace("password", "")


def test_no_password_is_shown() -> None:
    for url in (
        "redis://me:hidden@host",
        "cluster://me:hidden@a,b",
        "sentinel://a/shop?sentinel_password=hidden&sentinel_username=me",
        "redis://host?password=hidden",
        "rediss://host?ssl_keyfile=key.pem&ssl_password=hidden",
    ):
        assert "hidden" not in without_password(url)
        assert "…" in without_password(url)
