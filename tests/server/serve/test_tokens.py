"""Bearer tokens: who is let in by which role, what is refused, and that no token is ever written anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from ftrie.api.access import Access
from ftrie.api.client import Client
from ftrie.api.feedback import Feedback, ReportFailed
from ftrie.cli import run
from model_store.errors import ServerError
from model_store.store import Store
from server.serve import security as tokens_module
from server.serve.gate import REFUSED
from server.serve.security import Tokens
from server.telemetry.meter import Meter
from tests.server import echo, shop
from tests.server.one_process import Server

RANK, ADMIN, BOTH = "rank-0123456789abcdef", "admin-0123456789abcdef", "both-0123456789abcdef"
EXPLAIN, FEEDBACK = "explain-0123456789abcdef", "feed-0123456789abcdef"
FILE = f'rank = ["{RANK}", "{BOTH}"]\nadmin = ["{ADMIN}", "{BOTH}"]\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "tokens.toml"
    made.write_text(FILE)
    made.chmod(0o600)
    return made


def reflection(address: str, access: Access) -> str:
    with access.channel(address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        try:
            next(stub.ServerReflectionInfo(iter([request]), timeout=20, metadata=access.metadata()))
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"


def test_a_token_opens_the_services_of_its_roles_alone_and_any_of_them_reflection(path: Path) -> None:
    meter = Meter()
    with echo.serving(tokens=Tokens(str(path)), meter=meter) as address:
        for token, called, reflected in (
            (RANK, "OK", "OK"),
            (BOTH, "OK", "OK"),
            (ADMIN, "PERMISSION_DENIED", "OK"),
            (RANK[:-1], "UNAUTHENTICATED", "UNAUTHENTICATED"),
            (RANK + "x", "UNAUTHENTICATED", "UNAUTHENTICATED"),
            ("", "UNAUTHENTICATED", "UNAUTHENTICATED"),
        ):
            access = Access(token=token)
            assert (echo.outcome(address, access).name, reflection(address, access)) == (called, reflected)
        with grpc.insecure_channel(address) as channel:  # health needs none
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20)
    counts = {tuple(labels): n for name, labels, n in meter.take()["counts"] if name == REFUSED.name}
    assert counts["Echo", "forbidden"] == 1
    assert counts["Echo", "unauthenticated"] == 3
    path.write_text(f'feedback = ["{BOTH}"]')  # a role without tokens lets nobody in
    with echo.serving(tokens=Tokens(str(path))) as address:
        assert echo.outcome(address, Access(token=BOTH)) is grpc.StatusCode.PERMISSION_DENIED


def test_the_scheme_is_read_in_any_case_and_other_metadata_are_passed_over(path: Path) -> None:
    guard = Tokens(str(path)).guard("rank")
    for metadata in (
        (("authorization", f"bearer {RANK}"),),
        (("x-trace", "1"), ("authorization", f"BEARER {RANK}")),
        (("authorization", "Basic dTpw"), ("authorization", f"Bearer {RANK}")),
    ):
        assert guard.refusal(metadata) is None


def test_each_method_of_a_server_takes_a_role_of_its_own(
    path: Path, shop_store: Store, start: Callable[..., Server], capsys: pytest.CaptureFixture[str]
) -> None:
    """An explanation shows a user's stored features, which who may rank need not see."""
    tokens = {"rank": RANK, "explain": EXPLAIN, "feedback": FEEDBACK}
    path.write_text("".join(f'{role} = ["{token}"]\n' for role, token in tokens.items()))
    server = start(tokens=str(path))
    assert server.ready.wait(180)
    asked = [shop.NAME, "--address", server.address, "--cookie", "u1", "--candidates", "item-1"]
    may: set[tuple[str, str]] = set()
    for role, token in {**tokens, "nobody": ""}.items():
        for command in ("rank", "explain"):
            if run([command, *asked, "--token", token]) == 0:
                may.add((command, role))
        with Client(server.address, 20, Access(token=token)) as client, suppress(ReportFailed):
            client.feedback("", [Feedback("r1", "item-1")])
            may.add(("report", role))
    assert may == {("rank", "rank"), ("explain", "explain"), ("report", "feedback")}
    said = capsys.readouterr().err
    assert "PERMISSION_DENIED: token lacks the required role 'explain'" in said
    assert "PERMISSION_DENIED: token lacks the required role 'rank'" in said
    assert "UNAUTHENTICATED" in said


def test_a_changed_file_is_read_again_and_a_bad_one_is_not_believed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens_module, "LOOK_EVERY_S", 0.0)
    tokens = Tokens(str(path))
    assert tokens.roles(RANK) == {"rank"}
    path.write_text('rank = ["the-new-0123456789abcdef"]')
    assert (tokens.roles(RANK), tokens.roles("the-new-0123456789abcdef")) == (frozenset(), {"rank"})
    with structlog.testing.capture_logs() as logs:
        path.write_text('rank = ["short"]')
        assert tokens.roles("the-new-0123456789abcdef") == {"rank"}
        path.unlink()
        assert tokens.roles("the-new-0123456789abcdef") == {"rank"}
    assert [entry["log_level"] for entry in logs] == ["error", "error"]
    assert "the-new" not in str(logs)


def test_a_file_that_is_no_token_file_is_refused_without_a_word_of_it(path: Path) -> None:
    for text, message in (
        ("rank = [", "is not TOML"),
        ("", "expected lists of tokens under one or more of rank, explain, feedback, admin"),
        ('root = ["0123456789abcdef"]', "expected lists of tokens under"),
        ('rank = "0123456789abcdef"', "rank: expected a list of texts"),
        ('rank = ["secret"]', "of at least 16 printable ASCII"),
        ('rank = ["secret with a space"]', "without spaces"),
        ("rank = [1234567890123456]", "expected a list of texts"),
    ):
        path.write_text(text)
        with pytest.raises(ServerError, match=message) as failed:
            Tokens(str(path))
        assert "secret" not in str(failed.value)
        assert failed.value.__cause__ is None
    with pytest.raises(ServerError, match=r"cannot read the tokens .*nowhere\.toml: No such file"):
        Tokens(str(path.with_name("nowhere.toml")))


LOUD = """
import logging, sys
logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
from server.telemetry.log import log_to_stderr
log_to_stderr(logging.DEBUG)
from ftrie.api.access import Access
from server.serve.security import Tokens
from tests.server import echo
tokens = Tokens(sys.argv[1])
with echo.serving(tokens=tokens) as address:
    for token in sys.argv[2:]:
        print(echo.outcome(address, Access(token=token)), Access(token=token), vars(tokens))
"""


@pytest.mark.slow
def test_no_token_is_in_any_log_or_repr_even_where_grpc_tells_all(path: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    tokens = (RANK, ADMIN, "wrong-0123456789abcdef")
    finished = subprocess.run(
        [sys.executable, "-c", LOUD, str(path), *tokens],
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{root}:{root / 'proto'}", "GRPC_VERBOSITY": "debug"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    written = finished.stdout + finished.stderr
    assert "StatusCode.OK" in written and "PERMISSION_DENIED" in written and "UNAUTHENTICATED" in written
    assert not [token for token in (*tokens, BOTH) if token in written]


def test_a_token_is_not_sent_over_a_network_in_the_open() -> None:
    with pytest.raises(ServerError, match="unencrypted; give --tls-ca"):
        Access(token=RANK).channel("192.0.2.1:50051")
    with pytest.raises(ServerError, match="expected one ASCII word"):
        Access(token="two words")
