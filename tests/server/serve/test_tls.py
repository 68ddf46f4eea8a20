"""TLS and mutual TLS with certificates made on the spot: who can connect, and what happens when files are replaced."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import structlog
import trustme

from ftrie.api.access import OPEN, Access
from model_store.errors import ServerError
from server.serve.security import TlsFiles, check, warn_if_exposed
from server.settings import Settings, is_loopback
from tests.server import echo
from tests.server.certificates import Pem, identity


@pytest.fixture
def server_pem(tmp_path: Path) -> Pem:
    return identity(tmp_path, "server")


def credentials(pem: Pem, client_ca: str = "") -> grpc.ServerCredentials:
    return TlsFiles(pem.cert, pem.key, client_ca).credentials()


def test_who_knows_the_authority_is_answered_and_with_mutual_tls_who_is_known_by_one(
    server_pem: Pem, tmp_path: Path
) -> None:
    stranger, ours = identity(tmp_path, "stranger"), identity(tmp_path, "ours", trustme.CA())
    with echo.serving(credentials=credentials(server_pem)) as address:
        assert echo.outcome(address, Access(ca=server_pem.ca)) is grpc.StatusCode.OK
        assert echo.outcome(address, Access(ca=stranger.ca)) is grpc.StatusCode.UNAVAILABLE
        assert echo.outcome(address, OPEN) is grpc.StatusCode.UNAVAILABLE
    with echo.serving(credentials=credentials(server_pem, ours.ca)) as address:
        outcomes = [
            echo.outcome(address, Access(server_pem.ca, *pair))
            for pair in ((ours.cert, ours.key), (stranger.cert, stranger.key), ("", ""))
        ]
    assert outcomes == [grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAVAILABLE]


def test_new_connections_get_the_certificate_that_replaced_the_first(server_pem: Pem, tmp_path: Path) -> None:
    renewed = identity(tmp_path / "new", "server")
    with echo.serving(credentials=credentials(server_pem)) as address:
        assert echo.outcome(address, Access(ca=server_pem.ca)) is grpc.StatusCode.OK
        shutil.copy(renewed.cert, server_pem.cert)  # half replaced: the key is still the old one
        assert echo.outcome(address, Access(ca=server_pem.ca)) is grpc.StatusCode.OK
        shutil.copy(renewed.key, server_pem.key)
        assert echo.outcome(address, Access(ca=renewed.ca)) is grpc.StatusCode.OK
        assert echo.outcome(address, Access(ca=server_pem.ca)) is grpc.StatusCode.UNAVAILABLE


def test_files_that_do_not_fit_are_refused_at_start(server_pem: Pem, tmp_path: Path) -> None:
    other = identity(tmp_path, "other")
    for cert, key, client_ca in (
        (server_pem.cert, other.key, ""),
        (server_pem.cert, str(tmp_path / "nowhere"), ""),
        (server_pem.key, server_pem.key, ""),
        (server_pem.cert, server_pem.key, server_pem.key),
    ):
        with pytest.raises(ServerError, match="for TLS: "):
            TlsFiles(cert, key, client_ca).credentials()


def test_half_a_pair_and_a_missing_authority_are_refused(tmp_path: Path) -> None:
    assert TlsFiles.of("", "", "") is None
    for half in (("a", "", ""), ("", "b", ""), ("", "", "c")):
        with pytest.raises(ServerError, match="belong together"):
            TlsFiles.of(*half)
    for wrong in ({"ca": "a", "cert": "b"}, {"cert": "b", "key": "c"}):
        with pytest.raises(ServerError, match="--tls-c"):
            Access(**wrong)
    with pytest.raises(ServerError, match=r"cannot read .*nowhere\.pem"):
        Access(ca=str(tmp_path / "nowhere.pem")).channel("127.0.0.1:1")


def test_a_secret_that_others_may_read_is_warned_of(server_pem: Pem, tmp_path: Path) -> None:
    Path(server_pem.key).chmod(0o644)
    tokens = tmp_path / "tokens.toml"
    tokens.write_text('rank = ["rank-0123456789abcdef"]')
    tokens.chmod(0o640)
    settings = Settings(("shop",), "unix:///x", tokens=str(tokens))
    with structlog.testing.capture_logs() as logs:
        check(replace(settings, tls_cert=server_pem.cert, tls_key=server_pem.key))
    told = {(line["event"], line["file"], line["mode"], line["remedy"]) for line in logs}
    assert told == {
        ("other users can read this secret", str(tokens), "0640", f"chmod 600 {tokens}"),
        ("other users can read this secret", server_pem.key, "0644", f"chmod 600 {server_pem.key}"),
    }
    assert {line["log_level"] for line in logs} == {"warning"}


def test_a_door_that_stands_open_is_warned_of() -> None:
    for host, tls, known, warnings in (
        ("127.0.0.1", False, False, []),
        ("::1", False, False, []),
        ("localhost", False, False, []),
        ("0.0.0.0", False, False, ["NO TLS", "NO TOKENS"]),
        ("[::]", True, False, ["NO TOKENS"]),
        ("10.0.0.1", False, True, ["NO TLS"]),
        ("rank.example", True, True, []),
    ):
        with structlog.testing.capture_logs() as logs:
            warn_if_exposed(host, tls=tls, callers_known=known)
        assert [entry["event"].partition(":")[0] for entry in logs] == warnings, host
        assert is_loopback(host) is (host in ("127.0.0.1", "::1", "localhost"))
