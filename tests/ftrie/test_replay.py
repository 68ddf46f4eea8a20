"""`ftrie bench serve`: the file of requests, when they are due, what is counted, and what is printed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from ctr.v1.ranking_pb2 import RankRequest
from ftrie.api.client import METHOD
from ftrie.api.load import WIDTH, drawn, due, histogram, read
from model_store.errors import InputError
from server.serve.grpc_server import grpc_server, listen
from server.serve.health import Health
from tests.ftrie.conftest import Ask, Say

LINES = """\
{"at": 12.5, "request": {"cookie": "second", "item_ids": ["a"], "context": {"values": {"x": {"number": 2.5}}}}}

{"at": 10.0, "request": {"cookie": "first"}}
{"at": 13.0, "request": {"cookie": "third"}}
"""


class Ranking:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.asked: list[str] = []

    def __call__(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        cookie = RankRequest.FromString(request).cookie
        with self.lock:
            self.asked.append(cookie)
        if cookie == "third":
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "as asked")
        return b""


@pytest.fixture
def ranking() -> Ranking:
    return Ranking()


@pytest.fixture
def address(ranking: Ranking) -> Iterator[str]:
    service, _, method = METHOD.lstrip("/").partition("/")
    handlers = {method: grpc.unary_unary_rpc_method_handler(ranking)}
    server = grpc_server(grpc.method_handlers_generic_handler(service, handlers), Health(), 2)
    where = listen(server, "127.0.0.1", 0)
    server.start()
    yield where
    server.stop(0).wait()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "requests.jsonl"
    made.write_text(LINES)
    return made


def test_requests_are_read_in_the_order_of_their_times_if_they_have_them(path: Path, say: Say) -> None:
    requests = read(path)
    cookies = [RankRequest.FromString(message).cookie for message in requests.messages]
    assert (cookies, requests.at, requests.timed) == (["first", "second", "third"], [0.0, 2.5, 3.0], True)
    assert RankRequest.FromString(requests.messages[1]).context.values["x"].number == 2.5
    path.write_text('{"cookie": "b"}\n{"at": 1, "request": {"cookie": "a"}}\n')
    requests = read(path)
    assert [RankRequest.FromString(message).cookie for message in requests.messages] == ["b", "a"]
    assert not requests.timed
    code, _, err = say("bench", "serve", "127.0.0.1:1", "--requests", path, "--pace", "1")
    assert (code, "not every line of" in err) == (2, True)


def test_a_line_that_is_no_request_is_named(path: Path) -> None:
    for text, message in (
        ("", "no requests"),
        ('{"cookie": "a"}\nnonsense\n', r"requests\.jsonl:2: not a ctr\.v1\.RankRequest"),
        ('{"cake": "a"}\n', r"requests\.jsonl:1: .*cake"),
        ("[1]\n", r"requests\.jsonl:1: "),
        ('{"at": "noon", "request": {}}\n', r"requests\.jsonl:1: "),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            read(path)


def test_requests_are_due_evenly_as_recorded_or_at_once(path: Path) -> None:
    for rate, pace, wanted in (
        (None, None, [0.0, 0.0, 0.0, 0.0, 0.0]),
        (4.0, None, [0.0, 0.25, 0.5, 0.75, 1.0]),
        (None, 1.0, [0.0, 2.5, 3.0, 4.5, 7.0]),
        (None, 2.0, [0.0, 1.25, 1.5, 2.25, 3.5]),
    ):
        schedule = list(itertools.islice(due(read(path), rate, pace), 5))
        assert [at for at, _ in schedule] == wanted
        cookies = [RankRequest.FromString(message).cookie for _, message in schedule]
        assert cookies == ["first", "second", "third", "first", "second"]


def test_calls_at_a_rate_are_counted_and_shown_as_json_or_a_table_with_a_histogram(
    address: str, ranking: Ranking, path: Path, ask: Ask, say: Say
) -> None:
    bench = ["bench", "serve", address, "--requests", path, "--rate", "60"]
    found = ask(*bench, "--duration", "0.5", "--concurrency", "3")
    assert found["calls"] == len(ranking.asked) == 30
    assert (found["answered"], found["errors"]) == (20, {"RESOURCE_EXHAUSTED": 10})
    assert sum(calls for *_, calls in found["histogram"]) == 20
    assert 0 < found["p50_ms"] <= found["p99_ms"] <= found["max_ms"]
    code, out, _ = say(*bench, "--duration", "0.2")
    assert (code, out.splitlines()[0].split()[:3]) == (0, ["calls", "answered", "seconds"])
    assert all(name in out for name in ("p50 ms", "p99.9 ms", "answered/s"))
    assert "█" in out and out.splitlines()[-1] == "RESOURCE_EXHAUSTED: 4"


def test_nobody_listening_is_a_failure(path: Path, say: Say) -> None:
    flags = ["--requests", path, "--rate", "20", "--duration", "0.2"]
    code, out, _ = say("bench", "serve", "127.0.0.1:1", *flags)
    assert (code, "UNAVAILABLE: 4" in out) == (6, True)


def test_a_histogram_has_every_call_between_the_bounds_of_its_bar() -> None:
    ms = [0.5, 0.6, 1.0, 1.2, 40.0]
    bars = histogram(ms)
    assert sum(bar.calls for bar in bars) == len(ms)
    for one in ms:
        assert sum(bar.above_ms <= one * 1.0001 and one < bar.up_to_ms * 1.0001 for bar in bars) >= 1
    lines = drawn([(bar.above_ms, bar.up_to_ms, bar.calls) for bar in bars])
    assert max(line.count("█") for line in lines) == WIDTH
    assert histogram([]) == [] and drawn([]) == []
