"""`ftrie serve` as an operator runs it: TLS and tokens, metrics, health, recording and replay, in real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from ftrie.api.access import Access
from ftrie.api.client import Client, RankFailed
from ftrie.cli import run
from model_store.store import Store
from tests.integration.processes import FTRIE
from tests.repository.pages import page
from tests.server import shop
from tests.server.certificates import identity
from tests.waiting import eventually

TOKEN, ADMIN = "rank-0123456789abcdef", "admin-0123456789abcdef"


@contextmanager
def serving(store_url: str, *flags: str) -> Iterator[tuple[str, subprocess.Popen[str], list[dict[str, Any]]]]:
    """`ftrie serve shop`, ready: its address, its process, and its log as it grows."""
    command = [*FTRIE, "serve", shop.NAME, "--store", store_url, "--port", "0", "--json"]
    process = subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    log: list[dict[str, Any]] = []

    def read() -> None:
        for line in process.stderr or ():
            log.append(json.loads(line) if line.startswith("{") else {"event": line})

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        line = process.stdout.readline()
        assert line, log
        yield json.loads(line)["address"], process, log
    finally:
        process.terminate()
        assert process.wait(60) == 0
        reader.join(20)


def metrics_address(log: list[dict[str, Any]]) -> str:
    return next(str(entry["address"]) for entry in log if entry["event"] == "metrics")


Samples = list[tuple[str, dict[str, str], float]]


def scraped(address: str) -> Samples:
    """Every sample of a live /metrics, after its families are seen to be those documented."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as scraping:
        families = list(text_string_to_metric_families(scraping.read().decode()))
    of_servers = page("metrics.md").partition("\n## Of a trainer\n")[0]
    documented = re.findall(r"^\| `(ftrie_\w+)` \|", of_servers, re.MULTILINE)
    assert {family.name for family in families} == {name.removesuffix("_total") for name in documented}
    return [(s.name, s.labels, s.value) for family in families for s in family.samples]


def total(samples: Samples, name: str, **labels: str) -> float:
    """The sum of the samples of this name with these labels."""
    return sum(value for sample, its, value in samples if sample == name and labels.items() <= its.items())


@pytest.mark.slow
def test_a_server_with_tls_and_tokens_answers_those_alone_who_have_both_and_records_them(
    shop_store: Store, store_url: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem = identity(tmp_path, "server")
    tokens, recorded = tmp_path / "tokens.toml", tmp_path / "requests.jsonl"
    tokens.write_text(f'rank = ["{TOKEN}"]\nadmin = ["{ADMIN}"]\n')
    tokens.chmod(0o600)
    flags = ("--tls-cert", pem.cert, "--tls-key", pem.key, "--tokens", str(tokens), "--workers", "2")
    with serving(store_url, *flags, "--record", str(recorded), "--access-log", "1") as (address, _, log):
        with Client(address, 20, Access(ca=pem.ca, token=TOKEN)) as client:
            for user in ("u1", "u2", "nobody"):
                client.rank(cookie=user, candidates=list(shop.ITEMS), context={"distance": 2.5}, top_k=2)
        outcomes = []
        for access in (Access(ca=pem.ca), Access(ca=pem.ca, token=ADMIN), Access(token=TOKEN)):
            with Client(address, 5, access) as client, pytest.raises(RankFailed) as failed:
                client.rank(candidates=["item-1"])
            outcomes.append(failed.value.code.name)
        assert outcomes == ["UNAUTHENTICATED", "PERMISSION_DENIED", "UNAVAILABLE"]
        eventually(lambda: len(recorded.read_text().splitlines()) == 3)
        copy = tmp_path / "copy.jsonl"
        copy.write_bytes(recorded.read_bytes())
        monkeypatch.setenv("FTRIE_TOKEN", TOKEN)
        replay = ["--requests", str(copy), "--rate", "50", "--duration", "0.4", "--json"]
        assert run(["bench", "serve", address, "--tls-ca", pem.ca, *replay]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["answered"], found["errors"]) == (20, {})
        asked = ["--address", address, "--tls-ca", pem.ca, "--candidates", "item-1", "--json"]
        assert run(["rank", shop.NAME, *asked]) == 0
        assert "item-1" in capsys.readouterr().out
    answered = [entry for entry in log if entry["event"] == "answered"]
    assert len(answered) == 24
    assert "u1" not in json.dumps(answered) and "item-1" not in json.dumps(answered)
    written = json.dumps(log)
    assert TOKEN not in written and ADMIN not in written


@pytest.mark.slow
def test_what_is_called_is_counted_and_a_dead_worker_takes_no_count_along(
    shop_store: Store, store_url: str
) -> None:
    flags = ("--metrics-port", "0", "--workers", "2", "--host", "0.0.0.0")
    with serving(store_url, *flags) as (address, _, log):
        address = f"127.0.0.1:{address.rpartition(':')[2]}"
        where = metrics_address(log)
        with Client(address, 20) as client:
            for _ in range(20):
                client.rank(cookie="u1", candidates=["item-1", "item-2"], variant="plain")
            with pytest.raises(RankFailed):
                client.rank("other", candidates=["item-1"])

        def counted(name: str, **labels: str) -> float:
            return total(scraped(where), name, **labels)

        plain = {"model": shop.NAME, "version": "1", "variant": "plain"}
        eventually(lambda: counted("ftrie_call_seconds_count", **plain) == 20)
        eventually(lambda: counted("ftrie_errors_total") == 1)
        assert counted("ftrie_candidates_total", **plain) == 40
        assert counted("ftrie_errors_total", model="", status="NOT_FOUND") == 1
        assert counted("ftrie_model_version", model=shop.NAME) == 1
        assert (counted("ftrie_ready"), counted("ftrie_workers")) == (1, 2)
        with urllib.request.urlopen(f"http://{where}/healthz", timeout=20) as page:
            health = json.load(page)
        assert health["ready"] is True
        os.kill(health["workers"][0]["pid"], signal.SIGKILL)
        eventually(lambda: counted("ftrie_worker_restarts_total") == 1)
        eventually(lambda: counted("ftrie_workers") == 2)
        assert counted("ftrie_call_seconds_count", **plain) == 20
    warnings = [entry["event"].partition(":")[0] for entry in log if entry["level"] == "warning"]
    assert warnings[:2] == ["NO TLS", "NO TOKENS"], "its host is beyond this machine"


@pytest.mark.slow
def test_health_over_http_tells_the_present(store: Store, store_url: str) -> None:
    """503 with the reason before a model is served, while no worker serves, and while draining; else 200."""
    command = [*FTRIE, "serve", shop.NAME, "--store", store_url]
    command += ["--port", "0", "--metrics-port", "0", "--drain", "3", "--workers", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        entry: dict[str, Any] = {}
        while entry.get("event") != "metrics":
            entry = json.loads(process.stderr.readline())
        threading.Thread(target=process.stderr.read, daemon=True).start()

        def health() -> tuple[int, str]:
            try:
                with urllib.request.urlopen(f"http://{entry['address']}/healthz", timeout=20) as page:
                    return int(page.status), json.load(page)["not_ready"]
            except urllib.error.HTTPError as error:
                return error.code, json.load(error)["not_ready"]

        assert health()[0] == 503 and "starting" in health()[1]
        shop.fill(store)
        eventually(lambda: health() == (200, ""))
        with urllib.request.urlopen(f"http://{entry['address']}/healthz", timeout=20) as page:
            before = json.load(page)
        os.kill(before["workers"][0]["pid"], signal.SIGKILL)
        eventually(lambda: health() == (503, "no worker serves every model (worker 0 gone)"))
        eventually(lambda: health() == (200, ""))
        with grpc.insecure_channel(before["address"]) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
            process.terminate()  # the open stream keeps the worker until --drain has passed
            assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert health() == (503, "draining")
            watch.cancel()
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tls-cert", "nowhere.pem"], "--tls-cert and --tls-key belong together"),
        (["--tls-cert", "nowhere.pem", "--tls-key", "nowhere.pem"], "for TLS: "),
        (["--tokens", "nowhere.toml"], "cannot read the tokens nowhere.toml"),
        (["--record", "no folder/requests.jsonl"], "cannot write requests to no folder/requests.jsonl"),
        (["--shadow-log", "no folder/shadows.jsonl"], "cannot write the shadow log"),
        (["--log-level", "loud"], "got 'loud', expected one of debug, info, warning, error"),
        (["my model"], "got the model name 'my model'"),
        (["--port", "TAKEN"], "has the port; --port 0 chooses a free one"),
    ],
)
def test_what_cannot_work_ends_the_command_at_once(
    store_url: str, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        flags = [flag.replace("TAKEN", str(taken.getsockname()[1])) for flag in flags]
        assert run(["serve", shop.NAME, "--store", store_url, "--port", "0", *flags]) in (1, 2, 6)
    said = capsys.readouterr().err
    assert message in said and "Traceback" not in said
